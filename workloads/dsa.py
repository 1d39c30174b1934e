"""DSA decode (DeepSeek sparse attention): index scan, top-k, attention over the selected rows.

What enters: shapes, tensors, the rows of each sequence, and, where they are not to come from the real
scores, the selected rows. The kernels are in `dsa_index`, `dsa_topk`, `stage`, `dsa_attend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from workloads import combine, dsa_attend, dsa_index, dsa_topk, mla, splits, stage
from workloads.formats import (
    INDEX_DIM,
    INDEX_PAGE,
    INDEX_ROW_BYTES,
    KV_ROW_BYTES,
    pack_index,
    quantise,
)
from workloads.mla import MlaRegions
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import DsaShape
from workloads.tensors import normal, packed_normal

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DsaRegions:
    """Regions of one layer, all [batch x ...].

    index          [padded rows] paged index keys of 132 bytes
    index_q        [index heads] 128 e4m3
    index_weights  [1] one fp32 an index head, the queries' scales folded in
    scores         [padded rows] fp32
    candidates     [blocks x k] of long contexts' top-k
    indices        [k] int32
    staged         [k] rows of 656 bytes, with --stage kv
    attention      as in `mla`, with rows of 656 bytes
    """

    index: RegionHandle
    index_q: RegionHandle
    index_weights: RegionHandle
    scores: RegionHandle
    candidates: RegionHandle | None
    indices: RegionHandle
    staged: RegionHandle | None
    attention: MlaRegions


def declare(recorder: Recorder, layer: int, shape: DsaShape, run: Run) -> DsaRegions:
    """Regions of layer `layer` for all sequences."""
    batch = run.batch
    rows, k = batch * mla.padded(run.most_rows), shape.top_k
    candidates = dsa_topk.candidate_rows(batch, k, run.most_rows, run.cut)

    def region(name: str, kind: str, count: int, row_bytes: int, dtype: str) -> RegionHandle:
        page = INDEX_PAGE if name == "index" else None
        return recorder.region(f"layer{layer}.{name}", kind, layer, count, row_bytes, dtype, page)

    return DsaRegions(
        index=region("index", "index", rows, INDEX_ROW_BYTES, "bytes"),
        index_q=region("index-q", "activation", batch * shape.index_heads, INDEX_DIM, "fp8_e4m3"),
        index_weights=region("index-weights", "activation", batch, shape.index_heads * 4, "fp32"),
        scores=region("scores", "activation", rows, 4, "fp32"),
        candidates=region("candidates", "activation", candidates, dsa_topk.CANDIDATE_BYTES, "bytes")
        if candidates
        else None,
        indices=region("indices", "activation", batch * k, 4, "int32"),
        staged=region("staged", "activation", batch * k, KV_ROW_BYTES, "bytes") if run.staged else None,
        attention=mla.regions_of(recorder, layer, shape.attention, run, KV_ROW_BYTES, "bytes"),
    )


def fill(regions: DsaRegions, generator: torch.Generator) -> None:
    """Random normal queries, keys and rows, packed; results are zero."""
    attention, index_q = regions.attention, regions.index_q
    rows = attention.kv.region.rows
    regions.index.fill(packed_normal(regions.index.shape, rows, INDEX_DIM, pack_index, generator))
    values, scales = quantise(normal(index_q.shape, torch.float32, generator))
    index_q.fill(values)
    weights = normal(regions.index_weights.shape, torch.float32, generator).abs()
    regions.index_weights.fill(weights * scales.reshape(weights.shape))
    for handle in (regions.scores, regions.candidates, regions.indices, regions.staged):
        if handle is not None:
            handle.zero()
    mla.fill(attention, generator)


def step(
    recorder: Recorder,
    layer: int,
    shape: DsaShape,
    regions: DsaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: Sequence[Int64s] | None = None,
) -> None:
    """One decode step of one layer; `selected` holds rows for each sequence, ascending, or None: scores."""
    r, units = regions, run.units
    counts = [min(shape.top_k, rows) for rows in lengths]
    dsa_index.step(recorder, layer, r.index_q, r.index_weights, r.index, r.scores, lengths, units)
    dsa_topk.step(recorder, layer, r.scores, r.candidates, r.indices, lengths, selected, run.cut)
    if r.staged is not None:
        source = dsa_attend.Rows(r.attention.kv, r.indices, None, selected, len(lengths))
        stage.step(recorder, layer, source, r.staged, counts)
    rows = dsa_attend.Rows(r.attention.kv, r.indices, r.staged, selected, len(lengths))
    dsa_attend.step(recorder, layer, shape.attention, r.attention, rows, counts, units)


FACTS = dsa_index.FACTS + dsa_topk.FACTS + dsa_attend.FACTS + combine.FACTS + splits.FACTS
