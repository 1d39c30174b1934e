"""Address translation in closed form: which share of an access's requests walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import HOST, TWO_TIERS, columns, flat_region, kernel, placed, uncached
from hypothesis import given
from hypothesis import strategies as st

from memsim.cache_plan import WALK1_PPM, CachePlan
from memsim.placement import Piece, Placement, build_memory
from memsim.system import System, Walk
from memsim.trace import Access
from memsim.translation_plan import tier_bytes

MILLION = 1_000_000
PAGE, QUANTUM, ROW = 65_536, 4096, 1024
NEAR, FAR = 64 * PAGE, 1024 * PAGE  # what the two levels reach
LEVELS = (Walk(NEAR, PAGE, 1, 1), Walk(FAR, PAGE, 1, 1))


def machine(levels: Sequence[Walk] = LEVELS) -> System:
    host = replace(HOST, translation=tuple(levels))
    return replace(uncached(TWO_TIERS), tiers=(TWO_TIERS.tiers[0], host))


def walks(
    access: Access, *sizes: int, levels: Sequence[Walk] = LEVELS, tier: int = 1, home: int = 0, row: int = ROW
) -> tuple[int, int]:
    """Walks of a million requests of one access, with regions of so many bytes on a tier."""
    regions = [flat_region(i, size // row, row) for i, size in enumerate(sizes)]
    plan = CachePlan(machine(levels), placed(regions, tier), QUANTUM)
    near, far = plan.shares(kernel(tile_bytes=QUANTUM), columns([access]), home)[0, WALK1_PPM:]
    return int(near), int(far)


def read(first: int, rows: int, **more: object) -> Access:
    return Access(0, 0, 0, 0, False, first, rows, **more)  # type: ignore[arg-type]


SCATTERED = read(0, 3, gather=np.array([5, 9, 2]))


@pytest.mark.parametrize(
    ("size", "near", "far"),
    [(NEAR // 2, 0, 0), (NEAR, 0, 0), (2 * NEAR, MILLION // 2, 0), (FAR, MILLION * 15 // 16, 0),
     (2 * FAR, MILLION * 31 // 32, MILLION // 2), (64 * FAR, MILLION * 1023 // 1024 + 1, MILLION * 63 // 64)],
)  # fmt: skip
def test_scattered_rows_miss_what_a_level_does_not_reach(size: int, near: int, far: int) -> None:
    assert walks(SCATTERED, size) == (near, far)


def test_all_that_lies_in_the_tier_comes_round_before_a_page_does() -> None:
    assert walks(SCATTERED, NEAR, NEAR) == walks(SCATTERED, 2 * NEAR) == (MILLION // 2, 0)


def test_a_run_looks_a_page_up_once() -> None:
    """16 requests of 4 KiB share a page; strided and gathered rows have one each."""
    near, far = walks(read(0, 640), 2 * FAR)
    assert near == MILLION * QUANTUM // PAGE * 31 // 32
    assert far == MILLION * QUANTUM // PAGE // 2
    assert walks(read(0, 640, stride=2), 2 * FAR)[0] == MILLION * 31 // 32


def test_requests_of_a_page_and_more_look_up_each() -> None:
    small = [Walk(NEAR, QUANTUM // 2, 1, 1)]
    assert walks(read(0, 640), 2 * NEAR, levels=small) == (MILLION // 2, 0)


def test_short_tiles_share_pages_among_more_requests() -> None:
    regions = [flat_region(0, 2 * NEAR // ROW, ROW)]
    plan = CachePlan(machine(), placed(regions, 1), QUANTUM)
    near = plan.shares(kernel(tile_bytes=ROW), columns([read(0, 640)]), 0)[0, WALK1_PPM]
    assert near == MILLION // 2 * ROW // PAGE


def test_a_second_level_sees_only_what_the_first_one_misses() -> None:
    wide, narrow = Walk(4 * NEAR, PAGE, 1, 1), Walk(NEAR, PAGE, 1, 1)
    assert walks(SCATTERED, 8 * NEAR, levels=(wide, narrow)) == (MILLION // 2, MILLION // 2)


@pytest.mark.parametrize(("tier", "home", "levels"), [(0, 0, LEVELS), (1, 1, LEVELS), (1, 0, ())])
def test_near_tiers_other_initiators_and_tiers_without_levels_walk_nothing(
    tier: int, home: int, levels: Sequence[Walk]
) -> None:
    if home:  # a machine with a second initiator
        regions = [flat_region(0, 64 * FAR // ROW, ROW)]
        plan = CachePlan(machine(levels), placed(regions, tier), QUANTUM)
        assert not plan.shares(kernel(), columns([SCATTERED]), home).any()
    else:
        assert walks(SCATTERED, 64 * FAR, levels=levels, tier=tier) == (0, 0)


def test_shares_of_a_region_count_by_their_weight() -> None:
    """A quarter of a region lies on the host."""
    region = flat_region(0, 4096, ROW)
    memory = build_memory([region], Placement(((Piece(4096, ((0, 3), (1, 1))),),), (0, 0)))
    assert tier_bytes(memory, 1).tolist() == [1024 * ROW]
    assert tier_bytes(memory, 0).tolist() == [3072 * ROW]


@given(st.integers(1, 1 << 36), st.integers(1, 1 << 36), st.sampled_from([512, 4096, 1 << 21]))
def test_more_reach_never_walks_more(size: int, reach: int, page: int) -> None:
    size = max(ROW, size // ROW * ROW)
    one, two = (walks(SCATTERED, size, levels=[Walk(each, page, 1, 1)])[0] for each in (reach, 2 * reach))
    assert 0 <= two <= one <= MILLION
