"""A tier that is modelled as one server takes its latency under load from a curve."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import (
    NO_CACHE,
    ONE_TIER,
    MemoryTrace,
    columns,
    elapsed_ps,
    flat_region,
    gathered,
    kernel,
    one_kernel,
    placed,
    replayed,
    uncached,
    with_gpu,
    with_tier,
)  # fmt: skip

from memsim import fast, reference, rules
from memsim.errors import UsageError
from memsim.options import ReplayOptions
from memsim.system import System
from memsim.trace import Access

POINTS = np.array([[9, 9], [200_000, 1_000], [600_000, 5_000], [900_000, 80_000], [1, 1]])
RATE, IDLE_PS, ROW, SERVICE_PS = 10_000, 150_000, 1000, 100_000  # ten rows fill a window of 1 us
EXTRA_PS = 70_000


@pytest.mark.parametrize(
    ("load", "extra_ps"),
    [(0, 1_000), (200_000, 1_000), (200_100, 1_001), (400_000, 3_000), (600_000, 5_000), (750_000, 42_500),
     (900_000, 80_000), (5_000_000, 80_000)],
)  # fmt: skip
def test_the_curve_is_linear_between_its_points(load: int, extra_ps: int) -> None:
    assert rules.loaded_ps(POINTS, 1, 4, load) == extra_ps


def server(*points: tuple[int, int], **changes: object) -> System:
    gpu = with_gpu(ONE_TIER, launch_gap_ps=0, graph_launch_ps=0, unit_outstanding_bytes=1 << 20)
    rates = {
        "channels": 1,
        "channel_mbps": (RATE, RATE),
        "unit_bytes": 1,
        "interleave_bytes": 4096,
        "latency_ps": (IDLE_PS, IDLE_PS),
    }
    return uncached(with_tier(gpu, 0, loaded=points, **{**rates, **changes}))


def chase(count: int, kernels: int = 1) -> MemoryTrace:
    launches = [
        (kernel(i, tile_bytes=ROW), columns([gathered([0] * count, kernel=i)])) for i in range(kernels)
    ]
    return MemoryTrace((flat_region(0, 8, ROW),), launches)


def test_the_load_of_the_last_whole_window_slows_the_next() -> None:
    """Rows one after another, one in 250 ns: four begin in the first window (0, 250, 500, 750 ns), which is
    40% of the rate; those after it take 70 ns more."""
    curve = (300_000, 0), (400_000, EXTRA_PS)
    one_ps = SERVICE_PS + IDLE_PS
    found = [elapsed_ps(replayed(chase(n), server(*curve), run_on=NO_CACHE)) for n in (4, 5, 6)]
    assert found == [4 * one_ps, 5 * one_ps + EXTRA_PS, 6 * one_ps + 2 * EXTRA_PS]


def test_a_window_without_arrivals_ends_the_load() -> None:
    """A row in 2.5 us: none ever comes in the window after another."""
    slow = server((1, EXTRA_PS), latency_ps=(2_400_000, 2_400_000))
    points = server((1, 0), (100_000, EXTRA_PS), latency_ps=(2_400_000, 2_400_000))
    assert elapsed_ps(replayed(chase(5), slow, run_on=NO_CACHE)) == 5 * (2_500_000 + EXTRA_PS)
    assert elapsed_ps(replayed(chase(5), points, run_on=NO_CACHE)) == 5 * 2_500_000


def test_a_kernel_that_finds_the_machine_idle_begins_without_load() -> None:
    """Both engines: the fast one replays such kernels apart, and equal ones once."""
    curve = (300_000, 0), (400_000, EXTRA_PS)
    outcome = replayed(chase(5, kernels=3), server(*curve), run_on=NO_CACHE)
    assert len({elapsed_ps(outcome, i) for i in range(3)}) == 1


def test_writes_load_a_server_too() -> None:
    writes = one_kernel(
        kernel(tile_bytes=ROW), flat_region(0, 8, ROW), *[Access(0, 0, 0, 0, True, 0, 1) for _ in range(5)]
    )
    curve = (300_000, 0), (400_000, EXTRA_PS)
    found = elapsed_ps(replayed(writes, server(*curve), run_on=NO_CACHE))
    assert found == 5 * (SERVICE_PS + IDLE_PS) + EXTRA_PS


@pytest.mark.parametrize("engine", [fast, reference])
def test_channels_and_a_curve_are_refused_together(engine: object) -> None:
    trace = chase(1)
    with pytest.raises(UsageError, match="2 channels and loaded latencies"):
        engine.run(trace, server((1, 1), channels=2), placed(trace.regions), ReplayOptions())  # type: ignore[attr-defined]
