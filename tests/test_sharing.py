"""What several share, on real machines: links both ways, tiers of two streams, two tiers of one stream."""

from __future__ import annotations

import pytest
from engine_cases import MemoryTrace, columns, elapsed_ps, flat_region, kernel, placed, run_both

from memsim import load_machine
from memsim.closed_form import Way, path_of
from memsim.fast import run as run_fast
from memsim.options import ReplayOptions
from memsim.placement import build_memory, parse_rules, place_regions
from memsim.profile import check, locate, read_table
from memsim.profile_schema import Profile
from memsim.result import Outcome
from memsim.route import build_system, tier_mbps
from memsim.system import System
from memsim.trace import Access


@pytest.mark.parametrize(
    ("capacity", "nbytes"),
    [("141 GB", 141_000_000_000), ("141 GiB", 151_397_597_184), ("151397597184 B", 151_397_597_184)],
)
def test_rows_spill_from_the_first_that_the_capacity_does_not_hold(capacity, nbytes):
    system = build_system(load_machine("h200-host", [f"tier.hbm.capacity={capacity}"]))
    region = flat_region(0, 160_000_000_000 // 656, 656)
    placement = place_regions([region], [], "host", system)
    first, rest = placement.pieces[0]
    assert first.end_row == nbytes // 656
    assert (first.shares, rest.shares) == (((0, 1),), ((1, 1),))
    assert placement.used_bytes[0] == nbytes // 656 * 656
    assert sum(placement.used_bytes) == region.bytes


def two_streams(writes: tuple[bool, bool], nbytes: int) -> MemoryTrace:
    """Two kernels on two streams, each with a region of its own and blocks on half the units."""
    rows, blocks = nbytes // 4096, 32
    regions = (flat_region(0, rows, 4096), flat_region(1, rows, 4096))
    launches = []
    for number, write in enumerate(writes):
        launch = kernel(number, stream=number, blocks=blocks, tile_bytes=16_384, tiles_in_flight=4)
        access = Access(number, 0, blocks - 1, number, write, 0, rows, spread="even", grain=4)
        launches.append((launch, columns([access])))
    return MemoryTrace(regions, launches)


def rates_of(trace: MemoryTrace, outcome: Outcome) -> list[float]:
    """Bytes of each kernel over its time [10^6 bytes/s]."""
    return [trace.regions[n].bytes * 10**6 / elapsed_ps(outcome, n) for n in range(len(trace.launches))]


def by_both_engines(system: System, tier: int) -> list[float]:
    """Rates of a read and a write at the same time; the engines agree in every figure."""
    trace = two_streams((False, True), 4 << 20)
    return rates_of(trace, run_both(trace, system, placed(trace.regions, tier), 8192))


def steady_rates(system: System, tier: int, writes: tuple[bool, bool], **run_on: int) -> list[float]:
    """Rates of two kernels at the same time once both are under way: slopes between two sizes."""
    sizes, times_ps = (16 << 20, 64 << 20), []
    for nbytes in sizes:
        trace = two_streams(writes, nbytes)
        outcome = run_fast(trace, system, placed(trace.regions, tier), ReplayOptions(run_on=run_on))
        times_ps.append([elapsed_ps(outcome, number) for number in (0, 1)])
    return [(sizes[1] - sizes[0]) * 10**6 / (b - a) for a, b in zip(*times_ps, strict=True)]


def assert_reached(found: float, mbps: float, by_channels: bool) -> None:
    """All of a rate to two hundredths; of channels what their uneven queues leave, 80% at least.

    Half of an H200's units have 1.6 times in flight what its memory needs.
    """
    assert (0.8 if by_channels else 0.98) * mbps < found < 1.01 * mbps


def alike(one: float, by_channels: bool) -> object:
    """The same to a hundredth; two where channels are busy, on which regions lie unevenly."""
    return pytest.approx(one, rel=0.02 if by_channels else 0.01)


def busy_channels(way: Way, mbps: float) -> bool:
    """Whether a stream at this rate keeps the channels of its tier busy for nine tenths of the time."""
    return mbps > 0.9 * tier_mbps(way.holder, way.write)


def bent(name: str, *overrides: str) -> System:
    return build_system(load_machine(name, overrides))


def test_opposite_streams_over_a_full_duplex_link_have_its_rate_each():
    changes = ("link.pcie.header=0 B", "link.pcie.tags=4096", "link.pcie.credits=4096")
    system = bent("h200-host", *changes)
    reading, writing = by_both_engines(system, 1)
    for rate, write in ((reading, False), (writing, True)):
        assert rate == pytest.approx(path_of(Way(system, 0, 1, write))[0], rel=0.03)


def test_opposite_streams_over_a_shared_link_have_its_rate_together():
    changes = [
        "link.pcie.header=0 B",
        "link.pcie.duplex=shared",
        "link.pcie.tags=4096",
        "link.pcie.credits=4096",
    ]
    system = bent("h200-host", *changes)
    reading, writing = by_both_engines(system, 1)
    (link,) = system.links
    together = 2 / (1 / link.mbps[0] + 1 / link.mbps[1])
    assert reading + writing == pytest.approx(together, rel=0.03)
    assert reading == pytest.approx(writing, rel=0.1)


@pytest.mark.parametrize(("machine", "tier"), [("h200", 0), ("h200-host", 1), ("gh200", 1), ("h200-cxl", 2)])
@pytest.mark.parametrize("write", [False, True])
def test_two_equal_streams_share_a_tier_fairly(machine, tier, write):
    system = bent(machine)
    way = Way(system, 0, tier, write)
    one, other = steady_rates(system, tier, (write, write))
    rates = [path_of(way)[0]]
    if not system.routes[0][tier]:  # 64 blocks, each on a unit; writes are stored in the cache
        rates += [64 * system.initiators[0].port_mbps[write] or rates[0], system.cache.mbps[write]]
    by_channels = busy_channels(way, min(rates))
    assert one == alike(other, by_channels)
    assert_reached(one + other, min(rates), by_channels)


def twins(machine: str) -> System:
    """A machine with a second GPU like the first at the same node."""
    table = read_table(locate(machine))
    table["initiator"]["twin"] = {**table["initiator"]["gpu"], "attach": "gpu"}
    found = check(table)
    assert isinstance(found, Profile)
    return build_system(found)


@pytest.mark.parametrize(("machine", "tier"), [("h200", 0), ("h200-host", 1)])
def test_two_equal_initiators_share_a_tier_fairly(machine, tier):
    system = twins(machine)
    twin = [runner.name for runner in system.initiators].index("twin")
    one, other = steady_rates(system, tier, (False, False), k1=twin)
    mbps = path_of(Way(system, 0, tier))[0]
    by_channels = busy_channels(Way(system, 0, tier), mbps)
    assert one == alike(other, by_channels)
    assert_reached(one + other, mbps, by_channels)


@pytest.mark.parametrize("write", [False, True])
def test_tiers_that_are_interleaved_in_proportion_reach_the_sum_of_their_rates(write):
    system = bent("gh200")
    near, far = (path_of(Way(system, 0, tier, write))[0] for tier in (0, 1))
    rule = f"kv=hbm:{near / 1e6:.6f},host:{far / 1e6:.6f}"
    wave, ends_ps = 132 * 8, []
    for tiles in (2, 6):  # of each block, so that all blocks have as many
        region = flat_region(0, wave * tiles * 128, 128)
        launch = kernel(blocks=wave, blocks_per_unit=8, tile_bytes=16_384, tiles_in_flight=2)
        rounds = range(0, region.rows, wave * 128)
        accesses = [
            Access(0, 0, wave - 1, 0, write, first, wave * 128, spread="even", grain=128) for first in rounds
        ]
        trace = MemoryTrace((region,), [(launch, columns(accesses))])
        placement = place_regions([region], parse_rules([rule], [region], system), "refuse", system)
        outcome = run_fast(trace, system, build_memory([region], placement), ReplayOptions())
        ends_ps.append(elapsed_ps(outcome))
    rate = wave * 4 * 16_384 * 10**6 / (ends_ps[1] - ends_ps[0])
    assert_reached(rate, near + far, True)


def test_copies_of_the_engine_share_the_link_with_loads_of_a_kernel():
    """Transfers of 64 KiB, one after another, pay their set-up also beside a kernel that loads."""
    system = bent("h200-host", "link.pcie.tags=768")
    engine = [runner.name for runner in system.initiators].index("copy")
    transfers, rows = 64, 16
    regions = (flat_region(0, transfers * rows, 4096), flat_region(1, 4096, 4096))
    copies = Access(0, 0, transfers - 1, 0, False, 0, transfers * rows, spread="even", grain=rows)
    loads = Access(1, 0, 31, 1, False, 0, 4096, spread="even", grain=4)
    copying = (kernel(0, stream=0, blocks=transfers, tile_bytes=65_536), columns([copies]))
    loading = (kernel(1, stream=1, blocks=32, tile_bytes=16_384, tiles_in_flight=4), columns([loads]))
    took_ps = []
    for launches in ([copying], [copying, loading]):
        trace = MemoryTrace(regions, launches)
        outcome = run_both(trace, system, placed(regions, 1), 8192, run_on={"k0": engine})
        took_ps.append(elapsed_ps(outcome, 0))
    alone_ps, beside_ps = took_ps
    setups_ps = transfers * system.initiators[engine].setup_ps
    wire_ps = regions[0].bytes * 10**6 // path_of(Way(system, engine, 1))[0]
    assert alone_ps > setups_ps + wire_ps
    assert beside_ps > alone_ps + wire_ps / 2  # while a transfer moves, the loads get their share
