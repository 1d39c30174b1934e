"""How far predictions hold, and the quantiles that projections read: on a table made by hand."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from test_validation_figures import measured, write

from memsim import cli
from memsim.system import System
from validation import errors, errors_quantiles, predict, quantiles, reach
from validation.errors import Family, Point
from validation.figures_rows import Row, number
from validation.predict_script import Job


def family(name: str, points: list[tuple[dict, float]], seen: tuple[dict, ...] = ()) -> Family:
    """A family whose points have these axes and errors; `seen` may calibrate."""
    made = tuple(Point(str(axes), "held_out", 1000.0, 1000 * (1 + e), None, axes) for axes, e in points)
    return Family(name, "h200", made, len(seen), None, (1500.0, 1980.0), seen)


DENSE = family(
    "mla.dense",
    [
        ({"context": 10_000, "batch": 1, "heads": 16}, 0.10),
        ({"context": 9_999, "batch": 128, "heads": 16}, -0.20),
        ({"context": 1, "batch": 127, "heads": 8}, 0.30),
    ],
    ({"context": 1000, "batch": 16, "heads": 16}, {"context": 10, "batch": 1, "heads": 128}),
)
OTHERS = [
    family("stage.gather", [({"row": 64}, 0.01)], ({"row": 8},)),
    family("public.kda", [({"heads": 3.0}, 0.02)]),
    family("stack.kimi", [({"context": 5.0}, 0.03)]),
    family("stream.read", [({"bytes": 4}, 0.04)], ({"bytes": 1},)),
]


def test_only_points_far_from_what_may_calibrate_count() -> None:
    found = {
        (each.what, each.family): [round(e, 6) for e in each.errors]
        for each in reach.reaches([DENSE, *OTHERS])
    }
    assert found == {
        ("context 10 times what may calibrate", "mla.dense"): [0.10],
        ("batch 8 times what may calibrate", "mla.dense"): [0.20],
        ("head counts that may not calibrate", "mla.dense"): [0.30],
        ("rows in host memory, from micro-benchmarks alone", "stage.gather"): [0.01],
        ("whole attention stacks and steps", "stack.kimi"): [0.03],
        ("tables that others measured", "public.kda"): [0.02],
    }


def test_the_table_and_the_document_say_the_same() -> None:
    lines = reach.text([DENSE]).splitlines()
    assert [share in line for line, share in zip(lines[1:], ("+10.0%", "-20.0%", "+30.0%"), strict=True)] == [
        True
    ] * 3
    document = reach.document([DENSE])
    assert [(each["family"], each["points"]) for each in document] == [("mla.dense", 1)] * 3
    assert [each["mape"] for each in document] == [pytest.approx(e) for e in (0.10, 0.20, 0.30)]
    assert reach.text([OTHERS[-1]]) == ""


def test_quantiles_are_those_of_the_errors_and_survive_a_way_through_the_file(tmp_path: Path) -> None:
    path = tmp_path / "quantiles.toml"
    one = family("mla.dense", [({}, e / 100) for e in range(-10, 11)])
    errors_quantiles.write([one], "somewhere", path)
    errors_quantiles.write([family("kda", [({}, 0.5)])], "somewhere", path)
    errors_quantiles.write([family("kda", [({}, 0.25)])], "elsewhere", path)
    held = tomllib.loads(path.read_text(encoding="utf-8"))
    assert held["somewhere"]["mla.dense"] == {
        "points": 21,
        "low": -0.09,
        "high": 0.09,
        "sm_mhz": [1500, 1980],
    }
    assert held["somewhere"]["kda"]["low"] == held["somewhere"]["kda"]["high"] == 0.5
    assert held["elsewhere"]["kda"]["high"] == 0.25
    assert "Written by `memsim validate\n# --write`" in path.read_text(encoding="utf-8")


def _toy(row: Row, system: System) -> Job:
    return Job(0, 0, lambda bench: number(row, "graph_ns"))


def test_write_renews_the_families_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [measured(100.0, bytes=8) | {"graph_ns": 110.0, "split": "held_out"}]
    write(tmp_path, "toy.a", rows)
    write(tmp_path, "toy.b", rows)
    path = tmp_path / "quantiles.toml"
    monkeypatch.setattr(predict, "recipes", lambda: {"toy.a": _toy, "toy.b": _toy})
    monkeypatch.setitem(predict.MACHINES, tmp_path.name, {"": "h200"})
    monkeypatch.setattr(errors_quantiles.write, "__defaults__", (path,))
    assert cli.run(["validate", "--machine", str(tmp_path), "--family", "toy.a", "--write", "--json"]) == 0
    held = tomllib.loads(path.read_text(encoding="utf-8"))[tmp_path.name]
    assert list(held) == ["toy.a"]
    assert held["toy.a"]["low"] == pytest.approx(0.1)
    assert list(json.loads(capsys.readouterr().out)["families"]) == ["toy.a"]
    assert cli.run(["validate", "--write", "--split", "all"]) == 2
    assert "held-out" in capsys.readouterr().err


CHEAP = ("launch.gap", "host.chase", "mla.sparse")
SETTLED = 0.01


def test_the_committed_quantiles_are_those_of_the_table() -> None:
    held = tomllib.loads(quantiles.QUANTILES.read_text(encoding="utf-8"))["nvidia-h200"]
    for each in errors.table("nvidia-h200", families=CHEAP):
        found = errors_quantiles.entry(each)
        assert found["points"] == held[each.name]["points"]
        assert (found["low"], found["high"]) == (
            pytest.approx(held[each.name]["low"], abs=SETTLED),
            pytest.approx(held[each.name]["high"], abs=SETTLED),
        ), f"{each.name}: 'memsim validate --write' renews validation/quantiles.toml"


def test_a_figure_names_what_is_further_off_than_wanted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from validation import figures_errors

    far = family(
        "mla.dense", [({"n": n}, e) for n, e in enumerate((0.01, -0.13, 0.5, 0.2, -0.4, 0.119, 0.3))]
    )
    assert [point.values["n"] for point in figures_errors.named(far)] == [2, 4, 6, 3]
    paths = figures_errors.draw_all([far, OTHERS[1]], tmp_path / "new")
    assert [path.name for path in paths] == [
        *("mla.dense.svg", "mla.dense.png"),
        *("public.kda.svg", "public.kda.png"),
    ]
    text = paths[0].read_text(encoding="utf-8")
    assert text.count("-40%") == 1
    assert "-13%" not in text
