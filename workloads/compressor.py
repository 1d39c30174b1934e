"""The compressor of DeepSeek V4: some tokens of the context become one cached row or index key.

Every token leaves a value and a score in a ring of fp32 states; when `ratio` tokens are complete, a row is

    norm(sum over tokens of softmax(scores + position bias) x values), packed

over the last `ratio` tokens, or with overlap over the last 2 x ratio, the earlier of which take the first
half of a state, the later the second. Tokens before the first have no weight. Taken from vLLM's kernels:
one saves the state of the new token, a block a sequence; then one does the rest, a block a sequence (C4, and
the index), or two: 8 blocks a sequence, each 64 columns, and a block a sequence that norms and stores (C128).
All are launched in every step; a block whose sequence does not complete a row has nothing to do. Left out:
the rotary turn of the row and its table, the pages of the states (a ring of slots holds the tokens that are
needed), and the projection that values and scores come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.formats import Format, Parts
from workloads.grid import Shape, one
from workloads.record import Recorder, RegionHandle
from workloads.tensors import normal

COLUMNS = 64  # of a block where a row's columns are dealt to several
LOADS_IN_FLIGHT = 8
SAVE_BLOCKS_PER_UNIT, POOL_BLOCKS_PER_UNIT, STORE_BLOCKS_PER_UNIT = 16, 8, 8
EPSILON = 1e-6

VLLM = "vLLM deepseek_v4"

FACTS = (
    Fact("kernel.compress-save.block", "a block a sequence", "stated", f"{VLLM}/save_partial_states.py"),
    Fact(
        "kernel.compress.block",
        "a block a sequence; 8 of 64 columns for 128:1, and a store pass",
        "stated",
        f"{VLLM}/nvidia/ops/sparse_attn_compress_cutedsl.py",
    ),
    Fact("kernel.compress.state", "fp32 values and scores", "stated", f"{VLLM}/compressor.py"),
    Fact(
        "kernel.compress.ring",
        "as many slots as a row is made of",
        "assumed",
        "vLLM keeps them in pages of 4 or 8 tokens that leave the window",
    ),
    Fact(
        "kernel.compress.blocks_per_unit", "8 to 16", "assumed", "2048 threads of a unit / those of a block"
    ),
    Fact(
        "kernel.compress.tiles_in_flight",
        "8",
        "assumed",
        "a block asks for all that it reads before it waits",
    ),
)


@dataclass(frozen=True)
class Plan:
    """What a compressor makes.

    name     before the names of its kernels and regions: "" or "index-"
    dim      columns of a row
    ratio    tokens that a row stands for
    overlap  a row is made of twice as many
    kept     how rows are kept
    split    columns are dealt to blocks of 64
    """

    name: str
    dim: int
    ratio: int
    overlap: bool
    kept: Format
    split: bool = False

    @property
    def halves(self) -> int:
        """Halves of a state, one for each time that a token takes part in a row."""
        return 1 + self.overlap

    @property
    def slots(self) -> int:
        """Tokens that a row is made of."""
        return self.halves * self.ratio

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return COLUMNS if self.split else self.dim

    @property
    def pieces(self) -> int:
        """Blocks that share a row's columns."""
        return self.dim // self.columns

    @property
    def width(self) -> int:
        """Numbers of a token's values, and of its scores."""
        return self.halves * self.dim


@dataclass(frozen=True)
class CompressorRegions:
    """Regions of one compressor.

    new     [batch x draft] values and scores of the new tokens
    bias    [ratio] what a token's scores get for its place in a row
    norm    [1] weights of the norm, bf16
    state   [batch x slots x halves of values, then of scores x pieces]
    pooled  [batch x draft x pieces] fp32 sums, where the norm is a pass of its own
    rows    where rows go: as the plan's format says
    draft   new tokens of a sequence
    """

    new: RegionHandle
    bias: RegionHandle
    norm: RegionHandle
    state: RegionHandle
    pooled: RegionHandle | None
    rows: RegionHandle
    plan: Plan
    draft: int = 1


def declare(
    recorder: Recorder, layer: int, plan: Plan, rows: RegionHandle, batch: int, draft: int = 1
) -> CompressorRegions:
    """Regions of layer `layer` for `batch` sequences of `draft` new tokens, whose rows go to `rows`."""

    def region(name: str, kind: str, count: int, numbers: int, dtype: str = "fp32") -> RegionHandle:
        size = numbers * (2 if dtype == "bf16" else 4)
        return recorder.region(f"layer{layer}.{plan.name}{name}", kind, layer, count, size, dtype)

    tokens, slots = batch * draft, batch * plan.slots * 2 * plan.halves * plan.pieces
    return CompressorRegions(
        new=region("compressor-in", "activation", tokens, 2 * plan.width),
        bias=region("compressor-bias", "weights", plan.ratio, plan.width),
        norm=region("compressor-norm", "weights", 1, plan.dim, "bf16"),
        state=region("compressor", "state", slots, plan.columns),
        pooled=region("pooled", "activation", tokens * plan.pieces, plan.columns) if plan.split else None,
        rows=rows.per_token(batch, draft),
        plan=plan,
        draft=draft,
    )


def fill(regions: CompressorRegions, generator: torch.Generator) -> None:
    """Random normal inputs, weights and states; results are zero."""
    for handle in (regions.new, regions.bias, regions.norm, regions.state):
        handle.fill(normal(handle.shape, handle.dtype, generator))
    if regions.pooled is not None:
        regions.pooled.zero()


def step(recorder: Recorder, layer: int, regions: CompressorRegions, lengths: Sequence[int]) -> None:
    """Take in the new tokens, which see `lengths` rows each, and write the rows that they complete."""
    _save(recorder, layer, regions, lengths)
    if regions.pooled is None:
        _compress(recorder, layer, regions, lengths)
    else:
        _pool(recorder, layer, regions, regions.pooled, lengths)
        _store(recorder, layer, regions, regions.pooled, lengths)


def _save(recorder: Recorder, layer: int, regions: CompressorRegions, lengths: Sequence[int]) -> None:
    plan = regions.plan
    launch = _launch(plan, SAVE_BLOCKS_PER_UNIT, plan.width, 1, "compress save: a block per sequence")
    rows = 2 * plan.halves * plan.pieces
    with recorder.kernel(
        f"layer{layer}.{plan.name}compress-save", "compress-save", layer, len(lengths), launch
    ):
        for sequence, tokens in enumerate(lengths):
            position = tokens - 1
            new = regions.new.load(sequence, 1, one(sequence), worked=True)
            bias = regions.bias.load(position % plan.ratio, 1, one(sequence))
            slot = sequence // regions.draft * plan.slots + position % plan.slots
            regions.state.store(slot * rows, biased(new, bias), one(sequence))


def _compress(recorder: Recorder, layer: int, regions: CompressorRegions, lengths: Sequence[int]) -> None:
    plan = regions.plan
    rule = "compress: a block per sequence that completes a row"
    launch = _launch(plan, POOL_BLOCKS_PER_UNIT, plan.columns, 2, rule)
    with recorder.kernel(f"layer{layer}.{plan.name}compress", "compress", layer, len(lengths), launch):
        for sequence, tokens in enumerate(lengths):
            if tokens % plan.ratio == 0:
                row = pooled(plan.columns, *_states(regions, sequence, tokens, 0, sequence))
                norm = regions.norm.load(0, 1, one(sequence))
                _keep(regions, sequence, tokens, packed(row, norm, plan.kept), len(lengths))


def _pool(
    recorder: Recorder, layer: int, regions: CompressorRegions, sums: RegionHandle, lengths: Sequence[int]
) -> None:
    plan = regions.plan
    rule = "compress pool: a block per sequence and 64 columns"
    launch = _launch(plan, POOL_BLOCKS_PER_UNIT, plan.columns, 2, rule)
    blocks = plan.pieces * len(lengths)
    with recorder.kernel(f"layer{layer}.{plan.name}compress-pool", "compress-pool", layer, blocks, launch):
        for sequence, tokens in enumerate(lengths):
            if tokens % plan.ratio == 0:
                for piece in range(plan.pieces):
                    block = sequence * plan.pieces + piece
                    states = _states(regions, sequence, tokens, piece, block)
                    sums.store(block, pooled(plan.columns, *states), one(block))


def _store(
    recorder: Recorder, layer: int, regions: CompressorRegions, sums: RegionHandle, lengths: Sequence[int]
) -> None:
    plan = regions.plan
    launch = _launch(plan, STORE_BLOCKS_PER_UNIT, plan.columns, 1, "compress store: a block per sequence")
    name = f"layer{layer}.{plan.name}compress-store"
    with recorder.kernel(name, "compress-store", layer, len(lengths), launch):
        for sequence, tokens in enumerate(lengths):
            if tokens % plan.ratio == 0:
                row = sums.load(sequence * plan.pieces, plan.pieces, one(sequence), worked=True)
                norm = regions.norm.load(0, 1, one(sequence))
                _keep(regions, sequence, tokens, packed(row, norm, plan.kept), len(lengths))


def _states(
    regions: CompressorRegions, sequence: int, tokens: int, piece: int, block: int
) -> list[torch.Tensor]:
    """States of the tokens that a row is made of, the values and scores of `piece` alternating.

    The first tensor is of the earlier tokens; it is missing where there are none.
    """
    plan = regions.plan
    stride = plan.halves * plan.pieces
    found = []
    for half in range(plan.halves):
        first = tokens - (plan.halves - half) * plan.ratio
        if first >= 0:
            slot = sequence // regions.draft * plan.slots + first % plan.slots
            row = slot * 2 * stride + half * plan.pieces + piece
            found.append(regions.state.load(row, 2 * plan.ratio, one(block), stride=stride, worked=True))
    return found


def _keep(regions: CompressorRegions, sequence: int, tokens: int, parts: Parts, batch: int) -> None:
    """Write the row that the last of `tokens` tokens completes."""
    plan, last = regions.plan, regions.rows.first(sequence, batch) + tokens // regions.plan.ratio - 1
    plan.kept.store(regions.rows, last, parts, one(sequence))


@arithmetic
def biased(new: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Values and scores [1, 2 x width] with the bias [1, width] added to the scores."""
    values, scores = new.chunk(2, dim=1)
    return torch.cat([values, scores + bias], dim=1)


@arithmetic
def pooled(columns: int, *states: torch.Tensor) -> torch.Tensor:
    """Sum [1, columns] of values weighted by the softmax of scores; states [2 x tokens, columns]."""
    pairs = torch.cat(states).reshape(-1, 2, columns)
    return (pairs[:, 0] * torch.softmax(pairs[:, 1], dim=0)).sum(0, keepdim=True)


@arithmetic
def packed(row: torch.Tensor, weights: torch.Tensor, kept: Format) -> Parts:
    """The normed row, its columns in one row or dealt to several, packed."""
    values = row.reshape(1, -1)
    scale = (values.square().mean() + EPSILON).rsqrt()
    return kept.pack(values * scale * weights.float())


def _launch(plan: Plan, blocks_per_unit: int, numbers: int, flops: int, rule: str) -> Shape:
    return Shape(
        tile_rows=2 * plan.ratio,
        tile_bytes=2 * plan.width * 4,
        tiles_in_flight=LOADS_IN_FLIGHT,
        blocks_per_unit=blocks_per_unit,
        flops_per_tile=flops * numbers * 2 * plan.ratio,
        flops_unit="fp32",
        tile_rule=rule,
    )
