"""What a GPU gets out of a memory behind a link, host or peer: copies, streams, gathers and a chase.

Enters: a point and the `Far` memory. Leaves: rows of `Measured`. Bytes are counted once, on the link, as
the GPU sees them: a copy or load from the far memory is read, a copy or store to it is written. Every call
of a stream or gather starts where the one before it ended (see `cuda/host_move.cu`), so that a place is
read again only after the whole region or list has been. The calls' sizes follow from the axes and from what
the link may be expected to give.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import cuda
from .device import Env, Skipped, slices
from .host_memory import SCRATCH_BYTES, Far, copy_async
from .points import Point
from .rows import Measured
from .timing import Work, means, side_stream, time_work

if TYPE_CHECKING:
    import torch

SOURCE = "host_move.cu"
PAGE_BYTES = 2 << 20
CALLS = 16
TARGET_NS = 700_000  # what one call of a stream should take
HOPS = 1024
CHASE_NODES = 1 << 20
COLD_BYTES = 256 << 20  # several times the GPU's L2
FLIGHT = {2048: (128, 1), 4096: (256, 1), 8192: (256, 2), 16384: (256, 4), 32768: (512, 4), 65536: (512, 8)}
QUEUE_TRIALS, QUEUE_SAMPLES = 80, 8  # least trials of a point; samples that their means make
QUEUE_COPIES = 16_000  # of a point: enough, if the time is not over before
QUEUE_WARM = 2  # trials that do not count, at least; an engine is quicker after a tenth of a second of work
MAX_WAIT_NS = 20_000_000  # a full queue makes the host wait for the kernel: more would not help
FLUSH_BYTES = 128 << 20


def places(far: Far, nbytes: int, count: int, rng: random.Random) -> list[int]:
    """Up to `count` far addresses of `nbytes` each, on pages of their own, none across a chunk."""
    step = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    in_chunk = far.chunk_bytes // step
    chunks, rest = divmod(far.nbytes, far.chunk_bytes)
    total = chunks * in_chunk + rest // step
    if not total:
        raise RuntimeError(f"a copy of {nbytes} bytes does not fit the far region of {far.nbytes}")
    first = rng.randrange(total)
    found = [(first + index) % total for index in range(min(count, total))]
    return [far.base + place // in_chunk * far.chunk_bytes + place % in_chunk * step for place in found]


def need_span(span: int, far: Far) -> None:
    """RuntimeError (an error row) if the region is smaller than a point's span."""
    if span > far.nbytes:
        raise RuntimeError(f"span {span}: the region has {far.nbytes} bytes")


def buffers_for(nbytes: int, gbps: float) -> int:
    """Buffers that calls of this size go round: many short calls, few long ones (all are run to warm up)."""
    if nbytes / gbps > 2_000_000:
        return 4
    return min(256, max(CALLS, COLD_BYTES // nbytes))


def copies(point: Point, env: Env, far: Far) -> Measured:
    """axes direction (in: to the GPU, out: from it), bytes: copies by the engine, one by one in a graph."""
    inward, nbytes = point["direction"] == "in", int(point["bytes"])

    def build(round_index: int) -> Work:
        rng = random.Random(point.seed * 8 + round_index)
        there = places(far, nbytes, buffers_for(nbytes, far.gbps), rng)
        here = slices(env, nbytes, len(there), round_index, seed=point.seed)
        calls = [_copy(a, b.data_ptr(), nbytes, inward) for a, b in zip(there, here, strict=True)]
        read = nbytes if inward else 0
        return Work(calls, read, nbytes - read, nbytes * len(calls), keep=here)

    return time_work(build, env)


def _copy(far_address: int, near_address: int, nbytes: int, inward: bool) -> Callable[[], None]:
    target, source = (near_address, far_address) if inward else (far_address, near_address)
    return lambda: copy_async(target, source, nbytes)


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: source read in stream order; places as (type, id), 1 = device, 2 = host."""

    _fields_ = [("order", ctypes.c_int), ("source", ctypes.c_int * 2), ("target", ctypes.c_int * 2)] + [
        ("flags", ctypes.c_uint)
    ]


def batch(
    targets: list[int], sources: list[int], nbytes: int, places_of: tuple[tuple[int, int], tuple[int, int]]
) -> Callable[[int], None]:
    """A call that hands all copies to the driver at once (cuMemcpyBatchAsync, CUDA 13) on a stream."""
    count = len(targets)
    words = ctypes.c_ulonglong * count
    to, from_, sizes = words(*targets), words(*sources), (ctypes.c_size_t * count)(*[nbytes] * count)
    source, target = places_of
    attributes = CopyAttributes(1, (ctypes.c_int * 2)(*source), (ctypes.c_int * 2)(*target), 0)
    first = ctypes.c_size_t(0)

    def call(stream: int) -> None:
        code = cuda.driver().cuMemcpyBatchAsync_v2(
            to,
            from_,
            sizes,
            ctypes.c_size_t(count),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            ctypes.c_void_p(stream),
        )
        cuda.check(code, f"cuMemcpyBatchAsync({count} x {nbytes} B)")

    return call


def queued(point: Point, env: Env, far: Far, far_place: tuple[int, int]) -> Measured:
    """axes direction, mode (stream: one call a copy, batch: one call for all), bytes, queued: time per copy.

    The copies are queued behind a waiting kernel and timed by events around them, so that the engine never
    waits for the host; a trial whose host took longer than the kernel waits does not count. A sample is the
    mean of an eighth of the trials: an engine wakes up 20 % and more faster or slower from one to the next.
    submit_ns is the host's own time per copy, with what Python's foreign calls cost.
    """
    if env.profile:
        raise Skipped("")
    import torch

    inward, nbytes, count = point["direction"] == "in", int(point["bytes"]), int(point["queued"])
    rng = random.Random(point.seed)
    near_place = (1, torch.cuda.current_device())
    both = (far_place, near_place) if inward else (near_place, far_place)
    samples, submits, trial, warm = [], [], 0, 0
    wait_ns, warm_s = 300_000 + 10_000 * count, time.monotonic() + env.warm_s
    end_s = warm_s + env.budget_s
    with torch.cuda.device(env.device), torch.cuda.stream(side_stream(env)):
        while trial < warm + QUEUE_TRIALS or (
            (trial - warm) * count < QUEUE_COPIES and time.monotonic() < end_s
        ):
            trial += 1
            if trial <= QUEUE_WARM or time.monotonic() < warm_s:
                warm = trial
            there = places(far, nbytes, count, rng)
            there = (there * -(-count // len(there)))[:count]
            here = [view.data_ptr() for view in slices(env, nbytes, count, trial, seed=point.seed)]
            targets, sources = (here, there) if inward else (there, here)
            whole = batch(targets, sources, nbytes, both) if point["mode"] == "batch" else None
            submit_ns, host_ns, copies_ns = _queue(targets, sources, nbytes, whole, wait_ns)
            if trial > warm and host_ns < wait_ns:
                submits.append(submit_ns / count)
                samples.append(copies_ns / count)
            wait_ns = min(MAX_WAIT_NS, max(wait_ns, 3 * submit_ns))
    if len(samples) < QUEUE_SAMPLES:
        raise RuntimeError(f"the host was too slow in all but {len(samples)} of {trial} trials")
    read = nbytes if inward else 0
    return Measured(
        samples_ns=means(samples, len(samples) // QUEUE_SAMPLES),
        bytes_read=read,
        bytes_written=nbytes - read,
        calls=count,
        buffers=count,
        footprint_bytes=nbytes * count,
        clocks=env.clocks(),
        extra={"submit_ns": round(statistics.median(submits))},
    )


def _queue(
    targets: list[int], sources: list[int], nbytes: int, whole: Callable[[int], None] | None, wait_ns: int
) -> tuple[int, int, float]:
    """One trial on the current stream: host's nanoseconds for the copies and for all, the copies' own."""
    import torch

    stream = torch.cuda.current_stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin = time.perf_counter_ns()
    cuda.bind("common.cu", "spin", 1, 1, wait_ns)()
    start.record()
    submit = time.perf_counter_ns()
    if whole:
        whole(stream.cuda_stream)
    else:
        for target, source in zip(targets, sources, strict=True):
            copy_async(target, source, nbytes, stream.cuda_stream)
    end.record()
    now = time.perf_counter_ns()
    end.synchronize()
    return now - submit, now - begin, start.elapsed_time(end) * 1e6


def stream_turns(blocks: int, flight: int, far: Far) -> int:
    """Turns of a stream's loop: TARGET_NS long, 16 at least; one turn moves blocks x flight bytes."""
    turn_ns = max(far.latency_ns, blocks * flight / far.gbps)
    return max(16, int(TARGET_NS / turn_ns))


def _cells(calls: int, step: int, whole: int, rng: random.Random) -> tuple[list[int], int]:
    """Start of each call in units of the region, and where the region ends: a whole number of steps."""
    steps = whole // step
    if steps < 1:
        raise RuntimeError(f"a call needs {step} units, the region has {whole}")
    first = rng.randrange(steps)
    return [(first + call) % steps * step for call in range(calls)], steps * step


def streams(point: Point, env: Env, far: Far) -> Measured:
    """axes op (read, write), blocks, flight (bytes under way a block), bytes (of a call; 0: chosen here)."""
    op, blocks, flight, nbytes = (point[axis] for axis in ("op", "blocks", "flight", "bytes"))
    threads, depth = FLIGHT[int(flight)]
    turn_bytes = int(blocks) * int(flight)
    turns = int(nbytes) // turn_bytes if nbytes else stream_turns(int(blocks), int(flight), far)
    if nbytes and turns * turn_bytes != nbytes:
        raise RuntimeError(f"bytes={nbytes} is no multiple of blocks x flight = {turn_bytes}")
    moved = turns * turn_bytes
    calls = 4 if moved / far.gbps > 2_000_000 else CALLS

    def build(round_index: int) -> Work:
        import torch

        rng = random.Random(point.seed * 8 + round_index)
        starts, around = _cells(calls, moved // 16, far.nbytes // 16, rng)
        cells = torch.tensor(starts, dtype=torch.int64, device=env.device)
        sink = torch.zeros(4, dtype=torch.int32, device=env.device)
        base = ctypes.c_void_p(far.base)
        launches = [
            cuda.bind(
                SOURCE, f"{op}_{depth}", int(blocks), threads, base, turns, cells, call, calls, around, sink
            )
            for call in range(calls)
        ]
        read = moved if op == "read" else 0
        return Work(launches, read, moved - read, around * 16, keep=(cells, sink))

    return time_work(build, env)


def row_starts(span: int, row: int, count: int, seed: int, device: str) -> torch.Tensor:
    """int64[count] starts of rows in 16-byte words. Few rows: each once, then again; many: drawn freely."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    rows = span // row
    if rows >= 4 * count:
        drawn = torch.randint(rows, (count,), device=device, generator=generator)
    else:
        turns = -(-count // rows)
        drawn = torch.rand(turns, rows, device=device, generator=generator).argsort(dim=1).flatten()[:count]
    return drawn.to(torch.int64) * (row // 16)


def lane_bits_for(row: int) -> int:
    """log2 of the neighbouring threads that read one row, 16 bytes each: 32 threads at most."""
    return min(5, (row // 16 - 1).bit_length())


def gathers(point: Point, env: Env, far: Far) -> Measured:
    """axes row, count, span (bytes that rows are drawn from), load (fresh: no L2 line is used twice)."""
    row, count, span = (int(point[axis]) for axis in ("row", "count", "span"))
    need_span(span, far)
    calls = 2 if row * count / far.gbps > 2_000_000 else CALLS
    listed = max(COLD_BYTES // row, count * calls) // count * count
    lane_bits = lane_bits_for(row)
    blocks = min(132 * 8, -(-(count << lane_bits) // 256))

    def build(round_index: int) -> Work:
        import torch

        rng = random.Random(point.seed * 8 + round_index)
        shift = rng.randrange((far.nbytes - span) // PAGE_BYTES + 1) * PAGE_BYTES
        starts = row_starts(span, row, listed, point.seed + round_index, env.device)
        first, around = _cells(calls, count, listed, rng)
        cells = torch.tensor(first, dtype=torch.int64, device=env.device)
        sink = torch.zeros(4, dtype=torch.int32, device=env.device)
        base = ctypes.c_void_p(far.base + shift)
        shape = (count, row // 16, lane_bits)
        launches = [
            cuda.bind(
                SOURCE,
                f"gather_{point['load']}",
                blocks,
                256,
                base,
                starts,
                *shape,
                cells,
                call,
                calls,
                around,
                sink,
            )
            for call in range(calls)
        ]
        return Work(launches, row * count, 0, min(listed, span // row) * row, keep=(starts, cells, sink))

    return time_work(build, env)


def chase_slots(span: int, nodes: int, seed: int, device: str) -> torch.Tensor:
    """int64[up to nodes] byte offsets of 128-byte lines, one in each share of the span, in random order."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    lines = span // 128
    count = min(lines, nodes)
    share = lines // count
    inside = torch.randint(share, (count,), device=device, generator=generator)
    slots = (torch.arange(count, device=device) * share + inside) * 128
    return slots[torch.rand(count, device=device, generator=generator).argsort()].contiguous()


def chases(point: Point, env: Env, far: Far, nodes: int = CHASE_NODES) -> Measured:
    """axes span, load: nanoseconds of one dependent load of 8 bytes; HOPS of them a call, launch included."""
    span = int(point["span"])
    need_span(span, far)

    def build(round_index: int) -> Work:
        rng = random.Random(point.seed * 8 + round_index)
        shift = rng.randrange((far.nbytes - span) // PAGE_BYTES + 1) * PAGE_BYTES
        slots = chase_slots(span, nodes, point.seed + round_index, env.device)
        base = ctypes.c_void_p(far.base + shift)
        cuda.bind(SOURCE, "link_slots", 264, 256, base, slots, slots.numel())()
        flush(env, far)
        cursor = slots[:1].clone()
        launch = cuda.bind(SOURCE, f"chase_{point['load']}", 1, 1, base, HOPS, cursor)
        return Work([launch], 8 * HOPS, 0, slots.numel() * 128, keep=(slots, cursor))

    measured = time_work(build, env)
    measured.samples_ns = [span_ns / HOPS for span_ns in measured.samples_ns]
    measured.bytes_read = 8
    return measured


def flush(env: Env, far: Far) -> None:
    """Copy SCRATCH_BYTES to the far scratch: what was just written leaves the caches before it."""
    import torch

    piece = slices(env, FLUSH_BYTES, 1, 0, seed=5)[0]
    for begin in range(0, SCRATCH_BYTES, FLUSH_BYTES):  # pieces that cross no chunk
        copy_async(far.scratch + begin, piece.data_ptr(), FLUSH_BYTES)
    torch.cuda.synchronize(env.device)
