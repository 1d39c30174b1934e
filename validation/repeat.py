"""How far measurements can be trusted: a machine against another, samples of a point against each other.

Enters: folders that `validation.measure` wrote. Leaves: for each family how much the medians of equal points
differ (`repeats`), and how many points have steady samples (`spreads`). Points are the same if all their
axes are; rows that both folders have from the same run are left out.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from memsim.errors import UsageError, cut, nearest
from validation import figures, figures_rows
from validation.figures import AGAIN
from validation.figures_rows import FamilyRows, Row, number
from validation.figures_words import said
from validation.measure import points
from validation.measure import rows as csv_rows
from validation.measure.rows import NOISY, percentile

WANTED = 0.95  # of the points of GPU families shall have steady samples


@dataclass(frozen=True)
class Repeat:
    """Medians of one family on `machine` against those of `against`, as shares: 0.01 is 1 % slower.

    points   compared
    middle, most  median and 95th percentile of the absolute differences
    bias     median difference
    over     points that differ by more than NOISY
    worst    the largest difference, of the point `worst_point`
    """

    family: str
    points: int
    middle: float
    most: float
    bias: float
    over: int
    worst: float
    worst_point: str


@dataclass(frozen=True)
class Spread:
    """Samples of one family: points, how many are steady ((p90 - p10) / median at most NOISY) or failed."""

    family: str
    gpu: bool
    points: int
    steady: int
    failed: int
    worst: float
    worst_point: str


def folder_of(machine: str) -> Path:
    """The folder of a machine that comes with memsim, or a path to one; UsageError if there is none."""
    shipped = {folder.name: folder for folder in figures.machines()}
    if machine not in shipped and Path(machine).is_dir():
        return figures.machines(Path(machine))[0]
    if machine not in shipped:
        raise UsageError(f"unknown machine '{cut(machine)}'; {nearest(machine, shipped)}")
    return shipped[machine]


def repeats(machine: str, against: str) -> list[Repeat]:
    """The families that both machines have measured, in name order."""
    others = {family.name: family for family in figures_rows.read_machine(folder_of(against))}
    found = []
    for family in figures_rows.read_machine(folder_of(machine)):
        pairs = _pairs(family, others[family.name]) if family.name in others else []
        if pairs:
            found.append(repeat_of(family.name, [(_named(family, a), _difference(a, b)) for a, b in pairs]))
    return found


def _pairs(one: FamilyRows, other: FamilyRows) -> list[tuple[Row, Row]]:
    def key(row: Row) -> tuple:
        return tuple(row.get(axis) for axis in one.axes)

    there = {key(row): row for row in other.rows}
    both = [(row, there[key(row)]) for row in one.rows if key(row) in there]
    return [(a, b) for a, b in both if a.get("run") != b.get("run")]


def _difference(one: Row, other: Row) -> float:
    return number(one, "median_ns") / number(other, "median_ns") - 1


def _named(family: FamilyRows, row: Row) -> str:
    return ", ".join(said(axis, row[axis], family.what) for axis in family.axes if axis in row)


def repeat_of(family: str, differences: list[tuple[str, float]]) -> Repeat:
    """The figures of (point, difference) pairs."""
    values = [value for _, value in differences]
    sizes = [abs(value) for value in values]
    worst_point, worst = max(differences, key=lambda pair: abs(pair[1]))
    return Repeat(
        family,
        len(values),
        statistics.median(sizes),
        percentile(sizes, 0.95),
        statistics.median(values),
        sum(size > NOISY for size in sizes),
        worst,
        worst_point,
    )


def spreads(machine: str) -> list[Spread]:
    """All families of a machine, in name order."""
    without_gpu = {family.name for family in points.read_campaign() if not family.gpus}
    found = []
    for family in figures_rows.read_machine(folder_of(machine)):
        if not family.rows:
            continue
        worst = max(family.rows, key=lambda row: number(row, "spread"))
        steady = sum(number(row, "spread") <= NOISY for row in family.rows)
        counts = (len(family.rows), steady, family.failed)
        found.append(
            Spread(
                family.name,
                family.name not in without_gpu,
                *counts,
                number(worst, "spread"),
                _named(family, worst),
            )
        )
    return found


def between_runs(folder: Path, family: FamilyRows) -> float | None:
    """How far medians of a folder's points repeat: mean of their absolute differences, as a share.

    Each against that of the folder `<name>-again`, the same method on another card; those of a family that
    was not measured there against their earlier rows, which the method may have changed since. None where no
    point was measured in two runs.
    """
    again = figures_rows.read_family(folder.with_name(folder.name + AGAIN), family.name)
    if again:
        differences = [abs(_difference(one, other)) for one, other in _pairs(again, family)]
    else:
        differences = _from_earlier(folder / f"{family.name}.csv", family.axes)
    return statistics.fmean(differences) if differences else None


def _from_earlier(path: Path, axes: tuple[str, ...]) -> list[float]:
    """For each point with several rows, the mean difference of the earlier ones from the newest."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in csv_rows.read(path) if path.is_file() else []:
        if row["median_ns"] and not row["error"]:
            found.setdefault(tuple(row[axis] for axis in axes), []).append(float(row["median_ns"]))
    repeated = [times for times in found.values() if len(times) > 1]
    return [statistics.fmean(abs(time / newest - 1) for time in others) for *others, newest in repeated]


def share(found: list[Spread], gpu: bool) -> tuple[int, int]:
    """Steady points and all points of the families that need a GPU, or of the others."""
    chosen = [each for each in found if each.gpu == gpu]
    return sum(each.steady for each in chosen), sum(each.points for each in chosen)
