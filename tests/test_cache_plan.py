"""The cache in closed form: what is found and pushed out, against limits and against a plain LRU of rows."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import ONE_TIER, TWO_TIERS, MemoryTrace, columns, flat_region, kernel, placed, uncached
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim import cache_plan, fast, load_machine
from memsim.cache_plan import DIRTY_PPM, HIT_PPM, CachePlan
from memsim.options import ReplayOptions
from memsim.placement import Piece, Placement, build_memory
from memsim.route import build_system
from memsim.system import Cache, System
from memsim.trace import Access, Region

MILLION = 1_000_000
ROW = 64
ROWS = 16_384  # that the cache holds
CAPACITY = ROWS * ROW
FINE = MILLION // 100  # what the thickness of layers may do to a share

Int64s = np.ndarray


class Machine:
    """A cache of ROWS rows, and regions of 64-byte rows behind it."""

    def __init__(
        self,
        rows: Sequence[int] = (8 * ROWS, 8 * ROWS),
        capacity: int = CAPACITY,
        copies: int = 1,
        ways: int = 0,
        base: System = ONE_TIER,
        tier: int = 0,
    ) -> None:
        self.system = replace(base, cache=Cache("l2", capacity, (10**7, 10**7), 1, copies, ways))
        self.regions = [flat_region(i, n, ROW) for i, n in enumerate(rows)]
        self.plan = CachePlan(self.system, placed(self.regions, tier), 4096)
        self.kernels = 0

    def run(self, *accesses: Access, home: int = 0, **launch: int) -> Int64s:
        self.kernels += 1
        return self.plan.shares(kernel(self.kernels, **launch), columns(accesses), home)


def read(first: int, rows: int, region: int = 0, write: bool = False, **more: object) -> Access:
    return Access(0, 0, 0, region, write, first, rows, **more)  # type: ignore[arg-type]


def write(first: int, rows: int, region: int = 0) -> Access:
    return read(first, rows, region, write=True)


def gather(rows: Sequence[int], region: int = 0) -> Access:
    return read(0, len(rows), region, gather=np.array(rows))


def spread(blocks: int, rows: int, is_write: bool = False) -> Access:
    return Access(0, 0, blocks - 1, 0, is_write, 0, rows, spread="even")


# What is found


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
    far = columns([read(0, ROWS // 2, 1), read(ROWS // 2 - 10, 20, 1), gather_of([5, ROWS - 5])])
    assert plan.shares(kernel(2), far, 0)[:, HIT_PPM].tolist() == [0, MILLION, MILLION]


def gather_of(rows: Sequence[int]) -> Access:
    return gather(rows, region=1)


def test_rows_behind_a_link_are_not_cached() -> None:
    machine = Machine(base=TWO_TIERS, tier=1)
    machine.run(write(0, 100))
    assert not machine.run(read(0, 100)).any()
    assert machine.plan.dirty_bytes() == 0


# Blocks that run side by side


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


# Scattered rows


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


# What is pushed out


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


# Against a plain LRU of rows


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
        return machine.run(*scan)[:, HIT_PPM].tolist()

    shares = [found(capacity) for capacity in (50_000, 100_000, 200_000, 400_000)]
    for less, more in zip(shares, shares[1:], strict=False):
        assert all(b >= a - FINE for a, b in zip(less, more, strict=True))


# Size


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
