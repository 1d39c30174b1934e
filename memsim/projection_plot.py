"""Draws the time of a token against the context, log-log: a line for each model, machine and batch.

Points of a projection enter, projection.svg and projection.png leave. A band is the interval; a line is
dashed, and its points are open, where no measurement is behind it; a cross on grey, above the lines, is a
point that does not fit. What fits nowhere is named and not drawn. Needs matplotlib (extra `figures`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.errors import OutputError
from memsim.interval import VALIDATED
from memsim.projection_point import Point
from memsim.units import format_time, format_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "projection"
INCHES = (8.2, 5.2)
LABEL = 8.5  # points of a name's letters
MARKERS = ("o", "s", "^")
BESIDE = 2  # machines whose panels stand side by side; more stand one below the other
APART = 0.045  # of the height: names at the right keep this distance
CROSS = 0.025  # of the height: that of a line's crosses

Line = tuple[str, list[Point]]  # what it is called, its points with contexts rising


def require() -> None:
    """MissingExtra without matplotlib."""
    from validation.figures_plot import require_matplotlib

    require_matplotlib()


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """Write the figure into a folder that exists; OutputError if that fails."""
    require()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from validation.figures_plot import SETTINGS

    with mpl.rc_context(SETTINGS):
        machines = list(dict.fromkeys(point.machine for point in points))
        down, across = (1, len(machines)) if len(machines) <= BESIDE else (len(machines), 1)
        canvas = Figure(figsize=(INCHES[0] * across, INCHES[1] * down), layout="constrained")
        FigureCanvasAgg(canvas)
        places = canvas.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
        panels = [
            (place, lines_of([point for point in points if point.machine == machine]))
            for place, machine in zip(places, machines, strict=True)
        ]
        for (place, lines), machine in zip(panels, machines, strict=True):
            _fill(place, lines)
            place.set_title(machine if len(machines) > 1 else "", loc="left")
        _make_room(panels[0][0], max(len(_partly(lines)) for _, lines in panels))
        for place, lines in panels:  # at heights that depend on the range
            _crosses(place, lines)
            _names(place, lines)
        canvas.suptitle(_title(points), x=0.01, ha="left", fontsize=11, fontweight="bold")
        canvas.supxlabel(_foot(points), x=0.01, ha="left", fontsize=8, color="#444444")
        return [_saved(canvas, folder / f"{NAME}.{suffix}") for suffix in ("png", "svg")]


def _saved(canvas: Any, path: Path) -> Path:
    """Written whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
    try:
        canvas.savefig(part, format=path.suffix[1:], dpi=130, metadata=metadata)
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}; choose another folder") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def lines_of(points: Sequence[Point]) -> list[Line]:
    """Points of a machine by model and batch, which a name holds where several are drawn."""
    several = len({point.asked for point in points}) > 1
    lines: dict[str, list[Point]] = {}
    for point in points:
        name = f"{point.model}, batch {point.asked}" if several else point.model
        lines.setdefault(name, []).append(point)
    return [(name, sorted(line, key=lambda point: point.context_tokens)) for name, line in lines.items()]


def _title(points: Sequence[Point]) -> str:
    what = {"attention": "the attention of one token", "step": "one token"}[points[0].part]
    machines = " and ".join(dict.fromkeys(point.machine for point in points))
    batches = ", ".join(dict.fromkeys(str(point.asked) for point in points))
    return f"Time of {what} on {machines}, batch {batches}"


def _foot(points: Sequence[Point]) -> str:
    lines = ["Bands: 5 to 95%, by errors of measured kernels and what guessed numbers may move."]
    if any(not point.refused and point.trust != VALIDATED for point in points):
        lines.append("Dashed, open circles: beyond what was measured, or never measured.")
    if any(point.refused for point in points):
        lines.append("Crosses on grey: does not fit.")
    return "\n".join(lines)


def _fill(place: Axes, lines: Sequence[Line]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    points = [point for _, line in lines for point in line]
    place.set_xscale("log")
    place.set_yscale("log")
    if len({point.context_tokens for point in points}) == 1:  # no width to scale to
        place.set_xlim(points[0].context_tokens / 2, points[0].context_tokens * 2)
    for number, line in enumerate(lines):
        _line(place, line, *_look(number))
    contexts = sorted({point.context_tokens for point in points})
    place.xaxis.set_major_locator(FixedLocator(contexts))
    place.xaxis.set_minor_locator(NullLocator())
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_tokens(round(value))))
    place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    place.yaxis.set_minor_formatter(NullFormatter())
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _round(value)))
    place.set_xlabel("Tokens in the cache")
    place.set_ylabel("Time of a token")
    place.tick_params(labelbottom=True, labelleft=True)


def _look(number: int) -> tuple[str, str]:
    """Colour and marker of a line."""
    from validation.figures_plot import WORDS

    return WORDS[number % len(WORDS)], MARKERS[number // len(WORDS) % len(MARKERS)]


def _round(time_ps: float) -> str:
    """A time of an axis, without needless digits."""
    number, unit = format_time(time_ps).split()
    return f"{float(number):g} {unit}"


def _line(place: Axes, line: Line, colour: str, marker: str) -> None:
    """One line with its band."""
    points = [point for point in line[1] if not point.refused]
    xs = [point.context_tokens for point in points]
    lows, highs = ([getattr(point, end) for point in points] for end in ("low_ps", "high_ps"))
    place.fill_between(xs, lows, highs, color=colour, alpha=0.1, linewidth=0)
    for before, after in zip(points, points[1:], strict=False):
        backed = before.trust == after.trust == VALIDATED
        ends = [before.context_tokens, after.context_tokens], [before.tpot_ps, after.tpot_ps]
        place.plot(*ends, color=colour, linewidth=1.5, linestyle="-" if backed else "--")
    for point in points:
        backed = point.trust == VALIDATED
        look: dict[str, Any] = {"color": colour, "markerfacecolor": colour if backed else "white"}
        place.plot(point.context_tokens, point.tpot_ps, marker, markersize=5, **look)
        if len(points) == 1:  # a band has no width there
            place.vlines(point.context_tokens, point.low_ps, point.high_ps, color=colour, alpha=0.4)


def _partly(lines: Sequence[Line]) -> list[int]:
    """Numbers of the lines of which some points fit and some do not."""
    return [
        n for n, (_, line) in enumerate(lines) if {bool(point.refused) for point in line} == {True, False}
    ]


def _make_room(place: Axes, rows: int) -> None:
    """Raise the upper limit for so many rows of crosses, above all lines and bands."""
    low, high = place.get_ylim()
    place.set_ylim(low, high * (high / low) ** (CROSS * rows / (1 - CROSS * rows)))


def _crosses(place: Axes, lines: Sequence[Line]) -> None:
    """Points that do not fit, of lines that have others: a row of crosses for each, on grey."""
    from matplotlib.patches import Rectangle

    rows = _partly(lines)
    if rows:
        high = CROSS * len(rows)
        place.add_artist(Rectangle((0, 1 - high), 1, high, color="#eeeeee", transform=place.transAxes))
    for row, number in enumerate(rows):
        contexts = [point.context_tokens for point in lines[number][1] if point.refused]
        heights = [1 - CROSS * (row + 0.5)] * len(contexts)
        look: dict[str, Any] = {"color": _look(number)[0], "transform": place.get_xaxis_transform()}
        place.plot(contexts, heights, "x", markersize=4, linestyle="none", **look)


def _names(place: Axes, lines: Sequence[Line]) -> None:
    """Each line's name at its right end, moved apart where they would overlap, and its marker."""
    from math import log

    low, high = place.get_ylim()
    ends = []
    for number, (name, points) in enumerate(lines):
        fitting = [point for point in points if not point.refused]
        height = log(fitting[-1].tpot_ps / low) / log(high / low) if fitting else 0.0
        ends.append((height, name if fitting else f"{name}: does not fit", _look(number)))
    for height, (_, words, (colour, marker)) in zip(
        _apart([end[0] for end in sorted(ends)]), sorted(ends), strict=True
    ):
        look: dict[str, Any] = {"transform": place.transAxes, "color": colour, "clip_on": False}
        place.plot(1.025, height, marker, markersize=4, **look)
        place.text(1.045, height, words, fontsize=LABEL, va="center", **look)


def _apart(heights: Sequence[float]) -> list[float]:
    """Rising heights moved up where they are closer than APART, and down again where they leave the panel."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + APART) if placed else height)
    room = 1.0
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], room)
        room = placed[at] - APART
    return placed
