"""How fast the engines are, side by side in one run: `python tests/benchmark_engine.py`.

Prints requests a second of the fast engine, of the same loop in C++ (compiled on the spot, where a C++
compiler is there) and of the reference, with their ratios, and stops if their results differ. Times are
the best of several; on a shared machine only ratios count.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from engine_cases import (
    HBM,
    HOST,
    PCIE,
    TWO_TIERS,
    MemoryTrace,
    flat_region,
    kernel,
    one_kernel,
    placed,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim import fast, reference
from memsim.options import ReplayOptions
from memsim.result import READ, Outcome
from memsim.rules import Memory
from memsim.system import Hop, Link, System
from memsim.trace import Access

SOURCE = Path(__file__).with_name("benchmark_engine.cpp")
WINDOW, ROWS, REPEATS = 512, 1 << 21, 5
TIER = dataclasses.replace(HBM, channels=16)
MACHINE = dataclasses.replace(with_gpu(TWO_TIERS, unit_outstanding_bytes=1 << 40), tiers=(TIER, HOST))
PACKED = dataclasses.replace(PCIE, header_bytes=24)


def best_s(run: Callable[[], Outcome]) -> tuple[float, Outcome]:
    times = []
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        outcome = run()
        times.append(time.perf_counter() - begin_s)
    return min(times), outcome


def rows_case(rows: int, row_bytes: int, stride: int, tile_rows: int) -> tuple[MemoryTrace, Memory]:
    """Rows in order, or `stride` apart around the region, WINDOW of them outstanding as whole tiles."""
    region = flat_region(0, rows, row_bytes)
    gather = None if stride == 1 else np.arange(rows, dtype=np.int64) * stride % rows
    launch = kernel(tile_rows=tile_rows, tiles_in_flight=WINDOW // tile_rows)
    access = Access(0, 0, 0, 0, False, 0, rows, gather=gather, worked=True)
    return one_kernel(launch, region, access), placed([region])


def in_cpp(
    program: Path, rows: int, row_bytes: int, stride: int, tile_rows: int, start_ps: int
) -> tuple[int, int, float]:
    arguments = [rows, row_bytes, WINDOW // tile_rows, tile_rows, TIER.channels, TIER.channel_mbps[READ]]
    arguments += [TIER.interleave_bytes, TIER.unit_bytes, TIER.latency_ps[READ], stride, start_ps, REPEATS]
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True)
    end_ps, digest, seconds = done.stdout.split()
    return int(end_ps), int(digest), float(seconds)


def compiled(folder: str) -> Path | None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    program = Path(folder) / "engine"
    subprocess.run([compiler, "-O3", "-march=native", "-std=c++17", SOURCE, "-o", program], check=True)
    return program


def compare_plain(program: Path | None, name: str, row_bytes: int, stride: int, tile_rows: int) -> None:
    rows = ROWS
    trace, memory = rows_case(rows, row_bytes, stride, tile_rows)
    options = ReplayOptions(row_bytes)
    seconds, outcome = best_s(lambda: fast.run(trace, MACHINE, memory, options))  # type: ignore[arg-type]
    line = f"{name:34} {rows / seconds / 1e6:8.2f}"
    if program is not None:
        end_ps, digest, cpp_s = in_cpp(program, rows, row_bytes, stride, tile_rows, int(outcome.start_ps[0]))
        if (end_ps, digest) != (int(outcome.end_ps[0]), int(outcome.digest[0])):
            sys.exit(f"{name}: the C++ loop gives {end_ps} ps and digest {digest}, not what the engine gives")
        line += f" {rows / cpp_s / 1e6:8.2f} {cpp_s / seconds:9.2f}"
    else:
        line += f" {'-':>8} {'-':>9}"
    few, few_memory = rows_case(20_000, row_bytes, stride, tile_rows)
    few_fast, quick = best_s(lambda: fast.run(few, MACHINE, few_memory, options))  # type: ignore[arg-type]
    begin_s = time.perf_counter()
    slow = reference.run(few, MACHINE, few_memory, options)  # type: ignore[arg-type]
    slow_s = time.perf_counter() - begin_s
    if not np.array_equal(quick.digest, slow.digest):
        sys.exit(f"{name}: the engines differ")
    print(f"{line} {20_000 / slow_s / 1e6:10.3f} {slow_s / few_fast:9.0f}")


def time_only(name: str, trace: MemoryTrace, memory: Memory, system: System = MACHINE) -> None:
    seconds, outcome = best_s(lambda: fast.run(trace, system, memory, ReplayOptions()))  # type: ignore[arg-type]
    print(f"{name:34} {int(outcome.requests.sum()) / seconds / 1e6:8.2f}")


def scan_case(tier: int, write: bool = False) -> tuple[MemoryTrace, Memory]:
    """A latent scan as a decode kernel does it: 132 blocks, 64-row tiles, two in flight."""
    region = flat_region(0, 64 * 132 * 40, 1152)
    launch = kernel(blocks=132, tile_rows=64, tiles_in_flight=2, retire="in_order")
    access = Access(0, 0, 131, 0, write, 0, region.rows, spread="even", grain=64, worked=True)
    return one_kernel(launch, region, access), placed([region], tier)


def over(machine: System, *links: Link) -> System:
    """The second tier of a machine behind other links."""
    route = tuple(Hop(i, False, link.latency_ps) for i, link in enumerate(links))
    return dataclasses.replace(machine, links=links, routes=(((), route),))


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, python {platform.python_version()}, one core")
    print(f"rates in million requests a second; one initiator, one tier, {WINDOW} requests outstanding\n")
    print(f"{'case':34} {'fast':>8} {'C++':>8} {'fast/C++':>9} {'reference':>10} {'fast/ref':>9}")
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(folder)
        for tile_rows in (64, 1):
            tiles = f"tiles of {tile_rows}"
            compare_plain(program, f"64 B rows in order, {tiles}", 64, 1, tile_rows)
            compare_plain(program, f"512 B rows in order, {tiles}", 512, 1, tile_rows)
            compare_plain(program, f"512 B rows scattered, {tiles}", 512, 387_701, tile_rows)
    print("\nas decode kernels ask for them (requests of 8 KiB, cut into pieces of 512 B or 256 B)")
    h200 = with_tier(with_gpu(MACHINE, units=132), 0, channels=96)
    time_only("latent scan from HBM", *scan_case(0), h200)
    time_only("latent scan over a link", *scan_case(1), h200)
    packed = over(h200, PACKED)
    time_only("  with headers", *scan_case(1), packed)
    time_only("  written", *scan_case(1, write=True), packed)
    time_only("  with a queue of 64 at the tier", *scan_case(1), with_tier(packed, 1, queue_depth=64))
    time_only("  over two links", *scan_case(1), over(h200, PACKED, PACKED))


if __name__ == "__main__":
    main()
