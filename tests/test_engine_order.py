"""What happens first inside an instant: of two bookings at one picosecond the table of docs/model.md decides.

Two engines that are wrong in the same way agree with each other, so what is expected here are formulas.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_cases import (
    GPU,
    L2,
    MemoryTrace,
    columns,
    flat_region,
    kernel,
    one_access_ps,
    placed,
    run_both,
    transfer_ps,
)  # fmt: skip

from memsim.system import Hop, Link, System, Tier
from memsim.trace import Access

MBPS, TIER_PS, WIRE_PS, ROW = 10_000, 100_000, 200_000, 128
TIER = Tier("far", 10**12, 1, (10**6, 10**6), 4096, 1, (TIER_PS, TIER_PS), 10**6)
SLOW_TIER = replace(TIER, channel_mbps=(1000, 1000))
WIRE = Link("wire", (MBPS, MBPS), (MBPS, MBPS), WIRE_PS, 10**6, 10**6, 256, 0)
PROMPT = replace(GPU, launch_gap_ps=0, graph_launch_ps=0)
OVER = (Hop(0, False, WIRE_PS),)
SERVICE_PS = transfer_ps(ROW, MBPS)  # of a row on the wire


def one_far(tier: Tier = TIER, link: Link = WIRE, **changes: int) -> System:
    """Two equal initiators, and a tier behind one link."""
    gpu = replace(PROMPT, **changes)
    return System("far", (gpu, gpu), L2, (tier,), (link,), ((OVER,), (OVER,)))


def ends_ps(
    system: System, rows: list[int], startups_ps: list[int], writes: str = "", **run_on: int
) -> list[int]:
    """When kernels end that start at once: each one block on a stream of its own, which asks for some rows at
    once after its start-up; `writes` names those that write."""
    launches = [
        (
            kernel(i, stream=i, tiles_in_flight=9, tile_bytes=ROW, startup_ps=startup_ps, blocks_per_unit=9),
            columns([Access(i, 0, 0, 0, f"k{i}" in writes, 8 * i, asked)]),
        )
        for i, (asked, startup_ps) in enumerate(zip(rows, startups_ps, strict=True))
    ]
    trace = MemoryTrace((flat_region(0, 64, ROW),), launches)
    return [int(end) for end in run_both(trace, system, placed(trace.regions), run_on=run_on).end_ps]


@pytest.mark.parametrize("beside", [0, 1])
def test_of_two_that_arrive_together_the_earlier_kernel_is_served_first(beside: int) -> None:
    """One initiator is a hop from the tier; the kernel on the one beside the tier starts up a hop later."""
    system = replace(one_far(SLOW_TIER), routes=((OVER,), ((),)))
    startups_ps = [WIRE_PS * (i == beside) for i in range(2)]
    served_ps = [WIRE_PS + (i + 1) * transfer_ps(ROW, 1000) + TIER_PS for i in range(2)]
    served_ps[1 - beside] += SERVICE_PS + WIRE_PS
    assert ends_ps(system, [1, 1], startups_ps, **{f"k{beside}": 1}) == served_ps


def test_all_requests_of_a_block_go_before_those_of_a_later_one() -> None:
    """Three rows are at the tier together, two of kernel 0 and one of kernel 1."""
    served_ps = [WIRE_PS + n * transfer_ps(ROW, 1000) + TIER_PS for n in (2, 3)]
    home_ps = SERVICE_PS + WIRE_PS
    assert ends_ps(one_far(SLOW_TIER), [2, 1], [0, 0]) == [served + home_ps for served in served_ps]


def test_a_request_that_is_granted_goes_on_after_all_returns_in_its_turn() -> None:
    """One credit, two writes of kernel 1. At the end of the first, the second one is granted the credit, and
    kernel 0 reads: its headers are on the wire first, and the second write waits for them."""
    link = replace(WIRE, credits=1, header_bytes=50)
    system = one_far(link=link)
    one_ps, header_ps = one_access_of(system, write=True), transfer_ps(50, MBPS)
    assert ends_ps(system, [1, 2], [one_ps, 0], "k1")[1] == 2 * one_ps + header_ps


def one_access_of(system: System, write: bool = False) -> int:
    """Time of an access to one row on an idle machine."""
    return one_access_ps(system, 0, ROW, write)


def test_a_request_that_comes_back_goes_on_in_its_turn() -> None:
    """On a shared link a read of kernel 1 comes back when kernel 0 writes: the write goes first."""
    system = one_far(replace(TIER, queue_depth=4), replace(WIRE, shared=True))
    back_ps = WIRE_PS + transfer_ps(ROW, 10**6) + TIER_PS
    write_ps, read_ps = one_access_of(system, write=True), one_access_of(system)
    assert ends_ps(system, [1, 1], [back_ps, 0], "k0") == [back_ps + write_ps, read_ps + SERVICE_PS]


@pytest.mark.parametrize(
    ("route", "tier", "service_ps"), [(OVER, TIER, SERVICE_PS), ((), SLOW_TIER, 128_000)]
)
def test_returns_come_before_all_that_is_issued(route: tuple[Hop, ...], tier: Tier, service_ps: int) -> None:
    """Kernels 0 and 2 share a unit that lends the bytes of one row. When kernel 2's write is complete, kernel
    0 is lent them, and kernel 1, on the other initiator, writes too: kernel 0 goes first."""
    gpu = replace(PROMPT, units=1, unit_outstanding_bytes=ROW)
    system = replace(one_far(tier), initiators=(gpu,) * 3, routes=((route,),) * 3)  # the first has a cache
    one_ps = one_access_ps(system, 0, ROW, True, run_on={"f": 1})
    ends = ends_ps(system, [1, 1, 1], [1, one_ps, 0], "k0 k1 k2", k0=1, k1=2, k2=1)
    assert ends == [2 * one_ps, 2 * one_ps + service_ps, one_ps]


@pytest.mark.parametrize("route", [OVER, ()])
def test_a_place_in_a_tiers_queue_is_given_back_before_others_arrive(route: tuple[Hop, ...]) -> None:
    """One place. Kernel 1 has it, and kernel 2 waits for it, when kernel 0 arrives as kernel 1 is served: the
    place is kernel 2's."""
    tier = replace(SLOW_TIER, queue_depth=1)
    system = replace(one_far(tier), routes=((route,), (route,)))
    visit_ps, there_ps = transfer_ps(ROW, 1000) + TIER_PS, WIRE_PS if route else 0
    home_ps = SERVICE_PS + WIRE_PS if route else 0
    ends = ends_ps(system, [1, 1, 1], [visit_ps, 0, 0])
    assert ends == [there_ps + n * visit_ps + home_ps for n in (3, 1, 2)]
