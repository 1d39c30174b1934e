"""Linear attention by the gated delta rule: what KDA and GDN decode share.

A short convolution of q, k and v, then one step of the rule on an fp32 state, for every value head:

    S <- S diag(exp(g));  S <- S + beta (v - S k) k^T;  o = scale S q

q and k are normalised; value heads may share a key head. Both kernels work in place, so a write waits for
its block's reads. Taken from FLA's and vLLM's Triton kernels: the recurrence runs one program for some
value columns, head and sequence, on a state laid out value-major, so that a program's tile is some rows of
512 bytes in one piece; the programs of a head read the same q, k and gate. The convolution runs one program
for 256 channels and sequence, on a conv state of 3 taps x channels. Left out: the gate's own activation (the
decay is given as logarithm beside beta, one row a head), the output's norm and gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid, silu

from workloads.arithmetic import arithmetic
from workloads.grid import Shape, each, even, one
from workloads.record import Recorder, RegionHandle
from workloads.shapes import CHANNELS, DIM
from workloads.tensors import normal

TAPS = 3  # earlier tokens that the convolution keeps
CONV_BLOCKS_PER_UNIT = 16
LOADS_IN_FLIGHT = 8


@dataclass(frozen=True)
class Rule:
    """A kind of linear attention and how its recurrence is cut.

    family           of the recurrence's kernel; the convolution's is `family`-conv
    key_heads, value_heads   heads of 128 dimensions; consecutive value heads share a key head
    decays           logarithms of decays that a head has: 128, one a key channel, or 1
    columns          value columns of a program
    blocks_per_unit  programs that a unit holds
    tile_rule        name of the cut
    convolutions     launches of the convolution: one for all channels, or q, k and v apart
    """

    family: str
    key_heads: int
    value_heads: int
    decays: int
    columns: int
    blocks_per_unit: int
    tile_rule: str
    convolutions: tuple[str, ...] = ("",)

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k and v of all heads."""
        return (2 * self.key_heads + self.value_heads) * DIM

    @property
    def pieces(self) -> int:
        """Programs of a value head."""
        return DIM // self.columns

    @property
    def sharing(self) -> int:
        """Programs that read the same q and k."""
        return self.value_heads // self.key_heads * self.pieces


@dataclass(frozen=True)
class DeltaRegions:
    """Regions of one layer, all [batch x ...]; those of tokens [batch x draft x ...].

    x            [segments] pieces of 256 channels: the projections' q, k, v of a new token
    conv         [3 taps x segments] the same for the three tokens before them
    conv_weight  [segments] (not x batch) 4 taps x 256 channels
    qkv          [channels / columns] convolved q, then k, then v, in pieces of a program's columns
    gate         [value heads] logarithms of decays, and beta
    state        [draft x value heads x 128] a value column's 128 key channels, after each token
    out          [value heads x programs] pieces of a program's columns
    """

    x: RegionHandle
    conv: RegionHandle
    conv_weight: RegionHandle
    qkv: RegionHandle
    gate: RegionHandle
    state: RegionHandle
    out: RegionHandle


def declare(recorder: Recorder, layer: int, rule: Rule, batch: int, draft: int = 1) -> DeltaRegions:
    """Regions of layer `layer` for `batch` sequences of `draft` new tokens each."""
    assert rule.channels % CHANNELS == 0, f"{rule.channels} channels: a convolution program takes {CHANNELS}"
    assert rule.value_heads % rule.key_heads == 0, f"{rule.value_heads} value heads of {rule.key_heads} keys"
    segments, tokens = rule.channels // CHANNELS, batch * draft
    heads = tokens * rule.value_heads
    piece_bytes = rule.columns * 2

    def region(name: str, kind: str, rows: int, row_bytes: int, dtype: str) -> RegionHandle:
        return recorder.region(f"layer{layer}.{name}", kind, layer, rows, row_bytes, dtype)

    return DeltaRegions(
        x=region("qkv-in", "activation", tokens * segments, CHANNELS * 2, "bf16"),
        conv=region("conv", "state", batch * segments * TAPS, CHANNELS * 2, "bf16"),
        conv_weight=region("conv-weight", "weights", segments, (TAPS + 1) * CHANNELS * 2, "bf16"),
        qkv=region("qkv", "activation", tokens * rule.channels // rule.columns, piece_bytes, "bf16"),
        gate=region("gate", "activation", heads, (rule.decays + 1) * 4, "fp32"),
        state=region("state", "state", heads * DIM, DIM * 4, "fp32"),
        out=region("out", "output", heads * rule.pieces, piece_bytes, "bf16"),
    )


def fill(regions: DeltaRegions, generator: torch.Generator) -> None:
    """Random normal inputs and states, decays and beta between 0 and 1; results are zero."""
    for handle in (regions.x, regions.conv, regions.conv_weight, regions.state):
        handle.fill(normal(handle.shape, handle.dtype, generator))
    gate = normal(regions.gate.shape, torch.float32, generator)
    regions.gate.fill(torch.cat([logsigmoid(gate[:, :-1] + 3), gate[:, -1:].sigmoid()], dim=1))
    regions.qkv.zero()
    regions.out.zero()


def step(
    recorder: Recorder, layer: int, rule: Rule, regions: DeltaRegions, batch: int, draft: int = 1
) -> None:
    """One decode step of one layer: `draft` new tokens of each sequence, the state kept after each."""
    convolve_all(recorder, layer, rule, regions, batch, draft)
    _recur(recorder, layer, rule, regions, batch, draft)


def convolve_all(
    recorder: Recorder, layer: int, rule: Rule, regions: DeltaRegions, batch: int, draft: int = 1
) -> None:
    """The convolutions before the rule's step, a launch each."""
    for number in range(len(rule.convolutions)):
        _convolve(recorder, layer, rule, regions, (batch, draft), number)


def _convolve(
    recorder: Recorder, layer: int, rule: Rule, regions: DeltaRegions, of: tuple[int, int], number: int
) -> None:
    """Launch `number` of the convolution: an equal part of the channels; `of` (sequences, tokens each)."""
    batch, draft = of
    segments, family = rule.channels // CHANNELS, f"{rule.family}-conv"
    name, share = f"layer{layer}.{family}{rule.convolutions[number]}", segments // len(rule.convolutions)
    launch = Shape(
        tile_rows=TAPS,
        tile_bytes=CHANNELS * 2,
        tiles_in_flight=LOADS_IN_FLIGHT,
        blocks_per_unit=CONV_BLOCKS_PER_UNIT,
        flops_per_tile=2 * CHANNELS * (TAPS + 1),
        flops_unit="fp32",
        tile_rule="causal-conv1d: a block per sequence and 256 channels",
    )
    pieces = CHANNELS // rule.columns
    with recorder.kernel(name, family, layer, share * batch, launch):
        for block in range(share):  # the blocks of all sequences for these channels
            segment, first, last = number * share + block, block * batch, block * batch + batch - 1
            weight = regions.conv_weight.load(segment, 1, each(first, last))
            x = regions.x.load(segment, batch * draft, even(first, last, draft), stride=segments)
            taps = regions.conv.load_each(
                segment, TAPS, one(first), batch, TAPS * segments, stride=segments, worked=True
            )
            convolved, shifted = convolve(taps, x, weight, rule.columns)
            regions.conv.store_each(segment, shifted, one(first), TAPS * segments, stride=segments)
            for token in range(draft):
                row = (token * segments + segment) * pieces
                regions.qkv.store_each(row, convolved[:, token], one(first), draft * segments * pieces)


def _recur(recorder: Recorder, layer: int, rule: Rule, regions: DeltaRegions, batch: int, draft: int) -> None:
    keys, heads, pieces = rule.key_heads, rule.value_heads, rule.pieces
    programs, rows = heads * pieces, rule.channels // rule.columns
    launch = Shape(
        tile_rows=rule.columns,
        tile_bytes=rule.columns * DIM * 4,
        tiles_in_flight=LOADS_IN_FLIGHT,
        blocks_per_unit=rule.blocks_per_unit,
        flops_per_tile=7 * rule.columns * DIM * draft,
        flops_unit="fp32",
        blocks_sharing=rule.sharing,
        tile_rule=rule.tile_rule,
    )
    with recorder.kernel(f"layer{layer}.{rule.family}", rule.family, layer, programs * batch, launch):
        for sequence in range(batch):
            first, last = sequence * programs, sequence * programs + programs - 1
            of_a_key, of_a_head = each(first, first + rule.sharing - 1), each(first, first + pieces - 1)
            mine, all_rows = even(first, last, rule.columns), heads * DIM
            for token in range(sequence * draft, (sequence + 1) * draft):
                q = regions.qkv.load_each(token * rows, pieces, of_a_key, keys, pieces)
                k = regions.qkv.load_each(token * rows + keys * pieces, pieces, of_a_key, keys, pieces)
                gate = regions.gate.load_each(token * heads, 1, of_a_head, heads, 1)
                v = regions.qkv.load(token * rows + 2 * keys * pieces, programs, even(first, last, 1))
                if token == sequence * draft:
                    state = regions.state.load(token * all_rows, all_rows, mine, worked=True)
                state, out = delta(q, k, v, gate, state)
                regions.out.store(token * programs, out, even(first, last, 1))
                regions.state.store(token * all_rows, state, mine, dependent=False)  # beside the output


@arithmetic
def convolve(
    taps: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """taps [batch, 3, 256], x [batch x draft, 256], weight [1, 4 x 256]: SiLUs of sums, and shifted taps.

    Returns [batch, draft, pieces, columns] and [batch, 3, 256].
    """
    window = torch.cat([taps, x.reshape(len(taps), -1, CHANNELS)], dim=1)
    parts = window.unfold(1, TAPS + 1, 1).float()  # [batch, draft, 256, 4]
    summed = (parts * weight.float().reshape(TAPS + 1, CHANNELS).T).sum(-1)
    return silu(summed).unflatten(2, (-1, columns)), window[:, -TAPS:]


@arithmetic
def delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule of one token.

    q, k [key heads, ...128], v [...value heads x 128], gate [value heads, 1, decays + 1],
    state [value heads x 128, 128] in fp32. Returns the new state and the output [value heads, 128].
    """
    heads = len(gate)
    q, k = (_unit(vector.float().reshape(len(vector), DIM, 1)) for vector in (q, k))
    q, k = (vector.repeat_interleave(heads // len(vector), dim=0) for vector in (q, k))
    decay, beta = gate[:, :, :-1].exp(), gate[:, :, -1:]
    decayed = state.reshape(heads, DIM, DIM) * decay
    error = (v.float().reshape(heads, DIM, 1) - decayed @ k) * beta
    updated = decayed + error * k.mT
    return updated.reshape(heads * DIM, DIM), (updated @ q)[:, :, 0] * DIM**-0.5


def _unit(vector: torch.Tensor) -> torch.Tensor:
    """Each head's vector [heads, 128, 1] divided by its length."""
    return vector / (vector.square().sum(1, keepdim=True) + 1e-6).sqrt()
