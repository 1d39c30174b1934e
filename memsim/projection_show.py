"""Points of a projection as tables for people: times with their intervals, then what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memsim import report
from memsim.interval import VALIDATED
from memsim.projection_point import YEARS, Point
from memsim.units import format_bytes, format_share, format_time, format_tokens

LITTLE = 0.01  # of the memory in use: a tier that holds less is not shown
TOLD = 4  # guessed numbers that are named, those that move a time most
REMEDIES = (
    "What does not fit can lie elsewhere (--place kv=host), spill (--overflow host), or be spread over the "
    "GPUs of a machine (--parallel tp=8,ep=8)."
)
WORDS = {"step": "the whole step", "attention": "the attention of all layers, no weights"}


def render(points: Sequence[Point]) -> RenderableType:
    """All points by model and machine: times; memory, energy and cost; then what they rest on."""
    parts: list[RenderableType] = []
    for (model, machine), group in _grouped(points):
        parts += [Text(f"{model} on {machine}", style="bold"), _times(group), Text()]
        if any(not point.refused for point in group):
            parts += [_worth(group), Text()]
    return Group(*parts, *map(Text, _notes(points)))


def _grouped(points: Iterable[Point]) -> Iterator[tuple[tuple[str, str], list[Point]]]:
    for key, group in groupby(points, lambda point: (point.model, point.machine)):
        yield key, list(group)


def _times(points: Sequence[Point]) -> Table:
    table = report.plain_table(
        "context", "batch", "a token", "5 to 95%", "user/s", "GPU/s", "binds", left=(0, 6)
    )
    for point in points:
        table.add_row(format_tokens(point.context_tokens), f"{point.batch:,}", *_row(point))
    return table


def _row(point: Point) -> tuple[str, ...]:
    if point.refused:
        return "-", "does not fit", "-", "-", _lacks(point)
    rates = (rate(point.tokens_per_s_per_user), rate(point.tokens_per_s_per_gpu))
    return format_time(point.tpot_ps), span(point), *rates, point.binds


def _lacks(point: Point) -> str:
    """How much too large a refused point is, or what else is the matter."""
    return point.refused.split(";")[0].rpartition(": ")[2]


def span(point: Point) -> str:
    """The interval, with a mark where no measurement is behind it: * extrapolated, ** unvalidated."""
    low, high = format_time(point.low_ps), format_time(point.high_ps)
    unit = high.split()[1]
    low = low.removesuffix(f" {unit}")
    return f"{low} to {high}{mark(point.trust)}"


def mark(trust: str) -> str:
    """The mark of a trust."""
    return {"extrapolated": " *", "unvalidated": " **"}.get(trust, "")


def rate(per_s: float) -> str:
    """Tokens a second."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _worth(points: Sequence[Point]) -> Table:
    """Memory that one GPU uses, energy and cost of a million tokens."""
    scenarios = list(dict.fromkeys(name for point in points for name in point.cost_usd))
    table = report.plain_table(
        "context",
        "batch",
        "memory",
        "energy, 1M tokens",
        *(f"USD, {name}" for name in scenarios),
        left=(0, 2),
    )
    for point in points:
        if point.refused:
            continue
        energy = "-" if point.energy_j is None else f"{point.energy_j / 1000:,.3g} kJ"
        memory = ", ".join(
            f"{tier} {_of(used, point.capacity_bytes[tier])}"
            for tier, used in point.used_bytes.items()
            if used >= LITTLE * sum(point.used_bytes.values())
        )
        prices = [f"{point.cost_usd[name]:.2g}" if name in point.cost_usd else "-" for name in scenarios]
        where = (format_tokens(point.context_tokens), f"{point.batch:,}")
        table.add_row(*where, memory, energy, *prices)
    return table


def _of(used_bytes: int, all_bytes: int) -> str:
    """What is used of a memory: "8.56 of 141 GB"."""
    used, capacity = format_bytes(used_bytes), format_bytes(all_bytes)
    return f"{used.removesuffix(' ' + capacity.split()[-1])} of {capacity}"


def _notes(points: Sequence[Point]) -> Iterator[str]:
    """What was timed, what does not fit, what the intervals are, and what they rest on."""
    parts = dict.fromkeys(point.part for point in points)
    yield f"Timed: {'; '.join(WORDS[part] for part in parts)}."
    if any(point.cost_usd for point in points):
        yield (
            f"A million tokens cost the price of the memory that is used, spread over {YEARS} years, and the "
            "energy of moved bytes; nothing else is counted."
        )
    for words in dict.fromkeys(_refusals(points)):
        yield words
    yield (
        "5 to 95%: errors of measured kernels of the same kind, all at once, times what guessed numbers may "
        "move; * beyond what was measured, ** never measured: twice the range of what is known."
    )
    for words in dict.fromkeys(_reasons(points)):
        yield words
    for note in dict.fromkeys(note for point in points for note in point.notes):
        yield f"Note: {note}."
    yield from _guesses(points)


def _refusals(points: Iterable[Point]) -> Iterator[str]:
    """The first refusal of each model on each machine in full, then what can be done."""
    refusals: dict[tuple[object, ...], Point] = {}
    for point in points:
        if point.refused:
            refusals.setdefault((point.model, point.machine, point.asked), point)
    for point in refusals.values():
        where = f"{point.model} at {format_tokens(point.context_tokens)}, batch {point.batch:,}"
        yield f"Does not fit: {where}: {point.refused.split(';')[0]}."
    if refusals:
        yield REMEDIES


def _reasons(points: Iterable[Point]) -> Iterator[str]:
    for point in points:
        if not point.refused and point.trust != VALIDATED:
            yield f"{mark(point.trust).strip()} {point.trust}: {'; '.join(point.why)}."


def _guesses(points: Sequence[Point]) -> Iterator[str]:
    """The worst provenance, and the guessed numbers that move some point most."""
    fitting = [point for point in points if not point.refused]
    for machine in dict.fromkeys(point.machine for point in fitting):
        mine = [point for point in fitting if point.machine == machine]
        provenances = ", ".join(dict.fromkeys(point.provenance for point in mine))
        most: dict[str, tuple[float, str]] = {}
        for point in mine:
            for effect in point.effects:
                reach = max(abs(effect.at_low), abs(effect.at_high))
                words = f"{effect.path} ({effect.low} to {effect.high}: {format_share(reach)})"
                most[effect.path] = max(most.get(effect.path, (0.0, "")), (reach, words))
        told = [words for _, words in sorted(most.values(), reverse=True)[:TOLD]]
        moving = f"; guesses that move a time most: {', '.join(told)}" if told else ""
        yield f"{machine}: the worst input is {provenances}{moving}."
