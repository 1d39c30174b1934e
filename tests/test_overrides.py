"""`--set`: single keys set over a machine file, each by the rule of its key."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from machine_samples import LEVELS, SMALL, changed, toml

from hwprofiles import machine_names
from memsim.errors import ProfileError
from memsim.profile import load_machine
from memsim.profile_set import value_of
from memsim.route import build_system
from memsim.system import Input


def built(machine: str | Path, *overrides: str):
    return build_system(load_machine(machine, overrides))


def test_a_number_is_set_and_says_so():
    system = built("h200-host", "link.pcie.bandwidth=128 GB/s")
    assert system.links[0].peak_mbps == (128_000, 128_000)
    assert Input("link.pcie.bandwidth", "128 GB/s", "assumed", "set on the command line") in system.inputs
    assert system.name == "h200-host"


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("tier.host.channels=4", lambda s: s.tiers[1].channels == 4),
        ("tier.host.devices=4", lambda s: s.tiers[1].devices == 4),
        ("tier.host.efficiency=0.5", lambda s: s.tiers[1].channel_mbps[0] == 19_200),
        ("tier.host.efficiency=50%", lambda s: s.tiers[1].channel_mbps[0] == 19_200),
        ('link.pcie.latency="3 us"', lambda s: s.links[0].latency_ps == 3_000_000),
        (" link.pcie.latency = 3 us ", lambda s: s.links[0].latency_ps == 3_000_000),
        ("link.pcie.duplex=shared", lambda s: s.links[0].shared),
        ("tier.host.attach=gpu", lambda s: s.routes[0][1] == ()),
        ('link.pcie.between=["cpu", "gpu"]', lambda s: s.routes[0][1][0].flipped),
        ('tier.host.tail=[[0.01, "30 us"]]', lambda s: s.tiers[1].tail == ((10_000, 30_000_000),)),
        ('cost."2024".host=7 USD/GB', lambda s: s.tiers[1].cost[0] == ("2024", 7_000_000)),
        (" link . 'pcie'.latency = 3 us", lambda s: s.links[0].latency_ps == 3_000_000),
        ("initiator.gpu.port=250 GB/s", lambda s: s.initiators[0].port_mbps == (250_000, 56_000)),
        ("initiator.copy.port=250 GB/s", lambda s: s.initiators[1].port_mbps == (250_000, 250_000)),
        (
            "tier.host.translation.far.rate=5000",
            lambda s: s.tiers[1].translation[1].occupancy_ps == 2 * 10**8,
        ),
        ("cache.l2.copies=3", lambda s: s.cache.copies == 3),
        ("cache.l2.ways=12", lambda s: s.cache.ways == 12),
        ("tier.host.turnaround=7 ns", lambda s: s.tiers[1].turnaround_ps == 7_000),
        ("tier.host.write_buffer=5 KiB", lambda s: s.tiers[1].write_buffer_bytes == 5_120),
        ("cost.2024.host=7 USD/GB", lambda s: s.tiers[1].cost[0] == ("2024", 7_000_000)),
    ],
)
def test_a_key_is_read_by_its_rule(override, read):
    assert not read(built("h200-host"))
    assert read(built("h200-host", override))


def with_levels(folder) -> Path:
    path = folder / "mine.toml"
    path.write_text(toml(SMALL + LEVELS))
    return path


def test_a_number_of_a_level_of_translation_is_set(tmp_path):
    system = built(with_levels(tmp_path), "tier.host.translation.near.reach=64 MiB", "link.pcie.tags=5")
    assert [walk.reach_bytes for walk in system.tiers[1].translation] == [64 << 20, 4 << 30]
    assert system.tiers[1].translation[0].latency_ps == 300_000
    where = "tier.host.translation.near.reach"
    assert Input(where, "64 MiB", "assumed", "set on the command line") in system.inputs


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tier.host.translation.nera.reach=1 GiB", "no level 'nera'; did you mean 'near'?"),
        ("tier.hbm.translation.near.reach=1 GiB", "this machine has no [tier.hbm.translation.NAME]"),
        ("tier.host.translation.near.raech=1 GiB", "unknown key; did you mean 'reach'?"),
        ("tier.host.translation=1", "holds tables; expected tier.host.translation.NAME.KEY=VALUE"),
        ("tier.host.translation.near=1", "expected GROUP.NAME.KEY=VALUE"),
        ("tier.host.latency.near.reach=1", "expected GROUP.NAME.KEY=VALUE"),
        ("cost.2024.host.a.b=1", "expected GROUP.NAME.KEY=VALUE"),
        ("tier.host.translation.near.reach=9", "translation.near.reach: 9 is not a size"),
    ],
)
def test_a_fault_of_a_level_names_the_option(tmp_path, override, words):
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        load_machine(with_levels(tmp_path), [override])
    assert str(caught.value).startswith("--set ")
    assert "\n" not in str(caught.value)


def test_every_kind_of_number_can_be_scaled(tmp_path):
    """Those that no shipped machine has: a loaded latency, levels of translation."""
    keys = '= 1\nloaded_latency = [[0.5, "20 ns"], [0.95, "300 ns"]]\n'
    path = tmp_path / "mine.toml"
    path.write_text(toml(changed(SMALL, ("= 8\n", keys)) + LEVELS))
    scaled = {p: q.scaled(2) for p, q in load_machine(path).quantities()}
    system = built(path, *(f"{p}={scaled[p]}" for p in scaled if "host.loaded" in p))
    assert system.tiers[1].loaded == ((500_000, 40_000), (950_000, 600_000))
    assert scaled["tier.host.translation.far.page"] == "4194304 B"


def test_the_last_of_several_wins():
    system = built("h200-host", "link.pcie.tags=5", "link.pcie.tags=7", "tier.host.channels=4")
    assert (system.links[0].tags, system.tiers[1].channels) == (7, 4)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("fast", "--set 'fast': expected GROUP.NAME.KEY=VALUE, as in link.pcie.bandwidth=128 GB/s"),
        ("a.b=1", "--set 'a.b=1': expected GROUP.NAME.KEY=VALUE"),
        ("title=x", "--set 'title=x': expected GROUP.NAME.KEY=VALUE"),
        ("lnk.pcie.tags=1", "--set lnk.pcie.tags: no group 'lnk'; did you mean 'link'?"),
        ("link.pci.tags=1", "--set link.pci.tags: no link 'pci'; did you mean 'pcie'?"),
        ("switch.x.latency=1 ns", "--set switch.x.latency: no switch 'x'; this machine has no [switch.NAME]"),
        ("link.pcie.tag=1", "--set link.pcie.tag: unknown key; did you mean 'tags'?"),
        ("cost.2024.nvme=1 USD/GB", "--set cost.2024.nvme: unknown key; choose one of: hbm, host"),
        ("cost.2030.hbm=1 USD/GB", "--set cost.2030.hbm: no cost '2030'; choose one of: 2024, mid-2026"),
        ("link.pcie.bandwidth=128", "--set link.pcie.bandwidth: 128 is not a bandwidth"),
        ("link.pcie.bandwidth=0 GB/s", "--set link.pcie.bandwidth: '0 GB/s' is out of range"),
        ("link.pcie.bandwidth=", "--set link.pcie.bandwidth: '' is not a bandwidth"),
        ("link.pcie.duplex=half", "--set link.pcie.duplex: found 'half'; choose one of: full, shared"),
        ("tier.host.access=ld", "--set tier.host.access: found 'ld'; choose one of: load, command"),
        ("tier.host.access=3", "--set tier.host.access: found 3; choose one of: load, command"),
        ('link."pcie.tags=1', "--set link.\"pcie.tags: no link '\"pcie'; did you mean 'pcie'?"),
        ("link.pcie.tags=1\nname = 'x'", "--set link.pcie.tags: \"1\\nname = 'x'\" is not a count"),
        ("link.pcie.tags={value=1}", "--set link.pcie.tags: {'value': 1} is not a count"),
        (f"link.pcie.tags={'[' * 20_000}", "--set link.pcie.tags: '[[["),
        (f"{'x' * 5000}.a.b=1", "--set xxxx"),
    ],
    ids=range(20),
)
def test_a_fault_names_the_option(override, words):
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        load_machine("h200-host", [override])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_faulty_file_is_named_before_the_option(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(toml(SMALL).replace("= 100,", "= 0,"))
    with pytest.raises(ProfileError, match=r"mine\.toml: initiator\.gpu\.units: 0 is not a count"):
        load_machine(path, ["link.pcie.tags=5"])


@pytest.mark.parametrize("factor", [Fraction(10), Fraction(1, 10)], ids=["up", "down"])
@pytest.mark.parametrize("name", machine_names())
def test_a_scaled_number_is_more_or_less(name, factor):
    """Ten times each number, and a tenth, as an option writes it; counts of 1 and 0 B have nothing below."""
    for _, quantity in load_machine(name).quantities():
        parse = type(quantity).parse
        after, before = parse(value_of(quantity.scaled(factor))), parse(quantity.value)
        assert (after > before) == (factor > 1)
        assert after != before or before in (0, 1)


@pytest.mark.parametrize("factor", [Fraction(10), Fraction(1, 10)], ids=["up", "down"])
def test_a_scaled_number_can_be_set(factor):
    profile = load_machine("h200-nvme")
    for path, quantity in profile.quantities():
        scaled = quantity.scaled(factor)
        after = dict(load_machine("h200-nvme", [f"{path}={scaled}"]).quantities())[path]
        assert after.value == value_of(scaled)


def test_a_share_that_was_measured_is_extrapolated_to_another_bandwidth():
    """Its value stays; what was measured is a share of the old one. Others are not touched."""
    held = dict(load_machine("h200-host").quantities())
    found = dict(load_machine("h200-host", ["link.pcie.bandwidth=128 GB/s"]).quantities())
    for key in ("efficiency", "efficiency_out"):
        old, new = held[f"link.pcie.{key}"], found[f"link.pcie.{key}"]
        assert (old.provenance, new.provenance) == ("measured", "extrapolated")
        assert (new.value, new.source) == (old.value, f"{old.source}; of another bandwidth")
    assert found["tier.hbm.efficiency"] == held["tier.hbm.efficiency"]
    both = ["link.pcie.efficiency=0.9", "link.pcie.bandwidth=128 GB/s"]
    set_too = dict(load_machine("h200-host", both).quantities())["link.pcie.efficiency"]
    assert (set_too.value, set_too.provenance, set_too.source) == (0.9, "assumed", "set on the command line")
