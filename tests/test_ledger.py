"""Each invariant is broken on purpose, and must be seen."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from random import Random

import numpy as np
import pytest
from engine_cases import (
    GPU,
    HOST,
    ONE_TIER,
    PCIE,
    PCIE_PS,
    TWO_TIERS,
    MemoryTrace,
    columns,
    drawn_case,
    flat_region,
    kernel,
    placed,
    run_both,
    with_link,
    with_tier,
)  # fmt: skip

from memsim import fast, ledger
from memsim.errors import MemsimError
from memsim.options import ReplayOptions
from memsim.result import Outcome
from memsim.system import Hop, System
from memsim.tally import Watched
from memsim.trace import Access

ROWS = 90  # of 100 B, two blocks read all of them


@pytest.fixture
def outcome() -> tuple[Outcome, np.ndarray]:
    region = flat_region(0, 100, 100)
    accesses = [Access(0, 0, 1, 0, False, 0, ROWS, spread="each"), Access(0, 1, 1, 0, True, 3, 7)]
    watched = Watched(MemoryTrace((region,), [(kernel(blocks=2), columns(accesses))]))  # type: ignore[arg-type]
    found = fast.run(watched, TWO_TIERS, placed([region], 1), ReplayOptions(512))
    return found, watched.tally.issued


def test_a_sound_outcome_passes(outcome: tuple[Outcome, np.ndarray]) -> None:
    ledger.check(*outcome, TWO_TIERS)
    found, issued = outcome
    assert issued.tolist() == [[2 * ROWS * 100, 700]]
    rounding = int((found.moved - found.issued).sum())
    hits = int(found.issued[0, 2].sum())
    assert issued.sum() == hits + found.moved[0, :2].sum() - rounding


@pytest.mark.parametrize(
    ("field", "place", "change", "message"),
    [
        ("issued", (0, 1, 0), 1, "bytes read of region 0"),
        ("issued", (0, 1, 1), -1, "bytes written of region 0"),
        ("moved", (0, 1, 0), 1, "bytes moved summed over kernels"),
        ("moved", (0, 1, 0), -(10**6), "rounding of a region"),
        ("kernel_moved", (0, 3, 0), 64, "bytes over link pcie"),
        ("kernel_moved", (0, 3, 1), -64, "bytes over link pcie"),
        ("wire_bytes", (0, 0), -64, "bytes on the wire of link pcie: found .* at least"),
        ("wire_bytes", (0, 1), -64, "bytes on the wire of link pcie: found .* at least"),
        ("initiator", (0,), 1, "cache hits of an initiator without a cache"),
        ("end_ps", (0,), -(10**9), "bytes moved by tier|kernels that end"),
        *(
            (f"{what}waiting_ps", (0,), -(1 << 61), f"sum {what}waiting_ps: found -.* expected 0 or more")
            for what in ("", "tags_", "units_", "ports_", "walks_")
        ),
        ("latency", (1, 3), 1, "requests completed"),
        ("ready_ps", (0,), 10**12, "kernels that end before they start"),
    ],
)
def test_a_broken_outcome_is_seen(
    outcome: tuple[Outcome, np.ndarray], field: str, place: tuple[int, ...], change: int, message: str
) -> None:
    found, issued = outcome
    getattr(found, field)[place] += change
    with pytest.raises(MemsimError, match=message):
        ledger.check(found, issued, TWO_TIERS)


def check_to_the_picosecond(
    outcome: tuple[Outcome, np.ndarray], system: System, least_ps: int, message: str
) -> None:
    """An outcome of that length passes, and one of a picosecond less does not."""
    found, issued = outcome
    found.ready_ps[0] = found.start_ps[0] = 0
    found.end_ps[0] = least_ps
    ledger.check(found, issued, system)
    found.end_ps[0] = least_ps - 1
    with pytest.raises(MemsimError, match=message):
        ledger.check(found, issued, system)


@pytest.mark.parametrize(("read_mbps", "write_mbps"), [(30_000, 30_000), (30_000, 10_000), (10_000, 7)])
def test_what_a_tier_reads_and_writes_must_fit_into_the_time(
    outcome: tuple[Outcome, np.ndarray], read_mbps: int, write_mbps: int
) -> None:
    system = with_link(with_tier(TWO_TIERS, 1, channel_mbps=(read_mbps, write_mbps)), mbps=(10**9, 10**9))
    read, written = (int(n) for n in outcome[0].moved[0, 1])
    least_ps = Fraction(read * 10**6, read_mbps * HOST.channels)
    least_ps += Fraction(written * 10**6, write_mbps * HOST.channels)
    check_to_the_picosecond(outcome, system, ceil(least_ps), "bytes moved by tier host")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mbps", [(10, 10**6), (10**6, 10), (10, 10)])
def test_neither_way_of_a_link_exceeds_its_rate_nor_both_of_a_shared_one(
    outcome: tuple[Outcome, np.ndarray], mbps: tuple[int, int], shared: bool
) -> None:
    system = with_link(TWO_TIERS, mbps=mbps, shared=shared)
    ways_ps = [Fraction(int(n) * 10**6, rate) for n, rate in zip(outcome[0].wire_bytes[0], mbps, strict=True)]
    least_ps = ceil(sum(ways_ps) if shared else max(ways_ps))
    check_to_the_picosecond(outcome, system, least_ps, "bytes on the wire of link pcie: .* ps take")


def test_every_operation_of_a_tier_keeps_a_channel_for_its_occupancy(
    outcome: tuple[Outcome, np.ndarray],
) -> None:
    system = with_tier(TWO_TIERS, 1, occupancy_ps=(10**9, 2 * 10**9))
    operations = int(outcome[0].kernel_moved[:, 1].sum()) // HOST.interleave_bytes
    least_ps = ceil(Fraction(operations * 10**9, HOST.channels))
    check_to_the_picosecond(outcome, system, least_ps, "operations of tier host")


@pytest.mark.parametrize("buffer_bytes", [0, 1, 2, 100, 10**6])
def test_what_channels_may_have_gathered_need_not_fit_into_the_time(
    outcome: tuple[Outcome, np.ndarray], buffer_bytes: int
) -> None:
    """Less than their buffers, in bytes and in operations."""
    links = with_link(TWO_TIERS, mbps=(10**9, 10**9))
    read, written = (int(n) for n in outcome[0].moved[0, 1])
    served = read + max(0, written - HOST.channels * max(0, buffer_bytes - 1))
    system = with_tier(links, 1, channel_mbps=(10, 10), write_buffer_bytes=buffer_bytes)
    least_ps = ceil(Fraction(served * 10**6, 10 * HOST.channels))
    check_to_the_picosecond(outcome, system, least_ps, "bytes moved by tier host")
    system = with_tier(links, 1, occupancy_ps=(10**9, 10**9), write_buffer_bytes=buffer_bytes)
    least_ps = ceil(Fraction(served // HOST.interleave_bytes * 10**9, HOST.channels))
    check_to_the_picosecond(outcome, system, least_ps, "operations of tier host")


def test_links_are_checked_by_the_route_of_the_initiator() -> None:
    """The second initiator crosses the link from its other end, or not at all."""
    region = flat_region(0, 8, 64)
    accesses = [Access(0, 0, 0, 0, write, row, 1) for row, write in enumerate((False, True, True))]
    trace, issued = MemoryTrace((region,), [(kernel(), columns(accesses))]), np.array([[64, 2 * 64]])
    ways: dict[str, tuple[Hop, ...]] = {
        "straight": (Hop(0, False, PCIE_PS),), "turned": (Hop(0, True, PCIE_PS),), "none": ()
    }  # fmt: skip
    for name, route in ways.items():
        system = replace(
            ONE_TIER, initiators=(GPU, GPU), links=(PCIE,), routes=((ways["straight"],), (route,))
        )
        found = run_both(trace, system, placed([region]), run_on={"f": 1})
        ledger.check(found, issued, system)
        for other in ways.keys() - {name}:
            wrong = replace(system, routes=(system.routes[0], (ways[other],)))
            with pytest.raises(MemsimError, match="bytes over link pcie"):
                ledger.check(found, issued, wrong)


def test_unique_and_issued_bytes_are_tallied_by_kind() -> None:
    region = flat_region(0, 100, 100)
    accesses = [Access(0, 0, 2, 0, False, 0, 50, spread="each"), Access(0, 0, 0, 0, False, 40, 20)]
    watched = Watched(MemoryTrace((region,), [(kernel(blocks=3), columns(accesses))]))  # type: ignore[arg-type]
    assert len(list(watched.kernels())) == 1
    assert watched.tally.unique["f", "kv"] == [60 * 100, 0]
    assert watched.tally.issued_by_family["f"] == (150 + 20) * 100


@pytest.mark.parametrize("seed", [3, 4])
def test_bytes_are_conserved_on_drawn_cases(seed: int) -> None:
    trace, system, *rest = drawn_case(Random(seed))
    outcome = run_both(trace, system, *rest)
    watched = Watched(trace)  # type: ignore[arg-type]
    assert list(watched.kernels())
    ledger.check(outcome, watched.tally.issued, system)
