"""The cache in front of the near tiers: who is drawn to hit, what writes cost, and what is pushed out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import (
    HBM_MBPS,
    HBM_PS,
    NO_CACHE,
    ONE_TIER,
    PCIE_PS,
    TWO_TIERS,
    FixedPlan,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    kernel,
    one_kernel,
    placed,
    replayed,
    run_both,
    transfer_ps,
    uncached,
    with_gpu,
    with_tier,
)  # fmt: skip
from hypothesis import given
from hypothesis import strategies as st

from memsim import ledger, rules
from memsim.errors import MemsimError
from memsim.lanes import slice_ps
from memsim.result import READ, WRITE, Outcome
from memsim.system import Cache, System
from memsim.trace import Access

ROW = 512  # a lane
L2_READ_MBPS, L2_WRITE_MBPS, L2_PS = 60_000, 10_000, 90_000  # reads quicker than a channel
ALL, HALF = 1_000_000, 500_000
NEAR = replace(ONE_TIER, cache=Cache("l2", 1 << 20, (L2_READ_MBPS, L2_WRITE_MBPS), L2_PS))
NEAR_AND_FAR = replace(TWO_TIERS, cache=NEAR.cache)


def rows(count: int, write: bool = False, **changes: object) -> MemoryTrace:
    """Rows of one block, all at once, each a request."""
    launch = kernel(**{"tiles_in_flight": count, "tile_bytes": ROW, **changes})
    return one_kernel(launch, flat_region(0, count, ROW), Access(0, 0, 0, 0, write, 0, count))


def took(trace: MemoryTrace, system: System = NEAR, tier: int = 0, **shares: int) -> Outcome:
    return replayed(trace, system, tier, plan=FixedPlan(**shares))


def test_reads_and_writes_pass_the_cache_at_once() -> None:
    """64 rows that hit and 64 that are stored: as long as the slower way alone, not as both together."""
    alone = [elapsed_ps(took(rows(64, write), hit=ALL)) for write in (False, True)]
    both = [Access(0, way, way, way, bool(way), 0, 64) for way in (0, 1)]
    launch = kernel(blocks=2, tiles_in_flight=64, tile_bytes=ROW)
    regions = tuple(flat_region(i, 64, ROW) for i in range(2))
    trace = MemoryTrace(regions, [(launch, columns(both))])
    assert elapsed_ps(run_both(trace, NEAR, placed(regions), plan=FixedPlan(hit=ALL))) == max(alone)
    assert max(alone) == 64 * ROW * 10**6 // L2_WRITE_MBPS + L2_PS


def test_a_hit_in_a_far_slice_takes_longer() -> None:
    """Each of a row's lines by itself; what is stored takes the mean wherever it goes."""
    spread_ps = L2_PS // 2
    far = replace(NEAR, cache=replace(NEAR.cache, spread_ps=spread_ps))
    for at in range(4):
        access = Access(0, 0, 0, 0, False, at, 1)
        trace = one_kernel(kernel(tile_bytes=ROW), flat_region(0, 4, ROW), access)
        away_ps = int(slice_ps(at * ROW, spread_ps))
        both_ps = [elapsed_ps(took(trace, system, hit=ALL)) for system in (NEAR, far)]
        assert both_ps[1] - both_ps[0] == away_ps - spread_ps // 2
    assert elapsed_ps(took(rows(1, write=True), far)) == elapsed_ps(took(rows(1, write=True)))


# Draws


@given(st.integers(0, 999_999), st.integers(0, 10**9), st.integers(0, 1_000_000), st.integers(1, 2000))
def test_a_run_of_requests_is_drawn_exact_to_one(phase: int, first: int, ppm: int, count: int) -> None:
    drawn = sum(rules.is_drawn(phase, number, ppm) for number in range(first, first + count))
    assert abs(drawn - count * ppm / 1e6) < 1
    assert rules.drawn_before(phase, first + count, ppm) - rules.drawn_before(phase, first, ppm) == drawn


@pytest.mark.parametrize("hit", [0, 1, 250_000, HALF, 750_000, ALL])
@pytest.mark.parametrize("dirty", [0, 250_000, HALF, 750_000, ALL])
def test_of_those_that_miss_the_dirty_share_pushes_out(hit: int, dirty: int) -> None:
    """However many requests an op has: many ops of one, or one of many. Equal shares are not in step."""
    for blocks, ops, numbers in ((1, 1, 4000), (1, 4000, 1), (4000, 1, 1), (20, 20, 10)):
        draws = [
            rules.draw_cached(block, op, number, hit, dirty)
            for block in range(blocks)
            for op in range(ops)
            for number in range(numbers)
        ]
        hits, pushes = np.array(draws).sum(axis=0)
        assert hits == pytest.approx(4000 * hit / 1e6, abs=25 + 2 * (numbers == 10) * 40)
        assert pushes == pytest.approx((4000 - hits) * dirty / 1e6, abs=60 + 2 * (numbers == 10) * 40)
        assert not any(hit and pushed for hit, pushed in draws)


def test_accesses_that_take_turns_are_drawn_alike() -> None:
    """A block reads a row of two regions in turn, one request an op; half of each is cached."""
    regions = (flat_region(0, 400, ROW), flat_region(1, 400, 4 * ROW))
    accesses = [Access(0, 0, 0, i % 2, False, i // 2, 1) for i in range(800)]
    trace = MemoryTrace(regions, [(kernel(tiles_in_flight=4, tile_bytes=ROW), columns(accesses))])
    outcome = run_both(trace, NEAR, placed(regions), plan=FixedPlan(hit=HALF))
    for region in (0, 1):
        assert outcome.issued[region, 1, READ] == pytest.approx(regions[region].bytes / 2, rel=0.03)


# Reads


@pytest.mark.parametrize("hit", [0, 250_000, HALF, ALL])
def test_reads_that_hit_are_served_by_the_cache(hit: int) -> None:
    outcome = took(rows(400), hit=hit)
    hits = round(400 * hit / 1e6)
    assert outcome.issued[0, :, READ].tolist() == [(400 - hits) * ROW, hits * ROW]
    assert outcome.moved[0, :, READ].tolist() == [(400 - hits) * ROW, hits * ROW]
    assert outcome.latency.sum(axis=1).tolist() == [400 - hits, hits]
    assert not outcome.written_back.any()


def test_a_hit_takes_the_caches_latency_and_read_rate() -> None:
    assert elapsed_ps(took(rows(1), hit=ALL)) == L2_PS + transfer_ps(ROW, L2_READ_MBPS)
    assert elapsed_ps(took(rows(50), hit=ALL)) == L2_PS + transfer_ps(50 * ROW, L2_READ_MBPS)
    assert elapsed_ps(took(rows(1))) == HBM_PS + transfer_ps(ROW, HBM_MBPS)


def test_what_misses_comes_through_the_cache_too() -> None:
    """A slow cache: half the rows are hits, and all take its time; the rest is the memory's latency later."""
    slow = replace(NEAR, cache=replace(NEAR.cache, mbps=(1_000, 1_000)))
    for hit in (0, HALF):
        outcome = took(rows(100), slow, hit=hit)
        assert elapsed_ps(outcome) == pytest.approx(HBM_PS + transfer_ps(100 * ROW, 1_000), rel=0.01)
        assert outcome.issued[0, 1, READ] == hit * 100 * ROW // ALL


def test_more_hits_never_slow_a_stream_down() -> None:
    wide = with_gpu(
        replace(NEAR, cache=replace(NEAR.cache, mbps=(460_000, 460_000))), unit_outstanding_bytes=1 << 20
    )
    trace = rows(4000, tiles_in_flight=1024)
    took_ps = [elapsed_ps(took(trace, wide, hit=hit)) for hit in range(0, ALL + 1, 250_000)]
    assert took_ps == sorted(took_ps, reverse=True)
    assert took_ps[0] > 1.2 * took_ps[-1]


def test_a_far_tier_and_another_initiator_have_no_cache() -> None:
    far_ps, plain_ps = (elapsed_ps(took(rows(9), NEAR_AND_FAR, 1, hit=h, dirty=ALL)) for h in (ALL, 0))
    assert far_ps == plain_ps > 2 * PCIE_PS
    other = replayed(rows(9, True), uncached(NEAR), run_on=NO_CACHE, plan=FixedPlan(ALL, ALL))
    assert other.issued[0, :, WRITE].tolist() == [9 * ROW, 0]
    assert not other.written_back.any()


# Writes


def test_a_write_is_stored_at_the_caches_latency_and_write_rate() -> None:
    outcome = took(rows(50, True))
    assert elapsed_ps(outcome) == L2_PS + transfer_ps(50 * ROW, L2_WRITE_MBPS)
    assert outcome.issued[0, :, WRITE].tolist() == [0, 50 * ROW]
    assert not outcome.kernel_moved[0, 0].any()


def test_a_write_over_a_link_is_not() -> None:
    outcome = took(rows(5, True), NEAR_AND_FAR, 1)
    assert outcome.issued[0, :, WRITE].tolist() == [0, 5 * ROW, 0]


# What is pushed out


@pytest.mark.parametrize("write", [False, True])
def test_what_is_pushed_out_is_written_to_the_tier(write: bool) -> None:
    outcome = took(rows(400, write), hit=HALF, dirty=HALF)
    assert outcome.written_back.tolist() == [100 * ROW]
    reads, writes = outcome.kernel_moved[0, 0].tolist()
    assert (reads, writes) == (0 if write else 200 * ROW, 100 * ROW)
    assert outcome.moved[0, 0].tolist() == [reads, 0]


def test_a_miss_that_pushes_out_reads_first_and_waits_until_the_tier_has_taken_it() -> None:
    both_ps = transfer_ps(2 * ROW, HBM_MBPS)
    assert elapsed_ps(took(rows(1), dirty=ALL)) == HBM_PS + both_ps
    quick = with_tier(NEAR, 0, latency_ps=(1, 1))
    assert elapsed_ps(took(rows(1), quick, dirty=ALL)) == both_ps + 1
    turning = with_tier(quick, 0, turnaround_ps=700)
    assert elapsed_ps(took(rows(1), turning, dirty=ALL)) == both_ps + 701
    filled, gathering = (with_tier(turning, 0, write_buffer_bytes=n) for n in (ROW, ROW + 1))
    assert elapsed_ps(took(rows(1), filled, dirty=ALL)) == both_ps + 701
    assert elapsed_ps(took(rows(1), gathering, dirty=ALL)) == transfer_ps(ROW, HBM_MBPS) + 1


def test_a_stored_write_waits_for_what_it_pushes_out() -> None:
    slow = with_tier(NEAR, 0, channel_mbps=(HBM_MBPS, 100))
    assert elapsed_ps(took(rows(1, True), slow, dirty=ALL)) == transfer_ps(ROW, 100) + HBM_PS
    filled, gathering = (with_tier(slow, 0, write_buffer_bytes=n) for n in (ROW, ROW + 1))
    assert elapsed_ps(took(rows(1, True), filled, dirty=ALL)) == transfer_ps(ROW, 100) + HBM_PS
    assert (
        elapsed_ps(took(rows(1, True), gathering, dirty=ALL))
        == HBM_PS
        > L2_PS + transfer_ps(ROW, L2_WRITE_MBPS)
    )


def test_a_stream_that_pushes_out_all_it_reads_moves_twice_the_bytes_in_twice_the_time() -> None:
    wide = with_gpu(ONE_TIER, unit_outstanding_bytes=1 << 20)
    trace = rows(4000, tiles_in_flight=1024)
    clean_ps, dirty_ps = (elapsed_ps(took(trace, wide, dirty=d)) for d in (0, ALL))
    assert dirty_ps == pytest.approx(2 * clean_ps, rel=0.1)


def test_kernels_are_cached_apart_though_they_are_equal_otherwise() -> None:
    """The first one misses, the later ones hit: the second and the third are one segment replayed once."""

    class Warming:
        def shares(self, launch: object, accesses: object, home: int) -> np.ndarray:
            return np.array([[ALL if launch.id else 0, 0, 0, 0]], np.int64)  # type: ignore[attr-defined]

    region = flat_region(0, 8, ROW)
    launches = [(kernel(i), columns([Access(i, 0, 0, 0, False, 0, 1)])) for i in range(3)]
    outcome = run_both(MemoryTrace((region,), launches), NEAR, placed([region]), plan=Warming())
    miss_ps, hit_ps = HBM_PS + transfer_ps(ROW, HBM_MBPS), L2_PS + transfer_ps(ROW, L2_READ_MBPS)
    assert [elapsed_ps(outcome, i) for i in range(3)] == [miss_ps, hit_ps, hit_ps]


# The ledger


def test_the_ledger_holds_what_is_stored_and_pushed_out() -> None:
    trace = rows(400, True)
    outcome = took(trace, hit=HALF, dirty=HALF)
    issued = np.array([[0, 400 * ROW]])
    ledger.check(outcome, issued, NEAR)
    spoilt = {"written_back": outcome.written_back + 1, "issued": outcome.issued * 2}
    for field, values in spoilt.items():
        with pytest.raises(MemsimError, match="invariant broken"):
            ledger.check(outcome._replace(**{field: values}), issued, NEAR)


def test_nothing_is_pushed_over_a_link() -> None:
    outcome = took(rows(4, True), NEAR_AND_FAR, 1)
    spoilt = outcome._replace(written_back=np.array([0, ROW]), kernel_moved=outcome.kernel_moved.copy())
    spoilt.kernel_moved[0, 1, WRITE] += ROW
    with pytest.raises(MemsimError, match="written back over a link"):
        ledger.check(spoilt, np.array([[0, 4 * ROW]]), NEAR_AND_FAR)
