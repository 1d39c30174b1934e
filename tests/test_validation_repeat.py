"""Measurements against each other and against published ones; the page about them says what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_validation_figures import measured, write

from validation import figures, repeat, sanity

PAGE = figures.MEASURED / "README.md"


def test_points_are_the_same_by_their_axes_alone_and_rows_of_one_run_do_not_count(tmp_path: Path) -> None:
    one = [measured(time, blocks=blocks, flight=8) for blocks, time in ((1, 102.0), (2, 200.0), (4, 300.0))]
    other = [measured(time, blocks=blocks, flight=8) for blocks, time in ((4, 300.0), (2, 250.0), (1, 100.0))]
    runs = [{"run": "new"}, {"run": "new"}, {"run": "old"}]
    write(tmp_path / "a", "toy", [row | run for row, run in zip(one, runs, strict=True)])
    write(tmp_path / "b", "toy", [row | {"run": "old"} for row in other])
    write(tmp_path / "a", "unknown", [measured(5, blocks=1)])
    (found,) = repeat.repeats(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (found.family, found.points, found.over) == ("toy", 2, 1)  # 4 blocks: both rows are of one run
    assert (found.worst, found.worst_point) == (pytest.approx(-0.2), "blocks 2, flight 8 B")
    assert found.middle == pytest.approx((0.02 + 0.2) / 2)
    assert found.bias == pytest.approx((0.02 - 0.2) / 2)


def test_the_newest_row_of_a_point_counts(tmp_path: Path) -> None:
    rows = [measured(100, blocks=1, spread=0.2), measured(100, blocks=1, spread=0.01), measured(7, blocks=2)]
    write(tmp_path, "toy", rows)
    (found,) = repeat.spreads(str(tmp_path))
    assert (found.points, found.steady, found.gpu) == (2, 2, True)


def test_a_published_constant_is_held_against_bandwidth_or_latency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "chase.latency", [measured(140, read=8, footprint=16 << 20, stride=128)])
    write(tmp_path, "host.copy", [measured(20e6, read=2**30, direction="in", bytes=2**30)])
    monkeypatch.setattr(sanity, "SHAPES", ())
    latency, copy = sanity.lines(str(tmp_path))
    assert (latency.unit, latency.ours, latency.theirs, latency.close) == ("ns", 140, 141.6, True)
    assert copy.ours == pytest.approx(2**30 / 20e6)
    assert copy.what == "host.copy in, 1 GiB"


def test_a_public_table_is_held_against_the_row_of_the_same_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured(90_000, context=131072, batch=1, heads=128)
    write(tmp_path, "mla.dense", [row, measured(5, context=4096, batch=1, heads=128)])
    monkeypatch.setattr(sanity, "CONSTANTS", ())
    quoted, sglang = sanity.lines(str(tmp_path))
    assert (quoted.ours, quoted.theirs, quoted.source) == (90, 78.4, "mla-trtllm-quoted")
    assert sglang.theirs == pytest.approx(84.4, abs=0.01)  # of 131,071 cached tokens
    assert sglang.difference == pytest.approx(90 / 84.4 - 1, abs=1e-3)
    assert not sglang.close


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def test_the_page_says_how_many_points_are_steady(page: str) -> None:
    steady, points = repeat.share(repeat.spreads("nvidia-h200"), gpu=True)
    assert f"{steady:,} of {points:,}" in page
    assert points >= 600


def test_the_page_counts_points_and_noisy_ones_of_every_family(page: str) -> None:
    for found in repeat.spreads("nvidia-h200"):
        assert f"`{found.family}` {found.points}/{found.points - found.steady}" in page, found.family


def test_the_page_says_how_many_points_differ_from_the_earlier_run(page: str) -> None:
    found = repeat.repeats("nvidia-h200", "nvidia-h200-earlier")
    over, compared = sum(each.over for each in found), sum(each.points for each in found)
    assert f"{over:,} of {compared:,}" in page
    for each in found:
        if each.over > 2:
            assert f"`{each.family}` {each.over}" in page, each.family


def test_the_page_says_how_many_points_differ_on_another_card(page: str) -> None:
    found = repeat.repeats("nvidia-h200", f"nvidia-h200{repeat.AGAIN}")
    over, compared = sum(each.over for each in found), sum(each.points for each in found)
    assert f"{over:,} of {compared:,}" in page
    assert all(each.worst < 0.03 for each in found if each.family in ("dsa.logits", "gdn", "kda"))


def test_our_figures_are_close_to_published_ones_or_explained() -> None:
    found = list(sanity.lines("nvidia-h200"))
    assert len(found) >= 25
    for line in found:
        assert line.close or line.why, line
