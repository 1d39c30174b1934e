"""A layer of experts: router, top-k, products of the chosen experts, their sum, beside shared experts.

Taken from vLLM's fused MoE kernels in Triton: a block for 16 (32, 64) rows of one expert and some of its
outputs; blocks of all chosen experts in one launch, first for the gate and up projection, then for the
down projection, which applies the router's weights; while tokens are few each of a token's experts has
blocks of its own, else rows of an expert are brought together by a small launch. So an expert's weights
are read by as many blocks as rows need, from memory once. Experts of other GPUs, and those that cost
nothing, are scored and not multiplied. Left out: the router's correction bias and groups, and blocks of
padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from workloads.activations import Rows, kernel_name, row_launch, shape_at
from workloads.arithmetic import arithmetic
from workloads.codes import from_e2m1, from_ue8m0
from workloads.facts import Fact
from workloads.grid import Shape, each, even
from workloads.linear import Linear, decode
from workloads.linear_cut import STEP_BYTES
from workloads.models.matrices import GROUP, SCALED
from workloads.record import Int64s, Recorder, RegionHandle

SUMS = 512  # values of a block that adds a token's experts
ALIGN_FROM = 4  # rows of experts are brought together from one token in as many experts on

FACTS = (
    Fact(
        "kernel.experts.tile",
        "16 rows x 64 outputs x 128 inputs, 4 stages; 128 x 128 in fp8, 3 stages",
        "assumed",
        "vLLM fused_moe.get_default_config, recalled",
    ),
    Fact("kernel.experts-sum.block", "512 values", "assumed", "torch's reduction: 128 threads of 4 values"),
    Fact("kernel.experts.blocks_per_unit", "2", "assumed", "shared memory of a block, from its tiles"),
    Fact(
        "kernel.experts.align",
        "rows of an expert are brought together from tokens x active x 4 > experts on",
        "stated",
        "vLLM fused_moe",
    ),
)

FP4_FACT = Fact(
    "kernel.experts.fp4",
    "16 rows x 128 outputs x 128 inputs, 4 stages; inputs stay bf16",
    "assumed",
    "vLLM's Marlin kernel for MXFP4 experts, recalled; at the rate of fp4 where a machine has one",
)


class Tile(NamedTuple):
    """Rows, outputs and inputs of a tile, and tiles in flight."""

    rows: int
    outputs: int
    inputs: int
    stages: int


def tile_of(tokens: int, dtype: str) -> Tile:
    """vLLM's tile where no file was tuned for the shape."""
    if dtype == "fp8":
        return Tile(16 if tokens <= 64 else 64, SCALED, SCALED, 3)
    if dtype == "fp4":
        return Tile(16 if tokens <= 64 else 64, 128, 128, 4)
    rows = 16 if tokens <= 32 else 32 if tokens <= 96 else 64 if tokens <= 512 else 128
    return Tile(rows, 64 if tokens <= 64 else 128, 128 if tokens <= 64 else 64, 4 if tokens <= 32 else 3)


@dataclass(frozen=True)
class Chosen:
    """Who goes where: for each expert that is here and chosen, ascending, its (token, place) pairs.

    ids  experts [tokens, active] of each token
    """

    ids: Int64s
    experts: tuple[int, ...]
    pairs: tuple[Int64s, ...]

    @property
    def rows(self) -> list[int]:
        """Rows that each expert has."""
        return [len(pairs) for pairs in self.pairs]


def chosen_of(ids: Int64s, experts: int) -> Chosen:
    """Pairs of the experts below `experts`; a pair is token x active + place."""
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    here, counts = np.unique(flat, return_counts=True)
    ends = np.cumsum(counts)
    found = [
        (int(expert), order[end - count : end])
        for expert, end, count in zip(here, ends, counts, strict=True)
        if expert < experts
    ]
    return Chosen(ids, tuple(expert for expert, _ in found), tuple(pairs for _, pairs in found))


def held(ids: Int64s, experts: int, count: int) -> tuple[Int64s, int]:
    """Chosen experts as the GPU numbers them that has most of them, each GPU `count` in a row; and `count`.

    Those of other GPUs, and those that cost nothing, are numbered from `count` on.
    """
    here = np.unique(ids[ids < experts])
    busiest = int(np.bincount(here // count, minlength=1).argmax())
    own = ids - busiest * count
    return np.where((ids < experts) & (own >= 0) & (own < count), own, count), count


def needs_align(tokens: int, active: int, experts: int) -> bool:
    """Whether rows of an expert are brought together."""
    return tokens * active * ALIGN_FROM > experts


def route(
    recorder: Recorder,
    layer: int,
    logits: Rows,
    ids: RegionHandle,
    scales: RegionHandle,
    tokens: int,
    drawn: Int64s | None,
    *,
    grouped: bool = False,
) -> Int64s:
    """The experts of each token, by score or as `drawn`, and their weights: [tokens, active].

    grouped  by the kernel that chooses groups of experts first
    """
    active = ids.region.rows // tokens
    launch = row_launch("top-k of experts: a warp a token, 4 tokens a block")
    blocks, name, at = -(-tokens // 4), "experts-topk", {"experts": logits.width, "rows": tokens}
    cost = "experts-topk-grouped" if grouped else name
    with recorder.kernel(kernel_name(layer, name), name, layer, blocks, launch, cost=cost, at=at):
        scores = logits.load(tokens, even(0, blocks - 1, logits.pieces))
        given = None if drawn is None or recorder.is_meta else torch.from_numpy(drawn).to(scores.device)
        found, weights = best(scores, active, given)
        ids.store(0, found, even(0, blocks - 1, active))
        scales.store(0, weights, even(0, blocks - 1, active))
    if drawn is not None:
        return drawn
    return np.asarray(found.cpu().numpy(), np.int64)


def align(recorder: Recorder, layer: int, ids: RegionHandle, order: RegionHandle) -> None:
    """Bring the rows of each expert together: pairs in the order of experts."""
    launch = row_launch("align: one block")
    with recorder.kernel(kernel_name(layer, "experts-align"), "experts-align", layer, 1, launch):
        found = ids.load(0, ids.region.rows, even(0, 0, 1))
        order.store(0, sorted_pairs(found), even(0, 0, 1))


def grouped(
    recorder: Recorder,
    layer: int,
    linear: Linear,
    x: Rows,
    lookup: RegionHandle,
    out: RegionHandle,
    chosen: Chosen,
    *,
    first: bool,
    aligned: bool,
    weights: RegionHandle | None = None,
) -> None:
    """One product of all chosen experts: out [tokens x active] rows.

    x        inputs of a token (`first`), or of a pair
    lookup   what blocks look their expert or rows up in: experts of pairs, or (`aligned`) pairs in order
    weights  the router's, applied to the outputs of the second product
    """
    matrix, tokens = linear.matrix, len(chosen.ids)
    tile = tile_of(tokens, linear.dtype)
    across = -(-matrix.n // tile.outputs)
    waves = [-(-rows // tile.rows) if aligned else rows for rows in chosen.rows]
    blocks = max(1, across * sum(waves))
    name, family = kernel_name(layer, matrix.name), "experts-fp4" if linear.dtype == "fp4" else "experts"
    with recorder.kernel(name, family, layer, blocks, _launch(linear, tile), cost="experts"):
        found = lookup.load(0, lookup.region.rows, each(0, blocks - 1))
        made, block = [], 0
        for expert, pairs, wave in zip(chosen.experts, chosen.pairs, waves, strict=True):
            last = block + across * wave - 1
            rows = pairs // chosen.ids.shape[1] if first else pairs
            made.append(_one(linear, tile, x, expert, rows, (block, last)))
            block = last + 1
        values = _placed(recorder, out, chosen, found, made, aligned)
        if weights is not None:
            scale = weights.load(0, weights.region.rows, each(0, blocks - 1))
            values = values * scale.reshape(len(values), 1)
        out.store(0, values, even(0, blocks - 1, 1))


def _one(
    linear: Linear, tile: Tile, x: Rows, expert: int, rows: Int64s, blocks: tuple[int, int]
) -> torch.Tensor:
    """Products [rows, n] of one expert by the blocks first..last."""
    matrix, mine = linear.matrix, each(*blocks)
    pieces = (rows[:, None] * x.pieces + np.arange(x.pieces)).reshape(-1)
    given = x.handle.gather(pieces, mine).reshape(len(rows), x.width)
    share = linear.weights.region.rows // matrix.count
    grain = min(tile.outputs, matrix.n) * (share // matrix.n)
    # Blocks of more rows than a tile holds read the weights again, and those of each pair where rows are not
    # brought together: every wave of them reads all.
    across = -(-matrix.n // tile.outputs)
    scales = None
    for at in range(blocks[0], blocks[1] + 1, across):
        last = at + across - 1
        packed = linear.weights.load(expert * share, share, even(at, last, grain), worked=True)
        if linear.scales is not None and linear.dtype == "fp4":  # of its own outputs
            scales = linear.scales.load(expert * matrix.n, matrix.n, even(at, last, tile.outputs))
    if linear.scales is not None and linear.dtype == "fp8":  # few: a block reads all
        count = linear.scales.region.rows // matrix.count
        scales = linear.scales.load(expert * count, count, mine)
    return times(given, packed, scales, matrix.n, matrix.k)


def _placed(
    recorder: Recorder,
    out: RegionHandle,
    chosen: Chosen,
    found: torch.Tensor,
    made: Sequence[torch.Tensor],
    aligned: bool,
) -> torch.Tensor:
    """Outputs of all pairs, as the looked up numbers say; those of experts that are not here are zero."""
    tokens, active = chosen.ids.shape
    width = out.region.rows * out.width // (tokens * active)
    values = torch.zeros(tokens * active, width, device=recorder.device)
    if recorder.is_meta:
        return values
    numbers, start = found.reshape(-1).long(), 0
    for expert, at, products in zip(chosen.experts, chosen.pairs, made, strict=True):
        pairs = torch.from_numpy(at).to(values.device)
        kept = numbers[start : start + len(at)] == pairs if aligned else numbers[pairs] == expert
        values[pairs[kept]] = products[kept]
        start += len(at)
    return values


def total(recorder: Recorder, layer: int, parts: RegionHandle, out: Rows, tokens: int) -> None:
    """The outputs of a token's experts, added."""
    blocks = -(-tokens * out.width // SUMS)
    launch, at = row_launch("moe sum: a block per 512 sums"), shape_at(tokens, out.width)
    with recorder.kernel(kernel_name(layer, "experts-sum"), "experts-sum", layer, blocks, launch, at=at):
        found = parts.load(0, parts.region.rows, even(0, blocks - 1, 1))
        out.store(summed(found, tokens, out.width), even(0, blocks - 1, 1))


@arithmetic
def best(logits: torch.Tensor, active: int, given: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts [tokens, active], ascending, and their weights: sigmoids that add up to 1."""
    scores = logits.float().sigmoid()
    found = scores.topk(active, dim=1).indices.sort(dim=1).values if given is None else given
    chosen = scores.gather(1, found.long())
    return found.int(), chosen / chosen.sum(1, keepdim=True)


@arithmetic
def sorted_pairs(ids: torch.Tensor) -> torch.Tensor:
    """Pairs in the order of their experts."""
    return ids.reshape(-1).argsort(stable=True).int()


@arithmetic
def times(
    x: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor | None, n: int, k: int
) -> torch.Tensor:
    """Products [rows, n] of x [rows, k] (or coded) with the packed weights of one expert."""
    if weights.dtype == torch.uint8 and scales is not None:
        values = from_e2m1(weights).reshape(n, -1, GROUP) * from_ue8m0(scales)[:, :, None]
        return x.float() @ values.reshape(n, k).T
    given = x.float() if scales is None else decode(x)
    matrix = weights.float().reshape(n, k)
    if scales is not None:
        spread = scales.repeat_interleave(SCALED, 0)[:n].repeat_interleave(SCALED, 1)[:, :k]
        matrix = matrix * spread
    return given @ matrix.T


@arithmetic
def summed(parts: torch.Tensor, tokens: int, width: int) -> torch.Tensor:
    """Sums [tokens, width] over a token's experts."""
    return parts.float().reshape(tokens, -1, width).sum(1)


def _launch(linear: Linear, tile: Tile) -> Shape:
    outputs = min(tile.outputs, linear.matrix.n)
    return Shape(
        tile_rows=outputs * linear.bytes_of(tile.inputs) // STEP_BYTES,
        tile_bytes=outputs * linear.bytes_of(tile.inputs),
        tiles_in_flight=tile.stages,
        blocks_per_unit=2,
        flops_per_tile=2 * tile.rows * outputs * tile.inputs,
        flops_unit=linear.dtype,
        tile_rule=f"fused moe: a block per {tile.rows} rows of an expert and {tile.outputs} outputs",
    )
