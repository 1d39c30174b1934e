"""CPU memory: streams by threads, gathers of rows, a chase by span. Loops are numba's, threads Python's.

Enters: points of `cpu.*`, or the same questions from `validation.here`. Leaves: nanoseconds of one pass
(stream, gather) or of one hop (chase). A sample runs from the first thread's start to the last one's end;
every thread is bound to a CPU of its own. Stores are ordinary ones: a written line is read first, which no
counter here sees.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .device import Env, Skipped
from .points import Point
from .rows import Measured

if TYPE_CHECKING:
    import numpy as np

LINE_BYTES = 64
WORD_BYTES = 8
SAMPLE_NS = 25_000_000  # a sample should last at least so long: starting threads takes some 50 us
STREAM_BYTES = 512 << 20
GATHER_PARTS = 8  # a pass of a gather reads one of so many lists; together they cover the array
CHASE_NODES = 1 << 21  # 128 MB of lines: more hops than one point's time allows
MIN_SAMPLES = 9


def loops() -> Any:
    """The compiled loops. Skipped if numba or numpy is missing."""
    try:
        from . import cpu_loops
    except ImportError as error:
        raise Skipped(f"needs numba and numpy: {error}") from None
    return cpu_loops


def cpus() -> list[int]:
    """CPUs that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def llc_bytes() -> int:
    """Last-level cache of the first CPU as the kernel states it; 0 if it does not."""
    found = 0
    for level in range(5):
        try:
            with open(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size", encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        found = max(found, int(text.rstrip("KMG")) * factor)
    return found


def available_bytes() -> int:
    """Memory that can be had without swapping (MemAvailable)."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def array(nbytes: int, *, huge: bool = True) -> np.ndarray:
    """uint64 words in fresh anonymous pages, of 2 MB if the kernel grants them (`huge`), else of 4 KB."""
    import numpy as np

    whole = -(-nbytes // (2 << 20)) * (2 << 20)
    pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        pages.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint64)[: nbytes // WORD_BYTES]


def side_by_side(work: Sequence[Callable[[], object]], samples: int) -> list[float]:
    """Nanoseconds from the first start to the last end of all `work`, each in a thread bound to one CPU.

    One more turn than `samples` is run and the first is dropped. What a thread raises is raised here.
    """
    gate = threading.Barrier(len(work))
    spans: list[list[tuple[int, int]]] = [[(0, 0)] * len(work) for _ in range(samples + 1)]
    errors: list[BaseException] = []
    places = cpus()

    def run(index: int) -> None:
        try:
            os.sched_setaffinity(0, {places[index % len(places)]})
            for turn in spans:
                gate.wait()
                start = time.perf_counter_ns()
                work[index]()
                turn[index] = (start, time.perf_counter_ns())
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:  # raised again below
            errors.append(error)
            gate.abort()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [float(max(end for _, end in turn) - min(start for start, _ in turn)) for turn in spans[1:]]


def timed_passes(work: Callable[[int], Sequence[Callable[[], object]]], budget_s: float) -> list[float]:
    """Nanoseconds of one pass. `work(passes)` gives the threads' loops; passes make a sample long enough."""
    once_ns = min(side_by_side(work(1), 2))
    passes = max(1, -(-SAMPLE_NS // int(max(1.0, once_ns))))
    samples = max(MIN_SAMPLES, int(budget_s * 1e9 / (once_ns * passes)))
    return [span / passes for span in side_by_side(work(passes), min(samples, 200))]


def evict(words: np.ndarray) -> None:
    """Read another 512 MB, so that what was just written is no longer in the caches."""
    loops().read(words, 1)


def streamed(op: str, threads: int, nbytes: int, budget_s: float) -> Measured:
    """`op` (read, write, copy) over nbytes in all (a copy reads half of them), in equal slices."""
    import numpy as np

    code = loops()
    words = array(nbytes)
    parts = np.array_split(words, threads)
    side_by_side([functools.partial(code.fill, part, seed) for seed, part in enumerate(parts, 1)], 1)

    def work(passes: int) -> list[Callable[[], object]]:
        if op == "copy":
            halves = [np.array_split(part[: len(part) // 2 * 2], 2) for part in parts]
            return [functools.partial(code.copy, source, target, passes) for source, target in halves]
        return [functools.partial(getattr(code, op), part, passes) for part in parts]

    samples = timed_passes(work, budget_s)
    moved = words.nbytes // 2 if op == "copy" else words.nbytes
    return Measured(
        samples_ns=samples,
        bytes_read=0 if op == "write" else moved,
        bytes_written=0 if op == "read" else moved,
        footprint_bytes=words.nbytes,
    )


def gathered(row_bytes: int, threads: int, nbytes: int, budget_s: float, seed: int = 1) -> Measured:
    """Rows drawn at random (aligned to their size) from nbytes; each pass takes the next of several lists."""
    import numpy as np

    code = loops()
    words = array(nbytes)
    parts = np.array_split(words, threads)
    side_by_side([functools.partial(code.fill, part, s) for s, part in enumerate(parts, 1)], 1)
    rng = np.random.default_rng(seed)
    row_words, rows = row_bytes // WORD_BYTES, max(1, words.nbytes // row_bytes // threads // GATHER_PARTS)
    places = words.nbytes // row_bytes
    lists = [[rng.integers(0, places, rows) * row_words for _ in range(GATHER_PARTS)] for _ in range(threads)]
    turns = [itertools.cycle(mine) for mine in lists]

    def gather(turn: Iterator[np.ndarray], passes: int) -> None:
        for _ in range(passes):
            code.gather(words, next(turn), row_words)

    samples = timed_passes(
        lambda passes: [functools.partial(gather, turn, passes) for turn in turns], budget_s
    )
    moved = threads * rows * row_bytes
    return Measured(
        samples_ns=samples,
        bytes_read=moved,
        buffers=GATHER_PARTS,
        footprint_bytes=min(GATHER_PARTS * moved, words.nbytes),
    )


def link_cycle(words: np.ndarray, seed: int = 1, nodes: int = CHASE_NODES) -> int:
    """Link lines of `words`, at most `nodes`, evenly spread, into one random cycle; returns a first word."""
    import numpy as np

    rng = np.random.default_rng(seed)
    step = LINE_BYTES // WORD_BYTES
    lines = len(words) // step
    count = min(lines, nodes)
    share = lines // count
    slots = (np.arange(count) * share + rng.integers(0, share, count)) * step
    rng.shuffle(slots)
    words[slots] = np.roll(slots, -1)
    return int(slots[0])


def chased(span_bytes: int, budget_s: float, *, huge: bool, seed: int = 1) -> Measured:
    """Nanoseconds of one dependent load, lines drawn at random from span_bytes."""
    code = loops()
    words = array(span_bytes, huge=huge)
    at = link_cycle(words, seed)
    if span_bytes > llc_bytes() // 4:
        evict(_scratch())
    lines = min(CHASE_NODES, span_bytes // LINE_BYTES)
    if span_bytes <= 64 << 20:
        at = code.chase(words, at, lines)  # once round: what fits in a cache is there

    def hop(hops: int) -> float:
        nonlocal at
        start = time.perf_counter_ns()
        at = code.chase(words, at, hops)
        return (time.perf_counter_ns() - start) / hops

    code.chase(words, at, 1)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpus()[-1]})
    try:
        hops = max(1000, int(budget_s * 1e9 / 20 / hop(2000)))
        samples = [hop(hops) for _ in range(20)]
    finally:
        os.sched_setaffinity(0, before)
    footprint = min(span_bytes, CHASE_NODES * LINE_BYTES)
    return Measured(samples_ns=samples, bytes_read=WORD_BYTES, calls=hops, footprint_bytes=footprint)


@functools.cache
def _scratch() -> np.ndarray:
    words = array(512 << 20)
    loops().fill(words, 7)
    return words


def median_ns(measured: Measured) -> float:
    return statistics.median(measured.samples_ns)


def _need(threads: int, nbytes: int) -> None:
    """RuntimeError (an error row) if this machine is too small for a point."""
    if threads > len(cpus()):
        raise RuntimeError(f"{threads} threads need as many CPUs, found {len(cpus())}")
    if nbytes > available_bytes() // 2:
        raise RuntimeError(f"needs {nbytes >> 20} MiB, {available_bytes() >> 20} MiB are free")


def _stream(point: Point, env: Env) -> Measured:
    threads = int(point["threads"])
    _need(threads, nbytes := _size(env))
    return streamed(str(point["op"]), threads, nbytes, env.budget_s)


def _gather(point: Point, env: Env) -> Measured:
    threads = int(point["threads"])
    _need(threads, nbytes := _size(env))
    return gathered(int(point["row"]), threads, nbytes, env.budget_s, point.seed)


def _chase(point: Point, env: Env) -> Measured:
    _need(1, span := int(point["span"]))
    return chased(span, env.budget_s, huge=point["pages"] == "huge", seed=point.seed)


def _size(env: Env) -> int:
    """Bytes of the streamed array: 512 MiB, and at least four times the last-level cache."""
    return 8 << 20 if env.smoke else max(STREAM_BYTES, 4 * llc_bytes())


FAMILIES = {"cpu.stream": _stream, "cpu.gather": _gather, "cpu.chase": _chase}
