"""`memsim machines lint`: what is wrong with a machine file, and what is doubtful about it.

A machine file or a `Profile` enters, a list of `Finding` leaves. An error is what keeps the machine from
being replayed; all of them are found, not only the first. A warning is doubtful physics: it may be meant (a
what-if), so it refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from memsim.options import DEFAULT_QUANTUM_BYTES
from memsim.profile import check, locate, read_table
from memsim.profile_set import overridden
from memsim.quantity import Share, Time
from memsim.route import build_system, faults, idle_latency_ps, path_bandwidth, tier_mbps
from memsim.system import MILLION, System, Tier
from memsim.units import format_bytes, format_rate, format_share, format_time

if TYPE_CHECKING:
    from memsim.profile_schema import Profile

# The fastest of each kind of link, one direction as signalled [MB/s]: PCI-SIG, lanes x GT/s; NVIDIA's data
# sheets and announcements; 16 cards of 400 Gbit/s in an AWS p6-b300. A link whose name holds the word is of
# the kind.
FASTEST_LINKS = (
    ("pcie", "PCIe 6 x16", 128_000),
    ("cxl", "CXL 3 x16", 128_000),
    ("nvlink", "NVLink 6", 1_800_000),
    ("c2c", "NVLink-C2C of Vera Rubin", 900_000),
    ("rdma", "16 cards of 400 Gbit/s", 800_000),
)
# The fastest memories of a kind, one device [MB/s]. hbm: announced (stas00/ml-engineering, accelerator
# memory); host: AMD announced 1.6 TB/s a socket (tomshardware.com, 2025-06); cxl: four channels of DDR5-6400,
# 8 bytes each (servethehome.com on Marvell Structera A); nvme: its slot, PCI-SIG, lanes x GT/s. A tier whose
# name holds the word is of the kind.
FASTEST_TIERS = (
    ("hbm", "the HBM4 of an NVIDIA Rubin", 22_000_000),
    ("host", "a server with two AMD EPYC Venice", 3_200_000),
    ("cxl", "a CXL device with four channels of DDR5-6400", 204_800),
    ("nvme", "a drive on PCIe 6 x4", 32_000),
)
LIGHT_PS = 5_000  # a metre of wire at the speed of light in it, which no server is smaller than
LEAST_LATENCY_PS = 10_000  # no memory and no serialiser answers sooner
BEST_EFFICIENCY = 0.99
ODD_STRIPE = 1000  # a rest of a stripe is under 0.1% of a capacity of so many
LEAST_TAIL = 20  # a step of less than a 20th of the latency is none
LARGEST_CACHE = ("the Infinity Cache of an AMD Instinct MI300X", 268_435_456)  # rocm.docs.amd.com
LONGEST_BURST = 4096  # bytes that a channel serves before it turns round, at least


@dataclass(frozen=True)
class Finding:
    """An error or a warning, the table or number that it is about, and what is the matter."""

    level: Literal["error", "warning"]
    where: str
    message: str


def lint_machine(machine: str | Path, overrides: Sequence[str] = ()) -> list[Finding]:
    """What is wrong with or doubtful about a machine by name or file; ProfileError if it cannot be read."""
    table = read_table(locate(machine))
    found = check(table)
    if overrides and not isinstance(found, list):
        for text in overrides:
            table = overridden(table, text)
        found = check(table)
    if isinstance(found, list):
        return [Finding("error", *_split(fault)) for fault in found]
    return lint(found)


def _split(fault: str) -> tuple[str, str]:
    where, _, message = fault.partition(": ")
    return where, message


def lint(profile: Profile) -> list[Finding]:
    """What is wrong with or doubtful about a machine; one without errors can be replayed."""
    errors = [Finding("error", *fault) for fault in faults(profile)]
    doubts = [*_of_numbers(profile), *_of_prefixes(profile), *_of_translation(profile)]
    if not errors:
        system = build_system(profile)
        doubts += [*_of_cache(system), *_of_tiers(system), *_of_ports(system)]
        doubts += [*_of_walks(system), *_of_order(system), *_of_flights(system)]
    return errors + [Finding("warning", *doubt) for doubt in doubts]


Doubt = tuple[str, str]  # where, and what is doubtful


def _of_numbers(profile: Profile) -> Iterator[Doubt]:
    """Single numbers that nothing real has."""
    for path, quantity in profile.quantities():
        group, name, *_, key = path.split(".")
        if isinstance(quantity, Share) and quantity.share > BEST_EFFICIENCY:
            best = format_share(BEST_EFFICIENCY)
            yield path, f"{quantity.text}: nothing sustains more than {best} of its peak"
        elif group == "link" and key.startswith("bandwidth"):
            yield from _too_fast(path, name, quantity.number)
        elif group == "link" and key == "latency" and quantity.number < LIGHT_PS:
            yield path, f"{quantity.text}: light takes {format_time(LIGHT_PS)} through a metre of wire"
        elif isinstance(quantity, Time) and group != "switch" and key.endswith("latency"):
            if quantity.number < LEAST_LATENCY_PS:
                least = format_time(LEAST_LATENCY_PS)
                yield path, f"{quantity.text}: nothing of this kind takes less than {least}"
        elif group == "tier" and key.endswith("bandwidth"):
            yield from _too_fast_memory(path, name, quantity.number)
    for name, link in profile.link.items():
        if link.header and link.payload and link.header.number > link.payload.number:
            yield f"link.{name}.header", f"{link.header.text} on at most {link.payload.text} of data"


def _too_fast(path: str, name: str, mbps: int) -> Iterator[Doubt]:
    for kind, fastest, most_mbps in FASTEST_LINKS:
        if kind in name.lower() and mbps > most_mbps:
            yield path, f"{_rate(mbps)} each way; {fastest}, the fastest of its kind, has {_rate(most_mbps)}"
            return


def _too_fast_memory(path: str, name: str, mbps: int) -> Iterator[Doubt]:
    for kind, fastest, most_mbps in FASTEST_TIERS:
        if kind in name.lower() and mbps > most_mbps:
            yield path, f"{_rate(mbps)} a device; {fastest}, the fastest of its kind, has {_rate(most_mbps)}"
            return


def _of_prefixes(profile: Profile) -> Iterator[Doubt]:
    """Capacities in GB beside others in GiB."""
    binary = {name: "iB" in tier.capacity.text for name, tier in profile.tier.items()}
    if len(set(binary.values())) > 1:
        mixed = ", ".join(f"{name} {tier.capacity.text}" for name, tier in profile.tier.items())
        yield "tier", f"capacities in GB (10^9) and GiB (2^30) side by side: {mixed}"


def _of_cache(system: System) -> Iterator[Doubt]:
    """A cache that is larger than any, and one that does not help the tiers behind it."""
    cache, (largest, most_bytes) = system.cache, LARGEST_CACHE
    where = f"cache.{cache.name}"
    if cache.capacity_bytes > most_bytes:
        found = f"{format_bytes(cache.capacity_bytes)}; {largest}, the largest there is"
        yield f"{where}.capacity", f"{found}, holds {format_bytes(most_bytes)}"
    for number, tier in enumerate(system.tiers):
        if not system.cached(0, number):
            continue
        if cache.capacity_bytes >= tier.capacity_bytes:
            held = format_bytes(tier.capacity_bytes)
            yield f"{where}.capacity", f"it holds all of '{tier.name}', which has {held}"
        if cache.latency_ps >= tier.latency_ps[0]:
            both = f"{format_time(cache.latency_ps)}; a miss, in '{tier.name}',"
            yield f"{where}.latency", f"a hit takes {both} {format_time(tier.latency_ps[0])}"
        if cache.mbps[0] < tier_mbps(tier):
            both = f"{_rate(cache.mbps[0])} of hits; '{tier.name}' behind it gives {_rate(tier_mbps(tier))}"
            yield f"{where}.bandwidth", both


def _of_ports(system: System) -> Iterator[Doubt]:
    """Ports that keep the units of the first initiator from what they and the tiers could do."""
    runner = system.initiators[0]
    for number in range(len(system.tiers)):
        for key, write in (("port", False), ("port_write", True)):
            if runner.port_mbps[write] and system.cached(0, number):
                yield from _of_port(f"initiator.{runner.name}.{key}", system, number, write)


def _of_port(where: str, system: System, number: int, write: bool) -> Iterator[Doubt]:
    """One port: all units fill their tier, and what one has outstanding comes in as fast as it may."""
    runner, tier = system.initiators[0], system.tiers[number]
    port_mbps, latency_ps = runner.port_mbps[write], tier.latency_ps[0]
    all_mbps = runner.units * port_mbps
    if all_mbps < tier_mbps(tier, write):
        yield where, f"{_rate(all_mbps)} in all units; '{tier.name}' gives {_rate(tier_mbps(tier, write))}"
    reached_mbps = runner.unit_outstanding_bytes * MILLION // latency_ps
    if not write and port_mbps < reached_mbps:
        flight = f"{format_bytes(runner.unit_outstanding_bytes)} outstanding over {format_time(latency_ps)}"
        yield where, f"{_rate(port_mbps)}; {flight} of '{tier.name}' are {_rate(reached_mbps)}"


def _of_channel(tier: Tier) -> Iterator[Doubt]:
    """A change of direction that takes longer than what is served between two of them."""
    for mbps in tier.channel_mbps:
        burst_ps = LONGEST_BURST * MILLION // mbps
        if tier.turnaround_ps > burst_ps:
            burst = f"{LONGEST_BURST:,} B of a channel of '{tier.name}'"
            yield (
                f"tier.{tier.name}.turnaround",
                f"{format_time(tier.turnaround_ps)}; {burst} take {format_time(burst_ps)}",
            )
            return


def _of_walks(system: System) -> Iterator[Doubt]:
    """Levels of translation that even a stream, which looks up each page once, has to wait for."""
    for number, tier in enumerate(system.tiers):
        mbps, _ = path_bandwidth(system, 0, number)
        for walk in tier.translation:
            if walk.occupancy_ps * mbps > walk.page_bytes * MILLION:
                pages = f"{_rate(mbps)} in pages of {format_bytes(walk.page_bytes)}"
                needed = f"{mbps * MILLION // walk.page_bytes:,} look-ups a second"
                level = f"the level that reaches {format_bytes(walk.reach_bytes)}"
                found = f"a stream of {pages} needs {needed}; {level} has {10**12 // walk.occupancy_ps:,}"
                yield f"tier.{tier.name}.translation", found


def _of_translation(profile: Profile) -> Iterator[Doubt]:
    """Levels that nothing misses, and larger ones that walk more often a second than smaller ones."""
    for name, tier in profile.tier.items():
        where = f"tier.{name}.translation"
        devices = tier.devices.number if tier.devices else 1
        for level, walk in tier.translation.items():
            if walk.reach.number >= devices * tier.capacity.number:
                yield (
                    f"{where}.{level}.reach",
                    f"{walk.reach.text}: it covers all of '{name}', so nothing misses it",
                )
        levels = sorted(tier.translation.items(), key=lambda level: level[1].reach.number)
        for (near, less), (far, more) in pairwise(levels):
            if more.rate.number > less.rate.number:
                found = (
                    f"{more.rate.text} walks a second; '{near}', whose misses it gets, has {less.rate.text}"
                )
                yield f"{where}.{far}.rate", found


def _of_tiers(system: System) -> Iterator[Doubt]:
    for tier in system.tiers:
        yield from _of_channel(tier)
        stripe = tier.interleave_bytes * tier.channels
        if tier.capacity_bytes < ODD_STRIPE * stripe and tier.capacity_bytes % stripe:
            found = f"{tier.capacity_bytes:,} B are no whole number of stripes of {stripe:,} B"
            yield f"tier.{tier.name}.capacity", f"{found} (interleave x channels)"
        if tier.tail and tier.tail[0][0] > MILLION // 2:
            yield f"tier.{tier.name}.tail", "its first step takes more than half of all requests"
        if tier.tail and tier.tail[0][1] * LEAST_TAIL < tier.latency_ps[0]:
            found = f"{format_time(tier.tail[0][1])} more than {format_time(tier.latency_ps[0])}"
            yield f"tier.{tier.name}.tail", f"its first step is hardly slower than usual: {found}"


def _by_latency(system: System) -> list[tuple[int, int]]:
    """(idle latency [ps], tier) as the first initiator sees them, the nearest first."""
    return sorted((idle_latency_ps(system, 0, tier), tier) for tier in range(len(system.tiers)))


def _of_order(system: System) -> Iterator[Doubt]:
    """Tiers that are further away than another on their way, or beside it, and yet faster.

    Nearness on two different ways says nothing: NVLink carries more than PCIe and takes about as long.
    """
    for (near_ps, near), (far_ps, far) in combinations(_by_latency(system), 2):
        rates = [path_bandwidth(system, 0, tier)[0] for tier in (near, far)]
        on_the_way = system.routes[0][near]
        if rates[1] > rates[0] and system.routes[0][far][: len(on_the_way)] == on_the_way:
            names = [system.tiers[tier].name for tier in (near, far)]
            found = f"{_rate(rates[1])} after {format_time(far_ps)}; '{names[0]}', which is nearer"
            yield f"tier.{names[1]}", f"{found} ({format_time(near_ps)}), has {_rate(rates[0])}"


def _of_flights(system: System) -> Iterator[Doubt]:
    """Little's law: what may be outstanding, against what a path's bandwidth needs at its idle latency."""
    worst: dict[str, tuple[int, str]] = {}
    for tier in range(len(system.tiers)):
        for write in (False, True):
            flight = Flight(system, tier, write, path_bandwidth(system, 0, tier, write)[0])
            for where, needed, words in (*flight.of_links(), *flight.of_queue(), *flight.of_units()):
                worst[where] = max(worst.get(where, (0, "")), (needed, words))
    yield from ((where, words) for where, (_, words) in worst.items())


Lack = tuple[str, int, str]  # where, how much is needed, and the words for it


@dataclass(frozen=True)
class Flight:
    """A stream of the first initiator from or to a tier at the `mbps` of its path."""

    system: System
    tier: int
    write: bool
    mbps: int

    def of_links(self) -> Iterator[Lack]:
        """Tags, or credits of writes, that are too few; they are held from their link outward."""
        if self.system.tiers[self.tier].commanded:
            return
        route = self.system.routes[0][self.tier]
        key = "credits" if self.write else "tags"
        for number, hop in enumerate(route):
            link = self.system.links[hop.link]
            beyond_ps = self._served_ps() + 2 * sum(each.latency_ps for each in route[number:])
            needed = -(-self._bytes(beyond_ps) // self.system.packet_bytes(0, hop.link))
            if 0 < getattr(link, key) < needed:
                words = self._words(f"{getattr(link, key):,}", f"{needed:,}", beyond_ps)
                yield f"link.{link.name}.{key}", needed, words + self._remedy()

    def _remedy(self) -> str:
        """What storage does that needs no tags: it fetches and brings the data by itself."""
        tier = self.system.tiers[self.tier]
        if not tier.queue_depth and not any(tier.occupancy_ps):
            return ""
        return f'; if the device moves data by itself, set tier.{tier.name}.access = "command"'

    def of_queue(self) -> Iterator[Lack]:
        """A queue that is too short."""
        tier = self.system.tiers[self.tier]
        piece = min(tier.interleave_bytes, max(DEFAULT_QUANTUM_BYTES, tier.unit_bytes))
        needed = -(-self._bytes(self._served_ps()) // piece)
        if 0 < tier.queue_depth < needed:
            wanted = f"{needed:,} pieces of {piece:,} B"
            words = self._words(f"{tier.queue_depth:,}", wanted, self._served_ps())
            yield f"tier.{tier.name}.queue_depth", needed, words

    def of_units(self) -> Iterator[Lack]:
        """Loads and stores of all units together that are too few."""
        runner = self.system.initiators[0]
        way_ps = idle_latency_ps(self.system, 0, self.tier, self.write)
        may, needed = runner.units * runner.lent_bytes(runner.units), self._bytes(way_ps)
        if may < needed:
            words = self._words(f"{format_bytes(may)} in all units", format_bytes(needed), way_ps)
            key = "outstanding" if may < runner.units * runner.unit_outstanding_bytes else "unit_outstanding"
            yield f"initiator.{runner.name}.{key}", needed, words

    def _served_ps(self) -> int:
        return self.system.tiers[self.tier].latency_ps[self.write]

    def _bytes(self, time_ps: int) -> int:
        return self.mbps * time_ps // MILLION

    def _words(self, may: str, needed: str, time_ps: int) -> str:
        ends = f"{_rate(self.mbps)} of '{self.system.tiers[self.tier].name}' over {format_time(time_ps)}"
        return f"{may}; {needed} are needed for the {ends}"


def _rate(mbps: int) -> str:
    return format_rate(mbps * 10**6)
