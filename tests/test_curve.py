"""Latency under load: what a closed form says of an idle, a half-loaded and a full machine; what was run is
what is replayed; table, JSON and picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memsim import cli, curve, curve_plot, load_machine, open_trace
from memsim.closed_form import Way, round_trip_ps
from memsim.curve import Curve, Found, Point, draw_curve, errors, measured_folder, replayed
from memsim.errors import OutputError, UsageError
from memsim.route import build_system
from workloads import beside
from workloads.beside import Load
from workloads.patterns import MOST_TILES


def system_of(name, **gpu):
    system = build_system(load_machine(name))
    first, *others = system.initiators
    return replace(system, initiators=(replace(first, **gpu), *others))


@pytest.fixture(scope="module")
def small():
    """An H200 of 17 units, 12 channels and as small a share of the cache, as quick to fill."""
    system = system_of("h200", units=17)
    cache = replace(system.cache, capacity_bytes=system.cache.capacity_bytes // 16)
    memory = replace(system.tiers[0], channels=12, peak_mbps=600_000, spread_ps=(0, 0, 0))
    return replace(system, tiers=(memory,), cache=cache)


def full_mbps(tier, kind):
    """Rate of all channels: updates read and write as much, and a channel turns twice for all it gathers."""
    reads_mbps, writes_mbps = tier.channel_mbps
    if kind != "update":
        return tier.channels * (writes_mbps if kind == "write" else reads_mbps)
    gathered = tier.write_buffer_bytes
    took_ps = gathered * 10**6 / reads_mbps + gathered * 10**6 / writes_mbps + 2 * tier.turnaround_ps
    return tier.channels * 2 * gathered * 10**6 / took_ps


def test_an_idle_load_takes_the_round_trip(small):
    idle = replayed(small, 0, Load("read", 0, 32_768))
    assert idle == Found(0.0, pytest.approx(round_trip_ps(Way(small, 0, 0), 32, 32), rel=1e-3))


def test_few_reads_move_what_littles_law_says_and_hold_nobody_up(small):
    load = Load("read", 2, 2048)
    found = replayed(small, 0, load)
    runner = small.initiators[0]
    work_ps = runner.work_latency_ps + load.tile_bytes // curve.WORD_BYTES * 10**6 // runner.fp32_mflops
    trip_ps = round_trip_ps(Way(small, 0, 0), load.tile_bytes, load.tile_bytes) + work_ps
    assert found.mbps == pytest.approx(2 * 2048 * 10**6 / trip_ps, rel=0.03)
    assert found.latency_ps == pytest.approx(round_trip_ps(Way(small, 0, 0), 32, 32), rel=0.02)


def test_a_pause_slows_a_stream_by_its_length(small):
    """A warp takes the round trip and the pause for each tile."""
    load = Load("read", 2, 2048, pause_ps=2_000_000)
    trip_ps = round_trip_ps(Way(small, 0, 0), load.tile_bytes, load.tile_bytes)
    assert replayed(small, 0, load).mbps == pytest.approx(2 * 2048 * 10**6 / (trip_ps + 2_000_000), rel=0.03)


def test_nobody_waits_for_a_store_so_a_pause_includes_it(small):
    load = Load("write", 2, 2048, pause_ps=2_000_000)
    assert replayed(small, 0, load).mbps == pytest.approx(2 * 2048 * 10**6 / 2_000_000, rel=0.03)


@pytest.mark.parametrize("kind", beside.KINDS)
def test_a_full_memory_moves_its_rate_and_a_load_waits_for_what_is_in_flight(small, kind):
    """16 units fill 12 channels many times: what is in flight, over the rate, is how long a tile waits.

    A tile waits for the last of its lanes, its lanes and a load for less: of n waits alike the longest is the
    mean times 1 + 1/2 + ... + 1/n at most. Channels that have less to do than the busiest idle at times.
    """
    load = Load(kind, 16, 32_768)
    found = replayed(small, 0, load)
    rate = full_mbps(small.tiers[0], kind)
    assert 0.96 * rate < found.mbps < 1.01 * rate
    held = 16 * min(small.initiators[0].unit_outstanding_bytes, 32_768 * (2 if kind != "read" else 1))
    tile_ps, idle_ps = held * 10**6 / rate, round_trip_ps(Way(small, 0, 0), 32, 32)
    longest = sum(1 / n for n in range(1, load.tile_bytes // small.tiers[0].interleave_bytes + 1))
    # the reads of updates wait longer than their writes, which end when they are gathered
    assert idle_ps + (tile_ps - idle_ps) / longest < found.latency_ps < 1.1 * tile_ps


def test_latency_rises_with_the_units_that_read(small):
    latencies = [replayed(small, 0, Load("read", units, 32_768)).latency_ps for units in (1, 2, 4, 8, 16)]
    assert latencies == sorted(latencies)
    assert latencies[-1] > 2 * latencies[0]


def test_streams_outlast_the_chase_however_slow_they_were_expected_to_be(small):
    experiment = curve._Experiment(small, 0, Load("read", 16, 32_768), 0)
    experiment.mbps /= 50
    run = experiment.beside_all(64, 0)
    assert run.stream_ps >= experiment.warm_ps + run.chase_ps


def test_another_seed_gives_nearly_the_same(small):
    one, other = (replayed(small, 0, Load("read", 4, 16_384), seed) for seed in (0, 1))
    assert one != other
    assert one.latency_ps == pytest.approx(other.latency_ps, rel=0.02)
    assert one.mbps == pytest.approx(other.mbps, rel=0.02)


@pytest.mark.parametrize(("machine", "tier"), [("h200-host", "host"), ("h200-peer", "peer")])
def test_over_a_link_the_load_reaches_what_the_link_carries(machine, tier):
    system = system_of(machine)
    number = system.tier_index(tier)
    idle = replayed(system, number, Load("read", 0, 512))
    # units that hold 4 times what the link needs in flight
    units = min(131, 4 * curve.path_of(Way(system, 0, number))[0] * round(idle.latency_ps) // 10**6 // 8192)
    full = replayed(system, number, Load("read", units, 8192))
    assert full.mbps == pytest.approx(curve.path_of(Way(system, 0, number))[0], rel=0.02)
    assert full.latency_ps > 2 * idle.latency_ps


def test_more_streaming_units_than_there_are_beside_the_chase_are_refused(small):
    with pytest.raises(UsageError, match="17 streaming units: gpu of h200 has 17, one of which chases"):
        replayed(small, 0, Load("read", 17, 32_768))


# The trace


@pytest.mark.parametrize(
    ("flight", "warps", "tile"),
    [(512, 1, 512), (1024, 2, 512), (4096, 8, 512), (8192, 8, 1024), (32_768, 16, 2048), (65_536, 32, 2048)],
)
def test_a_streaming_unit_has_the_warps_and_tiles_that_were_run(flight, warps, tile):
    micro_loaded = pytest.importorskip("validation.measure.micro_loaded")
    assert Load("read", 1, flight).shape == (warps, tile)
    measured_warps, words = micro_loaded.shape(flight)
    assert (measured_warps, words * 512) == (warps, tile)


def test_bytes_in_flight_that_no_warps_hold_are_refused():
    for flight in (0, 100, 768, 131_072):
        with pytest.raises(UsageError, match=f"{flight} bytes in flight: expected a power of 2 from 512"):
            _ = Load("read", 1, flight).shape


def written(tmp_path, load, tiles):
    beside.write(load, 8, tiles, 5_000, 0, tmp_path / "t.parquet")
    trace = open_trace(tmp_path / "t.parquet")
    return trace.regions, list(trace.kernels())


@pytest.mark.parametrize("kind", beside.KINDS)
@pytest.mark.parametrize("pause_ps", [0, 700])
def test_every_tile_is_streamed_once(tmp_path, kind, pause_ps):
    load = Load(kind, 3, 4096, pause_ps)
    regions, ((_, chase), (stream, accesses)) = written(tmp_path, load, 96)
    assert len(chase.gather_rows) == len(set(chase.gather_rows.tolist())) == 8
    assert set(chase.gather_rows % beside.STRIDE_NODES) == {0}
    data = accesses.region == 1
    ways = {"read": [False], "write": [True], "update": [False, True]}[kind]
    assert sorted(set(accesses.write[data].tolist())) == ways
    for way in ways:
        mine = data & (accesses.write == way)
        rows = [
            row
            for first, count in zip(accesses.first_row[mine], accesses.rows[mine], strict=True)
            for row in range(first, first + count)
        ]
        assert sorted(rows) == list(range(96)) != rows  # units begin apart
    assert stream.blocks == 24
    assert (stream.blocks_per_unit, stream.tile_ps) == (8, pause_ps)
    assert regions[1].rows == 96


def test_a_warp_has_eight_stored_tiles_on_their_way(tmp_path):
    _, (_, (stream, accesses)) = written(tmp_path, Load("write", 1, 512), 20)
    assert accesses.region.tolist() == [1] * 20
    assert stream.tiles_in_flight == beside.TILES_A_LOOK == 8


def test_a_pause_after_a_store_is_a_look_at_the_flag_that_takes_as_long(tmp_path):
    _, (_, (stream, accesses)) = written(tmp_path, Load("write", 1, 512, 9_000), 3)
    assert accesses.region.tolist() == [1, 2] * 3
    assert accesses.dependent.tolist() == accesses.write.tolist() == [True, False] * 3
    assert accesses.worked.tolist() == [False, True] * 3
    assert stream.tile_ps == 9_000


def test_streams_that_write_find_the_cache_full(tmp_path):
    chase = beside.write(Load("write", 2, 512, fill_bytes=1_000_000), 8, 4, 5_000, 0, tmp_path / "t.parquet")
    kernels = [kernel for kernel, _ in open_trace(tmp_path / "t.parquet").kernels()]
    assert [kernel.name for kernel in kernels] == [beside.FILL, beside.CHASE, beside.STREAM]
    assert chase == 1
    assert kernels[2].waits_for == (0,)
    assert kernels[0].stream == kernels[1].stream == 0


def test_a_trace_that_is_none_is_refused(tmp_path):
    for load, loads, tiles, words in (
        (Load("copy", 1, 512), 1, 1, "kind 'copy': expected one of read, update, write"),
        (Load("read", 1, 512), 0, 1, "a chase of 0 loads"),
        (Load("read", 1, 512), 1, MOST_TILES + 1, "beside 16777217 tiles"),
    ):
        with pytest.raises(UsageError, match=words):
            beside.write(load, loads, tiles, 0, 0, tmp_path / "t.parquet")


# What was measured


def test_measured_points_are_replayed_as_they_were_run(monkeypatch):
    monkeypatch.setattr(curve, "replayed", lambda *_: Found(1_000_000.0, 400_000.0))
    system = system_of("h200")
    found = draw_curve(system, "hbm", measured_folder("h200"))
    assert len(found.points) == 70
    assert {point.kind for point in found.points} == set(beside.KINDS)
    paused = [point for point in found.points if point.pause_ps]
    assert {(point.units, point.flight) for point in paused} == {(131, 32_768)}
    assert min(point.pause_ps for point in paused) == round(500 * 10**6 / 1980)
    (idle,) = [point for point in found.points if not point.units]
    assert idle.measured.mbps == 0
    assert [point.split for point in found.points].count("calibrate") == 10
    assert found.peak_mbps == 4_800_000


def test_what_was_not_measured_is_refused():
    for machine, tier, words in (
        ("gh200", "hbm", "no measurements of 'gh200'; there are some of: nvidia-h200, nvidia-h200-again, "),
        ("h200-host", "host", "nvidia-h200 has no latency under load of 'host', only of the GPU's own"),
    ):
        with pytest.raises(UsageError, match=words):
            draw_curve(system_of(machine), tier, measured_folder(machine))


@pytest.fixture
def known():
    measured = [Found(900_000.0, 300_000.0), Found(2_000_000.0, 500_000.0)]
    points = (
        Point("read", 0, 32_768, 0, Found(0.0, 330_000.0), Found(0.0, 300_000.0), True, "calibrate"),
        Point("read", 8, 32_768, 0, Found(990_000.0, 330_000.0), measured[0], False, "held_out"),
        Point("read", 131, 512, 505_051, Found(1_000_000.0, 600_000.0), measured[1], True, "held_out"),
        Point("write", 64, 32_768, 0, Found(4_400_000.0, 900_000.0)),
    )
    return Curve("h200", "hbm", 4_800_000, False, points)


def test_errors_are_those_of_each_point(known):
    (reads,) = errors(known)
    assert (reads.kind, reads.points) == ("read", 3)
    assert reads.load_mean == pytest.approx((0.1 + 0.5) / 2)
    assert reads.load_worst == pytest.approx(0.5)
    assert reads.latency_mean == pytest.approx((0.1 + 0.1 + 0.2) / 3)
    assert reads.latency_worst == pytest.approx(0.2)


def printed(known, capsys, monkeypatch, *words):
    monkeypatch.setattr(curve, "draw_curve", lambda *_: known)
    assert cli.run(["machines", "curve", "h200", "hbm", *words]) == 0
    return capsys.readouterr().out


def test_the_table_says_all_of_a_point(known, capsys, monkeypatch):
    out = printed(known, capsys, monkeypatch)
    assert max(map(len, out.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "none 330 ~300 +10%" in lines
    assert "read 8 32 0.99 330 0.9 +10% 300 +10%" in lines
    assert "read 131 0.5 505 ns 1 600 2 -50% ~500 +20%" in lines
    assert "write 64 32 4.4 900" in lines
    assert any(line.startswith("read: bandwidth 30% off on average, 50% at most; latency") for line in lines)


def test_without_measured_points_the_table_says_the_share_of_the_peak(known, capsys, monkeypatch):
    bare = replace(known, points=tuple(replace(point, measured=None, noisy=False) for point in known.points))
    lines = [" ".join(line.split()) for line in printed(bare, capsys, monkeypatch).splitlines()]
    assert "write 64 32 4.4 900 92%" in lines
    assert not any("measured" in line for line in lines)


def test_the_document_holds_all_of_a_point(known, capsys, monkeypatch):
    found = json.loads(printed(known, capsys, monkeypatch, "--json"))
    assert (found["machine"], found["tier"], found["peak_bytes_per_s"]) == ("h200", "hbm", 4.8e12)
    assert found["points"][1] == {
        "kind": "read",
        "units": 8,
        "flight_bytes": 32_768,
        "pause_s": 0,
        "load_bytes_per_s": 9.9e11,
        "peak_share": 0.20625,
        "latency_s": 3.3e-7,
        "measured_load_bytes_per_s": 9e11,
        "measured_latency_s": 3e-7,
        "load_error": pytest.approx(0.1),
        "latency_error": pytest.approx(0.1),
        "noisy": False,
        "split": "held_out",
    }
    assert found["points"][0]["load_error"] is None
    assert "measured_latency_s" not in found["points"][3]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_is_written_whole_and_alike(known, tmp_path, capsys, monkeypatch, suffix):
    pytest.importorskip("matplotlib")
    pictures = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in pictures:
        printed(known, capsys, monkeypatch, "-o", str(path))
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in pictures]
    if suffix == "svg":
        words = pictures[0].read_text()
        for word in ("Latency under load: hbm of h200", ">reads<", ">reads, measured<", ">writes<", ">peak<"):
            assert word in words
        assert ">writes, measured<" not in words


def test_a_picture_of_another_kind_or_in_no_folder_is_refused_before_the_replays(
    tmp_path, capsys, monkeypatch
):
    pytest.importorskip("matplotlib")
    for name, words in (
        ("x.pdf", "give a name that ends in .svg or .png"),
        ("none/x.svg", "there is no folder"),
    ):
        with pytest.raises(OutputError, match=words):
            curve_plot.check(tmp_path / name)
        monkeypatch.setattr(curve, "draw_curve", None)
        assert cli.run(["machines", "curve", "h200", "hbm", "-o", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


def test_an_interrupted_curve_leaves_nothing(tmp_path, capsys, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(curve, "replay", interrupted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.run(["machines", "curve", "h200", "hbm"]) == 130
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_sweep_spans_from_a_tenth_to_three_times_what_the_path_needs():
    for machine, tier in (("h200", "hbm"), ("h200-host", "host"), ("h200-nvme", "nvme"), ("gh200", "host")):
        system = system_of(machine)
        number = system.tier_index(tier)
        way = Way(system, 0, number)
        needed = curve.path_of(way)[0] * curve.idle_latency_ps(system, 0, number) / 10**6
        held = [units * flight / needed for units, flight in curve._sweep(system, number)]
        assert min(held) == pytest.approx(0.1, rel=0.35)
        assert 2.5 < max(held) <= 4.6
        assert len(set(curve._sweep(system, number))) == len(held) >= 8
    assert curve._sweep(system_of("h200", units=1), 0) == []


def test_the_measured_campaign_is_the_one_that_is_modelled():
    """The loop that was run looks at its flag after so many tiles."""
    source = Path(curve.__file__).parents[1] / "validation" / "measure" / "cuda" / "loaded.cu"
    assert f"#define TILES_A_LOOK {beside.TILES_A_LOOK} " in source.read_text()
