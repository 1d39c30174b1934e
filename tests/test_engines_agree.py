"""The two engines give the same integers in every field of the outcome."""

from __future__ import annotations

import dataclasses
from random import Random

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HBM,
    HBM_MBPS,
    HBM_PS,
    L2,
    ONE_TIER,
    TWO_TIERS,
    MemoryTrace,
    columns,
    drawn_case,
    elapsed_ps,
    flat_region,
    gathered,
    kernel,
    placed,
    replayed,
    run_both,
    transfer_ps,
    with_tier,
)  # fmt: skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memsim import fast, ledger
from memsim.fast_state import BUCKETS
from memsim.limits import longest_time_ps
from memsim.options import ReplayOptions
from memsim.placement import Piece, Placement, build_memory
from memsim.program import build_program, home_of
from memsim.rules import ROW_BYTES
from memsim.segments import split
from memsim.system import System
from memsim.tally import Watched
from memsim.trace import Access


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_systems_and_traces(random: Random) -> None:
    trace, system, memory, quantum_bytes, run_on, seed, plan = drawn_case(random)
    outcome = run_both(trace, system, memory, quantum_bytes, run_on, seed, plan)
    watched = Watched(trace)  # type: ignore[arg-type]
    assert len(list(watched.kernels())) == len(outcome.end_ps)
    ledger.check(outcome, watched.tally.issued, system)
    (whole,) = split(trace.kernels(), apart=False, home=lambda kernel: home_of(kernel, run_on))
    row_bytes = memory.regions[:, ROW_BYTES]
    program = build_program(
        whole.launches, whole.waits, whole.new_step, system, row_bytes, run_on, plan, whole.handed
    )
    assert outcome.end_ps.max() <= longest_time_ps(program, memory, system, quantum_bytes)


@pytest.mark.parametrize("seed", range(20))
def test_seeded_systems_and_traces(seed: int) -> None:
    assert run_both(*drawn_case(Random(seed))).end_ps.min() >= 0


def layers(count: int, tier_of_last: int = 0) -> MemoryTrace:
    """Equal kernels, one a layer, each waiting for the one before."""
    regions = tuple(flat_region(i, 500, 1152) for i in range(count))
    launches = [
        (
            kernel(i, waits_for=(i - 1,) if i else (), blocks=3, tile_rows=64, tiles_in_flight=2),
            columns([Access(i, 0, 2, i, False, 0, 500, spread="even", grain=64, worked=True)]),
        )
        for i in range(count)
    ]
    return MemoryTrace(regions, launches)


def test_equal_layers_are_replayed_once_and_count_as_often_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = layers(7)
    memory = placed(trace.regions)
    runs = []
    once = fast.replay_segment
    monkeypatch.setattr(fast, "replay_segment", lambda *a: runs.append(1) or once(*a))
    outcome = run_both(trace, TWO_TIERS, memory, 4096)
    assert len(runs) == 2  # the first layer also pays the graph launch
    assert (outcome.digest == outcome.digest[0]).all()
    assert outcome.moved[:, 0, 0].tolist() == [500 * 1152] * 7


def test_layers_in_different_tiers_are_not_taken_for_equal() -> None:
    trace = layers(4)
    memory = placed(trace.regions)
    memory.shares[3] = (1, 1)  # the last region lives on the host
    outcome = run_both(trace, TWO_TIERS, memory, 4096)
    times = outcome.end_ps - outcome.start_ps
    assert times[1] == times[2] < times[3]


def test_segments_that_gather_other_rows_are_not_taken_for_equal() -> None:
    """Two requests for one row share a channel; for two rows they do not."""
    launches = [
        (kernel(i, tiles_in_flight=2, tile_bytes=512), columns([gathered(rows, kernel=i)]))
        for i, rows in enumerate(([0, 0], [0, 0], [0, 1]))
    ]
    outcome = replayed(MemoryTrace((flat_region(0, 64, 512),), launches), ONE_TIER)
    same_ps, also_same_ps, other_ps = (elapsed_ps(outcome, i) for i in range(3))
    assert other_ps < also_same_ps == same_ps


def test_segments_whose_regions_spill_elsewhere_are_not_taken_for_equal() -> None:
    """Of eight rows read one by one, four, four and six are near, the others on the host."""
    regions = tuple(flat_region(i, 8, 64) for i in range(3))
    pieces = tuple((Piece(near, ((0, 1),)), Piece(8, ((1, 1),))) for near in (4, 4, 6))
    launches = [(kernel(i), columns([Access(i, 0, 0, i, False, 0, 8, worked=True)])) for i in range(3)]
    memory = build_memory(regions, Placement(pieces, ()))
    outcome = run_both(MemoryTrace(regions, launches), TWO_TIERS, memory, 4096)
    same_ps, also_same_ps, other_ps = (elapsed_ps(outcome, i) for i in range(3))
    assert other_ps < also_same_ps == same_ps


def test_a_small_request_table_grows_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = layers(2)
    memory = placed(trace.regions)
    expected = fast.run(trace, TWO_TIERS, memory, ReplayOptions(512))
    monkeypatch.setattr(fast, "_FIRST_REQUESTS", 1)
    for a, b in zip(run_both(trace, TWO_TIERS, memory, 512), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_requests_too_far_apart_for_the_wheel_keep_their_order() -> None:
    """A slow tier and a quick one: completions 10^9 buckets apart."""
    system = with_tier(TWO_TIERS, 1, channel_mbps=(1, 1), channels=1)
    regions = (flat_region(0, 400, 64), flat_region(1, 400, 64))
    accesses = [Access(0, b, b, b % 2, False, 0, 400, worked=True) for b in range(4)]
    trace = MemoryTrace(regions, [(kernel(blocks=4, tiles_in_flight=50, tile_rows=1), columns(accesses))])
    memory = placed(regions)
    memory.shares[1] = (1, 1)
    assert run_both(trace, system, memory, 64).requests.sum() == 1600


@pytest.mark.parametrize("apart", [-1, 0, 1])
def test_completions_a_whole_wheel_apart_keep_their_order(
    apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A far row is complete one turn of the wheel (give or take a bucket) after a near one that was issued
    with it; meanwhile another block reads on, and ends long before."""
    shift = 10
    monkeypatch.setattr(fast, "bucket_shift", lambda *_: shift)
    transfer = transfer_ps(64, HBM_MBPS)
    done_ps = ((HBM_PS + transfer >> shift) + BUCKETS + apart) << shift
    far = dataclasses.replace(HBM, name="far", latency_ps=(done_ps - transfer,) * 2)
    gpu = dataclasses.replace(GPU, launch_gap_ps=0, graph_launch_ps=0)
    system = System("two", (gpu,), L2, (HBM, far), (), (((), ()),))
    regions = (flat_region(0, 20, 64), flat_region(1, 8, 64))
    accesses = [
        Access(0, 0, 0, 0, False, 0, 1, worked=True),
        Access(0, 0, 0, 1, False, 0, 1, worked=True),
        Access(0, 1, 1, 0, False, 0, 20, worked=True),
    ]
    memory = placed(regions)
    memory.shares[1] = (1, 1)  # the second region lives in the far tier
    trace = MemoryTrace(regions, [(kernel(blocks=2, tiles_in_flight=2), columns(accesses))])
    assert elapsed_ps(run_both(trace, system, memory, 4096)) == done_ps


def test_streams_overlap_and_share_the_machine() -> None:
    """Two kernels on two streams end later together than alone, and sooner than one after another."""

    def both(second_stream: int) -> int:
        trace = layers(2)
        launches = [
            (dataclasses.replace(k, waits_for=(), stream=k.id * second_stream), a) for k, a in trace.launches
        ]
        outcome = run_both(MemoryTrace(trace.regions, launches), TWO_TIERS, placed(trace.regions), 4096)
        return int(outcome.end_ps.max())

    alone = int(run_both(layers(1), TWO_TIERS, placed(layers(1).regions), 4096).end_ps.max())
    assert alone < both(1) < both(0)
