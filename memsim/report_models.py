"""What `memsim models` prints for people: a model's document and the checks as tables.

Dicts of plain data enter (`workloads.models.document`, `workloads.models.checks`), what rich prints leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memsim.report import plain_table
from memsim.units import format_bytes, format_tokens

BYTES = {
    "resident": "held in caches",
    "read": "read for a token",
    "scanned": "  scanned",
    "constant": "  windows and states",
    "gathered": "  gathered",
    "written": "written for a token",
}
HELD = {
    "weights": "weights",
    "kv": "cached rows",
    "index": "index keys",
    "state": "states",
    "scratch": "scratch of attention",
    "total": "all",
}


def sheet(model: Mapping[str, Any]) -> RenderableType:
    """A model as a datasheet."""
    return Group(*_parts(model))


def _parts(model: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"{model['name']}: {model['title']}")
    formats = [f"{what} {model[key]}" for what, key in (("rows", "kv_dtype"), ("index keys", "index_dtype"))
               if model[key]]  # fmt: skip
    longest = f"{model['max_context_tokens']:,} tokens at most; longer contexts ask what it would cost"
    yield Text("; ".join([longest, *formats]))
    yield Text()
    yield _layers(model["layers"])
    yield Text()
    yield _contexts(model["contexts"])
    slope, held = model["scanned_bytes_per_context_token"], model["cache_bytes_per_token"]
    yield Text(f"a token more in the context: {held:,.6g} B held, {slope:,.6g} B scanned at every step")
    yield Text()
    yield _held(model["held"])
    yield Text()
    if model["parameters"] is not None:
        yield from _parameters(model["parameters"])
        yield Text()
    yield from _sources(model["numbers"])


def _sources(numbers: Sequence[Mapping[str, str]]) -> Iterator[RenderableType]:
    """Every number, those of one source together under its name."""
    by_source: dict[str, list[tuple[str, str]]] = {}
    for row in numbers:
        heading = f"{row['provenance']}: {row['source']}"
        by_source.setdefault(heading, []).append((row["path"].removeprefix("model."), row["value"]))
    for heading, rows in by_source.items():
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for path, value in rows:
            table.add_row(f"  {path}", value)
        yield Text(heading)
        yield table


def _layers(layers: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table("layers", "count", "kind", "held a token", "window, state", "which", left=(0, 2, 5))
    for layer in layers:
        shared = f"; {' and '.join(layer['shares'])} of a layer before" if layer["shares"] else ""
        table.add_row(
            layer["name"],
            str(layer["count"]),
            layer["kind"],
            f"{layer['cache_bytes_per_token']:,.6g} B",
            format_bytes(layer["constant_bytes"]),
            _runs(layer["numbers"]) + shared,
        )
    return table


def _runs(which: Sequence[int]) -> str:
    """Numbers with runs joined: "0-2, 6, 10, ..., 74"."""
    runs: list[list[int]] = []
    for number in which:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(words if len(words) <= 6 else [*words[:4], "...", words[-1]])


def _contexts(contexts: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table("a sequence", *(f"at {format_tokens(at['context_tokens'])}" for at in contexts))
    for name, label in BYTES.items():
        table.add_row(label, *(format_bytes(at[f"{name}_bytes"]) for at in contexts))
    shares = [at["only_gathered_share"] for at in contexts]
    table.add_row("share of what is held, read at every step", *(f"{1 - share:.0%}" for share in shares))
    table.add_row("share of it that is only gathered", *(f"{share:.0%}" for share in shares))
    return table


def _held(held: Mapping[str, Any]) -> Table:
    """What one GPU holds of a batch."""
    gpus, batch = held["gpus"], held["batch"]
    whose = "one GPU" if gpus == 1 else f"one of {gpus} GPUs ({held['parallel']})"
    contexts = held["contexts"]
    title = f"{whose} holds, batch {batch}"
    table = plain_table(title, *(f"at {format_tokens(at['context_tokens'])}" for at in contexts))
    for name, label in HELD.items():
        table.add_row(label, *(format_bytes(at[f"{name}_bytes"]) for at in contexts))
    if "machine" in held:
        room = f"{format_bytes(held['capacity_bytes'])} of {held['tier']} ({held['machine']})"
        lacks = (at["short_bytes"] for at in contexts)
        table.add_row(f"fits {room}", *(f"{format_bytes(n)} too much" if n else "yes" for n in lacks))
    return table


def _parameters(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    table = plain_table("parameters", "here", "published", "off", "why", left=(0, 4))
    for what, label in (("total", "all"), ("active", "of a token"), ("non_routed", "of every token")):
        stated, off = found.get(f"published_{what}"), found.get(f"{what}_deviation")
        table.add_row(
            label,
            _billions(found[what]),
            _billions(stated) if stated else "",
            "" if off is None else f"{off:+.1%}",
            found.get(f"{what}_reason") or "",
        )
    yield table


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} x 10^9"


def checks(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The checks that failed, and how many there are."""
    failed = [check for check in found if not check["passed"]]
    parts: list[RenderableType] = []
    if failed:
        table = plain_table("figure", "found", "expected", left=(0, 1, 2))
        for check in failed:
            table.add_row(check["about"], check["found"], check["expected"])
        parts = [table, Text()]
    return Group(*parts, Text(f"{len(found) - len(failed)} of {len(found)} figures are met"))
