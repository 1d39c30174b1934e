"""One block at a time on one tier: the short loop gives what the event loop and the reference give."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest.mock import Mock

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HBM,
    L2,
    MemoryTrace,
    columns,
    drawn_memory,
    drawn_regions,
    flat_region,
    kernel,
    one_kernel,
    placed,
    run_both,
)  # fmt: skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memsim import fast, fast_ring
from memsim.fast_ring import REQUESTS_A_RUN
from memsim.fast_state import NONE
from memsim.options import ReplayOptions
from memsim.result import Outcome
from memsim.rules import Memory
from memsim.system import System
from memsim.trace import SPREADS, Access, Kernel

MOST_BYTES = 1 << 40


def drawn_lone_case(random: Random) -> tuple[MemoryTrace, System, Memory, int, dict[str, int]]:
    """Arguments of run_both: kernels one after another, each of blocks one after another."""
    rate = random.choice((1_000_000, 46_000, 99_991))
    tier = replace(
        HBM, channels=random.choice((1, 3, 8, 16)), channel_mbps=(rate, random.choice((rate, 77_777))),
        interleave_bytes=random.choice((64, 256, 512)), unit_bytes=random.choice((1, 32, 64)),
        latency_ps=(random.randint(1, 9), random.choice((1, 345_000))),
        occupancy_ps=random.choice(((0, 0), (900, 7))), turnaround_ps=random.choice((0, 1, 5_000)),
    )  # fmt: skip
    gpu = replace(GPU, units=1, unit_outstanding_bytes=MOST_BYTES, work_latency_ps=random.choice((0, 1, 900)))
    cached = random.random() < 0.3  # then there are no writes
    system = System("lone", (gpu, gpu), L2, (tier,), (), (((),), ((),)))
    regions = drawn_regions(random)
    launches = []
    for number in range(random.randint(1, 3)):
        launch = drawn_lone_kernel(random, number)
        accesses = [drawn_lone_access(random, launch, cached) for _ in range(random.randint(1, 6))]
        launches.append((launch, columns(accesses)))
    memory = drawn_memory(random, regions, 1)
    home = {"f": 0 if cached else 1}
    return MemoryTrace(regions, launches), system, memory, random.choice((64, 100, 512, 4096)), home


def drawn_lone_kernel(random: Random, number: int) -> Kernel:
    retire = random.choice(("in_order", "any"))
    flops = random.choice((0, 3, 50_000)) if retire == "in_order" else 0
    return kernel(
        number, blocks=random.randint(1, 4), tile_rows=random.randint(1, 9), retire=retire,
        tile_bytes=random.choice((64, 5000)), tiles_in_flight=random.choice((1, 2, 3, 7, 100)),
        flops_per_tile=flops, flops_unit="bf16" if flops else "none",
        startup_ps=random.choice((0, 5_000)), drain_ps=random.choice((0, 700)),
        tile_ps=random.choice((0, 300)) if retire == "in_order" else 0,
    )  # fmt: skip


def drawn_lone_access(random: Random, launch: Kernel, cached: bool) -> Access:
    block = random.randrange(launch.blocks)
    spread = random.choice(SPREADS[:2] if cached else SPREADS)
    last = block if spread == "one" else random.randint(block, launch.blocks - 1)
    rows, first, stride, gather = (
        random.randint(1, 40),
        random.randint(0, 100),
        random.choice((1, 1, 3)),
        None,
    )
    if random.random() < 0.3:
        gather, first, stride = np.array([random.randrange(256) for _ in range(rows)]), 0, 1
    write = not cached and spread != "each" and random.random() < 0.4
    dependent, worked = not write and random.random() < 0.3, random.random() < 0.6
    return Access(
        launch.id, block, last, random.randrange(3), write, first, rows, stride, spread, random.randint(1, 7),
        gather, dependent, worked,
    )  # fmt: skip


def in_events(case: tuple[MemoryTrace, System, Memory, int, dict[str, int]]) -> Outcome:
    """The outcome of the event loop alone."""
    trace, system, memory, quantum_bytes, run_on = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "tier_of_lone", lambda *_: NONE)
        return fast.run(trace, system, memory, ReplayOptions(quantum_bytes, run_on))


def in_a_ring(case: tuple[MemoryTrace, System, Memory, int, dict[str, int]]) -> Outcome:
    """The outcome of the short loop; AssertionError where the event loop ran, or the reference differs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast.fast_loop, "run", lambda *_: pytest.fail("a segment went through the event loop"))
        return run_both(*case)


@settings(max_examples=200, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.randoms(use_true_random=False))
def test_both_loops_and_the_reference_agree(random: Random) -> None:
    case = drawn_lone_case(random)
    for name, a, b in zip(Outcome._fields, in_a_ring(case), in_events(case), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_a_replay_that_pauses_goes_on_where_it_stopped() -> None:
    """More requests than either loop serves between two looks at Ctrl-C."""
    region = flat_region(0, REQUESTS_A_RUN + 100_000, 64)
    access = Access(0, 0, 0, 0, False, 0, region.rows, worked=True)
    gpu = replace(GPU, units=1, unit_outstanding_bytes=MOST_BYTES)
    system = System("lone", (gpu, gpu), L2, (HBM,), (), (((),), ((),)))
    trace = one_kernel(kernel(tiles_in_flight=64, retire="in_order"), region, access)
    with pytest.MonkeyPatch.context() as patch:
        loop = Mock(wraps=fast_ring.run)
        patch.setattr(fast_ring, "run", loop)
        found = fast.run(trace, system, placed([region]), ReplayOptions(4096, {"f": 1}))
    assert loop.call_count == 2
    assert found.requests[0] == region.rows
    case = trace, system, placed([region]), 4096, {"f": 1}
    for name, a, b in zip(Outcome._fields, found, in_events(case), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
