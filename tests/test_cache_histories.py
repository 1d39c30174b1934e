"""The cache in closed form against a plain LRU of rows, and what must hold whatever is touched."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from cache_cases import FINE, MILLION, ROW, ROWS, Machine, gather, read
from engine_cases import ONE_TIER, uncached
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim.cache_plan import HIT_PPM
from memsim.trace import Access


class Lru:
    """Rows of regions, the last one touched at the end."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.dirty: OrderedDict[tuple[int, int], bool] = OrderedDict()

    def touch(self, region: int, row: int, is_write: bool) -> tuple[int, int]:
        """Whether the row is found; whether a dirty one is pushed out."""
        found, pushed = (region, row) in self.dirty, 0
        was_dirty = self.dirty.pop((region, row), False)
        self.dirty[region, row] = was_dirty or is_write
        if len(self.dirty) > self.rows:
            pushed = int(self.dirty.popitem(last=False)[1])
        return int(found), pushed


def test_long_random_histories_come_out_as_with_a_plain_lru() -> None:
    random = np.random.default_rng(5)
    machine, lru = Machine(rows=(4 * ROWS, 2 * ROWS)), Lru(ROWS)
    totals = np.zeros(3)
    expected = np.zeros(3)
    for _ in range(1500):
        region, is_write = int(random.integers(2)), bool(random.integers(2))
        most = 4 * ROWS if region == 0 else 2 * ROWS
        rows = int(random.integers(1, ROWS // 16))
        first = int(min(random.integers(most - rows), random.integers(most - rows)))
        hit, dirty = machine.run(read(first, rows, region, write=is_write))[0, :2] / MILLION
        totals += [rows, rows * hit, rows * (1 - hit) * dirty]
        each = [lru.touch(region, row, is_write) for row in range(first, first + rows)]
        expected += [rows, sum(found for found, _ in each), sum(pushed for _, pushed in each)]
    assert totals[1:] / totals[0] == pytest.approx(expected[1:] / expected[0], abs=0.01)
    assert machine.plan.dirty_bytes() == pytest.approx(sum(lru.dirty.values()) * ROW, rel=0.02)


# What must hold whatever is touched

TOUCHES = st.lists(
    st.tuples(
        st.integers(0, 1), st.booleans(), st.integers(0, 40), st.integers(1, 60),
        st.sampled_from([1, 1, 1, 7]), st.booleans(), st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)  # fmt: skip


def drawn(touches: list[tuple[int, bool, int, int, int, bool, int]], scale: int) -> list[tuple[int, Access]]:
    launches = []
    for region, is_write, first, rows, stride, listed, home in touches:
        access = read(first * scale, rows * scale, region, write=is_write, stride=stride)
        if listed:
            access = gather([first * scale + i * stride for i in range(rows * scale)], region)
            access = replace(access, write=is_write)
        launches.append((int(home == 3), access))
    return launches


@given(TOUCHES, st.integers(1, 2), st.sampled_from([0, 1, 16, 256]), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_shares_are_shares_and_come_out_alike(
    touches: list[tuple[int, bool, int, int, int, bool, int]], copies: int, ways: int, kib: int
) -> None:
    base = uncached(ONE_TIER)
    machines = [Machine((8192, 8192), kib * 1024, copies, ways, base) for _ in range(2)]
    written = 0
    for home, access in drawn(touches, 16):
        shares, again = (machine.run(access, home=home) for machine in machines)
        assert (shares == again).all()
        assert shares.min() >= 0
        assert shares.max() <= MILLION
        hit, dirty = shares[0, :2].tolist()
        dirty_bytes = machines[0].plan.dirty_bytes()
        written += access.rows * ROW if access.write and home == 0 else 0
        written -= access.rows * ROW * (MILLION - hit) // MILLION * dirty // MILLION - access.rows
        assert 0 <= dirty_bytes <= max(written, 0)
        assert dirty_bytes <= kib * 1024 * copies * 7 // 2


@given(
    st.integers(1, 4), st.sampled_from([0, 1, 4, 16]), st.lists(st.integers(1, 100), min_size=2, max_size=6)
)
@settings(max_examples=40, deadline=None)
def test_more_capacity_never_finds_less_of_what_comes_round(copies: int, ways: int, sizes: list[int]) -> None:
    def found(capacity: int) -> list[int]:
        machine = Machine((8192,), capacity, copies, ways)
        scan = [read(sum(sizes[:i]) * 10, size * 10) for i, size in enumerate(sizes)]
        for _ in range(2):
            machine.run(*scan)
        shares: list[int] = machine.run(*scan)[:, HIT_PPM].tolist()
        return shares

    shares = [found(capacity) for capacity in (50_000, 100_000, 200_000, 400_000)]
    for less, more in zip(shares, shares[1:], strict=False):
        assert all(b >= a - FINE for a, b in zip(less, more, strict=True))
