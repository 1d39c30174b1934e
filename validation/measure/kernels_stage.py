"""Staging: rows of a cache in pinned host memory, gathered by a kernel (zero-copy) into a dense buffer on the
GPU.

The kernel is this project's own (`cuda/stage.cu`, one warp a row): no library that could be carried along has
one. Rows of 1152 bytes (MLA, bf16), 576 (MLA, fp8) and 656 (fp8 with scales); they are drawn at random,
afresh for each call, from `span` bytes of the region that `host_memory` pins once a process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import cuda, host_memory
from .device import Env, Skipped
from .host_memory import Far
from .kernels_data import buffers_for
from .points import Point
from .rows import Measured
from .timing import Work, time_work

if TYPE_CHECKING:
    import torch

WORD_BYTES = 16
WARPS = 8  # of a block: one row each
MOST_BLOCKS = 132 * 8  # all resident at once
CALLS = 16


def stage_calls(
    base: int, slots: torch.Tensor, out: torch.Tensor, row_bytes: int, calls: int
) -> list[Callable[[], None]]:
    """`calls` calls that go round `slots` (int32), each copying as many rows of host memory at `base` as
    `out` holds.
    """
    import torch

    count = out.numel() // row_bytes
    cells = torch.zeros(calls, dtype=torch.int64, device=out.device)
    blocks = min(MOST_BLOCKS, -(-count // WARPS))

    def bound(call: int) -> Callable[[], None]:
        arguments = (ctypes.c_void_p(base), slots, out, count, row_bytes // WORD_BYTES)
        return cuda.bind(
            "stage.cu", "stage_rows", blocks, WARPS * 32, *arguments, cells, call, calls, slots.numel()
        )

    return [bound(call) for call in range(calls)]


def region(env: Env) -> Far:
    """The pinned region; in the profiler pass only if it is there already."""
    if env.profile and not host_memory.is_held():
        raise Skipped("")
    return host_memory.registered(env)


def gather(point: Point, env: Env) -> Measured:
    row, rows, span = point["row"], point["rows"], point["span"]
    far = region(env)
    if span > far.nbytes:
        raise ValueError(f"span {span} B is larger than the {far.nbytes} B that could be pinned")
    moved = row * rows
    turns = max(CALLS, buffers_for(moved, most=1 << 30))

    def build(round_index: int) -> Work:
        import torch

        generator = torch.Generator(device=env.device).manual_seed(point.seed + round_index)
        shape = (turns * rows,)
        slots = torch.randint(0, span // row, shape, generator=generator, device=env.device).to(torch.int32)
        out = torch.empty(moved, dtype=torch.uint8, device=env.device)
        calls = stage_calls(far.base, slots, out, row, CALLS)
        return Work(calls, moved + rows * 4, moved, min(turns * moved, span), keep=(slots, out))

    measured = time_work(build, env)
    measured.extra |= far.extra
    return measured


FAMILIES = {"stage.gather": gather}
