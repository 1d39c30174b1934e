"""Dependent loads on an idle GPU: one thread, each load's value is the next address.

The order is one random cycle over all places of the footprint, `stride` bytes apart (a Feistel permutation,
computed where it is needed, so only visited places are written). L1 is bypassed. Footprints of at most 2^20
places are first read once by the same multiprocessor; larger ones begin with an L2 full of other bytes.
Each trial of a round starts where the one before ended.
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

STEPS = 16384
SINGLE_STEPS = 4096
TRIALS = 16  # a round; a sample is the mean of MEAN_OF
MEAN_OF = 4
TOUCH_PLACES = 1 << 20
THREADS = 512
ALONE_BYTES = 120 * 1024  # shared memory that leaves room for one block per multiprocessor
OUT = 8  # 64-bit words of one trial's answer


def build(data: torch.Tensor, places: int, stride: int, seed: int, visits: int) -> None:
    """Write the addresses of visits 0 .. visits (all of them if the cycle is shorter)."""
    count = min(places, visits + 1)
    cuda.bind("chase.cu", "chase_build", 132 * 8, 256, data, places, stride, seed, 0, count)()


Answers = tuple[list[list[int]], list["torch.Tensor"], dict]


def trials(point: Point, env: Env, steps: int, single: bool = False) -> Answers:
    """All trials: their answers (ns, cycles, right, multiprocessor), single loads if asked for, clocks."""
    import torch

    footprint, stride = point["footprint"], point.axes.get("stride", 128)
    sm = point.axes.get("sm", -1)
    places = footprint // stride
    per_round = 1 if env.smoke else TRIALS
    answers: list[list[int]] = []
    loads: list[torch.Tensor] = []
    clocks: dict = {}
    for round_index in range(env.rounds):
        data = slices(env, footprint, 1, round_index, seed=point.seed)[0]
        seed = point.seed + round_index
        build(data, places, stride, seed, steps * per_round)
        flush_l2(env, data)
        out = torch.zeros(per_round * OUT, dtype=torch.int64, device=env.device)
        took = torch.zeros(per_round * SINGLE_STEPS if single else 1, dtype=torch.int32, device=env.device)
        for trial in range(per_round):
            touch = int(places <= TOUCH_PLACES)
            arguments = [data, places, stride, seed, trial * steps, steps, touch, sm, out[trial * OUT :]]
            if single:
                arguments.append(took[trial * SINGLE_STEPS :])
            name = "chase_single" if single else "chase_run"
            grid, shared = (1, 0) if sm < 0 else (processors(env), ALONE_BYTES)
            cuda.bind("chase.cu", name, grid, THREADS, *arguments, shared_bytes=shared)()
        clocks = clocks or env.clocks()
        answers += out.view(per_round, OUT).tolist()
        loads += list(took.view(per_round, -1)) if single else []
    for answer in answers:
        check(answer, sm)
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
    if sm >= 0 and answer[3] != sm:
        raise ValueError(f"ran on multiprocessor {answer[3]}, expected {sm}")


def measured(point: Point, samples: list[float], steps: int, clocks: dict, extra: dict) -> Measured:
    footprint = point["footprint"]
    return Measured(
        samples, bytes_read=8, calls=steps, footprint_bytes=footprint, clocks=clocks, extra=extra
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
    """Nanoseconds per load, a sample the mean of some trials."""
    if env.profile:
        return listed(point, env)
    answers, _, clocks = trials(point, env, STEPS)
    cycles = statistics.median(answer[1] / STEPS for answer in answers)
    samples = [answer[0] / STEPS for answer in answers]
    return measured(point, means(samples, MEAN_OF), STEPS, clocks, {"cycles": round(cycles, 2)})


def single(point: Point, env: Env) -> Measured:
    """A percentile of the times of single loads, clock reads included; a sample the mean of some trials."""
    if env.profile:
        return listed(point, env)
    answers, loads, clocks = trials(point, env, SINGLE_STEPS, single=True)
    samples = []
    for answer, took in zip(answers, loads, strict=True):
        ns_per_cycle = answer[0] / answer[1]
        samples.append(percentile(took.tolist(), point["percent"] / 100) * ns_per_cycle)
    cycles = percentile(sorted(loads[0].tolist()), point["percent"] / 100)
    return measured(point, means(samples, MEAN_OF), SINGLE_STEPS, clocks, {"cycles": round(cycles, 2)})


FAMILIES = {"chase.latency": latency, "chase.sm": latency, "chase.single": single}
