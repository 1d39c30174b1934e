"""What launches cost: graphs of kernels that do next to nothing, on the device's clock and on the host's."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean

from . import cuda
from .device import Env, slices
from .points import Point
from .rows import Measured
from .timing import Work, capture, means, profiled, replay_ns, side_stream, time_work

SAMPLES = 10
LEAD, LEAST, MOST = 3, 2, 20  # replays queued together: the first, which do not count, and those that do
SWEPT_BYTES, SWEPT, SWEEPERS = 64 << 20, 4, 132 * 8
OTHERS = 16  # kernels with code of their own
HOST_SAMPLES, HOST_LEAST, HOST_WARM = 20, 200, 20


def kernel(name: str, env: Env) -> Callable[[], None]:
    """empty: one warp; wide: 1024 threads on every multiprocessor; tiny: each of them changes its 4 bytes."""
    import torch

    processors = torch.cuda.get_device_properties(env.device).multi_processor_count
    if name in ("empty", "others"):
        return cuda.bind("launch.cu", "empty", 1, 32)
    if name == "wide":
        return cuda.bind("launch.cu", "empty", processors, 1024)
    data = slices(env, processors * 1024 * 4, 1, 0)[0]
    return cuda.bind("launch.cu", "tiny", processors, 1024, data)


def gap(point: Point, env: Env) -> Measured:
    """One graph of `nodes` kernels in a row: nanoseconds of a whole replay, nothing subtracted.

    A graph takes up to 4 % more or less from one capture to the next, so a sample is the mean over
    `env.rounds` captures of some replays of each. Only a few replays are queued together and the clocks are
    read beside others: in a queue of a hundred, or with somebody looking, every third of the first sixty
    takes 1 us longer.
    """
    import torch

    call = kernel(point["kernel"], env)
    if env.profile:
        return profiled(Work([call], 0, 0, 0), env)
    found: list[list[float]] = []
    clocks: dict = {}
    share_ns = env.budget_s * 1e9 / env.rounds / SAMPLES
    with torch.cuda.device(env.device), torch.cuda.stream(side_stream(env)):
        call()
        for _ in range(env.rounds):
            graph, kernels = capture([call], point["nodes"])
            once_ns = max(1.0, min(replay_ns(graph, LEAD)))
            count = max(LEAST, min(MOST, int(share_ns / once_ns)))
            found.append([fmean(replay_ns(graph, LEAD + count)[LEAD:]) for _ in range(SAMPLES)])
        replay_ns(graph, MOST, lambda: clocks.update(env.clocks()))
    samples = [fmean(each) for each in zip(*found, strict=True)]
    return Measured(samples, calls=1, clocks=clocks, kernels=kernels)


def host(point: Point, env: Env) -> Measured:
    """The host's clock around one replay on an idle stream, until the call returns or the GPU is done. A
    sample is the mean of a twentieth of them, so that the host's moments of other work are in each.
    """
    import torch

    call = kernel("empty", env)
    if env.profile:
        return profiled(Work([call], 0, 0, 0), env)
    samples: list[float] = []
    stream = side_stream(env)
    with torch.cuda.device(env.device), torch.cuda.stream(stream):
        call()
        graph, kernels = capture([call], point["nodes"])
        replay_ns(graph, 20)
        end = time.monotonic() + env.budget_s
        while len(samples) < HOST_WARM + HOST_LEAST or time.monotonic() < end:
            start = time.perf_counter_ns()
            graph.replay()
            returned = time.perf_counter_ns()
            stream.synchronize()
            done = time.perf_counter_ns()
            samples.append((returned if point["until"] == "returned" else done) - start)
    samples = samples[HOST_WARM:]
    return Measured(
        means(samples, len(samples) // HOST_SAMPLES), calls=1, clocks=env.clocks(), kernels=kernels
    )


def dispatch(point: Point, env: Env) -> Measured:
    """A kernel of many blocks that end at once, in a row: one of them."""
    call = cuda.bind("launch.cu", "empty", point["blocks"], point["threads"])
    return time_work(lambda _: Work([call], 0, 0, 0), env)


def cold(point: Point, env: Env) -> Measured:
    """So many small kernels in a row behind a pass over 64 MiB of HBM, as in a step: nothing of theirs is in
    the L2. Nanoseconds of all of them; what the pass takes alone is subtracted.
    """
    areas = slices(env, SWEPT_BYTES, SWEPT, 0)
    sweeps = [cuda.bind("common.cu", "sweep", SWEEPERS, 256, area, SWEPT_BYTES // 16, area) for area in areas]
    kinds = [kernel(point["kernel"], env)]
    if point["kernel"] == "others":
        kinds = [cuda.bind("launch.cu", f"empty{number}", 1, 32) for number in range(OTHERS)]
    nodes = [kinds[number % len(kinds)] for number in range(point["nodes"])]

    def behind(sweep: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            for each in (sweep, *nodes):
                each()

        return call

    measured = time_work(lambda _: Work([behind(sweep) for sweep in sweeps], 0, 0, 0), env)
    if not env.profile:
        less = fmean(time_work(lambda _: Work(sweeps, 0, 0, 0), env).samples_ns)
        measured.samples_ns = [sample - less for sample in measured.samples_ns]
    return measured


FAMILIES = {"launch.gap": gap, "launch.host": host, "launch.dispatch": dispatch, "launch.cold": cold}
