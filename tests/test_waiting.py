"""Who waits for whom: stations, pools, queues, routes, and blocks for units.

Two engines that are wrong in the same way agree with each other, so what is expected here are formulas.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_cases import (
    GPU,
    HBM,
    HOST,
    L2,
    ONE_TIER,
    PCIE,
    TWO_TIERS,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    gathered,
    kernel,
    one_access_ps,
    one_kernel,
    replayed,
    transfer_ps,
)  # fmt: skip

from memsim.system import Link, System
from memsim.trace import Access

NARROW_MBPS = 30_000  # 512 B take 17,066.7 ps: a remainder
NARROW = replace(ONE_TIER, tiers=(replace(HBM, channels=1, channel_mbps=NARROW_MBPS),))
PROMPT = replace(GPU, launch_gap_ps=0, graph_launch_ps=0)


def same_row_twice(row_bytes: int, write: bool = False) -> MemoryTrace:
    """Two requests for one place, issued at once."""
    launch = kernel(tiles_in_flight=2, tile_bytes=row_bytes)
    return one_kernel(launch, flat_region(0, 8, row_bytes), gathered([0, 0], write=write))


def chain(near: Link, far: Link) -> System:
    """The second tier, of one wide channel, is behind two links."""
    wide = replace(HOST, channels=1, channel_mbps=10**6)
    return System("chain", GPU, L2, (HBM, wide), (near, far), ((), (0, 1)))


def hundred_rows(row_bytes: int) -> MemoryTrace:
    """Up to eight rows at once, one request each."""
    rows = Access(0, 0, 0, 0, False, 0, 100, worked=True)
    return one_kernel(kernel(tiles_in_flight=8), flat_region(0, 100, row_bytes), rows)


# Stations


def test_a_station_keeps_the_remainder_of_its_division() -> None:
    """Seven pieces on one channel take what their sum does, not seven times one piece rounded up."""
    took = one_access_ps(NARROW, 0, 7 * 512)
    assert took == HBM.latency_ps + transfer_ps(7 * 512, NARROW_MBPS)
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
    outcome = replayed(MemoryTrace(regions, launches), replace(ONE_TIER, initiator=gpu))
    arithmetic_ps = sum(transfer_ps(10**7, rate) for rate in rates.values())
    assert elapsed_ps(outcome, 1) == one_access_ps(ONE_TIER, 0, 64) + arithmetic_ps


def test_the_wait_for_a_channel_is_the_service_before() -> None:
    outcome = replayed(same_row_twice(512), NARROW)
    assert outcome.waiting_ps.tolist() == [transfer_ps(512, NARROW_MBPS), 0]


def test_the_wait_for_a_link_is_its_service_less_the_gap_between_arrivals() -> None:
    """512 B are two pieces on two host channels; the second request leaves them one piece later."""
    system = replace(TWO_TIERS, links=(replace(PCIE, mbps=10_000),))
    outcome = replayed(same_row_twice(512), system, tier=1)
    piece_ps = transfer_ps(256, HOST.channel_mbps)
    gap_ps = transfer_ps(512, HOST.channel_mbps) - piece_ps
    assert outcome.waiting_ps.tolist() == [0, 2 * piece_ps, 0, transfer_ps(512, 10_000) - gap_ps]


# Routes


@pytest.mark.parametrize("write", [False, True])
def test_reads_cross_the_outermost_link_first_and_writes_the_innermost(write: bool) -> None:
    """Of two equal requests the second waits where they first meet a link, and where it is slower."""
    near, far = replace(PCIE, mbps=10_000), replace(PCIE, name="cxl", mbps=40_000)
    outcome = replayed(same_row_twice(512, write), chain(near, far), tier=1)
    near_ps, far_ps, tier_ps = (transfer_ps(512, mbps) for mbps in (10_000, 40_000, 10**6))
    expected = [near_ps, 0] if write else [near_ps - far_ps, far_ps - tier_ps]
    assert outcome.waiting_ps[3:].tolist() == expected


# Pools


def test_the_wait_for_tags_is_the_request_that_holds_them() -> None:
    system = replace(TWO_TIERS, links=(replace(PCIE, tags=512 // PCIE.tag_bytes),))
    outcome = replayed(same_row_twice(512), system, tier=1)
    assert outcome.tags_waiting_ps.tolist() == [one_access_ps(TWO_TIERS, 1, 512)]


def test_tags_are_taken_from_the_initiator_outward() -> None:
    """One tag on each link: the second request waits for the inner one, and then finds the outer one free."""
    system = chain(replace(PCIE, tags=1), replace(PCIE, name="cxl", tags=1))
    outcome = replayed(same_row_twice(128), system, tier=1)
    assert outcome.tags_waiting_ps.tolist() == [one_access_ps(system, 1, 128), 0]


@pytest.mark.parametrize(("tags", "together"), [(2, 1), (4, 2)])
def test_tags_are_taken_for_rounded_bytes(tags: int, together: int) -> None:
    """Rows of 32 B move 64 B: two tags of 32 B each."""
    system = replace(TWO_TIERS, links=(replace(PCIE, tags=tags, tag_bytes=32),))
    took = elapsed_ps(replayed(hundred_rows(32), system, tier=1))
    assert took == pytest.approx(100 / together * one_access_ps(TWO_TIERS, 1, 32), rel=0.02)


@pytest.mark.parametrize(("lent_bytes", "together"), [(32, 1), (64, 2)])
def test_a_unit_lends_bytes_as_asked_not_rounded(lent_bytes: int, together: int) -> None:
    """Rows of 32 B move 64 B, and take 32 B of the unit's."""
    gpu = replace(GPU, unit_outstanding_bytes=lent_bytes)
    system = replace(ONE_TIER, tiers=(replace(HBM, unit_bytes=64),), initiator=gpu)
    took = elapsed_ps(replayed(hundred_rows(32), system))
    assert took == pytest.approx(100 / together * one_access_ps(system, 0, 32), rel=0.02)


def test_nobody_passes_a_queue_and_a_return_goes_to_all_whom_it_suffices() -> None:
    """A unit of 1,000 B, 600 B out: the second block needs 600 B and waits, the third needs the 400 B that
    are left and waits behind it. The return of 600 B lets both go."""
    regions = (flat_region(0, 8, 600), flat_region(1, 8, 400))
    system = replace(ONE_TIER, initiator=replace(GPU, units=1, unit_outstanding_bytes=1000))
    accesses = [Access(0, block, block, region, False, 0, 1) for block, region in enumerate((0, 0, 1))]
    trace = MemoryTrace(regions, [(kernel(blocks=3, blocks_per_unit=3), columns(accesses))])
    outcome = replayed(trace, system)
    first_ps = one_access_ps(system, 0, 600)
    assert outcome.units_waiting_ps.tolist() == [2 * first_ps]
    assert 2 * first_ps <= elapsed_ps(outcome) < 2.1 * first_ps


# Blocks for units


def test_a_kernel_without_room_lets_later_ones_try() -> None:
    """Half of both units is taken; kernel 1 needs a whole one and waits, kernel 2 needs a half and starts."""
    system = replace(ONE_TIER, initiator=replace(PROMPT, units=2))
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
    system = replace(ONE_TIER, initiator=replace(PROMPT, units=2), tiers=(replace(HBM, channels=2),))
    work = {"flops_per_tile": 7_490_000, "flops_unit": "bf16"}
    rows = [Access(1, block, block, 0, False, 0, 1, worked=True) for block in range(2)]
    launches = [
        (kernel(0, blocks_per_unit=2, startup_ps=10**9), columns([])),
        (kernel(1, stream=1, blocks=2, **work), columns(rows)),
        (kernel(2, stream=2, blocks_per_unit=2, **work), columns([gathered([1, 0], kernel=2, worked=True)])),
    ]
    outcome = replayed(MemoryTrace((flat_region(0, 64, 512),), launches), system)
    both_ps, first_ps = (transfer_ps(n * 512, HBM.channel_mbps) for n in (2, 1))
    assert elapsed_ps(outcome, 2) - elapsed_ps(outcome, 1) == both_ps - first_ps
