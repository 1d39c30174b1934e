"""A figure per family of what was predicted against what was measured, point by point.

Enters: a `Family` of the error table. Leaves: FAMILY.svg and .png, predicted / measured over measured time,
with the band that is wanted, and the points that are furthest off by name. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsim.errors import OutputError, reason
from memsim.output import check_writable
from memsim.units import format_time
from validation import figures_plot
from validation.errors import Family, Point
from validation.measure.points import CALIBRATE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WANTED, MOST = 0.05, 0.12  # errors: of the mean, of the 95th percentile
NAMED = 4  # points that carry their names, where they are further off than MOST
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)
INCHES = (9.4, 4.2)
INSIDE = 1.25  # the figure shows at least so much to both sides of 1


def draw_all(found: Sequence[Family], folder: Path) -> list[Path]:
    """A figure of each family; the files written. OutputError if the folder cannot be written."""
    figures_plot.require_matplotlib()
    check_writable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [path for family in found for path in draw(family, folder)]
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {reason(error)}; choose another folder") from None


def draw(family: Family, folder: Path) -> list[Path]:
    """FAMILY.svg and FAMILY.png in a folder that exists."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(figures_plot.SETTINGS):
        canvas = Canvas(figsize=INCHES, layout="constrained")
        FigureCanvasAgg(canvas)
        _fill(canvas.add_subplot(), family)
        return [figures_plot.save(canvas, folder / f"{family.name}.{kind}") for kind in ("svg", "png")]


def named(family: Family) -> list[Point]:
    """The points that carry their names: the furthest off, where that is further than wanted."""
    far = sorted(family.points, key=lambda point: -abs(point.error))[:NAMED]
    return [point for point in far if abs(point.error) > MOST]


def _fill(place: Axes, family: Family) -> None:
    for error, alpha in ((MOST, 0.10), (WANTED, 0.16)):
        place.axhspan(1 - error, 1 + error, color=figures_plot.WORDS[2], alpha=alpha, linewidth=0)
    place.axhline(1, color="#555555", linewidth=0.8)
    for split, marker, face, label in (
        (CALIBRATE, "D", "white", "may calibrate"),
        ("", "o", figures_plot.WORDS[0], "held out"),
    ):
        points = [point for point in family.points if (point.split == CALIBRATE) == (split == CALIBRATE)]
        if points:
            times = [point.measured_ns / 1000 for point in points]
            ratios = [1 + point.error for point in points]
            style = {"markerfacecolor": face, "markeredgecolor": figures_plot.WORDS[0], "markersize": 5}
            place.plot(times, ratios, marker, label=label, linestyle="", **style)
    _axes(place, family)
    _names(place, named(family))
    place.legend(loc="best", frameon=False, fontsize=8)


def _axes(place: Axes, family: Family) -> None:
    ratios = [1 + point.error for point in family.points]
    place.set_xscale("log")
    place.set_yscale("log")
    low, high = min(*ratios, 1 / INSIDE) / 1.1, max(*ratios, INSIDE) * 1.1
    place.set_ylim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    place.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    place.minorticks_off()
    times = sorted(point.measured_ns * 1000 for point in family.points)
    decades = [10.0**power for power in range(-3, 9) if times[0] / 3e6 <= 10.0**power <= times[-1] * 3e-6]
    place.set_xticks(decades, [_round(tick) for tick in decades])
    place.margins(x=0.08)
    place.set_xlabel("measured time of a call")
    place.set_ylabel("predicted / measured")
    clocks = f", {_span(*family.sm_mhz)} MHz" if family.sm_mhz else ""
    mean = f"mean error {family.mape:.1%}, 95 % within {family.p95:.1%}"
    place.set_title(
        f"{family.name} on {family.replayed_on}: {len(family.points)} points, {mean}{clocks}\n"
        f"bands: {WANTED:.0%} (wanted of the mean) and {MOST:.0%} (of the 95th percentile)",
        loc="left",
    )


def _round(microseconds: float) -> str:
    """A power of ten as a time: "10 us"."""
    amount, unit = format_time(round(microseconds * 1e6)).split()
    return f"{float(amount):g} {unit}"


def _span(low: float, high: float) -> str:
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def _names(place: Axes, points: Sequence[Point]) -> None:
    """The points' axes and errors beside the panel, from top to bottom as the points lie."""
    heights = figures_plot.apart(place, [1 + point.error for point in points]) if points else []
    for point, height in zip(points, heights, strict=True):
        place.annotate(
            f"{point.error:+.0%}: {point.axes}",
            xy=(point.measured_ns / 1000, 1 + point.error),
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=7,
            arrowprops=figures_plot.LEADER,
            annotation_clip=False,
        )
