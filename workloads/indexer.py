"""An indexer and its selection: index keys, their scores, the rows of the best.

What DSA and CSA share: the regions of `dsa_index` and `dsa_topk`, random data for them, and both launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workloads import dsa_index, dsa_topk
from workloads.codes import quantise
from workloads.dsa_topk import Choice, Int64s
from workloads.formats import Format
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.splits import AS_PRODUCTION, CANDIDATE_BYTES, Cut, candidate_rows
from workloads.tensors import normal

FACTS = dsa_index.FACTS + dsa_topk.FACTS


@dataclass(frozen=True)
class Kept:
    """How queries and keys are kept, and what is picked of them.

    picks  entries that the scores pick
    most   entries that each sequence has at most
    k      rows that a sequence selects at most
    """

    queries: Format
    keys: Format
    heads: int
    picks: int
    most: Sequence[int]
    k: int


@dataclass(frozen=True)
class IndexerRegions:
    """Regions of one layer, all [batch x draft x ...] but the keys.

    index          [batch x padded entries] index keys
    index_q        [index heads] queries
    index_weights  [1] one fp32 an index head, the scales of e4m3 queries folded in
    scores         [padded entries] fp32
    candidates     [blocks x picks] of long contexts' top-k, or None
    indices        [k] int32
    draft          new tokens of a sequence
    """

    index: RegionHandle
    index_q: RegionHandle
    index_weights: RegionHandle
    scores: RegionHandle
    candidates: RegionHandle | None
    indices: RegionHandle
    kept: Kept
    draft: int = 1


def declare(
    recorder: Recorder, layer: int, kept: Kept, run: Run, keys: RegionHandle | None = None
) -> IndexerRegions:
    """Regions of layer `layer` for all sequences; `keys` are another layer's."""
    name, sizes = f"layer{layer}", [kept.keys.padded(entries) for entries in kept.most]
    tokens, each = run.tokens, [size for size in sizes for _ in range(run.draft)]
    candidates = candidate_rows(tokens, kept.picks, max(kept.most), run.cut)

    def region(called: str, count: int, row_bytes: int, dtype: str) -> RegionHandle:
        return recorder.region(f"{name}.{called}", "activation", layer, count, row_bytes, dtype)

    return IndexerRegions(
        index=keys or kept.keys.region(recorder, f"{name}.index", "index", layer, sum(sizes)).dealt(sizes),
        index_q=kept.queries.region(recorder, f"{name}.index-q", "activation", layer, tokens * kept.heads),
        index_weights=region("index-weights", tokens, kept.heads * 4, "fp32"),
        scores=region("scores", sum(each), 4, "fp32").dealt(each),
        candidates=region("candidates", candidates, CANDIDATE_BYTES, "bytes") if candidates else None,
        indices=region("indices", tokens * kept.k, 4, "int32"),
        kept=kept,
        draft=run.draft,
    )


def fill(regions: IndexerRegions, generator: torch.Generator, *, keys: bool = True) -> None:
    """Random normal queries and, where they are the layer's own, keys; results are zero."""
    kept, index_q = regions.kept, regions.index_q
    if keys:
        kept.keys.fill(regions.index, generator)
    queries = normal((index_q.region.rows, kept.queries.width), torch.float32, generator)
    weights = normal(regions.index_weights.shape, torch.float32, generator).abs()
    if kept.queries.dtype == "fp8_e4m3":
        queries, scales = quantise(queries)
        index_q.fill(queries)
        weights = weights * scales.reshape(weights.shape)
    else:
        index_q.fill(kept.queries.pack(queries)[0])
    regions.index_weights.fill(weights)
    for handle in (regions.scores, regions.candidates, regions.indices):
        if handle is not None:
            handle.zero()


def scan(recorder: Recorder, layer: int, regions: IndexerRegions, entries: Sequence[int], units: int) -> None:
    """Score the first `entries` keys for each new token."""
    r, formats = regions, (regions.kept.queries, regions.kept.keys)
    reads = (r.index_q, r.index_weights, r.index)
    dsa_index.step(recorder, layer, *reads, r.scores, entries, units, formats, r.draft)


def select(
    recorder: Recorder,
    layer: int,
    regions: IndexerRegions,
    choices: Sequence[Choice],
    units: int,
    selected: Sequence[Int64s] | None = None,
    cut: Cut = AS_PRODUCTION,
) -> None:
    """Select by the scores."""
    r, picks = regions, regions.kept.picks
    dsa_topk.step(recorder, layer, r.scores, r.candidates, r.indices, choices, picks, units, selected, cut)
