"""What would leave the range of int64 is refused before an engine starts.

Both engines count picoseconds in int64. An upper bound of the time, everything one after another on the
slowest part of the machine, must stay far below its end; what passes has room for sums of waiting.
"""

from __future__ import annotations

import numpy as np

from memsim.errors import UsageError
from memsim.program import Program
from memsim.rules import GATHER_AT, REGION, ROW_BYTES, ROWS, STRIDE, TILE_ROWS, Memory
from memsim.system import System

MAX_PS = 1 << 61  # 27 days


def check_times(
    program: Program, memory: Memory, system: System, quantum_bytes: int, begin_ps: int
) -> None:
    """UsageError if a program that begins at begin_ps might not end before MAX_PS."""
    longest_ps = begin_ps + longest_time_ps(program, memory, system, quantum_bytes)
    if longest_ps > MAX_PS:
        raise UsageError(
            f"{system.name}: a replay of this trace could take {longest_ps / 1e12:.3g} s; a clock of "
            f"picoseconds holds {MAX_PS / 1e12:.3g} s; replay fewer steps or raise the slowest rate"
        )


def longest_time_ps(program: Program, memory: Memory, system: System, quantum_bytes: int) -> float:
    """Upper bound of a program's time: nothing overlaps, all bytes go through the slowest place."""
    table = program.ops.table
    rows = table[:, ROWS].astype(np.float64)
    nbytes = rows * memory.regions[table[:, REGION], ROW_BYTES]
    scattered = (table[:, GATHER_AT] >= 0) | (table[:, STRIDE] > 1)
    pieces = 2 * (np.where(scattered, rows, 1) + rows / table[:, TILE_ROWS]).sum()
    pieces += nbytes.sum() / min(quantum_bytes, *(tier.interleave_bytes for tier in system.tiers))
    moved = nbytes.sum() + 2 * pieces * max(tier.unit_bytes for tier in system.tiers)
    rates_mbps = [tier.channel_mbps for tier in system.tiers] + [link.mbps for link in system.links]
    slowest_mbps = min(*rates_mbps, system.cache.mbps)
    hops_ps = sum(2 * link.latency_ps for link in system.links) + system.cache.latency_ps
    hops_ps += max(tier.latency_ps for tier in system.tiers)
    served_ps = (1 + 2 * len(system.links)) * moved * 1e6 / slowest_mbps
    return float(served_ps + pieces * (hops_ps + 2) + _worked_ps(program))


def _worked_ps(program: Program) -> float:
    """Launches, start-up and drain of all blocks, and arithmetic of all tiles, one after another."""
    tiles = -(-program.ops.table[:, ROWS] // program.ops.table[:, TILE_ROWS])
    slowest = (program.flops * 1e6 / program.mflops).max(initial=0)
    blocks = np.diff(program.block_at)
    around = blocks * (program.startup_ps + program.drain_ps + 1.0)
    launched_ps = program.launch_ps.sum(dtype=np.float64)
    return float(launched_ps + around.sum() + tiles.sum(dtype=np.float64) * slowest)
