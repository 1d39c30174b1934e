"""The error table: its arithmetic on rows made by hand, its bounds and exit codes, what it lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_validation_figures import measured, write

from memsim import cli
from memsim.errors import MissingExtra, UsageError
from memsim.system import System
from validation import errors, figures_rows, predict
from validation.figures_rows import Row, number
from validation.predict_script import Job


def toy(row: Row, system: System) -> Job:
    """Says what column `graph_ns` holds."""
    return Job(0, 0, lambda bench: number(row, "graph_ns"))


def point(time_ns: float, said_ns: float, size: int, split: str = "held_out", **more: object) -> dict:
    """A row of a point whose recipe says `said_ns`."""
    return measured(time_ns, read=size, bytes=size) | {"graph_ns": said_ns, "split": split} | more


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two families: four points that may calibrate lie on 100 ns + 1 ns a byte."""
    rows = [point(100.0 + size, 1.0, size, "calibrate") for size in (100, 200, 400, 800)]
    rows += [point(1100.0, 1210.0, 1000), point(200.0, 190.0, 50, sm_mhz=1500)]
    write(tmp_path, "toy.a", rows)
    write(tmp_path, "toy.b", [point(50.0, 100.0, 8)])
    write(tmp_path, "other", [point(50.0, 1.0, 8)])
    monkeypatch.setattr(predict, "recipes", lambda: {"toy.a": toy, "toy.b": toy})
    monkeypatch.setitem(predict.MACHINES, tmp_path.name, {"": "h200", "toy.b": "h200-host"})
    return tmp_path


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.run(["validate", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_family_has_the_errors_of_its_held_out_points(machine: Path) -> None:
    one, two = errors.table(str(machine))
    assert (one.name, one.replayed_on, len(one.points), one.calibrated_points) == ("toy.a", "h200", 2, 4)
    assert [point.error for point in one.points] == [pytest.approx(0.10), pytest.approx(-0.05)]
    assert one.mape == pytest.approx(0.075)
    assert one.bias == pytest.approx(0.025)
    assert one.p95 == pytest.approx(0.05 + 0.95 * 0.05)
    assert one.worst_point.axes == "1,000 B"
    assert (two.name, two.replayed_on, two.mape, two.line_mape) == ("toy.b", "h200-host", 1.0, None)


def test_the_bar_is_twice_what_repeated_runs_differ_by(machine: Path) -> None:
    """Of toy.b the newest of three runs says 50 ns, the others 40 and 55; toy.a was measured once."""
    rows = [point(time_ns, 100.0, 8, run=f"{time_ns}") for time_ns in (40.0, 55.0, 50.0)]
    write(machine, "toy.b", [*rows, point(70.0, 70.0, 16), point(1.0, 1.0, 8, error="broken", median_ns="")])
    one, two = errors.table(str(machine))
    assert (one.spread, one.bar) == (None, 0.05)
    assert two.spread == pytest.approx((0.2 + 0.1) / 2)
    assert two.bar == pytest.approx(0.3)


def test_a_repeated_run_on_another_card_tells_the_bar_before_earlier_rows_do(machine: Path) -> None:
    """The card of `<machine>-again` takes 45 ns and 77 where this one takes 50 and 70."""
    rows = [point(time_ns, 100.0, 8, run=f"{time_ns}") for time_ns in (10.0, 50.0)]
    write(machine, "toy.b", [*rows, point(70.0, 70.0, 16, run="10.0")])
    again = machine.with_name(f"{machine.name}-again")
    again.mkdir()
    twice = [point(45.0, 100.0, 8, run="else"), point(77.0, 70.0, 16, run="else")]
    write(again, "toy.b", [*twice, point(1.0, 1.0, 16, run="else", error="broken", median_ns="")])
    _, two = errors.table(str(machine))
    assert two.spread == pytest.approx((0.1 + 0.1) / 2)


def test_the_line_is_fitted_to_what_may_calibrate_and_judged_on_the_same_points(machine: Path) -> None:
    one, _ = errors.table(str(machine))
    assert [point.line_ns for point in one.points] == [pytest.approx(1100), pytest.approx(150)]
    assert one.line_mape == pytest.approx(0.125)


def test_the_line_weighs_relative_errors_and_is_a_constant_where_all_calls_move_the_same() -> None:
    far = [{"median_ns": t, "bytes_read": 8.0} for t in (100.0, 100.0, 100.0, 400.0)]
    same = errors.line(far, far[:1])
    best = sum(1 / row["median_ns"] for row in far) / sum(1 / row["median_ns"] ** 2 for row in far)
    assert same == [pytest.approx(best)]
    assert errors.line(far[:3], far) == [None] * 4


def test_splits_choose_points(machine: Path) -> None:
    counts = {split: [len(f.points) for f in errors.table(str(machine), split)] for split in errors.SPLITS}
    assert counts == {"held_out": [2, 1], "calibrate": [4], "all": [6, 1]}


def test_families_are_chosen_by_name_or_first_words(machine: Path) -> None:
    assert [f.name for f in errors.table(str(machine), families=["toy"])] == ["toy.a", "toy.b"]
    assert [f.name for f in errors.table(str(machine), families=["toy.b"])] == ["toy.b"]
    with pytest.raises(UsageError, match=r"no recipe predicts a family 'toy\.c'; did you mean 'toy\.b'\?"):
        errors.table(str(machine), families=["toy.c"])
    with pytest.raises(UsageError, match="no recipe predicts a family 'other'"):
        errors.table(str(machine), families=["other"])


def test_the_newest_row_of_a_point_counts_and_failed_points_do_not(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [point(50.0, 50.0, 8), point(100.0, 50.0, 8), point(1.0, 50.0, 9, error="no memory")]
    write(machine, "toy.b", rows)
    (found,) = errors.table(str(machine), families=["toy.b"])
    assert [(point.measured_ns, point.axes) for point in found.points] == [(100.0, "8 B")]


def test_a_folder_that_no_machine_file_stands_for_is_refused(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(predict.MACHINES, machine.name)
    with pytest.raises(UsageError, match="no machine file stands for it; predicted is: nvidia-h200"):
        errors.table(str(machine))


def test_without_torch_its_families_are_left_out_or_refused(
    capsys: pytest.CaptureFixture[str], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "has_torch", lambda: False)
    _, out, _ = ran(capsys, "--machine", str(machine))
    assert f"left out without torch: {', '.join(predict.BY_TORCH)}\n" in out
    monkeypatch.setattr("memsim.recording.find_spec", lambda name: None)
    with pytest.raises(MissingExtra):
        errors.table(str(machine), families=["mla.dense"])


def test_a_bound_that_is_missed_ends_with_exit_code_3_after_the_table(
    capsys: pytest.CaptureFixture[str], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--machine", str(machine))
    monkeypatch.setattr(errors, "read_bounds", lambda: {"toy.a": 0.076, "toy.b": 1.0})
    code, out, err = ran(capsys, *words)
    assert (code, err) == (0, "")
    assert " ".join(out.splitlines()[1].split()) == "toy.a 2 7.5% +2.5% 9.8% 5.0% 12.5% 7.6% +10.0% 1,000 B"
    monkeypatch.setattr(errors, "read_bounds", lambda: {"toy.a": 0.074, "toy.b": 1.0})
    code, out, err = ran(capsys, *words)
    assert code == 3
    assert "toy.b" in out
    assert err == "Error: mean error above what is asserted: toy.a (7.5%, at most 7.4%)\n"
    assert ran(capsys, *words, "--split", "all")[0] == 0  # bounds are of held-out points


def test_json_has_shares_and_points_on_demand(
    capsys: pytest.CaptureFixture[str], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "read_bounds", lambda: {"toy.a": 0.2})
    code, out, _ = ran(capsys, "--machine", str(machine), "--json", "--points", "--family", "toy.a")
    found = json.loads(out)
    assert code == 0
    assert list(found["families"]) == ["toy.a"]
    family = found["families"]["toy.a"]
    assert {key: family[key] for key in ("points", "bound", "calibrated_points", "sm_mhz")} == {
        "points": 2, "bound": 0.2, "calibrated_points": 4, "sm_mhz": [1500, 1500],
    }  # fmt: skip
    assert [family[key] for key in ("mape", "bias", "p95", "line_mape")] == [
        pytest.approx(share) for share in (0.075, 0.025, 0.0975, 0.125)
    ]
    assert [point["measured_ns"] for point in family["listed"]] == [1100, 200]
    plain = json.loads(ran(capsys, "--machine", str(machine), "--json")[1])
    assert "listed" not in plain["families"]["toy.a"]


def test_points_are_listed_above_the_families(capsys: pytest.CaptureFixture[str], machine: Path) -> None:
    _, out, _ = ran(capsys, "--machine", str(machine), "--points", "--family", "toy.b")
    assert " ".join(out.splitlines()[1].split()) == "toy.b 8 B held out 50.0 ns 100 ns +100.0% -"


def test_an_option_of_the_table_before_another_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capsys, "--json", "tables")
    assert (code, out) == (2, "")
    assert "is an option of the error table; write it behind 'tables' if it takes it" in err


def test_a_bad_output_is_refused_before_anything_is_predicted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(errors, "table", None)
    assert cli.run(["validate", "-o", str(tmp_path / "file")]) == 2
    assert "is a file; give the name of a folder" in capsys.readouterr().err


def test_bounds_are_shares_of_families_that_have_recipes() -> None:
    known = {path.stem for path in (figures_rows.Path(errors.__file__).parent / "measured").rglob("*.csv")}
    known |= set(predict.recipes())  # of public tables, too
    for family, bound in errors.read_bounds().items():
        assert family in known
        assert 0 < bound < 3  # a share, not per cent; a mean error may pass 1


def test_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "LEAST_SHARED", 1)
    words = ("nvidia-h200", "calibrate", ["chase.latency", "chase.sm"])
    calls: list[tuple[int, int]] = []
    alone = errors.table(*words)
    together = errors.table(*words, progress=lambda done, points: calls.append((done, points)), workers=2)
    assert alone == together
    assert calls[-1] == (sum(len(family.points) for family in alone),) * 2
