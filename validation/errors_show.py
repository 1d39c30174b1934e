"""The error table as text and as a JSON document; shares in the document, percent in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsim.units import format_time
from validation import predict, reach, show
from validation.errors import Family, Point

NAMES = ("family", "points", "error", "bias", "95 %", "bar", "line", "bound", "worst", "at")
POINT_NAMES = ("family", "point", "split", "measured", "predicted", "error", "line")


def text(found: Sequence[Family], points: bool = False, far: bool = False) -> str:
    """A row per family; with `points` one per point before them, with `far` what was never fitted after."""
    parts = [show.table(NAMES, [_row(each) for each in found], left=(0, 9)), *_notes(found)]
    if points:
        cells = [_point(family, point) for family in found for point in family.points]
        parts = [show.table(POINT_NAMES, cells, left=(0, 1, 2)), "\n", *parts]
    if far and (listed := reach.text(found)):
        parts += ["\n", listed]
    return "".join(parts)


def _row(family: Family) -> list[str]:
    worst = family.worst_point
    return [
        family.name,
        str(len(family.points)),
        *(f"{family.mape:.1%}", f"{family.bias:+.1%}", f"{family.p95:.1%}"),
        *(_share(family.bar), _share(family.line_mape), _share(family.bound)),
        *(f"{worst.error:+.1%}", worst.axes),
    ]


def _point(family: Family, point: Point) -> list[str]:
    times = (format_time(round(ns * 1000)) for ns in (point.measured_ns, point.predicted_ns))
    line = point.line_error
    return [
        *(family.name, point.axes, point.split.replace("_", " ")),
        *(*times, f"{point.error:+.1%}", "-" if line is None else f"{line:+.1%}"),
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _notes(found: Sequence[Family]) -> list[str]:
    """Lines: what the columns are, and at which clocks the points were measured."""
    clocks = [mhz for family in found if family.sm_mhz for mhz in family.sm_mhz]
    logged = f"measured at {min(clocks):.0f} to {max(clocks):.0f} MHz; " if clocks else ""
    machines = ", ".join(dict.fromkeys(family.replayed_on for family in found))
    missing = [] if predict.has_torch() else [f"left out without torch: {', '.join(predict.BY_TORCH)}\n"]
    return [
        *missing,
        "error, bias, 95 %: mean absolute, mean, and 95th percentile of the absolute errors\n",
        "bar: mean error that is wanted: 5%, or twice what repeated runs of a point differ by\n",
        "line: t0 + bytes / bandwidth, fitted to the points that may calibrate\n",
        f"{logged}replayed on {machines}\n",
    ]


def document(
    found: Sequence[Family], machine: str, split: str, points: bool = False, far: bool = False
) -> dict[str, Any]:
    """All of it, shares as shares, times in nanoseconds."""
    families = {f.name: _entry(f, points) for f in found}
    more = {"reach": reach.document(found)} if far else {}
    return {"machine": machine, "split": split, "families": families, **more}


def _entry(family: Family, points: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "points": len(family.points),
        "mape": family.mape,
        "bias": family.bias,
        "p95": family.p95,
        "line_mape": family.line_mape,
        "bar": family.bar,
        "spread": family.spread,
        "bound": family.bound,
        "calibrated_points": family.calibrated_points,
        "worst": family.worst_point.error,
        "worst_point": family.worst_point.axes,
        "replayed_on": family.replayed_on,
        "sm_mhz": family.sm_mhz,
    }
    if points:
        entry["listed"] = [
            {
                "point": point.axes,
                "split": point.split,
                "measured_ns": point.measured_ns,
                "predicted_ns": point.predicted_ns,
                "error": point.error,
                "line_ns": point.line_ns,
            }
            for point in family.points
        ]
    return entry
