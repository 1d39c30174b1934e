"""What a cache in closed form finds for blocks that run side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cache_cases import MILLION, ROWS, Machine, read, spread

from memsim.cache_plan import HIT_PPM
from memsim.trace import Access


def test_a_block_finds_the_tile_that_it_read_in_a_kernel_of_any_length() -> None:
    """In place, 4 units x 2 blocks at once: read and write of all rows are two accesses of 1,000 blocks."""
    machine, rows = Machine(), 8 * ROWS
    update = (spread(1000, rows), spread(1000, rows, is_write=True))
    for _ in range(2):
        shares = machine.run(*update, blocks=1000, blocks_per_unit=2)
        assert shares[:, HIT_PPM].tolist() == [0, MILLION]


def test_a_block_does_not_find_it_where_all_blocks_run_at_once() -> None:
    machine, rows = Machine(), 8 * ROWS
    update = (spread(1000, rows), spread(1000, rows, is_write=True))
    assert machine.run(*update, blocks=1000, blocks_per_unit=250)[:, HIT_PPM].tolist() == [0, 0]


@pytest.mark.parametrize(("rows", "hit"), [(ROWS // 5, MILLION), (ROWS // 3, 0)])
def test_a_second_pass_comes_after_the_first_of_all_blocks(rows: int, hit: int) -> None:
    machine = Machine()
    passes = [replace(read(b * rows, rows), block=b, block_last=b) for b in range(4) for _ in range(2)]
    assert machine.run(*passes, blocks=4)[:, HIT_PPM].tolist() == [0, hit] * 4


@pytest.mark.parametrize("rows", [1000, 4 * ROWS])
def test_of_two_blocks_with_the_same_rows_one_brings_them_in(rows: int) -> None:
    machine = Machine()
    both = [replace(read(0, rows), block=b, block_last=b) for b in range(2)]
    assert machine.run(*both, blocks=2)[:, HIT_PPM].tolist() == [0, MILLION]
    half = [read(0, 1000, 1), replace(read(500, 1000, 1), block=1, block_last=1)]
    assert machine.run(*half, blocks=2)[:, HIT_PPM].tolist() == [0, MILLION // 2]


def test_rows_that_every_block_reads_are_counted_once() -> None:
    machine = Machine()
    shared = Access(0, 0, 7, 0, False, 0, ROWS // 2, spread="each")
    assert machine.run(shared, blocks=8)[0, HIT_PPM] == 0
    assert machine.run(read(0, ROWS, region=1), shared, blocks=8)[:, HIT_PPM].tolist() == [0, 0]
