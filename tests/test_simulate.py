"""`replay` from a trace file to a `Result`: names, sums, options, and what they must agree on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from engine_cases import HBM, TWO_TIERS, flat_region, kernel

from memsim.errors import DoesNotFit, TraceError, UsageError
from memsim.result import Result
from memsim.simulate import percentiles_ps, replay
from memsim.system import Input, System
from memsim.trace import Access, Kernel, Region
from memsim.trace_write import TraceWriter

LAYERS, ROWS = 3, 640


def launches(step: int) -> list[tuple[Kernel, Access]]:
    """A scan of each layer's cache, one after another."""
    found = []
    for layer in range(LAYERS):
        number = step * LAYERS + layer
        scan = kernel(
            number, family="mla", layer=layer, step=step, waits_for=(number - 1,) if number else (), blocks=4,
            tile_rows=64, tile_bytes=64 * 1152, tiles_in_flight=2, retire="in_order",
        )  # fmt: skip
        found.append(
            (scan, Access(number, 0, 3, layer, False, 0, ROWS, spread="even", grain=64, worked=True))
        )
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "two steps.parquet"
    meta = {
        "model": "toy", "context_tokens": ROWS, "batch": 2, "steps": 2, "tokens_per_step": 1,
        "inputs": [{"path": "toy.rows", "value": "640", "provenance": "assumed", "source": "made up"}],
    }  # fmt: skip
    with TraceWriter(path, meta) as writer:
        for layer in range(LAYERS):
            region = flat_region(layer, ROWS, 1152)
            writer.region(dataclasses.replace(region, name=f"layer{layer}.kv", layer=layer))
        for step in range(2):
            for scan, access in launches(step):
                writer.kernel(scan)
                writer.access(access)
    return path


@pytest.fixture
def system() -> System:
    inputs = (
        Input("tier.hbm.latency", "345 ns", "extrapolated", "a"),
        Input("tier.host.latency", "111 ns", "assumed", "b"),
        Input("link.pcie.tags", "768", "assumed", "c"),
    )
    return dataclasses.replace(TWO_TIERS, inputs=inputs)


def test_steps_add_up_and_pay_their_graph_launch(trace: Path, system: System) -> None:
    result = replay(trace, system)
    assert result.steps == 2
    assert result.step_ps[0] == result.step_ps[1]
    (family,) = result.families
    assert family.kernels == 2 * LAYERS
    assert result.total_ps == family.time_ps + 2 * system.initiator.graph_launch_ps
    assert result.tpot_ps == result.step_ps[0]  # never divided by the batch


def test_bytes_are_those_of_the_trace(trace: Path, system: System) -> None:
    result = replay(trace, system, bound=False)
    assert result.bytes_read == {"kv": 2 * LAYERS * ROWS * 1152}
    assert result.bytes_written == {"kv": 0}
    assert result.bytes_issued == {"kv": 2 * LAYERS * ROWS * 1152}
    assert result.tiers[0].used_bytes == LAYERS * ROWS * 1152


def test_engines_give_equal_results(trace: Path, system: System) -> None:
    quick, slow = (replay(trace, system, engine=engine) for engine in ("fast", "reference"))
    assert dataclasses.replace(quick, engine="") == dataclasses.replace(slow, engine="")


def test_the_naive_time_is_launch_latency_and_a_division(trace: Path, system: System) -> None:
    (family,) = replay(trace, system, bound=False).families
    gpu = system.initiator
    one_ps = gpu.launch_gap_ps + HBM.latency_ps + ROWS * 1152 * 1_000_000 // (8 * HBM.channel_mbps)
    assert family.naive_ps == 2 * LAYERS * one_ps
    assert family.naive_place == "hbm"


def test_the_host_costs_what_its_link_does(trace: Path, system: System) -> None:
    near, far = (replay(trace, system, place=place) for place in ((), ("kv=host",)))
    assert far.total_ps > near.total_ps
    assert far.links[0].moved_read_bytes == far.tiers[1].moved_read_bytes == 2 * LAYERS * ROWS * 1152
    assert far.families[0].bound.startswith("pcie") or far.families[0].bound == "bytes in flight"


def test_unused_tiers_do_not_weigh_on_provenance(trace: Path, system: System) -> None:
    near, far = (replay(trace, system, place=place, bound=False) for place in ((), ("kv=host",)))
    assert near.assumed == ("toy.rows",)
    assert far.assumed == ("tier.host.latency", "link.pcie.tags", "toy.rows")
    assert near.provenance == far.provenance == "assumed"
    assert near.interval == "no interval (uncalibrated)"


def test_overflow_spills_and_refusal_names_the_shortfall(trace: Path, system: System) -> None:
    small = dataclasses.replace(HBM, capacity_bytes=ROWS * 1152)
    tight = dataclasses.replace(system, tiers=(small, system.tiers[1]))
    with pytest.raises(DoesNotFit, match="too many"):
        replay(trace, tight)
    spilled: Result = replay(trace, tight, overflow="host", bound=False)
    assert [tier.used_bytes for tier in spilled.tiers] == [ROWS * 1152, (LAYERS - 1) * ROWS * 1152]


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_progress_counts_kernels_to_the_end(trace: Path, system: System, engine: str) -> None:
    seen: list[tuple[int, int]] = []
    replay(trace, system, engine=engine, bound=False, progress=lambda *a: seen.append(a))
    assert seen == [(i, 2 * LAYERS) for i in range(1, 2 * LAYERS + 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "fats"}, "did you mean 'fast'"),
        ({"quantum_bytes": 0}, "expected 1 B to 1 GiB"),
        ({"quantum_bytes": 1 << 40}, "expected 1 B to 1 GiB"),
        ({"place": ["kv=hots"]}, "did you mean 'host'"),
        ({"overflow": "hots"}, "did you mean 'host'"),
    ],
)
def test_wrong_options_are_refused(
    trace: Path, system: System, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        replay(trace, system, **options)  # type: ignore[arg-type]


def test_a_trace_without_kernels_is_refused(tmp_path: Path, system: System) -> None:
    region: Region = flat_region(0, 1, 1)
    with TraceWriter(tmp_path / "none.parquet", {}) as writer:
        writer.region(region)
    with pytest.raises(TraceError, match="kernel"):
        replay(tmp_path / "none.parquet", system)


def test_percentiles_come_from_the_bucket_that_holds_them() -> None:
    histogram = np.zeros(496, np.int64)
    histogram[3], histogram[9] = 98, 2
    assert percentiles_ps(histogram, (50, 98, 99, 100)) == [3, 3, 9, 9]
    assert percentiles_ps(histogram * 0, (50,)) == [0]
