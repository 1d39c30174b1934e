"""Address translation: who walks, what a walk takes, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import (
    HBM_MBPS,
    HBM_PS,
    HOST_MBPS,
    HOST_PS,
    L2,
    NO_CACHE,
    ONE_TIER,
    PCIE_MBPS,
    PCIE_PS,
    TWO_TIERS,
    FixedPlan,
    MemoryTrace,
    elapsed_ps,
    flat_region,
    kernel,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
    with_tier,
)  # fmt: skip

from memsim import rules
from memsim.result import Outcome
from memsim.system import System, Walk
from memsim.trace import Access

FIRST = Walk(1 << 21, 1 << 16, 100_000, 30_000)
SECOND = Walk(1 << 30, 1 << 21, 700_000, 400_000)
ALL, HALF = 1_000_000, 500_000
ROW = 64
FAR_PS = 2 * PCIE_PS + HOST_PS + transfer_ps(ROW, HOST_MBPS) + transfer_ps(ROW, PCIE_MBPS)
NEAR_PS = HBM_PS + transfer_ps(ROW, HBM_MBPS)


def translated(*levels: Walk, tier: int = 1, system: System = TWO_TIERS) -> System:
    return with_tier(system, tier, translation=levels)


def rows(count: int, tiles: int = 1, write: bool = False) -> MemoryTrace:
    """Rows of one block, on lanes of their own, some at once."""
    access = Access(0, 0, 0, 0, write, 0, count, stride=16, worked=True)
    return one_kernel(kernel(tiles_in_flight=tiles), flat_region(0, 16 * count, ROW), access)


def took(trace: MemoryTrace, system: System, tier: int = 1, **shares: int) -> Outcome:
    return replayed(trace, system, tier, plan=FixedPlan(**shares))


@pytest.mark.parametrize(
    ("levels", "shares", "walk_ps"),
    [
        ((), {"walk": ALL, "walk_again": ALL}, 0),
        ((FIRST,), {}, 0),
        ((FIRST,), {"walk": ALL, "walk_again": ALL}, 130_000),
        ((FIRST, SECOND), {"walk": ALL}, 130_000),
        ((FIRST, SECOND), {"walk": ALL, "walk_again": ALL}, 400_000 + 100_000 + 700_000),
        ((replace(FIRST, latency_ps=0, occupancy_ps=0),), {"walk": ALL}, 1),
    ],
)
@pytest.mark.parametrize("write", [False, True])
def test_a_request_that_walks_sets_out_when_its_page_is_found(
    levels: tuple[Walk, ...], shares: dict[str, int], walk_ps: int, write: bool
) -> None:
    """Walkers work at the same time, the latencies of the levels add up."""
    assert elapsed_ps(took(rows(1, write=write), translated(*levels), **shares)) == FAR_PS + walk_ps


def test_near_tiers_are_translated_too_and_so_is_what_the_cache_holds() -> None:
    system = translated(FIRST, tier=0, system=ONE_TIER)
    assert elapsed_ps(took(rows(1), system, 0, walk=ALL)) == NEAR_PS + 130_000
    hit_ps = L2.latency_ps + transfer_ps(ROW, L2.mbps[0])
    assert elapsed_ps(took(rows(1), system, 0, walk=ALL, hit=ALL)) == hit_ps + 130_000


def test_only_the_first_initiator_walks() -> None:
    system = uncached(translated(FIRST, tier=0, system=ONE_TIER))
    found = replayed(rows(1), system, run_on=NO_CACHE, plan=FixedPlan(walk=ALL))
    assert elapsed_ps(found) == NEAR_PS


def test_walks_of_a_level_follow_each_other_while_the_link_works_for_others() -> None:
    """Of many at once the walker binds, one after another; latencies overlap."""
    outcome = took(rows(100, 100), translated(FIRST), walk=ALL)
    assert elapsed_ps(outcome) == 100 * 30_000 + 100_000 + FAR_PS
    assert outcome.walks_waiting_ps.tolist() == [0, sum(n * 30_000 for n in range(100))]


def test_the_slower_of_walker_and_link_binds() -> None:
    quick = replace(FIRST, occupancy_ps=10, latency_ps=1)
    free_ps, walked_ps = (
        elapsed_ps(took(rows(2000, 200), translated(quick), walk=walk)) for walk in (0, ALL)
    )
    assert walked_ps == pytest.approx(free_ps, rel=0.01)


@pytest.mark.parametrize(("walk", "again"), [(0, ALL), (250_000, 0), (HALF, HALF), (ALL, 250_000)])
def test_as_many_walk_as_the_plan_says(walk: int, again: int) -> None:
    """One after another each walk shows in the time."""
    found = elapsed_ps(took(rows(400), translated(FIRST, SECOND), walk=walk, walk_again=walk * again // ALL))
    once, twice = 400 * walk // ALL, 400 * walk // ALL * again // ALL
    assert found == 400 * FAR_PS + (once - twice) * 130_000 + twice * 1_200_000


def test_walks_are_drawn_apart_from_hits() -> None:
    draws = [
        (rules.draw_cached(b, 0, n, HALF, 0)[0], rules.draw_walks(b, 0, n, HALF, HALF))
        for b in range(400)
        for n in range(3)
    ]
    together = sum(walks > 0 for hit, walks in draws if hit)
    assert together == pytest.approx(300, abs=60)
    assert np.mean([walks == 2 for _, walks in draws]) == pytest.approx(0.25, abs=0.05)
