"""The error table: what memsim predicts against what was measured, a row per family, beside a plain line.

Enters: a machine's folder of measurements. Leaves: `Family` rows. An error is predicted / measured - 1. The
line is t0 + bytes / bandwidth, its two numbers fitted to the points of the family that may calibrate: what
one would use without a simulator. Bounds that are asserted stand in `bounds.toml`.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memsim.errors import UsageError, cut, nearest
from memsim.recording import require_torch
from validation import predict
from validation.figures_rows import FamilyRows, Row, number
from validation.figures_words import said
from validation.measure.points import CALIBRATE, HELD_OUT
from validation.measure.rows import percentile
from validation.repeat import between_runs, folder_of

if TYPE_CHECKING:
    from memsim.progress import Progress

BOUNDS = Path(__file__).with_name("bounds.toml")
ALL = "all"
SPLITS = (HELD_OUT, CALIBRATE, ALL)
LEAST_POINTS = 4  # that a line is fitted to
BAR = 0.05  # mean error that is wanted of a family whose runs repeat within half of it


@dataclass(frozen=True)
class Point:
    """One measured point: its axes in words, times in ns; line_ns: the line's, None where there is none.

    values   its axes
    """

    axes: str
    split: str
    measured_ns: float
    predicted_ns: float
    line_ns: float | None
    values: Row = field(default_factory=dict, compare=False)

    @property
    def error(self) -> float:
        return self.predicted_ns / self.measured_ns - 1

    @property
    def line_error(self) -> float | None:
        return None if self.line_ns is None else self.line_ns / self.measured_ns - 1


@dataclass(frozen=True)
class Family:
    """Errors over the points of one family, as shares.

    mape, bias, p95   mean and 95th percentile of the absolute errors, mean of the errors
    worst_point       the axes of the largest, `worst`
    line_mape         mean absolute error of the line over the same points
    bound             largest mape that is asserted; None: none is
    calibrated_points that calibration may see;  calibrated   their axes
    replayed_on       the machine file
    sm_mhz            least and most of the clocks that were logged
    spread            mean difference of repeated runs of a point; None: none was repeated
    bar               mean error that is wanted: BAR, or twice the spread
    """

    name: str
    replayed_on: str
    points: tuple[Point, ...]
    calibrated_points: int
    bound: float | None
    sm_mhz: tuple[float, float] | None
    calibrated: tuple[Row, ...] = ()
    spread: float | None = None

    @property
    def bar(self) -> float:
        return max(BAR, 2 * (self.spread or 0.0))

    @property
    def mape(self) -> float:
        return statistics.fmean(abs(point.error) for point in self.points)

    @property
    def bias(self) -> float:
        return statistics.fmean(point.error for point in self.points)

    @property
    def p95(self) -> float:
        share: float = percentile([abs(point.error) for point in self.points], 0.95)
        return share

    @property
    def worst_point(self) -> Point:
        return max(self.points, key=lambda point: abs(point.error))

    @property
    def line_mape(self) -> float | None:
        errors = [abs(error) for point in self.points if (error := point.line_error) is not None]
        return statistics.fmean(errors) if errors else None

    @property
    def missed(self) -> bool:
        """Whether the mean error is above what is asserted."""
        return self.bound is not None and self.mape > self.bound


def table(
    machine: str,
    split: str = HELD_OUT,
    families: Sequence[str] = (),
    progress: Progress | None = None,
    workers: int = 1,
) -> list[Family]:
    """Errors of the families of a machine that have a recipe here, in name order.

    machine    a name that comes with memsim, or a folder
    families   names, or beginnings of names up to a dot; none: all
    progress   called with (points predicted, points)
    workers    processes that predict

    UsageError: an unknown machine, a family without recipe, a folder that no machine file stands for;
    MissingExtra: a family that torch records, and no torch.
    """
    folder = folder_of(machine)
    if not predict.machine_of(folder):
        known = ", ".join(predict.MACHINES)
        raise UsageError(f"{folder.name}: no machine file stands for it; predicted is: {known}")
    chosen = _chosen(predict.families_of(folder), families)
    chosen = [family for family in chosen if _picked(family.rows, split)]
    tasks = [
        (family.name, _picked(family.rows, split), predict.machine_of(folder, family.name))
        for family in chosen
    ]
    times, bounds = predict.in_parallel(tasks, workers, progress), read_bounds()
    return [
        _family(family, on, rows, times_ns, bounds.get(family.name), between_runs(folder, family))
        for family, (_, rows, on), times_ns in zip(chosen, tasks, times, strict=True)
    ]


def _chosen(families: Iterable[FamilyRows], wanted: Sequence[str]) -> list[FamilyRows]:
    recipes = predict.recipes()
    known = [family for family in families if family.name in recipes]
    for word in wanted:
        if word.partition(".")[0] in predict.BY_TORCH:
            require_torch()
        if not any(_named(family.name, word) for family in known):
            remedy = nearest(word, [family.name for family in known])
            raise UsageError(f"no recipe predicts a family '{cut(word)}'; {remedy}")
    return [f for f in known if not wanted or any(_named(f.name, word) for word in wanted)]


def _named(family: str, word: str) -> bool:
    return family == word or family.startswith(f"{word}.")


def _picked(rows: Iterable[Row], split: str) -> list[Row]:
    return [row for row in rows if split in (ALL, row["split"])]


def _family(
    family: FamilyRows,
    on: str,
    rows: Sequence[Row],
    times_ns: Sequence[float],
    bound: float | None,
    spread: float | None,
) -> Family:
    fitted = [row for row in family.rows if row["split"] == CALIBRATE]
    lines = line(fitted, rows)
    points = tuple(
        Point(
            _axes(family, row), str(row["split"]), number(row, "median_ns"), ns, along, _values(family, row)
        )
        for row, ns, along in zip(rows, times_ns, lines, strict=True)
    )
    clocks = [number(row, "sm_mhz") for row in rows if "sm_mhz" in row]
    span = (min(clocks), max(clocks)) if clocks else None
    seen = tuple(_values(family, row) for row in fitted)
    return Family(family.name, on, points, len(fitted), bound, span, seen, spread)


def _values(family: FamilyRows, row: Row) -> Row:
    return {axis: row[axis] for axis in family.axes if axis in row}


def _axes(family: FamilyRows, row: Row) -> str:
    return ", ".join(said(axis, row[axis], family.what) for axis in family.axes if axis in row)


def line(fitted: Sequence[Row], rows: Sequence[Row]) -> list[float] | list[None]:
    """Nanoseconds of `rows` on the line t0 + bytes / bandwidth that fits `fitted`; None where these are few.

    Least squares of relative errors, so that short calls count as much as long ones. Where all calls move the
    same bytes, it is a constant.
    """
    if len(fitted) < LEAST_POINTS:
        return [None] * len(rows)
    times = np.array([number(row, "median_ns") for row in fitted])
    columns = _columns(fitted)
    scale = np.abs(columns).max(axis=0, initial=1.0)
    best = np.linalg.lstsq(columns / scale / times[:, None], np.ones(len(times)), rcond=None)[0] / scale
    along: list[float] = (_columns(rows) @ best).tolist()
    return along


def _columns(rows: Sequence[Row]) -> np.ndarray:
    """float64[rows, 2]: one, and the bytes that a call moves."""
    return np.array([[1.0, number(row, "bytes_read") + number(row, "bytes_written")] for row in rows])


def read_bounds(path: Path = BOUNDS) -> dict[str, float]:
    """Asserted mean errors by family."""
    return dict(tomllib.loads(path.read_text(encoding="utf-8"))["mape"])
