"""What would leave the range of int64 is refused before an engine starts.

Both engines count picoseconds in int64. An upper bound of the time, everything one after another on the
slowest way through the machine, must stay far below its end; what passes has room for sums of waiting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memsim import rules
from memsim.errors import UsageError
from memsim.program import Program
from memsim.rules import Memory
from memsim.system import MILLION, Hop, Link, System, Tier

MAX_PS = 1 << 61  # 27 days
_NEVER_CUT = 1 << 40  # rows

Floats = npt.NDArray[np.float64]


class Demand(NamedTuple):
    """What ops ask for, one number an op.

    requests  most requests, wherever the rows lie;  nbytes  their bytes
    span_bytes  size of the smallest span
    writes, pushes, walks  whether it writes, whether what it brings in pushes out dirty lines, whether it
                walks (0 / 1)
    """

    requests: Floats
    nbytes: Floats
    span_bytes: npt.NDArray[np.int64]
    writes: npt.NDArray[np.int64]
    pushes: npt.NDArray[np.int64]
    walks: npt.NDArray[np.int64]


def check_times(program: Program, memory: Memory, system: System, quantum_bytes: int, begin_ps: int) -> float:
    """UsageError if a program that begins at begin_ps might not end before MAX_PS, or a tier has both several
    channels and a curve of loaded latencies. Returns a time that the program takes at most [ps]."""
    for tier in system.tiers:
        if tier.loaded and tier.channels > 1:
            raise UsageError(
                f"{system.name}: tier '{tier.name}' has {tier.channels} channels and loaded latencies; "
                "expected one of the two: load shows in queues of channels, or one channel takes the curve"
            )
    at_most_ps = _at_most_ps(program, memory, system, quantum_bytes)
    if begin_ps + at_most_ps < MAX_PS:
        return at_most_ps
    longest_ps = begin_ps + longest_time_ps(program, memory, system, quantum_bytes)
    if longest_ps > MAX_PS:
        raise UsageError(
            f"{system.name}: a replay of this trace could take {longest_ps / 1e12:.3g} s; a clock of "
            f"picoseconds holds {MAX_PS / 1e12:.3g} s; replay fewer steps or raise the slowest rate"
        )
    return at_most_ps


def _at_most_ps(program: Program, memory: Memory, system: System, quantum_bytes: int) -> float:
    """No less than longest_time_ps, and quickly: all ops are one, which goes to every place in use."""
    table, row_bytes, one = program.ops.table, memory.regions[:, rules.ROW_BYTES], np.ones(1, np.int64)
    rows = np.bincount(table[:, rules.REGION], table[:, rules.ROWS], len(row_bytes))
    nbytes = (rows @ row_bytes) * one
    requests = 4 * rows.sum() + nbytes / _smallest(memory, system, quantum_bytes)
    every = Demand(requests, nbytes, one, 0 * one, one, one)
    served_ps = [
        np.sum(_places_ps(every, system, initiator, _tiers_in_use(memory)))
        for initiator in np.unique(program.initiator).tolist()
    ]
    return _worked_ps(program, rows.sum()) + float(sum(served_ps))


def longest_time_ps(program: Program, memory: Memory, system: System, quantum_bytes: int) -> float:
    """Upper bound of a program's time: nothing overlaps, and every op goes to the slowest place in use."""
    used = _tiers_in_use(memory)
    demand = _demand(program, memory, _smallest(memory, system, quantum_bytes))
    runner = np.repeat(program.initiator, np.diff(program.op_at[program.block_at]))
    tiles = -(-program.ops.table[:, rules.ROWS] // program.ops.table[:, rules.TILE_ROWS])
    total_ps = _worked_ps(program, tiles.sum(dtype=np.float64))
    for initiator in np.unique(runner).tolist():
        here = Demand(*(column[runner == initiator] for column in demand))
        port_ps, *places_ps = _places_ps(here, system, initiator, used)
        total_ps += float(port_ps.sum() + np.max(places_ps, axis=0).sum())
    return total_ps


def _tiers_in_use(memory: Memory) -> list[int]:
    tiers: list[int] = np.unique(memory.shares[:, rules.TIER]).tolist()
    return tiers


def _smallest(memory: Memory, system: System, quantum_bytes: int) -> int:
    """Bytes of the smallest of all largest requests."""
    return min(
        system.largest_request(initiator, tier, write, quantum_bytes)
        for initiator in range(len(system.initiators))
        for tier in _tiers_in_use(memory) or [0]
        for write in (False, True)
    )


def _places_ps(demand: Demand, system: System, initiator: int, tiers: list[int]) -> list[Floats]:
    """Time of ops at their ports; then, where all their rows lie, at the cache and on the way to a tier."""
    places_ps = [_port_ps(demand, system, initiator, tiers), _cache_ps(demand, system)]
    for number in tiers:
        tier, route = system.tiers[number], system.routes[initiator][number]
        hops_ps = [_hop_ps(demand, system, initiator, hop, tier.unit_bytes) for hop in route]
        served_ps = _tier_ps(demand, tier)
        if initiator == 0 and not route:  # behind the cache
            passed_ps = _cache_ps(demand, system, tier.unit_bytes)
            served_ps = passed_ps + served_ps * (1 - demand.writes + demand.pushes)
        if initiator == 0:
            served_ps = served_ps + _walks_ps(demand, tier)
        places_ps.append(sum(hops_ps, served_ps))
    return places_ps


def _demand(program: Program, memory: Memory, quantum_bytes: int) -> Demand:
    table = program.ops.table
    region, rows = table[:, rules.REGION], table[:, rules.ROWS].astype(np.float64)
    row_bytes = memory.regions[region, rules.ROW_BYTES]
    paged = memory.regions[region, rules.PAGE_ROWS] > 0
    head_bytes = memory.regions[region, rules.PAGE_HEAD_BYTES]
    scattered = (table[:, rules.GATHER_AT] >= 0) | (table[:, rules.STRIDE] > 1)
    pieces = np.diff(memory.regions[:, rules.PIECE_AT])[region]
    runs = rows / table[:, rules.TILE_ROWS] + rows / _rows_together(memory)[region] + 2 * pieces
    spans = np.where(paged, 2, 1) * np.where(scattered, rows, np.minimum(rows, runs))
    nbytes = rows * row_bytes
    in_two = paged & (head_bytes > 0) & (head_bytes < row_bytes)
    part_bytes = np.where(in_two, np.minimum(head_bytes, row_bytes - head_bytes), row_bytes)
    return Demand(
        2 * spans + nbytes / quantum_bytes,
        nbytes,
        part_bytes,
        table[:, rules.IS_WRITE],
        np.sign(table[:, rules.DIRTY_PPM]),
        np.sign(table[:, rules.WALK_PPM]),
    )


def _rows_together(memory: Memory) -> np.ndarray:
    """Rows of each region that lie together at least: a page, or what a tier is dealt at once."""
    dealt = np.diff(memory.pieces[:, rules.SHARE_AT]) > 1
    chunk_rows = np.where(dealt, memory.pieces[:-1, rules.CHUNK_ROWS], _NEVER_CUT)
    least = np.minimum.reduceat(chunk_rows, memory.regions[:-1, rules.PIECE_AT])
    page_rows = memory.regions[:-1, rules.PAGE_ROWS]
    return np.where(page_rows > 0, np.minimum(least, page_rows), least)


def _cache_ps(demand: Demand, system: System, unit_bytes: int = 1) -> Floats:
    """Time of ops whose rows are all hits, or come through the cache in whole transactions."""
    cache = system.cache
    moved_bytes = demand.nbytes + 2 * demand.requests * (unit_bytes - 1)
    return moved_bytes * 1e6 / min(cache.mbps) + demand.requests * (cache.latency_ps + cache.spread_ps + 1)


def _port_ps(demand: Demand, system: System, initiator: int, tiers: list[int]) -> Floats:
    """Time of ops at the ports of units, all of them at the slower one."""
    rates = [rate for rate in system.initiators[initiator].port_mbps if rate]
    unit_bytes = max((system.tiers[number].unit_bytes for number in tiers), default=1)
    moved_bytes = demand.nbytes + 2 * demand.requests * unit_bytes
    return moved_bytes * 1e6 / min(rates) + demand.requests if rates else 0 * demand.nbytes


def _tier_ps(demand: Demand, tier: Tier) -> Floats:
    """Time of ops at a tier, every request slow and every piece on one channel."""
    pieces = demand.nbytes / tier.interleave_bytes + 2 * demand.requests
    moved_bytes = demand.nbytes + 2 * pieces * tier.unit_bytes
    tail_ps = max((extra_ps for _, extra_ps in tier.tail), default=0)
    tail_ps += max((extra_ps for _, extra_ps in tier.loaded), default=0)
    least_ps = max(tier.occupancy_ps) + tier.turnaround_ps + 1
    served_ps = moved_bytes * 1e6 / min(tier.channel_mbps) + pieces * least_ps
    return served_ps + demand.requests * (max(tier.latency_ps) + sum(tier.spread_ps) + tail_ps)


def _walks_ps(demand: Demand, tier: Tier) -> Floats:
    """Time of ops that look up the page of every request at every level."""
    look_up_ps = sum(walk.latency_ps + walk.occupancy_ps + 1 for walk in tier.translation)
    return demand.requests * demand.walks * look_up_ps


def _hop_ps(demand: Demand, system: System, initiator: int, hop: Hop, unit_bytes: int) -> Floats:
    """Time of ops on one hop, out and back."""
    link = system.links[hop.link]
    moved_bytes = demand.nbytes + 2 * demand.requests * unit_bytes
    packets = moved_bytes / system.packet_bytes(initiator, hop.link) + demand.requests
    wire_bytes = moved_bytes + 2 * packets * link.header_bytes
    booked_bytes = wire_bytes / _least_share(link, demand.span_bytes) + 2 * demand.requests
    return booked_bytes * 1e6 / min(link.mbps) + 2 * demand.requests * (hop.latency_ps + 1)


def _least_share(link: Link, span_bytes: np.ndarray) -> Floats:
    """Least share of a link's rate that spans of these sizes and larger ones reach."""
    if not link.efficiency:
        return np.ones(len(span_bytes))
    points = np.array(link.efficiency, np.int64)
    sizes, place = np.unique(span_bytes, return_inverse=True)
    shares = [rules.transfer_share(points, 0, len(points), size) for size in sizes]
    least: Floats = np.minimum(np.array(shares, np.float64)[place], points[:, 1].min()) / MILLION
    return least


def _worked_ps(program: Program, tiles: float) -> float:
    """Launches, start-up and drain of all blocks, and work of so many tiles, one after another."""
    slowest_ps = (
        program.flops * 1e6 / program.mflops + program.work_ps + program.tile_ps + program.turns
    ).max(initial=0)
    blocks = np.diff(program.block_at)
    own_ps = np.maximum(program.startup_ps + program.drain_ps, program.idle_ps)
    around = blocks * (program.dispatch_ps + own_ps + 1.0)
    launched_ps = program.launch_ps.sum(dtype=np.float64)
    return float(launched_ps + around.sum() + tiles * slowest_ps)
