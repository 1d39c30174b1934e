"""Memories that read and write in turns: the turnaround of a channel, and its write buffer."""

from __future__ import annotations

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
    gathered,
    kernel,
    one_access_ps,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim.system import System
from memsim.trace import Access

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
    """A read and a write of two lanes of one stripe, which are on two channels."""
    launch = kernel(tiles_in_flight=2, tile_bytes=LINE)
    accesses = Access(0, 0, 0, 0, False, 0, 1), Access(0, 0, 0, 0, True, 1, 1)
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


@pytest.mark.parametrize("buffer_bytes", [0, 1, 100, 511, 512, 1 << 20])
def test_a_write_is_complete_when_it_fits_the_buffer(buffer_bytes: int) -> None:
    accepted_ps = max(0, transfer_ps(LINE, HBM_MBPS) - buffer_bytes * 10**6 // HBM_MBPS)
    assert took_ps("w", turning(0, buffer_bytes)) == HBM_PS + accepted_ps
    assert took_ps("r", turning(0, buffer_bytes)) == HBM_PS + transfer_ps(LINE, HBM_MBPS)


def test_more_writes_than_the_buffer_holds_go_at_the_rate_of_the_channel() -> None:
    took = took_ps("w" * 1000, turning(0, 4 * LINE), tiles=64)
    assert took == pytest.approx(HBM_PS + 996 * LINE * 1e6 / HBM_MBPS, rel=1e-4)


def test_a_read_waits_for_the_writes_in_the_buffer() -> None:
    system = turning(0, 1 << 20)
    assert took_ps("w" * 8, system) == HBM_PS
    assert took_ps("w" * 8 + "r", system) == HBM_PS + transfer_ps(9 * LINE, HBM_MBPS)


def test_a_buffer_takes_a_write_beyond_a_link_in_too() -> None:
    plain, buffered = (with_tier(TWO_TIERS, 1, write_buffer_bytes=n) for n in (0, 1 << 20))
    saved_ps = one_access_ps(plain, 1, 64, True) - one_access_ps(buffered, 1, 64, True)
    assert saved_ps == transfer_ps(64, TWO_TIERS.tiers[1].channel_mbps[1]) < PCIE_PS


def test_the_next_kernel_meets_what_the_buffers_still_hold() -> None:
    """Both engines: the fast one replays the two kernels apart."""
    system = turning(TURN_PS, 1 << 20)
    region = flat_region(0, 8, LINE)
    writes = [Access(0, 0, 0, 0, True, 0, 1) for _ in range(900)]
    launches = [
        (kernel(0, tiles_in_flight=900, tile_bytes=LINE), columns(writes)),
        (kernel(1, tile_bytes=LINE), columns([gathered([0], kernel=1)])),
        (kernel(2, tile_bytes=LINE), columns([gathered([0], kernel=2)])),
    ]
    outcome = replayed(MemoryTrace((region,), launches), system, run_on=NO_CACHE)
    first_ps, second_ps, third_ps = (elapsed_ps(outcome, i) for i in range(3))
    assert first_ps == HBM_PS
    assert first_ps + second_ps == transfer_ps(901 * LINE, HBM_MBPS) + TURN_PS + HBM_PS
    assert third_ps == HBM_PS + transfer_ps(LINE, HBM_MBPS)


def test_equal_kernels_after_full_and_empty_buffers_are_not_taken_for_equal() -> None:
    system = turning(0, 1 << 20)
    region = flat_region(0, 8, LINE)
    launches = [
        (kernel(i, tiles_in_flight=300, tile_bytes=LINE), columns([Access(i, 0, 0, 0, True, 0, 1)] * 300))
        for i in range(4)
    ]
    outcome = replayed(MemoryTrace((region,), launches), system, run_on=NO_CACHE)
    assert outcome.waiting_ps[0] > 4 * sum(transfer_ps(LINE * n, HBM_MBPS) for n in range(300))
