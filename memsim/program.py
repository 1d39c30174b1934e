"""From kernels and accesses to block programs: arrays that both engines walk.

A program holds one or more kernels, numbered from 0 in file order, their blocks numbered through,
and each block's ops (its accesses, with runs of `even` and `each` accesses dealt out).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from memsim.errors import UsageError
from memsim.rules import GATHER_AT, Ops
from memsim.system import MILLION, Initiator, System
from memsim.trace import EACH, EVEN, MAX_FLOPS, Accesses, Kernel

MATRIX = ("bf16", "fp8", "fp4")  # units of arithmetic that run at the power limit
MOST_TURNS = 64  # of a tile: finer ones change nothing and take longer to replay
UNIT_SHARES = 720_720  # a unit in shares: divisible by every occupancy up to 16

Int64s = np.ndarray


class Plan(Protocol):
    """What cache and address translation do for each access; takes all kernels once, in file order."""

    def shares(self, kernel: Kernel, accesses: Accesses, home: int) -> Int64s:
        """For each access int64[accesses, 4], in millionths: of its requests those whose lines are cached; of
        those that bring in a line those that push out a dirty one; of its requests those that miss the first
        level of translation, and the second."""


class Planned:
    """A plan whose shares were found before. found: by kernel's id."""

    def __init__(self, found: Mapping[int, Int64s]) -> None:
        self._found = found

    def shares(self, kernel: Kernel, accesses: Accesses, home: int) -> Int64s:
        """What was found for the kernel; of its accesses only the number counts."""
        return self._found[kernel.id]


class Program(NamedTuple):
    """Kernels and their blocks; int64[kernels] unless said.

    initiator    the one that runs the kernel
    number       the kernel's id in its trace where requests are drawn by it, else 0
    launch_ps    launch gap, with the graph launch where the kernel is the first of its step, and what
                 it takes to wake the initiator where it waits for a kernel of another one
    wait_at, wait_for   int64[kernels + 1], int64[m]: kernels of this program that must have ended
    block_at     int64[kernels + 1]: first block of each kernel
    unit_shares  shares of a unit that one block takes
    tiles        tiles that a block has outstanding at most
    in_order     0 / 1
    flops, mflops   arithmetic of a worked tile, and the unit's rate for it
    read_flops   of `flops`, those whose power goes into what the tile brings in
    turns        turns that the arithmetic of a worked tile takes at its unit
    work_ps      what a worked tile takes after its arithmetic
    tile_ps      what a worked tile takes then, one of a block after another
    withheld     bytes that its units do not lend to the kernel (Initiator.lent_bytes)
    dispatch_ps  from the start of one block of the initiator to the next one's
    startup_ps, drain_ps   the initiator's set-up included
    idle_ps      of a block without accesses, from its start to its end
    op_at        int64[blocks + 1]: first op of each block
    ops          the ops
    """

    initiator: Int64s
    number: Int64s
    launch_ps: Int64s
    wait_at: Int64s
    wait_for: Int64s
    block_at: Int64s
    unit_shares: Int64s
    tiles: Int64s
    in_order: Int64s
    flops: Int64s
    mflops: Int64s
    read_flops: Int64s
    turns: Int64s
    work_ps: Int64s
    tile_ps: Int64s
    withheld: Int64s
    dispatch_ps: Int64s
    startup_ps: Int64s
    drain_ps: Int64s
    idle_ps: Int64s
    op_at: Int64s
    ops: Ops


def build_program(
    launches: Sequence[tuple[Kernel, Accesses]],
    waits: Sequence[Sequence[int]],
    new_step: Sequence[bool],
    system: System,
    row_bytes: Int64s,
    run_on: Mapping[str, int],
    plan: Plan | None = None,
    handed: Sequence[bool] = (),
) -> Program:
    """Arrays of some kernels.

    waits      for each, the kernels of this program (by position) that must have ended
    new_step   whether it is the first of its step
    row_bytes  int64[regions], row size of every region of the trace [bytes]
    run_on     initiators of kernels by name, or by family; the first one runs the others
    plan       shares of accesses that are cached and that walk; None: all are 0
    handed     whether it waits for a kernel that runs elsewhere; (): none does

    UsageError: an initiator that cannot do a kernel's arithmetic.
    """
    kernels = [kernel for kernel, _ in launches]
    homes = [home_of(kernel, run_on) for kernel in kernels]
    runners = [system.initiators[home] for home in homes]
    dealt = [
        _deal(kernel, accesses, row_bytes, home, plan)
        for (kernel, accesses), home in zip(launches, homes, strict=True)
    ]
    tailed = any(tier.tail for tier in system.tiers)
    mflops = [_rate(kernel, runner) for kernel, runner in zip(kernels, runners, strict=True)]
    powered = [
        _read_flops(kernel, accesses, row_bytes, rate, runner.power_mbps)
        for (kernel, accesses), rate, runner in zip(launches, mflops, runners, strict=True)
    ]
    flops = [kernel.flops_per_tile + more for kernel, more in zip(kernels, powered, strict=True)]
    return Program(
        initiator=_ints(homes),
        number=_ints(k.id if tailed else 0 for k in kernels),
        launch_ps=_ints(
            runner.launch_gap_ps + new * runner.graph_launch_ps + wakes * runner.wake_ps
            for runner, new, wakes in zip(runners, new_step, handed or [False] * len(kernels), strict=True)
        ),
        wait_at=_offsets([len(w) for w in waits]),
        wait_for=_ints(k for w in waits for k in w),
        block_at=_offsets([k.blocks for k in kernels]),
        unit_shares=_ints(max(1, UNIT_SHARES // k.blocks_per_unit) for k in kernels),
        tiles=_ints(k.tiles_in_flight for k in kernels),
        in_order=_ints(k.retire == "in_order" for k in kernels),
        flops=_ints(flops),
        mflops=_ints(mflops),
        read_flops=_ints(powered),
        turns=_ints(map(_turns, kernels, runners, flops, mflops)),
        work_ps=_ints(runner.work_latency_ps for runner in runners),
        tile_ps=_ints(k.tile_ps for k in kernels),
        withheld=_ints(
            runner.unit_outstanding_bytes - runner.lent_bytes(k.blocks)
            for k, runner in zip(kernels, runners, strict=True)
        ),
        dispatch_ps=_ints(runner.dispatch_ps for runner in runners),
        startup_ps=_ints(k.startup_ps + runner.setup_ps for k, runner in zip(kernels, runners, strict=True)),
        drain_ps=_ints(k.drain_ps for k in kernels),
        idle_ps=_ints(k.startup_ps + k.drain_ps for k in kernels),
        op_at=_offsets(np.concatenate([counts for _, counts in dealt])),
        ops=_join([ops for ops, _ in dealt]),
    )


def _turns(kernel: Kernel, runner: Initiator, flops: int, mflops: int) -> int:
    """Turns of a tile's arithmetic; one where a block has a unit for itself."""
    if not runner.turn_ps or kernel.blocks_per_unit == 1:
        return 1
    return max(1, min(MOST_TURNS, flops, -(-flops * 10**6 // (mflops * runner.turn_ps))))


def home_of(kernel: Kernel, run_on: Mapping[str, int]) -> int:
    """The initiator that runs a kernel."""
    return run_on.get(kernel.name, run_on.get(kernel.family, 0))


def _ints(values: object) -> Int64s:
    return np.array(list(values), np.int64)  # type: ignore[call-overload]


def _offsets(counts: Sequence[int] | Int64s) -> Int64s:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)


def _rate(kernel: Kernel, initiator: Initiator) -> int:
    """Of the kernel's arithmetic; fp4 is widened to bf16 where a unit has no rate for it."""
    rates = {"bf16": initiator.bf16_mflops, "fp8": initiator.fp8_mflops, "fp32": initiator.fp32_mflops}
    rates["fp4"] = initiator.fp4_mflops or initiator.bf16_mflops
    if kernel.flops_per_tile == 0:
        return 1
    rate = rates.get(kernel.flops_unit, 1)
    if rate == 0:
        raise UsageError(
            f"kernel '{kernel.name}': '{initiator.name}' has no {kernel.flops_unit} arithmetic; run it "
            "elsewhere with --run-on, or give the initiator this rate"
        )
    return rate


def _read_flops(kernel: Kernel, accesses: Accesses, row_bytes: Int64s, mflops: int, power_mbps: int) -> int:
    """FLOPs that the power of a tile's bytes would have done; blocks that share rows share their power."""
    loads = accesses.worked & ~accesses.write
    if not power_mbps or kernel.flops_unit not in MATRIX or not kernel.flops_per_tile or not loads.any():
        return 0
    rows = accesses.rows[loads].astype(np.float64)
    row = float(rows @ row_bytes[accesses.region[loads]]) / float(rows.sum())
    tile_bytes = min(kernel.tile_rows, int(rows.max())) * row / kernel.blocks_sharing
    return min(MAX_FLOPS - kernel.flops_per_tile, round(tile_bytes * mflops / power_mbps))


def _deal(
    kernel: Kernel, accesses: Accesses, row_bytes: Int64s, home: int, plan: Plan | None
) -> tuple[Ops, Int64s]:
    """Ops of one kernel sorted by block, and the number of ops of each of its blocks.

    On the first initiator, which has the cache, rows that another block has fetched are hits.
    """
    shares = _shares(kernel, accesses, home, plan)
    source, place, begin, rows = _ops_by_block(kernel, accesses)
    gathered, worked, region = accesses.gather_at[source], accesses.worked[source], accesses.region[source]
    stride = accesses.stride[source]
    small_tiles = np.maximum(1, kernel.tile_bytes // np.maximum(1, row_bytes))  # of what is not worked
    columns = (
        region,
        accesses.write[source],
        (accesses.spread[source] == EACH) & (place > 0) & (home == 0),
        np.where(gathered >= 0, 0, accesses.first_row[source] + begin * stride),
        rows,
        stride,
        np.where(gathered >= 0, gathered + begin, -1),
        np.where(worked, kernel.tile_rows, small_tiles[region]),
        worked,
        accesses.dependent[source],
    )
    table = np.empty((len(source), len(columns) + shares.shape[1]), np.int64)
    for i, column in enumerate(columns):
        table[:, i] = column
    table[:, len(columns) :] = shares[source]
    counts = np.bincount(accesses.block[source] + place, minlength=kernel.blocks).astype(np.int64)
    return Ops(table, accesses.gather_rows), counts


def _ops_by_block(kernel: Kernel, accesses: Accesses) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Ops of a kernel in order: access, the block's place in the access's run, first row of the op, rows."""
    span = accesses.block_last - accesses.block + 1
    source = np.arange(len(span))
    place = begin = np.zeros(len(span), np.int64)
    rows = accesses.rows
    if (span > 1).any():
        source = np.repeat(source, span)
        place = np.arange(len(source)) - np.repeat(np.cumsum(span) - span, span)
        even = accesses.spread[source] == EVEN
        skipped, dealt = _dealt_rows(accesses, source, place, span)
        begin, rows = np.where(even, skipped, 0), np.where(even, dealt, accesses.rows[source])
    block = accesses.block[source] + place
    small = block.astype(np.uint16) if kernel.blocks <= 1 << 16 else block  # sorted by digits: twice as quick
    order = np.argsort(small, kind="stable")
    order = order[rows[order] > 0]
    return source[order], place[order], begin[order], rows[order]


def _shares(kernel: Kernel, accesses: Accesses, home: int, plan: Plan | None) -> Int64s:
    """The last four columns of Ops.table for each access."""
    if plan is None:
        return np.zeros((len(accesses.rows), 4), np.int64)
    shares = plan.shares(kernel, accesses, home).copy()
    walked, again = shares[:, 2], shares[:, 3]
    shares[:, 3] = np.minimum(again * MILLION // np.maximum(walked, 1), MILLION)
    return shares


def _dealt_rows(accesses: Accesses, source: Int64s, place: Int64s, span: Int64s) -> tuple[Int64s, Int64s]:
    """First row and rows of each op of an `even` access: whole grains, the first blocks get one more."""
    grain, total = accesses.grain[source], accesses.rows[source]
    grains = -(-total // grain)
    each, extra = np.divmod(grains, span[source])
    begin = (each * place + np.minimum(place, extra)) * grain
    end = begin + (each + (place < extra)) * grain
    return begin, np.minimum(end, total) - begin


def _join(parts: Sequence[Ops]) -> Ops:
    """Ops of several kernels one after another, their gather lists joined."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0] + [len(part.gather_rows) for part in parts[:-1]])
    tables = [part.table.copy() for part in parts]
    for table, shift in zip(tables, shifts, strict=True):
        gathers = table[:, GATHER_AT]
        gathers[gathers >= 0] += shift
    return Ops(np.concatenate(tables), np.concatenate([part.gather_rows for part in parts]))
