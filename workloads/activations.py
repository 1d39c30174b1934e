"""Activations between kernels of a step: rows of a region, some to a token; and kernels that work row by row.

All layers share them, as an engine's allocator hands the same memory out again. A row-wise kernel is a block
a token, or so many as it is given: it reads its tokens' rows, and whole weights such as a norm's, and writes
rows. Left out: that real kernels of several outputs keep them side by side in one buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workloads import costs
from workloads.facts import Fact
from workloads.grid import Blocks, Shape, each, even
from workloads.record import Recorder, RegionHandle

PIECE = 128  # values of a row, where the width divides by as many
LOADS_IN_FLIGHT = 8
BLOCKS_PER_UNIT = 8
TILE_BYTES = 4096
CAT_THREADS = 512
ELEMENTWISE = ("add", "glue")  # families of torch's kernels
FULL = 1024  # values of a block of torch's elementwise kernels
VECTORED = 8192  # values of the half of a row that 1024 threads take at once, 8 each

FACTS = (
    Fact("kernel.rowwise.blocks", "a block a token", "stated", "vLLM: norms, silu-and-mul, rotary kernels"),
    Fact("kernel.elementwise.blocks", "1,024 values", "stated", "torch: 128 threads of 8 values"),
    Fact("kernel.gated-norm.blocks", "1,024 values", "assumed", "FLA layer_norm_gated_fwd: some heads"),
    Fact(
        "kernel.rowwise.in_flight",
        "8 x 4 KiB a block, 8 blocks a unit",
        "assumed",
        "a block asks for all that it reads before it waits; 2048 threads of a unit / 256 of a block",
    ),
)


@dataclass(frozen=True)
class Rows:
    """`pieces` rows of a region to a token, `of` which each token has, from its row `first` on."""

    handle: RegionHandle
    pieces: int
    of: int = 0
    first: int = 0

    @property
    def width(self) -> int:
        """Values of a token."""
        return self.pieces * self.handle.width

    @property
    def whole(self) -> bool:
        """Whether these are all rows of each token."""
        return self.pieces == (self.of or self.pieces)

    def part(self, first: int, pieces: int) -> Rows:
        """Some of each token's rows."""
        return Rows(self.handle, pieces, self.of or self.pieces, self.first + first)

    def load(self, tokens: int, blocks: Blocks, *, worked: bool = False) -> torch.Tensor:
        """All values of `tokens` tokens: [tokens, width]."""
        if self.whole or tokens == 1:
            count = tokens * self.pieces
            return self.handle.load(self.first, count, blocks, worked=worked).reshape(tokens, self.width)
        found = self.handle.load_each(
            self.first, self.pieces, blocks, tokens, self.of, same_blocks=True, worked=worked
        )
        return found.reshape(tokens, self.width)

    def load_some(self, first: int, tokens: int, blocks: Blocks) -> torch.Tensor:
        """All values of `tokens` tokens from `first` on."""
        step = self.of or self.pieces
        return Rows(self.handle, self.pieces, self.of, self.first + first * step).load(tokens, blocks)

    def load_piece(self, piece: int, tokens: int, blocks: Blocks) -> torch.Tensor:
        """One row of each token: [tokens, values of a row]."""
        step = self.of or self.pieces
        return self.handle.load(self.first + piece, tokens, blocks, stride=step)

    def store(self, values: torch.Tensor, blocks: Blocks) -> None:
        """Write [tokens, width] values."""
        if self.whole or len(values) == 1:
            self.handle.store(self.first, values, blocks)
            return
        for token, row in enumerate(values):
            self.handle.store(self.first + token * self.of, row, blocks)


def piece_of(width: int) -> int:
    """Values of a row: 128, or the largest power of two below that divides the width."""
    return math.gcd(width, PIECE)


def declare(recorder: Recorder, name: str, tokens: int, width: int, dtype: str = "bf16") -> Rows:
    """Rows that all layers share."""
    piece = piece_of(width)
    size = {"bf16": 2, "fp32": 4, "int32": 4}[dtype]
    handle = recorder.region(name, "activation", -1, tokens * width // piece, piece * size, dtype)
    return Rows(handle, width // piece)


def rowwise(
    recorder: Recorder,
    layer: int,
    name: str,
    family: str,
    tokens: int,
    reads: Sequence[Rows],
    writes: Sequence[Rows],
    work: Callable[..., Any],
    *given: Any,
    weights: Sequence[RegionHandle] = (),
    blocks: int = 0,
) -> None:
    """Rows of `reads` and whole `weights` become rows of `writes`: work(*reads, *weights, *given).

    Weights are asked for once the rows have been reduced, as the norms of vLLM do; tiles of 4 KiB of the rows
    are worked on where a family has a time for it (`costs`). `work` returns a tensor
    [tokens, width] for each of `writes`, in a tuple where there are several.
    """
    width = (reads or writes)[0].width
    blocks = blocks or _blocks(family, tokens, width)
    launch = row_launch(f"{family}: a block per token")
    cost, at = _program(family, width, tokens, len(reads)), shape_at(tokens, width, len(reads))
    worked = costs.has_tile(cost)
    with recorder.kernel(kernel_name(layer, name), family, layer, blocks, launch, cost=cost, at=at):
        loaded = [rows.load(tokens, dealt(rows, tokens, blocks), worked=worked) for rows in reads]
        loaded += [
            handle.load(0, handle.region.rows, each(0, blocks - 1), dependent=True) for handle in weights
        ]
        made = work(*loaded, *given)
        for rows, values in zip(writes, made if isinstance(made, tuple) else (made,), strict=True):
            rows.store(values, dealt(rows, tokens, blocks))


def _blocks(family: str, rows: int, width: int) -> int:
    """A block a row; of kernels that take rows as one run of values, one for as many as fill it."""
    return -(-rows * width // FULL) if family in (*ELEMENTWISE, "gated-norm") else rows


def _program(family: str, width: int, rows: int, inputs: int) -> str:
    """Whose costs a kernel has. Threads of a long activation take two vectors; torch's elementwise kernels
    take a last block that is not full value by value.
    """
    if family == "silu-mul":
        return f"{family}-long" if width > 2 * VECTORED else family
    if family in ELEMENTWISE:
        part = "-part" if width * rows % FULL else ""
        return f"fill{part}" if not inputs else family + part
    return family


def shape_at(rows: int, width: int, inputs: int = 1) -> dict[str, int]:
    """The shape of a kernel on rows, as tables of costs know it."""
    return {"rows": rows, "width": width, "values": rows * width, "inputs": max(1, inputs)}


def concat_blocks(values: int, units: int) -> int:
    """Blocks of torch's cat on rows that do not lie in one piece: 512 threads, two blocks a unit at most."""
    return min(2 * units, -(-values // CAT_THREADS))


def dealt(rows: Rows, tokens: int, blocks: int) -> Blocks:
    """Rows of all tokens dealt to blocks: whole tokens where there is one to a block."""
    return even(0, blocks - 1, rows.pieces if blocks == tokens and rows.whole else 1)


def kernel_name(layer: int, name: str) -> str:
    """Name of a kernel of a layer, or of none."""
    return name if layer < 0 else f"layer{layer}.{name}"


def row_launch(rule: str) -> Shape:
    """How the blocks of a row-wise kernel work."""
    return Shape(
        tile_rows=TILE_BYTES // (PIECE * 2),
        tile_bytes=TILE_BYTES,
        tiles_in_flight=LOADS_IN_FLIGHT,
        blocks_per_unit=BLOCKS_PER_UNIT,
        retire="any",
        tile_rule=rule,
    )
