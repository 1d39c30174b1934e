"""What launches cost: graphs of kernels that do next to nothing, on the device's clock and on the host's."""

from __future__ import annotations

import time
from collections.abc import Callable

from . import cuda
from .device import Env, slices
from .points import Point
from .rows import Measured
from .timing import Work, capture, means, profiled, replay_ns, side_stream

REPLAYS = 100


def kernel(name: str, env: Env) -> Callable[[], None]:
    """empty: one warp; wide: 1024 threads on every multiprocessor; tiny: each of them changes its 4 bytes."""
    import torch

    processors = torch.cuda.get_device_properties(env.device).multi_processor_count
    if name == "empty":
        return cuda.bind("launch.cu", "empty", 1, 32)
    if name == "wide":
        return cuda.bind("launch.cu", "empty", processors, 1024)
    data = slices(env, processors * 1024 * 4, 1, 0)[0]
    return cuda.bind("launch.cu", "tiny", processors, 1024, data)


def gap(point: Point, env: Env) -> Measured:
    """One graph of `nodes` kernels in a row: nanoseconds of a whole replay, nothing subtracted."""
    import torch

    call = kernel(point["kernel"], env)
    if env.profile:
        return profiled(Work([call], 0, 0, 0), env)
    samples: list[float] = []
    clocks: dict = {}
    with torch.cuda.device(env.device), torch.cuda.stream(side_stream(env)):
        call()
        for _ in range(env.rounds):
            graph, kernels = capture([call], point["nodes"])
            replay_ns(graph, 20)
            count = REPLAYS // env.rounds
            samples += replay_ns(graph, count, lambda: clocks.update(env.clocks()))
    return Measured(samples, calls=1, clocks=clocks, kernels=kernels)


def host(point: Point, env: Env) -> Measured:
    """The host's clock around one replay on an idle stream, until the call returns or the GPU is done; a
    sample is the mean of ten."""
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
        for _ in range(20 + 10 * REPLAYS):
            start = time.perf_counter_ns()
            graph.replay()
            returned = time.perf_counter_ns()
            stream.synchronize()
            done = time.perf_counter_ns()
            samples.append((returned if point["until"] == "returned" else done) - start)
    return Measured(means(samples[20:], 10), calls=1, clocks=env.clocks(), kernels=kernels)


FAMILIES = {"launch.gap": gap, "launch.host": host}
