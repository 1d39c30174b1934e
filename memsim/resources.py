"""What a kernel can wait for, and machines and programs that have more of it.

A `Case` (a machine, the program of some kernels) enters, the same with more of one resource leaves. `bound`
asks what ten times of each would save and `explain` what a tenth more would, and divides a kernel's time by
taking one resource after another out of the way. A new resource is a line in `resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from memsim.program import Program
from memsim.rules import TIER, Memory
from memsim.system import Hop, System, Tier, Walk

# The order in which `explain` takes resources out of the way; RATE: those of a kind by what each takes alone.
LAUNCH, START, FLIGHT, PLACES, QUEUES, LATENCY, RATE = range(7)

TILES = "tile overhead"  # fixed times of tiles
_OF_START = ("startup_ps", "drain_ps", "idle_ps", "dispatch_ps")
SERIAL = "serial chain"  # what the latency of a kernel is called that walks partial results one by one


@dataclass(frozen=True)
class Scale:
    """How much more of a resource: a factor as (numerator, denominator) of rates and times, and of counts."""

    rate: tuple[int, int]
    count: tuple[int, int]

    def more(self, value: Any) -> Any:
        """A rate, or a pair of them, that is higher by the factor, rounded up."""
        return _times(value, *self.rate)

    def less(self, value: Any, least: int = 0) -> Any:
        """A time, a pair or an array of them, that is shorter by the factor, rounded down."""
        over, under = self.rate
        if isinstance(value, tuple):
            return tuple(max(least, each * under // over) for each in value)
        if isinstance(value, np.ndarray):
            return np.maximum(least, value * under // over)
        return max(least, value * under // over)

    def many(self, value: Any) -> Any:
        """A count, or an array of them, that is higher by the factor, rounded up: one more at least."""
        return _times(value, *self.count)

    def few(self, values: Any) -> Any:
        """Shares that are smaller by the factor of counts, 1 at least."""
        over, under = self.count
        return np.maximum(1, values * under // over)


TENFOLD = Scale((10, 1), (10, 1))
TENTH_MORE = Scale((11, 10), (11, 10))
OUT_OF_THE_WAY = Scale((10_000, 1), (100, 1))  # so little is left that the rest of a division is small


def _times(value: Any, over: int, under: int) -> Any:
    if isinstance(value, tuple):
        return tuple(-(-each * over // under) for each in value)
    return -(-value * over // under)


class Case(NamedTuple):
    """What is replayed.

    serial  bool[kernels]: those that cannot have more in flight, each load waits for the one before
    """

    system: System
    program: Program
    serial: np.ndarray


@dataclass(frozen=True)
class Resource:
    """Something that there can be more of.

    kind     LAUNCH .. RATE: its turn when a time is divided
    grown    a case with more of it
    removed  a case in which nothing waits for it, where that is not more of the same
    place    the tier or link that it belongs to, "" for none
    """

    name: str
    kind: int
    grown: Callable[[Case, Scale], Case]
    removed: Callable[[Case, Scale], Case] | None = None
    place: str = ""

    def out_of_the_way(self, case: Case, scale: Scale) -> Case:
        """A case in which next to nothing waits for it."""
        return (self.removed or self.grown)(case, scale)


def resources(system: System) -> Iterator[Resource]:
    """All resources of a machine. Where several save the same the first one is named."""
    for number, tier in enumerate(system.tiers):
        yield _of_bandwidth(_of_tier(number, tier.name, "bandwidth", RATE, channel_mbps=Scale.more))
        if any(tier.occupancy_ps):
            yield _of_tier(number, tier.name, "operations", RATE, occupancy_ps=Scale.less)
        if tier.turnaround_ps:
            yield _of_tier(number, tier.name, "turnaround", RATE, turnaround_ps=Scale.less)
        if any(walk.occupancy_ps for walk in tier.translation):
            yield _of_tier(number, tier.name, "translation", RATE, translation=_quicker_walkers)
        if tier.write_buffer_bytes:
            yield _of_tier(number, tier.name, "write buffer", QUEUES, write_buffer_bytes=Scale.many)
        if tier.queue_depth:
            yield _of_tier(number, tier.name, "queue depth", QUEUES, queue_depth=Scale.many)
    yield _of_cache(f"{system.cache.name} bandwidth", mbps=_more_reads)
    yield _of_cache(f"{system.cache.name} write bandwidth", mbps=_more_writes)
    for number, link in enumerate(system.links):
        yield _of_link(number, link.name, "bandwidth", RATE, mbps=Scale.more)
        if link.tags or link.credits:
            yield _of_tags(number, link.name)
    if any(rate for initiator in system.initiators for rate in initiator.port_mbps):
        yield Resource("unit ports", RATE, _wider_ports)
    yield _of_program("arithmetic", RATE, mflops=Scale.more)
    yield _of_program(TILES, RATE, tile_ps=Scale.less)
    yield Resource("latency", LATENCY, _quicker)
    yield Resource("bytes in flight", FLIGHT, _more_in_flight, _enough_in_flight)
    yield Resource("units", PLACES, _more_units, _all_blocks_placed)
    yield _of_program("launch", LAUNCH, launch_ps=Scale.less)
    yield _of_program("block start-up", START, **dict.fromkeys(_OF_START, Scale.less))


def idle(case: Case, memory: Memory) -> set[str]:
    """Names of what more of saves a program nothing: tiers and links that none of its requests can come to,
    fixed times of tiles that have none."""
    system = case.system
    tiers = set(memory.shares[:, TIER].tolist())
    runners = set(case.program.initiator.tolist())
    links = {hop.link for runner in runners for tier in tiers for hop in system.routes[runner][tier]}
    names = [tier.name for number, tier in enumerate(system.tiers) if number not in tiers]
    names += [link.name for number, link in enumerate(system.links) if number not in links]
    return {*names, *(() if case.program.tile_ps.any() else (TILES,))}


def _changed(part: Any, scale: Scale, changes: dict[str, Callable[[Scale, Any], Any]]) -> Any:
    return replace(part, **{field: change(scale, getattr(part, field)) for field, change in changes.items()})


def _of_tier(number: int, name: str, what: str, kind: int, **changes: Any) -> Resource:
    """Something of a tier. changes: a method of `Scale` for each field that it stands in."""

    def grown(case: Case, scale: Scale) -> Case:
        tiers = list(case.system.tiers)
        tiers[number] = _changed(tiers[number], scale, changes)
        return case._replace(system=replace(case.system, tiers=tuple(tiers)))

    return Resource(f"{name} {what}", kind, grown, place=name)


def _of_bandwidth(rate: Resource) -> Resource:
    """A memory's rate at the same power: a byte takes less of what arithmetic needs."""

    def grown(case: Case, scale: Scale) -> Case:
        program = case.program
        left = scale.less(program.read_flops)
        program = program._replace(flops=program.flops - program.read_flops + left, read_flops=left)
        return rate.grown(case._replace(program=program), scale)

    return replace(rate, grown=grown)


def _of_link(number: int, name: str, what: str, kind: int, **changes: Any) -> Resource:
    """Something of a link, see `_of_tier`."""

    def grown(case: Case, scale: Scale) -> Case:
        links = list(case.system.links)
        links[number] = _changed(links[number], scale, changes)
        return case._replace(system=replace(case.system, links=tuple(links)))

    return Resource(f"{name} {what}", kind, grown, place=name)


def _of_cache(name: str, **changes: Any) -> Resource:
    def grown(case: Case, scale: Scale) -> Case:
        cache = _changed(case.system.cache, scale, changes)
        return case._replace(system=replace(case.system, cache=cache))

    return Resource(name, RATE, grown)


def _of_program(name: str, kind: int, **changes: Any) -> Resource:
    """Something of kernels, see `_of_tier`."""

    def grown(case: Case, scale: Scale) -> Case:
        columns = {field: change(scale, getattr(case.program, field)) for field, change in changes.items()}
        return case._replace(program=case.program._replace(**columns))

    return Resource(name, kind, grown)


def _quicker(case: Case, scale: Scale) -> Case:
    """All hops with less of their latency, 1 ps at least, and of what slow requests take more."""

    def hop(each: Hop) -> Hop:
        return replace(each, latency_ps=scale.less(each.latency_ps, 1))

    system = case.system
    tiers = tuple(_nearer(tier, scale) for tier in system.tiers)
    routes = tuple(tuple(tuple(map(hop, route)) for route in by_tier) for by_tier in system.routes)
    cache = replace(
        system.cache,
        latency_ps=scale.less(system.cache.latency_ps, 1),
        spread_ps=scale.less(system.cache.spread_ps),
    )
    program = case.program._replace(work_ps=scale.less(case.program.work_ps))
    return case._replace(system=replace(system, tiers=tiers, routes=routes, cache=cache), program=program)


def _nearer(tier: Tier, scale: Scale) -> Tier:
    """A tier with less of its latency, also between its nearest and its farthest channel."""
    return replace(
        tier,
        latency_ps=scale.less(tier.latency_ps, 1),
        spread_ps=scale.less(tier.spread_ps),
        tail=tuple((slowest, scale.less(extra_ps)) for slowest, extra_ps in tier.tail),
        loaded=tuple((load, scale.less(extra_ps)) for load, extra_ps in tier.loaded),
        translation=tuple(replace(w, latency_ps=scale.less(w.latency_ps)) for w in tier.translation),
    )


def _quicker_walkers(scale: Scale, walks: tuple[Walk, ...]) -> tuple[Walk, ...]:
    return tuple(replace(walk, occupancy_ps=scale.less(walk.occupancy_ps)) for walk in walks)


def _more_reads(scale: Scale, mbps: tuple[int, int]) -> tuple[int, int]:
    return scale.more(mbps[0]), mbps[1]


def _more_writes(scale: Scale, mbps: tuple[int, int]) -> tuple[int, int]:
    return mbps[0], scale.more(mbps[1])


def _of_tags(number: int, name: str) -> Resource:
    """Tags and credits of a link, and of initiators that may hold fewer of them."""
    more: dict[str, Callable[[Scale, Any], Any]] = {"tags": Scale.many, "credits": Scale.many}
    of_link = _of_link(number, name, "tags", QUEUES, **more)

    def grown(case: Case, scale: Scale) -> Case:
        runners = tuple(_changed(each, scale, more) for each in case.system.initiators)
        return of_link.grown(case._replace(system=replace(case.system, initiators=runners)), scale)

    return replace(of_link, grown=grown)


def _wider_ports(case: Case, scale: Scale) -> Case:
    ports = tuple(replace(each, port_mbps=scale.more(each.port_mbps)) for each in case.system.initiators)
    return case._replace(system=replace(case.system, initiators=ports))


def _more_in_flight(case: Case, scale: Scale) -> Case:
    """More tiles of a block, and more bytes of a unit, may be outstanding."""
    return _in_flight(case, scale, case.serial)


def _enough_in_flight(case: Case, scale: Scale) -> Case:
    """The same, but blocks that load one tile after another still do: that is their latency."""
    return _in_flight(case, scale, case.serial | (case.program.tiles == 1))


def _in_flight(case: Case, scale: Scale, one_by_one: np.ndarray) -> Case:
    roomy = tuple(
        replace(each, unit_outstanding_bytes=scale.many(each.unit_outstanding_bytes))
        for each in case.system.initiators
    )
    program = case.program
    tiles = np.where(one_by_one, program.tiles, scale.many(program.tiles))
    program = program._replace(tiles=tiles, withheld=scale.many(program.withheld))
    return case._replace(system=replace(case.system, initiators=roomy), program=program)


def _more_units(case: Case, scale: Scale) -> Case:
    """More units. Each has arithmetic of its own."""
    wide = tuple(replace(each, units=scale.many(each.units)) for each in case.system.initiators)
    return case._replace(system=replace(case.system, initiators=wide))


def _all_blocks_placed(case: Case, scale: Scale) -> Case:
    """Blocks need not wait for a place; the units and their arithmetic stay as they are."""
    return case._replace(program=case.program._replace(unit_shares=scale.few(case.program.unit_shares)))
