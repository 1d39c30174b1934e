"""Sliding-window attention with sinks: full attention (`gqa`) over the last rows, kept in a ring.

The row of position p stands in place p mod window, so once a sequence is longer than the window its ring is
read whole, in the order of places. A sink is a learnt logit of each query head that joins the sum of the
softmax and brings no value. Taken from FlashAttention-3's local attention: its tile for windows; a window of
at most 4 tiles is not split. Left out: that vLLM keeps the window in pages of the cache, so that it may
touch one page more, and the write of the new row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads import gqa
from workloads.facts import Fact
from workloads.gqa import GqaRegions
from workloads.record import Recorder
from workloads.run import Run
from workloads.shapes import SwaShape

FACTS = (
    *gqa.FACTS,
    Fact(
        "kernel.swa.ring",
        "a ring of as many rows as the window",
        "assumed",
        "engines free pages that leave it",
    ),
    Fact("kernel.swa.sink", "joins the first split's sum", "assumed", "vLLM's FlashAttention-3 with sinks"),
)


def declare(recorder: Recorder, layer: int, shape: SwaShape, run: Run) -> GqaRegions:
    """Regions of layer `layer` for all sequences."""
    names = "window-k", "window-v"
    return gqa.regions_of(
        recorder, layer, shape.attention, run, [shape.window] * run.batch, names, sink=shape.sink
    )


def fill(regions: GqaRegions, generator: torch.Generator) -> None:
    """Random normal queries, keys, values and sinks; results are zero."""
    gqa.fill(regions, generator)


def step(
    recorder: Recorder,
    layer: int,
    shape: SwaShape,
    regions: GqaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; `lengths` are the tokens of each sequence, the new one included."""
    rows = [min(tokens, shape.window) for tokens in lengths]
    tile = gqa.tile_of(shape.attention, local=True)
    gqa.attend_all(recorder, layer, "swa", shape.attention, regions, rows, run.units, tile)
