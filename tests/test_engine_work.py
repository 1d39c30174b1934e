"""The arithmetic of tiles, and how long after it a tile ends, against closed forms in both engines."""

from __future__ import annotations

import pytest
from engine_cases import (
    GPU,
    HBM_MBPS,
    HBM_PS,
    NO_CACHE,
    ONE_TIER,
    elapsed_ps,
    flat_region,
    kernel,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
    with_gpu,
)  # fmt: skip

from memsim.trace import Access

LINE, FLOPS, AFTER_PS = 512, 3_000_000, 77_000
LOAD_PS = HBM_PS + transfer_ps(LINE, HBM_MBPS)  # of a tile
WORK_PS = transfer_ps(FLOPS, GPU.bf16_mflops)


def took_ps(
    tiles: int,
    after_ps: int,
    *,
    at_once: int = 1,
    flops: int = FLOPS,
    worked: bool = True,
    write: bool = False,
    retire: str = "any",
) -> int:
    """Time of a block of some tiles, all of one lane each."""
    unit = "bf16" if flops else "none"
    launch = kernel(tiles_in_flight=at_once, flops_per_tile=flops, flops_unit=unit, retire=retire)
    access = Access(0, 0, 0, 0, write, 0, tiles, worked=worked)
    system = uncached(with_gpu(ONE_TIER, work_latency_ps=after_ps))
    trace = one_kernel(launch, flat_region(0, tiles, LINE), access)
    return elapsed_ps(replayed(trace, system, run_on=NO_CACHE))


@pytest.mark.parametrize("retire", ["in_order", "any"])
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("after_ps", [0, 1, AFTER_PS])
def test_a_worked_tile_ends_a_while_after_its_arithmetic(after_ps: int, write: bool, retire: str) -> None:
    """One after another: each tile is loaded, worked, and ends later."""
    found = took_ps(5, after_ps, write=write, retire=retire)
    assert found == 5 * (LOAD_PS + WORK_PS + after_ps)


def test_a_tile_without_arithmetic_ends_when_it_has_arrived() -> None:
    assert took_ps(5, AFTER_PS, flops=0) == 5 * LOAD_PS
    whole = took_ps(1, AFTER_PS, worked=False)
    assert whole == LOAD_PS


@pytest.mark.parametrize("retire", ["in_order", "any"])
def test_a_unit_works_on_other_tiles_meanwhile(retire: str) -> None:
    """Eight tiles arrive on their way; the unit works them one after another, and only the last one's
    latency shows."""
    slow = 100 * FLOPS
    found = took_ps(8, AFTER_PS, at_once=8, flops=slow, retire=retire)
    assert found == LOAD_PS + transfer_ps(8 * slow, GPU.bf16_mflops) + AFTER_PS


def test_a_tile_that_has_not_ended_keeps_its_place() -> None:
    """Two tiles at once: with a long latency a pair of tiles each time."""
    long_ps = 10_000_000
    found = took_ps(8, long_ps, at_once=2)
    least_ps = 4 * (LOAD_PS + WORK_PS + long_ps)
    assert least_ps <= found <= least_ps + 4 * (WORK_PS + LOAD_PS - HBM_PS)
