"""How far a time may be off: errors summed by share, guesses drawn; against whole replays or by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from memsim import interval, ranges
from memsim.interval import FamilyTrust
from memsim.profile import load_machine
from memsim.ranges import Varied
from memsim.recording import record
from memsim.simulate import replay, replayed
from memsim.system import Input


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The attention of Kimi Linear at 4K: 27 layers of two kinds."""
    path = tmp_path_factory.mktemp("interval") / "kimi.parquet"
    record("kimi-linear", 4096, path)
    return path


def test_families_err_all_at_once_by_their_share():
    families = [
        FamilyTrust("a", 0.5, 0.8, 1.2, (), "validated", ""),
        FamilyTrust("b", 0.3, 1.0, 2.0, (), "validated", ""),
    ]
    low, high = interval._summed(families)
    assert low == pytest.approx(0.5 * 0.8 + 0.3 + 0.2)  # a fifth is no family's: the graph launch
    assert high == pytest.approx(0.5 * 1.2 + 0.3 * 2 + 0.2)


@pytest.mark.parametrize(("share", "trust"), [(0.05, "validated"), (0.2, "unvalidated")])
def test_a_little_that_was_never_measured_does_not_mark_the_whole(share, trust):
    families = [
        FamilyTrust("a", 1 - share, 1, 1, (), "validated", ""),
        FamilyTrust("b", share, 1, 1, (), "unvalidated", "b was never measured"),
    ]
    assert interval._overall(families, [])[0] == trust


def test_a_changed_number_marks_the_whole():
    assert interval._overall([], ["link.pcie.bandwidth"]) == (
        "extrapolated",
        ("changed: link.pcie.bandwidth",),
    )


def test_distinct_kernels_tell_what_a_whole_replay_does(trace):
    """Half the rate of the ports, in one number and by replaying all 54 kernels."""
    profile = load_machine("h200")
    found = replayed(trace, profile)
    again = interval._Again(found, Varied(profile))
    half = again.ratio({"initiator.gpu.port": Fraction(1, 4)})
    whole = replay(trace, "h200", overrides="initiator.gpu.port=63250 MB/s", bound=False)
    assert half == pytest.approx(whole.tpot_ps / found.result.tpot_ps, rel=0.005)
    assert half > 1.02


def test_only_guesses_that_touch_the_route_count(trace):
    """On h200-host with nothing on the host, what is assumed of the link and the host changes nothing."""
    profile = load_machine("h200-host")
    found = interval.of(replayed(trace, profile), Varied(profile))
    paths = {effect.path for effect in found.effects}
    assert "tier.hbm.interleave" in paths
    assert not [path for path in paths if path.startswith(("tier.host", "link.", "initiator.copy"))]
    assert found.guessed[0] < 1 < found.guessed[1]


def test_what_is_set_is_a_premise_and_no_guess():
    varied = Varied(load_machine("h200", ["initiator.gpu.port=300 GB/s"]))
    assert "initiator.gpu.port" not in {each.path for each in varied.ranges}
    assert "initiator.gpu.port" in {each.path for each in Varied(load_machine("h200")).ranges}


def test_a_stated_range_is_taken_and_a_guess_without_one_by_the_default():
    table = load_machine("h200").model_dump(exclude_none=True)
    table["initiator"]["gpu"]["port"] |= {"low": "126.5 GB/s", "high": "506 GB/s"}
    table["tier"]["hbm"]["latency"] |= {"low": "165.5 ns", "high": "331 ns"}  # measured, and yet with a range
    from memsim.profile import check

    found = {each.path: each for each in Varied(check(table)).ranges}
    port = found["initiator.gpu.port"]
    assert (port.low, port.high, port.stated) == (Fraction(1, 2), 2, True)
    assert found["tier.hbm.latency"].low == Fraction(1, 2)
    assert (found["tier.hbm.write_buffer"].low, found["tier.hbm.write_buffer"].stated) == (
        1 / ranges.FACTOR,
        False,
    )
    assert found["tier.hbm.interleave"].high == 2  # it must stay a power of two
    assert "tier.hbm.capacity" not in found


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"low": "1 GB/s"}, "one end of a range"),
        ({"low": "300 GB/s", "high": "400 GB/s"}, "expected them to rise"),
        ({"low": "1 ns", "high": "400 GB/s"}, "low or high"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(more, words):
    from memsim.profile import check

    table = load_machine("h200").model_dump(exclude_none=True)
    table["initiator"]["gpu"]["port"] |= more
    faults = check(table)
    assert isinstance(faults, list)
    assert words in faults[0]


def test_draws_fill_each_range_evenly_and_repeat():
    varied = Varied(load_machine("h200"))
    (port,) = (each for each in varied.ranges if each.path == "initiator.gpu.port")
    factors = sorted(choice[port.path] for choice in varied.draws(varied.ranges, 16))
    assert port.low <= factors[0] < factors[-1] <= port.high
    assert all(b / a < 1.16 for a, b in zip(factors, factors[1:], strict=False))  # 16 parts of 2.25
    alone = [choice[port.path] for choice in varied.draws([port], 16)]
    assert alone == [choice[port.path] for choice in varied.draws(varied.ranges, 16)]


def test_a_guessed_time_of_kernels_is_varied():
    profile = load_machine("h200")
    fact = {"path": "kernel.kda.startup", "value": "2 us", "provenance": "assumed", "source": "a guess"}
    varied = Varied(profile).with_kernels(
        [fact, {**fact, "provenance": "measured"}, {**fact, "path": "kernel.kda.tile", "value": "64 rows"}]
    )
    assert [each.path for each in varied.kernel_ranges] == ["kernel.kda.startup"]
    assert varied.variation({"kernel.kda.startup": Fraction(3, 2)}).times == {
        ("kda", "startup"): Fraction(3, 2)
    }


def test_a_kernel_with_longer_times_of_its_own_takes_longer():
    from memsim.resimulate import _timed
    from memsim.trace import Kernel

    kernel = Kernel(0, "k", "kda", 0, 0, 0, (), 1, 1, 1, 1, 1, startup_ps=1000, drain_ps=10)
    changed = _timed(kernel, {("kda", "startup"): Fraction(3, 2), ("mla", "drain"): Fraction(2)})
    assert (changed.startup_ps, changed.drain_ps) == (1500, 10)
    assert _timed(kernel, {}) is kernel


def test_the_interval_is_the_product_of_errors_and_guesses(trace):
    profile = load_machine("h200")
    replay_ = replayed(trace, profile)
    found = interval.of(replay_, Varied(profile))
    tpot_ps = replay_.result.tpot_ps
    assert found.low_ps == round(tpot_ps * found.measured[0] * found.guessed[0])
    assert found.high_ps == round(tpot_ps * found.measured[1] * found.guessed[1])
    assert found == interval.of(replay_, Varied(profile))  # seeded


def test_unused_places_are_left_out_by_their_whole_name(trace):
    """`tier.host.` is left out, a tier called `host2` would not be."""
    profile = load_machine("h200-host")
    found = replayed(trace, profile)
    system = replace(found.system, inputs=(Input("tier.host2.latency", "1 ns", "assumed", ""),))
    assert interval._paths_used(replace(found, system=system)) == {"tier.host2.latency"}


def test_a_replay_says_its_interval_where_everything_was_measured(trace):
    """Not on a machine that nobody measured, nor where a number was set."""
    found = replayed(trace, "h200")
    families = [interval._trusted(found, family) for family in found.result.families]
    measured = all(family.trust == "validated" for family in families)
    assert measured == found.result.interval.endswith("by errors of measured kernels (5 to 95%)")
    assert measured
    for machine, overrides, why in (
        ("gh200", (), "not all of it was measured on this machine; 'memsim project' says more"),
        (
            "h200",
            ("tier.hbm.latency=400 ns",),
            "numbers were set; 'memsim project' says how far guesses reach",
        ),
    ):
        other = replay(trace, machine, overrides=overrides, bound=False)
        assert other.interval == f"no interval ({why})"


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [
        ("initiator.gpu.port", "169 GB/s", "380 GB/s"),
        ("tier.hbm.write_buffer", "2.67 KiB", "6 KiB"),
        ("link.pcie.tags", None, None),
        ("tier.host.translation.near.latency", "293 ns", "660 ns"),
    ],
)
def test_ends_of_a_guess_are_told_in_units_that_people_read(path, low, high):
    found = {each.path: each.texts for each in Varied(load_machine("h200-host")).ranges}
    tags = dict(load_machine("h200-host").quantities())["link.pcie.tags"].number
    assert found[path] == (low or f"{tags * 2 // 3:,}", high or f"{tags * 3 // 2:,}")
