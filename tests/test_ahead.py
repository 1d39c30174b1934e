"""Reading ahead hands out the same items, passes faults on, and leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from memsim import tally
from memsim.ahead import ahead
from memsim.tally import Watched
from memsim.trace_read import open_trace

SAMPLE = Path(__file__).parent / "golden" / "v32_128k.parquet"


def test_items_come_in_order_and_the_thread_ends() -> None:
    before = threading.active_count()
    assert list(ahead(iter(range(1000)))) == list(range(1000))
    assert threading.active_count() == before


def test_a_fault_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(found)


def test_an_item_is_made_before_it_is_asked_for() -> None:
    made = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        made.set()
        yield 2

    found = ahead(items())
    assert next(found) == 1
    assert made.wait(60)
    assert list(found) == [2]


@pytest.mark.parametrize("taken", [1, 2])
def test_who_stops_early_leaves_no_thread(taken: int) -> None:
    before = threading.active_count()
    found = ahead(iter(range(10**9)))
    assert [next(found) for _ in range(taken)] == list(range(taken))
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_a_trace_read_ahead_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, apart = (Watched(open_trace(SAMPLE)) for _ in range(2))
    launches = list(plain.kernels())
    monkeypatch.setattr(tally, "MANY_ACCESSES", 0)
    monkeypatch.setattr(tally, "cores", lambda: 2)
    found = apart.kernels()
    threads = threading.active_count()
    first = next(found)
    assert threading.active_count() == threads + 1
    for (kernel, accesses), (other, others) in zip(launches, [first, *found], strict=True):
        assert kernel == other
        assert all(np.array_equal(one, two) for one, two in zip(accesses, others, strict=True))
    assert np.array_equal(plain.tally.issued, apart.tally.issued)
    assert plain.tally.unique == apart.tally.unique
