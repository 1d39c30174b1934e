"""Draws a `Figure` with matplotlib, as SVG and PNG, so that it reads without a text beside it.

Enters: a `figures_model.Figure`. Leaves: NAME.svg and NAME.png in a folder. Lines carry their names at their
right end where there is room, else in a legend beside the panel; calibration points are open diamonds.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.errors import MissingExtra
from validation.figures_model import Figure, Line, Panel
from validation.figures_words import amount

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito: told apart by all eyes
WORDS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
ODD: dict[str, Any] = {"color": "#c00000", "markersize": 5, "markeredgewidth": 0.9, "zorder": 4}
LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.6, "shrinkA": 1, "shrinkB": 2}
LEADER["relpos"] = (0.0, 0.5)  # it ends where the name begins and crosses no other
STYLES = ("-", "--", ":", "-.")
DIRECT = 8  # lines that still carry their names at their ends
LONGEST = 26  # characters of such a name
PANEL_INCHES = (4.6, 3.5)
BAR_INCHES = 0.24
LETTER_INCHES = 0.078  # of a name at its line, about
SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "svg.hashsalt": "memsim",  # equal input gives equal files
    "svg.fonttype": "none",
}


def require_matplotlib() -> None:
    """MissingExtra if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        words = "figures are drawn by matplotlib, which is missing: pip install 'memsim[figures]'"
        raise MissingExtra(words) from None


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Write NAME.svg and NAME.png of a figure into `folder`, which exists. OSError if that fails."""
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(SETTINGS):
        canvas = Canvas(figsize=_inches(figure), layout="constrained")
        FigureCanvasAgg(canvas)
        _fill(canvas, figure)
        png = save(canvas, folder / f"{figure.name}.png")
        canvas.set_layout_engine("none")  # once is enough, and takes longer than the rest
        return [save(canvas, folder / f"{figure.name}.svg"), png]


def save(canvas: Canvas, path: Path) -> Path:
    """Write a figure whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
    try:
        canvas.savefig(part, format=path.suffix[1:], dpi=130, metadata=metadata)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _inches(figure: Figure) -> tuple[float, float]:
    """Size by panels, with room for names at the right and for the head."""
    wide, high = PANEL_INCHES
    columns = max(len(row) for row in figure.grid)
    lines = [line for row in figure.grid for panel in row for line in panel.lines]
    if figure.grid[0][0].barred:
        longest = max(len(str(x)) for line in lines for x in line.x)
        return columns * wide + LETTER_INCHES * longest, 1.4 + BAR_INCHES * len(lines[0].x)
    room = LETTER_INCHES * min(max((len(line.label) for line in lines), default=0), 60)
    return columns * (wide + room), len(figure.grid) * high + 0.9


def _fill(canvas: Canvas, figure: Figure) -> None:
    inches = _inches(figure)[0]
    title = textwrap.fill(figure.title, int(inches * 9))
    canvas.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    columns = max(len(row) for row in figure.grid)
    axes = canvas.subplots(len(figure.grid), columns, squeeze=False)
    for places, panels in zip(axes, figure.grid, strict=True):
        for place in places[len(panels) :]:
            place.set_visible(False)
        lines = [line for panel in panels for line in panel.lines]
        xs = sorted({x for line in lines for x in line.x if isinstance(x, float)})
        for place, panel in zip(places, panels, strict=False):
            _panel(place, panel, xs)
        _share_ranges(places[: len(panels)], panels)
        for place, panel in zip(places, panels, strict=False):
            if panel.barred:
                place.label_outer(remove_inner_ticks=True)
                place.xaxis.label.set_visible(True)
            else:
                _names(place, panel)  # at heights that depend on the range
    foot = "\n".join(textwrap.fill(words, int(inches * 14)) for words in (figure.subtitle, *_foot(figure)))
    canvas.supxlabel(foot, x=0.01, ha="left", fontsize=8, color="#444444")


def _share_ranges(places: Sequence[Axes], panels: Sequence[Panel]) -> None:
    """Panels of one row show the same quantities over the same ranges."""
    if any(panel.barred for panel in panels):
        return
    for place in places[1:]:
        place.set_ylabel("")
        place.sharex(places[0])
        place.sharey(places[0])
    places[0].autoscale_view()
    if not panels[0].y_log:
        places[0].set_ylim(0, max(map(_top, panels)))


def _panel(place: Axes, panel: Panel, xs: Sequence[float]) -> None:
    if panel.title:
        place.set_title(panel.title, loc="left")
    if panel.barred:
        place.set_xlabel(panel.y_label)
        _bars(place, panel)
        return
    place.set_xlabel(panel.x_label)
    place.set_ylabel(panel.y_label)
    for line, colour, style in zip(panel.lines, *_looks(panel), strict=True):
        _curve(place, line, colour, style if panel.joined else "none")
    if panel.x_log:
        _log_x(place, xs, panel.x_unit)
    place.margins(x=0.03)
    _scale_y(place, panel)


def _scale_y(place: Axes, panel: Panel) -> None:
    """Logarithmic, or linear from 0; times get ticks with their unit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if panel.y_log:
        place.set_yscale("log")
        low, high = place.get_ylim()
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 400 * low else (1,)))
        place.yaxis.set_minor_formatter(NullFormatter())
    else:
        place.set_ylim(0, _top(panel))
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, panel.y_unit)))


def _top(panel: Panel) -> float:
    """Where a linear y axis ends: a little above all points and their bars."""
    return 1.06 * max(value for line in panel.lines for value in (*line.y, *line.high))


def _looks(panel: Panel) -> tuple[list[Any], list[str]]:
    """A colour and a dash pattern for each line."""
    from matplotlib import colormaps

    count = len(panel.lines)
    if panel.ordered and count > 2:
        ramp = colormaps["viridis"]
        return [ramp(0.85 * index / (count - 1)) for index in range(count)], ["-"] * count
    colours = [WORDS[index % len(WORDS)] for index in range(count)]
    return colours, [STYLES[index // len(WORDS) % len(STYLES)] for index in range(count)]


def _curve(place: Axes, line: Line, colour: Any, style: str) -> None:
    """Line, points and the band from the 10th to the 90th percentile."""
    x = [float(each) for each in line.x]
    place.plot(x, line.y, linestyle=style, color=colour, linewidth=1.3, zorder=2, label=line.label)
    if line.low:
        place.vlines(x, line.low, line.high, color=colour, linewidth=2.5, alpha=0.35, zorder=1)
    calibrates = line.calibrates or (False,) * len(x)
    small = len(x) > 40
    for marker, face, wanted in (("o", colour, False), ("D", "white", True)):
        chosen = [index for index, each in enumerate(calibrates) if each == wanted]
        size = 6.5 if wanted else 2.0 if small else 3.5
        place.plot(
            [x[index] for index in chosen],
            [line.y[index] for index in chosen],
            marker,
            color=colour,
            markerfacecolor=face,
            markersize=size,
            zorder=3,
        )
    odd = [index for index, each in enumerate(line.odd) if each]
    place.plot([x[index] for index in odd], [line.y[index] for index in odd], "x", **ODD)


def _bars(place: Axes, panel: Panel) -> None:
    """A bar for each word, from the top down, with its value at its end."""
    (line,) = panel.lines
    places = range(len(line.x))
    hatches = ["///" if each else "" for each in line.calibrates]
    place.barh(places, line.y, 0.7, color=WORDS[0], alpha=0.7, hatch=hatches)
    for at, (value, high) in enumerate(zip(line.y, line.high or line.y, strict=True)):
        text = amount(float(f"{value:.3g}"), panel.y_unit)
        style: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        place.annotate(text, (max(value, high), at), fontsize=7, **style)
    place.hlines(places, line.low, line.high, color="black", linewidth=1)
    odd = [index for index, each in enumerate(line.odd) if each]
    place.plot([line.y[index] for index in odd], odd, "x", **ODD)
    place.set_yticks(places, [str(x) for x in line.x], fontsize=8)
    place.grid(visible=False, axis="y")
    place.margins(x=0.14)
    place.set_ylim(len(line.x) - 0.4, -0.6)
    place.set_xlim(left=0)
    place.xaxis.set_major_locator(_few_ticks())
    place.xaxis.set_major_formatter(lambda value, _: amount(value, panel.y_unit))


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)


def _log_x(place: Axes, xs: Sequence[float], unit: str) -> None:
    """A logarithmic x axis with round ticks; if it holds 0 too, linear up to its least value."""
    positive = [x for x in xs if x > 0]
    binary = bool(unit)
    base = 2 if binary else 10
    if xs[0] <= 0:
        place.set_xscale("symlog", linthresh=positive[0], base=base, linscale=0.5)
    else:
        place.set_xscale("log", base=base)
    ticks = _binary_ticks(positive[0], positive[-1]) if binary else _decimal_ticks(xs, positive)
    place.set_xticks(ticks, [_tick(tick, unit) for tick in ticks])
    place.minorticks_off()
    if binary:
        place.tick_params(axis="x", labelrotation=45 if len(ticks) > 7 else 0, labelsize=8)


def _tick(value: float, unit: str) -> str:
    power = round(math.log10(value)) if value > 0 else 0
    return f"$10^{{{power}}}$" if not unit and power > 4 and value == 10**power else amount(value, unit)


def _binary_ticks(low: float, high: float) -> list[float]:
    """Powers of two from `low` to `high`, at most nine of them, equally far apart."""
    first, last = math.ceil(math.log2(low) - 0.01), math.floor(math.log2(high) + 0.01)
    step = max(1, math.ceil((last - first) / 8))
    return [float(2**power) for power in range(last, first - 1, -step)][::-1]


def _decimal_ticks(xs: Sequence[float], positive: Sequence[float]) -> list[float]:
    """The measured values themselves where they are few, else the powers of ten."""
    if len(xs) <= 9:
        return list(xs)
    zero = [0.0] if xs[0] <= 0 else []
    first, last = math.ceil(math.log10(positive[0]) - 0.01), math.floor(math.log10(positive[-1]) + 0.01)
    powers = [10.0**power for power in range(first, last + 1)]
    return zero + (powers if len(powers) > 2 else [positive[0], *powers, positive[-1]])


def _names(place: Axes, panel: Panel) -> None:
    """Names at the lines' right ends, moved apart; a legend beside the panel where they are many or long."""
    named = [line for line in panel.lines if line.label]
    if not named:
        return
    if len(named) > DIRECT or max(len(line.label) for line in named) > LONGEST:
        handles, labels = place.get_legend_handles_labels()
        place.legend(
            handles[::-1] if panel.ordered else handles,
            labels[::-1] if panel.ordered else labels,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            fontsize=7,
        )
        return
    colours, _ = _looks(panel)
    heights = apart(place, [line.y[-1] for line in panel.lines])
    for line, colour, height in zip(panel.lines, colours, heights, strict=True):
        place.annotate(
            line.label,
            xy=(float(line.x[-1]), line.y[-1]),
            xycoords="data",
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=colour,
            arrowprops={**LEADER, "color": colour},
            annotation_clip=False,
        )


def apart(place: Axes, values: Sequence[float], gap: float = 0.07) -> list[float]:
    """Heights (share of the panel) of names at these values, in order and at least `gap` apart."""
    low, high = place.get_ylim()
    logarithmic = place.get_yscale() == "log"
    scale = math.log10 if logarithmic else float
    heights = [(scale(value) - scale(low)) / (scale(high) - scale(low)) for value in values]
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = [heights[index] for index in order]
    for _ in range(200):
        for left in range(len(placed) - 1):
            short = gap - (placed[left + 1] - placed[left])
            if short > 1e-9:
                placed[left] -= short / 2
                placed[left + 1] += short / 2
        placed[0], placed[-1] = max(placed[0], 0.0), min(placed[-1], 1.0)
    return [placed[order.index(index)] for index in range(len(heights))]


def _foot(figure: Figure) -> list[str]:
    """What the marks mean, as far as the figure has them."""
    lines = [line for row in figure.grid for panel in row for line in panel.lines]
    parts = []
    if any(any(line.calibrates) for line in lines):
        parts.append("open diamonds (hatched bars): points that may calibrate; filled: held out")
    if any(line.low != line.high for line in lines):
        lines_of = "black lines" if figure.grid[0][0].barred else "vertical bars"
        parts.append(f"{lines_of}: 10th to 90th percentile")
    if any(any(line.odd) for line in lines):
        parts.append(f"red crosses: {figure.odd_words}")
    return ["; ".join(parts)] if parts else []
