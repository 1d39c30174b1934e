"""How far predictions hold where nothing was fitted: far beyond the points that may calibrate, or elsewhere.

Enters: the error table of held-out points. Leaves: `Reach` rows, each a kind of distance from everything that
a constant may have seen, for one family.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memsim.units import format_time
from validation import show
from validation.errors import Family, Point
from validation.figures_rows import Row
from validation.measure.rows import percentile

CONTEXTS, BATCHES, HEADS = ("context", "length"), ("batch",), ("heads",)
FAR_CONTEXT, FAR_BATCH = 10, 8  # times the largest that may calibrate
HOST = ("stage.gather", "stack.v32_staged")
NAMES = ("what nothing was fitted to", "family", "points", "error", "95 %", "worst", "at")


@dataclass(frozen=True)
class Reach:
    """Held-out points of one family at a distance from what may calibrate."""

    what: str
    family: str
    points: tuple[Point, ...]

    @property
    def errors(self) -> list[float]:
        """Sizes of the errors, as shares."""
        return [abs(point.error) for point in self.points]

    @property
    def worst(self) -> Point:
        return max(self.points, key=lambda point: abs(point.error))


def reaches(found: Sequence[Family]) -> list[Reach]:
    """All of them, kind by kind; a kind that a family has no points of is left out."""
    return [
        Reach(what, family.name, points)
        for what, picked in KINDS
        for family in found
        if (points := tuple(picked(family)))
    ]


def _beyond(axes: Sequence[str], times: int) -> Callable[[Family], Iterator[Point]]:
    """Points that lie so many times beyond the largest value that may calibrate."""

    def picked(family: Family) -> Iterator[Point]:
        for axis in axes:
            seen = _numbers(family.calibrated, axis)
            if seen:
                yield from (p for p in family.points if float(p.values[axis]) >= times * max(seen))

    return picked


def _other_heads(family: Family) -> Iterator[Point]:
    for axis in HEADS:
        seen = set(_numbers(family.calibrated, axis))
        if seen:
            yield from (p for p in family.points if float(p.values[axis]) not in seen)


def _numbers(rows: Sequence[Row], axis: str) -> list[float]:
    return [float(row[axis]) for row in rows if axis in row]


def _of(names: Sequence[str]) -> Callable[[Family], Iterator[Point]]:
    """All points of families that are called so, or begin with a word and a dot."""

    def picked(family: Family) -> Iterator[Point]:
        if family.name in names or f"{family.name.partition('.')[0]}." in names:
            yield from family.points

    return picked


KINDS: tuple[tuple[str, Callable[[Family], Iterator[Point]]], ...] = (
    (f"context {FAR_CONTEXT} times what may calibrate", _beyond(CONTEXTS, FAR_CONTEXT)),
    (f"batch {FAR_BATCH} times what may calibrate", _beyond(BATCHES, FAR_BATCH)),
    ("head counts that may not calibrate", _other_heads),
    ("rows in host memory, from micro-benchmarks alone", _of(HOST)),
    ("whole attention stacks and steps", _of(("stack.", "step."))),
    ("tables that others measured", _of(("public.",))),
)


def text(found: Sequence[Family]) -> str:
    """A table, a row per kind and family; "" where there is none."""
    cells = [
        [
            *(reach.what, reach.family, str(len(reach.points))),
            *(f"{statistics.fmean(reach.errors):.1%}", f"{percentile(reach.errors, 0.95):.1%}"),
            *(f"{reach.worst.error:+.1%}", _where(reach.worst)),
        ]
        for reach in reaches(found)
    ]
    return show.table(NAMES, cells, left=(0, 1, 6)) if cells else ""


def _where(point: Point) -> str:
    return f"{point.axes} ({format_time(round(point.measured_ns * 1000))})"


def document(found: Sequence[Family]) -> list[dict[str, object]]:
    """The same, shares as shares."""
    return [
        {
            "what": reach.what,
            "family": reach.family,
            "points": len(reach.points),
            "mape": statistics.fmean(reach.errors),
            "p95": percentile(reach.errors, 0.95),
            "worst": reach.worst.error,
            "worst_point": reach.worst.axes,
        }
        for reach in reaches(found)
    ]
