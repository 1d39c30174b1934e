"""Tiles: how many rows they hold, when a block may ask for them, and what their arithmetic costs."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HBM,
    ONE_TIER,
    QUANTUM,
    TWO_TIERS,
    columns,
    elapsed_ps,
    flat_region,
    gathered,
    kernel,
    one_access_ps,
    one_kernel,
    replayed,
    run_both,
    transfer_ps,
)  # fmt: skip

from memsim import rules
from memsim.placement import Piece, Placement, build_memory
from memsim.program import UNIT_SHARES, Program, build_program
from memsim.trace import Access, Kernel

ROWS = flat_region(0, 8, 64)
WORK_PS = 100_000_000
WORK = {"flops_per_tile": WORK_PS * GPU.bf16_mflops // 10**6, "flops_unit": "bf16"}


def program(launch: Kernel, *accesses: Access, row_bytes: int = 64) -> Program:
    return build_program([(launch, columns(accesses))], [[]], [True], ONE_TIER, np.array([row_bytes]), {})


def test_a_tile_holds_whole_rows_or_as_many_as_the_kernel_works_at_once() -> None:
    """1,000 B hold three rows of 300 B; of a worked access the kernel says how many."""
    launch = kernel(tile_bytes=1000, tile_rows=77)
    accesses = [Access(0, 0, 0, 0, False, 0, 9), Access(0, 0, 0, 0, False, 0, 9, worked=True)]
    table = program(launch, *accesses, row_bytes=300).ops.table
    assert table[:, rules.TILE_ROWS].tolist() == [3, 77]


def test_a_tile_holds_one_row_at_least() -> None:
    table = program(kernel(tile_bytes=100), Access(0, 0, 0, 0, False, 0, 9), row_bytes=300).ops.table
    assert table[:, rules.TILE_ROWS].tolist() == [1]


@pytest.mark.parametrize("blocks_per_unit", [1, 2, 16, 17])
def test_shares_of_a_unit_round_down(blocks_per_unit: int) -> None:
    """As many blocks as the kernel says fit; at 17 some shares are left over, and no 18th fits."""
    (shares,) = program(kernel(blocks_per_unit=blocks_per_unit)).unit_shares.tolist()
    assert UNIT_SHARES // shares == blocks_per_unit
    assert shares * blocks_per_unit <= UNIT_SHARES


@pytest.mark.parametrize(
    ("unit", "mflops"), [("bf16", GPU.bf16_mflops), ("fp8", GPU.fp8_mflops), ("fp32", GPU.fp32_mflops)]
)
def test_arithmetic_runs_at_the_rate_of_its_unit(unit: str, mflops: int) -> None:
    launch = kernel(flops_per_tile=10**9, flops_unit=unit)
    took = elapsed_ps(replayed(one_kernel(launch, ROWS, gathered([0], worked=True)), ONE_TIER))
    assert took == one_access_ps(ONE_TIER, 0, 64) + transfer_ps(10**9, mflops)


def test_only_the_first_tile_of_a_dependent_access_waits() -> None:
    """One row, then four that depend on it, all at once: two latencies, not five."""
    accesses = [
        Access(0, 0, 0, 0, False, 0, 1, worked=True),
        Access(0, 0, 0, 0, False, 1, 4, dependent=True, worked=True),
    ]
    took = elapsed_ps(replayed(one_kernel(kernel(tiles_in_flight=8), ROWS, *accesses), ONE_TIER))
    assert 2 * one_access_ps(ONE_TIER, 0, 64) <= took < 2.1 * one_access_ps(ONE_TIER, 0, 64)


def test_a_partial_tile_pays_the_arithmetic_of_a_full_one() -> None:
    """Three rows in tiles of two, behind the load of the first tile."""
    launch = kernel(tile_rows=2, tiles_in_flight=2, retire="in_order", **WORK)
    trace = one_kernel(launch, ROWS, Access(0, 0, 0, 0, False, 0, 3, worked=True))
    took = elapsed_ps(replayed(trace, ONE_TIER))
    assert took == HBM.latency_ps[0] + transfer_ps(2 * 64, HBM.channel_mbps[0]) + 2 * WORK_PS


def test_in_order_a_tile_without_arithmetic_ends_no_earlier_than_the_one_before() -> None:
    """Two tiles at once: a worked one, then a bare one, and another bare one that waits for the first."""
    launch = kernel(tile_bytes=64, tiles_in_flight=2, retire="in_order", **WORK)
    trace = one_kernel(launch, ROWS, gathered([0], worked=True), gathered([7, 7]))
    assert elapsed_ps(replayed(trace, ONE_TIER)) == 2 * one_access_ps(ONE_TIER, 0, 64) + WORK_PS


@pytest.mark.parametrize(("retire", "worked_after"), [("in_order", 2), ("any", 1)])
def test_in_order_a_tile_is_worked_only_after_the_one_before(retire: str, worked_after: int) -> None:
    """The first row is far, the second near. In order both are worked once the far one has arrived;
    otherwise the near one is worked meanwhile, and ends before it."""
    work_ps = one_access_ps(TWO_TIERS, 1, 64) // 4
    work = {"flops_per_tile": work_ps * GPU.bf16_mflops // 10**6, "flops_unit": "bf16"}
    trace = one_kernel(kernel(tiles_in_flight=2, retire=retire, **work), ROWS, gathered([0, 1], worked=True))
    memory = build_memory([ROWS], Placement(((Piece(1, ((1, 1),)), Piece(8, ((0, 1),))),), ()))
    took = elapsed_ps(run_both(trace, TWO_TIERS, memory, QUANTUM))
    arithmetic_ps = transfer_ps(worked_after * work["flops_per_tile"], GPU.bf16_mflops)
    assert took == one_access_ps(TWO_TIERS, 1, 64) + arithmetic_ps
