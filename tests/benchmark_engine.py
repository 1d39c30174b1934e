"""How fast the engines are, side by side in one run: `python tests/benchmark_engine.py`.

Prints requests a second of the fast engine, of the same loop in C++ (compiled on the spot, where a C++
compiler is there) and of the reference, with their ratios and the bars, and stops if their results differ;
then what whole steps and commands take (`benchmark_steps`). Times are of the processor, the best of
several; on a shared machine only ratios count.
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

import benchmark_events
import benchmark_steps
import numpy as np
from engine_cases import (
    HBM,
    HOST,
    PCIE,
    TWO_TIERS,
    MemoryTrace,
    columns,
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
from memsim.system import Cache, Hop, Link, System
from memsim.trace import Access

SOURCE = Path(__file__).with_name("benchmark_engine.cpp")
WINDOW, ROWS, REPEATS = 512, 1 << 21, 5
TILES = 200  # of each block of a scan
TIER = dataclasses.replace(HBM, channels=16)
QUICK = Cache("l2", 50_000_000, (10**9, 10**9), 1)  # the C++ loop has no cache that requests come through
MACHINE = dataclasses.replace(
    with_gpu(TWO_TIERS, unit_outstanding_bytes=1 << 40), tiers=(TIER, HOST), cache=QUICK
)
PACKED = dataclasses.replace(PCIE, header_bytes=24)


def best_s(run: Callable[[], Outcome]) -> tuple[float, Outcome]:
    times = []
    for _ in range(REPEATS):
        begin_s = time.process_time()
        outcome = run()
        times.append(time.process_time() - begin_s)
    return min(times), outcome


def rows_case(
    rows: int, row_bytes: int, stride: int, tile_rows: int, retire: str = "any"
) -> tuple[MemoryTrace, Memory]:
    """Rows in order, or `stride` apart around the region, WINDOW of them outstanding as whole tiles."""
    region = flat_region(0, rows, row_bytes)
    gather = None if stride == 1 else np.arange(rows, dtype=np.int64) * stride % rows
    launch = kernel(tile_rows=tile_rows, tiles_in_flight=WINDOW // tile_rows, retire=retire)
    access = Access(0, 0, 0, 0, False, 0, rows, gather=gather, worked=True)
    return one_kernel(launch, region, access), placed([region])


def in_cpp(
    program: Path, rows: int, row_bytes: int, stride: int, tile_rows: int, start_ps: int, retire: str
) -> tuple[int, int, float]:
    arguments = [rows, row_bytes, WINDOW // tile_rows, tile_rows, TIER.channels, TIER.channel_mbps[READ]]
    arguments += [TIER.interleave_bytes, TIER.unit_bytes, TIER.latency_ps[READ], stride, start_ps, REPEATS]
    arguments += [("any", "in_order", "bare").index(retire)]
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True)
    end_ps, digest, seconds = done.stdout.split()
    return int(end_ps), int(digest), float(seconds)


def compiled(folder: str, source: Path = SOURCE) -> Path | None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    program = Path(folder) / source.stem
    subprocess.run([compiler, "-O3", "-march=native", "-std=c++17", source, "-o", program], check=True)
    return program


def compare_plain(
    program: Path | None, name: str, row_bytes: int, stride: int, tile_rows: int, retire: str, bar: str
) -> None:
    rows = ROWS
    trace, memory = rows_case(rows, row_bytes, stride, tile_rows, retire)
    options = ReplayOptions(row_bytes)
    seconds, outcome = best_s(lambda: fast.run(trace, MACHINE, memory, options))
    line = f"{name:44} {rows / seconds / 1e6:8.2f}"
    if program is not None:
        start_ps = int(outcome.start_ps[0])
        end_ps, digest, cpp_s = in_cpp(program, rows, row_bytes, stride, tile_rows, start_ps, retire)
        if (end_ps, digest) != (int(outcome.end_ps[0]), int(outcome.digest[0])):
            sys.exit(f"{name}: the C++ loop gives {end_ps} ps and digest {digest}, not what the engine gives")
        line += f" {rows / cpp_s / 1e6:8.2f} {cpp_s / seconds:9.2f}"
    else:
        line += f" {'-':>8} {'-':>9}"
    few, few_memory = rows_case(20_000, row_bytes, stride, tile_rows, retire)
    few_fast, quick = best_s(lambda: fast.run(few, MACHINE, few_memory, options))
    begin_s = time.process_time()
    slow = reference.run(few, MACHINE, few_memory, options)
    slow_s = time.process_time() - begin_s
    if not np.array_equal(quick.digest, slow.digest):
        sys.exit(f"{name}: the engines differ")
    print(f"{line} {20_000 / slow_s / 1e6:10.3f} {slow_s / few_fast:9.0f}  {bar}", flush=True)


def time_only(name: str, trace: MemoryTrace, memory: Memory, system: System = MACHINE, bar: str = "") -> None:
    seconds, outcome = best_s(lambda: fast.run(trace, system, memory, ReplayOptions()))
    print(f"{name:44} {int(outcome.requests.sum()) / seconds / 1e6:8.2f} {'':39}  {bar}", flush=True)


def scan_case(tier: int, write: bool = False) -> tuple[MemoryTrace, Memory]:
    """A latent scan as a decode kernel does it: 132 blocks, 64-row tiles, two in flight."""
    region = flat_region(0, 64 * 132 * TILES, 1152)
    launch = kernel(blocks=132, tile_rows=64, tiles_in_flight=2, retire="in_order")
    access = Access(0, 0, 131, 0, write, 0, region.rows, spread="even", grain=64, worked=True)
    return one_kernel(launch, region, access), placed([region], tier)


def four_streams() -> tuple[MemoryTrace, Memory]:
    """Four scans at once, two of HBM and two over the link, 33 blocks each."""
    regions = [flat_region(i, 64 * 33 * TILES, 1152) for i in range(4)]
    launches = [
        (
            kernel(i, blocks=33, tile_rows=64, tiles_in_flight=2, retire="in_order", stream=i),
            columns([Access(i, 0, 32, i, False, 0, r.rows, spread="even", grain=64, worked=True)]),
        )
        for i, r in enumerate(regions)
    ]
    memory = placed(regions)
    memory.shares[2:] = (1, 1)  # the last two lie on the host
    return MemoryTrace(tuple(regions), launches), memory


def over(machine: System, *links: Link) -> System:
    """The second tier of a machine behind other links."""
    route = tuple(Hop(i, False, link.latency_ps) for i, link in enumerate(links))
    return dataclasses.replace(machine, links=links, routes=(((), route),))


def processor() -> str:
    """The processor's name."""
    known = Path("/proc/cpuinfo")
    names = known.read_text().split("model name") if known.exists() else []
    return names[1].split("\n")[0].strip("\t: ") if len(names) > 1 else platform.machine()


def compare_all(program: Path | None) -> None:
    for retire, bar in (("in_order", "100, 0.75 of C++"), ("any", "10, 0.75 of C++")):
        for tile_rows in (64, 1):
            tiles = f"tiles of {tile_rows}, {retire.replace('_', ' ')}"
            compare_plain(program, f"512 B rows, {tiles}", 512, 1, tile_rows, retire, bar)
            compare_plain(program, f"64 B rows, {tiles}", 64, 1, tile_rows, retire, "")
            compare_plain(program, f"512 B rows scattered, {tiles}", 512, 387_701, tile_rows, retire, "")
    if program is not None:
        _, _, bare_s = in_cpp(program, ROWS, 512, 1, 1, 0, "bare")
        print(f"{'bare bookings in order':44} {'-':>8} {ROWS / bare_s / 1e6:8.2f}")


def scans(program: Path | None) -> None:
    """Requests as decode kernels ask for them, through the event loop."""
    h200 = with_tier(with_gpu(MACHINE, units=132), 0, channels=96)
    packed = over(h200, PACKED)
    benchmark_events.compare(program, "latent scan from HBM", *scan_case(0), packed)
    benchmark_events.compare(
        program, "latent scan over a link with headers and tags", *scan_case(1), packed, "3"
    )
    time_only("  written", *scan_case(1, write=True), packed, "3")
    time_only("  with a queue of 64 at the tier", *scan_case(1), with_tier(packed, 1, queue_depth=64), "3")
    time_only("  over two links", *scan_case(1), over(h200, PACKED, PACKED), "3")
    benchmark_events.compare(program, "four streams, two over the link", *four_streams(), packed, "3")


def main() -> None:
    print(f"{processor()}, python {platform.python_version()}, one core")
    print(f"rates in million requests a second; one initiator, one tier, {WINDOW} requests outstanding\n")
    print(f"{'case':44} {'fast':>8} {'C++':>8} {'fast/C++':>9} {'reference':>10} {'fast/ref':>9}  bar")
    with tempfile.TemporaryDirectory() as folder:
        compare_all(compiled(folder))
        print("\nas decode kernels ask for them (requests of 8 KiB, cut into pieces of 512 B or 256 B)")
        scans(compiled(folder, benchmark_events.SOURCE))
    print()
    benchmark_steps.main()


if __name__ == "__main__":
    main()
