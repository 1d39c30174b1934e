"""The measuring harness without a GPU: campaign files, rows and resume, the runner, timing on a CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from validation.measure import __main__ as command
from validation.measure import points, rows, runner, supervise, timing
from validation.measure.device import Env, Skipped
from validation.measure.points import CALIBRATE, HELD_OUT, CampaignError, Family, Point
from validation.measure.rows import Measured

MICRO = [family for family in points.read_campaign() if family.file == "micro.toml"]

CAMPAIGN = """
suite = "micro"
module = "fake"
[family."a.read"]
axes = ["bytes", "kind"]
calibrate = [{ bytes = [1, 2], kind = "cold" }]
exclude = [{ bytes = 3, kind = "warm" }]
points = [[9, "cold"], [1, "cold"]]
[[family."a.read".grid]]
bytes = [1, 2, 3]
kind = ["cold", "warm"]
"""


def campaign(folder: Path, text: str) -> list[Family]:
    (folder / "a.toml").write_text(text, encoding="utf-8")
    return points.read_campaign(folder)


def test_a_grid_is_a_product_and_explicit_points_follow_once(tmp_path):
    [family] = campaign(tmp_path, CAMPAIGN)
    found = [(point["bytes"], point["kind"]) for point in family.points]
    assert found == [(1, "cold"), (1, "warm"), (2, "cold"), (2, "warm"), (3, "cold"), (9, "cold")]
    assert (family.suite, family.module) == ("micro", "fake")


def test_only_points_that_pass_a_filter_calibrate(tmp_path):
    [family] = campaign(tmp_path, CAMPAIGN)
    splits = {point.key: point.split for point in family.points}
    assert splits["a.read bytes=1 kind=cold"] == splits["a.read bytes=2 kind=cold"] == CALIBRATE
    assert splits["a.read bytes=1 kind=warm"] == splits["a.read bytes=9 kind=cold"] == HELD_OUT
    assert (family.count(CALIBRATE), family.count(HELD_OUT)) == (2, 4)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = ["cold", "warm"]', 'kind = ["cold", 1.5]', "value 1.5; expected an integer or a word"),
        ('kind = ["cold", "warm"]', 'kind = ["cold", true]', "value True; expected an integer or a word"),
        ('kind = ["cold", "warm"]', 'sort = ["cold"]', "a grid has axes ['bytes', 'sort']"),
        ("bytes = [1, 2],", "bytes = [7],", "matches no point"),
        ("bytes = [1, 2],", "rows = [7],", "a filter names rows"),
        ('[9, "cold"]', "[9]", "has 1 values; expected 2"),
        ("exclude", "excluded", "unknown key excluded"),
        ('module = "fake"', "", "module is missing"),
        ('suite = "micro"', 'suite = "micro', "not TOML"),
        ('suite = "micro"', 'sweet = "micro"', "unknown key sweet"),
    ],
)
def test_a_wrong_campaign_file_is_named_with_what_is_wrong(tmp_path, old, new, said):
    assert old in CAMPAIGN
    with pytest.raises(CampaignError, match=re.escape(said)) as caught:
        campaign(tmp_path, CAMPAIGN.replace(old, new, 1))
    assert str(caught.value).startswith("a.toml: ")


def test_one_name_in_two_files_is_refused(tmp_path):
    (tmp_path / "b.toml").write_text(CAMPAIGN, encoding="utf-8")
    with pytest.raises(CampaignError, match="b.toml: family a.read is also in a.toml"):
        campaign(tmp_path, CAMPAIGN)


def test_a_point_has_one_key_and_one_seed():
    point = Point("a.read", {"bytes": 5, "kind": "cold"})
    assert point.key == "a.read bytes=5 kind=cold"
    assert point.seed == Point("a.read", {"bytes": 5, "kind": "cold"}, CALIBRATE).seed
    assert point.seed != Point("a.read", {"bytes": 6, "kind": "cold"}).seed


@pytest.mark.parametrize("family", MICRO, ids=lambda family: family.name)
def test_families_of_one_gpu_have_enough_points_on_either_side(family):
    assert family.count(CALIBRATE) >= (3 if family.name == "launch.dispatch" else 4)  # a slope needs no line
    assert family.count(HELD_OUT) > family.count(CALIBRATE)


def test_a_point_of_a_table_neither_judges_nor_calibrates(tmp_path):
    text = CAMPAIGN + '[[family."a.read".table]]\nbytes = [7, 8]\nkind = "warm"\n'
    [family] = campaign(tmp_path, text)
    assert [point["bytes"] for point in family.points if point.split == points.TABLE] == [7, 8]
    assert family.count(points.HELD_OUT) + family.count(points.CALIBRATE) == len(family.points) - 2
    taken = next(point for point in family.points if point.split == points.HELD_OUT)
    last = '\nkind = "warm"\n'
    again = text.removesuffix(f"[7, 8]{last}") + f'{taken["bytes"]}\nkind = "{taken["kind"]}"\n'
    with pytest.raises(points.CampaignError, match="is in a table, and judges or calibrates too"):
        campaign(tmp_path, again)


def test_each_suite_fits_ten_minutes_of_gpu_time_and_the_whole_campaign_twenty_two():
    """Points of tables apart, which are measured once for a kind of GPU."""
    families = [family for family in points.read_campaign() if family.gpus]
    assert sum(len(family.points) for family in families) >= 600
    suites: dict[str, float] = {}
    for family in families:
        judged = len(family.points) - family.count(points.TABLE)
        seconds = family.setup_seconds + family.seconds_per_point * judged
        suites[family.suite] = suites.get(family.suite, 0) + seconds
    assert max(suites.values()) <= 600
    assert sum(suites.values()) <= 1320


def test_a_file_may_say_how_long_its_families_are_timed_and_a_family_otherwise(tmp_path):
    text = CAMPAIGN.replace('suite = "micro"', 'suite = "micro"\ntimed_ms = 150\nrounds = 2')
    [family] = campaign(tmp_path, text.replace('["bytes", "kind"]', '["bytes", "kind"]\ntimed_ms = 400', 1))
    assert (family.timed_ms, family.rounds, family.warm_ms, family.sample_ms) == (400, 2, 20, 8)


@pytest.mark.parametrize(("only", "found"), [(["chase"], 3), (["chase.sm"], 1), ([], len(MICRO))])
def test_families_are_chosen_by_name_or_first_word(only, found):
    assert len(points.chosen(MICRO, "micro", only)) == found


def test_an_unknown_family_is_refused():
    with pytest.raises(CampaignError, match="--only chas: no such family"):
        points.chosen(MICRO, "micro", ["chas"])


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 10.0), (0.5, 25.0), (0.9, 37.0), (1.0, 40.0), (0.1, 13.0)]
)
def test_percentiles_lie_on_the_line_between_neighbours(share, value):
    assert rows.percentile([40, 10, 30, 20], share) == pytest.approx(value)


def family_of(count: int = 3, **other) -> Family:
    made = tuple(Point("fake.one", {"n": n, "word": "w"}) for n in range(count))
    return Family("fake.one", "micro", "fake", ("n", "word"), made, **other)


def test_a_row_holds_axes_statistics_and_bytes():
    family = family_of(extra=("flops",))
    measured = Measured([100.0, 101.0, 102.0], 64, 32, calls=16, buffers=4, extra={"flops": 7})
    measured.clocks, measured.kernels = {"sm_mhz": 1980}, {"a": 16, "b": 16}
    row = rows.row_of(family, family.points[1], measured, "r1")
    assert set(row) <= set(rows.columns(family))
    assert (row["n"], row["bytes_read"], row["bytes_written"], row["flops"]) == (1, 64, 32, 7)
    assert (row["median_ns"], row["replays"], row["kernels"], row["sm_mhz"]) == ("101.00", 3, 2, 1980)
    assert (row["spread"], row["noisy"]) == ("0.0158", 0)


def test_a_spread_above_three_percent_is_marked():
    family = family_of()
    row = rows.row_of(family, family.points[0], Measured([100.0, 100.0, 105.0]), "r1")
    assert (row["spread"], row["noisy"]) == ("0.0400", 1)


@pytest.mark.parametrize(
    ("measured", "said"), [(Measured([]), "no samples"), (Measured([1.0], extra={"x": 1}), "column x is not")]
)
def test_a_row_that_would_lie_is_refused(measured, said):
    family = family_of()
    with pytest.raises(ValueError, match=said):
        rows.row_of(family, family.points[0], measured, "r1")


def test_rows_come_back_as_they_were_written_and_other_columns_are_refused(tmp_path):
    path, family = tmp_path / "fake.one.csv", family_of()
    for point in family.points[:2]:
        rows.append(path, rows.columns(family), rows.row_of(family, point, Measured([2.0]), "r1"))
    assert [row["n"] for row in rows.read(path)] == ["0", "1"]
    assert path.read_text().count("split") == 1
    with pytest.raises(ValueError, match="measure into another folder"):
        rows.append(path, ["n", "other"], {"n": 1})


def test_a_point_is_settled_by_a_good_row_or_by_this_runs_own_failure(tmp_path):
    path, family = tmp_path / "fake.one.csv", family_of()
    names = rows.columns(family)
    rows.append(path, names, rows.row_of(family, family.points[0], Measured([2.0]), "old"))
    rows.append(path, names, rows.error_row(family.points[1], "Error: a\nb", "old"))
    rows.append(path, names, rows.error_row(family.points[2], "Error", "new"))
    assert rows.settled(path, family, "new") == {"fake.one n=0 word=w", "fake.one n=2 word=w"}
    rows.append(path, names, rows.row_of(family, family.points[1], Measured([2.0]), "new"))
    assert len(rows.settled(path, family, "newer")) == 2


def test_what_is_older_than_since_is_measured_again_and_then_settled(tmp_path, fake):
    family = family_of(gpus=0)
    run(tmp_path, family, "20261130T120000Z")
    fake.calls.clear()
    env = Env(device="cpu", run="20261201T090000Z", since="20261201")
    runner.run([family], env, tmp_path, end=time.monotonic() + 60, say=lambda line: None)
    assert fake.calls == [0, 1, 2]
    assert len(rows.read(tmp_path / "fake.one.csv")) == 6
    later = Env(device="cpu", run="20261201T100000Z", since="20261201")
    runner.run([family], later, tmp_path, end=time.monotonic() + 60, say=lambda line: None)
    assert fake.calls == [0, 1, 2]


def test_a_family_is_timed_as_long_as_its_campaign_says_but_not_in_a_smoke_test(tmp_path, fake):
    seen = []

    def does(point: Point, env: Env) -> Measured:
        seen.append((env.rounds, env.warm_s, env.sample_s, env.budget_s, env.window_s))
        return Measured([1.0])

    fake.does = does
    family = family_of(count=1, gpus=0, rounds=2, warm_ms=200, sample_ms=80, timed_ms=640, window_ms=400)
    run(tmp_path, family)
    env = Env(device="cpu", run="r2", smoke=True, rounds=1, budget_s=0.03)
    runner.run([family], env, tmp_path / "smoke", end=time.monotonic() + 60, say=lambda line: None)
    assert seen == [(2, 0.2, 0.08, 0.64, 0.4), (1, 0.02, 0.008, 0.03, 0.0)]


def test_a_half_written_row_is_left_out_and_cut(tmp_path):
    path, family = tmp_path / "fake.one.csv", family_of()
    rows.append(path, rows.columns(family), rows.row_of(family, family.points[0], Measured([2.0]), "r"))
    whole = path.read_bytes()
    path.write_bytes(whole + b"1,w,held")
    assert len(rows.read(path)) == 1
    rows.mend(path)
    assert path.read_bytes() == whole


@pytest.fixture
def fake(monkeypatch):
    """A module whose only family does what `fake.does` says."""
    module = types.ModuleType("validation.measure.fake")
    module.calls = []

    def one(point: Point, env: Env) -> Measured:
        module.calls.append(point["n"])
        return module.does(point, env)

    module.FAMILIES = {"fake.one": one}
    module.does = lambda point, env: Measured([1.0, 1.0], bytes_read=8, kernels={"k": 16})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def run(folder: Path, family: Family, name: str = "r1", end: float | None = None) -> runner.Summary:
    env = Env(device="cpu", run=name)
    soon = time.monotonic() + 60 if end is None else end
    return runner.run([family], env, folder, end=soon, say=lambda line: None)


def test_a_point_that_fails_is_a_row_and_the_next_goes_on(tmp_path, fake):
    def does(point: Point, env: Env) -> Measured:
        if point["n"] == 1:
            raise RuntimeError("out of\nmemory")
        return Measured([1.0])

    fake.does = does
    summary = run(tmp_path, family_of(gpus=0))
    assert (summary.measured, summary.failed) == (2, 1)
    assert [row["error"] for row in rows.read(tmp_path / "fake.one.csv")] == [
        "",
        "RuntimeError: out of memory",
        "",
    ]


def test_a_second_run_measures_only_what_is_missing(tmp_path, fake):
    fake.does = lambda point, env: Measured([1.0] if point["n"] != 1 else [])
    run(tmp_path, family_of(gpus=0))
    fake.calls.clear()
    fake.does = lambda point, env: Measured([1.0])
    summary = run(tmp_path, family_of(count=4, gpus=0), "r2")
    assert fake.calls == [1, 3]
    assert (summary.measured, summary.there) == (2, 2)


def test_the_budget_ends_a_run_between_points(tmp_path, fake):
    summary = run(tmp_path, family_of(gpus=0), end=time.monotonic() - 1)
    assert summary.out_of_time
    assert fake.calls == []


def test_captured_kernels_are_listed(tmp_path, fake):
    run(tmp_path, family_of(count=1, gpus=0))
    [row] = rows.read(tmp_path / "captured.csv")
    assert (row["point"], row["kernel"], row["count"]) == ("fake.one n=0 word=w", "k", "16")
    assert (row["total_ns"], row["source"]) == ("", "graph")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"gpus": 1}, "needs a GPU, --device is cpu"),
        ({"gpus": 0, "requires": ("no_such_module",)}, "python module no_such_module is not installed"),
        ({"gpus": 0, "requires": ("no_such.module",)}, "python module no_such.module is not installed"),
    ],
)
def test_a_family_that_the_machine_cannot_run_is_skipped(tmp_path, fake, other, reason):
    summary = run(tmp_path, family_of(**other))
    assert summary.skipped == {"fake.one": reason}
    assert not (tmp_path / "fake.one.csv").exists()


def test_a_family_may_skip_itself(tmp_path, fake):
    def does(point: Point, env: Env) -> Measured:
        raise Skipped("no such disk")

    fake.does = does
    assert run(tmp_path, family_of(gpus=0)).skipped == {"fake.one": "no such disk"}
    assert fake.calls == [0]
    assert not supervise.marker(tmp_path).exists()


def test_the_point_that_killed_a_process_is_written_down_and_not_tried_again(tmp_path, fake):
    supervise.mark(tmp_path, "r1", "fake.one n=1 word=w")
    summary = run(tmp_path, family_of(gpus=0))
    assert fake.calls == [0, 2]
    assert summary.failed == 1
    errors = {row["n"]: row["error"] for row in rows.read(tmp_path / "fake.one.csv")}
    assert errors == {"0": "", "1": "the process died or hung", "2": ""}


def test_the_point_of_a_run_that_was_stopped_from_outside_is_measured(tmp_path, fake):
    supervise.mark(tmp_path, "r0", "fake.one n=1 word=w")
    assert run(tmp_path, family_of(gpus=0)).failed == 0
    assert fake.calls == [0, 1, 2]


def test_a_process_that_hangs_on_a_point_is_killed(tmp_path):
    supervise.mark(tmp_path, "r1", "fake.one n=1 word=w")
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert supervise.wait(worker, tmp_path, limit_s=0.0) == -9
    assert worker.stdin is not None
    worker.stdin.close()


def test_run_facts_of_one_run_are_joined_and_others_kept(tmp_path):
    rows.note_run(tmp_path, "r1", {"device": "H200"})
    rows.note_run(tmp_path, "r2", {"device": "H100"})
    rows.note_run(tmp_path, "r1", {"wall_s": 3})
    assert json.loads((tmp_path / "run.json").read_text()) == {
        "r1": {"device": "H200", "wall_s": 3},
        "r2": {"device": "H100"},
    }


@pytest.mark.parametrize(
    ("call_ns", "buffers", "calls"),
    [
        (1_000, 1, 512),  # short: as many as a graph may hold
        (1_000, 320, 320),  # two turns would be too many
        (1_000, 600, 512),
        (10_000, 7, 84),  # 80 calls make 0.8 ms: 12 whole turns of 7
        (400_000, 1, 16),
        (400_000, 5, 20),
        (10_000_000, 1, 2),  # long: fewer than 16
        (50_000_000, 4, 1),
    ],
)
def test_calls_of_a_graph(call_ns, buffers, calls):
    assert timing.calls_for(call_ns, buffers) == calls


def test_time_work_goes_round_fresh_buffers_and_checks_each():
    seen: list[tuple[int, str]] = []

    def build(index: int) -> timing.Work:
        calls = [lambda name=name: seen.append((index, name)) for name in "ab"]
        check = lambda: seen.append((index, "check"))  # noqa: E731
        return timing.Work(calls, 10, 0, 20, check=check, renew=lambda: seen.append((index, "new")))

    measured = timing.time_work(build, Env("cpu", rounds=2, budget_s=0.0), calls_per_graph=3)
    assert (measured.calls, measured.buffers, measured.footprint_bytes) == (3, 2, 20)
    assert len(measured.samples_ns) == 8  # at least 7 in all, 4 a round
    round_zero = [word for index, word in seen if index == 0]
    assert round_zero == ["new", *"abab", *["new", *"aba"] * 4, "check"]
    assert seen[-1] == (1, "check")


def test_the_profiler_pass_builds_once_and_times_nothing():
    built = []

    def build(index: int) -> timing.Work:
        built.append(index)
        return timing.Work([lambda: None], 1, 0, 1)

    timing.time_work(build, Env("cpu", profile=True))
    assert built == [0]


def test_list_shows_every_point_with_its_split(capsys):
    assert command.main(["--list", "--suite", "micro", "--only", "fma.rate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "calibrate  fma.rate warps=4" in lines
    assert "held_out   fma.rate warps=1" in lines
    assert lines[-1].split() == ["total", "11", "4", "7", "0", "3.2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "micro"], "-o DIR is missing"),
        (["--suite", "macro"], "--suite macro: no such suite"),
        (["--only", "nothing"], "--only nothing: no such family"),
        (["-o", "x", "--since", "2026-12-01"], "--since 2026-12-01: expected a time such as 20261201"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(capsys, words, said):
    assert command.main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("summary", "only", "code"),
    [
        (runner.Summary(measured=1), [], 0),
        (runner.Summary(failed=1), [], 1),
        (runner.Summary(out_of_time=True), [], 3),
        (runner.Summary(skipped={"a": "b"}), [], 0),
        (runner.Summary(skipped={"a": "b"}), ["a"], 6),
    ],
)
def test_exit_codes(capsys, summary, only, code):
    assert command.report(summary, only) == code


def test_stream_and_load_shapes_make_the_bytes_in_flight():
    from validation.measure import micro_loaded, micro_stream

    for family in MICRO:
        for point in family.points:
            if family.module == "micro_stream":
                threads, words = micro_stream.shape(point["flight"])
                assert threads * words * 16 == point["flight"]
                assert point["bytes"] % point["flight"] == 0
            if family.module == "micro_loaded":
                warps, words = micro_loaded.shape(point["flight"])
                assert warps * words * 512 == point["flight"]
    with pytest.raises(ValueError, match="flight 100: expected"):
        micro_stream.shape(100)


def test_stream_rate_adds_warps_and_refuses_one_that_stopped_early():
    from validation.measure.micro_loaded import stream_rate

    reports = [[10, 0, 1_000_000], [20, 0, 2_000_000]]
    assert stream_rate(reports, 1000, 500_000, 900_000) == pytest.approx(0.02)
    with pytest.raises(ValueError, match="did not run as long"):
        stream_rate(reports, 1000, 500_000, 1_500_000)
