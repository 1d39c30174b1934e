"""Two traffics at once: both directions of a link, or a link beside the GPU's own memory; and each alone.

Enters: a point (whose traffic is measured, what runs beside it). Leaves: nanoseconds per MiB of the
measured one. Kernels work for a window of time and count what they moved (`beside` in cuda/host_move.cu),
so that both are at work all through it; copies by the engine are timed by events inside the other's time,
which is made longer until they fit. No graph: a launch is a trial.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import cuda
from .device import Env, Skipped, slices
from .host_memory import Far, copy_async
from .points import Point
from .remote import SOURCE, places
from .rows import Measured
from .timing import means, side_stream

if TYPE_CHECKING:
    import torch

MIB = 1 << 20
THREADS = 1024
CHUNK_BYTES = 2048  # what a warp moves at a time
WINDOW_NS = 15_000_000
LONG_WINDOWS, LONGEST_WINDOWS = 4, 64  # windows that the other one lasts when a copy is measured
WARM, TRIALS, MEAN_OF = 6, 16, 2  # of a point: that do not count, that do; a sample is the mean of MEAN_OF
NEAR_BYTES = 4 << 30
SPAN_BYTES = 8 << 30
KERNELS = {"far_read": False, "far_write": True, "near_read": False, "near_write": True}  # -> writes
COPIES = {"copy_in": True, "copy_out": False}  # -> to the GPU


class EndedFirst(RuntimeError):
    """The other traffic was over before the measured one."""


@dataclass(frozen=True)
class Role:
    """What one side does: a kernel on `blocks` units, or a copy engine (blocks 0), or nothing ("none")."""

    name: str
    blocks: int

    @property
    def is_copy(self) -> bool:
        return self.name in COPIES

    @property
    def is_kernel(self) -> bool:
        return self.name in KERNELS


def roles(point: Point, units: int) -> tuple[Role, Role]:
    """The point's two roles. RuntimeError if they cannot run together."""
    one = Role(str(point["measured"]), int(point["blocks"]))
    two = Role(str(point["other"]), int(point["other_blocks"]))
    for role in (one, two):
        if role.name not in (*KERNELS, *COPIES, "none") or role.is_kernel != (role.blocks > 0):
            raise RuntimeError(f"role {role.name} with {role.blocks} blocks is not one of these")
    if one.blocks + two.blocks > units:
        raise RuntimeError(f"{one.blocks} + {two.blocks} blocks on {units} units: all must run at once")
    return one, two


def beside(point: Point, env: Env, far: Far, copy_bytes: int) -> Measured:
    """axes measured, blocks, other, other_blocks; copy_bytes: one engine copy, some milliseconds."""
    if env.profile:
        raise Skipped("")
    import torch

    units = torch.cuda.get_device_properties(env.device).multi_processor_count
    one, two = roles(point, units)
    rng = random.Random(point.seed)
    window_ns = WINDOW_NS // 5 if env.smoke else WINDOW_NS
    with torch.cuda.device(env.device), torch.cuda.stream(side_stream(env)):
        bench = Bench(env, far, copy_bytes, window_ns, rng)
        trial = bench.kernel_beside if one.is_kernel else bench.copy_beside
        warm, count = (1, 2) if env.smoke else (WARM, TRIALS)
        samples = [bench.lasting(trial, one, two) for _ in range(warm + count)][warm:]
    inward = one.name in ("far_read", "near_read", "copy_in")
    return Measured(
        samples_ns=samples if env.smoke else means(samples, MEAN_OF),
        bytes_read=MIB if inward else 0,
        bytes_written=0 if inward else MIB,
        footprint_bytes=min(SPAN_BYTES, far.nbytes) if one.name.startswith("far") else NEAR_BYTES,
        clocks=env.clocks(),
    )


class Bench:
    """Streams, buffers and counters of one point's trials; the kernel runs on the current stream."""

    def __init__(self, env: Env, far: Far, copy_bytes: int, window_ns: int, rng: random.Random) -> None:
        import torch

        self.env, self.far, self.copy_bytes, self.window_ns, self.rng = env, far, copy_bytes, window_ns, rng
        self.near = slices(env, NEAR_BYTES, 1, 0, seed=3)[0]
        self.landing = slices(env, copy_bytes, 4, 0, seed=4)
        self.arrived = torch.zeros(1, dtype=torch.int32, device=env.device)
        self.rates = torch.zeros(3, dtype=torch.float64, device=env.device)
        self.sink = torch.zeros(4, dtype=torch.int32, device=env.device)
        self.long_windows = LONG_WINDOWS
        self.first = self._stream("first", env.device)
        self.second = self._stream("second", far.device or env.device)

    def _stream(self, name: str, device: str) -> torch.cuda.Stream:
        """One stream of each name and device for all points: new ones might be those that others hold."""
        import torch

        key = f"pairs {name} {device}"
        if key not in self.env.facts:
            self.env.facts[key] = torch.cuda.Stream(device=device)
        return self.env.facts[key]  # type: ignore[return-value]

    def lasting(self, trial: Callable[[Role, Role], float], one: Role, two: Role) -> float:
        """A trial in which the other traffic lasts long enough; how long that is, is kept for the next."""
        while True:
            try:
                return trial(one, two)
            except EndedFirst:
                self.long_windows *= 2
                if self.long_windows > LONGEST_WINDOWS:
                    raise

    def kernel_beside(self, one: Role, two: Role) -> float:
        """ns per MiB of kernel `one` while `two` runs: in the same launch, or as copies around it."""
        import torch

        ready, over = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        if two.is_copy:
            self._copies(two, self.first, 1)
            ready.record(self.first)
            self._copies(two, self.first, self._copies_in((self.long_windows - 1) * self.window_ns))
            over.record(self.first)
            torch.cuda.current_stream().wait_event(ready)
        self._launch(one, two, self.window_ns)
        end.record()
        torch.cuda.synchronize(self.env.device)
        if two.is_copy and end.elapsed_time(over) <= 0:
            raise EndedFirst("the copies ended before the kernel did")
        chunks_per_cycle, _, cycles_per_ns = self.rates.tolist()
        return MIB / (chunks_per_cycle * CHUNK_BYTES * cycles_per_ns)

    def copy_beside(self, one: Role, two: Role) -> float:
        """ns per MiB of engine copies `one` while `two` runs; the first copy is not counted.

        Copies `two` from or to another GPU are made by that GPU's engine: of two opposite ones on streams of
        one GPU the second began when the first had ended.
        """
        import torch

        start, end, over = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        counted = 2
        if two.is_copy:
            self._copies(two, self.second, 1 + self._copies_in(self.long_windows * self.window_ns))
            over.record(self.second)
        elif two.is_kernel:
            self._launch(two, Role("none", 0), self.long_windows * self.window_ns)
            over.record()
        self._copies(one, self.first, 1)
        start.record(self.first)
        self._copies(one, self.first, counted)
        end.record(self.first)
        end.synchronize()
        still = two.name == "none" or not over.query()  # events of two GPUs cannot be subtracted
        self.second.synchronize()
        torch.cuda.synchronize(self.env.device)
        if not still:
            raise EndedFirst(f"{two.name} ended before the copies did")
        return start.elapsed_time(end) * 1e6 * MIB / (counted * self.copy_bytes)

    def _copies_in(self, nanoseconds: int) -> int:
        """Copies that last so long at the expected rate."""
        return max(2, -(-int(nanoseconds * self.far.gbps) // self.copy_bytes))

    def _copies(self, role: Role, stream: torch.cuda.Stream, count: int) -> None:
        """Queue `count` engine copies, each between another place of the region and another near buffer."""
        import torch

        with torch.cuda.device(stream.device):
            for index, there in enumerate(self._spread(count)):
                here = self.landing[index % len(self.landing)].data_ptr()
                target, source = (here, there) if COPIES[role.name] else (there, here)
                copy_async(target, source, self.copy_bytes, stream.cuda_stream)

    def _spread(self, count: int) -> list[int]:
        found = places(self.far, self.copy_bytes, count, self.rng)
        return (found * -(-count // len(found)))[:count]

    def _launch(self, one: Role, two: Role, window_ns: int) -> None:
        """The two-role kernel on the current stream; self.rates holds what it counted."""
        self.arrived.zero_()
        self.rates.zero_()
        cycles = window_ns * 9 // 5  # at 1.8 GHz; the kernel says what the clock really was
        a, b = self._region(one), self._region(two)
        grid = one.blocks + two.blocks
        arguments = (
            *a,
            one.blocks,
            *b,
            self.rng.randrange(1 << 30),
            cycles,
            self.arrived,
            self.rates,
            self.sink,
        )
        launch: Callable[[], None] = cuda.bind(SOURCE, "beside", grid, THREADS, *arguments)
        launch()

    def _region(self, role: Role) -> tuple[ctypes.c_void_p, int, int]:
        """Address, chunks and whether it is written, as the kernel takes them."""
        if role.name.startswith("far"):
            nbytes = min(SPAN_BYTES, self.far.nbytes)
            return ctypes.c_void_p(self.far.base), nbytes // CHUNK_BYTES, int(KERNELS[role.name])
        writes = int(KERNELS.get(role.name, False))
        return ctypes.c_void_p(self.near.data_ptr()), NEAR_BYTES // CHUNK_BYTES, writes
