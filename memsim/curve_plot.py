"""Draws latency against bandwidth of a `Curve` with matplotlib: a line for each kind of stream.

Enters a curve, leaves one file, SVG or PNG, whole or not at all. Measured points are open circles in the
colour of their line, and a thin line leads from each to the point that was replayed of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.curve import Curve, Found, Point, errors
from memsim.curve_show import rate_unit
from memsim.errors import OutputError
from memsim.output import check_writable
from memsim.units import format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png")
INCHES = (7.2, 4.8)
WORDS = {"read": "reads", "update": "updates in place", "write": "writes"}
COLOURS = {"read": "#0072b2", "update": "#d55e00", "write": "#009e73"}
DECADES = 16  # largest / smallest latency from which the axis is logarithmic


def check(path: Path) -> None:
    """Refuse a path that is no picture, and a computer without matplotlib: before the replays, not after."""
    from validation.figures_plot import require_matplotlib

    if path.suffix.lower() not in SUFFIXES:
        raise OutputError(f"{path}: a picture is an SVG or a PNG; give a name that ends in .svg or .png")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}; create it first")
    check_writable(path.absolute().parent)
    require_matplotlib()


def draw(curve: Curve, path: Path) -> None:
    """Write the picture of a curve to `path`; OutputError if that fails, MissingExtra without matplotlib."""
    check(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from validation.figures_plot import SETTINGS

    with mpl.rc_context(SETTINGS):
        canvas = Figure(figsize=INCHES, layout="constrained")
        FigureCanvasAgg(canvas)
        _fill(canvas.subplots(), curve)
        canvas.suptitle(_title(curve), x=0.01, ha="left", fontsize=11, fontweight="bold")
        canvas.supxlabel(_foot(curve), x=0.01, ha="left", fontsize=8, color="#444444")
        part = path.with_name(f".{path.name}.part")
        try:
            metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
            canvas.savefig(part, format=path.suffix.lower()[1:], dpi=130, metadata=metadata)
            os.replace(part, path)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}; choose another path") from None
        finally:
            part.unlink(missing_ok=True)


def _title(curve: Curve) -> str:
    return f"Latency under load: {curve.tier} of {curve.machine}"


def _foot(curve: Curve) -> str:
    """What is drawn, and how far it is off."""
    lines = ["A pointer chase on one unit beside units that stream."]
    found = errors(curve)
    if found:
        lines.append(
            "Open circles: measured; a thin line leads from each to the point that was replayed of it."
        )
        offs = [f"{WORDS[each.kind]} {format_share(each.latency_mean)}" for each in found]
        lines.append(f"Latency off on average, point by point: {', '.join(offs)}.")
    return "\n".join(lines)


def _fill(place: Axes, curve: Curve) -> None:
    scale, unit = rate_unit(curve)
    for kind in dict.fromkeys(point.kind for point in curve.points if point.units):
        points = [point for point in curve.points if point.kind == kind or not point.units]
        _line(place, kind, points, scale)
    place.axvline(curve.peak_mbps / scale, color="#999999", linewidth=1, linestyle=":")
    place.annotate(
        "peak each way" if curve.each_way else "peak",
        (curve.peak_mbps / scale, 1),
        xycoords=("data", "axes fraction"),
        color="#777777",
        xytext=(-3, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8,
    )
    seen = [each for point in curve.points for each in (point.replayed, point.measured) if each is not None]
    _axes(place, [each.latency_ps for each in seen])
    place.set_xlabel(f"What the streams move, reads and writes [{unit}]")
    place.set_ylabel("Time of a load of the chase")
    place.set_xlim(0, 1.04 * max(curve.peak_mbps, *(each.mbps for each in seen)) / scale)


def _line(place: Axes, kind: str, points: Sequence[Point], scale: int) -> None:
    """One kind of stream and the chase alone: replayed points joined, measured ones beside."""
    colour = COLOURS[kind]
    found = sorted((point.replayed for point in points), key=lambda each: (each.latency_ps, each.mbps))
    place.plot(*_at(found, scale), "o-", color=colour, linewidth=1.3, markersize=3.5, label=WORDS[kind])
    pairs = [(point.measured, point.replayed) for point in points if point.measured and point.kind == kind]
    for pair in pairs:
        place.plot(*_at(pair, scale), color=colour, linewidth=0.5, alpha=0.5)
    if pairs:
        look: dict[str, Any] = {"markerfacecolor": "white", "markersize": 5.5, "zorder": 3}
        measured = [each for each, _ in pairs]
        place.plot(*_at(measured, scale), "o", color=colour, label=f"{WORDS[kind]}, measured", **look)


def _at(found: Sequence[Found], scale: int) -> tuple[list[float], list[float]]:
    return [each.mbps / scale for each in found], [each.latency_ps / 1000 for each in found]


def _axes(place: Axes, latencies_ps: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    from validation.figures_words import amount

    if max(latencies_ps) > DECADES * min(latencies_ps):
        place.set_yscale("log")
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.yaxis.set_minor_formatter(NullFormatter())
    else:
        place.set_ylim(0, 1.06 * max(latencies_ps) / 1000)
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, "ns")))
    place.legend(loc="upper left", frameon=False, fontsize=8)
