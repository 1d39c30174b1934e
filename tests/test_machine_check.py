"""The self-check of machines: every shipped one passes, closed forms are exact, what is wrong is seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hwprofiles import machine_names
from memsim import cli, closed_form, load_machine, machine_check, report
from memsim.closed_form import Way, expected_stream, path_of, round_trip_ps
from memsim.machine_check import Check, run
from memsim.route import build_system, tier_mbps

# Streams of shipped machines that have too little in flight for their path, and what limits them.
LIMITED = {
    ("hbf", "hbf", "reads"): "gpu bytes in flight",
    ("hbf", "hbf", "writes"): "gpu bytes in flight",
}


@pytest.fixture(scope="module", params=machine_names())
def checked(request):
    return request.param, run(request.param)


def system_of(name, *overrides):
    return build_system(load_machine(name, overrides))


def found(checks, part, what):
    (check,) = [check for check in checks if (check.part, check.what) == (part, what)]
    return check


def test_every_shipped_machine_behaves_as_its_file_says(checked):
    name, checks = checked
    assert [check for check in checks if not check.passed] == []
    assert {check.part for check in checks} >= {tier.name for tier in system_of(name).tiers}


def test_every_stream_reaches_the_least_bandwidth_of_links_and_tier(checked):
    """Within half a percent; where the tier binds less what its uneven queues lose, 15% at most."""
    name, checks = checked
    system = system_of(name)
    for number, tier in enumerate(system.tiers):
        for write, what in ((False, "reads"), (True, "writes")):
            way = Way(system, 0, number, write)
            path_mbps, part = path_of(way)
            check = found(checks, tier.name, what)
            limit = LIMITED.get((name, tier.name, what))
            if limit:
                assert check.bound == limit
                assert check.found < path_mbps * 1e6 * 0.995
                continue
            assert check.bound.split(",")[0] == part
            assert check.found < path_mbps * 1e6 * 1.005
            lost = 0.15 if part.split()[0] == tier.name else 0.005 if expected_stream(way).exact else 0.05
            assert check.found > path_mbps * 1e6 * (1 - lost)


def test_copies_and_loads_are_checked_by_who_makes_them():
    checks = run("h200-cxl")
    parts = {check.part for check in checks}
    assert parts == {"hbm", "host", "cxl", "host by copy", "cxl by copy", "cxl by cxl-unit"}
    set_up = found(checks, "host by copy", "smallest copy")
    engine = system_of("h200-cxl").initiators[1]
    assert set_up.found * 1e12 > engine.setup_ps + 1_000_000
    assert found(checks, "cxl by cxl-unit", "reads").found > 1.4 * found(checks, "cxl", "reads").found


def test_storage_at_depth_one_is_bound_by_its_latency():
    checks = run("h200-nvme")
    alone, many = found(checks, "nvme", "single 4096 B"), found(checks, "nvme", "reads")
    assert alone.found < 4096 / 60e-6
    assert many.found > 200 * alone.found


@pytest.mark.parametrize(
    ("name", "override", "tier", "write", "bound"),
    [
        ("h200-host", "link.pcie.tags=64", 1, False, "pcie tags"),
        ("h200-host", "link.pcie.credits=64", 1, True, "pcie credits"),
        ("h200", "initiator.gpu.unit_outstanding=8 KiB", 0, False, "gpu bytes in flight"),
        ("h200-nvme", "tier.nvme.queue_depth=16", 2, False, "nvme queue depth"),
    ],
)
def test_what_limits_the_requests_in_flight_is_named_and_checked_by_littles_law(
    name, override, tier, write, bound
):
    usual, bent = (machine_check.stream(Way(system_of(name, *o), 0, tier, write)) for o in ((), (override,)))
    assert bent.bound == bound
    assert bent.passed
    assert bent.most < 0.8 * usual.found
    assert bent.found > 0.65 * bent.most  # a request of HBM waits for the farthest of its lanes


@pytest.mark.parametrize("devices", [1, 4])
def test_units_at_random_take_what_the_tags_allow(devices):
    """Of a drive, without commands."""
    drives = system_of("h200-nvme", "tier.nvme.access=load", f"tier.nvme.devices={devices}")
    checks = run(drives)
    assert [check for check in checks if not check.passed] == []
    scattered = found(checks, "nvme", "random 4096 B")
    in_flight = 576 // 32 * 4096  # tags, in whole units of 32 packets of 128 B
    assert scattered.most == pytest.approx(1.01 * in_flight / 61.5e-6, rel=0.001)
    assert scattered.bound == "pcie tags"


def test_streams_reach_what_is_in_flight_or_what_their_path_sustains():
    """576 tags of 128 B over a round trip; the same of bytes in flight; the path where neither binds."""
    fast = system_of("h200-host", "link.pcie.bandwidth=128 GB/s")
    way = Way(fast, 0, 1)
    mbps, bound = closed_form.reached_stream(way)
    requests = 576 // (8192 // 128)  # whole ones
    assert mbps == requests * 8192 * 10**6 // round_trip_ps(way, 8192, 16384)
    assert bound == "pcie tags"
    assert mbps < path_of(way)[0]
    flash = system_of("hbf")
    requests = 132 * (flash.initiators[0].lent_bytes(132) // 8192)
    expected = requests * 8192 * 10**6 // round_trip_ps(Way(flash, 0, 2), 8192, 16384)
    assert closed_form.reached_stream(Way(flash, 0, 2)) == (expected, "gpu bytes in flight")
    assert closed_form.reached_stream(Way(flash, 0, 1)) == path_of(Way(flash, 0, 1))
    copying = Way(flash, 1, 2)
    alone, copied = closed_form.reached_stream(copying), closed_form.reached_copy(copying)
    assert alone[1] == copied[1] == "copy bytes in flight"
    assert copied[0] < alone[0]


def test_copies_inside_the_first_tier_read_and_write_it_in_turn():
    wide = system_of("h200", "initiator.copy.unit_outstanding=64 MiB")
    reads_mbps, writes_mbps = (tier_mbps(wide.tiers[0], write) for write in (False, True))
    assert closed_form.reached_copy(Way(wide, 1, 0)) == (int(1 / (1 / reads_mbps + 1 / writes_mbps)), "hbm")


def test_operations_are_named_where_they_bind():
    few = system_of("h200-nvme", "tier.nvme.interleave=4 KiB")
    mbps, part = path_of(Way(few, 0, 2, write=True))
    assert (mbps, part) == (400_000 * 4096 // 10**6, "nvme operations")
    assert path_of(Way(system_of("h200-nvme"), 0, 2, write=True)) == (9_650, "nvme")


def test_a_round_trip_by_hand():
    system = system_of("h200-host")
    link, tier = system.links[0], system.tiers[1]
    headers = link.header_bytes * 64 // min(64, 128)  # one packet
    wire_ps = -(-headers * 10**6 // link.mbps[1]) - (-(64 + headers) * 10**6 // link.mbps[0])
    served_ps = -(-64 * 10**6 // tier.channel_mbps[0])
    way = Way(system, 0, 1)
    assert round_trip_ps(way, 64, 64) == 2 * link.latency_ps + tier.latency_ps[0] + wire_ps + served_ps
    assert round_trip_ps(way, 64, 64, begin=1) == tier.latency_ps[0] + served_ps


def test_a_write_behind_the_cache_by_hand():
    """It ends in the cache when a line has left it; another initiator's is gathered, or waits until that is
    written."""
    system = system_of("h200", "tier.hbm.write_buffer=16 KiB", "initiator.gpu.port_write=250 GB/s")
    cache = system.cache
    wire_ps = -(-8192 * 10**6 // cache.mbps[1])
    stored = Way(system, 0, 0, write=True)
    assert round_trip_ps(stored, 8192, 8192) == system.tiers[0].latency_ps[1] > cache.latency_ps + wire_ps
    quick = Way(system_of("h200", "cache.l2.latency=1 us"), 0, 0, write=True)
    assert round_trip_ps(quick, 8192, 8192) == 1_000_000 + wire_ps
    assert path_of(stored) == (tier_mbps(system.tiers[0], True), "hbm")
    slow = system_of("h200", "cache.l2.write_bandwidth=2 TB/s")
    assert path_of(Way(slow, 0, 0, write=True)) == (2_000_000, "l2")
    assert path_of(Way(slow, 0, 0)) == path_of(Way(system, 0, 0))
    copied = Way(system, 1, 0, write=True)
    assert round_trip_ps(copied, 8192, 8192) == system.tiers[0].latency_ps[1]
    few = Way(system_of("h200", "tier.hbm.write_buffer=256 B"), 1, 0, write=True)
    served_ps = -(-512 * 10**6 // few.holder.channel_mbps[1])
    assert round_trip_ps(few, 8192, 8192) == system.tiers[0].latency_ps[1] + served_ps


def test_the_ports_of_the_units_bind_what_has_no_link():
    thin = system_of("h200-host", "initiator.gpu.port=1 GB/s", "initiator.gpu.port_write=2 GB/s")
    assert path_of(Way(thin, 0, 0)) == (132_000, "gpu ports")
    assert path_of(Way(thin, 0, 0, write=True)) == (264_000, "gpu ports")
    assert path_of(Way(thin, 0, 1)) == path_of(Way(system_of("h200-host"), 0, 1))
    tier = thin.tiers[0]
    assert round_trip_ps(Way(thin, 0, 0), 8192, 8192) == tier.latency_ps[0] + 8_192_000
    assert round_trip_ps(Way(thin, 0, 0, write=True), 8192, 8192) == 4_096_000
    copying = system_of("h200-host", "initiator.copy.port_write=1 GB/s")
    assert round_trip_ps(Way(copying, 1, 0, write=True), 8192, 8192) == 8_192_000
    assert round_trip_ps(Way(thin, 0, 1), 64, 64) == round_trip_ps(Way(system_of("h200-host"), 0, 1), 64, 64)


def test_a_cache_that_holds_all_that_a_check_writes_does_not_hide_its_tier():
    large = [check for check in run("h200", ["cache.l2.capacity=100 GB"]) if check.part == "hbm"]
    assert [check.what for check in large] == ["reads", "writes", "one load", "random 32 B", "single 64 B"]
    assert [check for check in large if not check.passed] == []


def boast(monkeypatch, percent):
    """Let closed forms promise so much more of paths and tiers."""
    path, tier = closed_form.path_bandwidth, closed_form.tier_mbps

    def more_of_path(*arguments):
        mbps, part = path(*arguments)
        return mbps * (100 + percent) // 100, part

    monkeypatch.setattr(closed_form, "path_bandwidth", more_of_path)
    monkeypatch.setattr(closed_form, "tier_mbps", lambda *a: tier(*a) * (100 + percent) // 100)


@pytest.mark.parametrize(("percent", "part"), [(1, "host"), (200, "hbm")])
def test_a_promise_that_the_replay_does_not_keep_fails(monkeypatch, percent, part):
    """1% where it is exact; where uneven queues leave a range, what lies outside it."""
    boast(monkeypatch, percent)
    machine = system_of("h200-host", "link.pcie.tags=2048")
    checks = [check for check in run(machine) if check.part == part]
    assert {check.what for check in checks if not check.passed} == {"reads", "writes"}


def test_a_tier_that_is_slower_than_its_latency_says_fails(monkeypatch):
    slow = replace(system_of("h200"), name="slow")
    honest = round_trip_ps(Way(slow, 0, 0), 32, 32)
    monkeypatch.setattr(machine_check, "round_trip_ps", lambda *arguments: honest - 1)
    assert {check.what for check in run(slow) if not check.passed} == {"one load", "single 64 B"}


def test_more_in_flight_than_needed_is_exact_and_less_is_a_range():
    """Plenty over a link; a tier that binds is never exact, for its channels are uneven."""
    system = system_of("h200-host", "link.pcie.tags=2048")
    assert expected_stream(Way(system, 0, 1)).exact
    few = system_of("h200-host", "link.pcie.tags=64")
    assert not expected_stream(Way(few, 0, 1)).exact
    ranges = []
    for units in (10, 132, 1320):
        way = Way(system_of("h200", f"initiator.gpu.units={units}", "initiator.gpu.outstanding=1 GB"), 0, 0)
        expected = expected_stream(way)
        assert not expected.exact
        assert expected.least_mbps < expected.most_mbps <= 1.005 * path_of(way)[0]
        ranges.append((expected.least_mbps, expected.most_mbps))
    assert ranges == sorted(ranges)
    assert ranges[0][1] < path_of(way)[0] / 2
    assert ranges[2][0] > 0.85 * ranges[2][1]


def test_channels_are_busy_as_long_as_dice_leave_them():
    """Requests of one piece, all that is in flight on the channels: n of them keep c channels busy for
    n / (n + c) of the time, one short of the closed form of a network of queues."""
    system = system_of("h200")
    way = Way(system, 0, 0)
    piece_ps = 512 * 10**6 / way.holder.channel_mbps[0]
    for requests in (1, 192, 19_200):
        limit = closed_form.Limit("all", requests, 512, int(piece_ps))
        found_mbps = closed_form._dice_mbps(limit, way)
        expected = requests / (requests + way.holder.channels) * path_of(way)[0]
        assert found_mbps == pytest.approx(expected, rel=1e-3)


def test_a_stream_finds_its_channels_as_busy_as_dice_leave_them():
    """The bound holds over a range of bytes in flight, and says something: 0.45 of what is found at least."""
    for kib in (8, 16, 64, 512):
        system = machine_check._bare(system_of("h200", f"initiator.gpu.unit_outstanding={kib} KiB"))
        for write in (False, True):
            check = machine_check.stream(Way(system, 0, 0, write))
            assert check.passed
            assert check.least > 0.45 * check.found


@pytest.mark.parametrize(
    ("least", "most", "value", "passed"),
    [(1.0, 2.0, 1.0, True), (1.0, 2.0, 0.99, False), (0.0, 2.0, 2.01, False), (0.0, 2.0, 0.0, True)],
)
def test_a_check_passes_inside_its_bounds(least, most, value, passed):
    assert Check("hbm", "reads", "bytes/s", least, most, value, "hbm").passed is passed


def test_the_table_says_what_was_expected_and_found(capsys):
    checks = [
        Check("hbm", "reads", "bytes/s", 4.40e12, 4.42e12, 4.41e12, "hbm"),
        Check("host", "reads", "bytes/s", 1e10, 5e10, 6e10, "pcie tags"),
        Check("host by copy", "writes", "bytes/s", 1e10, 5e10, 2e10, "pcie, copy bytes in flight"),
        Check("host by copy", "smallest copy", "bytes/s", 1e10, 2e10, 1.5e10, "pcie"),
        Check("hbm", "random 32 B", "bytes/s", 0.0, 4.42e12, 3e12, "a stream"),
        Check("hbm", "one load", "s", 3.46e-7, 3.46e-7, 3.46e-7, "latency"),
    ]
    report.show(machine_check.table(checks))
    printed = capsys.readouterr().out.splitlines()[2:]
    assert max(map(len, printed)) <= 80
    lines = [" ".join(line.split()) for line in printed]
    assert lines == [
        "hbm reads 4.41 TB/s 4.41 TB/s hbm ok",
        "host reads 10.0 GB/s to 60.0 GB/s pcie tags FAILED",
        "50.0 GB/s",
        "host by copy writes 10.0 GB/s to 20.0 GB/s pcie, copy bytes wide",
        "50.0 GB/s in flight",
        "host by copy smallest copy 10.0 GB/s to 15.0 GB/s pcie ok",
        "20.0 GB/s",
        "hbm random 32 B to 4.42 TB/s 3.00 TB/s a stream ok",
        "hbm one load 346 ns 346 ns latency ok",
    ]


def test_the_command_prints_the_checks_and_ends_with_3_if_one_fails(capsys, monkeypatch):
    passing = Check("hbm", "reads", "bytes/s", 1.0, 2.0, 1.5, "hbm")
    monkeypatch.setattr(machine_check, "run", lambda *arguments: [passing])
    assert cli.run(["machines", "check", "h200", "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert (printed["passed"], printed["verdict"]) == (True, "ok")
    assert printed["found"] == 1.5
    monkeypatch.setattr(machine_check, "run", lambda *arguments: [passing, replace(passing, found=3.0)])
    assert cli.run(["machines", "check", "h200"]) == 3
    out = capsys.readouterr()
    assert "FAILED" in out.out
    assert out.err == "Error: h200: 1 of 2 checks failed\n"
