"""A layer of DeepSeek V4 that attends to its window alone; the kernel is `window_attend`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads import window_attend
from workloads.facts import Fact
from workloads.record import Recorder
from workloads.run import Run
from workloads.shapes import WindowShape
from workloads.window_attend import WindowRegions

FACTS = window_attend.FACTS


def facts_of(shape: WindowShape) -> tuple[Fact, ...]:
    """What a layer of this shape rests on beside FACTS."""
    return (window_attend.V41_FACT,) if shape.style == "v4.1" else ()


def declare(recorder: Recorder, layer: int, shape: WindowShape, run: Run) -> WindowRegions:
    """Regions of layer `layer` for all sequences."""
    return window_attend.declare(recorder, layer, shape, run)


def fill(regions: WindowRegions, generator: torch.Generator) -> None:
    """Random normal queries, rows and sinks; results are zero."""
    window_attend.fill(regions, generator)


def step(
    recorder: Recorder,
    layer: int,
    shape: WindowShape,
    regions: WindowRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; `lengths` are the tokens of each sequence, the new one included."""
    r, tokens = window_attend.per_token(regions, len(lengths), run.draft), run.each_token(lengths)
    window_attend.step(recorder, layer, "window-attend", shape, r, tokens, run.units)
