"""Attention of DeepSeek V4: over a window of rows, and over compressed rows; every row is key and value.

Computes softmax(scale q k^T, sink) k for one new token a sequence, k the rows of 512 values of the window,
then those of the compressed cache; a sink is a learnt logit of each head that joins the sum and brings no
value. Taken from FlashMLA's sparse decode kernel for Hopper with a second cache, as vLLM calls it: tiles of
64 rows of the window, then tiles of compressed rows, dealt to parts as in `mla`; a block for 64 heads, and
for 128 a cluster of two that each fetch half the rows of a part; two tiles in flight; the combine pass adds
the sink where a sequence is split. The row of position p stands in place p mod window of a ring. Left out:
the list of the window's rows and of rows that are all read (4 B a row, made once a step for all layers),
pages of the window beside the ring, tiles of padding, and the write of the window's new row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from workloads import combine, splits
from workloads.arithmetic import arithmetic
from workloads.combine import RESULT_BYTES, Partials
from workloads.dsa_attend import halves
from workloads.facts import Fact
from workloads.formats import LATENT, WINDOW_FORMATS, Format, Parts
from workloads.grid import Blocks, Shape
from workloads.mla import by_heads, with_queries
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import WindowShape
from workloads.splits import (
    HEADS_A_BLOCK,
    TILE_ROWS,
    Share,
    flash_mla_parts,
    flash_mla_split,
    head_blocks,
)
from workloads.tensors import normal

TILES_IN_FLIGHT = 2

FACTS = (
    Fact(
        "kernel.window-attend.tile",
        "64 heads x 64 rows, 2 tiles in flight, a cluster of 2 for 128 heads",
        "stated",
        "FlashMLA sparse fp8 decode on Hopper, config.h: rows of 512 values",
    ),
    Fact(
        "kernel.window-attend.order",
        "tiles of the window, then of compressed rows, in one split",
        "stated",
        "FlashMLA get_decoding_sched_meta.cu: topk and extra_topk",
    ),
    Fact(
        "kernel.window-attend.ring", "a ring of as many rows as the window", "assumed", "engines free pages"
    ),
    *combine.FACTS,
    *splits.FACTS[:3],
)
V41_FACT = Fact(
    "kernel.window-attend.v41",
    "rows of 528 and 288 B are cut as those of 584 B",
    "assumed",
    "FlashMLA reads them on SM100 alone; on Hopper vLLM keeps rows of 584 B",
)


@dataclass(frozen=True)
class WindowRegions:
    """Regions of one layer.

    q, out   [batch x draft x heads] of 512 bf16
    window   [batch x padded window] rows as the style says
    sink     [heads] fp32
    """

    q: RegionHandle
    window: RegionHandle
    sink: RegionHandle
    partials: Partials
    out: RegionHandle
    kept: Format


class Rows(Protocol):
    """Compressed rows that are read beside the window."""

    @property
    def format(self) -> Format:
        """How they are kept."""

    def load(self, sequence: int, first: int, rows: int, blocks: Blocks) -> Parts:
        """Rows first.. of those that a sequence reads."""


@dataclass(frozen=True)
class AllRows:
    """The rows of each sequence from its first on, one after another."""

    kv: RegionHandle
    format: Format
    batch: int

    def load(self, sequence: int, first: int, rows: int, blocks: Blocks) -> Parts:
        """Rows first.. of a sequence."""
        return self.format.load(self.kv, self.kv.first(sequence, self.batch) + first, rows, blocks)


def declare(recorder: Recorder, layer: int, shape: WindowShape, run: Run) -> WindowRegions:
    """Regions of layer `layer` for all sequences."""
    name, kept = f"layer{layer}", WINDOW_FORMATS[shape.style]
    queries, rows = run.tokens * shape.heads, run.batch * kept.padded(shape.window)
    most = run.tokens + flash_mla_parts(run.units, shape.heads)
    return WindowRegions(
        q=recorder.region(f"{name}.q", "activation", layer, queries, LATENT * 2, "bf16"),
        window=kept.region(recorder, f"{name}.window", "kv", layer, rows),
        sink=recorder.region(f"{name}.sink", "weights", layer, shape.heads, 4, "fp32"),
        partials=combine.declare(recorder, layer, shape.heads, most),
        out=recorder.region(f"{name}.out", "output", layer, queries, LATENT * 2, "bf16"),
        kept=kept,
    )


def fill(regions: WindowRegions, generator: torch.Generator) -> None:
    """Random normal queries, rows and sinks; results are zero."""
    regions.q.fill(normal(regions.q.shape, torch.bfloat16, generator))
    regions.kept.fill(regions.window, generator)
    regions.sink.fill(normal(regions.sink.shape, torch.float32, generator))
    for handle in (regions.partials.region, regions.out):
        handle.zero()


def per_token(regions: WindowRegions, sequences: int, draft: int) -> WindowRegions:
    """The same for kernels to which each of `draft` new tokens is one of its own."""
    return replace(regions, window=regions.window.per_token(sequences, draft))


def step(
    recorder: Recorder,
    layer: int,
    family: str,
    shape: WindowShape,
    regions: WindowRegions,
    lengths: Sequence[int],
    units: int,
    compressed: Rows | None = None,
    counts: Sequence[int] = (),
) -> None:
    """Attention of each token over its window and its first `counts` of the `compressed` rows."""
    heads, group = shape.heads, head_blocks(shape.heads)
    parts = flash_mla_parts(units, heads)
    ring = AllRows(regions.window, regions.kept, len(lengths))
    windows = [min(tokens, shape.window) for tokens in lengths]
    more = list(counts) or [0] * len(lengths)
    tiles = [_tiles(rows) + _tiles(others) for rows, others in zip(windows, more, strict=True)]
    schedule = flash_mla_split(tiles, parts)
    numbers, partials = combine.first_splits(schedule), regions.partials
    launch = _launch(partials, group)
    with recorder.kernel(f"layer{layer}.{family}", family, layer, parts * group, launch, partials.region):
        for sequence, shares in enumerate(schedule):
            sources = [(ring, windows[sequence]), (compressed, more[sequence])]
            for number, (share, queries) in enumerate(with_queries(regions.q, sequence, shares, heads)):
                writers, whole = by_heads(share, group), len(shares) == 1
                formats, loaded = _load(sources, sequence, share, group)
                sink = regions.sink.load(0, heads, writers) if whole else None
                values, lse = attend(queries, sink, shape.scale, formats, *loaded)
                if whole:
                    regions.out.store(sequence * heads, values, writers)
                else:
                    partials.store(numbers[sequence] + number, values, lse, writers)
    name = family.removesuffix("attend") + "combine"
    combine.step(recorder, layer, name, partials, regions.out, heads, schedule, regions.sink)


def _tiles(rows: int) -> int:
    return -(-rows // TILE_ROWS)


def _load(
    sources: Sequence[tuple[Rows | None, int]], sequence: int, share: Share, group: int
) -> tuple[tuple[Format, ...], Parts]:
    """Rows of a share's tiles, source after source: the formats of what was loaded, and its parts."""
    formats: tuple[Format, ...] = ()
    loaded: Parts = ()
    before = 0
    for rows, count in sources:
        first = max(share.first_tile - before, 0) * TILE_ROWS
        last = min((share.first_tile + share.tiles - before) * TILE_ROWS, count)
        if rows is not None and last > first:
            formats += (rows.format,)
            loaded += rows.load(sequence, first, last - first, halves(share, group))
        before += _tiles(count)
    return formats, loaded


@arithmetic
def attend(
    q: torch.Tensor,
    sink: torch.Tensor | None,
    scale: float,
    formats: tuple[Format, ...],
    *parts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [heads, 512] over packed rows of some formats: values and log-sum-exps [heads].

    sink [heads, 1] joins the sums.
    """
    unpacked, at = [], 0
    for kept in formats:
        width = 2 if kept.tail_bytes else 1
        unpacked.append(kept.unpack(*parts[at : at + width]))
        at += width
    rows = torch.cat(unpacked)
    scores = q.float() @ rows.T * scale
    joined = scores if sink is None else torch.cat([scores, sink], dim=1)
    lse = joined.logsumexp(-1)
    return (scores - lse[:, None]).exp() @ rows, lse


def _launch(partials: Partials, group: int) -> Shape:
    return Shape(
        tile_rows=TILE_ROWS // group,
        tile_bytes=RESULT_BYTES,
        tiles_in_flight=TILES_IN_FLIGHT,
        flops_per_tile=2 * HEADS_A_BLOCK * TILE_ROWS * 2 * LATENT,
        flops_unit="bf16",
        partial_bytes=partials.split_bytes,
        partial_serial=True,
        tile_rule="flash-mla sparse: parts by payload, 64-row tiles of the window, then of compressed rows",
    )
