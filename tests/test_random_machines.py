"""Machines drawn at random are built, linted and replayed, or refused in a line.

Whatever comes, it ends in a result that keeps all invariants, or in one worded error.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from drawn_machines import machine_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memsim import replay
from memsim.errors import DoesNotFit, ProfileError, UsageError
from memsim.lint import lint
from memsim.placement import parse_rules, place_regions
from memsim.profile import check
from memsim.route import build_system
from memsim.system import System
from memsim.trace_read import open_trace
from workloads import patterns
from workloads.kernel_options import complete

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=10_000)
SLOWLY_EVERY = 10  # of so many machines that can be replayed one is replayed by the reference, too


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A copy of 96 KiB and a gather of 200 rows, as files."""
    folder = tmp_path_factory.mktemp("traces")
    for name, options in (
        ("copy", {"bytes": 96 << 10, "programs": 6, "block_bytes": 4096}),
        ("gather", {"count": 200, "row_bytes": 656, "span": 1 << 20, "programs": 5}),
    ):
        patterns.write(name, complete(name, options), 4, 0, folder / f"{name}.parquet")
    return [folder / "copy.parquet", folder / "gather.parquet"]


def built(table: dict[str, Any]) -> System | None:
    """The machine of a table, or None where it is refused as it should be: in lines, and by the lint too."""
    found = check(deepcopy(table))
    if isinstance(found, list):
        assert found
        assert all(fault and "\n" not in fault for fault in found)
        return None
    errors = [finding for finding in lint(found) if finding.level == "error"]
    if not errors:
        return build_system(found)
    with pytest.raises(ProfileError) as refused:
        build_system(found)
    assert "\n" not in str(refused.value)
    return None


def needed_bytes(trace, system: System, place: list[str]) -> list[int]:
    """Bytes that a placement puts into each tier."""
    rules = parse_rules(place, trace.regions, system)
    roomy = replace(system, tiers=tuple(replace(tier, capacity_bytes=1 << 60) for tier in system.tiers))
    return list(place_regions(trace.regions, rules, "refuse", roomy).used_bytes)


def ended(refused: UsageError) -> str:
    """The reason for which a machine that has been built cannot replay a trace that fits."""
    line = str(refused)
    assert "\n" not in line
    if "a clock of picoseconds holds" in line:
        return "too slow"
    raise refused


def one_ends_well(table: dict[str, Any], files, choice: int) -> str:
    """Build and replay one machine; how it ended."""
    system = built(table)
    if system is None:
        return "refused"
    file = files[choice % 2]
    trace = open_trace(file)
    tier = system.tiers[choice % len(system.tiers)]
    place = [f"{trace.regions[0].name}={tier.name}"]
    runner = system.initiators[choice % len(system.initiators)].name
    options = {"place": place, "run_on": [f"{file.stem}={runner}"], "seed": choice, "bound": choice % 7 == 0}
    needed = needed_bytes(trace, system, place)
    short = [n - t.capacity_bytes for n, t in zip(needed, system.tiers, strict=True) if n > t.capacity_bytes]
    if short:
        with pytest.raises(DoesNotFit, match="too many; place regions elsewhere"):
            replay(file, system, **options)
        return "does not fit"
    try:
        result = replay(file, system, **options)
    except UsageError as refused:
        return ended(refused)
    assert result.total_ps > 0
    cached = result.cache_hit_bytes + result.cache_stored_bytes - result.written_back_bytes
    moved = sum(t.moved_read_bytes + t.moved_write_bytes for t in result.tiers)
    assert sum(result.bytes_issued.values()) + result.rounding_bytes == cached + moved
    if choice % SLOWLY_EVERY == 0:
        assert replay(file, system, **{**options, "bound": False}, engine="reference").digest == result.digest
    return "replayed"


@QUICK
@given(table=machine_files(), choice=st.integers(0, 10**6))
def test_any_machine_is_replayed_or_refused_in_a_line(traces, table, choice):
    one_ends_well(table, traces, choice)


@pytest.mark.slow
@LONG
@given(table=machine_files(), choice=st.integers(0, 10**6))
def test_ten_thousand_machines_are_replayed_or_refused_in_a_line(traces, table, choice):
    one_ends_well(table, traces, choice)


def test_the_machines_that_are_drawn_end_in_every_way(traces):
    """Of those that can be built most are replayed, and each of the other ends occurs."""
    ends: dict[str, int] = {}

    @settings(QUICK, max_examples=200, derandomize=True, database=None)
    @given(table=machine_files(), choice=st.integers(0, 10**6))
    def draw(table, choice):
        end = one_ends_well(table, traces, choice)
        ends[end] = ends.get(end, 0) + 1

    draw()
    assert set(ends) >= {"refused", "replayed", "does not fit"}
    assert ends["replayed"] > 2 * ends["does not fit"], ends
