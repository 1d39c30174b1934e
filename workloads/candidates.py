"""Candidate blocks of DeepSeek V4.1: a layer keeps the best blocks of entries, later layers score them alone.

The layer that chooses has scored all entries; the score of a block is the best of its entries, the newest
block is kept in any case. The layers that use the blocks gather their keys, score them into a list as long,
and select in it; what they select is told as entries of the cache. Both in the ways of DeepGEMM's paged
logits and vLLM's top-k, which `dsa_index` and `dsa_topk` follow; the best of a block is found by a pass
over the scores of its own. Left out: the list of pages that the real kernel makes of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from workloads import dsa_topk
from workloads.arithmetic import arithmetic
from workloads.dsa_index import SEGMENTS_IN_FLIGHT, score
from workloads.dsa_topk import Choice, Cut, Int64s
from workloads.facts import Fact
from workloads.formats import INDEX_DIM
from workloads.grid import Shape, each, one
from workloads.indexer import IndexerRegions
from workloads.record import Recorder, RegionHandle
from workloads.splits import SEGMENT_ROWS, Share, even_segments

FACTS = (
    Fact(
        "kernel.block-best",
        "a pass over the scores, runs of 256",
        "assumed",
        "vLLM deepseek_v41: candidate_write of its indexer; the kernel was not seen",
    ),
    Fact(
        "kernel.block-index",
        "keys of candidate blocks, cut as all keys are",
        "assumed",
        "vLLM sparse_mqa_indexer.py: DeepGEMM's sparse logits, on SM100 alone",
    ),
    Fact(
        "kernel.block-topk",
        "as the top-k of entries, the newest block always in",
        "assumed",
        "SGLang's test of candidate blocks",
    ),
)


@dataclass(frozen=True)
class BlockRegions:
    """Candidate blocks of a layer.

    best        [batch x blocks of all entries] fp32
    candidates  of the top-k of a long context, or None
    numbers     [batch x blocks] int32, ascending
    rows        entries of a block
    """

    best: RegionHandle
    candidates: RegionHandle | None
    numbers: RegionHandle
    rows: int

    def blocks(self, batch: int) -> int:
        """Blocks that a sequence keeps at most."""
        return self.numbers.region.rows // batch


def declare(
    recorder: Recorder, layer: int, blocks: int, rows: int, batch: int, most_entries: int, cut: Cut
) -> BlockRegions:
    """Regions of layer `layer` that keeps `blocks` blocks of `rows` entries."""
    assert SEGMENT_ROWS % rows == 0, f"blocks of {rows} entries do not fill segments of {SEGMENT_ROWS}"
    most = -(-most_entries // rows)
    proposals = dsa_topk.candidate_rows(batch, blocks - 1, most - 1, cut)

    def region(name: str, count: int, row_bytes: int, dtype: str) -> RegionHandle:
        return recorder.region(f"layer{layer}.{name}", "activation", layer, count, row_bytes, dtype)

    return BlockRegions(
        best=region("block-scores", batch * max(1, most), 4, "fp32"),
        candidates=region("block-candidates", proposals, dsa_topk.CANDIDATE_BYTES, "bytes")
        if proposals
        else None,
        numbers=region("blocks", batch * blocks, 4, "int32"),
        rows=rows,
    )


def zero(regions: BlockRegions) -> None:
    """Put zeros behind all regions."""
    for handle in (regions.best, regions.candidates, regions.numbers):
        if handle is not None:
            handle.zero()


def choose(
    recorder: Recorder,
    layer: int,
    scores: RegionHandle,
    regions: BlockRegions,
    entries: Sequence[int],
    units: int,
    chosen: Sequence[Int64s] | None,
    cut: Cut,
) -> None:
    """Keep the best blocks of the scored `entries`; `chosen` puts given ones in their place."""
    batch = len(entries)
    counts = [-(-count // regions.rows) for count in entries]
    stride, others = scores.region.rows // batch, regions.best.region.rows // batch
    schedule = even_segments([-(-count // SEGMENT_ROWS) for count in entries], units)
    launch = _best_launch()
    with recorder.kernel(f"layer{layer}.block-best", "block-best", layer, units, launch):
        for sequence, shares in enumerate(schedule):
            for share in shares:
                first = share.first_tile * SEGMENT_ROWS
                rows = min(share.tiles * SEGMENT_ROWS, entries[sequence] - first)
                block = one(share.part)
                found = scores.load(sequence * stride + first, rows, block, worked=True)
                at = sequence * others + first // regions.rows
                regions.best.store(at, best_of(found, regions.rows), block)
    choices = [Choice(max(count - 1, 0), tail=(max(count - 1, 0), min(count, 1))) for count in counts]
    picks = regions.blocks(batch) - 1
    dsa_topk.step(
        recorder,
        layer,
        regions.best,
        regions.candidates,
        regions.numbers,
        choices,
        picks,
        chosen,
        cut,
        name="block-topk",
    )


@dataclass(frozen=True)
class Listed:
    """The entries of candidate blocks, sequence by sequence, as a list from block to block.

    regions  the blocks of the layer that chose them
    entries  of each sequence
    given    numbers of the blocks, for meta and where they were given
    """

    regions: BlockRegions
    entries: Sequence[int]
    given: Sequence[Int64s] | None

    def count(self, sequence: int) -> int:
        """Entries of the list: whole blocks but for the newest."""
        rows, entries = self.regions.rows, self.entries[sequence]
        blocks = -(-entries // rows)
        kept = min(blocks, self.regions.blocks(len(self.entries)))
        return kept * rows - (blocks * rows - entries)

    def spread(self, sequence: int, first: int, count: int, numbers: torch.Tensor) -> Int64s:
        """Entries first.. of the list, by the `numbers` of their blocks; below 0 where a number is."""
        rows = self.regions.rows
        if numbers.is_meta:
            assert self.given is not None, "on meta the blocks must be chosen beforehand"
            begin = first // rows
            found = self.given[sequence][begin : begin + len(numbers)]
        else:
            found = numbers[:, 0].cpu().numpy().astype(np.int64)
        entries = (found[:, None] * rows + np.arange(rows)).ravel()
        return entries[first % rows : first % rows + count]

    def places(self, sequence: int, selected: Int64s) -> Int64s:
        """Where the entries `selected` stand in the list."""
        assert self.given is not None, "selected entries need their blocks"
        rows = self.regions.rows
        return np.searchsorted(self.given[sequence], selected // rows) * rows + selected % rows


def score_listed(recorder: Recorder, layer: int, indexer: IndexerRegions, listed: Listed, units: int) -> None:
    """Scores of the entries of candidate blocks, in the order of the list."""
    r, kept, batch = indexer, indexer.kept, len(listed.entries)
    counts = [listed.count(sequence) for sequence in range(batch)]
    schedule = even_segments([-(-count // SEGMENT_ROWS) for count in counts], units)
    with recorder.kernel(f"layer{layer}.block-index", "block-index", layer, units, _index_launch(indexer)):
        for sequence, shares in enumerate(schedule):
            if not shares:
                continue
            readers = each(shares[0].part, shares[-1].part)
            queries = r.index_q.load(sequence * kept.heads, kept.heads, readers)
            weights = r.index_weights.load(sequence, 1, readers)
            for share in shares:
                _score_share(indexer, listed, sequence, share, counts, (queries, weights))


def _score_share(
    indexer: IndexerRegions,
    listed: Listed,
    sequence: int,
    share: Share,
    counts: Sequence[int],
    queries: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """The block that scores one share of a sequence's list."""
    kept, batch, block = indexer.kept, len(counts), one(share.part)
    numbers, rows = listed.regions.numbers, listed.regions.rows
    first = share.first_tile * SEGMENT_ROWS
    count = min(share.tiles * SEGMENT_ROWS, counts[sequence] - first)
    at = sequence * listed.regions.blocks(batch) + first // rows
    found = numbers.load(at, -(-count // rows), block)
    entries = listed.spread(sequence, first, count, found)
    known = entries >= 0
    keys = sequence * (indexer.index.region.rows // batch) + entries[known]
    parts = kept.keys.gather(indexer.index, keys, block)
    scored = score(*queries, kept.queries, kept.keys, *parts)
    if not known.all():
        whole = scored.new_full((count, 1), -torch.inf)
        whole[torch.from_numpy(known).to(scored.device)] = scored
        scored = whole
    indexer.scores.store(sequence * (indexer.scores.region.rows // batch) + first, scored, block)


def select_listed(
    recorder: Recorder,
    layer: int,
    indexer: IndexerRegions,
    listed: Listed,
    selected: Sequence[Int64s] | None,
    cut: Cut,
) -> None:
    """Select in the scores of the list; entries go to the indices."""
    batch = len(listed.entries)

    def place(sequence: int, chosen: torch.Tensor) -> torch.Tensor:
        given = None if selected is None else selected[sequence]
        places = chosen.cpu().numpy() if given is None else listed.places(sequence, given)
        return _entries(listed, sequence, places, batch, chosen)

    choices = [Choice(listed.count(sequence)) for sequence in range(batch)]
    r = indexer
    dsa_topk.step(
        recorder, layer, r.scores, r.candidates, r.indices, choices, r.kept.picks, selected, cut, place=place
    )


def _entries(listed: Listed, sequence: int, places: Int64s, batch: int, chosen: torch.Tensor) -> torch.Tensor:
    """Entries that stand at `places` of the list: the numbers of their blocks are read."""
    regions = listed.regions
    if not len(places):
        return chosen
    blocks, which = np.unique(places // regions.rows, return_inverse=True)
    numbers = regions.numbers.gather(sequence * regions.blocks(batch) + blocks, one(sequence))
    if numbers.is_meta:
        return chosen
    device = chosen.device
    of_each = numbers[:, 0].long()[torch.from_numpy(which).to(device)]
    return of_each * regions.rows + torch.from_numpy(places % regions.rows).to(device)


@arithmetic
def best_of(scores: torch.Tensor, rows: int) -> torch.Tensor:
    """The best of each block of `rows` scores [n, 1]: [blocks, 1]; the last block may be shorter."""
    missing = -len(scores) % rows
    whole = torch.nn.functional.pad(scores[:, 0], (0, missing), value=-torch.inf)
    return whole.reshape(-1, rows).amax(1, keepdim=True)


def _best_launch() -> Shape:
    return Shape(
        tile_rows=SEGMENT_ROWS,
        tile_bytes=SEGMENT_ROWS * 4,
        tiles_in_flight=SEGMENTS_IN_FLIGHT,
        tile_rule="best of blocks: runs of 256 scores",
    )


def _index_launch(indexer: IndexerRegions) -> Shape:
    keys = indexer.kept.keys
    return Shape(
        tile_rows=SEGMENT_ROWS,
        tile_bytes=SEGMENT_ROWS * keys.row_bytes,
        tiles_in_flight=SEGMENTS_IN_FLIGHT,
        flops_per_tile=2 * indexer.kept.heads * INDEX_DIM * SEGMENT_ROWS,
        flops_unit="bf16" if keys.dtype == "bf16" else "fp8",
        tile_rule="deepgemm sparse logits: runs of 256 keys of candidate blocks",
    )
