"""The arithmetic of tiles, how long after it a tile ends, and its fixed time: closed forms, both engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_cases import (
    GPU,
    HBM_MBPS,
    HBM_PS,
    NO_CACHE,
    ONE_TIER,
    elapsed_ps,
    flat_region,
    kernel,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
    with_gpu,
)  # fmt: skip

from memsim.trace import Access

LINE, FLOPS, AFTER_PS = 512, 3_000_000, 77_000
LOAD_PS = HBM_PS + transfer_ps(LINE, HBM_MBPS)  # of a tile
WORK_PS = transfer_ps(FLOPS, GPU.bf16_mflops)


def took_ps(
    tiles: int,
    after_ps: int,
    *,
    at_once: int = 1,
    flops: int = FLOPS,
    worked: bool = True,
    write: bool = False,
    retire: str = "any",
    tile_ps: int = 0,
) -> int:
    """Time of a block of some tiles, all of one lane each."""
    unit = "bf16" if flops else "none"
    launch = kernel(
        tiles_in_flight=at_once, flops_per_tile=flops, flops_unit=unit, retire=retire, tile_ps=tile_ps
    )
    access = Access(0, 0, 0, 0, write, 0, tiles, worked=worked)
    system = uncached(with_gpu(ONE_TIER, work_latency_ps=after_ps))
    trace = one_kernel(launch, flat_region(0, tiles, LINE), access)
    return elapsed_ps(replayed(trace, system, run_on=NO_CACHE))


@pytest.mark.parametrize("retire", ["in_order", "any"])
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("after_ps", [0, 1, AFTER_PS])
def test_a_worked_tile_ends_a_while_after_its_arithmetic(after_ps: int, write: bool, retire: str) -> None:
    """One after another: each tile is loaded, worked, and ends later."""
    found = took_ps(5, after_ps, write=write, retire=retire)
    assert found == 5 * (LOAD_PS + WORK_PS + after_ps)


def test_a_tile_without_arithmetic_ends_when_it_has_arrived() -> None:
    assert took_ps(5, AFTER_PS, flops=0) == 5 * LOAD_PS
    whole = took_ps(1, AFTER_PS, worked=False)
    assert whole == LOAD_PS


@pytest.mark.parametrize("retire", ["in_order", "any"])
def test_a_unit_works_on_other_tiles_meanwhile(retire: str) -> None:
    """Eight tiles arrive on their way; the unit works them one after another, and only the last one's
    latency shows."""
    slow = 100 * FLOPS
    found = took_ps(8, AFTER_PS, at_once=8, flops=slow, retire=retire)
    assert found == LOAD_PS + transfer_ps(8 * slow, GPU.bf16_mflops) + AFTER_PS


def test_what_a_tile_brings_in_takes_of_the_power_that_its_matrix_arithmetic_has() -> None:
    """At `power_mbps`, a quarter of the FLOP/s, a byte takes the time of four FLOPs."""
    access = Access(0, 0, 0, 0, False, 0, 5, worked=True)

    def took(unit: str = "bf16", write: bool = False, sharing: int = 1) -> int:
        system = uncached(with_gpu(ONE_TIER, power_mbps=GPU.bf16_mflops // 4, fp32_mflops=GPU.bf16_mflops))
        launch = kernel(flops_per_tile=FLOPS, flops_unit=unit, tiles_in_flight=1, blocks_sharing=sharing)
        trace = one_kernel(launch, flat_region(0, 5, LINE), replace(access, write=write))
        return elapsed_ps(replayed(trace, system, run_on=NO_CACHE))

    def each(flops: int) -> int:
        return 5 * (LOAD_PS + transfer_ps(flops, GPU.bf16_mflops))

    assert took() == each(FLOPS + 4 * LINE)
    assert took(sharing=2) == each(FLOPS + 2 * LINE)
    assert took("fp32") == took(write=True) == each(FLOPS)


def test_a_tile_that_has_not_ended_keeps_its_place() -> None:
    """Two tiles at once: with a long latency a pair of tiles each time."""
    long_ps = 10_000_000
    found = took_ps(8, long_ps, at_once=2)
    least_ps = 4 * (LOAD_PS + WORK_PS + long_ps)
    assert least_ps <= found <= least_ps + 4 * (WORK_PS + LOAD_PS - HBM_PS)


@pytest.mark.parametrize("retire", ["in_order", "any"])
@pytest.mark.parametrize("flops", [0, FLOPS])
def test_a_worked_tile_takes_its_fixed_time_after_its_arithmetic(flops: int, retire: str) -> None:
    """One after another; a tile that is not worked takes none."""
    arithmetic_ps = WORK_PS + AFTER_PS if flops else 0
    options = {"flops": flops, "retire": retire, "tile_ps": 5_000}
    assert took_ps(5, AFTER_PS, **options) == 5 * (LOAD_PS + arithmetic_ps + 5_000)
    assert took_ps(1, AFTER_PS, worked=False, **options) == LOAD_PS


@pytest.mark.parametrize("retire", ["in_order", "any"])
def test_tiles_of_a_block_take_their_fixed_times_one_after_another(retire: str) -> None:
    """Eight arrive together: the arithmetic of the others overlaps with the first one's fixed time, or the
    other way round."""
    long_ps = 100 * WORK_PS
    found = took_ps(8, AFTER_PS, at_once=8, retire=retire, tile_ps=long_ps)
    assert found == LOAD_PS + WORK_PS + AFTER_PS + 8 * long_ps
    slow = 100 * FLOPS
    found = took_ps(8, AFTER_PS, at_once=8, flops=slow, retire=retire, tile_ps=WORK_PS)
    assert found == LOAD_PS + transfer_ps(8 * slow, GPU.bf16_mflops) + AFTER_PS + WORK_PS


def test_blocks_of_a_unit_take_the_fixed_times_of_their_tiles_side_by_side() -> None:
    """Four blocks on one unit, a tile each: they share its arithmetic, and nothing else."""
    launch = kernel(blocks=4, blocks_per_unit=4, tile_ps=10**9)
    access = Access(0, 0, 3, 0, False, 0, 4, spread="even", worked=True)
    system = uncached(with_gpu(ONE_TIER, units=1))
    took = elapsed_ps(replayed(one_kernel(launch, flat_region(0, 4, LINE), access), system, run_on=NO_CACHE))
    assert 10**9 + LOAD_PS <= took < 1.01 * 10**9


def test_blocks_of_a_unit_take_turns_at_its_arithmetic() -> None:
    """Two of three blocks begin together. In turns of a quarter the first ends a quarter before the second,
    and the third loads when the second is about to end; without turns it loads while the second computes."""
    flops = 4 * GPU.bf16_mflops // 10
    work_ps = transfer_ps(flops, GPU.bf16_mflops)
    assert work_ps // 4 < LOAD_PS < work_ps
    launch = kernel(blocks=3, blocks_per_unit=2, flops_per_tile=flops, flops_unit="bf16")
    access = Access(0, 0, 2, 0, False, 0, 3, spread="even", worked=True)
    trace = one_kernel(launch, flat_region(0, 3, LINE), access)

    def took(turn_ps: int) -> int:
        system = uncached(with_gpu(ONE_TIER, units=1, turn_ps=turn_ps))
        return elapsed_ps(replayed(trace, system, run_on=NO_CACHE))

    assert took(work_ps // 4) == LOAD_PS + 7 * work_ps // 4 + LOAD_PS + work_ps
    assert took(0) == took(work_ps) == LOAD_PS + 3 * work_ps


def test_a_block_that_has_its_unit_for_itself_takes_no_turns() -> None:
    launch = kernel(flops_per_tile=FLOPS, flops_unit="bf16")
    trace = one_kernel(launch, flat_region(0, 1, LINE), Access(0, 0, 0, 0, False, 0, 1, worked=True))
    system = uncached(with_gpu(ONE_TIER, turn_ps=1))
    assert elapsed_ps(replayed(trace, system, run_on=NO_CACHE)) == LOAD_PS + WORK_PS
