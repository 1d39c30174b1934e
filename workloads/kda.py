"""KDA decode (Kimi delta attention): the gated delta rule with a decay for each key channel.

The kernels are in `delta_rule`; this is how FLA cuts the recurrence: 32 value columns a program of 4 warps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads import delta_rule
from workloads.delta_rule import DeltaRegions, Rule
from workloads.facts import Fact
from workloads.record import Recorder
from workloads.run import Run
from workloads.shapes import DIM, KdaShape

COLUMNS = 32
BLOCKS_PER_UNIT = 4

FACTS = (
    Fact(
        "kernel.kda.columns",
        "32 value columns a program",
        "stated",
        "FLA fused_recurrent KDA: BV = 32, 4 warps",
    ),
    Fact(
        "kernel.kda.state", "fp32, value-major", "stated", "FLA KimiDeltaAttention: state_v_first, fp32 state"
    ),
    Fact(
        "kernel.kda.blocks_per_unit",
        "4",
        "measured",
        "65,536 registers / (120 x 128 threads): fla-core 0.6.0 on an H200, torch 2.11; clocks read by each "
        "program show four beside each other, and never more",
    ),
    Fact(
        "kernel.kda.tiles_in_flight", "8", "assumed", "a program asks for all that it reads before it waits"
    ),
    Fact(
        "kernel.kda-conv.channels",
        "256 channels a program",
        "stated",
        "vLLM causal_conv1d_update: BLOCK_N = 256",
    ),
    Fact("kernel.kda-conv.blocks_per_unit", "16", "assumed", "2048 threads of a unit / 128 of a block"),
    Fact(
        "kernel.kda-conv.tiles_in_flight",
        "8",
        "assumed",
        "a program asks for all that it reads before it waits",
    ),
)


def rule_of(shape: KdaShape) -> Rule:
    """How a layer's recurrence is cut."""
    tile_rule = "fla recurrent: a block per sequence, head and 32 value columns"
    apart = ("-q", "-k", "-v")
    return Rule("kda", shape.heads, shape.heads, DIM, COLUMNS, BLOCKS_PER_UNIT, tile_rule, apart)


def declare(recorder: Recorder, layer: int, shape: KdaShape, run: Run) -> DeltaRegions:
    """Regions of layer `layer` for all sequences."""
    return delta_rule.declare(recorder, layer, rule_of(shape), run.batch, run.draft)


def fill(regions: DeltaRegions, generator: torch.Generator) -> None:
    """Random normal inputs and states, decays and beta between 0 and 1; results are zero."""
    delta_rule.fill(regions, generator)


def step(
    recorder: Recorder,
    layer: int,
    shape: KdaShape,
    regions: DeltaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; how long the sequences are does not matter."""
    delta_rule.step(recorder, layer, rule_of(shape), regions, len(lengths), run.draft)
