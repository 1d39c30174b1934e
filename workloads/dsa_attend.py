"""Attention of DSA over the selected rows, in the fp8 formats of 656 or 528 bytes.

Computes what `mla.attend` computes, over min(k, rows) rows, each turned back into bf16. Taken from
FlashMLA's sparse decode kernel for Hopper: `splits` over tiles of 64 selected rows; with 128 heads a
part is a cluster of two blocks, each of which fetches half the rows of every tile and passes them on, so
a row is fetched once for 128 heads; two tiles are in flight; outputs and the combine pass are as in
`mla`. Its packed variant reads rows that were staged densely before. Left out: tiles of padding where
fewer than k rows are selected; rows of a part are halved as a whole, not tile by tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from workloads import combine
from workloads.combine import RESULT_BYTES, Partials
from workloads.facts import Fact
from workloads.formats import Format, Parts
from workloads.grid import Blocks, Shape, even
from workloads.mla import MlaRegions, attend, by_heads, tile_flops, with_queries
from workloads.record import Recorder, RegionHandle
from workloads.shapes import MlaShape
from workloads.splits import TILE_ROWS, Share, flash_mla_parts, flash_mla_split, head_blocks

TILES_IN_FLIGHT = 2

Int64s = npt.NDArray[np.int64]

FACTS = (
    Fact(
        "kernel.dsa-attend.tiles_in_flight", "2 tiles", "stated", "FlashMLA sparse fp8 decode: two K buffers"
    ),
    Fact(
        "kernel.dsa-attend.cluster",
        "2 blocks for 128 heads",
        "stated",
        "FlashMLA sparse fp8 decode on Hopper",
    ),
    Fact(
        "kernel.dsa-attend.blocks_per_unit",
        "1",
        "stated",
        "FlashMLA sparse fp8 decode: shared memory of a block",
    ),
)


@dataclass(frozen=True)
class Rows:
    """Where the selected rows come from: gathered from `kv` by `indices`, or dense in `staged`.

    format    how those rows are kept
    selected  the rows of each sequence, for meta, where indices have no data
    """

    kv: RegionHandle
    format: Format
    indices: RegionHandle
    staged: RegionHandle | None
    selected: Sequence[Int64s] | None
    batch: int

    @property
    def k(self) -> int:
        """Rows of `indices` for a sequence."""
        return self.indices.region.rows // self.batch

    def load(self, sequence: int, first: int, rows: int, blocks: Blocks) -> Parts:
        """Selected rows first.. of a sequence, packed; rows that are -1 are left away."""
        if self.staged is not None:
            at = sequence * (self.staged.region.rows // self.batch) + first
            return self.format.load(self.staged, at, rows, blocks)
        found = self.indices.load(sequence * self.k + first, rows, blocks)
        return self.format.gather(self.kv, self.chosen(sequence, first, found), blocks)

    def chosen(self, sequence: int, first: int, found: torch.Tensor) -> Int64s:
        """Rows of the region `kv` for the indices `found`; on meta, where they have no data, as selected."""
        if found.is_meta:
            assert self.selected is not None, "on meta the rows must be selected beforehand"
            chosen = self.selected[sequence][first : first + len(found)]
        else:
            chosen = found[:, 0].cpu().numpy().astype(np.int64)
            chosen = chosen[chosen >= 0]
        return chosen + self.kv.first(sequence, self.batch)


def step(
    recorder: Recorder,
    layer: int,
    shape: MlaShape,
    regions: MlaRegions,
    rows: Rows,
    counts: Sequence[int],
    units: int,
) -> None:
    """Attention of each sequence over its `counts` selected rows."""
    heads, group = shape.heads, head_blocks(shape.heads)
    parts = flash_mla_parts(units, heads)
    schedule = flash_mla_split([-(-count // TILE_ROWS) for count in counts], parts)
    splits = combine.first_splits(schedule)
    launch = _launch(regions.partials, group, shape)
    name, region = f"layer{layer}.dsa-attend", regions.partials.region
    with recorder.kernel(name, "dsa-attend", layer, parts * group, launch, region):
        for sequence, shares in enumerate(schedule):
            for number, (share, queries) in enumerate(with_queries(regions.q, sequence, shares, heads)):
                first = share.first_tile * TILE_ROWS
                count = min(share.tiles * TILE_ROWS, counts[sequence] - first)
                packed = rows.load(sequence, first, count, halves(share, group))
                values, lse = attend(queries, shape.scale, rows.format, *packed)
                writers = by_heads(share, group)
                if len(shares) == 1:
                    regions.out.store(sequence * heads, values, writers)
                else:
                    regions.partials.store(splits[sequence] + number, values, lse, writers)
    combine.step(recorder, layer, "dsa-combine", regions.partials, regions.out, heads, schedule)


def halves(share: Share, group: int) -> Blocks:
    """The blocks of a part, each with an equal run of its rows."""
    return even(share.part * group, share.part * group + group - 1, TILE_ROWS // group)


def _launch(partials: Partials, group: int, shape: MlaShape) -> Shape:
    return Shape(
        tile_rows=TILE_ROWS // group,
        tile_bytes=RESULT_BYTES,
        tiles_in_flight=TILES_IN_FLIGHT,
        flops_per_tile=tile_flops(shape.rope),
        flops_unit="bf16",
        partial_bytes=partials.split_bytes,
        partial_serial=True,
        tile_rule="flash-mla sparse: parts by payload, 64-row tiles halved in a cluster",
    )
