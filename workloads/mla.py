"""MLA decode in absorbed form: every head attends to all latent rows of its sequence.

Computes softmax(scale q k^T) v for one new token a sequence, k the whole row of 576 values, v its first
512; rows are bf16, or e4m3 without scales. Taken from FlashMLA's dense decode kernel: the split over parts
(`splits`), one block per part and 64 heads with consecutive blocks on the same rows, 64-row tiles padded to
64 heads and 64 rows, two tiles in shared memory, the output written by the block itself where a sequence is
not split, and the combine pass that is launched in any case. Queries, outputs and partial results of a block
move as one piece each. Left out: the page table (pages lie in order), the tail of the last page beyond the
sequence, and the schedule's own kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from workloads import combine, splits
from workloads.arithmetic import arithmetic
from workloads.combine import RESULT_BYTES, Partials
from workloads.facts import Fact
from workloads.formats import LATENT, PAGE_ROWS, Format, plain
from workloads.grid import Blocks, Shape, each, even
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import MlaShape
from workloads.splits import HEADS_A_BLOCK, TILE_ROWS, Share, flash_mla_parts, flash_mla_split, head_blocks
from workloads.tensors import normal

TILES_IN_FLIGHT = 2

FACTS = (
    Fact(
        "kernel.mla.tiles_in_flight",
        "2 tiles",
        "stated",
        "FlashMLA dense decode: two K buffers in shared memory",
    ),
    Fact(
        "kernel.mla.blocks_per_unit", "1", "stated", "FlashMLA dense decode: 227 KB of shared memory a block"
    ),
    Fact("kernel.mla.fp8", "rows of 576 B are cut alike", "assumed", "FlashMLA dense decode, fp8 variant"),
    *combine.FACTS,
    *splits.FACTS[:3],
)


@dataclass(frozen=True)
class MlaRegions:
    """Regions of one layer: q [batch x heads], kv [batch x padded rows], partial results, output.

    rows  how the rows of kv are kept
    """

    q: RegionHandle
    kv: RegionHandle
    partials: Partials
    out: RegionHandle
    rows: Format


def padded(rows: int) -> int:
    """Rows that a sequence takes in a cache of whole pages."""
    return -(-rows // PAGE_ROWS) * PAGE_ROWS


def declare(recorder: Recorder, layer: int, shape: MlaShape, run: Run) -> MlaRegions:
    """Regions of layer `layer` for all sequences."""
    return regions_of(recorder, layer, shape, run, plain(LATENT + shape.rope, shape.dtype))


def regions_of(
    recorder: Recorder, layer: int, shape: MlaShape, run: Run, rows: Format, asking: int = 0
) -> MlaRegions:
    """Regions of a layer with latent rows kept as `rows`; `asking` tokens do, 0: one a sequence."""
    name, asking = f"layer{layer}", asking or run.batch
    queries, most = asking * shape.heads, asking + flash_mla_parts(run.units, shape.heads)
    sizes = [padded(tokens) for tokens in run.rows]
    return MlaRegions(
        q=recorder.region(f"{name}.q", "activation", layer, queries, rows.width * 2, "bf16"),
        kv=rows.region(recorder, f"{name}.kv", "kv", layer, sum(sizes)).dealt(sizes),
        partials=combine.declare(recorder, layer, shape.heads, most),
        out=recorder.region(f"{name}.out", "output", layer, queries, LATENT * 2, "bf16"),
        rows=rows,
    )


def fill(regions: MlaRegions, generator: torch.Generator) -> None:
    """Random normal queries and rows; results are zero."""
    regions.q.fill(normal(regions.q.shape, torch.bfloat16, generator))
    regions.rows.fill(regions.kv, generator)
    for handle in (regions.partials.region, regions.out):
        handle.zero()


def step(
    recorder: Recorder,
    layer: int,
    shape: MlaShape,
    regions: MlaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; `lengths` are the rows of each sequence, the new one included."""
    heads, group = shape.heads, head_blocks(shape.heads)
    parts = flash_mla_parts(run.units, heads)
    schedule = flash_mla_split([-(-rows // TILE_ROWS) for rows in lengths], parts)
    numbers = combine.first_splits(schedule)
    launch = _launch(regions, group, shape)
    with recorder.kernel(f"layer{layer}.mla", "mla", layer, parts * group, launch, regions.partials.region):
        for sequence, shares in enumerate(schedule):
            begin = regions.kv.first(sequence, len(lengths))
            for number, (share, q) in enumerate(with_queries(regions.q, sequence, shares, heads)):
                first = share.first_tile * TILE_ROWS
                rows = min(share.tiles * TILE_ROWS, lengths[sequence] - first)
                readers = each(share.part * group, share.part * group + group - 1)
                kv = regions.rows.load(regions.kv, begin + first, rows, readers)
                values, lse = attend(q, shape.scale, regions.rows, *kv)
                writers = by_heads(share, group)
                if len(shares) == 1:
                    regions.out.store(sequence * heads, values, writers)
                else:
                    regions.partials.store(numbers[sequence] + number, values, lse, writers)
    combine.step(recorder, layer, "mla-combine", regions.partials, regions.out, heads, schedule)


def by_heads(share: Share, group: int) -> Blocks:
    """The blocks of a part, each with the rows of its 64 heads."""
    return even(share.part * group, share.part * group + group - 1, HEADS_A_BLOCK)


def with_queries(
    q: RegionHandle, sequence: int, shares: Sequence[Share], heads: int
) -> Iterator[tuple[Share, torch.Tensor]]:
    """Each share of a sequence with its queries [heads, width]; a block reads those of its 64 heads.

    With one block a part all parts read the same rows, recorded as shared. With more, every part's
    blocks read different rows, which a trace can only say part by part.
    """
    group = head_blocks(heads)
    if group == 1:
        queries = q.load(sequence * heads, heads, each(shares[0].part, shares[-1].part))
    for share in shares:
        if group > 1:
            queries = q.load(sequence * heads, heads, by_heads(share, group))
        yield share, queries


@arithmetic
def attend(
    q: torch.Tensor, scale: float, rows: Format, *parts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [heads, width] over packed rows: values [heads, 512] and log-sum-exps [heads]."""
    kv = rows.unpack(*parts)
    scores = q.float() @ kv.T * scale
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    return weights @ kv[:, :LATENT] / total, (total.log() + top)[:, 0]


def tile_flops(rope: int) -> int:
    """FLOPs of one padded tile: 64 heads x 64 rows, scores over the whole row, values over 512 dimensions."""
    return 2 * HEADS_A_BLOCK * TILE_ROWS * (LATENT + rope + LATENT)


def _launch(regions: MlaRegions, group: int, shape: MlaShape) -> Shape:
    return Shape(
        tile_rows=TILE_ROWS,
        tile_bytes=RESULT_BYTES,
        tiles_in_flight=TILES_IN_FLIGHT,
        flops_per_tile=tile_flops(shape.rope),
        flops_unit=shape.dtype,
        blocks_sharing=group,
        partial_bytes=regions.partials.split_bytes,
        partial_serial=True,
        tile_rule="flash-mla: parts by payload, 64-row tiles",
    )
