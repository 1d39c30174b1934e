"""How long calls take: CUDA graphs over rotating buffers, with events; on a CPU a plain loop and its clock.

Enters: a builder that makes fresh buffers and gives one call per buffer. Leaves: nanoseconds of one call,
one sample per group of replays back to back, or per window of such groups. How long those last is the
family's (campaign file): some ms, or a window of one second, which is how long the power limiter takes to
move the clock down and up again. Every call runs once before capture (some libraries capture set-up kernels
otherwise); a graph holds at least 16 calls that go round the buffers, more where they are short; what an
empty graph takes is subtracted; the whole is done again with fresh buffers (`rounds`), and all the samples
are kept.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .device import Env
from .rows import Measured

if TYPE_CHECKING:
    import torch

Call = Callable[[], None]
MIN_CALLS, MAX_CALLS = 16, 512
GRAPH_NS = 800_000  # what one replay should last at least, so that the launch is a small part
LONG_CALL_NS = 5_000_000  # above this a graph may hold fewer than 16 calls
LONG_GRAPH_NS = 20_000_000
MAX_GROUP = 512  # replays of one sample
EMPTY_GROUP = 32  # of empty graphs: more in a row take no less each
MIN_REPLAYS, MAX_REPLAYS = 7, 400


@dataclass
class Work:
    """One set of fresh buffers.

    calls            one call per buffer set; they are made in turn, so that caches hold little of the next
    bytes_read/written  of one call, from the shapes
    footprint_bytes  all the buffers together
    check            raises if the output is wrong; run once, after timing
    renew            runs before every replay, outside the timed span: new indices, say
    """

    calls: Sequence[Call]
    bytes_read: int
    bytes_written: int
    footprint_bytes: int
    check: Callable[[], None] | None = None
    renew: Call | None = None
    keep: object = None


def time_work(
    build: Callable[[int], Work],
    env: Env,
    *,
    calls_per_graph: int = 0,
) -> Measured:
    """Samples over `env.rounds` builds, `env.budget_s` seconds of replays in all.

    calls_per_graph fixes the calls of a graph; 0 chooses: 16 to 512, whole turns of the buffers, a replay of
    0.8 ms or more. In the profiler pass the calls run once under the profiler instead.
    """
    if env.profile:
        return profiled(build(0), env)
    share_s = env.budget_s / env.rounds
    least = -(-MIN_REPLAYS // env.rounds)
    samples: list[float] = []
    first: Measured | None = None
    for index in range(env.rounds):
        work = build(index)
        done = (_time_cuda if env.cuda else _time_cpu)(work, env, share_s, least, calls_per_graph)
        if work.check:
            work.check()
        samples += done.samples_ns
        first = first or done
        del work
    assert first is not None
    first.samples_ns = samples
    return first


def _measured(work: Work, samples: list[float], calls: int) -> Measured:
    return Measured(
        samples_ns=samples,
        bytes_read=work.bytes_read,
        bytes_written=work.bytes_written,
        calls=calls,
        buffers=len(work.calls),
        footprint_bytes=work.footprint_bytes,
    )


def calls_for(call_ns: float, buffers: int) -> int:
    """Calls of one graph: whole turns of the buffers, at most 512, and 16 or more unless they are long."""
    if call_ns > LONG_CALL_NS:
        return max(1, min(MIN_CALLS, int(LONG_GRAPH_NS / call_ns)))
    wanted = min(MAX_CALLS, max(MIN_CALLS, -(-GRAPH_NS // max(1, int(call_ns)))))
    if buffers > MAX_CALLS:
        return wanted
    return min(-(-wanted // buffers), MAX_CALLS // buffers) * buffers


def _time_cuda(work: Work, env: Env, budget_s: float, least: int, calls_per_graph: int) -> Measured:
    import torch

    with torch.cuda.device(env.device):
        stream = side_stream(env)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if work.renew:
                work.renew()
            first_ns = _eager_ns(work.calls)
            calls = calls_per_graph or calls_for(first_ns, len(work.calls))
            graph, kernels = capture(work.calls, calls)
            once_ns = replay_ns(graph, 2, renew=work.renew)[-1]
            better = calls_per_graph or calls_for(once_ns / calls, len(work.calls))
            if better > calls:  # the eager estimate holds the launches: short calls look longer than they are
                calls = better
                graph, kernels = capture(work.calls, calls)
                once_ns = replay_ns(graph, 2, renew=work.renew)[-1]
            once_ns = max(1.0, once_ns)
            warm = max(1, min(MAX_REPLAYS, int(env.warm_s * 1e9 / once_ns)))
            group = 1 if work.renew else max(1, min(MAX_GROUP, round(env.sample_s * 1e9 / once_ns)))
            count = int(min(MAX_REPLAYS, max(least, budget_s * 1e9 / (once_ns * group))))
            clocks: dict[str, int | float] = {}

            started = time.monotonic()

            def look() -> None:
                queued_s = time.monotonic() - started  # the host may have waited: not all fits into the queue
                time.sleep(max(0.0, once_ns * (warm + group * count / 2) / 1e9 - queued_s))
                clocks.update(env.clocks())

            spans = replay_ns(graph, count, look, work.renew, group, warm)
            graph_ns = empty_graph_ns(env, min(group, EMPTY_GROUP))
    if env.window_s:
        spans = sliding(spans, max(1, round(env.window_s * 1e9 / (group * statistics.fmean(spans)))))
    done = _measured(work, [max(0.0, span - graph_ns) / calls for span in spans], calls)
    done.graph_ns, done.clocks, done.kernels = graph_ns, clocks, kernels
    return done


def side_stream(env: Env) -> torch.cuda.Stream:
    """The stream that everything is captured and timed on; one per device."""
    import torch

    name = f"stream {torch.cuda.current_device()}"
    if name not in env.facts:
        env.facts[name] = torch.cuda.Stream()
    return env.facts[name]  # type: ignore[return-value]


def _eager_ns(calls: Sequence[Call]) -> float:
    """Every call once, twice; nanoseconds per call of the second turn (launches included)."""
    import torch

    for call in calls:
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6 / len(calls)


def capture(calls: Sequence[Call], count: int) -> tuple[torch.cuda.CUDAGraph, dict[str, int] | None]:
    """A graph of `count` calls in turn on the current stream (not the default one), and its kernels."""
    import torch

    from . import cuda, graph_nodes

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for index in range(count):
            calls[index % len(calls)]()
    except BaseException:
        with contextlib.suppress(Exception):
            graph.capture_end()
        raise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty graph is captured on purpose
        graph.capture_end()
    kernels = None
    with contextlib.suppress(cuda.CudaError, AttributeError):
        kernels = graph_nodes.kernels(graph.raw_cuda_graph())
    graph.instantiate()
    return graph, kernels


def replay_ns(
    graph: torch.cuda.CUDAGraph,
    count: int,
    while_running: Callable[[], object] | None = None,
    renew: Call | None = None,
    group: int = 1,
    warm: int = 0,
) -> list[float]:
    """Nanoseconds of a replay in each of `count` groups of replays back to back; the host runs ahead.

    `warm` replays go before the first group without a gap, so that the power limiter has settled. `renew` is
    called before each group, outside its span; `while_running` once, when all is queued.
    """
    import torch

    from . import cuda

    if count < 1:
        return []
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    cuda.bind("common.cu", "spin", 1, 1, min(30_000_000, 100_000 + (40_000 + 15_000 * group) * count))()
    for _ in range(warm):
        if renew:
            renew()
        graph.replay()
    for start, end in pairs:
        if renew:
            renew()
        start.record()
        for _ in range(group):
            graph.replay()
        end.record()
    if while_running:
        while_running()
    torch.cuda.current_stream().synchronize()
    return [start.elapsed_time(end) * 1e6 / group for start, end in pairs]


def empty_graph_ns(env: Env, group: int = 1) -> float:
    """What a replay of a graph without nodes takes in such a group, median of 64; measured once a run."""
    import torch

    name = f"empty graph {torch.cuda.current_device()} {group}"
    if name not in env.facts:
        graph, _ = capture([lambda: None], 1)
        replay_ns(graph, 16)
        env.facts[name] = statistics.median(replay_ns(graph, 64, group=group))
    return env.facts[name]  # type: ignore[return-value]


def _time_cpu(work: Work, env: Env, budget_s: float, least: int, calls_per_graph: int) -> Measured:
    """The same on the host: a replay is a loop of calls."""
    if work.renew:
        work.renew()
    for call in work.calls:
        call()
    start = time.perf_counter_ns()
    for call in work.calls:
        call()
    call_ns = (time.perf_counter_ns() - start) / len(work.calls)
    calls = calls_per_graph or calls_for(call_ns, len(work.calls))
    count = int(min(MAX_REPLAYS, max(least, budget_s * 1e9 / max(1.0, call_ns * calls))))
    samples = []
    for _ in range(count):
        if work.renew:
            work.renew()
        start = time.perf_counter_ns()
        for index in range(calls):
            work.calls[index % len(work.calls)]()
        samples.append((time.perf_counter_ns() - start) / calls)
    return _measured(work, samples, calls)


def profiled(work: Work, env: Env) -> Measured:
    """One pass of the calls under the profiler; the kernels go to env.captured."""
    if not env.cuda:
        return _measured(work, [1.0], 1)
    import torch
    from torch.profiler import ProfilerActivity, profile

    if work.renew:
        work.renew()
    for call in work.calls:
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for call in work.calls:
            call()
        torch.cuda.synchronize()
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, total = env.captured.get(event.name, (0, 0))
            env.captured[event.name] = (count + 1, total + round(event.time_range.elapsed_us() * 1000))
    return _measured(work, [1.0], len(work.calls))


def means(samples: list[float], of: int) -> list[float]:
    """Means of consecutive samples, `of` at a time; the rest of the last ones is left out."""
    if len(samples) < of:
        return samples
    return [statistics.fmean(samples[at : at + of]) for at in range(0, len(samples) - of + 1, of)]


def sliding(samples: list[float], of: int) -> list[float]:
    """Means of `of` consecutive samples (of all, if they are fewer), one that begins at each where it can."""
    of = min(of, len(samples))
    return [statistics.fmean(samples[at : at + of]) for at in range(len(samples) - of + 1)]
