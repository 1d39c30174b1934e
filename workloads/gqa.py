"""Full attention with grouped queries: every query head attends to all keys and values of its group.

Computes softmax(scale q k^T) v for one new token a sequence. Taken from FlashAttention-3 as vLLM calls it
for decode: a block per sequence, key head and split (`splits`), the query heads of a group packed into one
tile; tiles of keys and of values, two of each in flight; the block writes the output itself where its
sequence is not split; else a combine pass of a block per sequence, 8 heads and 128 columns, which walks the
splits with four in flight. Left out: the page table (pages lie in order, and a key head's rows lie
together, where vLLM's pages hold all heads of a position side by side), that a block takes the tiles of
values between those of keys, splits without tiles, and the schedule's own kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.grid import Blocks, Shape, each, one
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import GqaShape
from workloads.splits import Share, flash_attention_split
from workloads.tensors import normal

PAGE_ROWS = 16
TILES_IN_FLIGHT = 4
COMBINE_HEADS, COMBINE_COLUMNS, COMBINE_STAGES, COMBINE_BLOCKS_PER_UNIT = 8, 128, 4, 8

FA3 = "FlashAttention-3 for Hopper"

FACTS = (
    Fact(
        "kernel.gqa.tile",
        "64 queries x 128 rows (head of 128), 128 x 96 (192), 128 x 80 (256)",
        "stated",
        f"{FA3}: tile_size.h, pages read without TMA",
    ),
    Fact(
        "kernel.gqa.splits",
        "128 at most, 85% of the best fill; a tenth of margin",
        "stated",
        f"{FA3}: heuristics.h, flash_prepare_scheduler.cu",
    ),
    Fact(
        "kernel.gqa.tiles_in_flight", "2 of keys and 2 of values", "assumed", f"{FA3}: two stages, recalled"
    ),
    Fact("kernel.gqa.blocks_per_unit", "1", "assumed", "shared memory of a block, from its tiles"),
    Fact(
        "kernel.gqa.layout",
        "rows of a key head together",
        "assumed",
        "vLLM keeps the heads of a row together",
    ),
    Fact("kernel.gqa.page", "16 rows", "assumed", "vLLM's default block size, recalled"),
    Fact(
        "kernel.gqa-combine.block",
        "8 heads x 128 columns, 4 splits in flight",
        "stated",
        f"{FA3}: flash_fwd_combine_kernel.h",
    ),
    Fact("kernel.gqa-combine.blocks_per_unit", "8", "assumed", "2048 threads of a unit / 256 of a block"),
)


class Tile(NamedTuple):
    """Padded queries and rows of a tile."""

    queries: int
    rows: int


@dataclass(frozen=True)
class GqaRegions:
    """Regions of one layer.

    q, out   [batch x heads] queries; [batch x heads x pieces] outputs in pieces of 128 columns
    k, v     [batch x key heads x padded rows]
    sink     [heads of a token] fp32, a logit that joins a head's sum, or None
    partial, lse   [splits x heads x pieces] fp32 values, and [splits x heads] their log-sum-exps
    """

    q: RegionHandle
    k: RegionHandle
    v: RegionHandle
    sink: RegionHandle | None
    partial: RegionHandle
    lse: RegionHandle
    out: RegionHandle


def declare(recorder: Recorder, layer: int, shape: GqaShape, run: Run) -> GqaRegions:
    """Regions of layer `layer` for all sequences."""
    rows = [-(-tokens // PAGE_ROWS) * PAGE_ROWS for tokens in run.rows]
    return regions_of(recorder, layer, shape, run, rows, ("k", "v"), sink=False)


def regions_of(
    recorder: Recorder,
    layer: int,
    shape: GqaShape,
    run: Run,
    rows: Sequence[int],
    names: tuple[str, str],
    *,
    sink: bool,
) -> GqaRegions:
    """Regions with `rows` keys and values of each sequence and head, called `names`."""
    assert shape.heads % shape.kv_heads == 0, f"{shape.heads} query heads of {shape.kv_heads} key heads"
    queries, sizes = run.batch * shape.heads, [count for count in rows for _ in range(shape.kv_heads)]
    splits = (run.batch + run.units // shape.kv_heads + 1) * shape.heads
    columns, pieces = pieces_of(shape)

    def region(name: str, kind: str, count: int, row_bytes: int, dtype: str) -> RegionHandle:
        return recorder.region(f"layer{layer}.{name}", kind, layer, count, row_bytes, dtype)

    return GqaRegions(
        q=region("q", "activation", queries, shape.key_dim * 2, "bf16"),
        k=region(names[0], "kv", sum(sizes), shape.key_dim * 2, "bf16").dealt(sizes),
        v=region(names[1], "kv", sum(sizes), shape.value_dim * 2, "bf16").dealt(sizes),
        sink=region("sink", "weights", shape.heads // run.draft, 4, "fp32") if sink else None,
        partial=region("partial", "activation", splits * pieces, columns * 4, "fp32"),
        lse=region("partial-lse", "activation", splits, 4, "fp32"),
        out=region("out", "output", queries * pieces, columns * 2, "bf16"),
    )


def pieces_of(shape: GqaShape) -> tuple[int, int]:
    """Columns that a combining block takes of a head's output, and how many such pieces there are."""
    columns = min(shape.value_dim, COMBINE_COLUMNS)
    assert shape.value_dim % columns == 0, f"{shape.value_dim} columns: the combine pass takes {columns}"
    return columns, shape.value_dim // columns


def tile_of(shape: GqaShape, *, local: bool = False) -> Tile:
    """FlashAttention-3's tile for heads of this size; `local` for a sliding window."""
    most = max(shape.key_dim, shape.value_dim)
    assert most <= 256, f"heads of {most} dimensions: there is no such kernel"
    if most <= 64:
        return Tile(192, 160)
    if most <= 128:
        return Tile(64, 128)
    if most <= 192:
        return Tile(128, 96)
    return Tile(128, 64 if local else 80)


def fill(regions: GqaRegions, generator: torch.Generator) -> None:
    """Random normal queries, keys, values and sinks; results are zero."""
    for handle in (regions.q, regions.k, regions.v, regions.sink):
        if handle is not None:
            handle.fill(normal(handle.shape, handle.dtype, generator))
    for handle in (regions.partial, regions.lse, regions.out):
        handle.zero()


def step(
    recorder: Recorder,
    layer: int,
    shape: GqaShape,
    regions: GqaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; `lengths` are the rows of each sequence, the new one included."""
    attend_all(recorder, layer, "gqa", shape, regions, lengths, run.units, tile_of(shape))


def attend_all(
    recorder: Recorder,
    layer: int,
    family: str,
    shape: GqaShape,
    regions: GqaRegions,
    rows: Sequence[int],
    units: int,
    tile: Tile,
) -> None:
    """Attention over the first `rows` keys and values of each sequence; a combine pass where any is split."""
    kv_heads = shape.kv_heads
    schedule = flash_attention_split([-(-count // tile.rows) for count in rows], kv_heads, units)
    blocks = kv_heads * sum(len(shares) for shares in schedule)
    split = any(len(shares) > 1 for shares in schedule)
    partial = regions.partial if split else None
    with recorder.kernel(
        f"layer{layer}.{family}", family, layer, blocks, _launch(shape, tile, split), partial
    ):
        for sequence, shares in enumerate(schedule):
            for head in range(kv_heads):
                _attend_group(shape, regions, (sequence, head), shares, rows, tile)
    if split:
        _combine(recorder, layer, f"{family}-combine", shape, regions, schedule)


def _attend_group(
    shape: GqaShape,
    regions: GqaRegions,
    place: tuple[int, int],
    shares: Sequence[Share],
    rows: Sequence[int],
    tile: Tile,
) -> None:
    """The blocks of one sequence and key head, `place`: each one split of its rows."""
    sequence, head = place
    group, pieces = shape.heads // shape.kv_heads, pieces_of(shape)[1]
    block, first_query = shares[0].part * shape.kv_heads + head * len(shares), head * group
    base = regions.k.first(sequence * shape.kv_heads + head, len(rows) * shape.kv_heads)
    mine = one(block)
    q = regions.q.load(sequence * shape.heads + first_query, group, each(block, block + len(shares) - 1))
    sink = None if regions.sink is None else _sinks(regions.sink, head, shape, mine)
    for number, share in enumerate(shares):
        mine, first = one(block + number), share.first_tile * tile.rows
        count = min(share.tiles * tile.rows, rows[sequence] - first)
        k = regions.k.load(base + first, count, mine, worked=True)
        v = regions.v.load(base + first, count, mine, worked=True)
        values, lse = attend(q, k, v, sink if number == 0 else None, shape.scale)
        if len(shares) == 1:
            regions.out.store((sequence * shape.heads + first_query) * pieces, values, mine)
        else:
            at = share.part * shape.heads + first_query
            regions.partial.store(at * pieces, values, mine)
            regions.lse.store(at, lse, mine)


def _sinks(sink: RegionHandle, head: int, shape: GqaShape, mine: Blocks) -> torch.Tensor:
    """Logits [queries, 1] of a key head's queries, the same for each new token."""
    own = sink.region.rows // shape.kv_heads
    return sink.load(head * own, own, mine).repeat(shape.heads // sink.region.rows, 1)


def _combine(
    recorder: Recorder,
    layer: int,
    family: str,
    shape: GqaShape,
    regions: GqaRegions,
    schedule: Sequence[Sequence[Share]],
) -> None:
    """The splits of every sequence that has more than one become its output."""
    heads, (columns, pieces) = shape.heads, pieces_of(shape)
    groups = -(-heads // COMBINE_HEADS)
    launch = Shape(
        tile_rows=COMBINE_HEADS,
        tile_bytes=COMBINE_HEADS * columns * 4,
        tiles_in_flight=COMBINE_STAGES,
        blocks_per_unit=COMBINE_BLOCKS_PER_UNIT,
        flops_per_tile=2 * COMBINE_HEADS * columns,
        flops_unit="fp32",
        partial_bytes=heads * shape.value_dim * 4,
        partial_serial=True,
        tile_rule="flash-attention combine: a block per sequence, 8 heads and 128 columns, a tile per split",
    )
    name, blocks = f"layer{layer}.{family}", groups * pieces * len(schedule)
    with recorder.kernel(name, family, layer, blocks, launch, regions.partial):
        for sequence, shares in enumerate(schedule):
            if len(shares) == 1:
                continue
            for number in range(groups * pieces):
                piece, group = divmod(number, groups)
                block, first = one(sequence * groups * pieces + number), group * COMBINE_HEADS
                mine = min(COMBINE_HEADS, heads - first)
                row, splits = shares[0].part * heads + first, len(shares)
                lse = regions.lse.load_each(row, mine, block, splits, heads, same_blocks=True)
                values = regions.partial.load_each(
                    row * pieces + piece,
                    mine,
                    block,
                    splits,
                    heads * pieces,
                    stride=pieces,
                    worked=True,
                    same_blocks=True,
                )
                at = (sequence * heads + first) * pieces + piece
                regions.out.store_each(at, merge(lse, values), block, 0, stride=pieces)


@arithmetic
def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [heads, dim] over k [rows, dim] and v: values [heads, value dim], log-sum-exps [heads].

    sink [heads, 1] are logits that join the sums and bring no value.
    """
    scores = q.float() @ k.float().T * scale
    joined = scores if sink is None else torch.cat([scores, sink], dim=1)
    lse = joined.logsumexp(-1)
    return (scores - lse[:, None]).exp() @ v.float(), lse


@arithmetic
def merge(lse: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Log-sum-exps [splits, heads, 1] and values [splits, heads, columns]: an output [1, heads, columns]."""
    return (torch.softmax(lse, dim=0) * values).sum(0, keepdim=True)


def _launch(shape: GqaShape, tile: Tile, split: bool) -> Shape:
    group = shape.heads // shape.kv_heads
    assert group <= tile.queries, f"{group} query heads a key head: a tile holds {tile.queries}"
    return Shape(
        tile_rows=tile.rows,
        tile_bytes=tile.rows * shape.key_dim * 2,
        tiles_in_flight=TILES_IN_FLIGHT,
        flops_per_tile=tile.queries * tile.rows * (shape.key_dim + shape.value_dim),
        flops_unit="bf16",
        partial_bytes=shape.heads * shape.value_dim * 4 if split else 0,
        tile_rule="flash-attention: a block per sequence, key head and split",
    )
