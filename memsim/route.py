"""From a checked machine file to a `System`, and what a path through it can do.

A `Profile` enters, a `System` of plain integers leaves; `nodes` finds the routes. What does not fit together
is a fault: `faults` finds all of them, `build_system` refuses the first. What follows from routes is here
too: the bandwidth of a path, the part that binds it, its idle latency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from memsim.errors import ProfileError, nearest
from memsim.nodes import Fault, faults_of_graph, routes_of
from memsim.system import MILLION, MOST_SPREAD, Cache, Hop, Initiator, Input, Link, System, Tier, Walk
from memsim.units import format_time

if TYPE_CHECKING:
    from memsim.profile_schema import CacheTable, InitiatorTable, LinkTable, Profile, TierTable, WalkTable
    from memsim.quantity import Quantity

LEAST_UNIT_MFLOPS = 1000  # below, the time of one large tile would overflow
MOST_CHANNELS = 65_536  # of a tier, all devices
MOST_BYTES = 10**16
MOST_OCCUPANCY_PS = 10**12
MOST_HEADERS = 15  # times the data of a packet
UNLIMITED_REQUEST_BYTES = 1 << 30  # a packet is as large as its link allows


def build_system(profile: Profile) -> System:
    """The machine as the engines need it; ProfileError where its tables do not fit together."""
    for where, what in faults(profile):
        raise ProfileError(f"machine '{profile.name}': {where}: {what}")
    (cache,) = profile.cache
    return System(
        name=profile.name,
        initiators=tuple(_initiator(name, table) for name, table in profile.initiator.items()),
        cache=_cache(cache, profile.cache[cache]),
        tiers=tuple(_tier(profile, name, table) for name, table in profile.tier.items()),
        links=tuple(_link(name, table) for name, table in profile.link.items()),
        routes=routes_of(profile),
        inputs=inputs(profile),
    )


def inputs(profile: Profile) -> tuple[Input, ...]:
    """Every number of the machine with its provenance and source, in the order of the file."""
    return tuple(
        Input(path, number.text, number.provenance, number.source) for path, number in profile.quantities()
    )


def faults(profile: Profile) -> Iterator[Fault]:
    """Whatever keeps a machine from being built, each as (where, what is wrong and what to do)."""
    yield from _faults_of_groups(profile)
    for name, runner in profile.initiator.items():
        yield from _faults_of_initiator(name, runner)
    for name, tier in profile.tier.items():
        yield from _faults_of_tier(name, tier)
    for name, link in profile.link.items():
        yield from _faults_of_link(profile, name, link)
    yield from faults_of_graph(profile)


def _faults_of_groups(profile: Profile) -> Iterator[Fault]:
    if not profile.initiator:
        yield "initiator", "found none, expected one [initiator.NAME] at least"
    if len(profile.cache) != 1:
        found = " and ".join(profile.cache) or "none"
        yield "cache", f"found {found}, expected exactly one [cache.NAME]"
    first = next(iter(profile.initiator), "")
    for name, cache in profile.cache.items():
        if first and cache.attach != first:
            yield f"cache.{name}.attach", f"found '{cache.attach}', expected the initiator '{first}'"
        if cache.spread and cache.spread.number > cache.latency.number:
            found = f"{cache.spread.text} between the nearest and the farthest slice"
            yield f"cache.{name}.spread", f"{found}; expected at most the latency"
    if not profile.tier:
        yield "tier", "no tier; add one [tier.NAME] at least"
    for scenario, prices in profile.cost.items():
        for tier in prices:
            if tier not in profile.tier:
                yield f"cost.{scenario}.{tier}", f"no tier '{tier}'; {nearest(tier, profile.tier)}"


def _faults_of_initiator(name: str, table: InitiatorTable) -> Iterator[Fault]:
    units = table.units.number
    for key in ("bf16", "fp8", "fp4", "fp32"):
        rate = getattr(table, key)
        if rate is not None and rate.number < units * LEAST_UNIT_MFLOPS:
            found = f"{rate.number} MFLOP/s over {units} units is less than 1 GFLOP/s a unit"
            yield f"initiator.{name}.{key}", f"{found}; raise it or lower the units"


def _faults_of_tier(name: str, table: TierTable) -> Iterator[Fault]:
    channels, interleave, unit = table.channels.number, table.interleave.number, table.unit.number
    devices = table.devices.number if table.devices else 1
    if interleave % unit:
        found = f"{interleave} B is no multiple of the tier's unit, {unit} B"
        yield f"tier.{name}.interleave", f"{found}; make it one"
    apart_ps = sum(_spread_ps(table))
    if 100 * apart_ps > MOST_SPREAD * table.latency.number:
        found = f"{format_time(apart_ps)} with far and late between the nearest and the farthest channel"
        yield f"tier.{name}.spread", f"{found}; expected at most {MOST_SPREAD} % of the latency"
    if min(_channel_mbps(table)) < 1:
        yield f"tier.{name}.bandwidth", "less than 1 MB/s a channel; raise it or lower the channels"
    if devices * channels > MOST_CHANNELS:
        found = f"{devices} devices of {channels} channels have more than {MOST_CHANNELS:,}"
        yield f"tier.{name}.devices", f"{found}; lower one of the two"
    if devices * table.capacity.number > MOST_BYTES:
        yield f"tier.{name}.devices", f"{devices} devices hold more than 10 PB; lower their number"
    for key, occupancy_ps in zip(("read_iops", "write_iops"), _occupancies_ps(table), strict=True):
        if occupancy_ps > MOST_OCCUPANCY_PS:
            yield f"tier.{name}.{key}", "fewer than one a second a channel; raise it or lower the channels"
    if table.loaded_latency and devices * channels > 1:
        found = f"{devices * channels:,} channels, whose queues make it; expected one"
        yield f"tier.{name}.loaded_latency", f"{found}; leave it out, or set devices and channels to 1"
    yield from _faults_of_translation(f"tier.{name}.translation", table.translation)


def _faults_of_translation(where: str, levels: Mapping[str, WalkTable]) -> Iterator[Fault]:
    for name, level in levels.items():
        if level.reach.number < level.page.number:
            yield (
                f"{where}.{name}.reach",
                f"{level.reach.text} is less than a page, {level.page.text}; raise it",
            )
    reaches = [level.reach.number for level in levels.values()]
    if len(set(reaches)) < len(reaches):
        yield where, f"both levels reach {reaches[0]:,} B; leave one out or raise its reach"


def _faults_of_link(profile: Profile, name: str, table: LinkTable) -> Iterator[Fault]:
    if name in profile.tier or name in profile.cache:
        kind = "tier" if name in profile.tier else "cache"
        yield f"link.{name}", f"a {kind} has this name; rename the link to '{name}-link'"
    if min(_link_mbps(table)) < 1:
        yield f"link.{name}.bandwidth", "less than 1 MB/s sustained; raise it"
    for initiator, runner in profile.initiator.items():
        payload = table.payload.number if table.payload else UNLIMITED_REQUEST_BYTES
        packet = min(_request_bytes(runner), payload)
        if table.header and table.header.number > MOST_HEADERS * packet:
            found = f"{table.header.number} B on packets of {packet} B from '{initiator}'"
            yield f"link.{name}.header", f"{found}; expected at most {MOST_HEADERS} times their data"


def _request_bytes(table: InitiatorTable) -> int:
    return table.request.number if table.request else UNLIMITED_REQUEST_BYTES


def _initiator(name: str, table: InitiatorTable) -> Initiator:
    units = table.units.number
    return Initiator(
        name=name,
        units=units,
        unit_outstanding_bytes=table.unit_outstanding.number,
        outstanding_bytes=_or_none(table.outstanding),
        request_bytes=_request_bytes(table),
        launch_gap_ps=table.launch_gap.number,
        graph_launch_ps=table.graph_launch.number,
        setup_ps=_or_none(table.setup),
        bf16_mflops=table.bf16.number // units if table.bf16 else 0,
        fp8_mflops=table.fp8.number // units if table.fp8 else 0,
        fp4_mflops=table.fp4.number // units if table.fp4 else 0,
        fp32_mflops=table.fp32.number // units if table.fp32 else 0,
        work_latency_ps=_or_none(table.work_latency),
        turn_ps=_or_none(table.turn),
        power_mbps=max(1, table.power_bandwidth.number // units) if table.power_bandwidth else 0,
        wake_ps=_or_none(table.wake),
        dispatch_ps=_or_none(table.dispatch),
        posts=table.writes == "posted",
        tags=_or_none(table.tags),
        credits=_or_none(table.credits),
        port_mbps=(_or_none(table.port), _or_none(table.port_write or table.port)),
    )


def _or_none(quantity: Quantity | None) -> int:
    """A number that may be left out; 0: it is."""
    return quantity.number if quantity else 0


def _spread_ps(table: TierTable) -> tuple[int, int, int]:
    """Tier.spread_ps."""
    return _or_none(table.spread), _or_none(table.far), _or_none(table.late)


def _cache(name: str, table: CacheTable) -> Cache:
    return Cache(
        name=name,
        capacity_bytes=table.capacity.number,
        mbps=(table.bandwidth.number, (table.write_bandwidth or table.bandwidth).number),
        latency_ps=table.latency.number,
        copies=table.copies.number if table.copies else 1,
        ways=_or_none(table.ways),
        spread_ps=_or_none(table.spread),
    )


def _translation(levels: Mapping[str, WalkTable]) -> tuple[Walk, ...]:
    """Levels of address translation, the smaller reach first."""
    walks = (
        Walk(level.reach.number, level.page.number, level.latency.number, -(-(10**12) // level.rate.number))
        for level in levels.values()
    )
    return tuple(sorted(walks, key=lambda walk: walk.reach_bytes))


def _channel_mbps(table: TierTable) -> tuple[int, int]:
    """Sustained rate of one channel, reads and writes."""
    channels = table.channels.number
    read = table.bandwidth.number * table.efficiency.share
    bandwidth = table.write_bandwidth or table.bandwidth
    write = bandwidth.number * (table.write_efficiency or table.efficiency).share
    return int(read / channels), int(write / channels)


def _occupancies_ps(table: TierTable) -> tuple[int, int]:
    """Least time that an operation keeps its channel, reads and writes; 0: none."""
    work = table.channels.number * 10**12
    read, write = (-(-work // iops.number) if iops else 0 for iops in (table.read_iops, table.write_iops))
    return read, write


def _tier(profile: Profile, name: str, table: TierTable) -> Tier:
    devices = table.devices.number if table.devices else 1
    latency = table.latency.number
    return Tier(
        name=name,
        capacity_bytes=devices * table.capacity.number,
        channels=devices * table.channels.number,
        channel_mbps=_channel_mbps(table),
        interleave_bytes=table.interleave.number,
        unit_bytes=table.unit.number,
        latency_ps=(latency, table.write_latency.number if table.write_latency else latency),
        peak_mbps=devices * table.bandwidth.number,
        occupancy_ps=_occupancies_ps(table),
        queue_depth=devices * _or_none(table.queue_depth),
        tail=table.tail.steps if table.tail else (),
        turnaround_ps=_or_none(table.turnaround),
        write_buffer_bytes=_or_none(table.write_buffer),
        loaded=table.loaded_latency.points if table.loaded_latency else (),
        translation=_translation(table.translation),
        commanded=table.access == "command",
        devices=devices,
        spread_ps=_spread_ps(table),
        energy_fj=_or_none(table.energy),
        cost=tuple((dated, prices[name].number) for dated, prices in profile.cost.items() if name in prices),
    )


def _link_mbps(table: LinkTable) -> tuple[int, int]:
    """Sustained rate on the wire towards the first node and away from it."""
    away, efficiency = table.bandwidth_out or table.bandwidth, table.efficiency_out or table.efficiency
    towards_mbps = int(table.bandwidth.number * Fraction(table.efficiency.share))
    return towards_mbps, int(away.number * Fraction(efficiency.share))


def _link(name: str, table: LinkTable) -> Link:
    away = table.bandwidth_out or table.bandwidth
    return Link(
        name=name,
        mbps=_link_mbps(table),
        peak_mbps=(table.bandwidth.number, away.number),
        latency_ps=table.latency.number,
        tags=_or_none(table.tags),
        credits=_or_none(table.credits),
        payload_bytes=table.payload.number if table.payload else UNLIMITED_REQUEST_BYTES,
        header_bytes=_or_none(table.header),
        shared=table.duplex == "shared",
        efficiency=table.transfer_efficiency.points if table.transfer_efficiency else (),
        energy_fj=_or_none(table.energy),
    )


def path_bandwidth(
    system: System,
    initiator: int,
    tier: int,
    write: bool = False,
) -> tuple[int, str]:
    """What a stream of one kind sustains between an initiator and a tier, and the part that binds.

    Data alone: headers are taken off, and the largest transfers are meant where a link or a tier needs them.
    Reads miss the cache; writes go through it, and their lines leave it as fast as others enter.
    Returns (rate [10^6 bytes/s], the name of the ports, cache, link or tier); of equals the nearest.
    """
    runner = system.initiators[initiator]
    rates = [
        (_data_mbps(system, initiator, hop, write), system.links[hop.link].name)
        for hop in system.routes[initiator][tier]
    ]
    if not rates and runner.port_mbps[write]:
        rates.append((runner.units * runner.port_mbps[write], f"{runner.name} ports"))
    if write and system.cached(initiator, tier):
        rates.append((system.cache.mbps[write], system.cache.name))
    rates.append((tier_mbps(system.tiers[tier], write), system.tiers[tier].name))
    return min(rates, key=lambda rate: rate[0])


def tier_mbps(tier: Tier, write: bool = False) -> int:
    """What all channels of a tier sustain in large transfers, its limit on operations counted."""
    mbps, occupancy_ps = tier.channel_mbps[write], tier.occupancy_ps[write]
    if occupancy_ps * mbps > tier.interleave_bytes * MILLION:
        return tier.channels * tier.interleave_bytes * MILLION // occupancy_ps
    return tier.channels * mbps


def _data_mbps(system: System, initiator: int, hop: Hop, write: bool) -> int:
    """Data that a link carries for a stream: each packet with its header, each read with its request's."""
    link = system.links[hop.link]
    packet = system.packet_bytes(initiator, hop.link)
    near_mbps, far_mbps = reversed(link.mbps) if hop.flipped else link.mbps  # towards the initiator, away
    carrier, other = (far_mbps, near_mbps) if write else (near_mbps, far_mbps)
    times = [Fraction(packet + link.header_bytes, carrier)]
    if not write:
        times.append(Fraction(link.header_bytes, other))
    share = Fraction(link.efficiency[-1][1] if link.efficiency else MILLION, MILLION)
    return int(packet * share / (sum(times) if link.shared else max(times)))


def idle_latency_ps(system: System, initiator: int, tier: int, write: bool = False) -> int:
    """Hops of one request to a tier and back on an idle machine, transfers not counted [ps].

    Reads miss the cache; writes end in it.
    """
    if write and system.cached(initiator, tier):
        return system.cache.latency_ps
    hops = system.routes[initiator][tier]
    back_ps = sum(system.back_ps(initiator, hop, write) for hop in hops)
    return system.tiers[tier].latency_ps[write] + sum(hop.latency_ps for hop in hops) + back_ps
