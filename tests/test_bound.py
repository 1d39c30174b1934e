"""Kernels built to be bound by one resource are found to be bound by it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HOST,
    ONE_TIER,
    PCIE,
    TWO_TIERS,
    FixedPlan,
    MemoryTrace,
    columns,
    flat_region,
    kernel,
    one_access_ps,
    one_kernel,
    placed,
    uncached,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim import bound
from memsim.bound import Bound, find_bounds, segments_of
from memsim.options import ReplayOptions
from memsim.system import System, Walk
from memsim.trace import Access

ROOMY = with_gpu(TWO_TIERS, unit_outstanding_bytes=1 << 20)


def bound_of(trace: MemoryTrace, system: System = ROOMY, tier: int = 0, **options: Any) -> Bound:
    memory = placed(trace.regions, tier)
    options = {"quantum_bytes": 4096} | options
    told = ReplayOptions(**options)
    return find_bounds(segments_of(trace, told), system, memory, told, {"f": 0})["f"]


def scan(rows: int, **changes: object) -> MemoryTrace:
    fields = {"blocks": 4, "tile_rows": 16, "tiles_in_flight": 8}
    region = flat_region(0, rows, 1024)
    access = Access(0, 0, 3, 0, False, 0, rows, spread="even", grain=16, worked=True)
    return one_kernel(kernel(**(fields | changes)), region, access)


def chase(**changes: object) -> MemoryTrace:
    region = flat_region(0, 500, 64)
    order = np.random.default_rng(0).permutation(500)
    return one_kernel(kernel(**changes), region, Access(0, 0, 0, 0, False, 0, 500, gather=order, worked=True))


@pytest.mark.parametrize(
    ("trace", "tier", "expected"),
    [
        (scan(40_000), 0, "hbm bandwidth"),
        (scan(4_000), 1, "pcie bandwidth"),
        (scan(64), 0, "launch"),
        (scan(4_000, flops_per_tile=10**9, flops_unit="bf16", retire="in_order"), 0, "arithmetic"),
        (scan(4_000, tile_ps=10**7), 0, "tile overhead"),
        (scan(64, startup_ps=10**9), 0, "block start-up"),
        (scan(64, blocks=4, startup_ps=10, drain_ps=10**9), 0, "block start-up"),
        (chase(tiles_in_flight=1, partial_serial=True, partial_region=0), 0, "serial chain"),
        (chase(tiles_in_flight=2, partial_serial=True, partial_region=1), 0, "bytes in flight"),
        (chase(tiles_in_flight=2), 0, "bytes in flight"),
    ],
)
def test_the_bound_is_named(trace: MemoryTrace, tier: int, expected: str) -> None:
    bound = bound_of(trace, tier=tier)
    assert bound.resource == expected
    assert 0.2 < bound.share < 1


@pytest.mark.parametrize(("flops", "resource"), [(30_000, "hbm bandwidth"), (3_000_000, "arithmetic")])
def test_power_is_the_memorys_or_the_arithmetics(flops: int, resource: str) -> None:
    """Ten times a memory's rate, or ten times the arithmetic's, takes a tenth of the power for as much."""
    gpu = dataclasses.replace(ROOMY.initiators[0], power_mbps=ROOMY.initiators[0].bf16_mflops // 6)
    system = dataclasses.replace(ROOMY, initiators=(gpu, *ROOMY.initiators[1:]))
    bound = bound_of(scan(4_000, flops_per_tile=flops, flops_unit="bf16"), system)
    assert bound.resource == resource


def test_whole_waves_are_bound_by_units() -> None:
    region = flat_region(0, 400, 1024)
    accesses = [Access(0, b, b, 0, False, b, 1) for b in range(400)]
    fields = {"tile_bytes": 1024, "flops_per_tile": 0, "startup_ps": 3_000_000}
    few = one_kernel(kernel(blocks=400, **fields), region, *accesses)
    bound = bound_of(few)
    assert bound.resource in ("units", "block start-up")
    assert bound.share > 0.8


def test_tags_bind_where_a_link_has_few() -> None:
    system = dataclasses.replace(ROOMY, links=(dataclasses.replace(TWO_TIERS.links[0], tags=64),))
    bound = bound_of(scan(400), system, tier=1)
    assert bound.shares["pcie tags"] > 0.7
    assert bound.shares["latency"] > 0.7  # by Little's law it is the same


def test_credits_bind_writes_where_a_link_has_few_and_tags_do_not() -> None:
    region = flat_region(0, 400, 1024)
    access = Access(0, 0, 3, 0, True, 0, 400, spread="even", grain=16, worked=True)
    trace = one_kernel(kernel(blocks=4, tile_rows=16, tiles_in_flight=8), region, access)
    link = TWO_TIERS.links[0]
    for few, resource in (({"credits": 32}, "pcie tags"), ({"tags": 1}, "pcie bandwidth")):
        system = dataclasses.replace(ROOMY, links=(dataclasses.replace(link, **few),))
        assert bound_of(trace, system, tier=1).resource == resource


@pytest.mark.parametrize(
    ("changes", "resource"),
    [
        ({"queue_depth": 1}, "host queue depth"),
        ({"occupancy_ps": (1_000_000, 0)}, "host operations"),
        ({"channel_mbps": (100, 100)}, "host bandwidth"),
    ],
)
def test_what_a_storage_tier_has_least_of_binds(changes: dict[str, Any], resource: str) -> None:
    region = flat_region(0, 2000, 64)
    order = np.random.default_rng(0).permutation(2000)
    access = Access(0, 0, 0, 0, False, 0, 2000, gather=order, worked=True)
    trace = one_kernel(kernel(tiles_in_flight=64), region, access)
    system = with_tier(ROOMY, 1, queue_depth=1000, occupancy_ps=(1, 1))
    shares = bound_of(trace, with_tier(system, 1, **changes), tier=1).shares
    of_the_tier = {name: share for name, share in shares.items() if name.startswith("host ")}
    assert of_the_tier.pop(resource) > 0.6
    assert max(of_the_tier.values()) < 0.1


def test_resources_that_a_tier_does_not_have_are_not_asked_for() -> None:
    names = set(bound_of(scan(64)).shares)
    assert names >= {"hbm bandwidth", "host bandwidth", "pcie bandwidth", "pcie tags", "latency", "units"}
    assert not names & {"hbm operations", "hbm queue depth"}
    both = with_tier(ROOMY, 0, queue_depth=8, occupancy_ps=(0, 5))
    assert set(bound_of(scan(64), both).shares) - names == {"hbm operations", "hbm queue depth"}


def test_places_that_no_request_comes_to_save_nothing_and_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replayed: list[System] = []
    once = bound.replay_segment
    monkeypatch.setattr(bound, "replay_segment", lambda *a: replayed.append(a[3]) or once(*a))
    shares = bound_of(scan(64)).shares
    assert [shares[f"{name}"] for name in ("host bandwidth", "pcie bandwidth", "pcie tags")] == [0, 0, 0]
    assert all(system.links == ROOMY.links and system.tiers[1] == ROOMY.tiers[1] for system in replayed[:-6])
    assert len(replayed) == 1 + len(shares) - 4  # nor fixed times of tiles, which it has none of


def test_what_a_slow_request_takes_more_is_latency() -> None:
    tailed = with_tier(ROOMY, 0, tail=((100_000, 10**9),))
    assert bound_of(chase(tiles_in_flight=1), tailed, seed=1).shares["latency"] > 0.8


def test_a_kernel_is_bound_by_what_binds_it_where_it_runs() -> None:
    """A scan of the far memory: over the link from the GPU; beside the memory by that, or by set-up."""
    near = dataclasses.replace(GPU, name="near-memory", unit_outstanding_bytes=1 << 20)
    hop = dataclasses.replace(ROOMY.routes[0][1][0], flipped=True)
    routes = (*ROOMY.routes, ((hop,), ()))
    system = dataclasses.replace(ROOMY, initiators=(*ROOMY.initiators, near), routes=routes)
    assert bound_of(scan(4_000), system, tier=1).resource == "pcie bandwidth"
    assert bound_of(scan(4_000), system, tier=1, run_on={"f": 1}).resource == "host bandwidth"
    slow = dataclasses.replace(near, setup_ps=10**9)
    system = dataclasses.replace(system, initiators=(*ROOMY.initiators, slow))
    assert bound_of(scan(4_000), system, tier=1, run_on={"k0": 1}).resource == "block start-up"


def test_a_serial_chain_behind_a_link_saves_nine_tenths_of_every_hop() -> None:
    """500 rows one after another: latency there and back over the link is most of each."""
    trace = chase(tiles_in_flight=1, partial_serial=True, partial_region=0)
    bound = bound_of(trace, TWO_TIERS, tier=1)
    hops_ps = HOST.latency_ps[0] + 2 * PCIE.latency_ps
    launch_ps = GPU.launch_gap_ps  # the step's graph launch is no part of a kernel's time
    assert bound.resource == "serial chain"
    expected = 0.9 * 500 * hops_ps / (500 * one_access_ps(TWO_TIERS, 1, 64) + launch_ps)
    assert bound.share == pytest.approx(expected, rel=0.01)


def test_a_slow_cache_binds_blocks_that_share_their_rows() -> None:
    slow = dataclasses.replace(ROOMY, cache=dataclasses.replace(ROOMY.cache, mbps=(1000, 1000)))
    region = flat_region(0, 4000, 1024)
    access = Access(0, 0, 3, 0, False, 0, 4000, spread="each", worked=True)
    launch = kernel(blocks=4, tile_rows=16, tiles_in_flight=8)
    assert bound_of(one_kernel(launch, region, access), slow).resource == "l2 bandwidth"


def written(rows: int) -> MemoryTrace:
    """A scan whose tiles are read, then written."""
    region = flat_region(0, rows, 1024)
    read, write = (
        Access(0, 0, 3, 0, write, 0, rows, spread="even", grain=16, worked=not write)
        for write in (False, True)
    )
    return one_kernel(kernel(blocks=4, tile_rows=16, tiles_in_flight=8), region, read, write)


def stored(rows: int) -> MemoryTrace:
    access = Access(0, 0, 3, 0, True, 0, rows, spread="even", grain=16)
    return one_kernel(kernel(blocks=4, tiles_in_flight=8), flat_region(0, rows, 1024), access)


def with_cache(system: System, **changes: Any) -> System:
    return dataclasses.replace(system, cache=dataclasses.replace(system.cache, **changes))


WALKER = Walk(1 << 20, 4096, 1_000, 1_000_000)
EVERY = 1_000_000


@pytest.mark.parametrize(
    ("trace", "system", "tier", "shares", "expected"),
    [
        (written(4000), with_cache(ROOMY, mbps=(10**7, 1000)), 0, {}, "l2 write bandwidth"),
        (written(4000), with_tier(ROOMY, 0, turnaround_ps=400_000), 0, {"dirty": EVERY}, "hbm turnaround"),
        (scan(4000), with_gpu(ROOMY, port_mbps=(500, 500)), 0, {}, "unit ports"),
        (scan(400), with_tier(ROOMY, 1, translation=(WALKER,)), 1, {"walk": EVERY}, "host translation"),
        (
            stored(20), with_tier(ROOMY, 0, channel_mbps=(10**6, 10), write_buffer_bytes=2048), 0,
            {"dirty": EVERY}, "hbm write buffer",
        ),
    ],
)  # fmt: skip
def test_the_bound_of_what_writes_and_translates_is_named(
    trace: MemoryTrace, system: System, tier: int, shares: dict[str, int], expected: str
) -> None:
    memory, options = placed(trace.regions, tier), ReplayOptions(4096)
    found = find_bounds(segments_of(trace, options), system, memory, options, {"f": 0}, FixedPlan(**shares))[
        "f"
    ]
    assert found.resource == expected
    assert found.share > 0.2


def test_kernels_before_the_longest_go_through_the_plan_once_in_order() -> None:
    seen = []

    class Noting(FixedPlan):
        def shares(self, launch: Any, accesses: Any, home: int) -> np.ndarray:
            seen.append((launch.id, home))
            return super().shares(launch, accesses, home)

    launches = [(kernel(i), columns([Access(i, 0, 0, 0, False, 0, 1)])) for i in range(4)]
    trace = MemoryTrace((flat_region(0, 8, 64),), launches)
    options = ReplayOptions(run_on={"k1": 1})
    find_bounds(
        segments_of(trace, options), uncached(ONE_TIER), placed(trace.regions), options, {"f": 2}, Noting()
    )
    assert seen == [(0, 0), (1, 1), (2, 0)]


def test_kernels_that_overlap_have_a_bound_each() -> None:
    """A block of long start-up beside a pointer chase, on two streams."""
    (region,), ((_, chasing),) = chase().regions, chase().launches
    launches = [
        (kernel(0, family="a", startup_ps=10**11), columns([])),
        (kernel(1, family="b", stream=1), chasing),
    ]
    trace = MemoryTrace((region,), launches)
    longest = {"a": 0, "b": 1}
    found = find_bounds(
        segments_of(trace, ReplayOptions(4096)), ONE_TIER, placed([region]), ReplayOptions(4096), longest
    )
    assert (found["a"].resource, found["b"].resource) == ("block start-up", "bytes in flight")
