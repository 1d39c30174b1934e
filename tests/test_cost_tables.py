"""Costs by a kernel's shape: the tables, launches that take them, and how measured points fill them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from memsim.errors import UsageError
from validation import cost_tables, predict
from workloads import costs, tables
from workloads.grid import Shape
from workloads.record import ListSink, Recorder

LAUNCH = Shape(tile_rows=4, tile_bytes=64, tiles_in_flight=1)
ENTRY = """
[[table]]
path = "kernel.norm.startup"
axes = ["width", "rows"]
grid = [[64, 1_024], [1, 4, 16]]
ns = [
    100, 200, 400,
    300, 300, 900,
]
source = "H200: glue.norm"
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tables.Table:
    path = tmp_path / "tables.toml"
    path.write_text(ENTRY, encoding="utf-8")
    monkeypatch.setattr(tables, "known", lambda: tables.read(path))
    return tables.read(path)["kernel.norm.startup"]


def test_a_table_is_exact_on_its_grid_and_its_logarithm_linear_between(sample: tables.Table) -> None:
    at = [(width, rows) for width in (64, 1024) for rows in (1, 4, 16)]
    found = [sample.cost_ps({"width": width, "rows": rows}) for width, rows in at]
    assert found == [100_000, 200_000, 400_000, 300_000, 300_000, 900_000]
    assert sample.cost_ps({"width": 64, "rows": 2}) == pytest.approx(1e5 * 2**0.5, abs=1)
    both = (200 * 400 * 300 * 900) ** 0.25  # half way on both axes
    assert sample.cost_ps({"width": 256, "rows": 8}) == pytest.approx(1000 * both, abs=1)
    between = [sample.cost_ps({"width": 64, "rows": rows}) for rows in range(1, 17)]
    assert between == sorted(between)


def test_beside_a_point_that_costs_nothing_times_are_linear() -> None:
    table = tables.Table(("rows",), ((1, 16),), (0.0, 80.0), "")
    assert [table.cost_ps({"rows": rows}) for rows in (1, 2, 4, 16)] == [0, 20_000, 40_000, 80_000]


def test_outside_a_table_the_nearest_point_counts_and_is_told_apart(sample: tables.Table) -> None:
    assert sample.cost_ps({"width": 4096, "rows": 1000}) == 900_000
    assert sample.cost_ps({"width": 8, "rows": 1}) == 100_000
    assert not sample.inside({"width": 1025, "rows": 1})
    assert not sample.inside({"width": 64, "rows": 17})
    assert sample.inside({"width": 64, "rows": 16})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("300, 300, 900,", "300, 300,", "a time for each of their 6 points"),
        ("[64, 1_024]", "[1_024, 64]", "a rising list"),
        ("400,", "-1,", "expected none below 0"),
        ("source", "sources", "expected axes, grid, ns, path, source"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "tables.toml"
    path.write_text(ENTRY.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError, match=f"tables.toml: kernel.norm.startup: .*{said}"):
        tables.read(path)


def launched(shapes: Sequence[dict[str, int] | None]) -> tuple[Recorder, list[int]]:
    recorder = Recorder(sink := ListSink())
    for at in shapes:
        with recorder.kernel("k", "norm", 0, 1, LAUNCH, at=at):
            pass
    return recorder, [kernel.startup_ps for kernel in sink.kernels]


@pytest.mark.parametrize(("rows", "provenance"), [(4, "interpolated"), (64, "extrapolated")])
def test_a_launch_takes_the_table_of_its_family_and_the_trace_says_so(
    sample: tables.Table, rows: int, provenance: str
) -> None:
    recorder, startups = launched([None, {"width": 64, "rows": 1}, {"width": 64, "rows": rows}])
    assert startups == [0, 100_000, sample.cost_ps({"width": 64, "rows": rows})]
    [entry] = [each for each in costs.inputs(recorder.families, recorder.beyond) if "norm" in each["path"]]
    assert entry["provenance"] == provenance
    assert entry["value"] == "100 ns to 900 ns by width, rows"


def test_a_tried_value_goes_before_a_table(sample: tables.Table) -> None:
    with costs.tried({"kernel.norm.startup": "7 ns"}):
        assert launched([{"width": 64, "rows": 1}])[1] == [7_000]


def wanted(path: str) -> cost_tables.Wanted:
    return cost_tables.Wanted(path, "glue.norm", [{"state": ("again",)}], ("width", "rows"))


def rows_of(times: dict[tuple[int, int], float]) -> list[dict[str, float | str]]:
    return [{"width": float(w), "rows": float(r), "median_ns": ns} for (w, r), ns in times.items()]


@pytest.mark.parametrize(("key", "tiles"), [("startup", 1), ("tile", 5)])
def test_points_give_what_their_replays_lack(monkeypatch: pytest.MonkeyPatch, key: str, tiles: int) -> None:
    """A kernel that takes 1 us, and its cost `tiles` times, or 2 us if that is more."""
    path = f"kernel.trial.{key}"

    def replayed(family: str, rows: list, system: object) -> list[float]:
        at = {axis: int(rows[0][axis]) for axis in ("width", "rows")}
        with Recorder(sink := ListSink()).kernel("k", "trial", 0, 1, LAUNCH, at=at):
            pass
        [kernel] = sink.kernels
        cost_ns = (kernel.startup_ps + kernel.tile_ps) / 1000
        return [1000 + tiles * cost_ns if tiles == 1 else max(2000, 1000 + tiles * cost_ns)]

    monkeypatch.setattr(predict, "predicted", replayed)
    rows = rows_of({(64, 1): 3000.0, (64, 4): 2500.0, (128, 1): 4000.0, (128, 4): 900.0})
    points = [cost_tables._point(wanted(path), row, None) for row in rows]  # type: ignore[arg-type]
    found = cost_tables._solved(wanted(path), points, "H200: glue.norm")
    assert found.table.grid == ((64, 128), (1, 4))
    assert found.table.ns == pytest.approx([2000 / tiles, 1500 / tiles, 3000 / tiles, 0], rel=0.02)
    assert found.slow == 1


def test_points_that_leave_a_hole_in_the_grid_are_refused() -> None:
    points = [cost_tables._Point((64, 1), 5.0, False), cost_tables._Point((128, 4), 5.0, False)]
    with pytest.raises(UsageError, match="no point at \\(64, 4\\) of width, rows; expected a grid"):
        cost_tables._solved(wanted("kernel.trial.startup"), points, "")


def test_no_held_out_point_enters_a_table() -> None:
    folder = cost_tables.folder_of("nvidia-h200")
    for each in cost_tables.read():
        assert {row["split"] for row in cost_tables._rows(folder, each)} <= {"table", "calibrate"}


def test_the_shipped_tables_are_those_that_are_wanted_and_keep_their_text() -> None:
    shipped = tables.read(tables.FILE)
    assert {each.path: each.axes for each in cost_tables.read()} == {
        path: table.axes for path, table in shipped.items()
    }
    assert cost_tables.text_of([], shipped) == tables.FILE.read_text(encoding="utf-8")


def test_shapes_of_launches_are_kept_for_those_who_listen_alone() -> None:
    at = {"rows": 1, "width": 4096}
    costs.of("silu-mul", at=at)
    with costs.heard() as launches:
        costs.of("silu-mul", at=at)
        costs.of("silu-mul")
    costs.of("silu-mul", at=at)
    assert launches == [("silu-mul", at)]
