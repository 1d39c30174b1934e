"""`machines lint`: all that is wrong with a machine, and what is doubtful about it."""

from __future__ import annotations

import pytest
from machine_samples import LEVELS, SMALL, changed, profile, toml

from hwprofiles import machine_names
from memsim.errors import ProfileError
from memsim.lint import Finding, lint, lint_machine
from memsim.profile import load_machine
from memsim.route import build_system

# A machine whose host answers late, so that its numbers can be doubtful one at a time.
LATE = changed(SMALL, ('"100 ns"', '"60 us"'), ("= 800\ncr", "= 999999\ncr"), ("= 800\np", "= 999999\np"))


def found(folder, *changes: tuple[str, str], text: str = SMALL) -> list[tuple[str, str, str]]:
    findings = lint(profile(folder, changed(text, *changes)))
    return [(finding.level, finding.where, finding.message) for finding in findings]


def test_a_plain_machine_has_no_findings(tmp_path):
    assert found(tmp_path) == []
    assert found(tmp_path, text=LATE) == []


@pytest.mark.parametrize(
    ("old", "new", "where", "words"),
    [
        ("64 GB/s", "12500 GB/s", "link.pcie.bandwidth", "12.5 TB/s each way; PCIe 6 x16, the fastest"),
        ("[link.pcie]", "[link.My-RDMA]", None, ""),
        ('= "500 ns"', '= "4.9 ns"', "link.pcie.latency", "4.9 ns: light takes 5.00 ns through a metre"),
        ('= "500 ns"', '= "9 ns"', "link.pcie.latency", "9 ns: nothing of this kind takes less than 10.0 ns"),
        ('= "100 ns"', '= "9 ns"', "tier.host.latency", "9 ns: nothing of this kind takes less than 10.0 ns"),
        ('= "200 ns"', '= "1 ns"', "cache.l2.latency", "1 ns: nothing of this kind takes less than 10.0 ns"),
        ("0.95", "0.999", "link.pcie.efficiency", "0.999: nothing sustains more than 99% of its peak"),
        ("0.8\n", '0.8\nwrite_efficiency = "100%"\n', "tier.host.write_efficiency", "100%: nothing sustains"),
        ("tags = 800", "tags = 450", "link.pcie.tags", "450; 452 are needed for the 52.6 GB/s of 'host'"),
        ("tags = 800", "tags = 452", None, ""),
        ("credits = 800", "credits = 1", "link.pcie.credits", "1; 452 are needed for the 52.6 GB/s of"),
        ('"20 B"', '"300 B"', "link.pcie.header", "300 B on at most 256 B of data"),
        ("1000 GB", "1000 GiB", "tier", "GB (10^9) and GiB (2^30) side by side: hbm 100 GB, host 1000 GiB"),
        ('"1000 GB"', '"2049 B"', "tier.host.capacity", "2,049 B are no whole number of stripes of 2,048 B"),
        ('"1000 GB"', '"2050049 B"', None, ""),
        ("4 USD", "11 USD", None, ""),  # prices do rise down the tiers
        ('"4 TB/s"', '"23 TB/s"', "tier.hbm.bandwidth", "23.0 TB/s a device; the HBM4 of an NVIDIA"),
        ('"4 TB/s"', '"22 TB/s"', "cache.l2.bandwidth", "10.0 TB/s of hits; 'hbm' behind it gives 19.8 TB/s"),
        ('"4 TB/s"', '"11 TB/s"', None, ""),
        ("50 MB", "269 MB", "cache.l2.capacity", "269 MB; the Infinity Cache of an AMD Instinct MI300X, the"),
        ("50 MB", "268 MB", None, ""),
        ("100 GB", "50 MB", "cache.l2.capacity", "it holds all of 'hbm', which has 50.0 MB"),
        ('= "200 ns"', '= "300 ns"', "cache.l2.latency", "a hit takes 300 ns; a miss, in 'hbm', 300 ns"),
        ('= "200 ns"', '= "299 ns"', None, ""),
        (
            '"32 B"\n',
            '"32 B"\nturnaround = "72.82 ns"\n',
            "tier.hbm.turnaround",
            "72.8 ns; 4,096 B of a channel of",
        ),
        ('"32 B"\n', '"32 B"\nturnaround = "72.81 ns"\n', None, ""),
        ("setup =", 'port = "1 GB/s"\nsetup =', None, ""),  # of the copy engine, whose rate it is
        (
            '"128 B"\n',
            '"128 B"\nport = "218 GB/s"\n',
            "initiator.gpu.port",
            "218 GB/s; 65.5 kB outstanding over 300 ns",
        ),
        ('"128 B"\n', '"128 B"\nport = "219 GB/s"\nport_write = "36 GB/s"\n', None, ""),
        (
            '"128 B"\n',
            '"128 B"\nport_write = "35 GB/s"\n',
            "initiator.gpu.port_write",
            "3.50 TB/s in all units; 'hbm'",
        ),
        ('"200 GB/s"', '"20 TB/s"', "tier.host.bandwidth", "20.0 TB/s a device; a server with two AMD EPYC"),
        ("0.8\n", '0.8\nwrite_bandwidth = "4 TB/s"\n', "tier.host.write_bandwidth", "4.00 TB/s a device; a"),
        ('"64 KiB"', '"1 KiB"', "initiator.gpu.unit_outstanding", "102 kB in all units; 1.08 MB are needed"),
    ],
)
def test_what_is_doubtful_is_a_warning(tmp_path, old, new, where, words):
    warnings = found(tmp_path, (old, new))
    if where is None:
        assert warnings == []
        return
    assert {warning[0] for warning in warnings} == {"warning"}
    (message,) = [message for _, place, message in warnings if place == where]
    assert words in message


@pytest.mark.parametrize(
    ("old", "new", "where", "words"),
    [
        ("4 GiB", "4 GiB", None, ""),
        ("4 GiB", "932 GiB", "far.reach", "932 GiB: it covers all of 'host', so nothing misses it"),
        ("4 GiB", "931 GiB", None, ""),
        ('"400 ns"', '"299 ns"', None, ""),  # who misses both levels waits for both
        ("4 GiB", "255 MiB", "near.rate", "walks a second; 'far', whose misses it gets, has"),
        (
            "= 40000000",
            "= 110000001",
            "far.rate",
            "110000001 walks a second; 'near', whose misses it gets, has",
        ),
        (
            '"300 ns"\nrate',
            '"9 ns"\nrate',
            "near.latency",
            "9 ns: nothing of this kind takes less than 10.0 ns",
        ),
    ],
)
def test_levels_of_translation_grow(tmp_path, old, new, where, words):
    text = SMALL + changed(LEVELS, (old, new))
    warnings = {place: message for _, place, message in found(tmp_path, text=text)}
    if where is None:
        assert warnings == {}
    else:
        assert words in warnings[f"tier.host.translation.{where}"]


@pytest.mark.parametrize(
    ("share", "words"), [(0.8, None), (0.9, "3.50 TB/s in all units; 'hbm' gives 3.60 TB/s")]
)
def test_ports_of_writes_are_held_against_writes(tmp_path, share, words):
    slow = ("efficiency = 0.9\n", f"efficiency = 0.95\nwrite_efficiency = {share}\n")
    warnings = found(tmp_path, slow, ('"128 B"\n', '"128 B"\nport_write = "35 GB/s"\n'))
    assert [warning[2] for warning in warnings] == ([words] if words else [])


def test_a_stream_must_not_wait_for_its_pages(tmp_path):
    """52,583 MB/s in pages of 64 KiB are 802,352 a second."""
    enough = changed(LEVELS, ("110000000", "802500"), ("40000000", "802000"))
    assert found(tmp_path, text=SMALL + enough) == []
    few = changed(enough, ("802500", "802200"))
    ((_, where, words),) = found(tmp_path, text=SMALL + few)
    assert where == "tier.host.translation"
    needed = "a stream of 52.6 GB/s in pages of 65.5 kB needs 802,352 look-ups a second"
    assert words == f"{needed}; the level that reaches 268 MB has 802,199"


@pytest.mark.parametrize(
    ("keys", "where", "words"),
    [
        ("queue_depth = 385", "tier.host.queue_depth", "385; 386 pieces of 8,192 B are needed for the 52.6"),
        ("queue_depth = 386", None, ""),
        ('tail = [[0.01, "2 us"]]', "tier.host.tail", "hardly slower than usual: 2.00 us more than 60.0 us"),
        ('tail = [[0.6, "5 us"]]', "tier.host.tail", "its first step takes more than half of all requests"),
        ('tail = [[0.01, "5 us"]]', None, ""),
    ],
)
def test_a_late_tier_needs_a_deep_queue_and_has_a_real_tail(tmp_path, keys, where, words):
    disk = changed(LATE, ('"256 B"\nunit', '"16 KiB"\nunit'))
    warnings = found(tmp_path, ("= 8\n", f"= 8\n{keys}\n"), text=disk)
    assert [warning[1] for warning in warnings] == ([where] if where else [])
    assert all(words in message for _, _, message in warnings)


def test_a_tier_that_is_further_on_the_same_way_and_faster_is_doubtful(tmp_path):
    ((level, where, words),) = found(tmp_path, ('"4 TB/s"', '"40 GB/s"'))
    assert (level, where) == ("warning", "tier.host")
    assert words == "52.6 GB/s after 1.10 us; 'hbm', which is nearer (300 ns), has 36.0 GB/s"


def test_a_tier_on_another_way_may_be_further_away_and_faster(tmp_path):
    assert found(tmp_path, ('"300 ns"', '"1.2 us"')) == []
    assert [finding.where for finding in lint_machine("8xh200")] == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nvme", "200 GB/s a device; a drive on PCIe 6 x4, the fastest of its kind, has 32.0 GB/s"),
        ("cxl", None),
    ],
)
def test_a_memory_is_no_faster_than_the_fastest_of_its_kind(tmp_path, kind, words):
    warnings = found(tmp_path, ("[tier.host]", f"[tier.{kind}]"), ("\nhost =", f"\n{kind} ="))
    assert warnings == ([("warning", f"tier.{kind}.bandwidth", words)] if words else [])


def test_a_storage_tier_behind_tags_is_told_of_commands():
    findings = lint_machine("h200-nvme", ["tier.nvme.access=load", "link.pcie.credits=768"])
    assert [finding.where for finding in findings] == ["link.pcie.tags", "link.pcie.credits"]
    remedy = '; if the device moves data by itself, set tier.nvme.access = "command"'
    assert all(finding.message.endswith(remedy) for finding in findings)
    (memory,) = lint_machine("h200-host", ["link.pcie.tags=5"])
    assert "access" not in memory.message


def test_what_follows_from_a_fault_is_not_listed_beside_it():
    def errors(machine: str, override: str) -> list[str]:
        return [finding.where for finding in lint_machine(machine, [override]) if finding.level == "error"]

    assert errors("h200-host", 'link.pcie.between=["gpu", "gpu"]') == ["link.pcie.between"]
    assert errors("h200-cxl", 'link.cxl-link.between=["gpu", "cpu"]') == ["link.cxl-link.between"]
    assert errors("h200-nvme", 'link.pcie.between=["gpu", "box"]') == ["tier.host.attach", "tier.nvme.attach"]
    assert errors("h200-cxl", 'link.pcie.between=["gpu", "box"]') == ["tier.host", "tier.cxl", "tier.hbm"]


@pytest.mark.parametrize("name", machine_names())
def test_shipped_machines_have_no_doubts_but_for_one_that_is_the_point(name):
    doubts = {"hbf": ["initiator.gpu.outstanding"]}
    assert [finding.where for finding in lint_machine(name)] == doubts.get(name, [])


def test_all_faults_of_how_tables_fit_are_listed(tmp_path):
    errors = found(
        tmp_path,
        ("l2]\nattach = gpu", "l2]\nattach = copy"),
        ('"200 GB/s"', '"2 MB/s"'),
        ("attach = cpu", "attach = cup"),
        ('"500 ns"', '"1 ns"'),
    )
    assert [error[:2] for error in errors] == [
        ("error", "cache.l2.attach"),
        ("error", "tier.host.bandwidth"),
        ("error", "tier.host.attach"),
        ("warning", "link.pcie.latency"),
    ]


def test_all_faults_of_keys_are_listed(tmp_path):
    path = tmp_path / "mine.toml"
    broken = changed(SMALL, ("tags =", "tgas ="), ("= 100\n", "= 0\n"), ('"1000 GB"', '"-1 GB"'))
    path.write_text(toml(broken))
    findings = lint_machine(path)
    assert {finding.level for finding in findings} == {"error"}
    where = [finding.where for finding in findings]
    assert where == ["link.pcie.tgas", "initiator.gpu.units", "tier.host.capacity"]
    assert findings[0].message == "unknown key; did you mean 'tags'?"


def test_a_file_that_cannot_be_read_is_no_finding(tmp_path):
    with pytest.raises(ProfileError, match="no such machine file"):
        lint_machine(tmp_path / "none.toml")


def test_options_are_linted_too():
    (first, *_) = lint_machine("h200-host", ["link.pcie.bandwidth=12500 GB/s"])
    assert first.where == "link.pcie.bandwidth"
    words = "0 is not a count: expected a whole number from 1 on, such as 96"
    assert lint_machine("h200-host", ["link.pcie.tags=0"]) == [Finding("error", "link.pcie.tags", words)]


def test_tags_are_held_from_their_link_outward():
    """26.88 GB/s over the 237 ns from the link on, in lines of 64 B; the way before it is not counted."""

    def words(tags: int) -> list[str]:
        found = lint_machine("h200-cxl", [f"link.cxl-link.tags={tags}"])
        return [finding.message for finding in found if finding.where == "link.cxl-link.tags"]

    assert words(100) == []
    assert words(99) == ["99; 100 are needed for the 26.9 GB/s of 'cxl' over 237 ns"]


@pytest.mark.parametrize("name", machine_names())
def test_what_lints_without_an_error_can_be_built(name):
    assert all(finding.level == "warning" for finding in lint_machine(name))
    assert build_system(load_machine(name)).name == name
