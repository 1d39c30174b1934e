"""A crossover as a table for people, and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from memsim import report
from memsim.crossing import CONTEXT, A, Crossover, Sample, Side, Swap
from memsim.projection_json import point_document
from memsim.projection_point import Point
from memsim.projection_show import span
from memsim.report_json import SCHEMA_VERSION
from memsim.units import format_time, format_tokens


def render(found: Crossover) -> RenderableType:
    """The answer, then both times at all samples."""
    table = report.plain_table(found.axis, "A", "5 to 95%", "B", "5 to 95%", "A / B", left=(0,))
    for sample in found.samples:
        table.add_row(_place(found, sample.x), *_cells(sample.a), *_cells(sample.b), _ratio(sample))
    sides = (Text(f"A: {found.a.words}"), Text(f"B: {found.b.words}"))
    return Group(*map(Text, answer(found)), Text(), *sides, Text(), table, Text(), *map(Text, _notes(found)))


def answer(found: Crossover) -> Iterator[str]:
    """The answer in words, a line for each swap."""
    known = [sample for sample in found.samples if sample.faster]
    if not known:
        both = [s for s in found.samples if not s.a.refused and not s.b.refused]
        yield f"Equal from {_place(found, both[0].x)} to {_place(found, both[-1].x)}: neither is ever faster."
    elif not found.swaps:
        first, last = known[0], known[-1]
        ratios = sorted(sample.a.tpot_ps / sample.b.tpot_ps for sample in known)
        yield (
            f"Never from {_place(found, first.x)} to {_place(found, last.x)}: "
            f"{_side(found, first.faster).words} is faster throughout "
            f"(A / B {ratios[0]:.3g} to {ratios[-1]:.3g})."
        )
    for swap in found.swaps:
        winner = _side(found, swap.faster).words
        yield f"From {found.axis} {_place(found, swap.x)} on {winner} is faster; {_reach(found, swap)}."


def _reach(found: Crossover, swap: Swap) -> str:
    low = "below the range" if swap.low is None else _place(found, swap.low)
    high = "beyond the range" if swap.high is None else _place(found, swap.high)
    return f"by the intervals of both, anywhere from {low} to {high}"


def _side(found: Crossover, name: str) -> Side:
    return found.a if name == A else found.b


def _place(found: Crossover, x: int) -> str:
    return format_tokens(x) if found.axis == CONTEXT else f"{x:,}"


def _cells(point: Point) -> tuple[str, str]:
    return ("-", "does not fit") if point.refused else (format_time(point.tpot_ps), span(point))


def _ratio(sample: Sample) -> str:
    if sample.a.refused or sample.b.refused:
        return "-"
    return f"{sample.a.tpot_ps / sample.b.tpot_ps:.3g}"


def _notes(found: Crossover) -> Iterator[str]:
    yield "The intervals of both are taken as independent: errors that both share would leave the swap surer."
    points = [point for sample in found.samples for point in (sample.a, sample.b)]
    yield from dict.fromkeys(f"Note: {note}." for point in points for note in point.notes)


def document(found: Crossover) -> dict[str, Any]:
    """All of it as JSON."""
    sides = (found.a, found.b)
    return {
        "schema_version": SCHEMA_VERSION,
        "axis": found.axis,
        "sides": [{"model": s.model, "machine": s.machine, "place": list(s.place)} for s in sides],
        "swaps": [
            {"at": s.x, "low": s.low, "high": s.high, "faster": int(s.faster != A)} for s in found.swaps
        ],
        "samples": [{"at": s.x, "points": [point_document(s.a), point_document(s.b)]} for s in found.samples],
    }
