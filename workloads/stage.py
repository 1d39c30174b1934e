"""Staging: gather the selected rows into a dense buffer before the attention reads them.

One block per 64 selected rows reads their indices, fetches the rows and writes them one after another.
The packed variant of FlashMLA's sparse decode reads such a buffer; engines that keep the cache in host
memory fill one. The block's shape is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from workloads.dsa_attend import Rows
from workloads.facts import Fact
from workloads.grid import Shape, one
from workloads.record import Recorder, RegionHandle
from workloads.splits import TILE_ROWS

BLOCKS_PER_UNIT = 4

FACTS = (
    Fact("kernel.kv-stage.rows", "64 rows a block", "assumed", "one tile of the attention that follows"),
    Fact("kernel.kv-stage.blocks_per_unit", "4", "assumed", "2048 threads of a unit / 512 of a block"),
)


def step(recorder: Recorder, layer: int, rows: Rows, staged: RegionHandle, counts: Sequence[int]) -> None:
    """Copy the selected rows of each sequence to `staged` [batch x padded k], kept as in the cache."""
    tiles, stride = -(-rows.k // TILE_ROWS), staged.region.rows // len(counts)
    launch = Shape(
        tile_rows=TILE_ROWS,
        tile_bytes=TILE_ROWS * rows.format.row_bytes,
        tiles_in_flight=1,
        blocks_per_unit=BLOCKS_PER_UNIT,
        retire="any",
        tile_rule="stage: a block per 64 selected rows",
    )
    with recorder.kernel(f"layer{layer}.kv-stage", "kv-stage", layer, len(counts) * tiles, launch):
        for sequence, count in enumerate(counts):
            for tile in range(-(-count // TILE_ROWS)):
                first, block = tile * TILE_ROWS, one(sequence * tiles + tile)
                here = min(TILE_ROWS, count - first)
                found = rows.indices.load(sequence * rows.k + first, here, block)
                fetched = rows.format.gather(rows.kv, rows.chosen(sequence, first, found), block)
                rows.format.store(staged, sequence * stride + first, fetched, block)
