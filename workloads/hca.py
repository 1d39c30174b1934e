"""HCA decode (DeepSeek V4's heavily compressed attention): the window, and every compressed row.

A compressor makes one row of 128 tokens (`compressor`); the attention reads all of them (`window_attend`).
Pages of the compressed cache stand for 256 tokens, so that they hold two rows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workloads import compressor, window_attend
from workloads.compressor import CompressorRegions, Plan
from workloads.facts import Fact
from workloads.formats import LATENT, Format, compressed
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import HcaShape
from workloads.window_attend import AllRows, WindowRegions

PAGE_TOKENS = 256

FACTS = (
    Fact("kernel.hca.page", "256 tokens", "stated", "vLLM deepseek_v4: three pools of pages"),
    *compressor.FACTS,
    *window_attend.FACTS,
)


@dataclass(frozen=True)
class HcaRegions:
    """Regions of one layer: the attention's, compressed rows [batch x padded entries], the compressor's."""

    attention: WindowRegions
    kv: RegionHandle
    compressor: CompressorRegions
    kept: Format


def declare(recorder: Recorder, layer: int, shape: HcaShape, run: Run) -> HcaRegions:
    """Regions of layer `layer` for all sequences."""
    kept = compressed(shape.window.style, shape.dtype, PAGE_TOKENS // shape.ratio)
    sizes = [kept.padded(tokens // shape.ratio) for tokens in run.rows]
    attention = window_attend.declare(recorder, layer, shape.window, run)
    kv = kept.region(recorder, f"layer{layer}.kv", "kv", layer, sum(sizes)).dealt(sizes)
    plan = Plan("", LATENT, shape.ratio, overlap=False, kept=kept, split=True)
    maker = compressor.declare(recorder, layer, plan, kv, run.batch, run.draft)
    return HcaRegions(attention, kv, maker, kept)


def fill(regions: HcaRegions, generator: torch.Generator) -> None:
    """Random normal queries, rows, sinks and states; results are zero."""
    window_attend.fill(regions.attention, generator)
    regions.kept.fill(regions.kv, generator)
    compressor.fill(regions.compressor, generator)


def step(
    recorder: Recorder,
    layer: int,
    shape: HcaShape,
    regions: HcaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; `lengths` are the tokens of each sequence, the new one included."""
    sequences, lengths = len(lengths), run.each_token(lengths)
    compressor.step(recorder, layer, regions.compressor, lengths)
    rows = AllRows(regions.kv.per_token(sequences, run.draft), regions.kept, len(lengths))
    attention = window_attend.per_token(regions.attention, sequences, run.draft)
    counts = [tokens // shape.ratio for tokens in lengths]
    window_attend.step(
        recorder, layer, "hca-attend", shape.window, attention, lengths, run.units, rows, counts
    )
