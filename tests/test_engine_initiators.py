"""Kernels on several initiators: each has its own launches, units, rates and routes; they share the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import (
    FLOP_UNITS,
    GPU,
    HBM,
    HBM_MBPS,
    HBM_PS,
    L2,
    PCIE,
    PCIE_MBPS,
    PCIE_PS,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    fullest,
    kernel,
    one_kernel,
    placed,
    replayed,
    run_both,
    transfer_ps,
)  # fmt: skip

from memsim import fast, reference
from memsim.errors import UsageError
from memsim.options import ReplayOptions
from memsim.system import Hop, Initiator, System
from memsim.trace import Access

SCANNER = Initiator("scanner", 1, 1 << 20, 128, 70_000, 3_000_000, 11_000, 250_000, 500_000, 0)
PROMPT = replace(GPU, launch_gap_ps=0, graph_launch_ps=0)
NEAR, FAR = (), (Hop(0, False, PCIE_PS),)
# The tier is behind a link for the GPU, and beside the scanner.
SIDE = System("side", (GPU, SCANNER), L2, (HBM,), (PCIE,), ((FAR,), (NEAR,)))


def row(number: int = 0, **changes: object) -> MemoryTrace:
    """One row of 64 B."""
    launch = kernel(number, **changes)
    return one_kernel(launch, flat_region(0, 8, 64), Access(number, 0, 0, 0, False, 0, 1, worked=True))


def pair(system: System, run_on: dict[str, int], **changes: object) -> list[int]:
    """When two kernels on two streams end, each one block that only starts up for 1 us."""
    launches = [(kernel(i, stream=i, startup_ps=1_000_000, **changes), columns([])) for i in range(2)]
    trace = MemoryTrace((flat_region(0, 8, 64),), launches)
    return [int(end) for end in run_both(trace, system, placed(trace.regions), run_on=run_on).end_ps]


def test_a_kernel_takes_the_route_of_its_initiator() -> None:
    served_ps = transfer_ps(64, HBM_MBPS) + HBM_PS
    away, beside = replayed(row(), SIDE), replayed(row(), SIDE, run_on={"f": 1})
    assert elapsed_ps(away) == served_ps + 2 * PCIE_PS + transfer_ps(64, PCIE_MBPS)
    assert elapsed_ps(beside) == served_ps + SCANNER.setup_ps
    assert [away.initiator.tolist(), beside.initiator.tolist()] == [[0], [1]]
    assert [int(outcome.wire_bytes.sum()) for outcome in (away, beside)] == [64, 0]


@pytest.mark.parametrize("reading", [0, 1, 3])
def test_an_initiators_set_up_is_paid_by_every_block_that_accesses_memory(reading: int) -> None:
    """Three blocks one after another on the only unit, of which so many load a row each."""
    loads = [Access(0, block, block, 0, False, block, 1) for block in range(reading)]
    trace = MemoryTrace((flat_region(0, 8, 64),), [(kernel(blocks=3, startup_ps=500), columns(loads))])
    outcome = run_both(trace, SIDE, placed(trace.regions), run_on={"f": 1})
    served_ps = transfer_ps(64, HBM_MBPS) + HBM_PS
    assert elapsed_ps(outcome) == 3 * 500 + reading * (SCANNER.setup_ps + served_ps)


@pytest.mark.parametrize("reading", [0, 1, 64])
def test_blocks_of_an_initiator_begin_one_after_another(reading: int) -> None:
    """Of 64 blocks that there is room for, the last one begins 64 dispatches after the kernel's start."""
    slow = replace(SIDE, initiators=(GPU, replace(SCANNER, units=8, setup_ps=0, dispatch_ps=1_000_000)))
    loads = [Access(0, block, block, 0, False, 0, 1) for block in range(64 - reading, 64)]
    trace = MemoryTrace((flat_region(0, 8, 64),), [(kernel(blocks=64, blocks_per_unit=8), columns(loads))])
    outcome = run_both(trace, slow, placed(trace.regions), run_on={"f": 1})
    served_ps = transfer_ps(64, HBM_MBPS) + HBM_PS
    assert elapsed_ps(outcome) == 64_000_000 + (served_ps if reading else 1)


def test_who_waits_for_another_initiator_has_to_wake() -> None:
    """k1 and k4 wait for a kernel that ran elsewhere, k2 and k3 for their own initiator's."""
    awake = replace(SIDE, initiators=(GPU, replace(SCANNER, wake_ps=900_000)))
    launches = [(kernel(i, waits_for=(i - 1,) if i else ()), columns([])) for i in range(4)]
    launches.append((kernel(4, stream=1, waits_for=(0,)), columns([])))
    trace = MemoryTrace((flat_region(0, 8, 64),), launches)
    on = {f"k{i}": 1 for i in range(1, 5)}
    outcomes = [run_both(trace, system, placed(trace.regions), run_on=on) for system in (SIDE, awake)]
    gaps = [(outcome.start_ps - outcome.ready_ps) for outcome in outcomes]
    assert (gaps[1] - gaps[0]).tolist() == [0, 900_000, 0, 0, 900_000]


def test_a_posted_write_is_over_when_it_is_served_and_a_read_is_not() -> None:
    write = one_kernel(kernel(), flat_region(0, 8, 64), Access(0, 0, 0, 0, True, 0, 1))
    posting = replace(SIDE, initiators=(replace(GPU, posts=True), SCANNER))
    for trace, saved_ps in ((write, PCIE_PS - 1), (row(), 0)):
        waited, posted = (replayed(trace, system) for system in (SIDE, posting))
        assert elapsed_ps(waited) - elapsed_ps(posted) == saved_ps


def test_an_initiator_has_its_own_launch_costs() -> None:
    """The first kernel of a step pays the graph launch of the initiator that it runs on."""
    launches = [(kernel(i, step=i // 2, waits_for=(i - 1,) if i else ()), columns([])) for i in range(4)]
    trace = MemoryTrace((flat_region(0, 8, 64),), launches)
    outcome = run_both(trace, SIDE, placed(trace.regions), run_on={"k1": 1, "k2": 1})
    gaps = [GPU.launch_gap_ps, SCANNER.launch_gap_ps, SCANNER.launch_gap_ps, GPU.launch_gap_ps]
    gaps[0] += GPU.graph_launch_ps
    gaps[2] += SCANNER.graph_launch_ps
    assert (outcome.start_ps - outcome.ready_ps).tolist() == gaps


@pytest.mark.parametrize(("run_on", "ends_ps"), [({}, [1, 2]), ({"k1": 1}, [1, 1]), ({"f": 1}, [1, 2])])
def test_kernels_take_turns_on_the_units_of_one_initiator_only(
    run_on: dict[str, int], ends_ps: list[int]
) -> None:
    one = replace(PROMPT, units=1)
    system = replace(SIDE, initiators=(one, replace(one, name="other")))
    assert pair(system, run_on) == [n * 1_000_000 for n in ends_ps]


@pytest.mark.parametrize(("run_on", "waits"), [({}, True), ({"k1": 1}, False)])
def test_units_of_two_initiators_lend_their_bytes_apart(run_on: dict[str, int], waits: bool) -> None:
    one = replace(PROMPT, units=1, unit_outstanding_bytes=64)
    system = replace(SIDE, initiators=(one, replace(one, name="other")), routes=((NEAR,), (NEAR,)))
    launches = [
        (kernel(i, stream=i, blocks_per_unit=2), columns([Access(i, 0, 0, 0, False, i, 1)])) for i in range(2)
    ]
    trace = MemoryTrace((flat_region(0, 8, 512),), launches)
    outcome = run_both(trace, system, placed(trace.regions), run_on=run_on)
    expected = transfer_ps(512, HBM_MBPS) + HBM_PS if waits else 0
    assert outcome.units_waiting_ps.tolist() == [expected]


@pytest.mark.parametrize("unit", FLOP_UNITS[1:3])
def test_arithmetic_goes_at_the_initiators_rate(unit: str) -> None:
    trace = row(flops_per_tile=10**9, flops_unit=unit)
    took = elapsed_ps(replayed(trace, SIDE, run_on={"f": 1}))
    rate = {"bf16": SCANNER.bf16_mflops, "fp8": SCANNER.fp8_mflops}[unit]
    assert took == SCANNER.setup_ps + transfer_ps(64, HBM_MBPS) + HBM_PS + transfer_ps(10**9, rate)


@pytest.mark.parametrize(("run_on", "waits"), [({}, True), ({"k1": 1}, False)])
def test_units_of_two_initiators_work_apart(run_on: dict[str, int], waits: bool) -> None:
    one = replace(PROMPT, units=1)
    system = replace(SIDE, initiators=(one, replace(one, name="other")), routes=((NEAR,), (NEAR,)))
    work = {"flops_per_tile": 7_490_000, "flops_unit": "bf16"}  # 1 us
    launches = [
        (
            kernel(i, stream=i, blocks_per_unit=2, **work),
            columns([Access(i, 0, 0, 0, False, 8 * i, 1, worked=True)]),
        )
        for i in range(2)
    ]
    trace = MemoryTrace((flat_region(0, 16, 64),), launches)
    outcome = run_both(trace, system, placed(trace.regions), run_on=run_on)
    loaded_ps = transfer_ps(64, HBM_MBPS) + HBM_PS
    assert outcome.end_ps.tolist() == [loaded_ps + 1_000_000, loaded_ps + (2 if waits else 1) * 1_000_000]


@pytest.mark.parametrize("engine", [fast, reference])
def test_arithmetic_that_an_initiator_cannot_do_is_refused(engine: object) -> None:
    trace = row(flops_per_tile=1, flops_unit="fp32")
    with pytest.raises(UsageError, match="kernel 'k0': 'scanner' has no fp32 arithmetic"):
        engine.run(trace, SIDE, placed(trace.regions), ReplayOptions(run_on={"k0": 1}))  # type: ignore[attr-defined]


def test_a_kernels_name_says_more_than_its_family() -> None:
    launches = [(kernel(i), columns([])) for i in range(2)]
    trace = MemoryTrace((flat_region(0, 8, 64),), launches)
    outcome = run_both(trace, SIDE, placed(trace.regions), run_on={"f": 1, "k1": 0})
    assert outcome.initiator.tolist() == [1, 0]


def test_only_the_first_initiator_has_a_cache() -> None:
    """Two blocks read the same rows: elsewhere both fetch them from their tier."""
    region = flat_region(0, 640, 1152)
    access = Access(0, 0, 1, 0, False, 0, 640, spread="each", worked=True)
    trace = one_kernel(kernel(blocks=2, tile_rows=64, tiles_in_flight=2), region, access)
    for home, hits in ((0, 1), (1, 0)):
        outcome = replayed(trace, SIDE, run_on={"f": home})
        assert outcome.moved[0, :, 0].tolist() == [(2 - hits) * 640 * 1152, hits * 640 * 1152]


@pytest.mark.parametrize(
    ("route", "mbps", "idle_ps"),
    [(NEAR, HBM_MBPS * 16_000 // fullest(16_000, 8), 0), (FAR, PCIE_MBPS, 2 * PCIE_PS)],
)
def test_two_equal_streams_share_what_they_meet_at_alike(
    route: tuple[Hop, ...], mbps: int, idle_ps: int
) -> None:
    """Two initiators stream 8 MB each from one tier, beside it or over one link: both need twice the time of
    one, and end within a hundredth of each other."""
    gpu = replace(PROMPT, unit_outstanding_bytes=1 << 15)
    system = System("two", (gpu, gpu), L2, (HBM,), (replace(PCIE, tags=10**6),), ((route,), (route,)))
    accesses = [Access(i, 0, 3, i, False, 0, 4000, spread="even", worked=True) for i in range(2)]
    launches = [(kernel(i, stream=i, blocks=4, tiles_in_flight=16), columns([accesses[i]])) for i in range(2)]
    trace = MemoryTrace((flat_region(0, 4000, 2048), flat_region(1, 4000, 2048)), launches)
    ends = run_both(trace, system, placed(trace.regions), run_on={"k1": 1}).end_ps
    assert int(ends.max()) == pytest.approx(idle_ps + HBM_PS + transfer_ps(2 * 4000 * 2048, mbps), rel=0.02)
    assert int(np.ptp(ends)) < 0.01 * int(ends.max())
