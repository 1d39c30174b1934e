"""Dependent loads on an idle GPU: one thread, each load's value is the next address.

The order is one random cycle over all places of the footprint, `stride` bytes apart (a Feistel permutation,
computed where it is needed, so only visited places are written). L1 is bypassed. Footprints of at most 2^20
places are first read once by the same multiprocessor; larger ones begin with an L2 full of other bytes, that
were written (see `flush_l2`). Each trial of a round starts where the one before ended.

How far a line of the L2 is depends on the multiprocessor, by 6 % on an H200. So a sample is the mean over
trials on every sixth one, or of several trials on the one that the point states.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from . import cuda
from .device import Env, flush_l2, slices
from .points import Point
from .rows import Measured, percentile
from .timing import Work, means, profiled

if TYPE_CHECKING:
    import torch

STEPS = 4096  # loads of a trial
SETS = 3  # samples of a round
APART = 6  # multiprocessors from one that is used to the next
TRIALS_ON_ONE = 4  # of a sample, where the point states the multiprocessor
TOUCH_PLACES = 1 << 20
THREADS = 512
ALONE_BYTES = 120 * 1024  # shared memory that leaves room for one block per multiprocessor
OUT = 8  # 64-bit words of one trial's answer


def build(data: torch.Tensor, places: int, stride: int, seed: int, visits: int) -> None:
    """Write the addresses of visits 0 .. visits (all of them if the cycle is shorter)."""
    count = min(places, visits + 1)
    cuda.bind("chase.cu", "chase_build", 132 * 8, 256, data, places, stride, seed, 0, count)()


Answers = tuple[list[list[int]], list["torch.Tensor"], dict]


def places_of_a_sample(point: Point, env: Env) -> list[int]:
    """The multiprocessor of each trial of one sample."""
    if "sm" in point.axes:
        return [point["sm"]] * TRIALS_ON_ONE
    return list(range(0, processors(env), APART))


def trials(point: Point, env: Env, single: bool = False) -> Answers:
    """All trials: their answers (ns, cycles, right, multiprocessor), single loads if asked for, clocks."""
    import torch

    footprint, stride = point["footprint"], point.axes.get("stride", 128)
    order = places_of_a_sample(point, env) * (1 if env.smoke else SETS)
    places = footprint // stride
    touch = int(places <= TOUCH_PLACES)
    name = "chase_single" if single else "chase_run"
    answers: list[list[int]] = []
    loads: list[torch.Tensor] = []
    clocks: dict = {}
    for round_index in range(env.rounds):
        data = slices(env, footprint, 1, round_index, seed=point.seed)[0]
        seed = point.seed + round_index
        build(data, places, stride, seed, STEPS * len(order))
        flush_l2(env, data)
        out = torch.zeros(len(order) * OUT, dtype=torch.int64, device=env.device)
        took = torch.zeros(len(order) * STEPS if single else 1, dtype=torch.int32, device=env.device)
        for trial, sm in enumerate(order):
            arguments = [data, places, stride, seed, trial * STEPS, STEPS, touch, sm, out[trial * OUT :]]
            if single:
                arguments.append(took[trial * STEPS :])
            cuda.bind("chase.cu", name, processors(env), THREADS, *arguments, shared_bytes=ALONE_BYTES)()
        clocks = clocks or env.clocks()
        found = out.view(len(order), OUT).tolist()
        for answer, sm in zip(found, order, strict=True):
            check(answer, sm)
        answers += found
        loads += list(took.view(len(order), -1)) if single else []
    return answers, loads, clocks


def processors(env: Env) -> int:
    import torch

    return torch.cuda.get_device_properties(env.device).multi_processor_count


def check(answer: list[int], sm: int) -> None:
    """ValueError unless the chase ran, on the right multiprocessor, and ended where the permutation says."""
    if answer[0] <= 0:
        raise ValueError(f"no block ran on multiprocessor {sm}")
    if answer[2] != 1:
        raise ValueError("the chase did not end where it must")
    if answer[3] != sm:
        raise ValueError(f"ran on multiprocessor {answer[3]}, expected {sm}")


def measured(point: Point, env: Env, samples: list[float], clocks: dict, cycles: float) -> Measured:
    """`samples` holds a number per trial; the row gets the means of those of one sample."""
    return Measured(
        means(samples, len(places_of_a_sample(point, env))),
        bytes_read=8,
        calls=STEPS,
        footprint_bytes=point["footprint"],
        clocks=clocks,
        extra={"cycles": round(cycles, 2)},
    )


def listed(point: Point, env: Env) -> Measured:
    """The profiler pass: one short chase."""
    import torch

    data = slices(env, 1 << 20, 1, 0)[0]
    out = torch.zeros(OUT, dtype=torch.int64, device=env.device)
    build(data, 8192, 128, 1, 1024)
    arguments = (data, 8192, 128, 1, 0, 1024, 1, -1, out)
    call = cuda.bind("chase.cu", "chase_run", 1, THREADS, *arguments)
    return profiled(Work([call], 8, 0, 1 << 20), env)


def latency(point: Point, env: Env) -> Measured:
    """Nanoseconds per load."""
    if env.profile:
        return listed(point, env)
    answers, _, clocks = trials(point, env)
    cycles = statistics.median(answer[1] / STEPS for answer in answers)
    return measured(point, env, [answer[0] / STEPS for answer in answers], clocks, cycles)


def single(point: Point, env: Env) -> Measured:
    """A percentile of the times of single loads, clock reads included."""
    if env.profile:
        return listed(point, env)
    answers, loads, clocks = trials(point, env, single=True)
    share = point["percent"] / 100
    cycles = [percentile(took.tolist(), share) for took in loads]
    samples = [answer[0] / answer[1] * each for answer, each in zip(answers, cycles, strict=True)]
    return measured(point, env, samples, clocks, statistics.median(cycles))


FAMILIES = {"chase.latency": latency, "chase.sm": latency, "chase.single": single}
