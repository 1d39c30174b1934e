"""Matrix products of few tokens: weights are read once, tile by tile, in bf16 or in blocks of fp8.

Computes x W^T for the tokens of a step. In bf16 as cuBLAS does it on Hopper, in fp8 as DeepGEMM does
(`linear_cut`): a block takes tiles of outputs, walks the inputs in pieces of 128 bytes with several in
flight, and reads all tokens' inputs, those of a cluster each a share; where inputs are split, partial
sums go out in fp32 and a pass of its own adds them. fp8 weights have a scale for 128 x 128, fp8 inputs
one for 128 values, made by a pass before. Weights lie as blocks take them: [matrices, splits, outputs,
inputs of a split] in rows of 128 bytes. Left out: that a row of a real matrix lies in one piece, clusters
that share inputs, and that many tokens are several tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workloads import linear_cut
from workloads.activations import Rows, kernel_name, row_launch, shape_at
from workloads.arithmetic import arithmetic
from workloads.codes import BIAS, E4M3_MAX, quantise
from workloads.facts import Fact
from workloads.grid import Blocks, Shape, each, even
from workloads.linear_cut import STEP_BYTES, Cut, cut_of
from workloads.models.matrices import BITS, GROUP, SCALED, Matrix
from workloads.record import Recorder, RegionHandle
from workloads.tensors import normal

LEAST_TOKENS = 8  # of a tile
SUMS = 512  # values of a block that adds splits
GROUPS = 16  # of 128 values: of a block that makes them fp8
SEVERAL = 16  # tokens from which blocks ask for inputs and weights in turns
HEADS_COST, FEW_COST = "heads", "linear-few"  # of several matrices at once, of one with few outputs
FEW = 1536  # outputs up to which cuBLAS splits inputs as its names do not say
CODED_ROW = SCALED + 4  # bytes of 128 coded inputs and their scale

FACTS = (
    *linear_cut.FACTS,
    Fact("kernel.split-reduce.block", "512 values", "assumed", "cublasLt splitKreduce_kernel<32, 16>"),
    Fact("kernel.quantise.block", "16 groups of 128 values", "stated", "vLLM per_token_group_quant_fp8"),
)


@dataclass(frozen=True)
class Linear:
    """A matrix in a trace.

    weights  [count x split x n x k / split] in rows of 128 bytes
    scales   [count x n / 128] rows of k / 128 fp32; of fp4 [count x n] rows of k / 32 bytes; None in bf16
    """

    matrix: Matrix
    dtype: str
    cut: Cut
    weights: RegionHandle
    scales: RegionHandle | None

    @property
    def takes_coded(self) -> bool:
        """Whether its inputs are fp8: those of fp8 weights; fp4 weights are widened to the inputs' bf16."""
        return self.dtype == "fp8"

    def bytes_of(self, inputs: int) -> int:
        """Bytes of so many inputs of an output."""
        return inputs * BITS[self.dtype] // 8

    @property
    def partials(self) -> int:
        """fp32 values of a token's partial sums."""
        return self.cut.split * self.matrix.n if self.cut.split > 1 else 0


def declare(
    recorder: Recorder, layer: int, matrix: Matrix, weights_dtype: str, units: int, tokens: int
) -> Linear:
    """The region of a matrix, and of its scales; `tokens` of a step."""
    dtype = matrix.dtype(weights_dtype)
    name = kernel_name(layer, f"w-{matrix.name}")
    row = matrix.k * BITS[dtype] // 8
    assert row % STEP_BYTES == 0, f"{name}: {matrix.k} inputs are not whole pieces of 128 bytes"
    cut = cut_of(matrix.n, matrix.k, matrix.count, dtype, units, tokens)
    scales = None
    if dtype == "fp8":
        count, size = matrix.count * -(-matrix.n // SCALED), matrix.k // SCALED * 4
        scales = recorder.region(f"{name}-scale", "weights", layer, count, size, "fp32")
    elif dtype == "fp4":
        count, size = matrix.count * matrix.n, matrix.k // GROUP
        scales = recorder.region(f"{name}-scale", "weights", layer, count, size, "bytes")
    coded = {"bf16": "bf16", "fp8": "fp8_e4m3", "fp4": "bytes"}[dtype]
    rows = matrix.count * matrix.n * row // STEP_BYTES
    weights = recorder.region(name, "weights", layer, rows, STEP_BYTES, coded)
    return Linear(matrix, dtype, cut, weights, scales)


def fill(linear: Linear, generator: torch.Generator) -> None:
    """Random normal weights, of a size that keeps outputs like inputs."""
    if linear.dtype == "fp4":
        _fill_fp4(linear, generator)
        return
    values = normal(linear.weights.shape, torch.float32, generator)
    if linear.scales is None:
        linear.weights.fill(values * linear.matrix.k**-0.5)
    else:
        # What lies beyond the largest number of fp8 becomes that number in torch 2.13, NaN in 2.11.
        linear.weights.fill((values * 100).clamp(-E4M3_MAX, E4M3_MAX))
        shape = linear.scales.shape
        drawn = torch.rand(shape, generator=generator, device=generator.device)
        linear.scales.fill((drawn + 0.5) / 100 * linear.matrix.k**-0.5)


def _fill_fp4(linear: Linear, generator: torch.Generator) -> None:
    """Any e2m1 numbers, whose mean square is 8.56, and the power of two that makes outputs like inputs."""
    assert linear.scales is not None, "fp4 has scales"
    device, power = generator.device, round(BIAS - math.log2(8.56 * linear.matrix.k) / 2)
    linear.weights.fill(torch.randint(0, 256, linear.weights.shape, generator=generator, device=device))
    linear.scales.fill(torch.full(linear.scales.shape, power, device=device))


def quantised(recorder: Recorder, layer: int, name: str, x: Rows, coded: Rows, tokens: int) -> Rows:
    """Inputs in fp8 with a scale for 128 values: the first rows of `coded`, 132 bytes each."""
    to = Rows(coded.handle, x.width // SCALED)
    blocks = -(-tokens * to.pieces // GROUPS)
    launch, at = row_launch("quantise: a block per 16 groups of 128"), shape_at(tokens, x.width)
    with recorder.kernel(kernel_name(layer, f"{name}-quantise"), "quantise", layer, blocks, launch, at=at):
        values = x.load(tokens, even(0, blocks - 1, 1))
        to.store(code(values), even(0, blocks - 1, 1))
    return to


def product(
    recorder: Recorder,
    layer: int,
    linear: Linear,
    x: Rows,
    outs: Sequence[Rows],
    tokens: int,
    partial: RegionHandle | None = None,
    finish: Callable[..., Any] | None = None,
    beside: Sequence[Rows] = (),
) -> None:
    """Outputs of all tokens, their columns one after another in `outs`.

    x        inputs: coded where the weights are fp8 (`quantised`)
    partial  rows of partial sums, where inputs are split
    finish   what is made of the products, and of rows `beside` them, before they are written
    """
    matrix, cut = linear.matrix, linear.cut
    family = "linear" if linear.scales is None else "linear-fp8"
    name, split = kernel_name(layer, matrix.name), cut.split > 1
    launch, part = _launch(linear, tokens, partial if split else None), partial if split else None
    cost = _program(linear)
    at = {"matrices": matrix.count, "outputs": matrix.n, "inputs": matrix.k, "rows": tokens}
    with recorder.kernel(name, family, layer, cut.blocks, launch, part, cost=cost, at=at):
        every = each(0, cut.blocks - 1)
        scales = None
        if linear.scales is not None:
            scales = linear.scales.load(0, linear.scales.region.rows, even(0, cut.blocks - 1, 1))
        given, weights, parts = _walked(linear, x, tokens)
        sums = multiply(given, weights, scales, matrix.count, matrix.n, matrix.k, cut.split * parts)
        sums = sums if parts == 1 else together(sums, parts)
        if not split:
            more = [rows.load(tokens, every) for rows in beside]
            _write(sums[0], more, outs, finish, cut.blocks)
            return
        assert partial is not None, f"{name} is split and has no partial sums"
        partial.store(0, sums, even(0, cut.blocks - 1, 1))
    _reduce(recorder, layer, linear, outs, tokens, partial, finish, beside)


def _program(linear: Linear) -> str:
    """Whose costs a product has; "" for those of its family."""
    if linear.scales is not None:
        return ""
    return HEADS_COST if linear.matrix.count > 1 else FEW_COST if linear.matrix.n <= FEW else ""


def has_memset(linear: Linear) -> bool:
    """Whether cuBLAS clears a counter before: where units take several tiles each."""
    tiles = linear.matrix.count * -(-linear.matrix.n // linear.cut.tile) * linear.cut.split
    return linear.scales is None and tiles > linear.cut.blocks


def _steps(linear: Linear) -> int:
    """Pieces of 128 bytes that the inputs of an output are."""
    return linear.matrix.k * linear.weights.dtype.itemsize // STEP_BYTES


def _walked(linear: Linear, x: Rows, tokens: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Inputs [tokens, ...], weights, and in how many turns a block asks for both: the weights lie in as many
    parts of each split.
    """
    cut, blocks, rows = linear.cut, linear.cut.blocks, linear.weights.region.rows
    grain = cut.tile * _steps(linear) // cut.split
    parts = _turns(linear, x, tokens)
    if parts == 1:
        given = _inputs(linear, x, tokens)
        return given, linear.weights.load(0, rows, even(0, blocks - 1, grain), worked=True), 1
    inputs, weights = [], []
    share, turns = blocks // cut.split, cut.split * parts
    pieces = x.pieces // turns
    for turn in range(turns):
        first = turn // parts * share
        inputs.append(_columns(x.part(turn * pieces, pieces), tokens, cut, first, share))
        mine = even(first, first + share - 1, max(1, grain // parts))
        weights.append(linear.weights.load(turn * (rows // turns), rows // turns, mine, worked=True))
    return torch.cat(inputs, dim=1), torch.cat(weights), parts


def _turns(linear: Linear, x: Rows, tokens: int) -> int:
    """Turns in which a block asks for inputs and weights: one while tokens are few."""
    split = linear.cut.split
    if tokens < SEVERAL or linear.matrix.count > 1 or x.pieces % split:
        return 1
    pieces, steps = x.pieces // split, _steps(linear) // split
    return next(turns for turns in (4, 3, 2, 1) if pieces % turns == 0 and steps % turns == 0)


def _inputs(linear: Linear, x: Rows, tokens: int) -> torch.Tensor:
    """Inputs [tokens, ...]: each block reads those of its split; of several matrices those of its own."""
    cut, blocks = linear.cut, linear.cut.blocks
    if linear.matrix.count > 1:
        return x.load(tokens, even(0, blocks - 1, 1))
    splits = 1 if x.pieces % cut.split else cut.split
    share, pieces = blocks // splits, x.pieces // splits
    parts = [_shared(x.part(at * pieces, pieces), tokens, cut, at * share, share) for at in range(splits)]
    return torch.cat(parts, dim=1)


def _shared(x: Rows, tokens: int, cut: Cut, first: int, share: int) -> torch.Tensor:
    """Inputs of the blocks first..: each fetches those of some tokens for all blocks of its cluster."""
    ranks = cut.cluster if tokens >= cut.cluster and share >= cut.cluster else 1
    bounds = [(rank * tokens // ranks, (rank + 1) * tokens // ranks) for rank in range(ranks)]
    found = [
        x.load_some(begin, end - begin, _rank(first, share, rank, ranks))
        for rank, (begin, end) in enumerate(bounds)
    ]
    return torch.cat(found)


def _columns(x: Rows, tokens: int, cut: Cut, first: int, share: int) -> torch.Tensor:
    """The same of many tokens: each block fetches some columns of all of them."""
    ranks = min(cut.cluster, share, x.pieces)
    found = [
        x.load_piece(piece, tokens, _rank(first, share, piece * ranks // x.pieces, ranks))
        for piece in range(x.pieces)
    ]
    return torch.cat(found, dim=1)


def _rank(first: int, share: int, rank: int, ranks: int) -> Blocks:
    """Blocks of one place in their clusters, `share` from `first` on."""
    return each(first + rank * share // ranks, first + (rank + 1) * share // ranks - 1)


def _reduce(
    recorder: Recorder,
    layer: int,
    linear: Linear,
    outs: Sequence[Rows],
    tokens: int,
    partial: RegionHandle,
    finish: Callable[..., Any] | None,
    beside: Sequence[Rows],
) -> None:
    """The sums of all splits become outputs."""
    values = tokens * linear.matrix.n
    blocks = -(-values // SUMS)
    launch = row_launch("split reduce: a block per 512 values")
    name = kernel_name(layer, f"{linear.matrix.name}-reduce")
    with recorder.kernel(name, "split-reduce", layer, blocks, launch, partial):
        rows = linear.cut.split * values // partial.width
        found = partial.load(0, rows, even(0, blocks - 1, 1))
        sums = added(found, linear.cut.split, tokens)
        more = [rows.load(tokens, each(0, blocks - 1)) for rows in beside]
        _write(sums, more, outs, finish, blocks)


def _write(
    sums: torch.Tensor,
    more: Sequence[torch.Tensor],
    outs: Sequence[Rows],
    finish: Callable[..., Any] | None,
    blocks: int,
) -> None:
    values = sums if finish is None else finish(sums, *more)
    for rows, columns in zip(outs, values.split([rows.width for rows in outs], dim=1), strict=True):
        rows.store(columns, even(0, blocks - 1, 1))


@arithmetic
def code(values: torch.Tensor) -> torch.Tensor:
    """Values [tokens, width] as bytes [tokens, width / 128 x 132]."""
    latent, scales = quantise(values.float().reshape(len(values), -1, SCALED))
    parts = [part.contiguous().view(torch.uint8) for part in (latent, scales)]
    return torch.cat(parts, dim=2).reshape(len(values), -1)


@arithmetic
def decode(coded: torch.Tensor) -> torch.Tensor:
    """Values [tokens, width] in fp32 of coded ones."""
    rows = coded.reshape(len(coded), -1, CODED_ROW)
    values = rows[:, :, :SCALED].contiguous().view(torch.float8_e4m3fn).float()
    return (values * rows[:, :, SCALED:].contiguous().view(torch.float32)).flatten(1)


@arithmetic
def multiply(
    x: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    count: int,
    n: int,
    k: int,
    split: int,
) -> torch.Tensor:
    """Products [split, tokens, count x n] of x [tokens, count x k] (or coded) with packed weights."""
    given = (x.float() if scales is None else decode(x)).reshape(len(x), count, split, k // split)
    matrix = weights.float().reshape(count, split, n, k // split)
    if scales is not None:
        spread = scales.reshape(count, -1, k // SCALED).repeat_interleave(SCALED, 1)[:, :n]
        spread = spread.repeat_interleave(SCALED, 2).reshape(count, n, split, k // split)
        matrix = matrix * spread.transpose(1, 2)
    return torch.einsum("tcsk,csnk->stcn", given, matrix).flatten(2)


@arithmetic
def together(sums: torch.Tensor, parts: int) -> torch.Tensor:
    """Sums [split, tokens, values] of those of the parts of each split."""
    return sums.unflatten(0, (-1, parts)).sum(1)


@arithmetic
def added(partial: torch.Tensor, split: int, tokens: int) -> torch.Tensor:
    """Sums [tokens, values] of the partial sums of all splits."""
    return partial.reshape(split, tokens, -1).sum(0)


def _launch(linear: Linear, tokens: int, partial: RegionHandle | None) -> Shape:
    cut = linear.cut
    inputs = STEP_BYTES // linear.weights.dtype.itemsize
    return Shape(
        tile_rows=cut.tile,
        tile_bytes=cut.stages * -(-tokens // cut.cluster) * STEP_BYTES,  # inputs have buffers of their own
        tiles_in_flight=cut.stages,
        flops_per_tile=2 * cut.tile * inputs * max(LEAST_TOKENS, tokens),
        flops_unit=linear.dtype,
        partial_bytes=0 if partial is None else tokens * linear.matrix.n * 4,
        tile_rule=f"linear: tiles of {cut.tile} outputs, inputs in {cut.split} parts",
    )
