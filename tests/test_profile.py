"""Machine files: what they say reaches the engines exactly, and every fault of one is a line of words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hwprofiles import machine_names, machine_path
from memsim import trace_schema
from memsim.errors import ProfileError
from memsim.profile import PROVENANCES, load_machine, worst
from memsim.route import build_system
from memsim.system import Link, Tier

HOST = machine_path("h200-host").read_text()
H200 = machine_path("h200").read_text()


def load(tmp_path: Path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return build_system(load_machine(path))


def test_the_machines_that_come_with_it():
    assert machine_names() == ["h200", "h200-cxl", "h200-host"]


@pytest.mark.parametrize("name", machine_names())
def test_every_number_says_where_it_comes_from(name):
    system = build_system(load_machine(name))
    assert len({number.path for number in system.inputs}) == len(system.inputs) >= 17
    assert all(number.source and number.provenance for number in system.inputs)


def test_h200_is_what_its_datasheet_says():
    system = build_system(load_machine("h200"))
    (hbm,) = system.tiers
    assert hbm == Tier("hbm", 141 * 10**9, 96, 46_000, 512, 32, 345_000, 4_800_000)
    assert (system.cache.name, system.cache.capacity_bytes) == ("l2", 50 * 10**6)
    assert system.initiator.units == 132
    assert system.initiator.bf16_mflops == 989_000_000 // 132
    assert system.routes == ((),)


def test_the_host_lies_behind_pcie_and_holds_what_hbm_cannot():
    system = build_system(load_machine("h200-host"))
    assert [tier.name for tier in system.tiers] == ["hbm", "host"]
    assert system.links == (Link("pcie", 55_440, 63_000, 545_000, 768, 128),)
    assert system.routes == ((), (0,))
    deepseek_v3_at_10m_bytes = 61 * 1152 * 10 * 2**20
    assert sum(tier.capacity_bytes for tier in system.tiers) > deepseek_v3_at_10m_bytes


def test_the_expander_lies_behind_the_host():
    system = build_system(load_machine("h200-cxl"))
    assert [tier.name for tier in system.tiers] == ["hbm", "host", "cxl"]
    assert system.routes[system.tier_index("cxl")] == (0, 1)
    assert [link.name for link in system.links] == ["pcie", "cxl-link"]


@pytest.mark.parametrize("name", machine_names())
def test_tags_suffice_for_the_bandwidth_of_every_route(name):
    """Little's law: what is outstanding covers the way there and back at the narrowest link's rate."""
    system = build_system(load_machine(name))
    for tier, route in zip(system.tiers, system.routes, strict=True):
        links = [system.links[link] for link in route]
        way_ps = tier.latency_ps + 2 * sum(link.latency_ps for link in links)
        for link in links:
            assert link.tags * link.tag_bytes * 10**6 // way_ps > min(each.mbps for each in links)


def test_a_route_is_the_one_of_least_latency(tmp_path):
    link = HOST[HOST.index("[link.pcie]") :]
    slow = link.replace("[link.pcie]", "[link.slow]").replace('["gpu", "cpu"]', '["gpu", "box"]')
    fast = link.replace("[link.pcie]", "[link.fast]").replace('["gpu", "cpu"]', '["cpu", "box"]')
    text = HOST + slow.replace("545 ns", "900 ns") + fast.replace("545 ns", "300 ns")
    system = load(tmp_path, text.replace('attach = "cpu"', 'attach = "box"'))
    names = [link.name for link in system.links]
    assert [names[link] for link in system.routes[1]] == ["pcie", "fast"]


def test_a_machine_of_ones_own_extends_a_file_beside_it(tmp_path):
    (tmp_path / "base.toml").write_text(HOST)
    number = '{ value = "2000 GB", provenance = "stated", source = "mine" }'
    system = load(
        tmp_path, f'extends = "base.toml"\nname = "mine"\ntitle = "t"\n[tier.host]\ncapacity = {number}\n'
    )
    base = build_system(load_machine("h200-host"))
    assert system.tiers[1].capacity_bytes == 2000 * 10**9
    assert system.tiers[1].channel_mbps == base.tiers[1].channel_mbps
    assert system.name == "mine"
    assert ("tier.host.capacity", "stated") in {(number.path, number.provenance) for number in system.inputs}


def test_a_new_value_never_keeps_the_old_source(tmp_path):
    text = 'extends = "h200"\nname = "m"\ntitle = "t"\n[tier.hbm]\ncapacity = { value = "80 GB" }\n'
    with pytest.raises(ProfileError, match=r"tier\.hbm\.capacity\.provenance: missing.*next to its value"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("capacity =", "capacty =", "tier.host.capacty: unknown key; did you mean 'capacity'?"),
        ("[tier.host]", "[teir.host]", "teir: unknown key; did you mean 'tier'?"),
        ("[tier.host]", '[tier."a=b"]', "tier.a=b: found 'a=b', expected a name of letters"),
        ('"1000 GB"', '"1000"', "tier.host.capacity: '1000' is not a size: it has no unit"),
        ('"1000 GB"', "1000", "tier.host.capacity: 1000 is not a size"),
        ('"1000 GB"', "true", "tier.host.capacity: True is not a size"),
        ('"1000 GB"', '"0 GB"', "tier.host.capacity: '0 GB' is out of range; expected 1 B to 10 PB"),
        ('"1000 GB"', '"10001 TB"', "tier.host.capacity: '10001 TB' is out of range; expected 1 B to 10 PB"),
        ('"307.2 GB/s"', '"1001 TB/s"', "bandwidth: '1001 TB/s' is out of range; expected 1 MB/s to 1 PB/s"),
        ('"63 GB/s"', '"0 GB/s"', "link.pcie.bandwidth: '0 GB/s' is out of range; expected 1 MB/s"),
        ("value = 8,", "value = 4097,", "tier.host.channels: 4097 is out of range; expected 1 to 4,096"),
        ("value = 8,", "value = 0,", "tier.host.channels: 0 is not a count"),
        ('"111 ns"', '"0 ns"', "tier.host.latency: '0 ns' is out of range; expected 1 ps to 1 s"),
        ('"545 ns"', '"0 ns"', "link.pcie.latency: '0 ns' is out of range; expected 1 ps to 1 s"),
        ('"545 ns"', '"1.1 s"', "link.pcie.latency: '1.1 s' is out of range; expected 1 ps to 1 s"),
        ("value = 768,", "value = 0,", "link.pcie.tags: 0 is not a count"),
        ("value = 768,", "value = 1000000001,", "tags: 1000000001 is out of range; expected 1 to 10^9"),
        ('"128 B"', '"2 GiB"', "link.pcie.tag_bytes: '2 GiB' is out of range; expected 1 B to 1 GiB"),
        ('"256 B"', '"96 B"', "tier.host.interleave: '96 B' is no power of two; expected '64 B' or '128 B'"),
        ('"64 B"', '"48 B"', "tier.host.unit: '48 B' is no power of two; expected '32 B' or '64 B'"),
        ('"256 B"', '"4 GiB"', "tier.host.interleave: '4 GiB' is out of range; expected 1 B to 1 GiB"),
        ("0.87", "1.87", "tier.host.efficiency: 1.87 is not a share"),
        ("0.87", "inf", "tier.host.efficiency: inf is not a share"),
        ("0.87", "nan", "tier.host.efficiency: nan is not a share"),
        ('"measured"', '"measurd"', "efficiency.provenance: found 'measurd'; did you mean 'measured'?"),
        ('source = "depends', 'sauce = "depends', "interleave.sauce: unknown key; did you mean 'source'?"),
        ('"depends on the firmware\'s settings"', '""', "tier.host.interleave.source: is empty"),
        ('attach = "cpu"', 'attach = "cup"', "tier.host.attach: no node 'cup'; did you mean 'cpu'?"),
        ('["gpu", "cpu"]', '["cpu", "switch"]', "tier.host: no route from 'gpu' to 'cpu'; add a [link.NAME]"),
        ('["gpu", "cpu"]', '["cpu", "cpu"]', "link.pcie.between: joins 'cpu' to itself"),
        ('["gpu", "cpu"]', '["gpu", "a", "b"]', "between: found ['gpu', 'a', 'b'], expected two nodes"),
        ("[link.pcie]", "[link.host]", "link.host: a tier has this name; rename the link to 'host-link'"),
        ('extends = "h200"', 'extends = "h20"', "extends: unknown machine 'h20'; did you mean 'h200'?"),
        ('extends = "h200"', 'extends = "mine.toml"', "extends 'mine.toml', which extends this file again"),
        ('extends = "h200"', 'extends = "none.toml"', "none.toml: no such machine file"),
        ('extends = "h200"', "extends = 3", "extends is 3; expected the name of a machine or a path"),
        ('name = "h200-host"', "", "no name; a machine that extends another needs its own"),
        ('"256 B"', '"32 B"', "tier.host.interleave: 32 B is no multiple of the tier's unit, 64 B"),
        ('"307.2 GB/s"', '"2 MB/s"', "tier.host.bandwidth: less than 1 MB/s a channel"),
        ("[tier.host]", "[tier.host", "not valid TOML"),
        ("[link.pcie]", "[tier.host]", "not valid TOML: Cannot declare ('tier', 'host') twice"),
    ],
)
def test_a_fault_of_a_file_is_one_line(tmp_path, old, new, words):
    assert old in HOST
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        load(tmp_path, HOST.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name: missing; every machine needs it"),
        (H200.replace("[cache.l2]", "[cache]"), "cache.attach: found 'gpu', expected a table with a name"),
        (H200.replace('l2]\nattach = "gpu"', 'l2]\nattach = "cpu"'), "expected the initiator 'gpu'"),
        (H200[: H200.index("[tier.hbm]")] + "[tier]\n", "no tier; add one [tier.NAME] at least"),
        (H200[: H200.index("[tier.hbm]")], "tier: missing; every machine needs it, add [tier.NAME]"),
        (H200.replace("[initiator.gpu]", "[initiator]"), "write [initiator.NAME] above its keys"),
        (H200.replace("= 132", "= 65537"), "gpu.units: 65537 is out of range; expected 1 to 65,536"),
        (H200.replace('"1.3 us"', '"2 s"'), "launch_gap: '2 s' is out of range; expected 0 ps to 1 s"),
        (H200.replace('"254 ns"', '"0 ns"'), "cache.l2.latency: '0 ns' is out of range; expected 1 ps"),
        (H200.replace('"10 TB/s"', '"2 PB/s"'), "cache.l2.bandwidth: '2 PB/s' is out of range"),
        (H200.replace('"64 KiB"', '"11 PB"'), "initiator.gpu.unit_outstanding: '11 PB' is out of range"),
        (H200.replace('"989 T', '"2000000 P'), "gpu.bf16: '2000000 PFLOP/s' is out of range"),
        (H200.replace('"67 TFLOP/s"', '"131 GFLOP/s"'), "gpu.fp32: 131000 MFLOP/s over 132 units is less"),
        (H200 + H200[H200.index("[cache.l2]") : H200.index("[tier")].replace("l2", "l3"), "found l2 and l3"),
    ],
)
def test_a_fault_of_a_whole_machine_is_one_line(tmp_path, text, words):
    with pytest.raises(ProfileError, match=re.escape(words)):
        load(tmp_path, text)


def test_two_links_between_the_same_nodes_are_refused(tmp_path):
    second = HOST[HOST.index("[link.pcie]") :].replace("[link.pcie]", "[link.other]")
    with pytest.raises(ProfileError, match="joins 'gpu' and 'cpu' as link.pcie does"):
        load(tmp_path, HOST + second)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("h2000", "unknown machine 'h2000'; did you mean 'h200'? (or give the path of a .toml file)"),
        ("tpu", "unknown machine 'tpu'; choose one of: h200, h200-cxl, h200-host"),
        ("none.toml", "none.toml: no such machine file; 'memsim machines list'"),
        ("/", "/: cannot be read: Is a directory"),
        ("/dev/zero", "/dev/zero: is a device, pipe or socket; expected a TOML file of text, at most 1 MB"),
        ("a\0b/", "cannot be read: embedded null byte"),
    ],
)
def test_a_machine_that_is_not_there(machine, words):
    with pytest.raises(ProfileError, match=re.escape(words)):
        load_machine(machine)


def test_a_binary_file_is_no_machine(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"name = \xff\xfe")
    with pytest.raises(ProfileError, match="not a text file in UTF-8: byte 7 is wrong"):
        load_machine(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ProfileError, match="is a device, pipe or socket"):
        load_machine(tmp_path / "pipe.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("x = " + "{a = " * 3000 + "1" + "}" * 3000, "nested too deeply"),
        (H200.replace("= 132", f"= {'9' * 10_000}"), "cannot be read: Exceeds the limit (4300 digits)"),
        (H200.replace("= 132", f"= {'9' * 4000}"), "gpu.units: 9999"),
        (
            H200.replace("= 132", f"= 0x{'f' * 10_000}"),
            "gpu.units: a value that is too long to show is not a",
        ),
        (H200.replace("0.92", f"0x{'f' * 10_000}"), "efficiency: a value that is too long to show is not a"),
        ("#" * 1_000_001, "has 1,000,001 bytes; expected a TOML file of text, at most 1 MB"),
        (
            'extends = "\\u0000.toml"\nname = "n"\ntitle = "t"',
            "extends is '\\x00.toml'; expected the name of",
        ),
        (H200.replace('"gpu"', f'"{"g" * 5000}"', 1), "cache.l2.attach"),
    ],
    ids=range(9),
)
def test_a_monstrous_file_is_one_short_line(tmp_path, text, words):
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(tmp_path)) + 250


def chain(folder: Path, length: int) -> Path:
    """A machine file that extends another, and so on: `length` files, the last of them h200."""
    for number in range(length - 1):
        base = "h200" if number == length - 2 else f"m{number + 1}.toml"
        text = f'extends = "{base}"\nname = "m{number}"\ntitle = "t"\n'
        (folder / f"m{number}.toml").write_text(text)
    return folder / "m0.toml"


def test_a_chain_of_machines_has_a_limit(tmp_path):
    assert load_machine(chain(tmp_path, 16)).name == "m0"
    with pytest.raises(
        ProfileError, match=r"m15\.toml: is file 16 of a chain of 'extends' and extends 'h200'"
    ):
        load_machine(chain(tmp_path, 17))
    with pytest.raises(ProfileError, match="expected at most 16 files; merge some of them"):
        load_machine(chain(tmp_path, 1200))


def test_a_mark_at_the_beginning_of_a_file_is_no_fault(tmp_path):
    assert load(tmp_path, "\ufeff" + H200).name == "h200"


def test_traces_know_the_same_provenances():
    assert trace_schema.PROVENANCES is PROVENANCES


def test_the_worst_provenance_wins():
    assert worst(["stated", "assumed", "measured"]) == "assumed"
    assert worst(["measured", "stated"]) == "stated"
    assert worst([]) == "measured"
