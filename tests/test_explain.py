"""Divided times: parts sum up, a kernel bound by a resource shows it, a tenth more is what a replay says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HBM_PS,
    TWO_TIERS,
    drawn_memory,
    drawn_regions,
    drawn_system,
    drawn_trace,
    flat_region,
    kernel,
    one_kernel,
    placed,
    with_gpu,
    with_link,
    with_tier,
)
from hypothesis import example, given
from hypothesis import strategies as st

from memsim import cli, explain_show, fast, report_json, resources, simulate
from memsim.bound import segments_of
from memsim.explain import explain
from memsim.options import ReplayOptions
from memsim.resources import TENTH_MORE
from memsim.summary import kernel_times_ps
from memsim.trace import Access
from memsim.units import format_time

ROOMY = with_gpu(TWO_TIERS, unit_outstanding_bytes=1 << 20)
GOLDEN = str(Path(__file__).with_name("golden") / "v32_128k.parquet")


def divided(trace, system=ROOMY, tier=0, **options):
    memory = placed(trace.regions, tier)
    told = ReplayOptions(**{"quantum_bytes": 4096} | options)
    (kernel,) = explain(segments_of(trace, told), system, memory, told, {"f": 0})
    return kernel


def scan(rows, **changes):
    fields = {"blocks": 4, "tile_rows": 16, "tiles_in_flight": 8}
    region = flat_region(0, rows, 1024)
    access = Access(0, 0, 3, 0, False, 0, rows, spread="even", grain=16, worked=True)
    return one_kernel(kernel(**(fields | changes)), region, access)


def chase(**changes):
    region = flat_region(0, 500, 64)
    order = np.random.default_rng(0).permutation(500)
    return one_kernel(kernel(**changes), region, Access(0, 0, 0, 0, False, 0, 500, gather=order, worked=True))


def waves():
    """400 blocks of one load each on 4 units that hold one block: all could load at once."""
    region = flat_region(0, 400, 1024)
    accesses = [Access(0, b, b, 0, False, b, 1) for b in range(400)]
    return one_kernel(kernel(blocks=400, tile_bytes=1024), region, *accesses)


def share_of(explained, resource):
    (part,) = [part for part in explained.parts if part.resource == resource]
    return part.time_ps / explained.time_ps


@pytest.mark.parametrize(
    ("trace", "system", "tier", "resource"),
    [
        (scan(40_000), ROOMY, 0, "hbm bandwidth"),
        (scan(4_000), ROOMY, 1, "pcie bandwidth"),
        (scan(4_000), with_tier(ROOMY, 1, channel_mbps=(1_000, 1_000)), 1, "host bandwidth"),
        (scan(400), with_link(ROOMY, tags=64), 1, "pcie tags"),
        (scan(64), with_gpu(ROOMY, launch_gap_ps=10**8), 0, "launch"),
        (scan(4_000, tile_ps=10**7), ROOMY, 0, "tile overhead"),
        (scan(64, startup_ps=10**9), ROOMY, 0, "block start-up"),
        (scan(64, drain_ps=10**9), ROOMY, 0, "block start-up"),
        (scan(4_000, flops_per_tile=10**9, flops_unit="bf16", retire="in_order"), ROOMY, 0, "arithmetic"),
        (chase(tiles_in_flight=1, partial_serial=True, partial_region=0), ROOMY, 0, "serial chain"),
        (chase(tiles_in_flight=1), ROOMY, 0, "latency"),
        (chase(tiles_in_flight=2), ROOMY, 0, "bytes in flight"),
        (waves(), ROOMY, 0, "units"),
    ],
)
def test_a_kernel_that_a_resource_binds_shows_it(trace, system, tier, resource):
    found = divided(trace, system, tier)
    assert share_of(found, resource) > 0.75
    assert sum(part.time_ps for part in found.parts) + found.rest_ps == found.time_ps
    assert 0 <= found.rest_ps < 0.02 * found.time_ps


@pytest.mark.parametrize(
    ("changes", "resource"),
    [({"queue_depth": 1}, "host queue depth"), ({"occupancy_ps": (1_000_000, 0)}, "host operations")],
)
def test_what_a_storage_tier_has_least_of_shows(changes, resource):
    region, order = flat_region(0, 2000, 64), np.random.default_rng(0).permutation(2000)
    access = Access(0, 0, 0, 0, False, 0, 2000, gather=order, worked=True)
    system = with_tier(ROOMY, 1, **({"queue_depth": 1000, "occupancy_ps": (1, 1)} | changes))
    found = divided(one_kernel(kernel(tiles_in_flight=64), region, access), system, 1)
    assert share_of(found, resource) > 0.6


def test_a_slow_cache_shows():
    slow = dataclasses.replace(ROOMY, cache=dataclasses.replace(ROOMY.cache, mbps=(1000, 1000)))
    region = flat_region(0, 4000, 1024)
    access = Access(0, 0, 3, 0, False, 0, 4000, spread="each", worked=True)
    found = divided(one_kernel(kernel(blocks=4, tile_rows=16, tiles_in_flight=8), region, access), slow)
    assert share_of(found, "l2 bandwidth") > 0.9


def test_what_hides_behind_the_place_that_binds_has_no_part_but_takes_its_time_alone():
    """4,096,000 bytes: 74.5 us over the link, 34.1 us from the channels behind it."""
    parts = {part.resource: part for part in divided(scan(4_000), ROOMY, 1).parts}
    assert parts["host bandwidth"].time_ps < 0.01 * parts["pcie bandwidth"].time_ps
    assert parts["host bandwidth"].alone_ps == pytest.approx(4_096_000 * 10**6 / 120_000, rel=0.01)
    assert parts["pcie bandwidth"].alone_ps == pytest.approx(4_096_000 * 10**6 / 55_000, rel=0.01)
    assert parts["hbm bandwidth"] == dataclasses.replace(parts["hbm bandwidth"], time_ps=0, saved_ps=0)


def test_a_tenth_more_is_what_a_replay_says():
    trace = scan(4_000)
    parts = {part.resource: part for part in divided(trace, ROOMY, 1).parts}
    quicker = with_link(ROOMY, mbps=(60_500, 60_500))
    memory, options = placed(trace.regions, 1), ReplayOptions(4096)

    def took_ps(system):
        return int(kernel_times_ps(system, fast.run(trace, system, memory, options))[0])

    assert parts["pcie bandwidth"].saved_ps == took_ps(ROOMY) - took_ps(quicker)
    assert parts["pcie bandwidth"].saved_ps == pytest.approx(parts["pcie bandwidth"].time_ps / 11, rel=0.02)
    assert parts["launch"].saved_ps == GPU.launch_gap_ps - GPU.launch_gap_ps * 10 // 11


def test_a_tier_without_latency_has_all_its_channels_near():
    """Its loads take a tenth less of the way to the farthest channel too, and next to nothing at the end."""
    far = with_tier(ROOMY, 0, spread_ps=(HBM_PS // 2,) * 3)
    parts = {part.resource: part for part in divided(chase(tiles_in_flight=1), far).parts}
    assert parts["latency"].time_ps > 0.95 * 500 * HBM_PS
    assert parts["latency"].saved_ps == pytest.approx(parts["latency"].time_ps / 11, rel=0.01)
    with pytest.raises(ValueError, match=r"hbm: spread_ps \(172500, 172500, 172500\) of latency_ps 344998"):
        with_tier(far, 0, latency_ps=(HBM_PS - 2, HBM_PS))


def test_a_tenth_more_in_flight_is_a_tenth_more_of_what_units_share():
    """Four units may have 64 loads outstanding, 16 each: 17 with a tenth more, or one unit has 70 of them."""
    system = with_gpu(TWO_TIERS, outstanding_bytes=64 * 64, port_mbps=(0, 0))
    for blocks, more in ((4, 17 / 16), (1, 70 / 64)):
        region = flat_region(0, 4000, 64)
        access = Access(0, 0, blocks - 1, 0, False, 0, 4000, spread="even", worked=True)
        found = divided(one_kernel(kernel(blocks=blocks, tiles_in_flight=400), region, access), system)
        (flight,) = (part for part in found.parts if part.resource == "bytes in flight")
        assert found.time_ps / (found.time_ps - flight.saved_ps) == pytest.approx(more, rel=0.02)


def test_counts_are_rounded_up_and_said():
    assert divided(scan(64, tiles_in_flight=8)).tiles == (8, 9)
    assert divided(chase(tiles_in_flight=1, partial_serial=True, partial_region=0)).tiles == (1, 1)
    assert TENTH_MORE.many(132) == 146
    assert TENTH_MORE.more((55_000, 1)) == (60_500, 2)
    assert TENTH_MORE.less((1_100, 10), 10) == (1_000, 10)


def test_more_in_flight_than_serves_the_kernel_is_not_taken_for_enough():
    """Twice the tiles save 28%; with 128 times as many the units wait for each other's bytes."""
    system = with_gpu(ROOMY, unit_outstanding_bytes=1 << 30)
    fields = {"flops_per_tile": 10**6, "flops_unit": "bf16", "retire": "in_order", "tiles_in_flight": 2}
    found = divided(scan(4_000, **fields), system)
    assert share_of(found, "bytes in flight") == pytest.approx(0.28, abs=0.01)
    assert found.rest_ps < 0.02 * found.time_ps


@given(st.integers(0, 2**32))
@example(1060)
@example(771799548)
def test_parts_sum_to_the_time_on_any_machine(seed):
    random = Random(seed)
    system, regions = drawn_system(random), drawn_regions(random)
    trace, memory = drawn_trace(random, regions), drawn_memory(random, regions, len(system.tiers))
    wanted = {f"family {k.id}": k.id for k, _ in trace.launches}
    options = ReplayOptions(4096)
    found = explain(segments_of(trace, options), system, memory, options, wanted)
    assert [each.time_ps for each in found] == sorted((each.time_ps for each in found), reverse=True)
    assert len(found) == len(wanted)
    for each in found:
        assert sum(part.time_ps for part in each.parts) + each.rest_ps == each.time_ps
        assert min([0, *(part.time_ps for part in each.parts)]) == 0
        assert each.rest_ps >= 0
        assert len({part.resource for part in each.parts}) == len(each.parts)


def test_progress_rises_to_the_end():
    steps = []
    trace, memory = scan(64), placed(scan(64).regions)
    options = ReplayOptions(4096)
    explain(segments_of(trace, options), ROOMY, memory, options, {"f": 0}, lambda *at: steps.append(at))
    assert steps == sorted(steps)
    assert steps[-1] == (1000, 1000)


@pytest.fixture(scope="module")
def replayed():
    return simulate.replay(GOLDEN, "h200-host", place="kv=host", bound=False, explain=2)


def test_the_slowest_families_of_a_trace_are_explained(replayed):
    assert {each.family for each in replayed.explained} == {"dsa-topk", "dsa-attend"}
    times_ps = [each.time_ps for each in replayed.explained]
    assert times_ps == sorted(times_ps, reverse=True)
    plain = simulate.replay(GOLDEN, "h200-host", place="kv=host", bound=False)
    assert plain.digest == replayed.digest
    assert plain.explained == ()
    assert "explained" not in report_json.document(plain)


def test_the_document_holds_every_part(replayed):
    first = json.loads(report_json.text(replayed))["explained"][0]
    parts = [part["time_s"] for part in first["parts"].values()]
    assert sum(parts) + first["rest_s"] == pytest.approx(first["time_s"], rel=1e-9)
    assert sum(part["share"] for part in first["parts"].values()) == pytest.approx(1, abs=0.01)
    assert {each.name for each in resources.resources(TWO_TIERS)} <= set(first["parts"])


def test_the_table_and_the_picture_show_the_same_parts(replayed):
    table, picture = explain_show.text(replayed), ElementTree.fromstring(explain_show.svg(replayed))
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert max(map(len, table.splitlines())) <= 100
    for explained in replayed.explained:
        for part in explain_show.shown(explained):
            assert part.resource in table
            assert part.resource in words
    slowest = replayed.explained[0]
    part = max(slowest.parts, key=lambda part: part.time_ps)
    shown = f"{format_time(part.time_ps)} {part.time_ps / slowest.time_ps:.0%}"
    assert f"{part.resource} {shown}" in " ".join(table.split())


def test_the_steps_of_the_picture_lie_end_to_end(replayed):
    picture = ElementTree.fromstring(
        explain_show.svg(dataclasses.replace(replayed, explained=replayed.explained[:1]))
    )
    bars = [
        (float(bar.get("x")), float(bar.get("width")))
        for bar in picture.iter("{http://www.w3.org/2000/svg}rect")
        if bar.get("fill", "").startswith("#")
    ]
    for (x, width), (after, _) in zip(bars, bars[1:], strict=False):
        assert after == pytest.approx(x + width, abs=1)
    assert sum(width for _, width in bars) == pytest.approx(explain_show.WIDE, abs=3)


def test_the_folder_gets_the_table_and_the_picture(tmp_path, capsys):
    words = ["replay", GOLDEN, "--no-bound", "--explain", "1", "-o", str(tmp_path / "out")]
    assert cli.run(words) == 0
    assert "+10% saves" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"result.json", "report.txt", "inputs.json", "explain.txt", "explain.svg"}
    assert "+10% saves" in (tmp_path / "out" / "explain.txt").read_text()


def test_one_kernel_is_explained_by_its_command(capsys):
    assert cli.run(["kernel", "chase", "--count", "64", "--no-bound", "--json", "--explain"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["explained"]
    assert kernel["parts"]["latency"]["share"] > 0.9


def test_interrupted_while_explaining_it_ends_in_one_line(monkeypatch, capsys):
    def interrupted(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("memsim.explain.explain", interrupted)
    assert cli.run(["replay", GOLDEN, "--no-bound", "--explain"]) == 130
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[-1]) == ("", "Error: interrupted")
