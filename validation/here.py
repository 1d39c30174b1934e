"""Measures the computer that it runs on, without a GPU, and writes a machine file from what it found.

Enters: a folder for a file of random bytes (storage), how long to measure. Leaves: numbers with unit and
source, by name: memory (streams by threads, gathers by row size, dependent loads by span), the last-level
cache, arithmetic in single precision, random direct reads of the folder's disk.
"""

from __future__ import annotations

import argparse
import errno
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from validation.here_profile import Number, Numbers, profile_text
from validation.measure import micro_cpu, micro_storage
from validation.measure.rows import Measured

GIB = 1 << 30
ROWS = (64, 128, 256, 512, 1024, 4096)
SPANS = tuple(1 << bits for bits in (14, 18, 20, 22, 24, 26, 28, 30))
BLOCKS = (4096, 16384, 65536, 262144, 1048576)
DEPTHS = (1, 4, 16, 64)
UNKNOWN_LLC_BYTES = 32 << 20
MATRIX = 1536


Say = Callable[[str], None]


def measure(
    folder: Path | str = ".",
    *,
    point_s: float = 0.25,
    memory_bytes: int = micro_cpu.STREAM_BYTES,
    file_bytes: int = 2 * GIB,
    command: str = "memsim validate here",
    say: Say = lambda line: None,
) -> Numbers:
    """All numbers of this computer by name: "memory.read.threads_4", "storage.read.block_4096.depth_16", ...

    point_s: timed seconds per point; about 45 points. A folder whose disk takes no direct reads leaves out
    "storage.*", and `say` is told why.
    """
    when = f"{command}, {time.strftime('%Y-%m-%d')}"
    size = min(max(memory_bytes, 4 * micro_cpu.llc_bytes()), micro_cpu.available_bytes() // 4)
    numbers = _stated(when)
    for part in (_streams, _gathers, _chases, _cache):
        numbers |= part(when, point_s, size, say)
    numbers |= _arithmetic(when, say)
    numbers |= _storage(Path(folder), file_bytes, when, point_s, say)
    return numbers


def thread_counts() -> list[int]:
    """1, 2, 4, ... up to the CPUs that this process may use, and all of them."""
    most = len(micro_cpu.cpus())
    return sorted({*(1 << bits for bits in range(most.bit_length()) if 1 << bits <= most), most})


def _stated(when: str) -> Numbers:
    page = os.sysconf("SC_PAGE_SIZE")
    llc = micro_cpu.llc_bytes()
    said, guessed = f"{when}: what the kernel says", f"{when}: the kernel names no cache; a common size"
    return {
        "cpu.threads": Number(len(micro_cpu.cpus()), "", f"{when}: CPUs that the process may use"),
        "memory.capacity": Number(os.sysconf("SC_PHYS_PAGES") * page, "B", said, "stated"),
        "cache.capacity": Number(llc, "B", said, "stated")
        if llc
        else Number(UNKNOWN_LLC_BYTES, "B", guessed, "assumed"),
    }


def _rate(measured: Measured, source: str) -> Number:
    moved = measured.bytes_read + measured.bytes_written
    return Number(moved / statistics.median(measured.samples_ns) * 1e9, "B/s", _counted(measured, source))


def _counted(measured: Measured, source: str) -> str:
    return f"{source}; median of {len(measured.samples_ns)}"


def _told(numbers: Numbers, say: Say) -> Numbers:
    for name, number in numbers.items():
        say(f"{name}: {shown(number)}")
    return numbers


def _streams(when: str, point_s: float, size: int, say: Say) -> Numbers:
    numbers: Numbers = {}
    for op in ("read", "write", "copy"):
        for threads in thread_counts():
            measured = micro_cpu.streamed(op, threads, size, point_s)
            words = f"{when}: {op} of {size >> 20} MiB by {threads} threads (bytes read and bytes written)"
            numbers |= _told({f"memory.{op}.threads_{threads}": _rate(measured, words)}, say)
    return numbers


def _gathers(when: str, point_s: float, size: int, say: Say) -> Numbers:
    numbers: Numbers = {}
    threads = thread_counts()[-1]
    for row in ROWS:
        measured = micro_cpu.gathered(row, threads, size, point_s)
        words = f"{when}: random rows of {row} B from {size >> 20} MiB by {threads} threads"
        numbers |= _told({f"memory.gather.row_{row}": _rate(measured, words)}, say)
    return numbers


def _chases(when: str, point_s: float, size: int, say: Say) -> Numbers:
    """Latency by span, in pages of 2 MB where the kernel grants them; that of the largest is the memory's."""
    numbers: Numbers = {}
    for span in [span for span in SPANS if span < size] + [size]:
        measured = micro_cpu.chased(span, point_s, huge=True)
        words = _counted(measured, f"{when}: dependent loads from {span >> 10} KiB by one thread")
        number = Number(statistics.median(measured.samples_ns), "ns", words)
        numbers |= _told({f"memory.chase.span_{span}": number}, say)
    return _told({"memory.latency": number}, say) | numbers


def _cache(when: str, point_s: float, size: int, say: Say) -> Numbers:
    """Rate of all threads and latency of one in a quarter of the last-level cache: others use it too."""
    part = min((micro_cpu.llc_bytes() or UNKNOWN_LLC_BYTES) // 4, size)
    threads = thread_counts()[-1]
    read = micro_cpu.streamed("read", threads, part, point_s)
    chased = micro_cpu.chased(part, point_s, huge=True)
    words = f"{when}: dependent loads from {part >> 10} KiB, a quarter of the last-level cache"
    rate = _rate(
        read, f"{when}: read of {part >> 10} KiB, a quarter of the last-level cache, by {threads} threads"
    )
    latency = Number(statistics.median(chased.samples_ns), "ns", _counted(chased, words))
    return _told({"cache.read": rate, "cache.latency": latency}, say)


def _arithmetic(when: str, say: Say) -> Numbers:
    """Rate of a matrix product in single precision, and what it takes to start all threads at once."""
    import numpy as np

    rng = np.random.default_rng(1)
    a, b = (rng.random((MATRIX, MATRIX), dtype=np.float32) for _ in range(2))
    spans = []
    for _ in range(4):
        start = time.perf_counter()
        a @ b
        spans.append(time.perf_counter() - start)
    threads = thread_counts()[-1]
    starts = micro_cpu.side_by_side([int] * threads, 200)
    words = f"{when}: product of two {MATRIX} x {MATRIX} matrices by numpy, best of 4"
    gap = (
        f"{when}: from the first to the last of {threads} waiting threads that start; median of {len(starts)}"
    )
    return _told(
        {
            "cpu.fp32": Number(2 * MATRIX**3 / min(spans), "FLOP/s", words),
            "cpu.launch_gap": Number(statistics.median(starts), "ns", gap),
        },
        say,
    )


def _storage(folder: Path, file_bytes: int, when: str, point_s: float, say: Say) -> Numbers:
    """Random reads by block and depth; nothing if the folder's disk cannot be measured."""
    numbers: Numbers = {}
    try:
        file = micro_storage.write_file(folder, file_bytes)
        place = f"{file.filesystem} file of {file_bytes >> 20} MiB"
        try:
            room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            words = f"{when}: room left on the file system"
            numbers["storage.capacity"] = Number(room, "B", words, "stated")
            for block in BLOCKS:
                for depth in DEPTHS:
                    measured = micro_storage.random_reads(file, block, depth, point_s)
                    words = (
                        f"{when}: direct reads of {block} B at random places of a {place}, {depth} at a time"
                    )
                    numbers |= _told(
                        {f"storage.read.block_{block}.depth_{depth}": _rate(measured, words)}, say
                    )
        finally:
            file.close()
    except OSError as error:
        say(f"storage: not measured: {folder}: {why(error)}")
        return {}
    return numbers


def why(error: OSError) -> str:
    """What is wrong with a folder, and what to do."""
    if error.errno == errno.EINVAL:
        return "its file system takes no direct reads; name a folder on a disk"
    if error.errno == errno.ENOSPC:
        return "too little room; name a folder with more, or measure with a smaller file"
    return f"{error.strerror}; name a folder that can be written"


def shown(number: Number) -> str:
    """A number for people: "12.3 GB/s"."""
    if number.unit in ("B/s", "FLOP/s"):
        return f"{number.value / 1e9:.4g} G{number.unit}"
    if number.unit == "ns":
        return f"{number.value:.4g} ns"
    return f"{number.value:,.0f} {number.unit}".strip()


def main(arguments: list[str] | None = None) -> int:
    """`python -m validation.here -o FILE [--folder DIR] [--name NAME]`: measure, print, write the file."""
    options = argparse.ArgumentParser(
        prog="python -m validation.here", description=(__doc__ or "").split("\n")[0]
    )
    options.add_argument("-o", "--output", type=Path, required=True, help="machine file to write")
    options.add_argument(
        "--folder", type=Path, default=Path("."), help="where a file of 2 GiB is written and read"
    )
    options.add_argument("--name", default="this-machine")
    found = options.parse_args(arguments)
    numbers = measure(
        found.folder, command="python -m validation.here", say=lambda line: print(line, flush=True)
    )
    try:
        found.output.write_text(profile_text(numbers, found.name), encoding="utf-8")
    except OSError as error:
        print(f"Error: {found.output}: cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"wrote {found.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
