"""The fast engine: segments of a trace as arrays, replayed by the compiled loop, equal ones only once.

Enters a trace, a system and the placement; leaves the same `Outcome` as `reference`, bit for bit. The
event loop is in `fast_loop`; here is packing, reuse and the sum.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from memsim import fast_loop, fast_lot, fast_ring
from memsim.alike import fingerprint, local_memory, regions_of
from memsim.aside import Aside
from memsim.errors import MemsimError
from memsim.fast_first import compile_ring
from memsim.fast_lone import tier_of_lone
from memsim.fast_pack import pack_hardware, pack_work
from memsim.fast_state import (  # fmt: skip
    DIGEST,
    END_PS,
    ISSUED,
    MOVED,
    NONE,
    QUANTUM_BYTES,
    READY_PS,
    REQUESTS,
    START_PS,
    Counts,
    Hardware,
    Work,
    fresh_state,
)
from memsim.jit import is_compiled, mark_compiled
from memsim.limits import MAX_PS, check_times
from memsim.options import ReplayOptions
from memsim.progress import Progress
from memsim.program import UNIT_SHARES, Plan, Planned, Program, build_program, home_of
from memsim.result import LATENCY_BUCKETS, READ, Outcome, empty_outcome
from memsim.rules import (  # fmt: skip
    GATHER_AT,
    MOST_WAITED_PS,
    REGION,
    ROW_BYTES,
    ROWS,
    STRIDE,
    TIER,
    TILE_ROWS,
    Memory,
)
from memsim.segments import Segment, split
from memsim.system import System
from memsim.trace import Trace

_MEMO_SEGMENTS = 256  # outcomes kept for reuse; layers of a step repeat within a few dozen segments
_FIRST_REQUESTS = 4096  # table of requests in flight, doubled when it is too small
_MOST_REQUESTS = 1 << 26


class Known(NamedTuple):
    """What is kept of a segment: its counts, and a time that it takes at most [ps]."""

    counts: Counts
    at_most_ps: float


Memo = OrderedDict[bytes, Known]
Ended = Callable[[Segment, np.ndarray], None]


def run(
    trace: Trace,
    system: System,
    memory: Memory,
    options: ReplayOptions,
    progress: Progress | None = None,
    plan: Plan | None = None,
    ended: Ended | None = None,
) -> Outcome:
    """Replay a trace.

    progress  called with (kernels ended, kernels) as they end;  plan  see build_program
    ended     called with each segment and the times of its kernels, launch gaps included, int64[kernels] [ps]
    """
    cold = not is_compiled()
    if cold:
        print("memsim: compiling the engine, once after an install (10 to 20 s) ...", file=sys.stderr)
    with Aside("memsim.fast_first", "compile_loop", wanted=cold and plan is not None) as loop:
        total = _run(trace, system, memory, options, progress, plan, ended, loop)
    mark_compiled()
    return total


def _run(
    trace: Trace,
    system: System,
    memory: Memory,
    options: ReplayOptions,
    progress: Progress | None,
    plan: Plan | None,
    ended: Ended | None,
    loop: Aside,
) -> Outcome:
    """`run`; loop: the process that compiles the event loop while the first shares of the plan are made."""
    hardware = pack_hardware(system, options)
    total = empty_outcome(trace.kernel_count, len(trace.regions), len(system.tiers), len(system.links))
    gap_ps = np.array([runner.launch_gap_ps for runner in system.initiators], np.int64)
    memo: Memo = OrderedDict()
    tailed = any(tier.tail for tier in system.tiers)
    begin_ps, done = 0, 0
    for segment in split(trace.kernels(), home=lambda kernel: home_of(kernel, options.run_on)):
        homes = [home_of(kernel, options.run_on) for kernel, _ in segment.launches]
        regions = regions_of([accesses.region for _, accesses in segment.launches], len(trace.regions))
        local, found = local_memory(memory, regions), _found(segment, homes, plan)
        key = fingerprint(segment, homes, list(found.values()), regions, local, tailed)
        known = memo.get(key)
        if known is None or begin_ps + known.at_most_ps >= MAX_PS:
            program = build_program(
                segment.launches, segment.waits, segment.new_step, system, memory.regions[:, ROW_BYTES],
                options.run_on, Planned(found) if plan else None, segment.handed,
            )  # fmt: skip
            at_most_ps = check_times(program, memory, system, options.quantum_bytes, begin_ps)
            loop.join(compile_ring)
            counts = replay_segment(hardware, renumbered(program, regions), local, system)
            known = Known(counts, at_most_ps)
        _remember(memo, key, known)
        counts = known.counts
        add_segment(total, counts, done, regions, begin_ps)
        total.initiator[done : done + len(segment.launches)] = homes
        done += len(segment.launches)
        begin_ps += int(counts.kernels[:, END_PS].max())
        if progress is not None:
            progress(done, trace.kernel_count)
        if ended is not None:
            ended(segment, counts.kernels[:, END_PS] - counts.kernels[:, START_PS] + gap_ps[homes])
    return total


def _found(segment: Segment, homes: list[int], plan: Plan | None) -> dict[int, np.ndarray]:
    """What the plan says of each kernel's accesses, by the kernel's id."""
    if plan is None:
        return {}
    return {
        kernel.id: plan.shares(kernel, accesses, home)
        for (kernel, accesses), home in zip(segment.launches, homes, strict=True)
    }


def _remember(memo: Memo, key: bytes, known: Known) -> None:
    memo[key] = known
    memo.move_to_end(key)
    if len(memo) > _MEMO_SEGMENTS:
        memo.popitem(last=False)


def localize(program: Program, memory: Memory) -> tuple[np.ndarray, Program, Memory]:
    """Number the regions of a program from 0.

    Returns the regions (int64[n], their ids), the program and the memory in the new numbers.
    """
    regions = regions_of([program.ops.table[:, REGION]], len(memory.regions) - 1)
    return regions, renumbered(program, regions), local_memory(memory, regions)


def renumbered(program: Program, regions: np.ndarray) -> Program:
    """The program with its regions numbered by their place in `regions`."""
    table = program.ops.table.copy()
    table[:, REGION] = np.searchsorted(regions, table[:, REGION])
    return program._replace(ops=program.ops._replace(table=table))


def replay_segment(hardware: Hardware, program: Program, memory: Memory, system: System) -> Counts:
    """Replay one segment from time 0 on an idle machine."""
    slots, most = most_alive(program, system)
    work = pack_work(program, system)
    tier = tier_of_lone(hardware, work, memory, slots, most)
    if tier != NONE:
        return _replay_lone(hardware, work, memory, system, tier, most)
    shift = bucket_shift(system, int(hardware.sizes[QUANTUM_BYTES]), program, memory)
    requests = _FIRST_REQUESTS
    while requests <= _MOST_REQUESTS:
        counts = empty_counts(len(program.launch_ps), len(memory.regions) - 1, system)
        state = fresh_state(hardware, work, slots, most, requests, shift)
        status = fast_loop.PAUSED
        while status == fast_loop.PAUSED:  # here Ctrl-C is heard
            status = fast_loop.run(hardware, work, memory, state, counts)
        if status == fast_loop.DONE:
            return counts
        if status == fast_loop.STUCK:
            raise MemsimError("the replay ran out of events before its kernels ended: a fault of memsim")
        requests *= 2
    raise MemsimError(
        f"more than {_MOST_REQUESTS} requests in flight; raise --quantum or record fewer tiles in flight"
    )


def _replay_lone(
    hardware: Hardware, work: Work, memory: Memory, system: System, tier: int, most: int
) -> Counts:
    """Replay a segment of one block at a time on one tier (see fast_lone)."""
    counts = empty_counts(1, len(memory.regions) - 1, system)
    here = system.tiers[tier]
    ring = fast_lot.fresh_ring(tier, here.channels, here.interleave_bytes, here.channel_mbps[READ], most)
    while fast_ring.run(hardware, work, memory, ring, counts) == fast_ring.PAUSED:
        pass  # here Ctrl-C is heard
    return counts


def empty_counts(kernels: int, regions: int, system: System) -> Counts:
    """Counts of a segment before it runs; times are -1."""
    places, links = len(system.tiers) + 1 + len(system.links), len(system.links)
    times = np.zeros((kernels, 5), np.int64)
    times[:, : END_PS + 1] = -1
    return Counts(
        kernels=times,
        kernel_moved=np.zeros((kernels, places, 2), np.int64),
        ledger=np.zeros((regions, len(system.tiers) + 1, 4), np.int64),
        written_back=np.zeros(len(system.tiers), np.int64),
        wire_bytes=np.zeros((links, 2), np.int64),
        waiting_ps=np.zeros(places + links + 2 + len(system.tiers), np.int64),
        latency=np.zeros((len(system.tiers) + 1, LATENCY_BUCKETS), np.int64),
    )


def bucket_shift(system: System, quantum_bytes: int, program: Program, memory: Memory) -> int:
    """log2 of the wheel's bucket width [ps]: some completions of a busy machine fall into one bucket.

    Requests that cross links have several events each, of delays that differ: finer buckets are quicker.
    """
    table = program.ops.table
    row_bytes = memory.regions[table[:, REGION], ROW_BYTES]
    together = (table[:, GATHER_AT] < 0) & (table[:, STRIDE] == 1)
    tile_rows = np.where(together, np.minimum(table[:, TILE_ROWS], table[:, ROWS]), 1)
    longest = np.minimum(row_bytes * tile_rows, quantum_bytes)
    nbytes = (table[:, ROWS] * row_bytes).sum(dtype=np.float64)
    requests = (table[:, ROWS] * row_bytes / longest).sum()
    routes = [
        _route_mbps(system, initiator, tier)
        for initiator in np.unique(program.initiator)
        for tier in np.unique(memory.shares[:, TIER])
    ]
    fastest_mbps, direct = max(routes, default=(1, True))
    apart_ps = int(nbytes / max(requests, 1) * 1_000_000 / fastest_mbps)
    return int(apart_ps * (4 if direct else 0.25)).bit_length()


def _route_mbps(system: System, initiator: int, tier: int) -> tuple[int, bool]:
    """Rate of the narrowest place between an initiator and a tier, and whether no link is between them."""
    hops = system.routes[initiator][tier]
    tier_mbps = system.tiers[tier].channels * max(system.tiers[tier].channel_mbps)
    return min([tier_mbps, *(max(system.links[hop.link].mbps) for hop in hops)]), not hops


def most_alive(program: Program, system: System) -> tuple[int, int]:
    """Blocks that can live at once, and tiles that one block can have outstanding."""
    blocks = int(program.block_at[-1])
    units = sum(system.initiators[i].units for i in np.unique(program.initiator))
    slots = min(blocks, units * int((UNIT_SHARES // program.unit_shares).max()))
    ops = program.ops
    tiles_of_op = -(-ops.table[:, ROWS] // ops.table[:, TILE_ROWS])
    tiles_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(tiles_of_op)])
    tiles_of_block = tiles_before[program.op_at[1:]] - tiles_before[program.op_at[:-1]]
    kernel_of_block = np.repeat(np.arange(len(program.tiles)), np.diff(program.block_at))
    most = np.minimum(program.tiles[kernel_of_block], tiles_of_block).max(initial=1)
    return slots, max(1, int(most))


def add_segment(total: Outcome, counts: Counts, first: int, regions: np.ndarray, begin_ps: int) -> None:
    """Add a segment that began at begin_ps, its kernels numbered from `first` on."""
    here = slice(first, first + len(counts.kernels))
    total.ready_ps[here] = counts.kernels[:, READY_PS] + begin_ps
    total.start_ps[here] = counts.kernels[:, START_PS] + begin_ps
    total.end_ps[here] = counts.kernels[:, END_PS] + begin_ps
    total.requests[here] = counts.kernels[:, REQUESTS]
    total.digest[here] = counts.kernels[:, DIGEST]
    total.kernel_moved[here] = counts.kernel_moved
    total.issued[regions] += counts.ledger[:, :, ISSUED : ISSUED + 2]
    total.moved[regions] += counts.ledger[:, :, MOVED : MOVED + 2]
    places, links = len(total.waiting_ps), len(total.tags_waiting_ps)
    total.written_back[:] += counts.written_back
    total.wire_bytes[:] += counts.wire_bytes
    _add_waiting(total.waiting_ps, counts.waiting_ps[:places])
    _add_waiting(total.tags_waiting_ps, counts.waiting_ps[places : places + links])
    rest_ps = counts.waiting_ps[places + links :]
    _add_waiting(total.units_waiting_ps, rest_ps[:1])
    _add_waiting(total.ports_waiting_ps, rest_ps[1:2])
    _add_waiting(total.walks_waiting_ps, rest_ps[2:])
    total.latency[:] += counts.latency


def _add_waiting(total_ps: np.ndarray, more_ps: np.ndarray) -> None:
    """rules.added for arrays, in place."""
    total_ps += np.minimum(more_ps, MOST_WAITED_PS - total_ps)
