"""Kernels as a step runs them: behind others, which have left neither their code nor their weights.

`state` again: the same kernel over and over, as elsewhere. `state` after: in front of each call another one
reads 64 MiB out of HBM and runs 256 KiB of instructions, so that the code of the measured one comes from
memory as it does in a step of many kernels; last it reads what the kernel before a real one would just have
written, its `Arena`, so that this is in the L2. Two kernels of one thread, right before and right behind the
call, read the GPU's clock (`Stamps`); what they say with nothing between them is measured beside and
subtracted. So a time holds one launch, as those of `again` do.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from . import cuda
from .device import Env
from .kernels_data import off_ppm
from .points import Point
from .rows import Measured
from .timing import Call, Work, time_work

if TYPE_CHECKING:
    import torch

SWEPT_BYTES, SWEPT = 64 << 20, 4  # bytes that the other kernel reads, in turn out of so many buffers
ARENA_BYTES = 96 << 20
ALIGN_BYTES = 256
PROCESSORS, THREADS = 132, 1024
BARE_SHARE = 0.3  # of a point's time, for stamps with nothing between them


class Arena:
    """One buffer that holds all that a call finds in the L2."""

    def __init__(self, env: Env, seed: int) -> None:
        import torch

        if "arena" not in env.facts:
            env.facts["arena"] = torch.empty(ARENA_BYTES, dtype=torch.uint8, device=env.device)
        self.device, self.used = env.device, 0
        self._whole: torch.Tensor = env.facts["arena"]  # type: ignore[assignment]
        self._generator = torch.Generator(device=env.device).manual_seed(seed)

    def room(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor, bf16 unless said, with nothing in it. ValueError if the arena is full."""
        import torch

        dtype = dtype or torch.bfloat16
        count = 1
        for extent in shape:
            count *= extent
        end = self.used + count * dtype.itemsize
        if end > self._whole.numel():
            raise ValueError(f"a call needs more than {self._whole.numel()} B beside its weights")
        made = self._whole[self.used : end].view(dtype).view(shape)
        self.used = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        return made

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers."""
        import torch

        made = self.room(*shape, dtype=dtype)
        made.copy_(torch.randn(shape, generator=self._generator, device=self.device))
        return made

    def whole(self, below: int, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Whole numbers from 0, int32 unless said."""
        import torch

        made = self.room(*shape, dtype=dtype or torch.int32)
        made.copy_(torch.randint(below, shape, generator=self._generator, device=self.device))
        return made

    def distinct(self, below: int, rows: int, count: int) -> torch.Tensor:
        """int32 [rows, count]: different whole numbers in each row."""
        import torch

        made = self.room(rows, count, dtype=torch.int32)
        noise = torch.rand(rows, below, generator=self._generator, device=self.device)
        made.copy_(noise.topk(count, dim=-1).indices)
        return made


@dataclass
class Made:
    """A call, and what it moves.

    wanted  asked for before the call, `found` after it; both or none
    keep    what lies outside the arena
    """

    call: Call
    read: int
    written: int
    wanted: Callable[[], torch.Tensor] | None = None
    found: Callable[[], torch.Tensor] | None = None
    keep: object = None


Make = Callable[[Point, Arena], Made]


def measured_by(make: Make) -> Callable[[Point, Env], Measured]:
    """The family function of kernels that `make` binds."""

    def measure(point: Point, env: Env) -> Measured:
        return timed(point, env, make)

    return measure


def timed(point: Point, env: Env, make: Make) -> Measured:
    """Samples of a call in the state that the point names; `off_ppm` where a result is wanted."""
    found: dict[str, int] = {}
    bare: list[float] = []
    stamps = Stamps(env) if point["state"] == "after" and env.cuda and not env.profile else None

    def build(round_index: int) -> Work:
        arena = Arena(env, point.seed + round_index)
        made = make(point, arena)
        if round_index == 0 and not env.profile and made.wanted is not None:
            found["off_ppm"] = checked(made)
        calls = [made.call]
        if point["state"] == "after":
            calls = [both(other, made.call) for other in other_kernels(env, arena.used)]
        if stamps is not None:
            first = other_kernels(env, arena.used)
            bare.append(bare_ns(env, first))
            calls = [stamps.around(other, made.call) for other in first]
        renew = stamps.begin if stamps else None
        return Work(calls, made.read, made.written, arena.used, renew=renew, keep=(arena, made))

    measured = time_work(build, env)
    if stamps is not None:
        less = statistics.fmean(bare)
        measured.samples_ns = [sample - less for sample in stamps.samples_ns(measured.calls)]
    measured.extra |= found
    return measured


def checked(made: Made) -> int:
    """How far the result of a call is from what is wanted, in parts per million."""
    assert made.wanted is not None
    assert made.found is not None
    wanted = made.wanted()
    made.call()
    return off_ppm(made.found().float(), wanted.float())


def both(first: Call, then: Call) -> Call:
    def pair() -> None:
        first()
        then()

    return pair


def other_kernels(env: Env, kept_bytes: int) -> list[Call]:
    """Kernels that stand for the others of a step, each with bytes of its own; nothing on a CPU."""
    if not env.cuda:
        return [lambda: None]
    import torch

    if "swept" not in env.facts:
        env.facts["swept"] = torch.zeros(SWEPT, SWEPT_BYTES, dtype=torch.uint8, device=env.device)
    areas: torch.Tensor = env.facts["swept"]  # type: ignore[assignment]
    arena, words, kept = env.facts["arena"], SWEPT_BYTES // 16, kept_bytes // 16
    return [
        cuda.bind("other.cu", "other", PROCESSORS, THREADS, area, words, arena, kept, 0.999, 0.001, area)  # type: ignore[arg-type]
        for area in areas
    ]


@dataclass
class Stamps:
    """Kernels of one thread that read the GPU's clock around calls, and what they have added up.

    begin   before each replay: what the last one added up is kept, and the sum is 0 again
    """

    env: Env
    kept: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        import torch

        self._at = torch.zeros(1, dtype=torch.int64, device=self.env.device)
        self._total = torch.zeros(2, dtype=torch.int64, device=self.env.device)

    def around(self, first: Call, then: Call) -> Call:
        """`first`, then `then` between two stamps."""
        begins = cuda.bind("stamp.cu", "begins", 1, 1, self._at)
        ends = cuda.bind("stamp.cu", "ends", 1, 1, self._at, self._total)
        return both(both(first, begins), both(then, ends))

    def begin(self) -> None:
        self.kept.append(self._total.clone())
        self._total.zero_()

    def samples_ns(self, calls: int) -> list[float]:
        """Nanoseconds between the stamps, a mean for each replay of so many calls."""
        self.begin()
        sums = [kept.tolist() for kept in self.kept]
        return [total / count for total, count in sums if count == calls]


def bare_ns(env: Env, others: list[Call]) -> float:
    """What stamps say behind each of the other kernels with nothing between them."""
    stamps = Stamps(env)
    once = replace(env, rounds=1, budget_s=env.budget_s / env.rounds * BARE_SHARE)
    calls = [stamps.around(other, lambda: None) for other in others]
    done = time_work(lambda _: Work(calls, 0, 0, 0, renew=stamps.begin), once)
    return statistics.median(stamps.samples_ns(done.calls))
