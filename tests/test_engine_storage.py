"""Storage tiers against closed forms: operations a second, queue depth, whole pages, writes, stripes, tails.

The drive: 8 channels, 14 GB/s of reads and 8 GB/s of writes together, pages of 4 KiB, 60 us to a read and
12 us to a write, and at most 2 million reads and a million writes a second.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import (
    GPU,
    L2,
    NO_CACHE,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    fullest,
    gathered,
    kernel,
    one_access_ps,
    one_kernel,
    placed,
    replayed,
    run_both,
    same_row_twice,
    transfer_ps,
    uncached,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim.result import READ, Outcome
from memsim.rules import latency_bucket
from memsim.system import Hop, Link, System, Tier
from memsim.trace import Access

PAGE, CHANNELS = 4096, 8
READ_MBPS, WRITE_MBPS = 1_750, 1_000  # of a channel
READ_PS, WRITE_PS = 60_000_000, 12_000_000
READ_OP_PS, WRITE_OP_PS = 4_000_000, 8_000_000  # of a channel: a page takes 2,340,571.4 and 4,096,000
DRIVE = Tier(
    "nvme", 10**12, CHANNELS, (READ_MBPS, WRITE_MBPS), PAGE, PAGE, (READ_PS, WRITE_PS), 14_000,
    occupancy_ps=(READ_OP_PS, WRITE_OP_PS),
)  # fmt: skip
STORE = System("store", (replace(GPU, unit_outstanding_bytes=1 << 24),), L2, (DRIVE,), (), (((),),))
PLAIN = with_tier(STORE, 0, occupancy_ps=(0, 0))


def scan(rows: int, row_bytes: int = PAGE, write: bool = False, tiles: int = 256) -> MemoryTrace:
    """One block goes through a region, some rows at once."""
    access = Access(0, 0, 0, 0, write, 0, rows, worked=True)
    return one_kernel(kernel(tiles_in_flight=tiles), flat_region(0, rows, row_bytes), access)


# One request


@pytest.mark.parametrize("write", [False, True])
def test_reads_and_writes_have_their_own_latency_rate_and_occupancy(write: bool) -> None:
    latency_ps, mbps, op_ps = (
        (WRITE_PS, WRITE_MBPS, WRITE_OP_PS) if write else (READ_PS, READ_MBPS, READ_OP_PS)
    )
    plain_ps, limited_ps = (
        one_access_ps(uncached(system), 0, PAGE, write, run_on=NO_CACHE) for system in (PLAIN, STORE)
    )
    assert plain_ps == latency_ps + transfer_ps(PAGE, mbps)
    assert limited_ps == latency_ps + op_ps


def test_a_piece_that_takes_longer_than_the_occupancy_takes_its_transfer() -> None:
    quick = with_tier(STORE, 0, occupancy_ps=(2_340_571, 4_096_000))
    assert one_access_ps(quick, 0, PAGE) == READ_PS + 2_340_572 == READ_PS + transfer_ps(PAGE, READ_MBPS)


def test_an_occupancy_inside_a_busy_period_leaves_the_remainder_of_the_others() -> None:
    """On one channel two pages, and 2,000 B, an operation of their own, between them: 2 x 2,340,571.4 +
    2,000,000, rounded up once."""
    system = with_tier(STORE, 0, channels=1, unit_bytes=1, occupancy_ps=(2_000_000, 0))
    regions = (flat_region(0, 8, PAGE), flat_region(1, 8, 2000))
    accesses = [Access(0, 0, 0, region, False, row, 1) for region, row in ((0, 0), (1, 0), (0, 1))]
    trace = MemoryTrace(regions, [(kernel(tiles_in_flight=3), columns(accesses))])
    transfers_ps = transfer_ps(2 * PAGE, READ_MBPS)
    assert transfers_ps < 2 * transfer_ps(PAGE, READ_MBPS)
    assert elapsed_ps(replayed(trace, system)) == READ_PS + transfers_ps + 2_000_000


def test_a_write_among_reads_begins_a_busy_period_at_their_rounded_end() -> None:
    """One channel, a page read, written, read: each is rounded up by itself."""
    system = with_tier(PLAIN, 0, channels=1, channel_mbps=(READ_MBPS, 1_300))
    accesses = [Access(0, 0, 0, 0, write, row, 1) for row, write in enumerate((False, True, False))]
    trace = one_kernel(kernel(tiles_in_flight=3), flat_region(0, 8, PAGE), *accesses)
    services_ps = 2 * transfer_ps(PAGE, READ_MBPS) + transfer_ps(PAGE, 1_300)
    assert elapsed_ps(replayed(trace, uncached(system), run_on=NO_CACHE)) == READ_PS + services_ps


# Many requests


def test_at_depth_one_every_read_takes_its_latency_and_its_service() -> None:
    outcome = replayed(scan(200), with_tier(STORE, 0, queue_depth=1))
    assert elapsed_ps(outcome) == 200 * (READ_PS + READ_OP_PS)
    waits = sum(n * (READ_PS + READ_OP_PS) for n in range(200))
    assert outcome.waiting_ps.tolist() == [waits, 0]


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_a_deeper_queue_hides_the_latency(depth: int) -> None:
    """As long as the channels are idle nearly always: depth reads in each latency."""
    took = elapsed_ps(replayed(scan(400), with_tier(PLAIN, 0, queue_depth=depth)))
    assert took == pytest.approx(400 / depth * (READ_PS + transfer_ps(PAGE, READ_MBPS)), rel=0.05)


@pytest.mark.parametrize("write", [False, True])
def test_many_small_accesses_take_their_occupancy_over_the_channels(write: bool) -> None:
    """The rows on the fullest channel, each its occupancy: the limit on operations a second."""
    op_ps = WRITE_OP_PS if write else READ_OP_PS
    took = elapsed_ps(replayed(scan(4000, write=write), uncached(STORE), run_on=NO_CACHE))
    idle_ps = WRITE_PS if write else READ_PS
    assert took == idle_ps + fullest(4000, CHANNELS) * op_ps


@pytest.mark.parametrize("quantum_bytes", [PAGE, 2 * PAGE, 16 * PAGE])
def test_an_operation_moves_what_lies_together_whatever_requests_it_is_cut_into(quantum_bytes: int) -> None:
    """Blocks of 16 KiB on a channel: a long read takes an operation each, rows of a page one each."""
    drive = with_tier(STORE, 0, interleave_bytes=4 * PAGE, occupancy_ps=(20_000_000, 0))
    transfer = transfer_ps(4 * PAGE, READ_MBPS)
    assert transfer < 20_000_000
    long = one_kernel(
        kernel(tiles_in_flight=64, tile_rows=16), flat_region(0, 1024, PAGE),
        Access(0, 0, 0, 0, False, 0, 1024, worked=True),
    )  # fmt: skip
    took = elapsed_ps(run_both(long, drive, placed(long.regions), quantum_bytes))
    assert took == pytest.approx(READ_PS + fullest(256, CHANNELS) * 20_000_000, rel=0.05)
    short = scan(1024)
    took = elapsed_ps(run_both(short, drive, placed(short.regions), quantum_bytes))
    assert took == pytest.approx(READ_PS + 4 * fullest(256, CHANNELS) * 20_000_000, rel=0.05)


@pytest.mark.parametrize("write", [False, True])
def test_large_accesses_reach_the_rate_of_reads_or_of_writes(write: bool) -> None:
    mbps = WRITE_MBPS if write else READ_MBPS
    took = elapsed_ps(replayed(scan(4000, write=write), uncached(PLAIN), run_on=NO_CACHE))
    idle_ps = WRITE_PS if write else READ_PS
    busiest_ps = transfer_ps(fullest(4000, CHANNELS) * PAGE, mbps)
    assert took == pytest.approx(idle_ps + busiest_ps, rel=0.01)


@pytest.mark.parametrize("devices", [2, 4])
def test_equal_devices_striped_multiply_the_bandwidth_and_the_operations(devices: int) -> None:
    """Profiles count the channels of all devices together."""
    for system, one_ps in ((PLAIN, PAGE * 1e6 / READ_MBPS), (STORE, READ_OP_PS)):
        striped = with_tier(system, 0, devices=devices, channels=devices * CHANNELS)
        took = elapsed_ps(replayed(scan(4000, tiles=1024), striped))
        assert took == pytest.approx(READ_PS + fullest(4000, devices * CHANNELS) * one_ps, rel=0.02)


# The queue of a tier


@pytest.mark.parametrize(("depth", "together"), [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_every_piece_takes_a_place_and_more_pieces_than_places_take_all(depth: int, together: int) -> None:
    """Requests of two pieces on two channels."""
    system = with_tier(PLAIN, 0, queue_depth=depth, interleave_bytes=PAGE // 2, unit_bytes=512)
    one_ps = READ_PS + transfer_ps(PAGE // 2, READ_MBPS)
    took = elapsed_ps(replayed(scan(100), system))
    assert took == pytest.approx(100 / together * one_ps, rel=0.05)


def test_a_place_is_free_when_the_tier_has_served_not_when_the_request_is_complete() -> None:
    """One place, the drive behind a link of 100 us: the second read waits for the service of the first."""
    link = Link("far", (1_000_000,) * 2, (10**6, 10**6), 100_000_000, 10**6, 10**6, 256, 0)
    route = (Hop(0, False, 100_000_000),)
    tier = replace(DRIVE, queue_depth=1)
    system = replace(STORE, tiers=(tier,), links=(link,), routes=((route,),))
    outcome = replayed(same_row_twice(PAGE), system)
    assert outcome.waiting_ps.tolist() == [READ_PS + READ_OP_PS, 0, 0]
    assert elapsed_ps(outcome) == one_access_ps(system, 0, PAGE) + READ_PS + READ_OP_PS


# Whole pages


@pytest.mark.parametrize(("row", "pages"), [(0, 1), (5, 1), (6, 2), (7, 1), (12, 2), (18, 2), (19, 1)])
def test_a_packed_row_moves_its_pages(row: int, pages: int) -> None:
    """Rows of 656 B: the sixth begins at 3,936 and ends at 4,592."""
    outcome = replayed(one_kernel(kernel(), flat_region(0, 64, 656), gathered([row])), STORE)
    assert outcome.issued[0, 0].tolist() == [656, 0]
    assert outcome.moved[0, 0].tolist() == [pages * PAGE, 0]
    expected_ps = READ_PS + READ_OP_PS  # two pages lie on two channels
    assert elapsed_ps(outcome) == expected_ps


def test_scattered_packed_rows_move_seven_times_their_bytes_in_the_long_run() -> None:
    """Of 256 offsets modulo 4,096 that rows of 656 B can have, 40 straddle: 4,096 x (1 + 40 / 256) / 656."""
    rows = np.random.default_rng(5).permutation(2560)
    trace = one_kernel(kernel(tiles_in_flight=64), flat_region(0, 2560, 656), gathered(rows, worked=True))
    outcome = replayed(trace, STORE)
    amplification = int(outcome.moved.sum()) / int(outcome.issued.sum())
    assert amplification == PAGE * (1 + 40 / 256) / 656
    assert round(amplification, 1) == 7.2


def test_rows_in_order_move_their_pages_once_a_request() -> None:
    """The same rows in one run, in requests of 4 KiB: hardly more than their bytes."""
    trace = one_kernel(kernel(), flat_region(0, 2560, 656), Access(0, 0, 0, 0, False, 0, 2560))
    trace.launches[0] = (replace(trace.launches[0][0], tile_bytes=1 << 24), trace.launches[0][1])
    outcome = replayed(trace, STORE)
    assert int(outcome.moved.sum()) == 2560 * 656


# Tails

EXTRA_PS, RARE_PS = 900_000_000, 20_000_000_000
SLOW, RARE = 40_000, 4_000  # of a million
TAILED = with_tier(PLAIN, 0, tail=((SLOW, EXTRA_PS), (RARE, RARE_PS)))
READS = 6000


def slow_reads(outcome: Outcome, least_ps: int) -> int:
    """Reads that took at least that long."""
    return int(outcome.latency[0, latency_bucket(least_ps) :].sum())


def tailed(seed: int, kernels: int = 1) -> Outcome:
    """A chase through a tier with a tail, in one block after another of four."""
    accesses = Access(0, 0, 3, 0, False, 0, READS, spread="even", worked=True)
    launches = [
        (kernel(i, blocks=4, waits_for=(i - 1,) if i else ()), columns([replace(accesses, kernel=i)]))
        for i in range(kernels)
    ]
    return replayed(MemoryTrace((flat_region(0, READS, 64),), launches), TAILED, seed=seed)


def test_the_share_of_slow_requests_is_that_of_the_tail() -> None:
    """4% take 0.9 ms more, a tenth of those 20 ms more instead: within three standard errors."""
    outcome = tailed(seed=1)
    idle_ps = READ_PS + transfer_ps(PAGE, READ_MBPS)
    for share, extra_ps in ((SLOW / 1e6, EXTRA_PS), (RARE / 1e6, RARE_PS)):
        error = 3 * (READS * share * (1 - share)) ** 0.5
        assert slow_reads(outcome, idle_ps + extra_ps) == pytest.approx(READS * share, abs=error)
    assert slow_reads(outcome, 2 * idle_ps) == slow_reads(outcome, idle_ps + EXTRA_PS)
    assert slow_reads(outcome, idle_ps + 2 * EXTRA_PS) == slow_reads(outcome, idle_ps + RARE_PS)


def test_a_seed_draws_the_same_every_time_and_another_one_others() -> None:
    first, again, other = tailed(seed=1), tailed(seed=1), tailed(seed=2)
    assert first.digest.tolist() == again.digest.tolist()
    assert first.digest.tolist() != other.digest.tolist()


def test_equal_kernels_draw_apart() -> None:
    digests = tailed(seed=3, kernels=3).digest.tolist()
    assert len(set(digests)) == 3


def test_blocks_draw_apart() -> None:
    """Half of all requests are slow: not all of 64 blocks or none."""
    system = with_tier(PLAIN, 0, tail=((500_000, EXTRA_PS),))
    rows = Access(0, 0, 63, 0, False, 0, 64, spread="even")
    outcome = replayed(one_kernel(kernel(blocks=64), flat_region(0, 64, 64), rows), system, seed=6)
    assert 20 <= slow_reads(outcome, EXTRA_PS) <= 44


def test_the_draw_does_not_depend_on_the_machine() -> None:
    """Twice the channels, half the latency: the same number of slow requests."""
    other = with_tier(TAILED, 0, channels=2 * CHANNELS, latency_ps=(READ_PS // 2, WRITE_PS))
    trace = scan(READS, tiles=1)
    counts = [slow_reads(replayed(trace, system, seed=4), EXTRA_PS) for system in (TAILED, other)]
    assert counts[0] == counts[1] > 0


def test_writes_have_the_tail_too_and_hits_have_none() -> None:
    always = with_tier(PLAIN, 0, tail=((1_000_000, EXTRA_PS),))
    for write, latency_ps, mbps in ((False, READ_PS, READ_MBPS), (True, WRITE_PS, WRITE_MBPS)):
        found = one_access_ps(uncached(always), 0, PAGE, write, run_on=NO_CACHE)
        assert found == latency_ps + transfer_ps(PAGE, mbps) + EXTRA_PS
    trace = one_kernel(
        kernel(blocks=2), flat_region(0, 2, 64), Access(0, 0, 1, 0, False, 0, 1, spread="each")
    )
    outcome = run_both(trace, always, placed(trace.regions))
    hit_ps = L2.latency_ps + transfer_ps(64, L2.mbps[READ])
    assert np.flatnonzero(outcome.latency[1]).tolist() == [latency_bucket(hit_ps)]


def test_without_a_tail_a_seed_changes_nothing() -> None:
    digests = [replayed(scan(100), with_gpu(STORE, units=2), seed=seed).digest[0] for seed in (0, 9)]
    assert digests[0] == digests[1]
