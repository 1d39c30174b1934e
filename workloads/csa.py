"""CSA decode (DeepSeek V4's compressed sparse attention): the window, and the best of the compressed rows.

Two compressors make a row and an index key of every 4 tokens, each from the last 8 (`compressor`); the
indexer scores the keys and the best entries are selected (`indexer`); the attention reads the window and
the rows of these entries (`window_attend`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workloads import compressor, indexer, splits, window_attend
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
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import CsaShape
from workloads.window_attend import WindowRegions

PAGE_ROWS = 64

FACTS = (
    Fact("kernel.csa.page", "64 entries", "stated", "vLLM deepseek_v4: pages stand for 256 tokens"),
    *compressor.FACTS,
    *indexer.FACTS,
    *splits.FACTS[3:],
    *window_attend.FACTS,
)


def facts_of(shape: CsaShape) -> tuple[Fact, ...]:
    """What a layer of this shape rests on beside FACTS."""
    return (KEYS_FACT,) if shape.index_dtype != "fp8" else ()


@dataclass(frozen=True)
class CsaRegions:
    """Regions of one layer.

    attention    the window's
    kv           [batch x padded entries] compressed rows
    indexer      keys, scores and selection of entries
    indices      [batch x top_k] selected entries
    compressors  of rows and of keys
    """

    attention: WindowRegions
    kv: RegionHandle
    indexer: IndexerRegions
    indices: RegionHandle
    compressors: tuple[CompressorRegions, CompressorRegions]
    kept: Format


def declare(recorder: Recorder, layer: int, shape: CsaShape, run: Run) -> CsaRegions:
    """Regions of layer `layer` for all sequences."""
    batch, entries = run.batch, run.most_rows // shape.ratio
    kept = compressed(shape.window.style, shape.dtype, PAGE_ROWS)
    keys = compressed_index(shape.window.style, shape.index_dtype)
    attention = window_attend.declare(recorder, layer, shape.window, run)
    kv = kept.region(recorder, f"layer{layer}.kv", "kv", layer, batch * kept.padded(entries))
    wanted = Kept(
        QUERY_FORMATS[shape.index_dtype],
        keys,
        shape.index_heads,
        picks=shape.top_k,
        most=entries,
        k=shape.top_k,
    )
    own = indexer.declare(recorder, layer, wanted, batch, run.cut)
    rows = Plan("", LATENT, shape.ratio, overlap=True, kept=kept)
    of_keys = Plan("index-", INDEX_DIM, shape.ratio, overlap=True, kept=keys)
    compressors = (
        compressor.declare(recorder, layer, rows, kv, batch),
        compressor.declare(recorder, layer, of_keys, own.index, batch),
    )
    return CsaRegions(attention, kv, own, own.indices, compressors, kept)


def fill(regions: CsaRegions, generator: torch.Generator) -> None:
    """Random normal queries, rows, keys, sinks and states; results are zero."""
    window_attend.fill(regions.attention, generator)
    regions.kept.fill(regions.kv, generator)
    indexer.fill(regions.indexer, generator)
    for one in regions.compressors:
        compressor.fill(one, generator)


def step(
    recorder: Recorder,
    layer: int,
    shape: CsaShape,
    regions: CsaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: Sequence[Int64s] | None = None,
) -> None:
    """One decode step of one layer; `selected` holds entries of each sequence, ascending, or None: scores."""
    r, units = regions, run.units
    for one in r.compressors:
        compressor.step(recorder, layer, one, lengths)
    entries = [tokens // shape.ratio for tokens in lengths]
    choices = [Choice(count) for count in entries]
    indexer.step(recorder, layer, r.indexer, entries, choices, units, selected, run.cut)
    counts = [min(count, shape.top_k) for count in entries]
    rows = Rows(r.kv, r.kept, r.indices, None, selected, len(lengths))
    window_attend.step(recorder, layer, "csa-attend", shape.window, r.attention, lengths, units, rows, counts)
