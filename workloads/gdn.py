"""GDN decode (gated delta net): the gated delta rule with one decay a value head.

The kernels are in `delta_rule`; this is how FLA cuts the recurrence: 8 value columns a program of 1 warp, so
16 programs a value head; the programs of all value heads of a key head read the same q and k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads import delta_rule
from workloads.delta_rule import DeltaRegions, Rule
from workloads.facts import Fact
from workloads.record import Recorder
from workloads.run import Run
from workloads.shapes import GdnShape

COLUMNS = 8
BLOCKS_PER_UNIT = 32

FACTS = (
    Fact(
        "kernel.gdn.columns",
        "8 value columns a program",
        "stated",
        "FLA fused_recurrent gated delta rule: BV = min(8, V), 1 warp",
    ),
    Fact("kernel.gdn.state", "fp32, value-major", "stated", "vLLM mamba_utils: GDN state (heads, Dv, Dk)"),
    Fact(
        "kernel.gdn.blocks_per_unit",
        "32",
        "measured",
        "clocks read by each program on an H200: up to 32 beside each other, the most that it holds",
    ),
    Fact(
        "kernel.gdn.tiles_in_flight", "8", "assumed", "a program asks for all that it reads before it waits"
    ),
    Fact(
        "kernel.gdn-conv.channels",
        "256 channels a program",
        "stated",
        "vLLM causal_conv1d_update: BLOCK_N = 256",
    ),
    Fact("kernel.gdn-conv.blocks_per_unit", "16", "assumed", "2048 threads of a unit / 128 of a block"),
    Fact(
        "kernel.gdn-conv.tiles_in_flight",
        "8",
        "assumed",
        "a program asks for all that it reads before it waits",
    ),
)


def rule_of(shape: GdnShape) -> Rule:
    """How a layer's recurrence is cut."""
    tile_rule = "fla recurrent: a block per sequence, value head and 8 value columns"
    return Rule("gdn", shape.key_heads, shape.value_heads, 1, COLUMNS, BLOCKS_PER_UNIT, tile_rule)


def declare(recorder: Recorder, layer: int, shape: GdnShape, run: Run) -> DeltaRegions:
    """Regions of layer `layer` for all sequences."""
    return delta_rule.declare(recorder, layer, rule_of(shape), run.batch, run.draft)


def fill(regions: DeltaRegions, generator: torch.Generator) -> None:
    """Random normal inputs and states, decays and beta between 0 and 1; results are zero."""
    delta_rule.fill(regions, generator)


def step(
    recorder: Recorder,
    layer: int,
    shape: GdnShape,
    regions: DeltaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; how long the sequences are does not matter."""
    delta_rule.step(recorder, layer, rule_of(shape), regions, len(lengths), run.draft)
