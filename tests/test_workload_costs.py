"""What kernels cost beside bytes and arithmetic: read from its file, put into launches, listed as inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memsim.errors import UsageError
from memsim.profile import load_machine
from memsim.ranges import Varied
from memsim.trace_read import open_trace
from workloads import costs
from workloads.decode import record_step
from workloads.facts import Fact
from workloads.grid import Shape
from workloads.record import ListSink, Recorder

SAMPLE = """
[kernel.kda]
startup = { value = "1.7 us", provenance = "calibrated", source = "somewhere" }
tile = { value = "90 ns", provenance = "measured", source = "elsewhere" }
[kernel.kda-conv]
drain = { value = "3 ps", provenance = "assumed", source = "nowhere" }
"""
LIKE = """
[kernel.gdn]
startup = { like = "kda", provenance = "extrapolated", source = "alike" }
tile = { like = "kda.tile", times = 0.5, provenance = "assumed", source = "half of it" }
[kernel.kda-packed]
all = { like = "kda", provenance = "extrapolated", source = "alike" }
"""
LAUNCH = Shape(tile_rows=4, tile_bytes=64, tiles_in_flight=1)


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "costs.toml"
    path.write_text(SAMPLE, encoding="utf-8")
    monkeypatch.setattr(costs, "known", lambda: costs.read(path))
    return path


def launched(family: str) -> tuple[int, int, int]:
    """Start-up, drain and tile time of a recorded launch."""
    sink = ListSink()
    with Recorder(sink).kernel("k", family, 0, 1, LAUNCH) as kernel:
        pass
    assert sink.kernels == [kernel]
    return kernel.startup_ps, kernel.drain_ps, kernel.tile_ps


def test_a_launch_costs_what_its_family_does(sample):
    assert launched("kda") == (1_700_000, 0, 90_000)
    assert launched("kda-conv") == (0, 3, 0)
    assert launched("mla") == (0, 0, 0)


def test_other_values_can_be_tried_and_are_gone_afterwards(sample):
    with costs.tried({"kernel.kda.tile": "1 ns", "kernel.mla.drain": "2 ns"}):
        assert (launched("kda"), launched("mla")) == ((1_700_000, 0, 1_000), (0, 2_000, 0))
    assert (launched("kda"), launched("mla")) == ((1_700_000, 0, 90_000), (0, 0, 0))


def test_an_efficiency_adds_flops_that_the_units_could_have_done(sample):
    sample.write_text(
        SAMPLE + '[kernel.mla]\nefficiency = { value = 0.8, provenance = "measured", source = "x" }\n',
        encoding="utf-8",
    )
    assert [costs.flops_of(family, 1001) for family in ("mla", "kda")] == [1252, 1001]
    launch = replace(LAUNCH, flops_per_tile=7)
    with (
        costs.tried({"kernel.mla.efficiency": "0.5"}),
        Recorder(ListSink()).kernel("k", "mla", 0, 1, launch) as kernel,
    ):
        pass
    assert kernel.flops_per_tile == 14
    (listed,) = costs.inputs({"mla"})
    assert listed == Fact("kernel.mla.efficiency", "0.8", "measured", "x")._asdict()


def test_a_trace_lists_the_costs_of_its_kernels_and_no_others(sample, tmp_path):
    path = tmp_path / "t.parquet"
    record_step("kimi-linear", 4096, out=path)
    listed = {each["path"]: each for each in open_trace(path).meta["inputs"]}
    assert (
        listed["kernel.kda.startup"]
        == Fact("kernel.kda.startup", "1.7 us", "calibrated", "somewhere")._asdict()
    )
    assert {"kernel.kda.tile", "kernel.kda-conv.drain"} <= set(listed)
    assert costs.inputs({"mla"}) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("tile =", "tyle ="), "unknown key 'kernel.kda.tyle'; did you mean 'tile'?"),
        (
            (', source = "elsewhere"', ""),
            "expected a table of value, provenance, source, and low and high at most",
        ),
        (('"90 ns"', '"90 ns", low = "80 ns"'), "expected low and high around the value, or neither"),
        (('"90 ns"', '"90 ns", low = "80 ns", high = "85 ns"'), "expected low and high around the value"),
        (('value = "90 ns"', 'like = "kba"'), "'kernel.kba.tile', which has no value of its own"),
        (('value = "90 ns"', 'like = "kda"'), "'kernel.kda.tile', which has no value of its own"),
        (('value = "90 ns"', 'like = "kda.startup", times = 0'), "times is 0; expected a number above 0"),
        (('"90 ns"', '"90"'), "kernel.kda.tile: '90' is not a time"),
        (('tile = { value = "90 ns"', "efficiency = { value = 1.2"), "1.2 is not a share"),
        (('"measured"', '"guessed"'), "unknown provenance 'guessed'"),
        (("[kernel.kda]", "[kernel.kda"), "not valid TOML"),
    ],
)
def test_a_wrong_file_ends_in_one_line(sample, change, line):
    sample.write_text(SAMPLE.replace(*change), encoding="utf-8")
    with pytest.raises(UsageError, match="costs.toml: ") as caught:
        costs.known()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_shipped_cost_is_of_a_family_that_workloads_launch():
    """A misspelt family would cost nothing, and nobody would notice."""
    texts = "".join(path.read_text(encoding="utf-8") for path in costs.FILE.parent.glob("*.py"))
    for family in {path.split(".")[1] for path in costs.known()}:
        assert f'"{family}"' in texts or family.endswith(("-conv", "-combine"))


def test_what_is_like_another_follows_it(sample):
    """`validate calibrate --write` renews the other one alone, and a trial changes both."""
    sample.write_text(SAMPLE + LIKE, encoding="utf-8")
    assert launched("gdn") == (1_700_000, 0, 45_000)
    assert launched("kda-packed") == launched("kda") == (1_700_000, 0, 90_000)
    with costs.tried({"kernel.kda.tile": "1 us"}):
        assert (launched("gdn")[2], launched("kda-packed")[2]) == (500_000, 1_000_000)
    with costs.tried({"kernel.gdn.tile": "7 ns"}):
        assert (launched("gdn")[2], launched("kda")[2]) == (7_000, 90_000)
    assert costs.inputs({"gdn"}) == [
        Fact("kernel.gdn.startup", "1.7 us", "extrapolated", "kernel.kda.startup: alike")._asdict(),
        Fact("kernel.gdn.tile", "45.0 ns", "assumed", "0.5 times kernel.kda.tile: half of it")._asdict(),
    ]


def test_a_range_goes_into_the_trace_and_from_there_into_intervals(sample, tmp_path):
    text = SAMPLE.replace('"1.7 us", ', '"1.7 us", low = "0.9 us", high = "2 us", ')
    sample.write_text(text, encoding="utf-8")
    path = tmp_path / "t.parquet"
    record_step("kimi-linear", 4096, out=path)
    inputs = open_trace(path).meta["inputs"]
    (startup,) = (each for each in inputs if each["path"] == "kernel.kda.startup")
    assert (startup["low"], startup["high"]) == ("0.9 us", "2 us")
    assert all("low" not in each for each in inputs if each is not startup)
    ranges = {each.path: each for each in Varied(load_machine("h200")).with_kernels(inputs).kernel_ranges}
    assert ranges["kernel.kda.startup"].texts == ("0.9 us", "2 us")
    assert ranges["kernel.kda.startup"].stated
