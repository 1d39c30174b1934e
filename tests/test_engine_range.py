"""The bound that keeps a replay inside int64: above the time of every replay, and not far above.

Each case makes one part of the machine so slow that the bound fails without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_cases import (
    HBM,
    HOST,
    L2,
    ONE_TIER,
    PCIE,
    TWO_TIERS,
    MemoryTrace,
    behind,
    flat_region,
    gathered,
    kernel,
    one_kernel,
    paged_region,
    placed,
    run_both,
    with_gpu,
    with_link,
    with_tier,
)  # fmt: skip

from memsim.limits import _at_most_ps, longest_time_ps
from memsim.placement import Piece, Placement, build_memory
from memsim.program import build_program
from memsim.rules import ROW_BYTES, Memory
from memsim.system import Hop, System
from memsim.trace import Access

ROWS = 50
SLOW_HOP = replace(TWO_TIERS, routes=(((), (Hop(0, False, 10**10),)),))


def chase(row_bytes: int = 64, write: bool = False, **changes: Any) -> MemoryTrace:
    """One row after another."""
    access = gathered(range(ROWS), write=write, worked=True)
    return one_kernel(kernel(**changes), flat_region(0, ROWS, row_bytes), access)


def times(
    trace: MemoryTrace,
    system: System,
    memory: Memory,
    quantum_bytes: int = 4096,
    run_on: dict[str, int] | None = None,
) -> tuple[int, float]:
    """The time of a replay, and its bound."""
    outcome = run_both(trace, system, memory, quantum_bytes, run_on)
    program = build_program(trace.launches, [[]], [True], system, memory.regions[:, ROW_BYTES], run_on or {})
    longest_ps = longest_time_ps(program, memory, system, quantum_bytes)
    assert _at_most_ps(program, memory, system, quantum_bytes) >= longest_ps * (1 - 1e-12)
    return int(outcome.end_ps.max()), longest_ps


@pytest.mark.parametrize(
    ("system", "trace", "most"),
    [
        (with_gpu(ONE_TIER, launch_gap_ps=10**15), chase(), 1.01),
        (with_gpu(ONE_TIER, graph_launch_ps=10**15), chase(), 1.01),
        (with_gpu(ONE_TIER, setup_ps=10**15), chase(), 1.01),
        (ONE_TIER, chase(startup_ps=10**15), 1.01),
        (ONE_TIER, chase(drain_ps=10**15), 1.01),
        (ONE_TIER, chase(flops_per_tile=10**12, flops_unit="fp32"), 1.01),
        (with_tier(TWO_TIERS, 1, latency_ps=(10**12, 1)), chase(), 2.1),
        (with_tier(TWO_TIERS, 1, latency_ps=(1, 10**12)), chase(write=True), 2.1),
        (with_tier(TWO_TIERS, 1, tail=((10**6, 1), (10**6, 10**12))), chase(), 2.1),
        (with_tier(TWO_TIERS, 1, occupancy_ps=(10**12, 1)), chase(), 5),
        (with_tier(TWO_TIERS, 1, occupancy_ps=(1, 10**12)), chase(write=True), 5),
        (with_tier(TWO_TIERS, 1, channel_mbps=(1, 10**6)), chase(), 10),
        (with_tier(TWO_TIERS, 1, channel_mbps=(10**6, 1)), chase(write=True), 10),
        (SLOW_HOP, chase(), 2.1),
        (with_link(TWO_TIERS, mbps=(1, 10**6)), chase(), 10),
        (with_link(TWO_TIERS, mbps=(10**6, 1)), chase(write=True), 10),
        (with_link(TWO_TIERS, mbps=(10**6, 1), header_bytes=10**6), chase(), 20),
        (with_gpu(with_link(TWO_TIERS, header_bytes=10**6), request_bytes=32), chase(), 20),
        (with_link(TWO_TIERS, efficiency=((1 << 20, 100),)), chase(), 10),
        (with_link(TWO_TIERS, efficiency=((64, 10**6), (128, 1))), chase(row_bytes=128), 10),
    ],
)
def test_the_bound_holds_what_makes_a_chase_slow(system: System, trace: MemoryTrace, most: float) -> None:
    took_ps, longest_ps = times(trace, system, placed(trace.regions, len(system.tiers) - 1))
    assert took_ps <= longest_ps <= most * took_ps


def test_the_bound_holds_a_slow_cache() -> None:
    system = replace(ONE_TIER, cache=replace(L2, latency_ps=10**12, mbps=(1, 1)))
    access = Access(0, 0, 1, 0, False, 0, ROWS, spread="each", worked=True)
    trace = one_kernel(kernel(blocks=2), flat_region(0, ROWS, 64), access)
    took_ps, longest_ps = times(trace, system, placed(trace.regions))
    assert took_ps <= longest_ps <= 5 * took_ps


def test_the_bound_holds_the_route_of_the_initiator_that_runs_a_kernel() -> None:
    """The first one is beside the tier, the second one is not."""
    gpu = ONE_TIER.initiators[0]
    system = System("two", (gpu, gpu), L2, (HBM,), (PCIE,), (((),), ((Hop(0, False, 10**10),),)))
    trace = chase()
    (near_ps, near_bound_ps), (far_ps, far_bound_ps) = (
        times(trace, system, placed(trace.regions), run_on={"f": home}) for home in (0, 1)
    )
    assert near_ps <= near_bound_ps < far_ps <= far_bound_ps <= 2.1 * far_ps


def test_tiers_without_rows_do_not_count() -> None:
    slow = with_tier(TWO_TIERS, 1, latency_ps=(10**15, 10**15))
    trace = chase()
    bounds_ps = [times(trace, system, placed(trace.regions))[1] for system in (TWO_TIERS, slow)]
    assert bounds_ps[0] == bounds_ps[1]


@pytest.mark.parametrize("links", [1, 3])
def test_the_bound_adds_the_hops_of_a_route(links: int) -> None:
    system = behind(HOST, *[replace(PCIE, latency_ps=10**10)] * links)
    trace = chase()
    took_ps, longest_ps = times(trace, system, placed(trace.regions, 1))
    assert took_ps <= longest_ps <= 2.1 * took_ps


SLOW_TIER = with_tier(ONE_TIER, 0, latency_ps=(10**10, 10**10))


@pytest.mark.parametrize("quantum_bytes", [1, 7, 4096])
def test_the_bound_counts_the_requests_of_a_small_quantum(quantum_bytes: int) -> None:
    """A unit that lends a byte lets one request go at a time."""
    trace = one_kernel(kernel(), flat_region(0, 10, 50), Access(0, 0, 0, 0, False, 0, 10))
    system = with_gpu(SLOW_TIER, unit_outstanding_bytes=1)
    took_ps, longest_ps = times(trace, system, placed(trace.regions), quantum_bytes)
    assert took_ps <= longest_ps <= 5 * took_ps


def test_the_bound_counts_both_arrays_of_parts_of_pages() -> None:
    """32 rows out of 4 pages, one by one: two requests each."""
    trace = one_kernel(kernel(), paged_region(0, 4), Access(0, 0, 0, 0, False, 0, 32, stride=8, worked=True))
    system = with_gpu(SLOW_TIER, unit_outstanding_bytes=1)
    took_ps, longest_ps = times(trace, system, placed(trace.regions))
    assert took_ps == pytest.approx(64 * 10**10, rel=0.01)
    assert took_ps <= longest_ps <= 2.1 * took_ps


def test_the_bound_counts_pages_with_padding_one_by_one() -> None:
    trace = one_kernel(
        kernel(tile_bytes=1 << 20), paged_region(0, 40, 60), Access(0, 0, 0, 0, False, 0, 40 * 64)
    )
    system = with_gpu(SLOW_TIER, unit_outstanding_bytes=1)
    took_ps, longest_ps = times(trace, system, placed(trace.regions), 1 << 20)
    assert took_ps == pytest.approx(40 * 10**10, rel=0.01)
    assert took_ps <= longest_ps <= 5 * took_ps


def test_the_bound_counts_rows_that_are_dealt_to_two_tiers_chunk_by_chunk() -> None:
    """4,096 rows of 1 B, 64 dealt at once: 64 requests, whatever the tile and the interleave are."""
    region = flat_region(0, 4096, 1)
    slow = replace(HBM, latency_ps=(10**10, 10**10))
    system = System("two", SLOW_TIER.initiators, L2, (slow, slow), (), (((), ()),))
    system = with_gpu(system, unit_outstanding_bytes=1)
    memory = build_memory([region], Placement(((Piece(4096, ((0, 1), (1, 1))),),), ()))
    took_ps, longest_ps = times(
        one_kernel(kernel(), region, Access(0, 0, 0, 0, False, 0, 4096)), system, memory
    )
    assert took_ps == pytest.approx(64 * 10**10, rel=0.01)
    assert took_ps <= longest_ps <= 5 * took_ps
