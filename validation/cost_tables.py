"""Tables of costs by shape, out of measured points: `memsim validate calibrate --tables`.

Enters: a folder of measurements, `cost_tables.toml`. Leaves: for each table what its points' replays lack to
the measured times, as `workloads/tables.toml` holds it. Only rows whose split is `table` or `calibrate` are
read. A start-up is the difference itself; a tile's time is sought where the replay comes out as measured.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memsim import output
from memsim.errors import UsageError, cut, nearest
from memsim.system import System
from validation import predict, show
from validation.calibrate import device_of
from validation.figures_rows import Row, number, read_rows
from validation.measure.points import CALIBRATE, TABLE, matches
from validation.repeat import folder_of
from workloads import costs, tables

if TYPE_CHECKING:
    from memsim.progress import Progress

WANTED = Path(__file__).with_name("cost_tables.toml")
FILE = tables.FILE
KEYS = {"path", "family", "points", "axes"}
TRIES = 12  # replays of a point whose tile's time is sought
NEAR = 0.001  # of the measured time
NAMES = ("table", "family", "points", "slow", "costs")
NOTE = "slow: points whose replay takes longer than measured without any cost: theirs is 0\n"
HEAD = """\
# Costs of library kernels by shape (`workloads/tables.py`), in ns beside bytes and arithmetic. Made by
# `memsim validate calibrate --tables --write` from measured points; validation/cost_tables.toml says which.
"""


class Wanted(NamedTuple):
    """A table that measurements give: the keys of `cost_tables.toml`."""

    path: str
    family: str
    points: list[dict[str, tuple[object, ...]]]
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Solved:
    """A table of costs, the rows behind it, and how many replays are too slow without any cost."""

    wanted: Wanted
    table: tables.Table
    rows: int
    slow: int


def read(path: Path = WANTED) -> list[Wanted]:
    """The tables that are wanted; UsageError, one line, if one is none."""
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["table"]:
        if entry.keys() != KEYS:
            raise UsageError(f"{path.name}: {entry.get('path')}: expected {', '.join(sorted(KEYS))}")
        points = [
            {axis: tuple(value) if isinstance(value, list) else (value,) for axis, value in point.items()}
            for point in entry["points"]
        ]
        found.append(Wanted(entry["path"], entry["family"], points, tuple(entry["axes"])))
    return found


def solved(
    machine: str = "nvidia-h200", only: Sequence[str] = (), progress: Progress | None = None
) -> list[Solved]:
    """All tables, or those whose paths `only` names. progress: called with (points done, points)."""
    folder, wanted = folder_of(machine), read()
    for path in only:
        if path not in (known := [each.path for each in wanted]):
            raise UsageError(f"no measurement gives a table '{cut(path)}'; {nearest(path, known)}")
    wanted = [each for each in wanted if not only or each.path in only]
    rows = {each.path: _rows(folder, each) for each in wanted}
    total, done, found = sum(map(len, rows.values())), 0, []
    for each in wanted:
        system = predict.system_of(predict.machine_of(folder, each.family))
        points = []
        for row in rows[each.path]:
            points.append(_point(each, row, system))
            done += 1
            if progress:
                progress(done, total)
        found.append(_solved(each, points, f"{device_of(folder)}: {each.family}"))
    return found


def text_of(found: Sequence[Solved], before: dict[str, tables.Table]) -> str:
    """`workloads/tables.toml` with the tables found, those of `before` kept where none was."""
    kept = before | {each.wanted.path: each.table for each in found}
    return HEAD + "".join(_entry(path, kept[path]) for path in sorted(kept))


def write(found: Sequence[Solved], path: Path = FILE) -> None:
    """Put the tables into their file, which is replaced whole."""
    output.write_files(path.parent, {path.name: text_of(found, tables.read(path))})
    tables.known.cache_clear()


def text(found: Sequence[Solved]) -> str:
    """A row per table."""
    cells = [
        [each.wanted.path, each.wanted.family, str(each.rows), str(each.slow), each.table.words]
        for each in found
    ]
    shown: str = show.table(NAMES, cells, left=(0, 1, 4))
    return shown + NOTE


def document(found: Sequence[Solved], machine: str) -> dict[str, Any]:
    """All of it."""
    entries = [
        {"path": each.wanted.path, "family": each.wanted.family, "rows": each.rows, "slow": each.slow}
        | each.table._asdict()
        for each in found
    ]
    return {"machine": machine, "tables": entries}


def _entry(path: str, table: tables.Table) -> str:
    width = len(table.grid[-1])
    lines = [table.ns[start : start + width] for start in range(0, len(table.ns), width)]
    ns = "\n".join("    " + " ".join(f"{value:.0f}," for value in line) for line in lines)
    grid = ", ".join("[" + ", ".join(f"{value:_}" for value in numbers) + "]" for numbers in table.grid)
    axes = ", ".join(f'"{axis}"' for axis in table.axes)
    return (
        f'\n[[table]]\npath = "{path}"\naxes = [{axes}]\ngrid = [{grid}]\nns = [\n{ns}\n]\n'
        f'source = "{table.source}"\n'
    )


def _rows(folder: Path, wanted: Wanted) -> list[Row]:
    """The newest good rows of the points; those that are held out are left alone."""
    rows = [row for row in read_rows(folder, wanted.family) if row["split"] in (CALIBRATE, TABLE)]
    found = [row for row in rows if not row.get("error") and matches(row, wanted.points)]  # type: ignore[arg-type]
    if not found:
        raise UsageError(
            f"{wanted.path}: no point of {wanted.family} is measured; expected those of its table"
        )
    return found


class _Point(NamedTuple):
    at: tuple[int, ...]
    ns: float
    slow: bool


def _point(wanted: Wanted, row: Row, system: System) -> _Point:
    """The cost at which the replay of a row comes out as measured."""
    measured, family = number(row, "median_ns"), wanted.path.split(".")[1]
    with costs.heard() as launches:
        bare = _replayed(wanted, row, system, 0)
    shapes = [at for name, at in launches if name == family]
    if not shapes or any(at != shapes[0] for at in shapes):
        raise UsageError(f"{wanted.path}: {len(shapes)} shapes in a call of {wanted.family}; expected one")
    at = tuple(shapes[0][axis] for axis in wanted.axes)
    if bare >= measured:
        return _Point(at, 0.0, slow=bare > measured * (1 + NEAR))
    if not wanted.path.endswith(".tile"):
        return _Point(at, measured - bare, slow=False)
    low, high, less, more = 0.0, measured - bare, bare, _replayed(wanted, row, system, measured - bare)
    for _ in range(TRIES):
        share = (measured - less) / (more - less) if more > less else 0.5
        middle = low + (high - low) * min(0.9, max(0.1, share))
        time = _replayed(wanted, row, system, middle)
        if abs(time / measured - 1) < NEAR:
            return _Point(at, middle, slow=False)
        low, less, high, more = (middle, time, high, more) if time < measured else (low, less, middle, time)
    return _Point(at, (low + high) / 2, slow=False)


def _replayed(wanted: Wanted, row: Row, system: System, ns: float) -> float:
    with costs.tried({wanted.path: f"{round(ns * tables.NS)} ps"}):
        return predict.predicted(wanted.family, [row], system)[0]


def _solved(wanted: Wanted, points: Sequence[_Point], source: str) -> Solved:
    """The grid of the points; those at the same place count as their mean."""
    grid = tuple(tuple(sorted({point.at[axis] for point in points})) for axis in range(len(wanted.axes)))
    places: dict[tuple[int, ...], list[float]] = {}
    for point in points:
        places.setdefault(point.at, []).append(point.ns)
    corners: list[tuple[int, ...]] = [()]
    for numbers in grid:
        corners = [(*corner, value) for corner in corners for value in numbers]
    missing = [corner for corner in corners if corner not in places]
    if missing:
        raise UsageError(
            f"{wanted.path}: no point at {missing[0]} of {', '.join(wanted.axes)}; expected a grid"
        )
    ns = tuple(float(round(statistics.fmean(places[corner]))) for corner in corners)
    slow = sum(point.slow for point in points)
    return Solved(wanted, tables.Table(wanted.axes, grid, ns, source), len(points), slow)
