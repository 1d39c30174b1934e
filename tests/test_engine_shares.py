"""What units share, how far channels are, and what waits for stores: closed forms, both engines."""

from __future__ import annotations

import pytest
from engine_cases import (
    HBM_MBPS,
    HBM_PS,
    NO_CACHE,
    ONE_TIER,
    FixedPlan,
    MemoryTrace,
    elapsed_ps,
    flat_region,
    kernel,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim.lanes import away_ps, channel_of_lane, nearest_ps
from memsim.trace import Access

ROW = 512
LOAD_PS = HBM_PS + transfer_ps(ROW, HBM_MBPS)
CHANNELS = ONE_TIER.tiers[0].channels


def rows(count: int, blocks: int = 1, write: bool = False) -> MemoryTrace:
    """Rows on as many lanes and channels, all at once."""
    launch = kernel(blocks=blocks, tile_bytes=ROW, tiles_in_flight=count)
    access = Access(0, 0, blocks - 1, 0, write, 0, count, spread="even")
    return one_kernel(launch, flat_region(0, count, ROW), access)


@pytest.mark.parametrize(
    ("outstanding", "rounds"), [(4 * ROW, 2), (2 * ROW, 4), (ROW, 8), (1, 8), (8 * ROW, 1)]
)
def test_a_lone_block_has_what_all_units_may_have_outstanding(outstanding: int, rounds: int) -> None:
    system = uncached(with_gpu(ONE_TIER, outstanding_bytes=outstanding))
    assert elapsed_ps(replayed(rows(8), system, run_on=NO_CACHE)) == rounds * LOAD_PS


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_the_units_of_a_kernel_share_what_they_may_have_outstanding(blocks: int) -> None:
    """Four lanes at a time, however many units ask; never more than the unit's own."""
    system = uncached(with_gpu(ONE_TIER, outstanding_bytes=4 * ROW))
    assert elapsed_ps(replayed(rows(8, blocks), system, run_on=NO_CACHE)) == 2 * LOAD_PS
    little = uncached(with_gpu(ONE_TIER, outstanding_bytes=4 * ROW, unit_outstanding_bytes=ROW))
    assert elapsed_ps(replayed(rows(8, blocks), little, run_on=NO_CACHE)) == 8 // blocks * LOAD_PS


@pytest.mark.parametrize("lane", range(CHANNELS))
def test_a_load_of_a_far_channel_takes_longer(lane: int) -> None:
    system = uncached(with_tier(ONE_TIER, 0, spread_ps=(HBM_PS // 2,) * 3))
    access = Access(0, 0, 0, 0, False, lane, 1)
    found = elapsed_ps(
        replayed(one_kernel(kernel(), flat_region(0, CHANNELS, ROW), access), system, run_on=NO_CACHE)
    )
    tier = system.tiers[0]
    assert found == LOAD_PS - HBM_PS + nearest_ps(tier) + away_ps(int(channel_of_lane(lane, CHANNELS)), tier)


def test_writes_are_as_far_from_everywhere() -> None:
    near, far = (uncached(with_tier(ONE_TIER, 0, spread_ps=(spread,) * 3)) for spread in (0, HBM_PS // 2))
    trace = rows(8, write=True)
    assert elapsed_ps(replayed(trace, near, run_on=NO_CACHE)) == elapsed_ps(
        replayed(trace, far, run_on=NO_CACHE)
    )


def stored_and_loaded(dependent: bool) -> MemoryTrace:
    """A row is written, then another one read; or the other way round, and then written again."""
    region = flat_region(0, 24, ROW)
    accesses = [Access(0, 0, 0, 0, True, 0, 1), Access(0, 0, 0, 0, False, 1, 1)]
    accesses.append(Access(0, 0, 0, 0, True, 2, 1, dependent=dependent))
    return one_kernel(kernel(tiles_in_flight=9), region, *accesses)


def test_a_load_leaves_its_unit_behind_the_stores_before_it() -> None:
    system = uncached(with_gpu(ONE_TIER, port_mbps=(10**6, 1_000)))
    trace = one_kernel(
        kernel(tiles_in_flight=2), flat_region(0, 16, ROW),
        Access(0, 0, 0, 0, True, 0, 1), Access(0, 0, 0, 0, False, 1, 1),
    )  # fmt: skip
    found = elapsed_ps(replayed(trace, system, run_on=NO_CACHE))
    assert found == transfer_ps(ROW, 1_000) + LOAD_PS


def test_a_store_waits_for_the_loads_before_it_and_not_for_stores() -> None:
    """The first store takes longer than the load: the second one goes when the load is there."""
    write_ps = 10 * HBM_PS
    system = uncached(with_tier(ONE_TIER, 0, latency_ps=(HBM_PS, write_ps)))
    store_ps = write_ps + transfer_ps(ROW, HBM_MBPS)
    free, waits = (
        elapsed_ps(replayed(stored_and_loaded(dependent), system, run_on=NO_CACHE))
        for dependent in (False, True)
    )
    assert free == store_ps
    assert waits == LOAD_PS + store_ps


@pytest.mark.parametrize(("dirty", "at_once"), [(0, 4), (1_000_000, 2)])
def test_what_a_load_pushes_out_is_outstanding_too(dirty: int, at_once: int) -> None:
    """Four lanes may be outstanding: four loads, or two that push out."""
    system = with_tier(with_gpu(ONE_TIER, unit_outstanding_bytes=4 * ROW), 0, latency_ps=(HBM_PS, 1))
    took = elapsed_ps(replayed(rows(8), system, plan=FixedPlan(dirty=dirty)))
    pushed_ps = transfer_ps(2 * ROW, HBM_MBPS) - transfer_ps(ROW, HBM_MBPS) if dirty else 0
    assert took == pytest.approx(8 // at_once * LOAD_PS, abs=8 * pushed_ps)
