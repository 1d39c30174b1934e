"""`memsim demo`: what the attention of one decoded token costs, for five stacks at three contexts.

Nothing enters; a table leaves. Every cell is a trace recorded into a temporary folder and replayed, with
the same functions that the commands call. Kernels first run for real on small tensors, to show that the
shapes-only traces of the grid count the same bytes. A cell that does not fit says by how much, and is
replayed again with what overflows in the next tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from memsim import report, report_json
from memsim.errors import CheckFailed, DoesNotFit
from memsim.progress import Progress, shown
from memsim.recording import record
from memsim.result import Result
from memsim.simulate import replay
from memsim.trace_show import info
from memsim.units import format_bytes, format_time, format_tokens, parse_tokens

MACHINE = "h200-host"
OVERFLOW_TIER = "host"
CONTEXTS = ("128K", "1M", "10M")
ROWS = (  # label, model, placement
    ("kimi-linear", "kimi-linear", ()),
    ("kimi-linear-all-mla", "kimi-linear-all-mla", ()),
    ("deepseek-v3", "deepseek-v3", ()),
    ("deepseek-v3.2", "deepseek-v3.2", ()),
    ("deepseek-v3.2,\n  KV on host", "deepseek-v3.2", ("kv=host",)),
)
MODELS = tuple(dict.fromkeys(model for _, model, _ in ROWS))
REAL_CONTEXT = "4K"
REAL_MODELS = ("kimi-linear", "deepseek-v3.2")  # KDA and MLA; DSA


@dataclass(frozen=True)
class Cell:
    """One stack at one context: its result, and by how much it does not fit ("" where it does)."""

    label: str
    context: str
    place: tuple[str, ...]
    result: Result
    shortfall: str


def run(as_json: bool) -> None:
    """Record and replay the whole grid and print it."""
    with TemporaryDirectory(prefix="memsim-demo-") as name, shown("demo") as advance:
        folder = Path(name)
        parts = _parts(advance, len(REAL_MODELS) + len(CONTEXTS) * (len(MODELS) + len(ROWS)))
        proofs = [_same_bytes(model, folder, next(parts)) for model in REAL_MODELS]
        cells = list(_grid(folder, parts))
    if as_json:
        print(report_json.dumps(document(proofs, cells)), end="")
    else:
        report.show(render(proofs, cells))


def _parts(advance: Progress, total: int) -> Iterator[Progress]:
    """A callback for each of the `total` parts of the work, which moves `advance` on inside its part."""
    for part in range(total):

        def inside(done: int, whole: int, part: int = part) -> None:
            advance(part * max(whole, 1) + done, total * max(whole, 1))

        yield inside


def document(proofs: list[dict[str, Any]], cells: list[Cell]) -> dict[str, Any]:
    """The demo as JSON: the proofs, and for every cell its placement, shortfall and result."""
    return {
        "schema_version": report_json.SCHEMA_VERSION,
        "machine": MACHINE,
        "kernels_run": proofs,
        "cells": [
            {
                "label": " ".join(cell.label.split()),
                "context": cell.context,
                "place": list(cell.place),
                "fits": not cell.shortfall,
                "shortfall": cell.shortfall or None,
                "result": report_json.document(cell.result),
            }
            for cell in cells
        ],
    }


def render(proofs: list[dict[str, Any]], cells: list[Cell]) -> RenderableType:
    """The demo as a table: a row a stack, a column a context, then how to read it."""
    table = report.plain_table(f"on {MACHINE}", *CONTEXTS, left=(0, 1, 2, 3))
    table.columns[0].no_wrap = True
    for label, *_ in ROWS:
        mine = {cell.context: cell for cell in cells if cell.label == label}
        table.add_row(label, *("\n".join(_cell(mine[context])) for context in CONTEXTS), end_section=True)
    parts: list[RenderableType] = [Text(_proven(proof)) for proof in proofs]
    return Group(*parts, Text(), table, Text(), *map(Text, _legend(cells)))


def _grid(folder: Path, parts: Iterator[Progress]) -> Iterator[Cell]:
    for context in CONTEXTS:
        for model in MODELS:
            trace = folder / f"{model}-{context}.parquet"
            record(model, context, trace, progress=next(parts))
            for label, of_model, place in ROWS:
                if of_model == model:
                    yield Cell(label, context, place, *_replayed(trace, place, next(parts)))


def _replayed(trace: Path, place: tuple[str, ...], progress: Progress) -> tuple[Result, str]:
    try:
        return replay(trace, MACHINE, place=place, progress=progress), ""
    except DoesNotFit as error:
        result = replay(trace, MACHINE, place=place, overflow=OVERFLOW_TIER, progress=progress)
        return result, str(error)


def _same_bytes(model: str, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run the kernels of `model` on real tensors; CheckFailed if a trace of shapes counts other bytes."""
    kinds = {}
    for device in ("cpu", "meta"):
        path = folder / f"{model}-{device}.parquet"
        record(model, REAL_CONTEXT, path, device=device, progress=progress)
        kinds[device] = info(path)["kinds"]
    if kinds["cpu"] != kinds["meta"]:
        raise CheckFailed(
            f"{model}: real tensors moved {kinds['cpu']}, shapes alone {kinds['meta']}; a kernel is wrong"
        )
    read = {kind: counts["bytes_read"] for kind, counts in kinds["cpu"].items()}
    written = {kind: counts["bytes_written"] for kind, counts in kinds["cpu"].items()}
    return {
        "model": model,
        "context_tokens": parse_tokens(REAL_CONTEXT),
        "bytes_read": read,
        "bytes_written": written,
    }


def _proven(proof: dict[str, Any]) -> str:
    read, written = (sum(proof[key].values()) for key in ("bytes_read", "bytes_written"))
    return (
        f"Ran the kernels of {proof['model']} on real tensors at {format_tokens(proof['context_tokens'])} "
        f"tokens: {read:,} B read, {written:,} B written, the bytes that a trace recorded without data says."
    )


def _cell(cell: Cell) -> Iterator[str]:
    result = cell.result
    yield f"{format_time(result.tpot_ps)}{' *' if cell.shortfall else ''}"
    longest = max(result.families, key=lambda family: family.time_ps)
    yield f"{longest.name} ({longest.bound})"
    for tier in result.tiers:
        moved = tier.moved_read_bytes + tier.moved_write_bytes
        if moved:
            yield f"{tier.name} {format_bytes(moved)}"


def _legend(cells: list[Cell]) -> Iterator[str]:
    yield (
        "Each cell: time of the attention of all layers for one token of one sequence (weights and experts "
        "left out, of time and of capacity), the kernel family that takes most of it and what binds it, "
        "bytes that each tier moved."
    )
    for cell in cells:
        if cell.shortfall:
            name, found = " ".join(cell.label.split()), cell.shortfall.split(";")[0]  # then come remedies
            yield f"* {name} at {cell.context}: {found}. Timed with --overflow {OVERFLOW_TIER}."
    trust = cells[0].result
    yield (
        f"Trust: 'memsim project' gives each time its interval; the worst input is {trust.provenance} "
        f"(memsim machines show {MACHINE})."
    )
    yield "Go on:"
    yield "  memsim trace record deepseek-v3.2 --context 1M -o v32.parquet"
    yield f"  memsim replay v32.parquet --machine {MACHINE} --place kv=host"
