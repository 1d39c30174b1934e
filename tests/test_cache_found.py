"""What a cache in closed form finds: what fits, sets, copies, buffers in turn, tiers that are near."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from cache_cases import CAPACITY, FINE, MILLION, ROW, ROWS, Machine, gather, read, write
from engine_cases import TWO_TIERS, columns, flat_region, kernel

from memsim.cache_plan import HIT_PPM, CachePlan
from memsim.placement import Piece, Placement, build_memory
from memsim.system import Cache


@pytest.mark.parametrize("tenths", [1, 5, 9, 10, 11, 15, 30])
@pytest.mark.parametrize("pieces", [1, 10])
def test_rows_read_again_and_again_are_found_if_they_fit(tenths: int, pieces: int) -> None:
    machine, rows = Machine(), ROWS * tenths // 10 // pieces
    scan = [read(i * rows, rows) for i in range(pieces)]
    assert not machine.run(*scan).any()
    for _ in range(3):
        assert (machine.run(*scan)[:, HIT_PPM] == (MILLION if tenths <= 10 else 0)).all()


def found_in_sets(ways: int, load: float) -> float:
    """Chance that fewer than `ways` lines fall to a set to which load x ways fall on the mean."""
    return sum(math.exp(-load * ways) * (load * ways) ** n / math.factorial(n) for n in range(ways))


@pytest.mark.parametrize("ways", [4, 16, 64])
@pytest.mark.parametrize("load", [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0])
def test_around_the_capacity_sets_find_the_share_that_dice_give(ways: int, load: float) -> None:
    machine, rows = Machine(ways=ways), int(load * ROWS)
    machine.run(read(0, rows))
    for _ in range(3):
        hit = machine.run(read(0, rows))[0, HIT_PPM] / MILLION
        assert hit == pytest.approx(found_in_sets(ways, load), abs=0.01)


def test_a_cache_of_sets_that_was_read_once_keeps_its_capacity_of_much_and_all_of_little() -> None:
    for load, share in ((0.3, 1.0), (2.5, 0.4)):
        machine = Machine(ways=16, rows=(8 * ROWS, 8 * ROWS))
        machine.run(read(0, int(load * ROWS)))
        probes = np.random.default_rng(2).permutation(int(load * ROWS))[: ROWS // 100]
        assert machine.run(gather(probes.tolist()))[0, HIT_PPM] / MILLION == pytest.approx(share, abs=0.01)


def test_lines_that_are_only_read_take_a_place_for_each_copy() -> None:
    half = Machine(copies=2)
    half.run(read(0, ROWS // 2), blocks=2)
    assert half.run(read(0, ROWS // 2), blocks=2)[0, HIT_PPM] == MILLION
    more = Machine(copies=2)
    more.run(read(0, ROWS // 2 + ROWS // 10), blocks=2)
    assert more.run(read(0, ROWS // 2 + ROWS // 10), blocks=2)[0, HIT_PPM] == 0
    written = Machine(copies=2)
    written.run(write(0, ROWS), blocks=2)
    assert written.run(read(0, ROWS), blocks=2)[0, HIT_PPM] == MILLION
    assert written.run(write(0, ROWS), blocks=2)[0, HIT_PPM] == MILLION


def test_what_one_block_alone_reads_takes_one_place() -> None:
    machine = Machine(copies=2)
    for hit in (0, MILLION, MILLION):
        assert machine.run(read(0, ROWS))[0, HIT_PPM] == hit
    machine.run(gather(range(0, ROWS, 2)))
    assert machine.run(read(0, ROWS))[0, HIT_PPM] == MILLION
    machine.run(read(0, ROWS // 4), blocks=2)  # a quarter twice: of the other three one has to go
    probes = list(range(ROWS // 4, ROWS, ROWS // 100))
    assert machine.run(gather(probes))[0, HIT_PPM] / MILLION == pytest.approx(2 / 3, abs=0.02)


def test_what_is_written_is_found_by_the_next_reader() -> None:
    machine = Machine()
    assert machine.run(write(0, 1000))[0, HIT_PPM] == 0
    assert machine.run(read(0, 1000), read(1000, 1000))[:, HIT_PPM].tolist() == [MILLION, 0]


@pytest.mark.parametrize(("share", "hit"), [(2, MILLION), (3, 0)])
def test_two_buffers_in_turn_are_found_if_both_fit(share: int, hit: int) -> None:
    machine, rows = Machine(), share * ROWS // 4
    for region in (0, 1):
        machine.run(read(0, rows, region))
    for region in (0, 1, 0, 1):
        assert machine.run(read(0, rows, region))[0, HIT_PPM] == hit


def test_two_buffers_at_once_need_no_more_room_than_in_turn() -> None:
    machine, rows = Machine(), 2 * ROWS // 5
    for region in (0, 1):
        machine.run(read(0, rows, region))
    both = [replace(read(0, rows, i), block=i, block_last=i) for i in range(2)]
    for _ in range(2):
        assert machine.run(*both, blocks=2)[:, HIT_PPM].tolist() == [MILLION, MILLION]


def test_a_long_scan_clears_the_cache() -> None:
    machine = Machine(rows=(ROWS, 10**10 // ROW))
    machine.run(read(0, 1000))
    assert machine.run(read(0, 1000))[0, HIT_PPM] == MILLION
    machine.run(read(0, 10**10 // ROW, region=1))
    assert machine.run(read(0, 1000))[0, HIT_PPM] == 0


def test_of_a_scan_the_last_rows_stay() -> None:
    """Which ones these are is not known: they are spread evenly over the scan."""
    machine = Machine()
    machine.run(read(0, 8 * ROWS))
    assert machine.run(read(4096, ROWS // 64))[0, HIT_PPM] == pytest.approx(MILLION / 8, abs=FINE)


@pytest.mark.parametrize(("first", "hit"), [(0, 100), (250, 75), (500, 50), (999, 0.1), (1000, 0)])
def test_rows_that_overlap_are_found(first: int, hit: float) -> None:
    machine = Machine()
    machine.run(read(0, 1000))
    assert machine.run(read(first, 1000))[0, HIT_PPM] == hit * MILLION // 100
    assert machine.run(read(0, 1000 + first))[0, HIT_PPM] == MILLION


def test_rows_in_the_middle_leave_both_ends_where_they_were() -> None:
    machine = Machine()
    machine.run(read(0, 3000))
    machine.run(read(0, ROWS - 1500, region=1))
    machine.run(read(1000, 1000))
    machine.run(read(5000, 2500))  # the ends are too deep now, the middle is not
    found = machine.run(read(0, 1000), read(1000, 1000), read(2000, 1000))
    assert found[:, HIT_PPM].tolist() == [0, MILLION, 0]


def test_shares_of_rows_lie_on_the_tiers_that_are_near() -> None:
    """Half the rows of one region and the first half of the other lie on the host, which is not cached."""
    regions = [flat_region(i, ROWS, ROW) for i in range(2)]
    pieces = (
        (Piece(ROWS, ((0, 1), (1, 1))),),
        (Piece(ROWS // 2, ((1, 1),)), Piece(ROWS, ((0, 1),))),
    )
    system = replace(TWO_TIERS, cache=Cache("l2", CAPACITY, (10**7, 10**7), 1))
    plan = CachePlan(system, build_memory(regions, Placement(pieces, (0, 0))), 4096)
    everything = columns([read(0, ROWS, 0), read(0, ROWS, 1)])
    plan.shares(kernel(0), everything, 0)
    assert plan.shares(kernel(1), everything, 0)[:, HIT_PPM].tolist() == [MILLION, MILLION]
    far = columns([read(0, ROWS // 2, 1), read(ROWS // 2 - 10, 20, 1), gather([5, ROWS - 5], region=1)])
    assert plan.shares(kernel(2), far, 0)[:, HIT_PPM].tolist() == [0, MILLION, MILLION]


def test_rows_behind_a_link_are_not_cached() -> None:
    machine = Machine(base=TWO_TIERS, tier=1)
    machine.run(write(0, 100))
    assert not machine.run(read(0, 100)).any()
    assert machine.plan.dirty_bytes() == 0
