"""The stack of a cache in closed form stays small, and still tells rows and regions apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cache_cases import MILLION, ROW, ROWS, Machine, read
from engine_cases import ONE_TIER, columns, kernel, placed

from memsim.cache_plan import HIT_PPM, CachePlan
from memsim.system import Cache
from memsim.trace import Region


def test_a_hundred_million_rows_leave_a_small_stack() -> None:
    machine = Machine(rows=(10**8,))
    for i in range(1000):
        machine.run(*(read((i * 10 + j) * 10_000, 10_000, write=j % 2 == 0) for j in range(10)))
    stack = machine.plan._cached._stack
    assert sum(array.nbytes for array in stack) < 1_000_000


def test_thousands_of_single_rows_of_a_block_are_told_apart() -> None:
    machine, rows = Machine(rows=(10**6,), capacity=2000 * ROW), np.random.default_rng(6).permutation(10**6)
    machine.run(*(read(int(row), 1) for row in rows[:5000]))
    again = machine.run(*(read(int(row), 1) for row in rows[4000:5000]))
    assert (again[:, HIT_PPM] == MILLION).all()
    assert (machine.run(*(read(int(row), 1) for row in rows[:1000]))[:, HIT_PPM] == 0).all()


def test_layers_that_have_become_thin_are_joined() -> None:
    """Each round leaves a crumb of one row in a layer of its own."""
    thick = ROWS // 256 + 1
    machine = Machine(rows=(800 * thick, ROWS))
    for i in range(800):
        machine.run(read(i * thick, thick))
        machine.run(read(i * thick + 1, thick - 1))
        machine.run(read(0, thick, region=1))
    crumbs = machine.run(*(read(i * thick, 1) for i in range(800)))[:, HIT_PPM]
    assert (crumbs[-240:] == MILLION).all()  # of 252 rounds that fit
    assert (crumbs[:-262] == 0).all()
    assert machine.plan._cached._stack.sizes[3] < 2048


def test_regions_are_told_apart() -> None:
    machine = Machine(rows=(ROWS, ROWS, ROWS))
    machine.run(read(0, 100, 0), read(0, 100, 2))
    assert machine.run(*(read(0, 100, i) for i in range(3)))[:, HIT_PPM].tolist() == [MILLION, 0, MILLION]


def test_pages_of_a_region_count_their_rows() -> None:
    paged = Region(0, "index", "index", 0, "uint8", 100 * 8448, 132, 64, 128, 8448)
    system = replace(ONE_TIER, cache=Cache("l2", 6400 * 132, (10**7, 10**7), 1))
    plan = CachePlan(system, placed([paged]), 4096)
    for hit in (0, MILLION):
        assert plan.shares(kernel(), columns([read(0, 6400)]), 0)[0, HIT_PPM] == hit
