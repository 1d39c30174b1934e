"""`Result` to tables for people: what a step costs, which tier, link and kernel it goes to, and the trust.

A `Result` enters; what rich prints leaves (`render`), or plain text of a given width (`text`). It says
nothing that the JSON document does not hold; long lines wrap, nothing is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memsim.report_json import achieved_bytes_per_s
from memsim.result import PlaceTotals, Result
from memsim.units import format_bytes, format_rate, format_share, format_time, format_tokens


def render(result: Result) -> RenderableType:
    """The whole report, for a rich console."""
    return Group(*_parts(result))


def text(result: Result, width: int = 100) -> str:
    """The whole report as plain text of at most `width` columns."""
    return plain_text(render(result), width)


def plain_text(renderable: RenderableType, width: int = 100) -> str:
    """What rich would print, as plain text of at most `width` columns."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    console.print(renderable)
    return _stripped(out.getvalue())


def _stripped(printed: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def show(renderable: RenderableType) -> None:
    """Print to stdout: in colour on a terminal alone, and never narrower than 80 columns."""
    console = Console(soft_wrap=False, highlight=False)
    console.width = max(80, console.width)
    with console.capture() as captured:
        console.print(renderable)
    print(_stripped(captured.get()), end="")


def numbers(rows: Iterable[tuple[str, ...]]) -> Table:
    """A table of numbers of the world: what, value, provenance, source."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("number", "value", "provenance", "source"):
        table.add_column(column, overflow="fold", no_wrap=column in ("number", "provenance"))
    for row in rows:
        table.add_row(*row)
    return table


def plain_table(*columns: str, left: tuple[int, ...] = (0,)) -> Table:
    """An empty table in the report's style; columns `left` hold names and may wrap, the rest numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        if index in left:
            table.add_column(column, overflow="fold", no_wrap=index == 0)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def _parts(result: Result) -> Iterator[RenderableType]:
    yield _headline(result)
    yield Text()
    yield _families(result)
    yield Text()
    yield _places("tier", result.tiers, result.total_ps)
    if result.links:
        yield Text()
        yield _places("link", result.links, result.total_ps)
    yield Text()
    yield _kinds(result)
    yield Text()
    yield from _notes(result)


def _headline(result: Result) -> RenderableType:
    of_model = result.context_tokens > 0  # a plain access pattern has no tokens
    first = Text(result.model)
    if of_model:
        first.append(f", {format_tokens(result.context_tokens)} tokens, batch {result.batch},")
    first.append(f" on {result.machine}" + (f", one of {result.gpus} GPUs" if result.gpus > 1 else ""))
    first.append(f" ({result.engine} engine)")
    mean_ps = result.total_ps // result.steps if result.steps else 0
    second = Text(f"step {format_time(mean_ps)}", style="bold")
    if result.steps > 1:
        shortest, longest = min(result.step_ps), max(result.step_ps)
        second.append(f", mean of {result.steps} ({format_time(shortest)} to {format_time(longest)})")
    if result.tokens_per_step > 1:
        second.append(f", {format_time(result.tpot_ps)} a token ({result.tokens_per_step} tokens a step)")
    if result.tpot_ps and of_model:
        rate = 1e12 / result.tpot_ps
        second.append(f", {_rate(rate)} tokens/s a user")
        if (result.batch, result.gpus) != (1, 1):
            second.append(f", {_rate(rate * result.batch / result.gpus)} a GPU")
    second.append(f"; {result.interval}")
    return Group(first, second)


def _families(result: Result) -> Table:
    table = plain_table("family", "count", "time", "share", "bound", "naive", "ratio", left=(0, 4))
    several = len({family.initiator for family in result.families}) > 1
    for family in result.families:
        table.add_row(
            f"{family.name} on {family.initiator}" if several else family.name,
            f"{family.kernels:,}",
            format_time(family.time_ps),
            _share(family.time_ps, result.total_ps),
            f"{family.bound} ({format_share(family.bound_share)})" if family.bound else "not asked",
            f"{format_time(family.naive_ps)} {family.naive_place}",
            f"{family.time_ps / family.naive_ps:.2f}" if family.naive_ps else "-",
        )
    launches_ps = result.graph_launch_ps * result.steps
    share = _share(launches_ps, result.total_ps)
    table.add_row("graph launch", f"{result.steps:,}", format_time(launches_ps), share, "", "", "")
    return table


def _places(kind: str, places: tuple[PlaceTotals, ...], total_ps: int) -> Table:
    issued, ways = (("issued",), ("read", "written")) if kind == "tier" else ((), ("in", "out"))
    table = plain_table(kind, *issued, *ways, "achieved", "of peak", "busy", "waiting")
    for place in places:
        achieved = achieved_bytes_per_s(place, total_ps)
        asked = (format_bytes(place.issued_read_bytes + place.issued_write_bytes),) if issued else ()
        table.add_row(
            place.name,
            *asked,
            format_bytes(place.moved_read_bytes),
            format_bytes(place.moved_write_bytes),
            format_rate(achieved),
            _share(achieved, place.peak_mbps * 10**6),
            _share(place.busy_ps, total_ps),
            format_time(place.waiting_ps),
        )
    return table


def _kinds(result: Result) -> Table:
    table = plain_table("bytes, unique in each kernel", "read", "written", "issued by blocks")
    for kind in sorted({*result.bytes_read, *result.bytes_written, *result.bytes_issued}):
        counts = (result.bytes_read, result.bytes_written, result.bytes_issued)
        table.add_row(kind, *(f"{count.get(kind, 0):,}" for count in counts))
    return table


def _notes(result: Result) -> Iterator[RenderableType]:
    """Capacity, ledger, provenance: a label and a wrapped text each."""
    used = "; ".join(
        f"{tier.name} {format_bytes(tier.used_bytes)} of {format_bytes(tier.capacity_bytes)}"
        f" ({_share(tier.used_bytes, tier.capacity_bytes)})"
        for tier in result.tiers
    )
    moved = sum(tier.moved_read_bytes + tier.moved_write_bytes for tier in result.tiers)
    issued = sum(result.bytes_issued.values())
    ledger = (
        f"issued {issued:,} = cache hits {result.cache_hit_bytes:,} + stored {result.cache_stored_bytes:,}"
        f" + moved by tiers {moved:,} - written back {result.written_back_bytes:,}"
        f" - rounding {result.rounding_bytes:,} bytes"
    )
    yield _note("capacity", used)
    yield _note("ledger", ledger)
    if result.cache_stored_bytes:
        yield _note("cache", f"of the bytes stored {result.kept_bytes:,} stay; the rest is written back")
    yield from _worth(result)
    yield _note("bound (x%)", "ten times as much of it shortens the family's longest kernel by x%")
    yield _note("naive", "launch + t0 + bytes / bandwidth of the place that it names; ratio: time / naive")
    if result.links:
        yield _note("in, out", "over a link: towards the node that its file names first, and away from it")
    yield _note("waiting", "summed over requests, so it may exceed the step")
    yield _note("provenance", f"{result.provenance}, the worst of its inputs")
    if result.assumed:
        yield _note("assumed", ", ".join(result.assumed))


def _worth(result: Result) -> Iterator[RenderableType]:
    """Latencies, energy and cost, of what was used."""
    served = [tier for tier in result.tiers if tier.requests]
    latencies = "; ".join(
        f"{tier.name} {format_time(tier.p50_ps)}, p99 {format_time(tier.p99_ps)}" for tier in served
    )
    yield _note("latency", f"p50 of requests: {latencies}")
    moved = [p for p in (*result.tiers, *result.links) if p.moved_read_bytes + p.moved_write_bytes]
    energies = [
        f"{place.name} " + ("not known" if place.energy_pj is None else _joules(place.energy_pj))
        for place in moved
    ]
    if any(place.energy_pj for place in moved):
        yield _note("energy", "; ".join(energies))
    for scenario in dict(result.tiers[0].cost_usd):
        prices = [(tier.name, dict(tier.cost_usd).get(scenario)) for tier in result.tiers if tier.used_bytes]
        words = "; ".join(f"{name} " + ("not known" if p is None else f"{p:,.2f} USD") for name, p in prices)
        yield _note("cost", f"of the bytes placed, prices of {scenario}: {words}")
    for note in result.notes:
        yield _note("note", note)


def _note(label: str, words: str) -> RenderableType:
    note = Table.grid(padding=(0, 1, 0, 0))
    note.add_column(no_wrap=True, min_width=10)
    note.add_column(overflow="fold")
    note.add_row(label, Text(words))
    return Padding(note, 0)


def _joules(picojoules: int) -> str:
    return f"{picojoules / 10**9:.3g} mJ"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _share(part: float, whole: float) -> str:
    return format_share(part / whole) if whole else "-"
