"""What a cache in closed form pushes out: dirty lines, updates in place, what other initiators touch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cache_cases import CAPACITY, FINE, MILLION, ROW, ROWS, Machine, read, spread, write
from engine_cases import ONE_TIER, MemoryTrace, columns, flat_region, kernel, placed, uncached

from memsim import cache_plan, fast, load_machine
from memsim.cache_plan import DIRTY_PPM, HIT_PPM, CachePlan
from memsim.options import ReplayOptions
from memsim.route import build_system
from memsim.trace import Access


def test_nothing_is_pushed_out_of_a_cache_that_is_not_full() -> None:
    machine = Machine()
    assert machine.run(write(0, ROWS))[0, DIRTY_PPM] == 0
    assert machine.plan.dirty_bytes() == CAPACITY


def test_each_line_written_beyond_the_capacity_pushes_one_out() -> None:
    machine = Machine()
    assert machine.run(write(0, 4 * ROWS))[0].tolist() == [0, 750_000, 0, 0]
    assert machine.run(write(4 * ROWS, ROWS))[0].tolist() == [0, MILLION, 0, 0]
    assert machine.plan.dirty_bytes() == CAPACITY


def test_readers_push_out_dirty_lines_until_none_is_left() -> None:
    machine = Machine()
    machine.run(write(0, ROWS))
    half = ROWS // 2
    shares = [machine.run(read(i * half, half, region=1))[0, DIRTY_PPM] for i in range(4)]
    assert shares == [MILLION, MILLION, 0, 0]
    assert machine.plan.dirty_bytes() == 0


def test_a_read_line_of_two_places_pushes_out_two_lines_one_after_the_other() -> None:
    machine = Machine(copies=2)
    machine.run(write(0, ROWS))
    half = ROWS // 2
    machine.run(read(0, half, region=1), blocks=2)
    assert machine.run(read(0, ROWS // 16))[0, HIT_PPM] == 0  # all are out ...
    assert machine.plan.dirty_bytes() == CAPACITY // 2 - CAPACITY // 16  # ... and not all are written
    shares = [machine.run(read(i * half, half, region=1))[0, DIRTY_PPM] for i in range(1, 3)]
    assert shares == [875_000, 0]


def test_rows_that_two_blocks_write_are_dirty_once() -> None:
    machine = Machine()
    writers = [replace(write(0, 1000), block=i, block_last=i) for i in (1, 2)]
    machine.run(read(0, 3000), *writers, blocks=3)
    assert machine.plan.dirty_bytes() == 1000 * ROW


@pytest.mark.parametrize("ppm", [499, 501, 1499, 10_501])
def test_steps_of_what_is_pushed_out_move_a_scan_by_no_more_than_a_draw(
    ppm: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = build_system(load_machine("h200"))
    regions = [flat_region(0, MILLION, 4096), flat_region(1, ppm, 4096)]
    scan = Access(0, 0, 131, 0, False, 0, MILLION, spread="even", grain=64, worked=True)
    launches = [
        (kernel(0), columns([Access(0, 0, 0, 1, True, 0, ppm)])),
        (kernel(1, blocks=132, tile_rows=64, tiles_in_flight=2), columns([scan])),
    ]
    took = []
    for step in (1, cache_plan.DIRTY_STEP_PPM):
        monkeypatch.setattr(cache_plan, "DIRTY_STEP_PPM", step)
        plan = CachePlan(system, placed(regions), 8192)
        outcome = fast.run(
            MemoryTrace(tuple(regions), launches), system, placed(regions), ReplayOptions(), None, plan
        )
        took.append(int(outcome.end_ps[1] - outcome.ready_ps[1]))
        assert outcome.written_back.sum() == pytest.approx(ppm * 4096, abs=step / 2 * 4096 + 132 * 4096)
    assert took[0] != took[1]
    assert took[1] == pytest.approx(took[0], rel=0.002)


def test_dirty_lines_that_leave_before_they_are_read_again_are_written_back() -> None:
    """One block reads what was written while another one reads half as many new lines."""
    machine = Machine()
    machine.run(write(0, ROWS))
    both = [read(0, ROWS), replace(read(0, ROWS // 2, 1), block=1, block_last=1)]
    shares = machine.run(*both, blocks=2)
    assert shares[:, :2].tolist() == [[0, 667_000], [0, 667_000]]  # two thirds, in steps
    assert machine.plan.dirty_bytes() == 0


def test_a_dirty_line_that_is_written_again_is_written_back_once() -> None:
    machine = Machine()
    for _ in range(5):
        assert machine.run(write(0, ROWS // 2))[0, DIRTY_PPM] == 0
    assert machine.plan.dirty_bytes() == CAPACITY // 2


@pytest.mark.parametrize("copies", [1, 2])
def test_updates_in_place_push_out_a_line_for_each_that_they_read(copies: int) -> None:
    machine, rows = Machine(copies=copies), 8 * ROWS
    update = (spread(1000, rows), spread(1000, rows, is_write=True))
    for number in range(3):
        shares = machine.run(*update, blocks=1000, blocks_per_unit=2)
        assert shares[:, HIT_PPM].tolist() == [0, MILLION]
        assert shares[1, DIRTY_PPM] == 0
        assert shares[0, DIRTY_PPM] == (MILLION if number else pytest.approx(7 * MILLION / 8, abs=FINE))


def test_updates_in_place_of_what_fits_stay_in_the_cache() -> None:
    machine = Machine(copies=2)
    rows = ROWS - ROWS // 64  # what is read for the first time takes two places for a moment
    update = (spread(1000, rows), spread(1000, rows, is_write=True))
    machine.run(*update, blocks=1000, blocks_per_unit=2)
    for _ in range(3):
        shares = machine.run(*update, blocks=1000, blocks_per_unit=2)
        assert shares[:, :2].tolist() == [[MILLION, 0], [MILLION, 0]]
    assert machine.plan.dirty_bytes() == rows * ROW


# Other initiators


def test_what_others_touch_leaves_the_cache() -> None:
    for access in (read(0, 500), write(0, 500)):
        machine = Machine(base=uncached(ONE_TIER))
        machine.run(read(0, 1000))
        assert not machine.run(access, home=1).any()
        assert machine.run(read(0, 1000))[0, HIT_PPM] == MILLION // 2


def test_what_has_left_does_not_come_back_when_others_take_out_what_lay_above() -> None:
    machine = Machine(base=uncached(ONE_TIER))
    machine.run(read(0, ROWS))
    machine.run(read(0, ROWS // 2, region=1))
    machine.run(write(0, ROWS // 2, region=1), home=1)
    assert machine.run(read(0, ROWS))[0, HIT_PPM] == MILLION // 2


def test_others_have_no_cache() -> None:
    machine = Machine(base=uncached(ONE_TIER))
    machine.run(read(0, 1000), home=1)
    assert not machine.run(read(0, 1000)).any()


def test_dirty_lines_that_others_read_are_written_back_and_those_that_they_write_are_not() -> None:
    machine = Machine(base=uncached(ONE_TIER))
    machine.run(write(0, 1000))
    machine.run(write(0, 500), home=1)
    assert machine.plan.dirty_bytes() == 500 * ROW
    machine.run(read(0, 750), home=1)
    assert machine.plan.dirty_bytes() == 500 * ROW
    assert machine.run(read(0, 500))[0].tolist() == [0, MILLION // 2, 0, 0]
    assert machine.plan.dirty_bytes() == 250 * ROW
