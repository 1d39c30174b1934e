"""What a link costs: hops, packets and headers, two ways on one medium, tags and credits, small transfers.

Two engines that are wrong in the same way agree with each other, so what is expected here are formulas.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HBM,
    L2,
    ONE_TIER,
    TWO_TIERS,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    hundred_rows,
    kernel,
    one_access_ps,
    one_kernel,
    placed,
    replayed,
    run_both,
    same_row_twice,
    transfer_ps,
    with_gpu,
    with_link,
)  # fmt: skip

from memsim.result import Outcome
from memsim.rules import latency_bucket
from memsim.system import Hop, Link, System, Tier
from memsim.trace import Access

FAR_MBPS, FAR_PS = 1_000_000, 100_000
FAR = Tier("far", 10**12, 1, (FAR_MBPS, FAR_MBPS), 1 << 20, 1, (FAR_PS, FAR_PS), FAR_MBPS)
IN_MBPS, OUT_MBPS, WIRE_PS, HEADER = 40_000, 10_000, 500_000, 24
WIRE = Link("wire", (IN_MBPS, OUT_MBPS), (10**6, 10**6), WIRE_PS, 10**6, 10**6, 256, HEADER)
BARE = replace(WIRE, header_bytes=0)
READ_THEN_WRITE = [(0, False), (1, True)]
WRITE_THEN_READ = [(0, True), (1, False)]


def at_once(*rows: tuple[int, bool], row_bytes: int = 4096, **options: Any) -> MemoryTrace:
    """One block asks at once for rows (number, write) of one region."""
    launch = kernel(tiles_in_flight=len(rows), tile_bytes=row_bytes, **options)
    accesses = [Access(0, 0, 0, 0, write, row, 1) for row, write in rows]
    return one_kernel(launch, flat_region(0, 8, row_bytes), *accesses)


def wire_of(outcome: Outcome) -> list[int]:
    """Bytes on the wire of the only link: towards its first node, away from it."""
    (both,) = outcome.wire_bytes.tolist()
    return list(both)


# Packets and hops


@pytest.mark.parametrize(
    ("payload", "request_bytes", "packets"), [(256, 128, 32), (64, 128, 64), (256, 4096, 16)]
)
def test_every_packet_has_a_header_on_both_ways_of_a_read_and_one_way_of_a_write(
    payload: int, request_bytes: int, packets: int
) -> None:
    """4 KiB in packets of the smaller of two sizes; requests for reads and acknowledgements are no data."""
    system = with_gpu(behind(replace(WIRE, payload_bytes=payload)), request_bytes=request_bytes)
    headers, whole = packets * HEADER, 4096 + packets * HEADER
    there_and_back_ps = 2 * WIRE_PS + transfer_ps(4096, FAR_MBPS) + FAR_PS
    read_ps = transfer_ps(headers, OUT_MBPS) + transfer_ps(whole, IN_MBPS)
    assert one_access_ps(system, 1, 4096) == there_and_back_ps + read_ps
    assert one_access_ps(system, 1, 4096, write=True) == there_and_back_ps + transfer_ps(whole, OUT_MBPS)
    assert wire_of(replayed(at_once((0, False)), system, 1)) == [whole, headers]
    assert wire_of(replayed(at_once((0, True)), system, 1)) == [0, whole]


def behind(*links: Link) -> System:
    """The far tier behind some links, the initiator's first."""
    route = tuple(Hop(number, False, link.latency_ps) for number, link in enumerate(links))
    return System("behind", (GPU,), L2, (HBM, FAR), links, (((), route),))


def test_data_counts_without_headers_and_by_direction() -> None:
    outcome = replayed(at_once((0, False), (1, True), (2, True)), behind(WIRE), 1)
    assert outcome.kernel_moved[0, 3].tolist() == [4096, 2 * 4096]


@pytest.mark.parametrize("write", [False, True])
def test_a_link_crossed_from_its_second_node_has_its_directions_exchanged(write: bool) -> None:
    system = behind(replace(WIRE, mbps=(OUT_MBPS, IN_MBPS)))
    turned = replace(system, routes=(((), (Hop(0, True, WIRE_PS),)),))
    assert one_access_ps(turned, 1, 4096, write) == one_access_ps(behind(WIRE), 1, 4096, write)
    trace = at_once((0, write))
    straight, other = (replayed(trace, s, 1) for s in (behind(WIRE), turned))
    assert wire_of(other) == wire_of(straight)[::-1]
    assert (other.kernel_moved[0, 3] == straight.kernel_moved[0, 3][::-1]).all()


@pytest.mark.parametrize("write", [False, True])
def test_a_switch_adds_its_latency_both_ways(write: bool) -> None:
    """The hop takes 200 ns more than the link does."""
    switched = replace(behind(WIRE), routes=(((), (Hop(0, False, WIRE_PS + 200_000),)),))
    more_ps = one_access_ps(switched, 1, 64, write) - one_access_ps(behind(WIRE), 1, 64, write)
    assert more_ps == 2 * 200_000


@pytest.mark.parametrize("write", [False, True])
def test_reads_cross_the_outermost_link_first_and_writes_the_innermost(write: bool) -> None:
    """Of two equal requests the second waits where they first meet a link, and where it is slower."""
    near, far = (replace(BARE, mbps=(mbps, mbps)) for mbps in (10_000, 40_000))
    outcome = replayed(same_row_twice(512, write), behind(near, far), tier=1)
    near_ps, far_ps, tier_ps = (transfer_ps(512, mbps) for mbps in (10_000, 40_000, FAR_MBPS))
    expected = [near_ps, 0] if write else [near_ps - far_ps, far_ps - tier_ps]
    assert outcome.waiting_ps[3:].tolist() == expected


# Two ways


@pytest.mark.parametrize("header", [0, HEADER])
def test_a_read_without_headers_takes_no_room_on_the_way_out(header: int) -> None:
    """Behind a write that keeps the way out busy."""
    outcome = replayed(at_once(*WRITE_THEN_READ), behind(replace(WIRE, header_bytes=header)), 1)
    assert outcome.waiting_ps[3] == (transfer_ps(4096 + 32 * HEADER, OUT_MBPS) if header else 0)


@pytest.mark.parametrize("shared", [False, True])
def test_both_ways_of_a_shared_link_wait_for_each_other(shared: bool) -> None:
    """A write of 409,600 ps goes out while a read comes back after 1,000 + 4,096 + 100,000 ps."""
    hop = Hop(0, False, 500)
    system = replace(behind(replace(BARE, shared=shared)), routes=(((), (hop,)),))
    outcome = replayed(at_once(*WRITE_THEN_READ), system, 1)
    back_ps = 500 + transfer_ps(4096, FAR_MBPS) + FAR_PS
    assert outcome.waiting_ps[3] == (transfer_ps(4096, OUT_MBPS) - back_ps if shared else 0)


@pytest.mark.parametrize("shared", [False, True])
def test_streams_both_ways_add_up_on_a_shared_link_only(shared: bool) -> None:
    """Two blocks stream 4 MB each, one in at 40 GB/s, one out at 10 GB/s."""
    system = with_gpu(behind(replace(BARE, shared=shared)), unit_outstanding_bytes=1 << 20)
    region = flat_region(0, 2000, 4096)
    accesses = [Access(0, block, block, 0, block == 1, 1000 * block, 1000, worked=True) for block in range(2)]
    outcome = replayed(one_kernel(kernel(blocks=2, tiles_in_flight=64), region, *accesses), system, 1)
    in_ps, out_ps = (transfer_ps(1000 * 4096, mbps) for mbps in (IN_MBPS, OUT_MBPS))
    assert elapsed_ps(outcome) == pytest.approx(in_ps + out_ps if shared else out_ps, rel=0.01)
    assert wire_of(outcome) == [1000 * 4096, 1000 * 4096]


# Tags and credits


@pytest.mark.parametrize("write", [False, True])
def test_the_wait_for_tags_or_credits_is_the_request_that_holds_them(write: bool) -> None:
    lent = {"credits" if write else "tags": 1, "tags" if write else "credits": 10**6}
    outcome = replayed(same_row_twice(128, write), behind(replace(WIRE, **lent)), 1)
    assert outcome.tags_waiting_ps.tolist() == [one_access_ps(behind(WIRE), 1, 128, write)]


def test_a_latency_counts_the_wait_for_tags_but_not_for_the_units_bytes() -> None:
    """A request is issued when its unit has lent it its bytes."""
    trace, idle_ps = same_row_twice(128), one_access_ps(behind(WIRE), 1, 128)
    scarce = replayed(trace, behind(replace(WIRE, tags=1)), 1)
    assert np.flatnonzero(scarce.latency[1]).tolist() == [latency_bucket(n * idle_ps) for n in (1, 2)]
    narrow = replayed(trace, with_gpu(behind(WIRE), unit_outstanding_bytes=128), 1)
    assert np.flatnonzero(narrow.latency[1]).tolist() == [latency_bucket(idle_ps)]


@pytest.mark.parametrize(("first", "second"), [READ_THEN_WRITE, WRITE_THEN_READ])
def test_reads_and_writes_take_from_pools_apart(first: tuple[int, bool], second: tuple[int, bool]) -> None:
    system = behind(replace(WIRE, tags=1, credits=1))
    assert replayed(at_once(first, second, row_bytes=128), system, 1).tags_waiting_ps.tolist() == [0]
    twice = replayed(at_once(first, (1, first[1]), row_bytes=128), system, 1)
    assert twice.tags_waiting_ps[0] > 0


@pytest.mark.parametrize("runners", ["one", "two", "across"])
def test_each_initiator_has_tags_of_its_own(runners: str) -> None:
    """Two kernels of one initiator share its tag; two initiators, from one end or from each, do not wait."""
    out, back = Hop(0, False, WIRE_PS), Hop(0, True, WIRE_PS)
    across = runners == "across"
    routes = (((), (out,)), ((back,), ()) if across else ((), (out,)))
    tiers = (replace(FAR, name="first"), FAR)
    prompt = replace(GPU, launch_gap_ps=0, graph_launch_ps=0)
    system = System("two-ended", (prompt, prompt), L2, tiers, (replace(BARE, tags=1),), routes)
    regions = (flat_region(0, 8, 128), flat_region(1, 8, 128))
    launches = [(kernel(i, stream=i), columns([Access(i, 0, 0, i, False, 0, 1)])) for i in range(2)]
    memory = placed(regions)
    memory.shares[:, 0] = (1, 0) if across else (1, 1)
    one_ps = 2 * WIRE_PS + FAR_PS + transfer_ps(128, FAR_MBPS) + transfer_ps(128, IN_MBPS)
    run_on = {} if runners == "one" else {"k1": 1}
    outcome = run_both(MemoryTrace(regions, launches), system, memory, run_on=run_on)
    assert outcome.tags_waiting_ps.tolist() == [one_ps if runners == "one" else 0]


@pytest.mark.parametrize("write", [False, True])
def test_an_initiator_may_have_fewer_tags_than_its_link(write: bool) -> None:
    """One packet at a time, though the link has room for all; more than the link has are none."""
    link = with_gpu(with_link(TWO_TIERS, tags=1000, credits=1000), request_bytes=64)
    few, many = (with_gpu(link, tags=n, credits=n) for n in (1, 5000))
    took = [elapsed_ps(replayed(hundred_rows(64, write), each, tier=1)) for each in (few, many, link)]
    assert took[0] == pytest.approx(100 * one_access_ps(TWO_TIERS, 1, 64, write), rel=0.02)
    assert took[1] == took[2] < took[0] / 2


@pytest.mark.parametrize(("tags", "together"), [(2, 1), (4, 2)])
@pytest.mark.parametrize("write", [False, True])
def test_tags_and_credits_are_taken_for_rounded_bytes(tags: int, together: int, write: bool) -> None:
    """Rows of 32 B move 64 B: two packets of 32 B each."""
    system = with_gpu(with_link(TWO_TIERS, tags=tags, credits=tags), request_bytes=32)
    took = elapsed_ps(replayed(hundred_rows(32, write), system, tier=1))
    assert took == pytest.approx(100 / together * one_access_ps(TWO_TIERS, 1, 32, write), rel=0.02)


def one_row(row_bytes: int) -> MemoryTrace:
    """A read of one row."""
    return one_kernel(kernel(), flat_region(0, 8, row_bytes), Access(0, 0, 0, 0, False, 0, 1))


@pytest.mark.parametrize(("tags", "requests"), [(3, 32), (15, 32), (16, 16), (64, 4), (256, 1)])
def test_a_request_takes_an_eighth_of_the_tags_at_most(tags: int, requests: int) -> None:
    """4 KiB are 32 packets."""
    outcome = replayed(one_row(4096), behind(replace(WIRE, tags=tags)), 1)
    assert outcome.requests.tolist() == [requests]


@pytest.mark.parametrize("tags", [1, 5, 40])
def test_few_tags_bind_as_littles_law_says(tags: int) -> None:
    """Packets one after another, as many at once as there are tags, whatever the quantum is."""
    took_ps = elapsed_ps(replayed(one_row(1 << 16), behind(replace(WIRE, tags=tags)), 1))
    turn_ps = one_access_ps(behind(WIRE), 1, 128)
    assert took_ps == pytest.approx(512 / tags * turn_ps, rel=0.15)


def test_tags_are_taken_from_the_initiator_outward() -> None:
    """One tag on each link: the second request waits for the inner one, and then finds the outer one free."""
    system = behind(replace(WIRE, tags=1), replace(WIRE, tags=1))
    outcome = replayed(same_row_twice(128), system, tier=1)
    assert outcome.tags_waiting_ps.tolist() == [one_access_ps(system, 1, 128), 0]


def test_a_tag_is_taken_and_given_back_at_the_near_end_of_its_link() -> None:
    """One tag on the outer link: both requests come there together; the second waits until the first is back
    there, not until it is complete."""
    system = behind(BARE, replace(BARE, tags=1))
    outcome = replayed(same_row_twice(128), system, tier=1)
    loop_ps = 2 * WIRE_PS + transfer_ps(128, FAR_MBPS) + FAR_PS + transfer_ps(128, IN_MBPS)
    assert outcome.tags_waiting_ps.tolist() == [0, loop_ps]
    assert elapsed_ps(outcome) == one_access_ps(system, 1, 128) + loop_ps


def test_a_block_goes_on_while_its_request_waits_for_a_tag() -> None:
    """One tag: the second far row waits for the first, the near row asked for after it does not."""
    trace = far_and_near((1, 1, 0))
    outcome = run_both(trace, behind(replace(WIRE, tags=1)), spread_over(trace))
    assert np.flatnonzero(outcome.latency[0]).tolist() == [latency_bucket(one_access_ps(ONE_TIER, 0, 128))]


def far_and_near(regions: tuple[int, ...]) -> MemoryTrace:
    """One block asks at once for rows of some regions."""
    launch = kernel(tiles_in_flight=len(regions), tile_bytes=128)
    accesses = [Access(0, 0, 0, region, False, row, 1) for row, region in enumerate(regions)]
    whole = tuple(flat_region(i, 8, 128) for i in range(max(regions) + 1))
    return MemoryTrace(whole, [(launch, columns(accesses))])


def spread_over(trace: MemoryTrace) -> Any:
    """Every region in the tier of its number."""
    memory = placed(trace.regions)
    memory.shares[:, 0] = range(len(trace.regions))
    return memory


def test_a_request_that_waits_keeps_the_tags_that_it_has() -> None:
    """Two tags on the inner link, one on the outer: the second far row waits for the outer one and holds an
    inner one, so the third row, in a tier between the links, waits until the first row is complete."""
    near, outer = replace(BARE, tags=2), replace(BARE, tags=1)
    out, on = Hop(0, False, WIRE_PS), Hop(1, False, WIRE_PS)
    tiers = (HBM, replace(FAR, name="middle"), FAR)
    system = System("three", (GPU,), L2, tiers, (near, outer), (((), (out,), (out, on)),))
    trace = far_and_near((2, 2, 1))
    outcome = run_both(trace, system, spread_over(trace))
    assert outcome.tags_waiting_ps[0] == one_access_ps(system, 2, 128)


# Links that are quick in large transfers only

POINTS = ((65_536, 240_000), (131_072, 480_000))


@pytest.mark.parametrize(
    ("row_bytes", "share"), [(65_536, 0.24), (98_304, 0.36), (131_072, 0.48), (1 << 20, 0.48)]
)
def test_a_transfer_reaches_its_share_of_the_rate(row_bytes: int, share: float) -> None:
    """Whatever the quantum is: the share is that of the whole span. Headers are stretched like data."""
    system = behind(replace(WIRE, mbps=(IN_MBPS, 10**6), efficiency=POINTS))
    roomy = with_gpu(system, unit_outstanding_bytes=1 << 21)
    wire_bytes = row_bytes + row_bytes // 128 * HEADER
    least_ps = 2 * WIRE_PS + FAR_PS + transfer_ps(wire_bytes, IN_MBPS) / share
    trace = one_kernel(kernel(), flat_region(0, 1, row_bytes), Access(0, 0, 0, 0, False, 0, 1))
    for quantum_bytes in (4096, 16_384):
        outcome = run_both(trace, roomy, placed(trace.regions, 1), quantum_bytes)
        assert wire_of(outcome)[0] == pytest.approx(wire_bytes / share, rel=1e-3)
        assert least_ps < elapsed_ps(outcome) < 1.01 * least_ps


@pytest.mark.parametrize("row_bytes", [64, 1024, 32_768, 65_536])
def test_smaller_transfers_than_any_measured_take_as_long_as_the_smallest_measured(row_bytes: int) -> None:
    """They book the wire for 65,536 B / 0.24, in 16 requests or fewer."""
    trace = one_kernel(kernel(), flat_region(0, 1, row_bytes), Access(0, 0, 0, 0, False, 0, 1))
    outcome = replayed(trace, behind(replace(BARE, efficiency=POINTS)), 1)
    assert wire_of(outcome)[0] == pytest.approx(65_536 / 0.24, rel=0.005)


def test_a_stretched_transfer_takes_the_time_of_its_stretched_bytes() -> None:
    """1,024 B reach 240,000 x 1,024 / 65,536 = 3,750 millionths; 8 headers of 24 B go out and come back."""
    system = behind(replace(WIRE, efficiency=POINTS))
    out_bytes, in_bytes = (-(-wire * 1_000_000 // 3_750) for wire in (8 * HEADER, 1024 + 8 * HEADER))
    wire_ps = transfer_ps(out_bytes, OUT_MBPS) + transfer_ps(in_bytes, IN_MBPS)
    expected = wire_ps + 2 * WIRE_PS + transfer_ps(1024, FAR_MBPS) + FAR_PS
    assert one_access_ps(system, 1, 1024) == expected
