"""The shared rules, each against arithmetic that a reader can redo."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from random import Random

import numpy as np
import pytest
from engine_cases import (
    ONE_TIER,
    columns,
    drawn_memory,
    drawn_regions,
    flat_region,
    kernel,
    paged_region,
    placed,
)  # fmt: skip
from hypothesis import given
from hypothesis import strategies as st

from memsim import lanes, rules
from memsim.placement import Piece, Placement, build_memory
from memsim.program import build_program
from memsim.result import LATENCY_BUCKETS
from memsim.rules import Memory, Ops
from memsim.system import Cache, Tier
from memsim.trace import Access, Kernel, Region

POINTS = np.array([[1, 1], [65_536, 240_000], [131_072, 480_000], [1 << 20, 400_000], [9, 9]])
TAIL = np.array([[7, 7], [10_000, 30], [100, 2_000]])


@given(st.integers(1, 10**12), st.integers(1, 10**7))
def test_service_is_the_exact_quotient(work: int, rate: int) -> None:
    whole_ps, rest = rules.service_ps(work, rate)
    assert Fraction(whole_ps) + Fraction(rest, rate) == Fraction(work * 10**6, rate)
    assert 0 <= rest < rate


@pytest.mark.parametrize(
    ("occupancy_ps", "expected"),
    [(0, (2_340_571, 750)), (2_340_571, (2_340_571, 750)), (2_340_572, (2_340_572, 0)), (10**7, (10**7, 0))],
)
def test_a_piece_takes_its_transfer_or_the_occupancy_if_that_is_longer(
    occupancy_ps: int, expected: tuple[int, int]
) -> None:
    """4,096 B at 1,750 x 10^6 B/s: 2,340,571 ps and 750 / 1,750."""
    assert rules.piece_service_ps(4096, 1750, occupancy_ps, 4096) == expected


@given(st.integers(1, 2**30), st.integers(0, 10**16), st.integers(1, 2**30))
def test_a_part_of_an_operation_keeps_a_channel_for_its_part_of_the_time(
    nbytes: int, occupancy_ps: int, operation: int
) -> None:
    part = min(Fraction(1), Fraction(nbytes, operation))
    assert rules.least_ps(nbytes, occupancy_ps, operation) == ceil(occupancy_ps * part)


def test_a_sum_of_waiting_stays_where_it_is_full() -> None:
    most = rules.MOST_WAITED_PS
    assert rules.added(5, 7) == 12
    assert rules.added(most - 1, 1) == rules.added(most - 1, 2**61) == rules.added(most, 9) == most


@given(st.integers(0, 10**9), st.integers(1, 10**5), st.sampled_from([1, 32, 64, 4096]))
def test_rounding_covers_whole_transactions(offset: int, nbytes: int, unit_bytes: int) -> None:
    moved = rules.rounded_bytes(offset, nbytes, unit_bytes)
    first, last = offset // unit_bytes, (offset + nbytes - 1) // unit_bytes
    assert moved == (last - first + 1) * unit_bytes


@rules.jit
def count_channels(found: np.ndarray, count: int, stride: int) -> None:
    """Count how many of some lanes, `stride` apart, each channel serves."""
    for lane in range(count):
        found[lanes.channel_of(lane * stride * 512, 512, len(found))] += 1


@rules.jit
def count_meetings(count: int, stride: int, apart: int, channels: int) -> int:
    """How many of some lanes share their channel with the one `apart` lanes behind them."""
    met = 0
    for i in range(count):
        lane = i * stride
        met += lanes.channel_of_lane(lane, channels) == lanes.channel_of_lane(lane + apart, channels)
    return met


@pytest.mark.parametrize("channels", [1, 2, 3, 8, 32, 96, 97, 192])
@pytest.mark.parametrize("stride", [1, 2, 64, 96, 4096, 1 << 20, 3, 5, 97, 387_701])
def test_lanes_spread_over_channels_as_thrown_dice_at_any_stride(channels: int, stride: int) -> None:
    """The deviation of a count is sqrt(mean): none is further off than 5 of them."""
    count = 1 << 20
    found = np.zeros(channels, np.int64)
    count_channels(found, count, stride)
    assert np.abs(found - count / channels).max() <= 5 * (count / channels) ** 0.5


@given(st.integers(1, 300), st.integers(0, 1 << 40))
def test_a_turn_gives_each_channel_one_lane(channels: int, turn: int) -> None:
    first = turn * channels
    assert {int(lanes.channel_of_lane(first + i, channels)) for i in range(channels)} == set(range(channels))


@pytest.mark.parametrize("channels", [96, 192])
def test_turns_begin_at_any_channel(channels: int) -> None:
    """The sum of squared deviations over the mean is chi squared: channels - 1, within 5 deviations of it."""
    turns = 1 << 16
    found = np.bincount([int(lanes.channel_of_lane(turn * channels, channels)) for turn in range(turns)])
    mean = turns / channels
    chi_squared = ((found - mean) ** 2 / mean).sum()
    assert chi_squared == pytest.approx(channels - 1, abs=5 * (2 * (channels - 1)) ** 0.5)


@pytest.mark.parametrize("channels", [16, 96, 192])
@pytest.mark.parametrize("stride", [1, 2, 16, 96, 1 << 14])
@pytest.mark.parametrize("apart", [1, 2, 3, 8, 64, 95])
def test_turns_begin_at_one_channel_about_as_often_as_two_dice_meet(
    channels: int, stride: int, apart: int
) -> None:
    """Two requests that meet on one channel need not meet on the next ones."""
    turns = 1 << 18
    met = count_meetings(turns, stride * channels, apart * channels, channels)
    assert met == pytest.approx(turns / channels, rel=0.15)


def test_lanes_that_meet_more_often_than_dice_are_known() -> None:
    """The mix is short and not perfect: 192 turns apart, half as often again, is the worst that is known."""
    lanes, channels = 1 << 18, 192
    assert 1.3 < count_meetings(lanes, 192, 192 * 192, channels) / (lanes / channels) < 1.5


def test_loads_of_channels_lie_at_different_distances() -> None:
    """Nine of twenty within the spread of the nearest; the others later by `far`, few by much of `late`."""
    tier = Tier(
        "hbm", 1 << 40, 192, (10**6, 10**6), 512, 32, (400_000, 400_000), 10**9,
        spread_ps=(30_000, 100_000, 200_000),
    )  # fmt: skip
    away = np.array([lanes.away_ps(channel, tier) for channel in range(192)])
    late = 100_000 + 0.55 * 30_000 + 0.55**4 * 200_000  # of those between 450 and 1,000 thousandths
    assert np.quantile(away, [0, 0.225, 0.44]) == pytest.approx([0, 15_000, 29_300], abs=1_000)
    assert np.quantile(away, [0.47, 0.7525, 1]) == pytest.approx([101_000, late, 330_000], rel=0.03)
    assert lanes.nearest_ps(tier) == 400_000 - away.sum() // 192
    assert lanes.nearest_ps(replace(tier, spread_ps=(0, 0, 0))) == 400_000


def test_hits_lie_in_slices_at_different_distances() -> None:
    """Evenly spread, the same for all bytes of a line; with the nearest, the mean is the latency."""
    away = np.array([lanes.slice_ps(line * 128 + 127, 30_000) for line in range(4096)])
    assert np.quantile(away, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(
        [0, 7.5e3, 15e3, 22.5e3, 30e3], abs=900
    )
    assert away[7] == lanes.slice_ps(7 * 128, 30_000)
    assert abs(np.corrcoef(away[1:], away[:-1])[0, 1]) < 0.05
    cache = Cache("l2", 1 << 20, (10**6, 10**6), 143_000, spread_ps=30_000)
    assert lanes.nearest_slice_ps(cache) + away.mean() == pytest.approx(143_000, abs=300)


def test_all_bytes_of_a_lane_lie_on_one_channel() -> None:
    for lane in (0, 1, 77, 1 << 33):
        channels = {int(lanes.channel_of(lane * 512 + byte, 512, 96)) for byte in (0, 1, 300, 511)}
        assert channels == {int(lanes.channel_of_lane(lane, 96))}


def test_channels_are_pinned() -> None:
    """The function is part of the model. Turns 0 to 2 are mixed to 0, 0x86D2FA73 and 0xDA7F4E7: of eight
    channels the first three bits are where a turn begins."""
    found = [int(lanes.channel_of(lane * 512, 512, 8)) for lane in range(20)]
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3]
    far = [int(lanes.channel_of_lane((1 << 33) + lane, 192)) for lane in range(6)]
    assert far == [146, 147, 148, 149, 150, 151]


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**5))
def test_requests_add_up_and_are_cut_at_multiples_of_the_quantum(
    offset: int, span: int, quantum: int
) -> None:
    at, left, sizes = offset, span, []
    while left and len(sizes) < 1000:
        nbytes = rules.request_bytes(at, left, quantum)
        assert 0 < nbytes <= quantum
        sizes.append(nbytes)
        at, left = at + nbytes, left - nbytes
        assert left == 0 or at % quantum == 0
    assert sum(sizes) == span - left


@pytest.mark.parametrize(("nbytes", "packets"), [(1, 1), (128, 1), (129, 2), (4096, 32)])
def test_packets_are_full_but_for_the_last(nbytes: int, packets: int) -> None:
    assert rules.packets(nbytes, 128) == packets


@given(st.integers(0, 10**5), st.integers(1, 10**4), st.sampled_from([64, 512]))
def test_pieces_are_counted_as_they_are_cut(offset: int, nbytes: int, interleave_bytes: int) -> None:
    at, left, found = offset, nbytes, 0
    while left:
        piece = rules.piece_bytes(at, left, interleave_bytes)
        at, left, found = at + piece, left - piece, found + 1
    assert rules.pieces_of(offset, nbytes, interleave_bytes) == found


@pytest.mark.parametrize(
    ("span_bytes", "share"),
    [
        (1, 3), (656, 2_402), (32_768, 120_000), (65_536, 240_000), (65_537, 240_003), (98_304, 360_000),
        (131_072, 480_000), (589_824, 440_000), (1 << 20, 400_000), (1 << 40, 400_000),
    ],
)  # fmt: skip
def test_a_transfers_share_is_linear_between_the_points_of_its_link(span_bytes: int, share: int) -> None:
    """Below the first in proportion; above the last as there."""
    assert rules.transfer_share(POINTS, 1, 4, span_bytes) == share


def test_no_transfer_is_stretched_without_end() -> None:
    points = np.array([[1 << 30, 1_000]])
    assert rules.transfer_share(points, 0, 1, 64) == 1
    assert rules.stretched(64, 1) == 64_000_000


@given(st.integers(1, 10**12), st.integers(1, 1_000_000))
def test_stretched_bytes_are_rounded_up(nbytes: int, share: int) -> None:
    booked = rules.stretched(nbytes, share)
    assert (booked - 1) * share < nbytes * 1_000_000 <= booked * share


def test_a_tails_steps_are_reached_as_often_as_they_say() -> None:
    """A hundredth takes 30 ps more, of which a hundredth takes 2,000; the draws of blocks, requests, kernels
    and seeds are apart. Within four standard errors."""
    draws = 40_000
    seen = []
    for changed in range(4):
        places = np.zeros((draws, 4), np.int64)
        places[:, changed] = np.arange(draws)
        found = np.array([rules.tail_ps(TAIL, 1, 3, *(int(x) for x in place)) for place in places])
        assert set(found) <= {0, 30, 2_000}
        assert int((found >= 30).sum()) == pytest.approx(draws / 100, abs=4 * (draws / 100) ** 0.5)
        assert int((found == 2_000).sum()) <= draws / 10_000 + 4 * (draws / 10_000) ** 0.5
        seen.append(tuple(np.flatnonzero(found)))
    assert len(set(seen)) == 4


def test_slow_requests_do_not_follow_each_other() -> None:
    """Half of all: of two neighbours both are slow a quarter of the time, and so are two one block apart."""
    half = np.array([[500_000, 1]])
    drawn = np.array([[rules.tail_ps(half, 0, 1, 5, 1, b, n) for n in range(200)] for b in range(200)])
    assert drawn.mean() == pytest.approx(0.5, abs=0.01)
    for both in (drawn[:, 1:] & drawn[:, :-1], drawn[1:] & drawn[:-1]):
        assert both.mean() == pytest.approx(0.25, abs=0.01)


def test_latency_buckets_hold_what_their_floor_says() -> None:
    edges = [rules.bucket_floor_ps(b) for b in range(300)]
    assert edges == sorted(set(edges))
    for latency_ps in (0, 15, 16, 17, 31, 32, 1_000, 345_678, 10**9, 2**40 - 1):
        bucket = rules.latency_bucket(latency_ps)
        assert rules.bucket_floor_ps(bucket) <= latency_ps < rules.bucket_floor_ps(bucket + 1)
    assert rules.latency_bucket(2**62) < LATENCY_BUCKETS


def test_the_digest_sees_two_requests_exchange_their_times() -> None:
    straight = rules.digest_term(0, 0, 100) + rules.digest_term(0, 1, 200)
    crossed = rules.digest_term(0, 0, 200) + rules.digest_term(0, 1, 100)
    assert straight % 2_147_483_647 != crossed % 2_147_483_647


def spans(region: Region, memory: Memory, access: Access, launch: Kernel) -> list[tuple[int, int, int]]:
    """(tier, offset, bytes) of all spans of the only op of an access."""
    ops = ops_of(launch, region, access)
    found, index, second = [], 0, 0
    while index < ops.table[0, rules.ROWS]:
        tier, offset, nbytes, index, second = rules.next_span(
            ops, memory, 0, index, ops.table[0, rules.ROWS], second
        )
        found.append((int(tier), int(offset), int(nbytes)))
    return found


def ops_of(launch: Kernel, region: Region, *accesses: Access) -> Ops:
    row_bytes = np.array([region.row_bytes] * (region.id + 1))
    return build_program([(launch, columns(accesses))], [[]], [True], ONE_TIER, row_bytes, {}).ops


def test_rows_back_to_back_are_one_span() -> None:
    region = flat_region(0, 100, 1152)
    assert spans(region, placed([region]), Access(0, 0, 0, 0, False, 3, 10), kernel()) == [
        (0, 3 * 1152, 11520)
    ]


def test_gathered_rows_are_spans_of_their_own() -> None:
    region = flat_region(0, 100, 656)
    access = Access(0, 0, 0, 0, False, 0, 3, gather=np.array([7, 8, 2]))
    assert spans(region, placed([region]), access, kernel()) == [(0, r * 656, 656) for r in (7, 8, 2)]


def test_whole_pages_are_one_span_and_a_part_of_a_page_two() -> None:
    region = paged_region(0, 3)
    page = 64 * 132
    access = Access(0, 0, 0, 0, False, 0, 130)
    assert spans(region, placed([region]), access, kernel()) == [
        (0, 0, 2 * page),
        (0, 2 * page, 2 * 128),
        (0, 2 * page + 64 * 128, 2 * 4),
    ]


def test_padded_pages_are_a_span_each() -> None:
    region = paged_region(0, 3, padding=100)
    access = Access(0, 0, 0, 0, False, 64, 128)
    page = 64 * 132
    assert spans(region, placed([region]), access, kernel()) == [
        (0, page + 100, page),
        (0, 2 * (page + 100), page),
    ]


@given(st.randoms(use_true_random=False))
def test_placement_gives_every_row_one_place_and_packs_each_tier(random: Random) -> None:
    regions = drawn_regions(random)
    memory = drawn_memory(random, regions, 3)
    for region in regions:
        places = [tuple(int(x) for x in rules.locate(memory, region.id, row)) for row in range(region.rows)]
        piece_of = np.searchsorted(
            memory.pieces[memory.regions[region.id, 4] : memory.regions[region.id + 1, 4], 0],
            np.arange(region.rows),
            side="right",
        )
        seen: dict[tuple[int, int], list[int]] = {}
        for piece, (tier, tier_row, run) in zip(piece_of.tolist(), places, strict=True):
            assert run >= 1
            seen.setdefault((piece, tier), []).append(tier_row)
        for rows in seen.values():
            assert rows == list(range(rows[0], rows[0] + len(rows)))


def test_even_access_deals_whole_grains_and_the_first_blocks_get_one_more() -> None:
    region = flat_region(0, 10_000, 64)
    access = Access(0, 1, 3, 0, False, 5, 1000, spread="even", grain=256)
    table = ops_of(kernel(blocks=5), region, access).table
    assert table[:, rules.FIRST_ROW].tolist() == [5, 5 + 512, 5 + 768]
    assert table[:, rules.ROWS].tolist() == [512, 256, 232]


def test_even_access_with_fewer_grains_than_blocks_leaves_the_last_idle() -> None:
    region = flat_region(0, 10_000, 64)
    access = Access(0, 0, 9, 0, False, 0, 3, spread="even", gather=np.array([9, 4, 6]))
    table = ops_of(kernel(blocks=10), region, access).table
    assert table[:, rules.GATHER_AT].tolist() == [0, 1, 2]


def test_only_the_first_reader_of_shared_rows_fetches_them() -> None:
    region = flat_region(0, 100, 64)
    table = ops_of(kernel(blocks=3), region, Access(0, 0, 2, 0, False, 0, 9, spread="each")).table
    assert table[:, rules.IS_HIT].tolist() == [0, 1, 1]


def test_accesses_keep_the_files_order_inside_a_block() -> None:
    region = flat_region(0, 100, 64)
    accesses = [
        Access(0, 1, 1, 0, False, 7, 1),
        Access(0, 0, 1, 0, False, 8, 1, spread="each"),
        Access(0, 0, 0, 0, False, 9, 1),
    ]
    table = ops_of(kernel(blocks=2), region, *accesses).table
    assert table[:, rules.FIRST_ROW].tolist() == [8, 9, 7, 8]


def test_interleaved_spans_end_at_chunk_borders() -> None:
    region = flat_region(0, 256, 100)
    memory = build_memory([region], Placement(((Piece(256, ((0, 3), (1, 1))),),), ()))
    found = spans(region, memory, Access(0, 0, 0, 0, False, 0, 256), kernel())
    assert [(tier, nbytes) for tier, _, nbytes in found].count((1, 6400)) == 1
    assert sum(nbytes for _, _, nbytes in found) == 25_600
    assert sorted(offset for tier, offset, _ in found if tier == 0) == [0, 6400, 12_800]


@pytest.mark.parametrize("channels", [1, 2, 3, 16, 96])
def test_lanes_in_a_row_need_no_division(channels: int) -> None:
    turn, channel, place = lanes.dealt_lane(5, channels)
    assert (turn, channel, place) == (5 // channels, lanes.channel_of_lane(5, channels), 5 % channels)
    for lane in range(6, 6 + 4 * channels):
        turn, channel, place = lanes.next_lane(turn, channel, place, channels)
        assert (turn, channel, place) == lanes.dealt_lane(lane, channels)
