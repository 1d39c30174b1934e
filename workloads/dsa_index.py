"""The lightning indexer of DSA: a score for every index key of the context.

score(key) = sum over index heads of weight(head) x ReLU(q(head) . key).

Taken from DeepGEMM's paged logits kernel for SM90: segments of 256 keys (four pages, one for each math
warpgroup) are dealt to one block per unit as equal runs; a block keeps three segments in flight and
holds the queries of its sequence; scores go out in fp32. Keys of fp4 and bf16 are cut alike. Left out: the
page table (pages lie in order) and the tail of the last page beyond the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.formats import INDEX_DIM, Format
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
    entries: Sequence[int],
    units: int,
    kept: tuple[Format, Format],
    draft: int = 1,
) -> None:
    """Scores of the first `entries` keys for each of `draft` new tokens of a sequence; they may be none.

    q [batch x draft x heads], weights [batch x draft] rows of one fp32 a head, keys [batch x padded rows],
    scores [batch x draft x padded rows] fp32; `kept` is how queries and keys are. A sequence's keys are read
    once for all its new tokens.
    """
    tokens, batch = len(entries), len(entries) // draft
    heads = q.region.rows // tokens
    queries_kept, keys_kept = kept
    schedule = even_segments([-(-rows // SEGMENT_ROWS) for rows in entries[draft - 1 :: draft]], units)
    launch = _launch(heads * draft, keys_kept)
    with recorder.kernel(f"layer{layer}.dsa-index", "dsa-index", layer, units, launch):
        for sequence, shares in enumerate(schedule):
            if not shares:
                continue
            readers = each(shares[0].part, shares[-1].part)
            own = range(sequence * draft, (sequence + 1) * draft)
            queries = q.load(own.start * heads, heads * draft, readers)
            weight = weights.load(own.start, draft, readers)
            for share in shares:
                first = share.first_tile * SEGMENT_ROWS
                rows = min(share.tiles * SEGMENT_ROWS, entries[own[-1]] - first)
                parts = keys_kept.load(keys, keys.first(sequence, batch) + first, rows, one(share.part))
                for number, token in enumerate(own):
                    mine = queries[number * heads : (number + 1) * heads]
                    scored = score(mine, weight[number : number + 1], queries_kept, keys_kept, *parts)
                    scored = scored[: entries[token] - first]
                    if len(scored):
                        scores.store(scores.first(token, tokens) + first, scored, one(share.part))


@arithmetic
def score(
    q: torch.Tensor,
    weights: torch.Tensor,
    queries_kept: Format,
    keys_kept: Format,
    *keys: torch.Tensor,
) -> torch.Tensor:
    """Packed q of all heads, weights [1, heads] and packed keys: scores [keys, 1]."""
    return (keys_kept.unpack(*keys) @ queries_kept.unpack(q).T).relu() @ weights.T


def _launch(heads: int, keys: Format) -> Shape:
    return Shape(
        tile_rows=SEGMENT_ROWS,
        tile_bytes=SEGMENT_ROWS * keys.row_bytes,
        tiles_in_flight=SEGMENTS_IN_FLIGHT,
        flops_per_tile=2 * heads * INDEX_DIM * SEGMENT_ROWS,
        flops_unit="bf16" if keys.dtype == "bf16" else "fp8",
        tile_rule="deepgemm paged logits: runs of 256-row segments",
    )
