"""KDA decode: a short convolution of q, k and v, then one step of the gated delta rule on an fp32 state.

For every head, with a decay for each key channel:

    S <- S diag(exp(g));  S <- S + beta (v - S k) k^T;  o = scale S q

q and k are normalised. Both kernels work in place, so a write waits for its block's reads. Taken from
FLA's and vLLM's Triton kernels: the recurrence runs one program of 4 warps for 32 value columns, head
and sequence, on a state laid out value-major, so that a program's tile is 32 rows of 512 bytes in one
piece; the 4 programs of a head read the same q, k and gate. The convolution runs one program for 256
channels and sequence, on a conv state of 3 taps x channels. Left out: the gate's own activation
(the decay is given as logarithm beside beta, one row a head), the output's norm and gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid, silu

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.grid import Shape, each, even, one
from workloads.record import Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import CHANNELS, DIM, KdaShape
from workloads.tensors import normal

COLUMNS = 32  # value columns of a program
PROGRAMS = DIM // COLUMNS  # programs of a head
TAPS = 3  # earlier tokens that the convolution keeps
BLOCKS_PER_UNIT = 6
CONV_BLOCKS_PER_UNIT = 16
LOADS_IN_FLIGHT = 8

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
        "6",
        "measured",
        "65,536 registers / (80 x 128 threads): fla-core 0.6.0 on an H200, triton 3.6, as its profiler shows",
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


@dataclass(frozen=True)
class KdaRegions:
    """Regions of one layer, all [batch x ...].

    x            [segments] pieces of 256 channels: the projections' q, k, v of the new token
    conv         [3 taps x segments] the same for the three tokens before it
    conv_weight  [segments] (not x batch) 4 taps x 256 channels
    qkv          [3 x heads x 4] convolved q, then k, then v, in pieces of 32 channels
    gate         [heads] logarithms of 128 decays, and beta
    state        [heads x 128] a value column's 128 key channels
    out          [heads x 4] pieces of 32 values
    """

    x: RegionHandle
    conv: RegionHandle
    conv_weight: RegionHandle
    qkv: RegionHandle
    gate: RegionHandle
    state: RegionHandle
    out: RegionHandle


def declare(recorder: Recorder, layer: int, shape: KdaShape, run: Run) -> KdaRegions:
    """Regions of layer `layer` for all sequences."""
    assert shape.heads % 2 == 0, f"{shape.heads} heads: a convolution program takes the channels of two"
    heads, segments = run.batch * shape.heads, run.batch * shape.segments

    def region(name: str, kind: str, rows: int, row_bytes: int, dtype: str) -> RegionHandle:
        return recorder.region(f"layer{layer}.{name}", kind, layer, rows, row_bytes, dtype)

    return KdaRegions(
        x=region("qkv-in", "activation", segments, CHANNELS * 2, "bf16"),
        conv=region("conv", "state", segments * TAPS, CHANNELS * 2, "bf16"),
        conv_weight=region("conv-weight", "weights", shape.segments, (TAPS + 1) * CHANNELS * 2, "bf16"),
        qkv=region("qkv", "activation", heads * 3 * PROGRAMS, COLUMNS * 2, "bf16"),
        gate=region("gate", "activation", heads, (DIM + 1) * 4, "fp32"),
        state=region("state", "state", heads * DIM, DIM * 4, "fp32"),
        out=region("out", "output", heads * PROGRAMS, COLUMNS * 2, "bf16"),
    )


def fill(regions: KdaRegions, generator: torch.Generator) -> None:
    """Random normal inputs and states, decays and beta between 0 and 1; results are zero."""
    for handle in (regions.x, regions.conv, regions.conv_weight, regions.state):
        handle.fill(normal(handle.shape, handle.dtype, generator))
    gate = normal(regions.gate.shape, torch.float32, generator)
    regions.gate.fill(torch.cat([logsigmoid(gate[:, :DIM] + 3), gate[:, DIM:].sigmoid()], dim=1))
    regions.qkv.zero()
    regions.out.zero()


def step(
    recorder: Recorder,
    layer: int,
    shape: KdaShape,
    regions: KdaRegions,
    lengths: Sequence[int],
    run: Run,
    selected: None = None,
) -> None:
    """One decode step of one layer; how long the sequences are does not matter."""
    _convolve(recorder, layer, shape, regions, len(lengths))
    _recur(recorder, layer, shape, regions, len(lengths))


def _convolve(recorder: Recorder, layer: int, shape: KdaShape, regions: KdaRegions, batch: int) -> None:
    segments = shape.segments
    launch = Shape(
        tile_rows=TAPS,
        tile_bytes=CHANNELS * 2,
        tiles_in_flight=LOADS_IN_FLIGHT,
        blocks_per_unit=CONV_BLOCKS_PER_UNIT,
        flops_per_tile=2 * CHANNELS * (TAPS + 1),
        flops_unit="fp32",
        tile_rule="causal-conv1d: a block per sequence and 256 channels",
    )
    pieces = CHANNELS // COLUMNS
    with recorder.kernel(f"layer{layer}.kda-conv", "kda-conv", layer, segments * batch, launch):
        for segment in range(segments):  # the blocks of all sequences for these channels
            first, last = segment * batch, segment * batch + batch - 1
            weight = regions.conv_weight.load(segment, 1, each(first, last))
            x = regions.x.load(segment, batch, even(first, last, 1), stride=segments)
            taps = regions.conv.load_each(
                segment, TAPS, one(first), batch, TAPS * segments, stride=segments, worked=True
            )
            convolved, shifted = convolve(taps, x, weight)
            regions.conv.store_each(segment, shifted, one(first), TAPS * segments, stride=segments)
            regions.qkv.store_each(segment * pieces, convolved, one(first), segments * pieces)


def _recur(recorder: Recorder, layer: int, shape: KdaShape, regions: KdaRegions, batch: int) -> None:
    heads, programs = shape.heads, shape.heads * PROGRAMS
    launch = Shape(
        tile_rows=COLUMNS,
        tile_bytes=COLUMNS * DIM * 4,
        tiles_in_flight=LOADS_IN_FLIGHT,
        blocks_per_unit=BLOCKS_PER_UNIT,
        flops_per_tile=7 * COLUMNS * DIM,
        flops_unit="fp32",
        blocks_sharing=PROGRAMS,
        tile_rule="fla recurrent: a block per sequence, head and 32 value columns",
    )
    with recorder.kernel(f"layer{layer}.kda", "kda", layer, programs * batch, launch):
        for sequence in range(batch):
            first, last = sequence * programs, sequence * programs + programs - 1
            row, of_a_head = sequence * 3 * programs, each(first, first + PROGRAMS - 1)
            q = regions.qkv.load_each(row, PROGRAMS, of_a_head, heads, PROGRAMS)
            k = regions.qkv.load_each(row + programs, PROGRAMS, of_a_head, heads, PROGRAMS)
            gate = regions.gate.load_each(sequence * heads, 1, of_a_head, heads, 1)
            v = regions.qkv.load(row + 2 * programs, programs, even(first, last, 1))
            rows = even(first, last, COLUMNS)
            state = regions.state.load(sequence * heads * DIM, heads * DIM, rows, worked=True)
            state, out = delta(q, k, v, gate, state)
            regions.out.store(sequence * programs, out, even(first, last, 1))
            regions.state.store(sequence * heads * DIM, state, rows)


@arithmetic
def convolve(taps: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """taps [batch, 3, 256], x [batch, 256], weight [1, 4 x 256]: SiLU of the sum, and the shifted taps."""
    window = torch.cat([taps, x[:, None]], dim=1)
    summed = (window.float() * weight.float().reshape(TAPS + 1, CHANNELS)).sum(1)
    return silu(summed).reshape(len(x), -1, COLUMNS), window[:, 1:]


@arithmetic
def delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule of one token.

    q, k [heads, ...128], v [...heads x 128], gate [heads, 1, 129], state [heads x 128, 128] in fp32.
    Returns the new state and the output [heads, 128].
    """
    heads = len(gate)
    q, k = (_unit(vector.float().reshape(heads, DIM, 1)) for vector in (q, k))
    decay, beta = gate[:, :, :DIM].exp(), gate[:, :, DIM:]
    decayed = state.reshape(heads, DIM, DIM) * decay
    error = (v.float().reshape(heads, DIM, 1) - decayed @ k) * beta
    updated = decayed + error * k.mT
    return updated.reshape(heads * DIM, DIM), (updated @ q)[:, :, 0] * DIM**-0.5


def _unit(vector: torch.Tensor) -> torch.Tensor:
    """Each head's vector [heads, 128, 1] divided by its length."""
    return vector / (vector.square().sum(1, keepdim=True) + 1e-6).sqrt()
