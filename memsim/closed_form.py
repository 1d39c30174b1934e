"""Closed forms of a machine: one request on an idle machine, a stream by Little's law.

A `Way` (who reads or writes which tier) enters, times and rates leave. They are what `machine_check`
expects of a replay; the engines know nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

import numpy as np

from memsim.options import DEFAULT_QUANTUM_BYTES
from memsim.route import path_bandwidth, tier_mbps
from memsim.rules import (  # fmt: skip
    least_ps,
    operation_bytes,
    packets,
    pieces_of,
    rounded_bytes,
    stretched,
    transfer_share,
)
from memsim.system import MILLION, Hop, Initiator, Link, System, Tier

TILE_BYTES = 2 * DEFAULT_QUANTUM_BYTES
EXACT = 0.005  # how near a stream comes to its path's bandwidth where there is plenty in flight
# What is plenty: requests in flight, in what Little's law needs, where answers and requests take turns on one
# medium (elsewhere the more the busier the tier is). STRIPES is how long a stream is at least.
SHARED_PLENTY, STRIPES = 4, 8
STORED_PLENTY = 6  # times, on a tier with a queue
CHANCE = 0.9  # of the bound below which no network of queues falls: requests do not meet at random


@dataclass(frozen=True)
class Way:
    """Reads or writes of a tier by an initiator."""

    system: System
    initiator: int
    tier: int
    write: bool = False

    @property
    def runner(self) -> Initiator:
        """Who reads or writes."""
        return self.system.initiators[self.initiator]

    @property
    def holder(self) -> Tier:
        """What is read or written."""
        return self.system.tiers[self.tier]

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The route, outward."""
        return self.system.routes[self.initiator][self.tier]

    @property
    def part(self) -> str:
        """The tier, and who reads it if that is not the first initiator."""
        return f"{self.holder.name} by {self.runner.name}" if self.initiator else self.holder.name

    @property
    def stored(self) -> bool:
        """Whether a write ends in the cache that stands in front of the tier."""
        return self.write and self.system.cached(self.initiator, self.tier)

    @property
    def request_bytes(self) -> int:
        """Requests of a stream: the usual quantum or the tier's unit, less where tags are few."""
        usual = max(DEFAULT_QUANTUM_BYTES, self.holder.unit_bytes)
        return self.system.largest_request(self.initiator, self.tier, self.write, usual)

    @property
    def span_bytes(self) -> int:
        """A tile of a stream: as long as links and tier need it to reach their rates, in whole requests."""
        links = [self.system.links[hop.link] for hop in self.hops]
        longest = max([TILE_BYTES, *(link.efficiency[-1][0] for link in links if link.efficiency)])
        if any(self.holder.occupancy_ps):  # an operation moves what lies together on a channel
            longest = max(longest, self.holder.interleave_bytes)
        return -(-longest // self.request_bytes) * self.request_bytes

    @property
    def stripe_bytes(self) -> int:
        """Bytes that lie on all channels once."""
        return self.holder.channels * self.holder.interleave_bytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes that all channels may gather before they write any."""
        return self.holder.channels * self.holder.write_buffer_bytes if self.write else 0


class Limit(NamedTuple):
    """At most so many requests of a stream are between two points, `trip_ps` apart on an idle machine."""

    name: str
    requests: int
    request_bytes: int
    trip_ps: int


class Expected(NamedTuple):
    """Bandwidth that is expected [10^6 bytes/s], from and to, and what binds it.

    exact  there is plenty in flight: it is the bandwidth of the path
    """

    least_mbps: float
    most_mbps: float
    bound: str
    exact: bool


def round_trip_ps(way: Way, nbytes: int, span_bytes: int, begin: int = 0) -> int:
    """Time of one aligned request on an idle machine, from hop `begin` outward and back [ps].

    span_bytes  of the span that it was cut from
    """
    moved, span_bytes = _moved(way, nbytes), _moved(way, span_bytes)
    if way.stored:
        cache = way.system.cache
        pushed_ps = way.holder.latency_ps[1]  # of the line that makes room
        return max(_port_ps(way, nbytes), -(-nbytes * MILLION // cache.mbps[1]) + cache.latency_ps, pushed_ps)
    total_ps = _answer_ps(way, nbytes, span_bytes)
    for hop in way.hops[begin:]:
        link = way.system.links[hop.link]
        headers = _packets(way, moved, hop) * link.header_bytes
        near_mbps, far_mbps = reversed(link.mbps) if hop.flipped else link.mbps
        out_bytes, back_bytes = (headers + moved, 0) if way.write else (headers, headers + moved)
        total_ps += _wire_ps(link, out_bytes, far_mbps, span_bytes) + hop.latency_ps
        total_ps += _wire_ps(link, back_bytes, near_mbps, span_bytes)
        total_ps += way.system.back_ps(way.initiator, hop, way.write)
    return total_ps


def _moved(way: Way, nbytes: int) -> int:
    return int(rounded_bytes(0, nbytes, way.holder.unit_bytes))


def _packets(way: Way, moved: int, hop: Hop) -> int:
    return int(packets(moved, way.system.packet_bytes(way.initiator, hop.link)))


def _wire_ps(link: Link, wire_bytes: int, mbps: int, span_bytes: int) -> int:
    if link.efficiency:
        points = np.array(link.efficiency, np.int64)
        wire_bytes = int(stretched(wire_bytes, transfer_share(points, 0, len(points), span_bytes)))
    return -(-wire_bytes * 1_000_000 // mbps)


def _port_ps(way: Way, nbytes: int) -> int:
    """Time of the port of a unit; 0 where a link leads to the tier or nothing limits it."""
    port_mbps = way.runner.port_mbps[way.write]
    return 0 if way.hops or not port_mbps else -(-nbytes * MILLION // port_mbps)


def _answer_ps(way: Way, nbytes: int, span_bytes: int) -> int:
    """Until a tier answers and the port of a unit is through: a write needs but a place in the buffers."""
    served_ps, latency_ps = _served_ps(way, nbytes, span_bytes), way.holder.latency_ps[way.write]
    if not way.write:
        return latency_ps + max(served_ps, _port_ps(way, nbytes))
    fits = nbytes < way.holder.write_buffer_bytes  # of one channel, if all of it went there
    return max(latency_ps + (0 if fits else served_ps), _port_ps(way, nbytes))


def _served_ps(way: Way, nbytes: int, span_bytes: int) -> int:
    """Time of the busiest channel: a request's pieces go round the channels."""
    tier, mbps, whole_ps = way.holder, way.holder.channel_mbps[way.write], way.holder.occupancy_ps[way.write]
    if nbytes <= tier.interleave_bytes:
        return max(shortest_ps(way, nbytes, span_bytes), -(-_moved(way, nbytes) * 1_000_000 // mbps))
    rounds = -(-_pieces(way, nbytes) // tier.channels)
    return rounds * max(whole_ps, -(-tier.interleave_bytes * 1_000_000 // mbps))


def shortest_ps(way: Way, nbytes: int, span_bytes: int) -> int:
    """Least time of a piece: its part of an operation."""
    operation = int(operation_bytes(_moved(way, span_bytes), way.holder.interleave_bytes))
    return int(least_ps(_moved(way, nbytes), way.holder.occupancy_ps[way.write], operation))


def _pieces(way: Way, nbytes: int) -> int:
    return int(pieces_of(0, nbytes, way.holder.interleave_bytes))


def path_of(way: Way) -> tuple[int, str]:
    """Bandwidth of a path [10^6 bytes/s], and what binds it: a link, the tier or the tier's operations."""
    mbps, part = path_bandwidth(way.system, way.initiator, way.tier, way.write)
    tier = way.holder
    at_rate = tier.occupancy_ps[way.write] * tier.channel_mbps[way.write] <= tier.interleave_bytes * MILLION
    return mbps, part if part != tier.name or at_rate else f"{part} operations"


def needed_bytes(way: Way) -> int:
    """Bytes in flight that the bandwidth of the path needs."""
    return 1 + path_of(way)[0] * round_trip_ps(way, way.request_bytes, way.span_bytes) // 1_000_000


def limits(way: Way, nbytes: int = 0, span_bytes: int = 0) -> Iterator[Limit]:
    """What limits the requests in flight, those of a stream if no size is given: the units' bytes first."""
    nbytes, span = nbytes or way.request_bytes, span_bytes or way.span_bytes
    requests = way.runner.units * max(1, way.runner.lent_bytes(way.runner.units) // nbytes)
    yield Limit(f"{way.runner.name} bytes in flight", requests, nbytes, round_trip_ps(way, nbytes, span))
    for number, hop in enumerate(way.hops):
        link = way.system.links[hop.link]
        credits = way.system.most_packets(way.initiator, hop.link, way.write)
        word = "credits" if way.write else "tags"
        if way.holder.commanded or not credits:
            continue
        requests = max(1, credits // _packets(way, _moved(way, nbytes), hop))
        yield Limit(f"{link.name} {word}", requests, nbytes, round_trip_ps(way, nbytes, span, number))
    if way.holder.queue_depth:
        requests = max(1, way.holder.queue_depth // _pieces(way, nbytes))
        at_tier_ps = round_trip_ps(way, nbytes, span, len(way.hops))
        yield Limit(f"{way.holder.name} queue depth", requests, nbytes, at_tier_ps)


def most_of_units_mbps(way: Way) -> float:
    """What Little's law leaves to rows of one unit each, wherever they lie [10^6 bytes/s]."""
    unit = way.holder.unit_bytes
    return min(map(_little_mbps, limits(way, unit, unit)))


def reached_stream(way: Way) -> tuple[int, str]:
    """What a long stream reaches [10^6 bytes/s] and what binds it: part of the path, or what is in flight."""
    return _reached([way], list(limits(way)))


def reached_copy(way: Way) -> tuple[int, str]:
    """The same of large copies between a tier and the first one; inside the first one they take turns."""
    ways = _copied(way)
    mbps, bound = _reached(ways, _copy_limits(ways))
    if way.tier:
        return mbps, bound
    turns_mbps = int(1 / sum(1 / path_of(each)[0] for each in ways))
    return min((mbps, bound), (turns_mbps, path_of(way)[1]))


def _reached(ways: Sequence[Way], held: Sequence[Limit]) -> tuple[int, str]:
    path_mbps, part = min(path_of(way) for way in ways)
    tight = min(held, key=_little_mbps)
    little_mbps = int(_little_mbps(tight))
    return (path_mbps, part) if path_mbps <= little_mbps else (little_mbps, tight.name)


def _little_mbps(limit: Limit) -> float:
    return limit.requests * limit.request_bytes * MILLION / limit.trip_ps


def expected_stream(way: Way) -> Expected:
    """Bandwidth that a stream must reach."""
    return _expected([way], list(limits(way)))


def expected_copy(way: Way) -> Expected:
    """The same of large copies between a tier and the first one: what is read must be written, too.

    Each byte is in flight twice, once on either way, and both share the engine's bytes in flight.
    """
    ways = _copied(way)
    return _expected(ways, _copy_limits(ways))


def _copied(way: Way) -> list[Way]:
    return [way, replace(way, tier=0, write=not way.write)]


def _copy_limits(ways: Sequence[Way]) -> list[Limit]:
    units = [next(limits(each)) for each in ways]
    fewest = min(units, key=lambda limit: limit.requests * limit.request_bytes)
    both = fewest._replace(name=units[0].name, trip_ps=sum(limit.trip_ps for limit in units))
    return [both, *(limit for each in ways for limit in limits(each))]


def _plenty(ways: Sequence[Way], filling: float) -> float:
    """How many times what the path needs must be in flight to reach its bandwidth to half a percent."""
    shared = any(way.system.links[hop.link].shared for way in ways for hop in way.hops)
    stored = any(way.holder.queue_depth for way in ways)  # operations meet on few channels
    return max(SHARED_PLENTY if shared else 1 + filling, STORED_PLENTY if stored else 1)


def _expected(ways: Sequence[Way], held: Sequence[Limit]) -> Expected:
    """The path's bandwidth where there is plenty in flight.

    Elsewhere at most the path's and what Little's law allows; at least what a closed network of queues
    reaches, or one request at a time where all that is in flight may lie on few channels.
    """
    path_mbps, part = min(path_of(way) for way in ways)
    tight = min(held, key=_little_mbps)
    nbytes, little_mbps = tight.request_bytes, _little_mbps(tight)
    fillings = [path_mbps / tier_mbps(way.holder, way.write) for way in ways]
    met_mbps = min(_little_mbps(_met(limit, ways, fillings)) for limit in held)
    if met_mbps >= path_mbps * _plenty(ways, max(fillings)):
        return Expected(path_mbps * (1 - EXACT), path_mbps * (1 + EXACT), part, True)
    busiest_ps = nbytes * 1_000_000 / path_mbps
    alone_mbps = nbytes * 1_000_000 / max(limit.trip_ps for limit in held)
    queued_mbps = tight.requests * nbytes * 1_000_000 / (tight.trip_ps + (tight.requests - 1) * busiest_ps)
    dice_mbps = min(_dice_mbps(limit, way) for limit in held for way in ways)
    least_mbps = max(alone_mbps, min(queued_mbps, dice_mbps)) * CHANCE
    bound = tight.name if little_mbps < path_mbps else f"{part}, {tight.name}"
    return Expected(least_mbps, min(path_mbps, little_mbps) * (1 + EXACT), bound, False)


class Meeting(NamedTuple):
    """How requests of a stream meet on the channels of a tier, where lanes lie as thrown dice: those of
    different turns do, and streams are more even.

    A request waits for the last of its lanes: the longest of n times alike is the mean of them times
    1 + 1/2 + ... + 1/n at most. A channel that is busy for a share r of the time keeps a lane its service /
    (1 - r), if services are drawn (exponential); those of a stream are all alike, so that it is less.
    Requests of less than a lane come one after another to the channel of theirs, as a whole lane would.

    lane_ps   service of a lane;  last  mean time of a request's last lane, in those of a lane
    burst_ps  what a written piece waits for besides: the channel writes what it has gathered
    """

    lane_ps: float
    last: float
    burst_ps: float


def _meeting(way: Way, nbytes: int) -> Meeting:
    tier = way.holder
    lane_ps = way.stripe_bytes * MILLION / tier_mbps(tier, way.write)
    last = sum(1 / n for n in range(1, _pieces(way, nbytes) + 1))
    gathered_ps = tier.write_buffer_bytes * MILLION / tier.channel_mbps[1] if way.write else 0.0
    return Meeting(lane_ps, last, gathered_ps)


def _met(limit: Limit, ways: Sequence[Way], fillings: Sequence[float]) -> Limit:
    """A limit with the trip of requests that meet others on channels so busy; none if these always are."""
    waits_ps = 0.0
    for way, filling in zip(ways, fillings, strict=True):
        if filling >= 1:
            return limit._replace(requests=0)
        meeting = _meeting(way, limit.request_bytes)
        waits_ps += meeting.lane_ps * (meeting.last / (1 - filling) - 1) + meeting.burst_ps
    return limit._replace(trip_ps=limit.trip_ps + int(waits_ps))


def _dice_mbps(limit: Limit, way: Way) -> float:
    """Bandwidth of a tier with so many requests in flight, whose lanes lie as thrown dice at worst.

    The share r of the time that its channels are busy solves Little's law: the time that all channels need
    for what is in flight = r x (trip + waits), where a request waits as long as `Meeting` says.
    """
    meeting, all_mbps = _meeting(way, limit.request_bytes), tier_mbps(way.holder, way.write)
    held_ps = limit.requests * limit.request_bytes * MILLION / all_mbps
    own_ps = meeting.lane_ps * min(1.0, limit.request_bytes / way.holder.interleave_bytes)
    rest_ps = max(0.0, limit.trip_ps + meeting.burst_ps - own_ps)
    total_ps = held_ps + rest_ps + meeting.lane_ps * meeting.last
    busy = 2 * held_ps / (total_ps + sqrt(total_ps**2 - 4 * held_ps * rest_ps))
    return busy * all_mbps
