"""The lightning indexer of DSA: a score for every row of the context, from fp8 index keys.

score(row) = scale(row) x sum over index heads of weight(head) x ReLU(q(head) . key(row)).

Taken from DeepGEMM's paged logits kernel for SM90: segments of 256 rows (four pages, one for each math
warpgroup) are dealt to one block per unit as equal runs; a block keeps three segments in flight and
holds the queries of its sequence; scores go out in fp32. Left out: the page table (pages lie in order)
and the tail of the last page beyond the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.formats import INDEX_DIM, INDEX_ROW_BYTES, unpack_index
from workloads.grid import Shape, each, one
from workloads.record import Recorder, RegionHandle
from workloads.splits import SEGMENT_ROWS, even_segments

SEGMENTS_IN_FLIGHT = 3

FACTS = (
    Fact(
        "kernel.dsa-index.tiles_in_flight", "3 segments", "stated", "DeepGEMM paged logits, SM90: 3 KV stages"
    ),
    Fact("kernel.dsa-index.blocks", "1 a unit", "stated", "DeepGEMM paged logits: a persistent block per SM"),
)


def step(
    recorder: Recorder,
    layer: int,
    q: RegionHandle,
    weights: RegionHandle,
    keys: RegionHandle,
    scores: RegionHandle,
    lengths: Sequence[int],
    units: int,
) -> None:
    """Scores of all rows of each sequence.

    q [batch x heads] rows of 128 e4m3, weights [batch] rows of one fp32 a head, keys [batch x padded
    rows] paged, scores [batch x padded rows] fp32.
    """
    batch = len(lengths)
    heads, stride = q.region.rows // batch, keys.region.rows // batch
    schedule = even_segments([-(-rows // SEGMENT_ROWS) for rows in lengths], units)
    with recorder.kernel(f"layer{layer}.dsa-index", "dsa-index", layer, units, _launch(heads)):
        for sequence, shares in enumerate(schedule):
            readers = each(shares[0].part, shares[-1].part)
            queries = q.load(sequence * heads, heads, readers)
            weight = weights.load(sequence, 1, readers)
            for share in shares:
                first = share.first_tile * SEGMENT_ROWS
                rows = min(share.tiles * SEGMENT_ROWS, lengths[sequence] - first)
                at = sequence * stride + first
                values, tails = keys.load_pages(at, rows, one(share.part), worked=True)
                scores.store(at, score(queries, weight, values, tails), one(share.part))


@arithmetic
def score(q: torch.Tensor, weights: torch.Tensor, heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    """q [heads, 128], weights [1, heads], keys as bytes [rows, 128] and [rows, 4]: scores [rows, 1]."""
    keys, scales = unpack_index(heads, tails)
    return (keys @ q.float().T).relu() @ weights.T * scales


def _launch(heads: int) -> Shape:
    return Shape(
        tile_rows=SEGMENT_ROWS,
        tile_bytes=SEGMENT_ROWS * INDEX_ROW_BYTES,
        tiles_in_flight=SEGMENTS_IN_FLIGHT,
        flops_per_tile=2 * heads * INDEX_DIM * SEGMENT_ROWS,
        flops_unit="fp8",
        tile_rule="deepgemm paged logits: runs of 256-row segments",
    )
