"""`replay` from a trace file to a `Result`: names, sums, options, and what they must agree on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HBM,
    HBM_MBPS,
    HBM_PS,
    HOST_MBPS,
    HOST_PS,
    PCIE_MBPS,
    PCIE_PS,
    TWO_TIERS,
    flat_region,
    gathered,
    kernel,
    one_access_ps,
    transfer_ps,
    with_link,
)  # fmt: skip

from memsim.errors import DoesNotFit, TraceError, UsageError
from memsim.profile import load_machine
from memsim.result import Result
from memsim.route import build_system
from memsim.simulate import parse_run_on, replay
from memsim.summary import percentiles_ps
from memsim.system import Hop, Input, System
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


def written(path: Path, meta: dict[str, object], regions: Sequence[Region], *rows: Kernel | Access) -> Path:
    """A trace file of some regions, then kernels and accesses in this order."""
    with TraceWriter(path, meta) as writer:
        for region in regions:
            writer.region(region)
        for row in rows:
            if isinstance(row, Kernel):
                writer.kernel(row)
            else:
                writer.access(row)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    meta = {
        "model": "toy", "context_tokens": ROWS, "batch": 2, "steps": 2, "tokens_per_step": 1,
        "inputs": [{"path": "toy.rows", "value": "640", "provenance": "assumed", "source": "made up"}],
    }  # fmt: skip
    regions = [
        dataclasses.replace(flat_region(layer, ROWS, 1152), name=f"layer{layer}.kv", layer=layer)
        for layer in range(LAYERS)
    ]
    rows = [row for step in range(2) for launch in launches(step) for row in launch]
    return written(tmp_path / "two steps.parquet", meta, regions, *rows)


@pytest.fixture
def system() -> System:
    inputs = (
        Input("tier.hbm.latency", "345 ns", "extrapolated", "a"),
        Input("tier.host.latency", "111 ns", "assumed", "b"),
        Input("link.pcie.tags", "768", "assumed", "c"),
    )
    small = dataclasses.replace(TWO_TIERS.cache, capacity_bytes=1)  # nothing is left for the next kernel
    return dataclasses.replace(TWO_TIERS, inputs=inputs, cache=small)


def test_steps_add_up_and_pay_their_graph_launch(trace: Path, system: System) -> None:
    result = replay(trace, system)
    assert result.steps == 2
    assert result.step_ps[0] == result.step_ps[1]
    (family,) = result.families
    assert family.kernels == 2 * LAYERS
    assert result.total_ps == family.time_ps + 2 * GPU.graph_launch_ps
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


def test_a_step_finds_in_the_cache_what_the_one_before_has_read(trace: Path, system: System) -> None:
    large = dataclasses.replace(system, cache=TWO_TIERS.cache)
    quick, slow = (replay(trace, large, engine=engine) for engine in ("fast", "reference"))
    assert dataclasses.replace(quick, engine="") == dataclasses.replace(slow, engine="")
    assert quick.cache_hit_bytes == quick.bytes_read["kv"] // 2
    assert quick.step_ps[1] < quick.step_ps[0] == replay(trace, system).step_ps[0]
    (family,), (cold,) = quick.families, replay(trace, system).families
    assert cold.bound == family.bound != "l2 bandwidth"  # the longest kernel is one of the cold ones


@pytest.mark.parametrize(
    ("place", "link_mbps", "latency_ps", "slowest", "mbps"),
    [
        ([], PCIE_MBPS, HBM_PS, "hbm", 8 * HBM_MBPS),
        (["kv=host"], PCIE_MBPS, HOST_PS + 2 * PCIE_PS, "pcie", PCIE_MBPS),
        (["kv=host"], 10**6, HOST_PS + 2 * PCIE_PS, "host", 4 * HOST_MBPS),
    ],
)
def test_the_naive_time_is_launch_latency_and_the_division_of_the_slowest_place(
    trace: Path, system: System, place: list[str], link_mbps: int, latency_ps: int, slowest: str, mbps: int
) -> None:
    machine = with_link(system, mbps=(link_mbps, link_mbps))
    (family,) = replay(trace, machine, place=place, bound=False).families
    one_ps = GPU.launch_gap_ps + latency_ps + ROWS * 1152 * 1_000_000 // mbps
    assert family.naive_ps == 2 * LAYERS * one_ps
    assert family.naive_place == slowest


def test_the_two_directions_of_a_link_do_not_add_up(tmp_path: Path) -> None:
    """As many bytes out as in: 1 / 55 GB/s each at once, and more than both at the host, 2 / 120 GB/s."""
    rows = [gathered(range(512)), gathered(range(512), write=True)]
    path = written(tmp_path / "both.parquet", {}, [flat_region(0, 512, 4096)], kernel(), *rows)
    result = replay(path, TWO_TIERS, place=["kv=host"], bound=False)
    one_way_ps = 512 * 4096 * 1_000_000 // PCIE_MBPS
    (family,), (link,) = result.families, result.links
    assert link.busy_ps == one_way_ps
    assert family.naive_place == "pcie"
    assert family.naive_ps == GPU.launch_gap_ps + HOST_PS + 2 * PCIE_PS + one_way_ps


def test_the_two_directions_of_a_shared_link_add_up(tmp_path: Path) -> None:
    rows = [gathered(range(512)), gathered(range(512), write=True)]
    path = written(tmp_path / "both.parquet", {}, [flat_region(0, 512, 4096)], kernel(), *rows)
    result = replay(path, with_link(TWO_TIERS, shared=True), place=["kv=host"], bound=False)
    both_ways_ps = 2 * (512 * 4096 * 1_000_000 // PCIE_MBPS)
    (family,), (link,) = result.families, result.links
    assert link.busy_ps == both_ways_ps
    assert link.wire_bytes == 2 * 512 * 4096
    assert family.naive_ps == GPU.launch_gap_ps + HOST_PS + 2 * PCIE_PS + both_ways_ps


def with_near(system: System) -> System:
    """The system with a second initiator, beside the host."""
    near = dataclasses.replace(GPU, name="near")
    routes = (*system.routes, ((Hop(0, True, PCIE_PS),), ()))
    return dataclasses.replace(system, initiators=(*system.initiators, near), routes=routes)


def test_the_naive_latency_is_from_where_the_kernel_runs(trace: Path, system: System) -> None:
    (family,) = replay(trace, with_near(system), place="kv=host", run_on="mla=near", bound=False).families
    assert family.initiator == "near"
    one_ps = GPU.launch_gap_ps + HOST_PS + ROWS * 1152 * 1_000_000 // (4 * HOST_MBPS)
    assert family.naive_ps == 2 * LAYERS * one_ps


def test_a_single_kernel_can_be_sent_elsewhere_by_its_name(trace: Path, system: System) -> None:
    outcome = replay(trace, with_near(system), run_on="k1=near", bound=False).outcome
    assert outcome is not None
    assert outcome.initiator.tolist() == [0, 1, 0, 0, 0, 0]


def same_row_twice(path: Path, row_bytes: int = 512) -> Path:
    """Two requests for one row, issued at once."""
    launch = kernel(tiles_in_flight=2, tile_bytes=row_bytes)
    return written(path, {}, [flat_region(0, 8, row_bytes)], launch, gathered([0, 0]))


def test_a_links_wait_includes_the_wait_for_its_tags(tmp_path: Path) -> None:
    """One tag: the second request waits until the first is complete, and then for nothing."""
    scarce = with_link(TWO_TIERS, tags=1)
    path = same_row_twice(tmp_path / "twice.parquet", GPU.request_bytes)
    (link,) = replay(path, scarce, place=["kv=host"], bound=False).links
    assert link.waiting_ps == one_access_ps(TWO_TIERS, 1, GPU.request_bytes)


def test_a_links_wait_includes_the_wait_for_its_wire(tmp_path: Path) -> None:
    """The host's two channels let the second request go one piece of 256 B after the first."""
    slow = with_link(TWO_TIERS, mbps=(10_000, 10_000))
    path = same_row_twice(tmp_path / "twice.parquet")
    (link,) = replay(path, slow, place=["kv=host"], bound=False).links
    gap_ps = transfer_ps(512, HOST_MBPS) - transfer_ps(256, HOST_MBPS)
    assert link.waiting_ps == transfer_ps(512, 10_000) - gap_ps


def test_the_time_per_output_token_is_a_share_of_a_step_that_emits_several(tmp_path: Path) -> None:
    """Two steps of four tokens each, whatever the batch."""
    rows = [row for step in range(2) for launch in launches(step) for row in launch]
    regions = [flat_region(layer, ROWS, 1152) for layer in range(LAYERS)]
    meta: dict[str, object] = {"steps": 2, "tokens_per_step": 4, "batch": 3}
    result = replay(written(tmp_path / "four.parquet", meta, regions, *rows), TWO_TIERS, bound=False)
    assert result.tpot_ps == result.total_ps // (2 * 4)


def test_steps_that_overlap_add_up_to_the_whole_and_none_is_negative(tmp_path: Path) -> None:
    """Three kernels that only start up, a step each. The second, on a stream of its own, begins when the
    first has begun and ends before it; the third follows the second and outlasts the first."""
    startups_ps, streams = (10**9, 10, 2 * 10**9), (0, 1, 1)
    kernels = [
        kernel(i, step=i, stream=stream, startup_ps=startup_ps)
        for i, (stream, startup_ps) in enumerate(zip(streams, startups_ps, strict=True))
    ]
    path = written(tmp_path / "overlap.parquet", {"steps": 3}, [flat_region(0, 8, 64)], *kernels)
    launch_ps = GPU.launch_gap_ps + GPU.graph_launch_ps
    first_ps = launch_ps + startups_ps[0]
    last_ps = 3 * launch_ps + startups_ps[1] + startups_ps[2]
    result = replay(path, TWO_TIERS, bound=False)
    assert result.step_ps == (first_ps, 0, last_ps - first_ps)
    assert result.total_ps == last_ps


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
    assert near.interval.startswith("no interval (not all of it was measured on this machine")


def test_prices_and_energies_do_not_weigh_on_provenance(trace: Path, system: System) -> None:
    paths = ("cost.2024.hbm", "tier.hbm.energy")
    more = tuple(Input(path, "6", "assumed", "d") for path in paths)
    machine = dataclasses.replace(system, inputs=(*system.inputs, *more))
    assert replay(trace, machine, bound=False).assumed == ("toy.rows",)


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
        ({"run_on": "mla"}, "--run-on 'mla': expected FAMILY=INITIATOR"),
        ({"run_on": "mla="}, "--run-on 'mla=': expected FAMILY=INITIATOR"),
        ({"run_on": "=gpu"}, "--run-on '=gpu': expected FAMILY=INITIATOR"),
        ({"seed": 1 << 62}, "expected 0 to 4611686018427387903"),
        ({"overrides": "tier.hbm.latency=1 ns"}, "expected a machine's name or file; this one is loaded"),
    ],
)
def test_wrong_options_are_refused(
    trace: Path, system: System, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        replay(trace, system, **options)  # type: ignore[arg-type]


def test_a_trace_without_kernels_is_refused(tmp_path: Path, system: System) -> None:
    path = written(tmp_path / "none.parquet", {}, [flat_region(0, 1, 1)])
    with pytest.raises(TraceError, match="kernel"):
        replay(path, system)


def test_percentiles_come_from_the_bucket_that_holds_them() -> None:
    histogram = np.zeros(496, np.int64)
    histogram[3], histogram[9] = 98, 2
    assert percentiles_ps(histogram, (50, 98, 99, 100)) == [3, 3, 9, 9]
    assert percentiles_ps(histogram * 0, (50,)) == [0]


def test_percentiles_of_few_requests_are_requests() -> None:
    """Of n requests the p-th percentile is the ceil(n p / 100)-th: of one the first, of three the second
    up to p = 66."""
    histogram = np.zeros(496, np.int64)
    histogram[9] = 1
    assert percentiles_ps(histogram, (1, 50, 99)) == [9, 9, 9]
    histogram[3] = 2
    assert percentiles_ps(histogram, (50, 66, 67, 99)) == [3, 3, 9, 9]


def test_a_loaded_machine_and_a_single_rule_are_taken_as_they_are(trace: Path) -> None:
    from memsim import load_machine

    named = replay(trace, "h200-host", place=["kv=host"], bound=False)
    loaded = replay(trace, load_machine("h200-host"), place="kv=host", bound=False)
    assert loaded == named


def test_a_result_says_what_was_left_out_and_what_was_cut_for_another_machine() -> None:
    sample = Path(__file__).parent / "golden" / "v32_128k.parquet"
    options = {"place": ["kv=nvme"], "bound": False}
    (note,) = replay(sample, "h200-nvme", **options).notes
    assert note == "slow requests of nvme are left out; --seed N draws them"
    (note,) = replay(sample, "h200-nvme", **options, seed=3).notes
    assert note == "slow requests of nvme are drawn with seed 3"
    (note,) = replay(sample, "h200-cxl", place=["index=cxl"], run_on="dsa-index=cxl", bound=False).notes
    assert "dsa-index was recorded for 132 units and runs on the 16 of cxl-unit" in note
    assert replay(sample, "h200", bound=False).notes == ()


def test_a_tier_stands_for_the_one_initiator_beside_it_that_computes() -> None:
    """The copy engine sits beside the HBM, too, and computes nothing."""
    system = build_system(load_machine("h200-cxl"))
    names = [runner.name for runner in system.initiators]
    assert parse_run_on(["a=hbm", "b=cxl", "c=copy"], system) == {
        "a": names.index("gpu"), "b": names.index("cxl-unit"), "c": names.index("copy")
    }  # fmt: skip
    with pytest.raises(UsageError, match="no initiator that computes beside tier 'host'"):
        parse_run_on(["a=host"], system)
