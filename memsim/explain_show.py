"""Divided times for people: a table for a terminal, a picture as SVG text.

A `Result` with `explained` kernels enters; what rich prints leaves (`render`), or a picture (`svg`): for each
kernel a staircase from its start to its end, a step for each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from memsim.report import plain_table
from memsim.resources import SERIAL
from memsim.result import Explained, Part, Result
from memsim.units import format_share, format_time

REST = "rest"
SEEN = 0.0005  # share of the time from which a part has a line of its own
HIDDEN = 0.1  # and of what a resource takes alone
BAR = 16  # characters of the whole time

WORDS = {  # what is waited for, by the resource or its last word
    "launch": "the gap before the kernel starts",
    "block start-up": "what blocks do before their first request and after their last tile",
    "bytes in flight": "round trips that show because too little is asked for at once",
    "units": "blocks that wait for a place on a unit: waves",
    "ports": "what one unit can take in and give out",
    "turnaround": "channels that change between reads and writes",
    "translation": "pages that are looked up one after another",
    "buffer": "writes that wait for a channel to write what it gathered",
    "tags": "requests that wait for a tag or a credit of the link",
    "depth": "requests that wait for a place in the tier's queue",
    "latency": "round trips that nothing hides",
    SERIAL: "loads that wait for the one before",
    "arithmetic": "arithmetic that no transfer hides",
    "overhead": "what blocks take for a tile beside its arithmetic",
    "operations": "as many as there are, one after another on each channel",
    "bandwidth": "the bytes, one after another",
}


def render(result: Result) -> RenderableType:
    """The divided times of a result, for a rich console."""
    kernels = [part for kernel in result.explained for part in _kernel(kernel, result.machine)]
    return Group(*kernels, *_notes(result))


def text(result: Result, width: int = 100) -> str:
    """The same as plain text."""
    out = StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(render(result))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _kernel(kernel: Explained, machine: str) -> Iterator[RenderableType]:
    where = f"{kernel.family} on {kernel.initiator} of {machine}"
    yield Text()
    yield Text(f"{kernel.kernel} ({where}): {format_time(kernel.time_ps)}", style="bold")
    table = plain_table("part", "time", "share", "", "alone", "+10% saves", left=(0, 3))
    table.columns[3].no_wrap = True
    for part in shown(kernel):
        alone = "" if part.alone_ps is None else format_time(part.alone_ps)
        saved = "" if part.resource == REST else _saved(part.saved_ps, kernel.time_ps)
        share = part.time_ps / kernel.time_ps
        cells = (format_time(part.time_ps), _share(share), "█" * round(BAR * share))
        table.add_row(part.resource, *cells, alone, saved)
    yield table
    before, after = kernel.tiles
    if after > before:
        yield Text(
            f"+10% bytes in flight: {after} tiles of a block instead of {before}, and 10% more of a unit"
        )


def shown(kernel: Explained) -> list[Part]:
    """The parts that are worth a line, in the order of the division, and the rest."""
    seen_ps = SEEN * kernel.time_ps
    parts = [
        part
        for part in kernel.parts
        if max(part.time_ps, abs(part.saved_ps)) >= seen_ps or (part.alone_ps or 0) >= HIDDEN * kernel.time_ps
    ]
    left_ps = kernel.time_ps - sum(part.time_ps for part in parts)
    return [*parts, Part(REST, left_ps, None, 0)] if left_ps >= seen_ps else parts


def _share(share: float) -> str:
    return format_share(share) if share >= SEEN or share == 0 else "<0.1%"


def _saved(saved_ps: int, time_ps: int) -> str:
    if not saved_ps:
        return "nothing"
    share = saved_ps / time_ps
    return f"{format_time(saved_ps)} ({'-' if share < 0 else ''}{_share(abs(share))})"


def _notes(result: Result) -> Iterator[RenderableType]:
    named = [part.resource for kernel in result.explained for part in shown(kernel)]
    notes = Table.grid(padding=(0, 1, 0, 0))
    notes.add_column(no_wrap=True)
    notes.add_column(overflow="fold")
    for what, words in WORDS.items():
        if any(what in (name, name.rpartition(" ")[2]) for name in named):
            notes.add_row(what, words)
    notes.add_row("part", "what taking the resource out of the way saves, in turn from the top: they sum up")
    notes.add_row("alone", "time if nothing else took any; what hides behind another has no part")
    notes.add_row("+10% saves", "a tenth more of this resource alone, replayed again")
    yield Text()
    yield notes


# The picture

FONT, LETTER, LINE = 13, 7.3, 20  # size, width of a letter on average, height of a row [px]
MARGIN, NAMES, WIDE, GAP = 24, 150, 420, 34  # around all, names, a whole time, between kernels [px]
WAITS, MOVES, SUMS, LEFT = "#3b6fb5", "#2f8f6b", "#c07a2c", "#8a8f98"
COLORS = {"bandwidth": MOVES, "operations": MOVES, "arithmetic": SUMS, REST: LEFT}  # all else waits


def svg(result: Result) -> str:
    """The divided times as a picture."""
    height = 2 * MARGIN + sum((len(shown(each)) + 3) * LINE + GAP for each in result.explained)
    width = 2 * MARGIN + NAMES + WIDE + 330
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{FONT}">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    top: float = MARGIN
    for kernel in result.explained:
        lines += _staircase(kernel, result.machine, top)
        top += (len(shown(kernel)) + 3) * LINE + GAP
    notes = (
        "from the top: each resource is taken out of the way in turn; a bar is what that saves, all together "
        "the time",
        "outlines: what it would take alone, hidden as far as its bar is shorter",
    )
    lines += [
        _text(MARGIN, top - GAP / 2 + 15 * row, words, "#777", size=11) for row, words in enumerate(notes)
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _staircase(kernel: Explained, machine: str, top: float) -> Iterator[str]:
    title = f"{kernel.kernel} on {machine}: {format_time(kernel.time_ps)}"
    yield _text(MARGIN, top + FONT, title, "#111", bold=True)
    left, right = MARGIN + NAMES, MARGIN + NAMES + WIDE
    head = top + 2 * LINE
    columns = ((right + 90, "time"), (right + 160, "share"), (right + 310, "10% more saves"))
    for x, words in columns:
        yield _text(x, head - 4, words, "#777", size=11, end=True)
    parts = shown(kernel)
    bottom = head + len(parts) * LINE
    for x in (left, right):
        yield f'<path d="M {x} {head} V {bottom}" stroke="#ccc"/>'
    before_ps = 0
    for row, part in enumerate(parts):
        share, color = part.time_ps / kernel.time_ps, COLORS.get(part.resource.rpartition(" ")[2], WAITS)
        at, y = left + WIDE * before_ps / kernel.time_ps, head + row * LINE
        if part.alone_ps:
            wide = WIDE * part.alone_ps / kernel.time_ps
            yield _bar(right - wide, y + 5, wide, LINE - 10, f'fill="none" stroke="{color}"')
        yield _bar(at, y + 3, max(1, WIDE * share), LINE - 6, f'fill="{color}"')
        before_ps += part.time_ps
        base = y + FONT + 2
        yield _text(left - 8, base, part.resource, "#111", end=True)
        saved = "" if part.resource == REST else _saved(part.saved_ps, kernel.time_ps)
        cells = (format_time(part.time_ps), _share(share), saved)
        for (x, _), words in zip(columns, cells, strict=True):
            yield _text(x, base, words, "#333", end=True)


def _bar(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {look}/>'


def _text(
    x: float, y: float, words: str, color: str, *, bold: bool = False, size: int = FONT, end: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="end"' if end else ""
    look = f'fill="{color}" font-size="{size}"{weight}{anchor}'
    return f'<text x="{x:.0f}" y="{y:.0f}" {look}>{escape(words)}</text>'


def files(result: Result) -> dict[str, str]:
    """What a folder of results gets beside the rest: the table and the picture; nothing if not asked."""
    return {"explain.txt": text(result), "explain.svg": svg(result)} if result.explained else {}
