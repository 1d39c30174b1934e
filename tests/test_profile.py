"""Machine files: what they say is read exactly, and every fault of one is a line of words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from machine_samples import LEVELS, SMALL, changed, profile, system, toml

from hwprofiles import machine_path
from memsim import trace_schema
from memsim.errors import ProfileError
from memsim.profile import PROVENANCES, load_machine, worst
from memsim.profile_schema import GROUPS, WalkTable, effect_of, is_number
from memsim.route import build_system

H200 = machine_path("h200").read_text()
HEADER = 'name = "mine"\ntitle = "t"\n'


def load(tmp_path: Path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return build_system(load_machine(path))


def test_a_machine_of_ones_own_extends_a_file_beside_it(tmp_path):
    (tmp_path / "base.toml").write_text(toml(SMALL))
    number = '{ value = "2000 GB", provenance = "stated", source = "mine" }'
    mine = load(tmp_path, f'extends = "base.toml"\n{HEADER}[tier.host]\ncapacity = {number}\n')
    base = system(tmp_path, SMALL)
    assert mine.tiers[1].capacity_bytes == 2000 * 10**9
    assert mine.tiers[1].channel_mbps == base.tiers[1].channel_mbps
    assert mine.name == "mine"
    assert ("tier.host.capacity", "stated") in {(number.path, number.provenance) for number in mine.inputs}


def test_a_new_value_never_keeps_the_old_source(tmp_path):
    text = f'extends = "h200"\n{HEADER}[tier.hbm]\ncapacity = {{ value = "80 GB" }}\n'
    with pytest.raises(ProfileError, match=r"tier\.hbm\.capacity\.provenance: missing.*next to its value"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('capacity = "1000', 'capacty = "1000', "tier.host.capacty: unknown key; did you mean 'capacity'?"),
        ("[tier.host]", "[teir.host]", "teir: unknown key; did you mean 'tier'?"),
        ("[tier.host]", '[tier."a b"]', "tier.a b: found 'a b', expected a name of at most 40 letters"),
        ("[tier.host]", f"[tier.{'a' * 41}]", "expected a name of at most 40 letters"),
        ('"1000 GB"', '"1000"', "tier.host.capacity: '1000' is not a size: it has no unit"),
        ('"1000 GB"', "1000", "tier.host.capacity: 1000 is not a size"),
        ('"1000 GB"', "true", "tier.host.capacity: True is not a size"),
        ('"1000 GB"', '"0 GB"', "tier.host.capacity: '0 GB' is out of range; expected 1 B to 10 PB"),
        ('"1000 GB"', '"-1 GB"', "tier.host.capacity: '-1 GB' is not a size"),
        ('"1000 GB"', '"10001 TB"', "tier.host.capacity: '10001 TB' is out of range; expected 1 B to 10 PB"),
        ('"200 GB/s"', '"1001 TB/s"', "bandwidth: '1001 TB/s' is out of range; expected 1 MB/s to 1 PB/s"),
        ('"64 GB/s"', '"0 GB/s"', "link.pcie.bandwidth: '0 GB/s' is out of range; expected 1 MB/s"),
        ('"64 GB/s"', '"inf GB/s"', "link.pcie.bandwidth: 'inf GB/s' is not a bandwidth"),
        ("= 8\n", "= 4097\n", "tier.host.channels: 4097 is out of range; expected 1 to 4,096"),
        ("= 8\n", "= 0\n", "tier.host.channels: 0 is not a count"),
        ("= 8\n", "= 8\ndevices = 0\n", "tier.host.devices: 0 is not a count"),
        ("= 8\n", "= 8\nread_iops = 1.5\n", "tier.host.read_iops: 1.5 is not a count"),
        ("= 8\n", "= 8\ntail = 3\n", "tier.host.tail: 3 is not a tail: expected shares of requests"),
        ("= 8\n", '= 8\ntail = [[0.1, "2 s"]]\n', "0.1 2 s: a request that takes more than 1 s longer"),
        ('"100 ns"', '"0 ns"', "tier.host.latency: '0 ns' is out of range; expected 1 ps to 1 s"),
        ('"500 ns"', '"0 ns"', "link.pcie.latency: '0 ns' is out of range; expected 1 ps to 1 s"),
        ('"500 ns"', '"1.1 s"', "link.pcie.latency: '1.1 s' is out of range; expected 1 ps to 1 s"),
        ("tags = 800", "tags = 0", "link.pcie.tags: 0 is not a count"),
        ("tags = 800", "tags = 1000000001", "tags: 1000000001 is out of range; expected 1 to 10^9"),
        ("tags = 800", 'tag_bytes = "64 B"', "link.pcie.tag_bytes: unknown key; did you mean 'tags'?"),
        ('latency = "500 ns"\n', "", "link.pcie.latency: missing; every [link.NAME] needs it"),
        ('header = "20 B"', 'header = "4097 B"', "link.pcie.header: '4097 B' is out of range"),
        (
            'header = "20 B"',
            'header = "20 B"\ntransfer_efficiency = [["4 KiB", 0.001]]',
            "4 KiB 0.001: out of range; expected sizes to 1 GiB and shares from 1%",
        ),
        (
            'header = "20 B"',
            'header = "20 B"\nduplex = half',
            "link.pcie.duplex: found 'half'; choose one of: full, shared",
        ),
        ('request = "128 B"', 'request = "2 GiB"', "gpu.request: '2 GiB' is out of range"),
        ('"256 B"\nunit', '"96 B"\nunit', "'96 B' is no power of two; expected '64 B' or '128 B'"),
        ('unit = "64 B"', 'unit = "48 B"', "tier.host.unit: '48 B' is no power of two"),
        ("= 0.8\n", "= 1.8\n", "tier.host.efficiency: 1.8 is not a share"),
        ("= 0.8\n", "= inf\n", "tier.host.efficiency: inf is not a share"),
        ("= 0.8\n", "= nan\n", "tier.host.efficiency: nan is not a share"),
        ("= gpu cpu", "= gpu a b", "between: found ['gpu', 'a', 'b'], expected two nodes"),
        ("= gpu cpu", "= gpu", 'link.pcie.between.1: missing, expected two nodes, such as ["gpu", "cpu"]'),
        ('"15 pJ/bit"', '"15 W"', "tier.host.energy: '15 W' is not an energy: unknown unit 'W'"),
        ('"4 USD/GB"', '"4 EUR/GB"', "cost.2024.host: '4 EUR/GB' is not a price: unknown unit 'EUR/GB'"),
        ("setup =", 'port = "1 PB"\nsetup =', "copy.port: '1 PB' is not a bandwidth"),
        (
            "setup =",
            'port_write = "0 GB/s"\nsetup =',
            "port_write: '0 GB/s' is out of range; expected 1 MB/s",
        ),
        ('"200 ns"', '"200 ns"\ncopies = 0', "cache.l2.copies: 0 is not a count: expected a whole number"),
        ('"200 ns"', '"200 ns"\ncopies = 4097', "l2.copies: 4097 is out of range; expected 1 to 4,096"),
        ('"200 ns"', '"200 ns"\nways = 257', "l2.ways: 257 is out of range; expected 1 to 256"),
        ('"200 ns"', '"200 ns"\nwrite_bandwidth = 3', "cache.l2.write_bandwidth: 3 is not a bandwidth"),
        (
            "= 8\n",
            '= 8\nturnaround = "1.1 s"\n',
            "host.turnaround: '1.1 s' is out of range; expected 0 ps to",
        ),
        (
            "graph_launch = ",
            'work_latency = "1.1 s"\ngraph_launch = ',
            "work_latency: '1.1 s' is out of range; expected 0 ps to",
        ),
        ("= 8\n", '= 8\nwrite_buffer = "2 GiB"\n', "write_buffer: '2 GiB' is out of range; expected 0 B to"),
        (
            "= 8\n",
            "= 8\nloaded_latency = 3\n",
            "loaded_latency: 3 is not a loaded latency: expected shares of",
        ),
        (
            "= 8\n",
            '= 8\nloaded_latency = [[0.9, "2 s"]]\n',
            "0.9 2 s: a request that takes more than 1 s longer",
        ),
        ('"A machine for tests"', '"A\\u001b[31m machine"', "title: 'A\\x1b[31m machine' holds a character"),
        ('"A machine for tests"', '""', "title: is empty; write some words"),
    ],
)
def test_a_fault_of_a_key_is_one_line(tmp_path, old, new, words):
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        profile(tmp_path, changed(SMALL, (old, new)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("far]", "far.l3]", "far.l3: unknown key; choose one of: latency, page, rate, reach"),
        ("translation.far]", "translation]", "write [tier.host.translation.NAME] above its keys"),
        (
            "[tier.host.translation.near]",
            "[tier.host.translation.'a b']",
            "translation.a b: found 'a b', expected a name",
        ),
        (
            "[tier.host.translation.near]",
            "[tier.host.transl.near]",
            "host.transl: unknown key; did you mean 'tra",
        ),
        ("40000000\n", "0\n", "tier.host.translation.far.rate: 0 is not a count"),
        (
            '"64 KiB"\nlatency',
            '"96 KiB"\nlatency',
            "near.page: '96 KiB' is no power of two; expected '65536 B'",
        ),
        (
            '"64 KiB"\nlatency',
            '"2 GiB"\nlatency',
            "near.page: '2 GiB' is out of range; expected 1 B to 1 GiB",
        ),
        ('"300 ns"\nrate', '"0 ns"\nrate', "near.latency: '0 ns' is out of range; expected 1 ps to 1 s"),
        (
            'reach = "4 GiB"\n',
            "",
            "translation.far.reach: missing; every [tier.NAME.translation.NAME] needs it",
        ),
        ("rate = 4", "speed = 4", "translation.far.speed: unknown key; choose one of: latency, page, rate"),
        (
            LEVELS[LEVELS.index("[tier.host.translation.near]") :],
            LEVELS[LEVELS.index("[tier.host.translation.near]") :]
            + LEVELS[1 : LEVELS.index("[tier.host.translation.near]")].replace("far", "third"),
            "tier.host.translation: holds 3 tables; expected 2 at most",
        ),
    ],
)
def test_a_fault_of_a_level_of_translation_is_one_line(tmp_path, old, new, words):
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        profile(tmp_path, changed(SMALL + LEVELS, (old, new)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("3", "tier.hbm.translation: found 3, expected tables, [tier.hbm.translation.NAME]"),
        ("{ a = 3 }", "translation.a: found 3, expected a table, [tier.hbm.translation.NAME]"),
        ("{ a = { reach = 3 } }", 'a.reach: found 3, expected { value = ..., provenance = "..."'),
        (
            '{ a = { reach = { value = "1 GiB" } } }',
            "a.reach.provenance: missing; every number needs it next to",
        ),
        ('{ a = { reach = { valu = "1 GiB" } } }', "a.reach.valu: unknown key; did you mean 'value'?"),
    ],
)
def test_what_is_no_level_of_translation_is_one_line(tmp_path, value, words):
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        load(tmp_path, changed(H200, ("[tier.hbm]", f"[tier.hbm]\ntranslation = {value}")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"stated"', '"statde"', "provenance: found 'statde'; did you mean 'stated'?"),
        ('source = "not p', 'sauce = "not p', "hbm.interleave.sauce: unknown key; did you mean 'source'?"),
        ('"not published"', '""', "tier.hbm.interleave.source: is empty"),
        ("[tier.hbm]", "[tier.hbm", "not valid TOML"),
        ("[tier.hbm]", "[cache.l2]", "not valid TOML: Cannot declare ('cache', 'l2') twice"),
        ('name = "h200"', 'name = "h200"\nextends = "h20"', "unknown machine 'h20'; did you mean 'h200'?"),
        ('name = "h200"', 'name = "h200"\nextends = "mine.toml"', "which extends this file again"),
        ('name = "h200"', 'name = "h200"\nextends = "none.toml"', "none.toml: no such machine file"),
        ('name = "h200"', 'name = "h200"\nextends = 3', "extends is 3; expected the name of a machine"),
        ('name = "h200"', 'extends = "h200"', "no name; a machine that extends another needs its own"),
        ("[cache.l2]", "[cache]", "cache.attach: found 'gpu', expected a table with a name"),
        ("[initiator.gpu]", "[initiator]", "write [initiator.NAME] above its keys"),
        ("= 132", "= 65537", "gpu.units: 65537 is out of range; expected 1 to 65,536"),
        ('"143 ns"', '"0 ns"', "cache.l2.latency: '0 ns' is out of range; expected 1 ps"),
        ('"4 KiB"', '"11 PB"', "tier.hbm.write_buffer: '11 PB' is out of range"),
        ('"674 T', '"2000000 P', "gpu.bf16: '2000000 PFLOP/s' is out of range"),
    ],
)
def test_a_fault_of_a_shipped_file_is_one_line(tmp_path, old, new, words):
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        load(tmp_path, changed(H200, (old, new)))
    assert "\n" not in str(caught.value)


def test_what_explains_the_other_faults_comes_first(tmp_path):
    with pytest.raises(ProfileError, match=r"tier\.hbm\.latncy: unknown key.*\(and 3 more\)"):
        profile(tmp_path, changed(SMALL, ('latency = "300 ns"', 'latncy = "300 ns"'), ("= 800", "= 0")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name: missing; every machine needs it"),
        (f"{HEADER}[initiator]\n[cache]\n", "tier: missing; every machine needs it, add [tier.NAME]"),
        (f"{HEADER}[initiator]\n[cache]\n[tier]\n", "initiator: found none, expected one [initiator.NAME]"),
    ],
)
def test_a_file_without_its_tables_is_refused(tmp_path, text, words):
    with pytest.raises(ProfileError, match=re.escape(words)):
        load(tmp_path, text)


def test_a_group_has_a_limit(tmp_path):
    cache = SMALL[SMALL.index("[cache.l2]") : SMALL.index("[tier.hbm]")]
    many = "".join(cache.replace("l2", f"l2-{number}") for number in range(65))
    with pytest.raises(ProfileError, match="cache: holds 65 tables; expected 64 at most"):
        profile(tmp_path, changed(SMALL, (cache, many)))


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("h2000", "unknown machine 'h2000'; did you mean 'h200'? (or give the path of a .toml file)"),
        ("tpu", "unknown machine 'tpu'; choose one of: 8xb300, 8xh200, b200,"),
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
        (H200.replace("= 132", f"= 0x{'f' * 10_000}"), "gpu.units: a value that is too long to show is not"),
        (H200.replace("0.9413", f"0x{'f' * 10_000}"), "efficiency: a value that is too long to show is not"),
        (H200.replace("0.9413", "1979-05-27"), "efficiency: datetime.date(1979, 5, 27) is not a share"),
        ("#" * 1_000_001, "has 1,000,001 bytes; expected a TOML file of text, at most 1 MB"),
        ('extends = "\\u0000.toml"\nname = "n"\ntitle = "t"', "extends is '\\x00.toml'; expected the name"),
        (H200.replace('attach = "gpu"', f'attach = "{"g" * 5000}"', 1), "copy.attach: found 'ggg"),
        (H200.replace('attach = "gpu"', 'attach = "g\\u0000"', 1), "initiator.copy.attach: found 'g\\x00'"),
        (H200.replace('"not published"', '"a\\u0000b"'), "'a\\x00b' holds a character that cannot be"),
        (f'extends = ["h200"]\n{HEADER}', "extends is ['h200']; expected the name of a machine or a path"),
        (f'extends = "../../etc/passwd"\n{HEADER}', "etc/passwd: no such machine file"),
    ],
    ids=range(14),
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


def test_every_key_says_what_more_of_it_does(tmp_path):
    effects = profile(tmp_path, SMALL).effects()
    assert effects["link.pcie.latency"] == "slower"
    assert effects["tier.host.capacity"] == "room"
    assert effects["cost.2024.hbm"] == "cost"
    tables = {(group, "x"): table for group, table in GROUPS.items()}
    tables["tier", "x", "translation", "y"] = WalkTable
    paths = [(*path, key) for path, table in tables.items() for key in table.model_fields]
    for path in paths:
        if is_number(path):
            assert effect_of(".".join(path))
    assert {".".join(path) for path in paths if not is_number(path)} == {
        "initiator.x.attach", "initiator.x.writes", "cache.x.attach",
        "tier.x.attach", "tier.x.access", "tier.x.translation",
        "link.x.between", "link.x.duplex",
    }  # fmt: skip


def test_levels_of_translation_are_numbers_like_others(tmp_path):
    found = profile(tmp_path, SMALL + LEVELS)
    paths = [path for path, _ in found.quantities()]
    far = [f"tier.host.translation.far.{key}" for key in ("reach", "page", "latency", "rate")]
    assert [path for path in paths if ".far." in path] == far
    assert paths.index("tier.host.energy") < paths.index(far[0]) < paths.index("link.pcie.bandwidth")
    effects = found.effects()
    assert [effects[path] for path in far] == ["faster", "any", "slower", "faster"]


def test_a_level_is_laid_over_the_one_below_it_key_by_key(tmp_path):
    (tmp_path / "base.toml").write_text(toml(SMALL + LEVELS))
    number = '{ value = "9 GiB", provenance = "stated", source = "mine" }'
    text = f'extends = "base.toml"\n{HEADER}[tier.host.translation.far]\nreach = {number}\n'
    near, far = load(tmp_path, text).tiers[1].translation
    assert (near.reach_bytes, far.reach_bytes, far.latency_ps) == (256 << 20, 9 << 30, 400_000)


def test_traces_know_the_same_provenances():
    assert trace_schema.PROVENANCES is PROVENANCES


def test_the_worst_provenance_wins():
    assert worst(["stated", "assumed", "measured"]) == "assumed"
    assert worst(["measured", "stated"]) == "stated"
    assert worst([]) == "measured"
