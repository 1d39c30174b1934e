"""CSA decode (DeepSeek V4's compressed sparse attention): the window, and the best of the compressed rows.

Two compressors make a row and an index key of every 4 tokens, each from the last 8 (`compressor`); the
indexer scores the keys and the best entries are selected (`indexer`); the attention reads the window and
the rows of these entries (`window_attend`). In V4.1 a row and its key are made of 2 tokens or of one
(`latent_compressor`), some layers alone make them for all that follow, some alone select, and from one layer
on the selection is made within blocks of entries that this layer has kept (`candidates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from workloads import candidates, compressor, indexer, latent_compressor, splits, stage, window_attend
from workloads.candidates import BlockRegions, Listed
from workloads.compressor import CompressorRegions, Plan
from workloads.dsa import KEYS_FACT
from workloads.dsa_attend import Rows
from workloads.dsa_topk import Choice, Int64s
from workloads.facts import Fact
from workloads.formats import (
    INDEX_DIM,
    LATENT,
    QUERY_FORMATS,
    Format,
    compressed,
    compressed_index,
)
from workloads.indexer import IndexerRegions, Kept
from workloads.latent_compressor import LatentRegions
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import CsaShape
from workloads.window_attend import WindowRegions

PAGE_ROWS = 64

FACTS = (
    Fact("kernel.csa.page", "64 entries", "stated", "vLLM deepseek_v4: pages stand for 256 tokens"),
    *indexer.FACTS,
    *splits.FACTS[3:],
    *window_attend.FACTS,
)


def facts_of(shape: CsaShape) -> tuple[Fact, ...]:
    """What a layer of this shape rests on beside FACTS."""
    facts: tuple[Fact, ...] = compressor.FACTS if shape.window.style == "v4" else latent_compressor.FACTS
    if shape.window.style != "v4":
        facts += (window_attend.V41_FACT,)
    if shape.index_dtype != "fp8":
        facts += (KEYS_FACT,)
    return facts + (candidates.FACTS if shape.blocks else ())


@dataclass(frozen=True)
class CsaRegions:
    """Regions of one layer.

    attention    the window's
    kv           [batch x padded entries] compressed rows, its own or another layer's
    makers       compressors of rows and of keys; none where they are another layer's
    indexer      keys, scores and selection of entries, None where another layer selects
    indices      [batch x top_k] selected entries
    blocks       candidate blocks, its own or those of the layer that it selects within, or None
    staged       [batch x padded top_k] selected rows as they are in the cache, with --stage kv
    """

    attention: WindowRegions
    kv: RegionHandle
    makers: tuple[CompressorRegions | LatentRegions, ...]
    indexer: IndexerRegions | None
    indices: RegionHandle
    blocks: BlockRegions | None
    staged: RegionHandle | None
    kept: Format


def declare(recorder: Recorder, layer: int, shape: CsaShape, run: Run) -> CsaRegions:
    """Regions of layer `layer` for all sequences."""
    assert run.kv is not None or run.index is None, "a layer that makes its rows selects among them"
    entries, style = [tokens // shape.ratio for tokens in run.rows], shape.window.style
    kept = compressed(style, shape.dtype, PAGE_ROWS)
    attention = window_attend.declare(recorder, layer, shape.window, run)
    if run.kv is None:
        sizes = [kept.padded(count) for count in entries]
        kv = kept.region(recorder, f"layer{layer}.kv", "kv", layer, sum(sizes)).dealt(sizes)
    else:
        kv = run.kv.kv
    staged = None
    if run.staged:
        rows = run.tokens * kept.padded(shape.top_k)
        staged = kept.region(recorder, f"layer{layer}.staged", "activation", layer, rows)
    if run.index is not None:
        return CsaRegions(attention, kv, (), None, run.index.indices, None, staged, kept)
    keys = None if run.kv is None else run.kv.indexer.index
    own = indexer.declare(recorder, layer, _wanted(shape, run), run, keys)
    makers = () if run.kv is not None else _makers(recorder, layer, shape, (kv, kept), own, run)
    blocks = None
    if run.blocks is not None:
        blocks = run.blocks.blocks
    elif shape.blocks:
        assert run.kv is None, "a layer that keeps blocks makes the rows that they are made of"
        blocks = candidates.declare(recorder, layer, shape.blocks, shape.block_rows, entries, run.cut)
    return CsaRegions(attention, kv, makers, own, own.indices, blocks, staged, kept)


def _wanted(shape: CsaShape, run: Run) -> Kept:
    entries = [tokens // shape.ratio for tokens in run.rows]
    return Kept(
        QUERY_FORMATS[shape.index_dtype],
        compressed_index(shape.window.style, shape.index_dtype),
        shape.index_heads,
        picks=shape.top_k,
        most=[
            count if run.blocks is None else min(count, shape.blocks * shape.block_rows) for count in entries
        ],
        k=shape.top_k,
    )


def _makers(
    recorder: Recorder,
    layer: int,
    shape: CsaShape,
    rows: tuple[RegionHandle, Format],
    own: IndexerRegions,
    run: Run,
) -> tuple[CompressorRegions | LatentRegions, ...]:
    """The compressors that fill the layer's rows and keys."""
    keys = own.index, own.kept.keys
    if shape.window.style == "v4.1":
        return (latent_compressor.declare(recorder, layer, shape.ratio, rows, keys, run.batch),)
    plans = (
        (Plan("", LATENT, shape.ratio, overlap=True, kept=rows[1]), rows[0]),
        (Plan("index-", INDEX_DIM, shape.ratio, overlap=True, kept=keys[1]), keys[0]),
    )
    return tuple(
        compressor.declare(recorder, layer, plan, target, run.batch, run.draft) for plan, target in plans
    )


def fill(regions: CsaRegions, generator: torch.Generator) -> None:
    """Random normal queries, sinks and, where they are its own, rows, keys and states; results are zero."""
    window_attend.fill(regions.attention, generator)
    if regions.makers:
        regions.kept.fill(regions.kv, generator)
    if regions.indexer is not None:
        indexer.fill(regions.indexer, generator, keys=bool(regions.makers))
    if regions.staged is not None:
        regions.staged.zero()
    for maker in regions.makers:
        if isinstance(maker, LatentRegions):
            latent_compressor.fill(maker, generator)
        else:
            compressor.fill(maker, generator)
    if regions.blocks is not None and regions.makers:
        candidates.zero(regions.blocks)


def step(
    recorder: Recorder,
    layer: int,
    shape: CsaShape,
    regions: CsaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: Sequence[Int64s] | None = None,
) -> None:
    """One decode step of one layer; `selected` holds entries for each new token, or None: scores."""
    r, units, sequences = regions, run.units, len(lengths)
    lengths = run.each_token(lengths)
    for maker in r.makers:
        if isinstance(maker, LatentRegions):
            latent_compressor.step(recorder, layer, maker, lengths, run.project)
        else:
            compressor.step(recorder, layer, maker, lengths)
    entries = [tokens // shape.ratio for tokens in lengths]
    if r.indexer is not None:
        _select(recorder, layer, r.indexer, r.blocks, entries, run, selected)
    counts = [min(count, shape.top_k) for count in entries]
    kv = r.kv.per_token(sequences, run.draft)
    rows = Rows(kv, r.kept, r.indices, None, selected, len(lengths))
    if r.staged is not None:
        stage.step(recorder, layer, rows, r.staged, counts)
        rows = replace(rows, staged=r.staged)
    attention = window_attend.per_token(r.attention, sequences, run.draft)
    window_attend.step(recorder, layer, "csa-attend", shape.window, attention, lengths, units, rows, counts)


def _select(
    recorder: Recorder,
    layer: int,
    own: IndexerRegions,
    blocks: BlockRegions | None,
    entries: Sequence[int],
    run: Run,
    selected: Sequence[Int64s] | None,
) -> None:
    """Score the entries, or those of candidate blocks, and select."""
    if blocks is not None and run.blocks is not None:
        listed = Listed(blocks, entries, run.candidates)
        candidates.score_listed(recorder, layer, own, listed, run.units)
        candidates.select_listed(recorder, layer, own, listed, run.units, selected, run.cut)
        return
    indexer.scan(recorder, layer, own, entries, run.units)
    if blocks is not None:
        given = run.candidates
        candidates.choose(recorder, layer, own.scores, blocks, entries, run.units, given, run.cut)
    indexer.select(recorder, layer, own, [Choice(count) for count in entries], run.units, selected, run.cut)
