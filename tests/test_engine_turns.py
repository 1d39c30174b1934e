"""Requests of whole turns of lanes: booked channel by channel, as if it were piece by piece."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_cases import (
    HOST,
    HOST_MBPS,
    PCIE,
    MemoryTrace,
    behind,
    flat_region,
    gathered,
    kernel,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
)  # fmt: skip

LANE = HOST.interleave_bytes
OPTIONS: dict[str, Any] = {"tier": 1, "quantum_bytes": 1 << 20, "run_on": {"f": 1}}
OPEN = replace(PCIE, tags=0, credits=0)  # so that requests are as large as rows


def rows(row_bytes: int, *chosen: int, write: bool = False) -> MemoryTrace:
    """Some of 64 rows, all at once."""
    launch = kernel(tiles_in_flight=64, tile_bytes=row_bytes)
    return one_kernel(launch, flat_region(0, 64, row_bytes), gathered(chosen, write=write))


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("turns", [1, 2, 7, 16])
def test_pieces_of_a_channel_wait_for_those_before_them(turns: int, write: bool) -> None:
    """A row of whole turns on an idle tier: piece k of a channel waits for k services and their rests."""
    outcome = replayed(rows(turns * 4 * LANE, 0, write=write), uncached(behind(HOST, OPEN)), **OPTIONS)
    assert outcome.requests[0] == 1
    waited_ps = sum(transfer_ps(before * LANE, HOST_MBPS) for before in range(turns))
    assert outcome.waiting_ps[1] == 4 * waited_ps


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("row_bytes", [12 * LANE, 12 * LANE + 64, 31 * LANE - 8, 100])
@pytest.mark.parametrize("write", [False, True])
def test_rows_that_begin_and_end_anywhere(channels: int, row_bytes: int, write: bool) -> None:
    """Rows behind one another on channels that differ in distance: parts of turns, parts of lanes."""
    tier = replace(HOST, channels=channels, spread_ps=(9_000, 4_000, 7_000), turnaround_ps=5_000)
    outcome = replayed(
        rows(row_bytes, 0, 1, 5, 6, 7, 33, 32, write=write), uncached(behind(tier, OPEN)), **OPTIONS
    )
    assert outcome.requests[0] == 7
