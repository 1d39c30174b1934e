"""Closed forms: what one access, one stream, one chain and one wave must take, on both engines."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HBM,
    HBM_MBPS,
    HBM_PS,
    HOST,
    HOST_MBPS,
    HOST_PS,
    L2,
    NO_CACHE,
    ONE_TIER,
    PCIE,
    PCIE_MBPS,
    PCIE_PS,
    QUANTUM,
    TWO_TIERS,
    MemoryTrace,
    behind,
    columns,
    elapsed_ps,
    flat_region,
    fullest,
    kernel,
    one_access_ps,
    one_kernel,
    placed,
    replayed,
    run_both,
    transfer_ps,
    uncached,
    with_gpu,
    with_link,
    with_tier,
)  # fmt: skip

from memsim.placement import Piece, Placement, build_memory
from memsim.result import READ, Outcome
from memsim.rules import latency_bucket
from memsim.system import System
from memsim.trace import Access, Kernel


@pytest.mark.parametrize("row_bytes", [1, 32, 64, 512])
def test_idle_read_of_the_near_tier_takes_latency_and_transfer(row_bytes: int) -> None:
    moved = -(-row_bytes // 32) * 32
    assert one_access_ps(ONE_TIER, 0, row_bytes) == HBM_PS + transfer_ps(moved, HBM_MBPS)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("row_bytes", [1, 64])
def test_idle_access_behind_a_link_takes_the_sum_of_its_hops(write: bool, row_bytes: int) -> None:
    """The tier moves a whole transaction of 64 B, and so does the link."""
    hops = [
        2 * PCIE_PS,
        transfer_ps(64, PCIE_MBPS),
        transfer_ps(64, HOST_MBPS),
        HOST_PS,
    ]
    assert one_access_ps(TWO_TIERS, 1, row_bytes, write) == sum(hops)


def test_a_request_over_several_channels_ends_with_its_last_piece() -> None:
    """656 B at offset 656: pieces of 368 B and 288 B on two channels; the longer one decides."""
    region = flat_region(0, 8, 656)
    trace = one_kernel(kernel(), region, Access(0, 0, 0, 0, False, 1, 1))
    took = elapsed_ps(run_both(trace, ONE_TIER, placed([region]), QUANTUM))
    assert took == HBM_PS + transfer_ps(384, HBM_MBPS)  # 656..1023 rounded to 640..1024


def stream(system: System, tier: int, rows: int = 10_000, write: bool = False) -> Outcome:
    region = flat_region(0, rows, 4096)
    launch = kernel(blocks=4, tile_rows=1, tiles_in_flight=256)
    trace = one_kernel(launch, region, Access(0, 0, 3, 0, write, 0, rows, spread="even", worked=True))
    roomy = uncached(with_gpu(system, unit_outstanding_bytes=1 << 20))
    return replayed(trace, roomy, tier, run_on=NO_CACHE)


@pytest.mark.parametrize("tier", [0, 1])
@pytest.mark.parametrize("write", [False, True])
def test_a_stream_reaches_the_bandwidth_of_its_narrowest_place(tier: int, write: bool) -> None:
    """Of the fullest channel of a tier, or of the link to it."""
    rows = 10_000 if tier == 0 else 4_000
    took = elapsed_ps(stream(TWO_TIERS, tier, rows, write))
    nbytes, mbps = (fullest(8 * rows, 8) * 512, 46_000) if tier == 0 else (rows * 4096, PCIE_MBPS)
    assert took == pytest.approx(transfer_ps(nbytes, mbps), rel=0.01)
    assert took > transfer_ps(nbytes, mbps)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("near_mbps", "far_mbps", "channel_mbps", "least_mbps"),
    [
        (40_000, 60_000, 30_000, 40_000 * 128 / (128 + 24)),
        (60_000, 40_000, 30_000, 40_000 * 128 / (128 + 16)),
        (60_000, 60_000, 10_000, 10_000 * 3000 * 16 / fullest(3000 * 16, 4)),
    ],
)
def test_a_path_reaches_the_least_bandwidth_of_its_links_and_its_tier(
    near_mbps: int, far_mbps: int, channel_mbps: int, least_mbps: float, write: bool
) -> None:
    """Of a link what packets of 128 B leave for data: headers of 24 B on the near one, of 16 B on the far. Of
    a tier what its fullest channel leaves."""
    roomy = dataclasses.replace(PCIE, tags=10**4, credits=10**4)
    near = dataclasses.replace(roomy, mbps=(near_mbps, near_mbps), header_bytes=24)
    far = dataclasses.replace(roomy, mbps=(far_mbps, far_mbps), header_bytes=16)
    system = behind(dataclasses.replace(HOST, channel_mbps=(channel_mbps, channel_mbps)), near, far)
    took = elapsed_ps(stream(system, 1, 3000, write))
    idle_ps = one_access_ps(system, 1, 4096, write)
    assert took == pytest.approx(idle_ps + 2999 * 4096 * 1e6 / least_mbps, rel=0.005)


def test_twice_the_bandwidth_halves_a_bandwidth_bound_kernel() -> None:
    wide = with_tier(ONE_TIER, 0, channel_mbps=(92_000, 92_000))
    assert elapsed_ps(stream(wide, 0)) == pytest.approx(elapsed_ps(stream(ONE_TIER, 0)) / 2, rel=0.01)


def test_half_the_quantum_moves_a_kernel_by_under_a_hundredth() -> None:
    region = flat_region(0, 64 * 400, 1152)
    launch = kernel(blocks=4, tile_rows=64, tiles_in_flight=2, retire="in_order")
    access = Access(0, 0, 3, 0, False, 0, region.rows, spread="even", grain=64, worked=True)
    trace = one_kernel(launch, region, access)
    whole, half = (elapsed_ps(run_both(trace, TWO_TIERS, placed([region]), q)) for q in (8192, 4096))
    assert half == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("tier", [0, 1])
def test_a_pointer_chase_takes_its_latency_at_every_row(tier: int) -> None:
    region = flat_region(0, 1000, 64)
    order = np.random.default_rng(1).permutation(1000)
    access = Access(0, 0, 0, 0, False, 0, 1000, gather=order, worked=True)
    trace = one_kernel(kernel(tile_rows=1, tiles_in_flight=1), region, access)
    took = elapsed_ps(run_both(trace, TWO_TIERS, placed([region], tier), QUANTUM))
    assert took == 1000 * one_access_ps(TWO_TIERS, tier, 64)


def test_littles_law_binds_a_kernel_with_few_bytes_in_flight() -> None:
    """Four blocks with one 64 B row outstanding each: 256 B per idle latency."""
    region = flat_region(0, 4000, 64)
    launch = kernel(blocks=4, tile_rows=1, tiles_in_flight=1)
    trace = one_kernel(launch, region, Access(0, 0, 3, 0, False, 0, 4000, spread="even", worked=True))
    took = elapsed_ps(run_both(trace, ONE_TIER, placed([region]), QUANTUM))
    assert took == pytest.approx(1000 * one_access_ps(ONE_TIER, 0, 64), rel=0.01)


def test_the_units_outstanding_bytes_bind_before_the_kernels_window() -> None:
    """One unit may have 4 KiB out, the kernel would have 64 KiB: 4 KiB per idle latency."""
    small = with_gpu(ONE_TIER, units=1, unit_outstanding_bytes=4096)
    region = flat_region(0, 4000, 64)
    launch = kernel(tile_rows=64, tiles_in_flight=16)
    gather = np.arange(4000)[::-1]
    trace = one_kernel(launch, region, Access(0, 0, 0, 0, False, 0, 4000, gather=gather, worked=True))
    outcome = replayed(trace, small)
    rounds = 4000 * 64 / 4096
    assert elapsed_ps(outcome) == pytest.approx(rounds * one_access_ps(ONE_TIER, 0, 64), rel=0.03)
    assert outcome.units_waiting_ps[0] > 0


def test_a_links_tags_bind_a_remote_read() -> None:
    """Eight tags of 128 B: 1 KiB per idle latency of the route."""
    system = with_link(TWO_TIERS, tags=8)
    region = flat_region(0, 4000, 128)
    launch = kernel(blocks=4, tile_rows=1, tiles_in_flight=64)
    trace = one_kernel(launch, region, Access(0, 0, 3, 0, False, 0, 4000, spread="even", worked=True))
    outcome = run_both(trace, system, placed([region], 1), QUANTUM)
    assert elapsed_ps(outcome) == pytest.approx(4000 / 8 * one_access_ps(TWO_TIERS, 1, 128), rel=0.01)
    assert outcome.tags_waiting_ps[0] > 0


def arithmetic_kernel(**changes: object) -> MemoryTrace:
    region = flat_region(0, 64, 64)
    fields = {"tile_rows": 1, "tiles_in_flight": 4, "flops_per_tile": 7_490_000, "flops_unit": "bf16"}
    launch = kernel(retire="in_order", **(fields | changes))
    access = Access(0, 0, launch.blocks - 1, 0, False, 0, 64, spread="even", worked=True)
    return one_kernel(launch, region, access)


def test_arithmetic_of_all_tiles_adds_up_on_one_unit() -> None:
    """64 tiles of 1 us behind the first load."""
    trace = arithmetic_kernel()
    took = elapsed_ps(run_both(trace, ONE_TIER, placed(trace.regions), QUANTUM))
    assert took == one_access_ps(ONE_TIER, 0, 64) + 64 * 1_000_000


@pytest.mark.parametrize(("blocks", "per_unit", "waves"), [(4, 1, 1), (5, 1, 2), (8, 1, 2), (8, 2, 1)])
def test_blocks_run_in_whole_waves(blocks: int, per_unit: int, waves: int) -> None:
    """Blocks of 100 us start-up and no other work to speak of, on four units."""
    region = flat_region(0, 16, 64)
    launch = kernel(blocks=blocks, blocks_per_unit=per_unit, startup_ps=100_000_000)
    accesses = [Access(0, b, b, 0, False, b, 1) for b in range(blocks)]
    took = elapsed_ps(run_both(one_kernel(launch, region, *accesses), ONE_TIER, placed([region]), QUANTUM))
    assert took == pytest.approx(waves * 100_000_000, rel=0.01)


def test_startup_and_drain_are_paid_by_every_block() -> None:
    region = flat_region(0, 8, 64)
    access = Access(0, 0, 0, 0, False, 0, 1)
    bare = one_kernel(kernel(), region, access)
    slow = one_kernel(kernel(startup_ps=1_234, drain_ps=99), region, access)
    times = [elapsed_ps(run_both(t, ONE_TIER, placed([region]), QUANTUM)) for t in (bare, slow)]
    assert times[1] - times[0] == 1_234 + 99


def test_a_write_that_depends_on_its_read_waits_for_it() -> None:
    region = flat_region(0, 8, 64)

    def took(dependent: bool) -> int:
        accesses = [Access(0, 0, 0, 0, False, 0, 1), Access(0, 0, 0, 0, True, 1, 1, dependent=dependent)]
        trace = one_kernel(kernel(tiles_in_flight=4, tile_bytes=64), region, *accesses)
        return elapsed_ps(run_both(trace, uncached(ONE_TIER), placed([region]), QUANTUM, NO_CACHE))

    one = one_access_ps(ONE_TIER, 0, 64)
    assert took(dependent=True) == 2 * one
    assert took(dependent=False) < 1.1 * one


def test_rows_that_head_blocks_share_are_fetched_once() -> None:
    region = flat_region(0, 640, 1152)
    launch = kernel(blocks=2, tile_rows=64, tiles_in_flight=2)
    trace = one_kernel(launch, region, Access(0, 0, 1, 0, False, 0, 640, spread="each", worked=True))
    outcome = run_both(trace, ONE_TIER, placed([region]), QUANTUM)
    assert outcome.moved[0, 0].tolist() == [640 * 1152, 0]
    assert outcome.issued[0, 1].tolist() == [640 * 1152, 0]  # the cache's hits


def test_a_cache_hit_takes_the_caches_latency_and_transfer() -> None:
    """Two blocks read one row: the first fetches it, and a slow cache makes the second one end last."""
    system = dataclasses.replace(ONE_TIER, cache=dataclasses.replace(L2, latency_ps=5_000_000))
    region = flat_region(0, 2, 64)
    trace = one_kernel(kernel(blocks=2), region, Access(0, 0, 1, 0, False, 0, 1, spread="each"))
    outcome = run_both(trace, system, placed([region]), QUANTUM)
    hit_ps = 5_000_000 + transfer_ps(2 * 64, L2.mbps[READ])  # the first one's row comes through it before
    assert elapsed_ps(outcome) == hit_ps
    assert np.flatnonzero(outcome.latency[1]).tolist() == [latency_bucket(hit_ps)]


def test_launches_cost_their_gap_and_a_step_its_graph() -> None:
    region = flat_region(0, 8, 64)
    access = Access(0, 0, 0, 0, False, 0, 1)
    launches = [
        (
            kernel(i, step=i // 2, waits_for=(i - 1,) if i else ()),
            columns([dataclasses.replace(access, kernel=i)]),
        )
        for i in range(4)
    ]
    outcome = run_both(MemoryTrace((region,), launches), ONE_TIER, placed([region]), QUANTUM)
    gap, graph = GPU.launch_gap_ps, GPU.graph_launch_ps
    assert (outcome.start_ps - outcome.ready_ps).tolist() == [gap + graph, gap, gap + graph, gap]
    assert outcome.ready_ps[1:].tolist() == outcome.end_ps[:-1].tolist()


def test_a_block_without_work_takes_its_startup_and_drain_or_a_picosecond() -> None:
    region = flat_region(0, 8, 64)

    def took(**changes: int) -> int:
        trace = MemoryTrace((region,), [(kernel(blocks=2, **changes), columns([]))])
        return elapsed_ps(run_both(trace, ONE_TIER, placed([region]), QUANTUM))

    assert took() == 1
    assert took(startup_ps=30, drain_ps=12) == 42


def test_two_tiers_in_proportion_to_their_bandwidths_reach_the_sum() -> None:
    """Without links: a near tier of 368 GB/s and one of 120 GB/s, rows dealt 368 : 120. What their channels,
    which are loaded unevenly, lose is not much."""
    tiers = (HBM, dataclasses.replace(HOST, latency_ps=HBM.latency_ps))
    system = dataclasses.replace(ONE_TIER, tiers=tiers, routes=(((), ()),))
    region = flat_region(0, 64 * 610, 1024)
    launch = kernel(blocks=4, tile_rows=16, tiles_in_flight=64)
    access = Access(0, 0, 3, 0, False, 0, region.rows, spread="even", grain=64, worked=True)
    memory = build_memory([region], Placement(((Piece(region.rows, ((0, 368), (1, 120))),),), ()))
    trace = one_kernel(launch, region, access)
    outcome = run_both(trace, with_gpu(system, unit_outstanding_bytes=1 << 20), memory)
    assert elapsed_ps(outcome) == pytest.approx(transfer_ps(region.bytes, 488_000), rel=0.025)


@pytest.mark.parametrize("retire", ["in_order", "any"])
def test_a_wider_machine_is_never_slower_on_a_plain_stream(retire: str) -> None:
    region = flat_region(0, 4000, 512)
    launch: Kernel = kernel(blocks=4, tile_rows=8, tiles_in_flight=4, retire=retire)
    trace = one_kernel(
        launch, region, Access(0, 0, 3, 0, False, 0, 4000, spread="even", grain=8, worked=True)
    )
    times = []
    for factor in (1, 2, 4):
        system = with_tier(ONE_TIER, 0, channel_mbps=(HBM_MBPS * factor,) * 2)
        times.append(elapsed_ps(run_both(trace, system, placed([region]), QUANTUM)))
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
