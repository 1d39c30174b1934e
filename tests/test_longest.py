"""What a replay keeps of its slowest kernels says of them what the trace read again would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_cases import FixedPlan, columns, kernel

from memsim import replay
from memsim.longest import Longest
from memsim.segments import Segment
from memsim.trace import Access, Kernel
from memsim.trace_read import TraceFile

GOLDEN = Path(__file__).parent / "golden" / "v32_128k.parquet"


def ended(longest: Longest, times_ps: dict[int, int], families: str) -> Segment:
    """A segment of some kernels, by their ids, whose times the caller knows."""
    launches = [
        (kernel(number, family=family), columns([Access(number, 0, 0, 0, False, 0, 1 + number)]))
        for number, family in zip(times_ps, families, strict=True)
    ]
    for launch, accesses in launches:
        longest.shares(launch, accesses, 0)
    segment = Segment(launches)
    longest.ended(segment, np.array(list(times_ps.values())))
    return segment


class Numbered(FixedPlan):
    def shares(self, launch: Kernel, accesses: object, home: int) -> np.ndarray:
        return np.full((1, 4), launch.id)


def test_the_slowest_kernel_of_each_family_stays_and_of_equal_ones_the_last() -> None:
    longest = Longest(Numbered())
    ended(longest, {0: 5, 1: 9}, "ab")
    second = ended(longest, {2: 9, 3: 7, 4: 2}, "aba")
    third = ended(longest, {5: 9, 6: 9}, "cb")
    last = ended(longest, {7: 9}, "c")
    segments, plan = longest.of({"b": 6, "c": 7, "a": 2})
    assert segments == [second, third, last]
    for number in (2, 3, 4, 5, 6, 7):
        assert (plan.shares(kernel(number), columns([]), 0) == number).all()


def test_kernels_that_were_not_kept_are_to_be_read_again() -> None:
    longest = Longest(Numbered())
    ended(longest, {0: 5, 1: 9}, "aa")
    assert longest.of({"a": 1}) is not None
    assert longest.of({"a": 0}) is None
    assert longest.of({"a": 1, "b": 2}) is None


def test_a_trace_is_read_once_and_bounds_are_those_of_a_second_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, kernels = [], TraceFile.kernels
    monkeypatch.setattr(TraceFile, "kernels", lambda trace: read.append(trace) or kernels(trace))
    kept = replay(GOLDEN, "h200-host", place="kv=host", explain=1)
    assert len(read) == 1
    monkeypatch.setattr(Longest, "of", lambda longest, wanted: None)
    again = replay(GOLDEN, "h200-host", place="kv=host", explain=1)
    assert len(read) == 4
    assert [family.bound_shares for family in kept.families] == [f.bound_shares for f in again.families]
    assert kept.explained == again.explained
