"""What the fast engine keeps of segments, and how a replay ends that cannot go on."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from engine_cases import (
    ONE_TIER,
    TWO_TIERS,
    MemoryTrace,
    columns,
    flat_region,
    kernel,
    placed,
    replayed,
    run_both,
)

from memsim import fast, reference
from memsim.errors import MemsimError
from memsim.fast_pack import pack_hardware
from memsim.options import ReplayOptions
from memsim.program import build_program
from memsim.trace import Access

REGION = flat_region(0, 200, 64)


def steps(letters: str) -> MemoryTrace:
    """A step, and so a segment, for each letter: equal letters are equal segments."""
    launches = [
        (kernel(number, step=number), columns([Access(number, 0, 0, 0, False, 0, 1 + ord(letter))]))
        for number, letter in enumerate(letters)
    ]
    return MemoryTrace((REGION,), launches)


@pytest.mark.parametrize(
    ("letters", "kept", "replays"),
    [
        ("aba", 2, 2),
        ("aba", 1, 3),  # b drives a out
        ("abaca", 2, 3),  # c drives b out: a was used since
        ("abcabc", 2, 6),
    ],
)
def test_the_segment_that_was_used_longest_ago_is_forgotten(
    letters: str, kept: int, replays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "_MEMO_SEGMENTS", kept)
    replay = Mock(wraps=fast.replay_segment)
    monkeypatch.setattr(fast, "replay_segment", replay)
    replayed(steps(letters), ONE_TIER)
    assert replay.call_count == replays


def crowd() -> MemoryTrace:
    """Four blocks with 40 requests each at once, of rows that are gathered."""
    rows = np.arange(160) * 7 % 200
    accesses = [Access(0, b, b, 0, False, 0, 40, gather=rows[40 * b : 40 * b + 40]) for b in range(4)]
    return MemoryTrace((REGION,), [(kernel(blocks=4, tiles_in_flight=40), columns(accesses))])


def test_a_table_that_is_too_small_is_doubled_until_all_requests_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_both(crowd(), ONE_TIER, placed([REGION]))
    monkeypatch.setattr(fast, "_FIRST_REQUESTS", 3)
    for name, a, b in zip(whole._fields, whole, replayed(crowd(), ONE_TIER), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_more_requests_than_any_table_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_FIRST_REQUESTS", 3)
    monkeypatch.setattr(fast, "_MOST_REQUESTS", 100)
    with pytest.raises(MemsimError, match="^more than 100 requests in flight; raise --quantum"):
        fast.run(crowd(), ONE_TIER, placed([REGION]), ReplayOptions())


def test_kernels_that_never_become_ready_are_a_fault_that_is_told() -> None:
    """A kernel that waits for itself, which no reader lets through."""
    launches = [(kernel(blocks=2), columns([Access(0, 0, 1, 0, False, 0, 3, spread="each")]))]
    program = build_program(launches, [[0]], [True], ONE_TIER, np.array([64]), {})
    hardware = pack_hardware(ONE_TIER, ReplayOptions())
    with pytest.raises(MemsimError, match="ran out of events before its kernels ended: a fault of memsim"):
        fast.replay_segment(hardware, program, placed([REGION]), ONE_TIER)


@pytest.mark.parametrize("engine", [fast, reference])
def test_progress_counts_kernels_as_they_end(engine: Any) -> None:
    told: list[tuple[int, int]] = []
    engine.run(steps("abc"), ONE_TIER, placed([REGION]), ReplayOptions(), lambda *n: told.append(n))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_tier_is_found_by_its_name_alone() -> None:
    assert TWO_TIERS.tier_index("host") == 1
    with pytest.raises(KeyError, match="floppy"):
        TWO_TIERS.tier_index("floppy")
