"""The event loop beside the same loop in C++: kernels that scan HBM, or host memory over a link.

Prints requests a second of both and their ratio, and stops if their times or digests differ. Part of
`python tests/benchmark_engine.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from engine_cases import MemoryTrace

from memsim import fast
from memsim.fast_pack import pack_hardware
from memsim.options import ReplayOptions
from memsim.program import build_program
from memsim.result import READ, Outcome
from memsim.rules import ROW_BYTES, TIER, Memory
from memsim.segments import split
from memsim.system import System

SOURCE = Path(__file__).with_name("benchmark_events.cpp")
REPEATS = 5


def compare(
    program: Path | None, name: str, trace: MemoryTrace, memory: Memory, system: System, bar: str = ""
) -> None:
    """A line of both loops; tiers: the first beside the initiator, the second behind a link."""
    seconds, outcome = best_s(trace, memory, system)
    requests = int(outcome.requests.sum())
    line = f"{name:44} {requests / seconds / 1e6:8.2f}"
    if program is not None:
        arguments = [*map(str, told(trace, memory, system, outcome))]
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
        cpp_s, *found = done.stdout.split()
        ends_and_digests = [int(x) for pair in zip(outcome.end_ps, outcome.digest, strict=True) for x in pair]
        if [int(each) for each in found] != ends_and_digests:
            sys.exit(f"{name}: the C++ loop gives {found}, the engine {ends_and_digests}")
        line += f" {requests / float(cpp_s) / 1e6:8.2f} {float(cpp_s) / seconds:9.2f}"
    print(f"{line:92}  {bar}", flush=True)


def best_s(trace: MemoryTrace, memory: Memory, system: System) -> tuple[float, Outcome]:
    """The least time of several replays, of the processor [s]."""
    times = []
    for _ in range(REPEATS):
        begin_s = time.process_time()
        outcome = fast.run(trace, system, memory, ReplayOptions())
        times.append(time.process_time() - begin_s)
    return min(times), outcome


def told(trace: MemoryTrace, memory: Memory, system: System, outcome: Outcome) -> Iterator[int]:
    """The numbers that the C++ loop reads (see there)."""
    (segment,) = split(trace.kernels())
    work = build_program(
        segment.launches, segment.waits, segment.new_step, system, memory.regions[:, ROW_BYTES], {}
    )
    options = ReplayOptions()
    quantum_bytes = int(pack_hardware(system, options).sizes[1])
    link = system.links[0]
    yield from (REPEATS, fast.bucket_shift(system, quantum_bytes, work, memory), system.cache.mbps[READ])
    yield from (link.mbps[0], link.latency_ps, system.packet_bytes(0, 0), link.header_bytes, link.tags)
    for number, tier in enumerate(system.tiers):
        yield from (tier.channels, tier.channel_mbps[READ], tier.interleave_bytes, tier.unit_bytes)
        yield from (tier.latency_ps[READ], system.largest_request(0, number, False, quantum_bytes))
        yield len(system.routes[0][number])
    yield len(trace.launches)
    for number, (kernel, accesses) in enumerate(trace.launches):
        region = int(accesses.region[0])
        yield from (kernel.blocks, int(accesses.rows[0]) // kernel.blocks, trace.regions[region].row_bytes)
        yield from (kernel.tile_rows, kernel.tiles_in_flight, int(memory.shares[region, TIER]))
        start_ps = int(outcome.start_ps[number])
        yield from (start_ps, start_ps + int(work.startup_ps[number]))
