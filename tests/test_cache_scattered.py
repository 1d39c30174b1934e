"""What a cache in closed form finds of scattered rows: lists, and rows at a stride."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cache_cases import MILLION, ROWS, Machine, gather, read

from memsim.cache_plan import HIT_PPM


def test_the_same_list_is_found_whole_whoever_reads_its_rows() -> None:
    machine, rows = Machine(), np.random.default_rng(1).permutation(8 * ROWS)[:1000]
    assert machine.run(gather(rows))[0, HIT_PPM] == 0
    assert machine.run(gather(rows[::-1]))[0, HIT_PPM] == MILLION
    parts = [replace(gather(rows[i::3]), block=i, block_last=i) for i in range(3)]
    assert (machine.run(*parts, blocks=3)[:, HIT_PPM] == MILLION).all()


def test_lists_in_turn_are_found_if_all_fit() -> None:
    random = np.random.default_rng(2)
    lists = [random.permutation(8 * ROWS)[: ROWS // 8] for _ in range(12)]
    for count, hit in ((6, MILLION), (12, 0)):
        machine = Machine()
        for rows in lists[:count]:
            machine.run(gather(rows))
        shares = [machine.run(gather(rows))[0, HIT_PPM] for rows in lists[:count] * 2]
        if hit == 0:
            assert max(shares) < 2 * ROWS * MILLION // (8 * ROWS)
        else:
            assert min(shares) > 850_000  # what the others share with a list by chance went up with them


def test_another_list_finds_what_chance_gives() -> None:
    machine, random = Machine(), np.random.default_rng(3)
    machine.run(gather(random.permutation(8 * ROWS)[: ROWS // 2]))
    found = machine.run(gather(random.permutation(8 * ROWS)[:2000]))[0, HIT_PPM]
    assert found == pytest.approx(MILLION / 16, rel=0.01)


def test_a_list_of_which_a_run_has_taken_up_half_is_found_in_both() -> None:
    machine, rows = Machine(), np.random.default_rng(7).permutation(2000)[:1000]
    machine.run(gather(rows))
    machine.run(read(0, 1000))
    assert machine.run(gather(rows))[0, HIT_PPM] == pytest.approx(MILLION, rel=0.05)


def test_any_list_finds_all_in_a_region_that_is_there_and_none_in_one_that_is_not() -> None:
    machine, rows = (
        Machine(rows=(ROWS // 2, ROWS // 2)),
        np.random.default_rng(4).permutation(ROWS // 2)[:500],
    )
    machine.run(read(0, ROWS // 2))
    assert machine.run(gather(rows))[0, HIT_PPM] == MILLION
    assert machine.run(gather(rows, region=1))[0, HIT_PPM] == 0
    machine.run(gather(range(ROWS // 2), region=1))
    assert machine.run(read(100, 1000, region=1))[0, HIT_PPM] == MILLION


def test_a_row_that_a_list_names_again_is_found() -> None:
    machine = Machine()
    assert machine.run(gather([7, 3, 7, 7]))[0, HIT_PPM] == MILLION // 2
    assert machine.run(gather([3, 7]))[0, HIT_PPM] == MILLION


def test_rows_at_a_stride_meet_those_that_they_share_and_no_others() -> None:
    machine = Machine()
    machine.run(read(0, 1000, stride=3))
    assert machine.run(read(1, 1000, stride=3))[0, HIT_PPM] == 0
    assert machine.run(read(0, 1000, stride=3))[0, HIT_PPM] == MILLION
    assert machine.run(read(0, 500, stride=6))[0, HIT_PPM] == MILLION
    assert machine.run(read(0, 3000))[0, HIT_PPM] == 2 * MILLION // 3


def test_many_rows_at_a_stride_meet_by_chance() -> None:
    machine = Machine()
    machine.run(read(0, 5000, stride=2))
    assert machine.run(read(0, 5000, stride=2))[0, HIT_PPM] == MILLION
    assert machine.run(read(1, 4999, stride=2))[0, HIT_PPM] == pytest.approx(MILLION / 2, rel=0.01)
    again = [replace(read(0, 5000, 1, stride=2), block=b, block_last=b) for b in range(2)]
    assert machine.run(*again, blocks=2)[:, HIT_PPM].tolist() == [0, MILLION]
