"""Closed forms of whole routes over links: latencies, shares of streams, lines at tags and at queues.

Two engines that are wrong in the same way agree with each other, so what is expected here are formulas.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_cases import (
    GPU,
    HOST,
    L2,
    PCIE,
    MemoryTrace,
    behind,
    columns,
    elapsed_ps,
    flat_region,
    gathered,
    kernel,
    one_access_ps,
    one_kernel,
    replayed,
    transfer_ps,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim.system import Hop, Link, System, Tier
from memsim.trace import Access

PROMPT = replace(GPU, launch_gap_ps=0, graph_launch_ps=0)
WIDE = replace(HOST, channels=1, channel_mbps=(10**6, 10**6))
WIRE = replace(PCIE, mbps=(10_000, 10_000), header_bytes=24)  # packets of 128 B: the GPU asks for no more
FAR = replace(PCIE, name="far", mbps=(7_001, 40_000), latency_ps=99_000, payload_bytes=64, header_bytes=7)


def on_wire(nbytes: int, packet_bytes: int = 128, header_bytes: int = 24) -> int:
    """Data and headers of its packets."""
    return nbytes + -(-nbytes // packet_bytes) * header_bytes


def prompt(tier: Tier, *links: Link, **changes: object) -> System:
    """A tier behind some links, and launches that take no time."""
    return with_gpu(behind(tier, *links), launch_gap_ps=0, graph_launch_ps=0, **changes)


def at_tier_ps(nbytes: int) -> int:
    """Time of a request at WIDE."""
    return transfer_ps(nbytes, 10**6) + WIDE.latency_ps[0]


def together(rows: int, row_bytes: int, write: bool = False) -> MemoryTrace:
    """Requests for some rows, one each, issued at once by one block."""
    launch = kernel(tiles_in_flight=rows, tile_bytes=row_bytes)
    return one_kernel(launch, flat_region(0, rows, row_bytes), gathered(list(range(rows)), write=write))


def streams(*writes: bool) -> MemoryTrace:
    """Kernels on streams of their own, each with 1000 rows of 4 KiB of a region of its own, many at once."""
    regions = tuple(flat_region(i, 1000, 4096) for i in range(len(writes)))
    launches = [
        (
            kernel(i, stream=i, family=f"f{i}", blocks=4, blocks_per_unit=2, tiles_in_flight=8),
            columns([Access(i, 0, 3, i, write, 0, 1000, spread="even", worked=True)]),
        )
        for i, write in enumerate(writes)
    ]
    return MemoryTrace(regions, launches)


def flipped(system: System) -> System:
    """The same machine with every link declared the other way round."""
    links = tuple(replace(link, mbps=link.mbps[::-1]) for link in system.links)
    routes = tuple(
        tuple(tuple(replace(hop, flipped=not hop.flipped) for hop in route) for route in by_tier)
        for by_tier in system.routes
    )
    return replace(system, links=links, routes=routes)


# One access on an idle machine


@pytest.mark.parametrize("turn", [lambda system: system, flipped])
@pytest.mark.parametrize("write", [False, True])
def test_an_idle_access_takes_the_sum_of_its_hops_whichever_way_links_are_declared(turn, write) -> None:
    """A read's headers go out and come back with its data; a write's go out with it, and that is all."""
    system = turn(behind(WIDE, WIRE, FAR))
    took = one_access_ps(system, 1, 512, write)
    expected = at_tier_ps(512) + 2 * (WIRE.latency_ps + FAR.latency_ps)
    if write:
        expected += transfer_ps(on_wire(512), 10_000) + transfer_ps(on_wire(512, 64, 7), 40_000)
    else:
        expected += transfer_ps(4 * 24, 10_000) + transfer_ps(8 * 7, 40_000)
        expected += transfer_ps(on_wire(512), 10_000) + transfer_ps(on_wire(512, 64, 7), 7_001)
    assert took == expected


# Bandwidth


@pytest.mark.parametrize("write", [False, True])
def test_a_stream_reaches_the_rate_of_the_wire_less_its_headers(write: bool) -> None:
    system = prompt(WIDE, replace(WIRE, mbps=(9_000, 11_000)))
    took = elapsed_ps(replayed(streams(write), system, tier=1))
    assert took == pytest.approx(transfer_ps(1000 * on_wire(4096), 11_000 if write else 9_000), rel=0.005)


def test_a_shared_medium_begins_a_busy_period_at_each_change_of_rate() -> None:
    """A write of 512 B goes out while the data of a read is on its way back, and waits for its end."""
    link = replace(PCIE, mbps=(7_001, 3_001), shared=True, latency_ps=1000)
    regions = (flat_region(0, 8, 512),)
    read_back_ps = 2 * link.latency_ps + at_tier_ps(512)  # when its data is on the medium, but for that
    accesses = [Access(0, 0, 0, 0, False, 0, 1), Access(1, 0, 0, 0, True, 0, 1)]
    launches = [
        (kernel(0), columns(accesses[:1])),
        (kernel(1, stream=1, startup_ps=read_back_ps), columns(accesses[1:])),
    ]
    outcome = replayed(MemoryTrace(regions, launches), prompt(WIDE, link), tier=1)
    busy_ps = transfer_ps(512, 7_001) + transfer_ps(512, 3_001)
    begin_ps = read_back_ps - link.latency_ps
    assert elapsed_ps(outcome, 1) == begin_ps + busy_ps + 2 * link.latency_ps + at_tier_ps(512)


def two_gpus(common: Link) -> System:
    """Two equal initiators, each on a link of its own to a node, and a tier one more link behind it."""
    gpus = tuple(replace(PROMPT, name=f"gpu{i}") for i in range(2))
    own = [replace(PCIE, name=f"own{i}") for i in range(2)]
    ways = [(Hop(i, False, PCIE.latency_ps), Hop(2, False, common.latency_ps)) for i in range(2)]
    routes = tuple((way,) for way in ways)
    return System("two-gpus", gpus, L2, (replace(WIDE, name="pool"),), (*own, common), routes)


@pytest.mark.parametrize("writes", [(False, False), (True, True), (False, True)])
def test_two_equal_streams_get_equal_shares(writes: tuple[bool, bool]) -> None:
    """Of two initiators: of one direction half each, and all of it where they use one each."""
    system = two_gpus(replace(WIRE, header_bytes=0))
    outcome = replayed(streams(*writes), system, tier=0, run_on={"f1": 1})
    rounds = 2 if writes[0] == writes[1] else 1
    expected = rounds * transfer_ps(1000 * 4096, 10_000)
    for number in range(2):
        assert elapsed_ps(outcome, number) == pytest.approx(expected, rel=0.01)
    assert outcome.initiator.tolist() == [0, 1]


def test_requests_of_reads_take_room_from_writes() -> None:
    """Their headers go out with the data of the writes: 32 packets each."""
    outcome = replayed(streams(False, True), two_gpus(WIRE), tier=0, run_on={"f1": 1})
    expected = transfer_ps(1000 * (on_wire(4096) + 32 * 24), 10_000)
    assert elapsed_ps(outcome, 1) == pytest.approx(expected, rel=0.01)


def test_two_streams_of_one_initiator_get_equal_shares() -> None:
    outcome = replayed(streams(False, False), prompt(WIDE, WIRE), tier=1)
    expected = pytest.approx(2 * transfer_ps(1000 * on_wire(4096), 10_000), rel=0.01)
    assert [elapsed_ps(outcome, number) for number in range(2)] == [expected, expected]


# Tags and credits


def test_a_demand_larger_than_the_pool_is_cut_to_it_and_headers_are_not() -> None:
    """Requests of a packet, rounded out to a tier's transactions of two; the link has one tag."""
    paired = with_tier(prompt(WIDE, replace(WIRE, tags=1)), 1, unit_bytes=256)
    outcome = replayed(together(2, 128), paired, tier=1)
    assert outcome.wire_bytes.tolist() == [[2 * on_wire(256), 2 * 2 * 24]]
    free = replayed(together(2, 128), with_tier(prompt(WIDE, WIRE), 1, unit_bytes=256), tier=1)
    assert free.tags_waiting_ps.tolist() == [0]
    assert outcome.tags_waiting_ps.tolist() == [
        one_access_ps(with_tier(behind(WIDE, WIRE), 1, unit_bytes=256), 1, 128)
    ]


def test_a_request_keeps_the_near_tags_while_it_waits_for_far_ones() -> None:
    """Room for two requests on the near link and for one on the far one: the second waits there until the
    first is back at its near end, and the third at the near link until the first is complete."""
    near, far = replace(PCIE, tags=2), replace(PCIE, name="far", tags=1, latency_ps=99_000)
    outcome = replayed(together(3, 128), prompt(WIDE, near, far), tier=1)
    data_ps = transfer_ps(128, PCIE.mbps[0])
    far_ps = 2 * far.latency_ps + at_tier_ps(128) + data_ps
    near_ps = 2 * near.latency_ps + data_ps
    assert outcome.tags_waiting_ps.tolist() == [far_ps + near_ps, far_ps]
    assert elapsed_ps(outcome) == 2 * (far_ps + near_ps)


# A queue at the far end


@pytest.mark.parametrize(("depth", "row_bytes"), [(1, 256), (2, 512), (1, 512)])
def test_a_queue_of_one_request_is_bound_by_latency(depth: int, row_bytes: int) -> None:
    """Pieces of 256 B on one channel; a request of two takes both places, or the only one there is."""
    system = with_tier(prompt(HOST, PCIE), 1, channels=1, queue_depth=depth)
    outcome = replayed(together(4, row_bytes), system, tier=1)
    at_host_ps = transfer_ps(row_bytes, HOST.channel_mbps[0]) + HOST.latency_ps[0]
    pieces_ps = (row_bytes // 256 - 1) * transfer_ps(256, HOST.channel_mbps[0])  # the second piece waits
    assert outcome.waiting_ps[1] == (1 + 2 + 3) * at_host_ps + 4 * pieces_ps
    back_ps = transfer_ps(row_bytes, PCIE.mbps[0]) + PCIE.latency_ps
    assert elapsed_ps(outcome) == PCIE.latency_ps + 4 * at_host_ps + back_ps
