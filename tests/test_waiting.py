"""Who waits for whom: stations, pools, queues, and blocks for units.

Two engines that are wrong in the same way agree with each other, so what is expected here are formulas.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_cases import (
    GPU,
    HBM,
    HBM_MBPS,
    HBM_PS,
    HOST_MBPS,
    L2,
    ONE_TIER,
    TWO_TIERS,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    gathered,
    hundred_rows,
    kernel,
    one_access_ps,
    replayed,
    same_row_twice,
    transfer_ps,
    with_gpu,
    with_link,
    with_tier,
)  # fmt: skip

from memsim.trace import Access

NARROW_MBPS = 30_000  # 512 B take 17,066.7 ps: a remainder
NARROW = with_tier(ONE_TIER, 0, channels=1, channel_mbps=(NARROW_MBPS, NARROW_MBPS))
PROMPT = replace(GPU, launch_gap_ps=0, graph_launch_ps=0)


# Stations


def test_a_station_keeps_the_remainder_of_its_division() -> None:
    """Seven pieces on one channel take what their sum does, not seven times one piece rounded up."""
    took = one_access_ps(NARROW, 0, 7 * 512)
    assert took == HBM_PS + transfer_ps(7 * 512, NARROW_MBPS)
    assert transfer_ps(7 * 512, NARROW_MBPS) < 7 * transfer_ps(512, NARROW_MBPS)


def test_another_rate_begins_a_busy_period_at_the_rounded_end() -> None:
    """Two kernels on one unit: a tile of each kind of arithmetic, loaded at once, one after the other."""
    rates = {"fp8": 3_000_001, "bf16": 999_983}
    gpu = replace(PROMPT, units=1, fp8_mflops=rates["fp8"], bf16_mflops=rates["bf16"])
    regions = (flat_region(0, 8, 64), flat_region(1, 8, 64))
    launches = [
        (
            kernel(i, stream=i, blocks_per_unit=2, flops_per_tile=10**7, flops_unit=unit),
            columns([Access(i, 0, 0, i, False, 0, 1, worked=True)]),
        )
        for i, unit in enumerate(rates)
    ]
    outcome = replayed(MemoryTrace(regions, launches), replace(ONE_TIER, initiators=(gpu,)))
    arithmetic_ps = sum(transfer_ps(10**7, rate) for rate in rates.values())
    assert elapsed_ps(outcome, 1) == one_access_ps(ONE_TIER, 0, 64) + arithmetic_ps


def test_the_wait_for_a_channel_is_the_service_before() -> None:
    outcome = replayed(same_row_twice(512), NARROW)
    through_ps = transfer_ps(512, L2.mbps[0])  # both rows come through the cache
    assert outcome.waiting_ps.tolist() == [transfer_ps(512, NARROW_MBPS), through_ps]


def test_the_wait_for_a_link_is_its_service_less_the_gap_between_arrivals() -> None:
    """512 B are two pieces on two host channels; the second request leaves them one piece later."""
    system = with_link(TWO_TIERS, mbps=(10_000, 10_000))
    outcome = replayed(same_row_twice(512), system, tier=1)
    piece_ps = transfer_ps(256, HOST_MBPS)
    gap_ps = transfer_ps(512, HOST_MBPS) - piece_ps
    assert outcome.waiting_ps.tolist() == [0, 2 * piece_ps, 0, transfer_ps(512, 10_000) - gap_ps]


# Pools


@pytest.mark.parametrize(("lent_bytes", "together"), [(32, 1), (64, 2)])
def test_a_unit_lends_bytes_as_asked_not_rounded(lent_bytes: int, together: int) -> None:
    """Rows of 32 B move 64 B, and take 32 B of the unit's."""
    system = with_gpu(with_tier(ONE_TIER, 0, unit_bytes=64), unit_outstanding_bytes=lent_bytes)
    took = elapsed_ps(replayed(hundred_rows(32), system))
    assert took == pytest.approx(100 / together * one_access_ps(system, 0, 32), rel=0.02)


def test_nobody_passes_a_queue_and_a_return_goes_to_all_whom_it_suffices() -> None:
    """A unit of 1,000 B, 600 B out: the second block needs 600 B and waits, the third needs the 400 B that
    are left and waits behind it. The return of 600 B lets both go."""
    regions = (flat_region(0, 8, 600), flat_region(1, 8, 400))
    system = with_gpu(ONE_TIER, units=1, unit_outstanding_bytes=1000)
    accesses = [Access(0, block, block, region, False, 0, 1) for block, region in enumerate((0, 0, 1))]
    trace = MemoryTrace(regions, [(kernel(blocks=3, blocks_per_unit=3), columns(accesses))])
    outcome = replayed(trace, system)
    first_ps = one_access_ps(system, 0, 600)
    assert outcome.units_waiting_ps.tolist() == [2 * first_ps]
    assert 2 * first_ps <= elapsed_ps(outcome) < 2.1 * first_ps


# Blocks for units


def test_a_kernel_without_room_lets_later_ones_try() -> None:
    """Half of both units is taken; kernel 1 needs a whole one and waits, kernel 2 needs a half and starts."""
    system = replace(ONE_TIER, initiators=(replace(PROMPT, units=2),))
    launches = [
        (kernel(0, blocks=2, blocks_per_unit=2, startup_ps=1000), columns([])),
        (kernel(1, stream=1, startup_ps=10), columns([])),
        (kernel(2, stream=2, blocks_per_unit=2, startup_ps=20), columns([])),
    ]
    outcome = replayed(MemoryTrace((flat_region(0, 8, 64),), launches), system)
    assert outcome.end_ps.tolist() == [1000, 1000 + 10, 20]


def test_a_block_that_ends_makes_room_before_requests_of_its_instant_are_issued() -> None:
    """Kernel 0 holds half of unit 0. Kernel 1 runs its blocks one after another on unit 1, kernel 2 its two
    tiles in the other half of unit 0. When the first block and the first tile end together, the second
    block and the second tile ask for one row at once: kernel 1 is served first, so its block was there.
    """
    system = replace(ONE_TIER, initiators=(replace(PROMPT, units=2),), tiers=(replace(HBM, channels=2),))
    work = {"flops_per_tile": 7_490_000, "flops_unit": "bf16"}
    rows = [Access(1, block, block, 0, False, 0, 1, worked=True) for block in range(2)]
    launches = [
        (kernel(0, blocks_per_unit=2, startup_ps=10**9), columns([])),
        (kernel(1, stream=1, blocks=2, **work), columns(rows)),
        (kernel(2, stream=2, blocks_per_unit=2, **work), columns([gathered([1, 0], kernel=2, worked=True)])),
    ]
    outcome = replayed(MemoryTrace((flat_region(0, 64, 512),), launches), system)
    both_ps, first_ps = (transfer_ps(n * 512, HBM_MBPS) for n in (2, 1))
    assert elapsed_ps(outcome, 2) - elapsed_ps(outcome, 1) == both_ps - first_ps
