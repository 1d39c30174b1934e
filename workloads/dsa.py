"""DSA decode (DeepSeek sparse attention): index scan, top-k, attention over the selected rows.

What enters: shapes, tensors, the rows of each sequence, and, where they are not to come from the real
scores, the selected rows. The kernels are in `indexer` (`dsa_index`, `dsa_topk`), `stage`, `dsa_attend`.
Four variants, which go together:

- A layer may have no indexer and attend to the rows that another layer selected (GLM-5.2, LongCat-2.0).
- The first `sink` and the last `local` rows may be read in any case; the scores pick the rest among the
  rows between them (LongCat-2.0). All keys are scored.
- `pool` rows may share an index key, made when the pool is full; whole pools are picked, and the rows of the
  open pool are read in any case, `pool` - 1 at most (GLM-5.3-Flash).
- Index keys of fp8, fp4 or bf16.

Left out: how the keys of a pool become one, and the write of the new row and its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from workloads import combine, dsa_attend, indexer, mla, splits, stage
from workloads.dsa_topk import Choice, Int64s
from workloads.facts import Fact
from workloads.formats import INDEX_FORMATS, QUERY_FORMATS, latent_fp8
from workloads.indexer import IndexerRegions, Kept
from workloads.mla import MlaRegions
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import DsaShape

FACTS = (
    *indexer.FACTS,
    *dsa_attend.FACTS,
    *combine.FACTS,
    *splits.FACTS,
)
POOL_FACT = Fact(
    "kernel.dsa.pool",
    "whole pools, and the rows of the open one",
    "stated",
    "SGLang glm5_next: index_kpool_always_select_tail",
)
FORCED_FACT = Fact(
    "kernel.dsa.forced",
    "all keys are scored; the top-k reads no scores of forced rows",
    "assumed",
    "LongCat-2.0: sink and local rows; its kernel was not seen",
)
ROW_FACT = Fact(
    "kernel.dsa.528",
    "512 e4m3 + 4 fp32 scales, cut as rows of 656 B",
    "assumed",
    "GLM-5.3-Flash has no rotary part; no public kernel for Hopper reads such rows",
)
KEYS_FACT = Fact(
    "kernel.dsa-index.other_keys",
    "fp4 and bf16 keys are cut alike; fp4 is multiplied as fp8",
    "assumed",
    "DeepGEMM has a kernel for fp4 keys on SM100 alone",
)


def facts_of(shape: DsaShape) -> tuple[Fact, ...]:
    """What a layer of this shape rests on beside FACTS."""
    asked = (
        (shape.pool > 1, POOL_FACT),
        (shape.sink + shape.local > 0, FORCED_FACT),
        (shape.attention.rope == 0, ROW_FACT),
        (shape.index_dtype != "fp8", KEYS_FACT),
    )
    return tuple(fact for applies, fact in asked if applies)


@dataclass(frozen=True)
class DsaRegions:
    """Regions of one layer, all [batch x draft x ...] but caches.

    indexer    of this layer, None where another layer selects
    indices    [k] int32, of this layer or of the one that selects for it
    staged     [k] rows as they are in the cache, with --stage kv
    attention  as in `mla`, with rows of 656 or 528 bytes
    """

    indexer: IndexerRegions | None
    indices: RegionHandle
    staged: RegionHandle | None
    attention: MlaRegions


def gathered(shape: DsaShape, tokens: int) -> int:
    """Rows that the attention reads of a sequence of `tokens` rows."""
    return min(tokens, shape.top_k + tokens % shape.pool)


def most_gathered(shape: DsaShape) -> int:
    """Rows that the attention reads at most."""
    return shape.top_k + shape.pool - 1


def declare(recorder: Recorder, layer: int, shape: DsaShape, run: Run) -> DsaRegions:
    """Regions of layer `layer` for all sequences."""
    assert shape.top_k % shape.pool == 0, f"{shape.top_k} rows are not whole pools of {shape.pool}"
    rows, k = latent_fp8(shape.attention.rope), most_gathered(shape)
    if run.index is None:
        own = indexer.declare(recorder, layer, _kept(shape, run), run)
        indices = own.indices
    else:
        own, indices = None, run.index.indices
    staged = None
    if run.staged:
        staged = rows.region(recorder, f"layer{layer}.staged", "activation", layer, run.tokens * k)
    attention = mla.regions_of(recorder, layer, shape.attention, run, rows, run.tokens)
    return DsaRegions(own, indices, staged, attention)


def _kept(shape: DsaShape, run: Run) -> Kept:
    return Kept(
        QUERY_FORMATS[shape.index_dtype],
        INDEX_FORMATS[shape.index_dtype],
        shape.index_heads,
        picks=shape.scored // shape.pool,
        most=[tokens // shape.pool for tokens in run.rows],
        k=most_gathered(shape),
    )


def fill(regions: DsaRegions, generator: torch.Generator) -> None:
    """Random normal queries, keys and rows, packed; results are zero."""
    if regions.indexer is not None:
        indexer.fill(regions.indexer, generator)
    if regions.staged is not None:
        regions.staged.zero()
    mla.fill(regions.attention, generator)


def choice_of(shape: DsaShape, tokens: int) -> Choice:
    """What competes in a sequence of `tokens` rows, and what is read in any case."""
    if tokens <= shape.top_k:
        return Choice(entries=0, head=tokens)
    if shape.pool > 1:
        pools, rest = divmod(tokens, shape.pool)
        return Choice(pools, tail=(tokens - rest, rest), pool=shape.pool)
    between = tokens - shape.sink - shape.local
    return Choice(between, shape.sink, shape.sink, (tokens - shape.local, shape.local))


def step(
    recorder: Recorder,
    layer: int,
    shape: DsaShape,
    regions: DsaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: Sequence[Int64s] | None = None,
) -> None:
    """One decode step of one layer; `selected` holds rows for each new token, ascending, or None: scores."""
    r, units, sequences = regions, run.units, len(lengths)
    lengths = run.each_token(lengths)
    if r.indexer is not None:
        entries = [tokens // shape.pool for tokens in lengths]
        choices = [choice_of(shape, tokens) for tokens in lengths]
        indexer.scan(recorder, layer, r.indexer, entries, units)
        indexer.select(recorder, layer, r.indexer, choices, units, selected, run.cut)
        if run.merge is not None:
            run.merge(r.indexer)
    counts = [gathered(shape, tokens) for tokens in lengths]
    if run.merge is not None:
        assert selected is not None, "rows of several GPUs are selected beforehand"
        counts = [len(mine) for mine in selected]
    kept = r.attention.rows
    kv = r.attention.kv.per_token(sequences, run.draft)
    rows = dsa_attend.Rows(kv, kept, r.indices, None, selected, len(lengths))
    if r.staged is not None:
        stage.step(recorder, layer, rows, r.staged, counts)
        rows = replace(rows, staged=r.staged)
    dsa_attend.step(recorder, layer, shape.attention, r.attention, rows, counts, units)
