"""Address translation in closed form: which share of an access's requests walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import HOST, TWO_TIERS, columns, flat_region, kernel, placed, uncached
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim.cache_plan import WALK1_PPM, WALK2_PPM, CachePlan
from memsim.placement import Piece, Placement, build_memory
from memsim.system import System, Walk
from memsim.trace import Access

MILLION = 1_000_000
PAGE = 65_536
QUANTUM = 4096
ROW = 1024
PAGE_ROWS = PAGE // ROW
NEAR, FAR = 64, 1024  # pages that the two levels reach
LEVELS = (Walk(NEAR * PAGE, PAGE, 1, 1), Walk(FAR * PAGE, PAGE, 1, 1))

Int64s = np.ndarray


class Machine:
    """Regions on the host, so many pages each."""

    def __init__(
        self, pages: Sequence[int] = (4096,), levels: Sequence[Walk] = LEVELS, row: int = ROW, tier: int = 1
    ) -> None:
        host = replace(HOST, translation=tuple(levels))
        self.system: System = replace(uncached(TWO_TIERS), tiers=(TWO_TIERS.tiers[0], host))
        self.regions = [flat_region(i, n * PAGE // row, row) for i, n in enumerate(pages)]
        self.plan = CachePlan(self.system, placed(self.regions, tier), QUANTUM)

    def run(self, *accesses: Access, home: int = 0, **launch: int) -> Int64s:
        launch = {"tile_bytes": QUANTUM} | launch
        return self.plan.shares(kernel(**launch), columns(accesses), home)[:, WALK1_PPM:]


def read(first: int, rows: int, region: int = 0, **more: object) -> Access:
    return Access(0, 0, 0, region, False, first, rows, **more)  # type: ignore[arg-type]


def gather(rows: Int64s, region: int = 0) -> Access:
    return read(0, len(rows), region, gather=rows)


def scattered(count: int, pages: int, seed: int = 0) -> Int64s:
    return np.random.default_rng(seed).integers(pages * PAGE_ROWS, size=count)


A_PAGE = MILLION * QUANTUM // PAGE  # one walk for each page of a run


def test_a_run_walks_once_a_page() -> None:
    machine = Machine()
    assert machine.run(read(0, 2000 * PAGE_ROWS))[0].tolist() == [A_PAGE, A_PAGE]
    assert Machine().run(read(0, 2000 * PAGE_ROWS), tile_bytes=ROW)[0].tolist() == [A_PAGE // 4] * 2
    worked = read(0, 2000 * PAGE_ROWS, worked=True)
    assert Machine().run(worked, tile_rows=2)[0].tolist() == [A_PAGE // 2] * 2


@pytest.mark.parametrize(
    ("pages", "walks"),
    [
        (NEAR // 2, (0, 0)),
        (NEAR, (0, 0)),
        (NEAR * 2, (A_PAGE, 0)),
        (FAR, (A_PAGE, 0)),
        (FAR * 2, (A_PAGE, A_PAGE)),
    ],
)
def test_pages_that_come_again_are_covered_if_the_reach_is_enough(pages: int, walks: tuple[int, int]) -> None:
    machine = Machine()
    machine.run(read(0, pages * PAGE_ROWS))
    for _ in range(2):
        assert tuple(machine.run(read(0, pages * PAGE_ROWS))[0]) == walks


def test_accesses_that_meet_inside_a_page_walk_for_it_once() -> None:
    machine = Machine()
    parts = [replace(read(i * PAGE_ROWS // 4, PAGE_ROWS // 4), block=i, block_last=i) for i in range(8)]
    walks = machine.run(*parts, blocks=8)[:, 0]
    assert walks.tolist() == [MILLION // 4, 0, 0, 0] * 2


@pytest.mark.parametrize(("pages", "far"), [(32, 0), (64, 0), (128, 50), (256, 75), (2048, 96.9)])
def test_scattered_rows_walk_as_often_as_the_reach_is_a_part_of_their_span(pages: int, far: float) -> None:
    machine = Machine()
    machine.run(gather(scattered(200_000, pages, 1)))
    walks = machine.run(gather(scattered(200_000, pages, 2)))[0]
    assert walks[0] == pytest.approx(far * MILLION / 100, rel=0.01)
    second = max(0, pages - FAR) / pages
    assert walks[1] == pytest.approx(second * MILLION, rel=0.01)


def test_few_scattered_rows_walk_once_a_page_at_first() -> None:
    """As many rows as pages: some pages come twice, and a reach of a quarter finds a part of these."""
    assert Machine().run(gather(np.arange(2000) * 2 * PAGE_ROWS))[0].tolist() == [MILLION, MILLION]
    machine = Machine(levels=(Walk(512 * PAGE, PAGE, 1, 1),))
    walks = machine.run(gather(scattered(2048, 2048)))[0, 0]
    assert walks == pytest.approx(lru_misses(scattered(2048, 2048) // PAGE_ROWS, 512), rel=0.06)
    clustered, machine = gather(scattered(2048, 10) + 1000 * PAGE_ROWS), Machine()
    assert machine.run(clustered)[0, 0] == pytest.approx(10 * MILLION / 2048, rel=0.01)
    assert machine.run(clustered)[0, 0] == 0


def lru_misses(pages: Int64s, reach: int) -> float:
    """Misses of a million under a plain LRU."""
    covered: list[int] = []
    misses = 0
    for page in pages.tolist():
        if page in covered:
            covered.remove(page)
        else:
            misses += 1
        covered = [*covered, page][-reach:]
    return misses * MILLION / len(pages)


def test_rows_longer_than_a_page_walk_for_each_of_theirs() -> None:
    machine = Machine(levels=(Walk(4096, 4096, 1, 1),), row=16_384)
    assert machine.run(gather(np.array([3, 99, 7])), tile_bytes=16_384)[0, 0] == MILLION
    assert machine.run(read(0, 8), tile_bytes=16_384)[0, 0] == MILLION


def test_rows_at_a_stride_walk_for_each_page_that_they_touch() -> None:
    machine = Machine()
    assert machine.run(read(0, 1000, stride=2 * PAGE_ROWS))[0, 0] == MILLION
    assert Machine().run(read(0, 1024, stride=PAGE_ROWS // 4))[0, 0] == MILLION // 4
    long = read(0, 8192, stride=PAGE_ROWS // 4)
    assert Machine().run(long)[0, 0] == MILLION // 4


def test_pages_of_a_dealt_region_lie_back_to_back_in_each_tier() -> None:
    """A quarter of the rows lies on the host: it takes a quarter of the pages."""
    system = Machine().system
    region = flat_region(0, 4 * NEAR * PAGE_ROWS, ROW)
    dealt = Placement(((Piece(region.rows, ((0, 3), (1, 1))),),), (0, 0))
    plan = CachePlan(system, build_memory([region], dealt), QUANTUM)
    scan = columns([read(0, region.rows)])
    first = plan.shares(kernel(tile_bytes=QUANTUM), scan, 0)[0]
    assert first[WALK1_PPM] == pytest.approx(A_PAGE, rel=0.02)
    assert plan.shares(kernel(tile_bytes=QUANTUM), scan, 0)[0, WALK1_PPM] == 0


def test_pages_of_two_pieces_of_a_region_are_told_apart() -> None:
    """The first half of the rows is dealt to both tiers, the other half lies on the host."""
    region = flat_region(0, NEAR * PAGE_ROWS, ROW)
    half = region.rows // 2
    pieces = (Piece(half, ((0, 1), (1, 1))), Piece(region.rows, ((1, 1),)))
    plan = CachePlan(Machine().system, build_memory([region], Placement((pieces,), (0, 0))), QUANTUM)
    launch = kernel(tile_bytes=QUANTUM)
    plan.shares(launch, columns([read(0, half)]), 0)
    assert plan.shares(launch, columns([read(half, half)]), 0)[0, WALK1_PPM] == A_PAGE
    assert plan.shares(launch, columns([read(0, region.rows)]), 0)[0, WALK1_PPM] == 0


def test_smaller_pages_further_out_are_looked_up_only_where_the_first_level_misses() -> None:
    machine = Machine(levels=(Walk(NEAR * PAGE, PAGE, 1, 1), Walk(FAR * PAGE, QUANTUM, 1, 1)))
    assert machine.run(read(0, NEAR * PAGE_ROWS))[0].tolist() == [A_PAGE, A_PAGE]


def test_tiers_without_translation_and_other_initiators_do_not_walk() -> None:
    assert not Machine(tier=0).run(read(0, 1000 * PAGE_ROWS)).any()
    machine = Machine()
    assert not machine.run(read(0, NEAR * PAGE_ROWS), home=1).any()
    assert machine.run(read(0, NEAR * PAGE_ROWS))[0, 0] == A_PAGE


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(1, 100), st.integers(1, 90), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=40, deadline=None)
def test_the_second_level_misses_only_what_the_first_one_misses(
    touches: list[tuple[int, int, int, bool]],
) -> None:
    machines = [Machine((512,)) for _ in range(2)]
    for first, rows, stride, listed in touches:
        access = read(first, rows, stride=stride)
        if listed:
            access = gather(np.arange(rows) * stride % 1000)
        walks, again = (machine.run(access) for machine in machines)
        assert (walks == again).all()
        assert 0 <= walks[0, WALK2_PPM - WALK1_PPM] <= walks[0, 0] <= MILLION
