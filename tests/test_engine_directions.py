"""Memories that read and write in turns: the turnaround of a channel, and its write buffer."""

from __future__ import annotations

from typing import Any

import pytest
from engine_cases import (
    HBM_MBPS,
    HBM_PS,
    NO_CACHE,
    ONE_TIER,
    PCIE_PS,
    TWO_TIERS,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    kernel,
    one_access_ps,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim.lanes import channel_of
from memsim.system import System
from memsim.trace import Access, Accesses, Kernel

TURN_PS = 7_000
LINE = 512  # one lane
PROMPT = with_gpu(ONE_TIER, launch_gap_ps=0, graph_launch_ps=0, unit_outstanding_bytes=1 << 30)


def turning(turnaround_ps: int, write_buffer_bytes: int = 0) -> System:
    changes = {"turnaround_ps": turnaround_ps, "write_buffer_bytes": write_buffer_bytes}
    return uncached(with_tier(PROMPT, 0, **changes))


def in_turns(ways: str, tiles: int) -> MemoryTrace:
    """One lane, read (r) or written (w) again and again, `tiles` at once."""
    accesses = [Access(0, 0, 0, 0, way == "w", 0, 1) for way in ways]
    return one_kernel(kernel(tiles_in_flight=tiles, tile_bytes=LINE), flat_region(0, 8, LINE), *accesses)


def two_lanes_apart() -> tuple[int, int]:
    """Numbers of two lanes on two channels."""
    channels = [int(channel_of(lane * LINE, LINE, PROMPT.tiers[0].channels)) for lane in range(8)]
    return 0, next(lane for lane in range(8) if channels[lane] != channels[0])


def took_ps(ways: str, system: System, tiles: int = 64) -> int:
    return elapsed_ps(replayed(in_turns(ways, tiles), system, run_on=NO_CACHE))


@pytest.mark.parametrize(
    ("ways", "turns"),
    [("r", 0), ("rr", 0), ("ww", 0), ("rw", 1), ("wr", 1), ("rwr", 2), ("rrwwr", 2), ("rwrwrw", 5)],
)
def test_a_channel_takes_its_turnaround_at_every_change_of_direction(ways: str, turns: int) -> None:
    services_ps = transfer_ps(LINE * len(ways), HBM_MBPS)
    assert took_ps(ways, turning(TURN_PS)) == HBM_PS + services_ps + turns * TURN_PS


def test_a_channel_that_was_idle_turns_for_nothing() -> None:
    alone_ps = HBM_PS + transfer_ps(LINE, HBM_MBPS)
    assert took_ps("rwrw", turning(TURN_PS), tiles=1) == 4 * alone_ps


def test_channels_turn_apart() -> None:
    """A read and a write of two lanes, which are on two channels."""
    first, other = two_lanes_apart()
    launch = kernel(tiles_in_flight=2, tile_bytes=LINE)
    accesses = Access(0, 0, 0, 0, False, first, 1), Access(0, 0, 0, 0, True, other, 1)
    outcome = replayed(
        one_kernel(launch, flat_region(0, 8, LINE), *accesses), turning(TURN_PS), run_on=NO_CACHE
    )
    assert elapsed_ps(outcome) == HBM_PS + transfer_ps(LINE, HBM_MBPS)


def test_writes_among_reads_cost_a_half_duplex_memory_bandwidth() -> None:
    """In the long run a pair of pieces takes both transfers and both turnarounds."""
    pairs = 500
    both_ps = 2 * LINE * 1e6 / HBM_MBPS
    assert took_ps("r" * 2 * pairs, turning(TURN_PS)) == pytest.approx(pairs * both_ps, rel=0.05)
    assert took_ps("rw" * pairs, turning(TURN_PS)) == pytest.approx(pairs * (both_ps + 2 * TURN_PS), rel=0.05)


# Write buffers


def lines_ps(count: int) -> int:
    """Time of a channel for so many lanes, one after another."""
    return transfer_ps(count * LINE, HBM_MBPS)


@pytest.mark.parametrize("buffer_bytes", [0, 1, 100, 511, 512, 513, 1 << 20])
def test_a_write_is_complete_at_once_unless_it_fills_the_buffer(buffer_bytes: int) -> None:
    written_ps = lines_ps(1) if buffer_bytes <= LINE else 0
    assert took_ps("w", turning(0, buffer_bytes)) == HBM_PS + written_ps
    assert took_ps("r", turning(0, buffer_bytes)) == HBM_PS + lines_ps(1)


@pytest.mark.parametrize(("writes", "written"), [(1, 0), (3, 0), (4, 4), (5, 4), (7, 4), (8, 8), (9, 8)])
def test_a_channel_writes_what_it_has_gathered_at_once(writes: int, written: int) -> None:
    """Four lanes fill the buffer. Who comes while they are written is complete with them."""
    assert lines_ps(4) < 4 * lines_ps(1)  # the remainders are gathered, too
    assert took_ps("w" * writes, turning(0, 4 * LINE)) == HBM_PS + lines_ps(written)


def test_writes_wait_for_what_the_channel_has_begun() -> None:
    """Of eight lanes the last four find the channel writing the first four."""
    outcome = replayed(in_turns("w" * 8, 64), turning(0, 4 * LINE), run_on=NO_CACHE)
    assert outcome.waiting_ps.tolist() == [4 * lines_ps(4), 0]


def test_more_writes_than_the_buffer_holds_go_at_the_rate_of_the_channel() -> None:
    took = took_ps("w" * 1000, turning(0, 4 * LINE), tiles=64)
    assert took == HBM_PS + lines_ps(1000)


@pytest.mark.parametrize(
    ("ways", "served", "turns"),
    [
        ("rwww", 1, 0), ("wwwr", 1, 0), ("rwwwr", 2, 0), ("wrwrwr", 3, 0), ("wwwwr", 5, 1), ("rwwww", 5, 1),
        ("rwrwrwrw", 8, 1), ("rwwwwr", 6, 2), ("wwwwrwwww", 9, 2), ("wwwwwwww", 8, 0), ("wwwwrwwwr", 6, 1),
    ],
)  # fmt: skip
def test_a_channel_turns_when_it_writes_not_when_it_gathers(ways: str, served: int, turns: int) -> None:
    """Reads pass the writes that a channel gathers; four of these are written together."""
    expected_ps = HBM_PS + lines_ps(served) + turns * TURN_PS
    assert took_ps(ways, turning(TURN_PS, 4 * LINE)) == expected_ps


def test_a_channel_turns_less_often_the_more_it_gathers() -> None:
    pairs = 256
    for lanes in (1, 2, 8, 32):
        took = took_ps("rw" * pairs, turning(TURN_PS, lanes * LINE), tiles=2 * pairs)
        turns = 2 * pairs // lanes - 1
        assert took == HBM_PS + lines_ps(2 * pairs) + turns * TURN_PS


def test_each_channel_gathers_for_itself() -> None:
    first, other = two_lanes_apart()
    for rows, writes_ps in (((first, other), 0), ((first, first), lines_ps(2))):
        accesses = [Access(0, 0, 0, 0, True, row, 1) for row in rows]
        launch = kernel(tiles_in_flight=2, tile_bytes=LINE)
        trace = one_kernel(launch, flat_region(0, 8, LINE), *accesses)
        outcome = replayed(trace, turning(0, 2 * LINE), run_on=NO_CACHE)
        assert elapsed_ps(outcome) == HBM_PS + writes_ps


def test_a_buffer_is_filled_by_whole_transactions() -> None:
    """Rows of 1 B are written as 32 B each: two of them fill 64 B, and not 65 B."""
    for buffer_bytes, written in ((64, 64), (65, 0)):
        accesses = [Access(0, 0, 0, 0, True, 0, 1)] * 2
        trace = one_kernel(kernel(tiles_in_flight=2), flat_region(0, 8, 1), *accesses)
        outcome = replayed(trace, turning(0, buffer_bytes), run_on=NO_CACHE)
        assert elapsed_ps(outcome) == HBM_PS + transfer_ps(written, HBM_MBPS)


def test_each_gathered_write_takes_its_own_occupancy() -> None:
    op_ps = 20_000
    assert op_ps > lines_ps(1)
    system = with_tier(turning(0, 3 * LINE), 0, occupancy_ps=(0, op_ps))
    assert took_ps("ww", system) == HBM_PS
    assert took_ps("www", system) == HBM_PS + 3 * op_ps


def test_a_buffer_takes_a_write_beyond_a_link_in_too() -> None:
    plain, buffered = (with_tier(TWO_TIERS, 1, write_buffer_bytes=n) for n in (0, 1 << 20))
    saved_ps = one_access_ps(plain, 1, 64, True) - one_access_ps(buffered, 1, 64, True)
    assert saved_ps == transfer_ps(64, TWO_TIERS.tiers[1].channel_mbps[1]) < PCIE_PS


# What is gathered when all is idle is forgotten


def writing(number: int, lanes: int, **changes: Any) -> tuple[Kernel, Accesses]:
    launch = kernel(number, tiles_in_flight=64, tile_bytes=LINE, **changes)
    return launch, columns([Access(number, 0, 0, 0, True, 0, 1)] * lanes)


def times_ps(*launches: tuple[Kernel, Accesses]) -> list[int]:
    """Time of each kernel from start to end, where four lanes fill a buffer."""
    trace = MemoryTrace((flat_region(0, 8, LINE),), list(launches))
    outcome = replayed(trace, turning(TURN_PS, 4 * LINE), run_on=NO_CACHE)
    return [elapsed_ps(outcome, i) for i in range(len(launches))]


def test_what_is_gathered_is_written_between_kernels() -> None:
    """Both engines: the fast one replays the kernels apart, and equal ones once."""
    full_ps = HBM_PS + lines_ps(4)
    assert times_ps(writing(0, 3), writing(1, 1), writing(2, 3), writing(3, 4)) == [
        HBM_PS, HBM_PS, HBM_PS, full_ps,
    ]  # fmt: skip
    assert times_ps(*(writing(i, 3) for i in range(4))) == [HBM_PS] * 4


def test_a_kernel_that_overlaps_with_another_adds_to_what_that_has_gathered() -> None:
    late = {"startup_ps": 1_000_000}
    both = times_ps(writing(0, 3, drain_ps=10_000_000), writing(1, 1, stream=1, **late))
    assert both[1] == 1_000_000 + HBM_PS + lines_ps(4)


@pytest.mark.parametrize(("drain_ps", "kept"), [(0, False), (100_000_000, True)])
def test_what_is_gathered_is_kept_as_long_as_a_kernel_before_runs(drain_ps: int, kept: bool) -> None:
    """The third kernel waits for the first one alone; beside it the second has ended, or has not."""
    first, third = writing(0, 3, drain_ps=5_000_000), writing(2, 1)
    beside = kernel(1, stream=1, drain_ps=drain_ps), columns([])
    took = times_ps(first, beside, third)[2]
    assert took == HBM_PS + (lines_ps(4) if kept else 0)
