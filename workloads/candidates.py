"""Candidate blocks of DeepSeek V4.1: a layer keeps the best blocks of entries, later layers score them alone.

The layer that chooses has scored all entries; the score of a block is the best of its entries, the newest
block is kept in any case; the entries of the kept blocks are written down, block after block. The layers that
use the blocks gather the keys of this list, score them, and select in the scores; each place that is
selected is looked up in the list. All in the ways of DeepGEMM's paged logits and vLLM's top-k, which
`dsa_index` and `dsa_topk` follow; the best of a block is found by a pass over the scores of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from workloads import dsa_topk
from workloads.arithmetic import arithmetic
from workloads.dsa_index import SEGMENTS_IN_FLIGHT, score
from workloads.dsa_topk import Choice, Int64s
from workloads.facts import Fact
from workloads.formats import INDEX_DIM
from workloads.grid import Shape, each, one
from workloads.indexer import IndexerRegions
from workloads.record import Recorder, RegionHandle
from workloads.splits import CANDIDATE_BYTES, SEGMENT_ROWS, Cut, Share, candidate_rows, even_segments

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
    Fact(
        "kernel.block-list",
        "entries of the kept blocks, 4 B each, written once",
        "assumed",
        "vLLM sparse_mqa_indexer.py: col_indices; the kernel was not seen",
    ),
)


@dataclass(frozen=True)
class BlockRegions:
    """Candidate blocks of a layer.

    best        [batch x blocks of all entries] fp32
    candidates  of the top-k of a long context, or None
    numbers     [batch x blocks] int32, ascending
    entries     [batch x blocks x rows] int32, the entries of these blocks
    rows        entries of a block
    """

    best: RegionHandle
    candidates: RegionHandle | None
    numbers: RegionHandle
    entries: RegionHandle
    rows: int

    def blocks(self, batch: int) -> int:
        """Blocks that a sequence keeps at most."""
        return self.numbers.region.rows // batch

    def most(self, batch: int) -> int:
        """Entries of these blocks."""
        return self.blocks(batch) * self.rows

    def count(self, sequence: int, entries: Sequence[int]) -> int:
        """Entries in the blocks that a sequence keeps: whole blocks but for the newest."""
        blocks = -(-entries[sequence] // self.rows)
        kept = min(blocks, self.blocks(len(entries)))
        return kept * self.rows - (blocks * self.rows - entries[sequence])


def declare(
    recorder: Recorder, layer: int, blocks: int, rows: int, most_entries: Sequence[int], cut: Cut
) -> BlockRegions:
    """Regions of layer `layer` that keeps `blocks` blocks of `rows` of each sequence's entries."""
    assert SEGMENT_ROWS % rows == 0, f"blocks of {rows} entries do not fill segments of {SEGMENT_ROWS}"
    batch, sizes = len(most_entries), [max(1, -(-entries // rows)) for entries in most_entries]
    proposals = candidate_rows(batch, blocks - 1, max(sizes) - 1, cut)

    def region(name: str, count: int, row_bytes: int, dtype: str) -> RegionHandle:
        return recorder.region(f"layer{layer}.{name}", "activation", layer, count, row_bytes, dtype)

    return BlockRegions(
        best=region("block-scores", sum(sizes), 4, "fp32").dealt(sizes),
        candidates=region("block-candidates", proposals, CANDIDATE_BYTES, "bytes") if proposals else None,
        numbers=region("blocks", batch * blocks, 4, "int32"),
        entries=region("block-entries", batch * blocks * rows, 4, "int32"),
        rows=rows,
    )


def zero(regions: BlockRegions) -> None:
    """Put zeros behind all regions."""
    for handle in (regions.best, regions.candidates, regions.numbers, regions.entries):
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
    schedule = even_segments([-(-count // SEGMENT_ROWS) for count in entries], units)
    launch = _best_launch()
    with recorder.kernel(f"layer{layer}.block-best", "block-best", layer, units, launch):
        for sequence, shares in enumerate(schedule):
            for share in shares:
                first = share.first_tile * SEGMENT_ROWS
                rows = min(share.tiles * SEGMENT_ROWS, entries[sequence] - first)
                block = one(share.part)
                found = scores.load(scores.first(sequence, batch) + first, rows, block, worked=True)
                at = regions.best.first(sequence, batch) + first // regions.rows
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
        units,
        chosen,
        cut,
        name="block-topk",
    )
    _list(recorder, layer, regions, entries)


def _list(recorder: Recorder, layer: int, regions: BlockRegions, entries: Sequence[int]) -> None:
    """Write down the entries of the kept blocks, one after another."""
    batch, blocks = len(entries), regions.blocks(len(entries))
    launch = Shape(
        tile_rows=blocks,
        tile_bytes=blocks * 4,
        tiles_in_flight=1,
        tile_rule="list of blocks: a block per sequence",
    )
    with recorder.kernel(f"layer{layer}.block-list", "block-list", layer, batch, launch):
        for sequence in range(batch):
            count = regions.count(sequence, entries)
            if count:
                at, kept = sequence * blocks, -(-count // regions.rows)
                numbers = regions.numbers.load(at, kept, one(sequence), worked=True)
                listed = spread(numbers, regions.rows)[:count]
                regions.entries.store(at * regions.rows, listed, one(sequence))


@dataclass(frozen=True)
class Listed:
    """The entries of candidate blocks, sequence by sequence, as a list from block to block.

    regions  the blocks of the layer that chose them
    entries  that each sequence has
    given    numbers of the blocks, for meta and where they were given
    """

    regions: BlockRegions
    entries: Sequence[int]
    given: Sequence[Int64s] | None

    def counts(self) -> list[int]:
        """Entries in each list."""
        return [self.regions.count(sequence, self.entries) for sequence in range(len(self.entries))]

    def known(self, sequence: int, first: int, found: torch.Tensor) -> Int64s:
        """The entries `found` from place `first` on; on meta, where they have no data, by the blocks."""
        if not found.is_meta:
            known: Int64s = found[:, 0].cpu().numpy().astype(np.int64)
            return known
        assert self.given is not None, "on meta the blocks must be chosen beforehand"
        rows = self.regions.rows
        places = np.arange(first, first + len(found))
        return self.given[sequence][places // rows] * rows + places % rows

    def places(self, sequence: int, selected: Int64s) -> Int64s:
        """Where the entries `selected` stand in the list."""
        assert self.given is not None, "selected entries need their blocks"
        rows = self.regions.rows
        return np.searchsorted(self.given[sequence], selected // rows) * rows + selected % rows


def score_listed(recorder: Recorder, layer: int, indexer: IndexerRegions, listed: Listed, units: int) -> None:
    """Scores of the entries of candidate blocks, in the order of the list."""
    r, kept, counts = indexer, indexer.kept, listed.counts()
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
    """The block that scores one share of a sequence's list; an entry below 0 has no key."""
    kept, batch, block = indexer.kept, len(counts), one(share.part)
    first = share.first_tile * SEGMENT_ROWS
    count = min(share.tiles * SEGMENT_ROWS, counts[sequence] - first)
    found = listed.regions.entries.load(sequence * listed.regions.most(batch) + first, count, block)
    entries = listed.known(sequence, first, found)
    there = entries >= 0
    keys = indexer.index.first(sequence, batch) + entries[there]
    parts = kept.keys.gather(indexer.index, keys, block)
    scored = score(*queries, kept.queries, kept.keys, *parts)
    if not there.all():
        whole = scored.new_full((count, 1), -torch.inf)
        whole[torch.from_numpy(there).to(scored.device)] = scored
        scored = whole
    indexer.scores.store(indexer.scores.first(sequence, batch) + first, scored, block)


def select_listed(
    recorder: Recorder,
    layer: int,
    indexer: IndexerRegions,
    listed: Listed,
    units: int,
    selected: Sequence[Int64s] | None,
    cut: Cut,
) -> None:
    """Select in the scores of the list; entries go to the indices."""
    entries, most = listed.regions.entries, listed.regions.most(len(listed.entries))

    def place(sequence: int, chosen: torch.Tensor) -> torch.Tensor:
        if not len(chosen):
            return chosen
        given = None if selected is None else selected[sequence]
        places = chosen.cpu().numpy() if given is None else listed.places(sequence, given)
        return entries.gather(sequence * most + places, one(sequence))[:, 0].long()

    choices, r, picks = [Choice(count) for count in listed.counts()], indexer, indexer.kept.picks
    where = r.scores, r.candidates, r.indices
    dsa_topk.step(recorder, layer, *where, choices, picks, units, selected, cut, place=place)


@arithmetic
def spread(numbers: torch.Tensor, rows: int) -> torch.Tensor:
    """Entries [blocks x rows, 1] of blocks of `rows` entries that are numbered so [blocks, 1]."""
    within = torch.arange(rows, device=numbers.device, dtype=numbers.dtype)
    return (numbers * rows + within).reshape(-1, 1)


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
