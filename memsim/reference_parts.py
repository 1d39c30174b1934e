"""What the reference engine's processes wait for: stations, pools, and the blocks and requests that do.

Plain objects on a simpy clock; the rules that move them are in `reference`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import simpy

from memsim import lanes, rules
from memsim.result import Outcome
from memsim.system import Hop, System, Tier, Walk

NO_LIMIT = 1 << 62  # credits of a pool that has no limit


def service(work: int, rate: int, least_ps: int) -> tuple[int, int]:
    """Time of work that keeps a station for least_ps at least (see rules.service_ps)."""
    whole_ps, rest = rules.service_ps(work, rate)
    return (least_ps, 0) if whole_ps < least_ps else (int(whole_ps), int(rest))


@dataclass
class Gathered:
    """Written bytes that a channel has not begun to write, and their services."""

    nbytes: int = 0
    whole_ps: int = 0
    rest: int = 0

    def add(self, nbytes: int, whole_ps: int, rest: int) -> None:
        self.nbytes += nbytes
        self.whole_ps += whole_ps
        self.rest += rest


class Station:
    """A server that takes work in order of arrival and keeps the remainder of its division."""

    def __init__(self) -> None:
        self.begin_ps = 0  # of the busy period
        self.whole_ps = 0  # services in it so far
        self.rest = 0  # and the sum of what their divisions left, in 1 / rate ps
        self.rate = 1
        self.turned_ps = 0  # to change the direction of the next service
        self.writes = False  # the direction of the last one
        self.waited_ps = 0  # by all who came while it was busy
        self.gathered = Gathered()  # by a channel, to be written at once

    @property
    def free_ps(self) -> int:
        """When all work so far is done."""
        return self.begin_ps + self.whole_ps + -(-self.rest // self.rate)

    def turn(self, now_ps: int, write: bool, turnaround_ps: int) -> None:
        """Say which way the next service goes; a change inside a busy period makes it longer."""
        changes = write != self.writes and now_ps < self.free_ps
        self.writes, self.turned_ps = write, turnaround_ps if changes else 0

    def book(self, now_ps: int, work: int, rate: int, least_ps: int = 0) -> int:
        """Take work that arrives now, and keeps the station for least_ps at least; returns when it ends."""
        return self.serve(now_ps, *service(work, rate, least_ps), rate)

    def serve(self, now_ps: int, whole_ps: int, rest: int, rate: int) -> int:
        """Take a service that arrives now; returns when it ends."""
        free_ps = self.free_ps
        self.waited_ps += max(0, free_ps - now_ps)
        if now_ps >= free_ps or rate != self.rate:
            self.begin_ps, self.whole_ps, self.rest = max(now_ps, free_ps), 0, 0
        self.rate = rate
        self.whole_ps += whole_ps + self.turned_ps
        self.rest += rest
        return self.free_ps

    def read(self, now_ps: int, nbytes: int, least_ps: int, tier: Tier) -> int:
        """Take bytes to be read from a tier; returns when they are."""
        self.turn(now_ps, False, tier.turnaround_ps)
        return self.book(now_ps, nbytes, tier.channel_mbps[0], least_ps)

    def write(self, now_ps: int, nbytes: int, least_ps: int, tier: Tier) -> int:
        """Gather bytes to be written to a tier, and write all once they fill the buffer; returns when what
        has begun to be written or read ends."""
        rate, gathered = tier.channel_mbps[1], self.gathered
        gathered.add(nbytes, *service(nbytes, rate, least_ps))
        if gathered.nbytes < tier.write_buffer_bytes:
            self.waited_ps += max(0, self.free_ps - now_ps)
            return max(now_ps, self.free_ps)
        self.gathered = Gathered()
        self.turn(now_ps, True, tier.turnaround_ps)
        return self.serve(now_ps, gathered.whole_ps, gathered.rest, rate)


class Pool:
    """Credits that are lent; who finds too few waits in line. A demand above all of them is cut to all."""

    def __init__(self, env: simpy.Environment, credits: int) -> None:
        self.env = env
        self.size = credits
        self.free = credits
        self.line: deque[tuple[int, int, int, simpy.Event]] = (
            deque()
        )  # credits, withheld, since when, the grant
        self.waited_ps = 0  # by all who stood in line

    def take(self, credits: int, withheld: int = 0) -> simpy.Event | None:
        """Take credits at once (None), or the event that will say that they are granted.

        withheld  credits that must be left
        """
        needed = min(credits, self.size - withheld)
        if not self.line and needed + withheld <= self.free:
            self.free -= needed
            return None
        granted = self.env.event()
        self.line.append((needed, withheld, int(self.env.now), granted))
        return granted

    def force(self, credits: int, withheld: int = 0) -> None:
        """Take credits, lent or not."""
        self.free -= min(credits, self.size - withheld)

    def give_back(self, credits: int, withheld: int = 0, times: int = 1) -> None:
        """Return credits, so many times; the oldest in line get theirs while they suffice."""
        self.free += times * min(credits, self.size - withheld)
        while self.line and self.line[0][0] + self.line[0][1] <= self.free:
            needed, _, since_ps, granted = self.line.popleft()
            self.free -= needed
            self.waited_ps += int(self.env.now) - since_ps
            granted.succeed()


@dataclass
class Tile:
    """Rows that a block asks for together."""

    number: int
    op: int
    begin: int
    end: int
    first_of_op: bool
    left: int = 0  # requests still out
    asked: bool = False  # all its requests are issued


@dataclass
class Block:
    """A thread block that lives on a unit of an initiator; blocks of all kernels are numbered through."""

    kernel: int
    block: int
    initiator: int
    unit: int
    emptied: simpy.Event
    requests: int = 0
    of_op: int = 0  # requests of the op that it is at
    outstanding: int = 0  # tiles
    reading: int = 0  # of them those that read
    asked: bool = False  # all its tiles are asked for
    wake: simpy.Event | None = None
    next_tile: Tile | None = None
    in_line: deque[Tile] = field(default_factory=deque)  # in order: tiles not yet booked
    worked_ps: int = 0


@dataclass
class Request:
    """A contiguous piece of a tile in one tier (or the cache).

    nbytes  what the block asks for;  moved  the same in whole transactions of the tier
    transfer  bytes of the span that the request was cut from, in whole transactions too
    """

    block: Block
    tile: Tile
    number: int
    tier: int
    offset: int
    nbytes: int
    moved: int
    transfer: int
    write: bool
    pushes: int = -1  # the tier that lines are pushed out to, to make room
    issue_ps: int = 0
    home: int = 0  # the tier that its rows live in, also if the cache serves it
    walks: tuple[Walk, ...] = ()  # levels of translation that it misses
    passed_ps: int = 0  # when it may be complete, as far as its unit's port goes

    @property
    def key(self) -> tuple[int, int]:
        """Its place in the order of an instant."""
        return self.block.block, self.number


class Load:
    """The load of a tier over its last whole window; the first one begins when all is idle."""

    def __init__(self, begin_ps: int) -> None:
        self.begin_ps = begin_ps  # of the window
        self.work_ps = 0  # that arrived in it
        self.last_ps = 0  # the same of the window before

    def add(self, now_ps: int, work_ps: int) -> int:
        """Count work that arrives; returns the load before it [millionths of the rate, as ps of a window]."""
        windows = (now_ps - self.begin_ps) // rules.WINDOW_PS
        if windows:
            self.last_ps = self.work_ps if windows == 1 else 0
            self.begin_ps += windows * rules.WINDOW_PS
            self.work_ps = 0
        self.work_ps += work_ps
        return self.last_ps


class Machine:
    """Stations and pools of a system.

    channels     [tier][channel];  queues, loads [tier];  walkers [tier][level]
    arithmetic   [initiator][unit];  unit_pools the same;  ports [initiator][unit][write]
    links        [link][direction]: towards its first node, away from it; one station if it is shared
    link_pools   [initiator][link][flipped][write]: its tags and credits on the two ways outward over a link
    """

    def __init__(self, env: simpy.Environment, system: System) -> None:
        self.system = system
        self.cache = len(system.tiers)  # the cache's number among the tiers
        self.cache_ways = [Station(), Station()]  # out of it, into it
        self.channels = [[Station() for _ in range(tier.channels)] for tier in system.tiers]
        self.queues = [Pool(env, tier.queue_depth or NO_LIMIT) for tier in system.tiers]
        self.walkers = [[Station() for _ in tier.translation] for tier in system.tiers]
        self.nearest_ps = [lanes.nearest_ps(tier) for tier in system.tiers]
        self.forget(0)
        self.loaded = [np.array(tier.loaded, np.int64).reshape(-1, 2) for tier in system.tiers]
        self.tails = [np.array(tier.tail, np.int64).reshape(-1, 2) for tier in system.tiers]
        self.arithmetic = [[Station() for _ in range(i.units)] for i in system.initiators]
        self.ports = [[[Station(), Station()] for _ in range(i.units)] for i in system.initiators]
        self.unit_pools = [
            [Pool(env, i.unit_outstanding_bytes) for _ in range(i.units)] for i in system.initiators
        ]
        self.links = [[Station()] * 2 if k.shared else [Station(), Station()] for k in system.links]
        self.link_pools = [
            [
                [
                    [Pool(env, system.most_packets(i, k, w) or NO_LIMIT) for w in (False, True)]
                    for _ in range(2)
                ]
                for k in range(len(system.links))
            ]
            for i in range(len(system.initiators))
        ]
        self.efficiency = [np.array(k.efficiency, np.int64).reshape(-1, 2) for k in system.links]

    def forget(self, now_ps: int) -> None:
        """All is idle: tiers write what their channels gathered, and measure loads anew."""
        self.loads = [Load(now_ps) for _ in self.system.tiers]
        for channels in self.channels:
            for channel in channels:
                channel.gathered = Gathered()

    def is_cached(self, initiator: int, tier: int) -> bool:
        """Whether the cache is in front of a tier for an initiator."""
        return initiator == 0 and tier != self.cache and not self.system.routes[0][tier]

    def route(self, request: Request) -> tuple[Hop, ...]:
        """Hops from the request's initiator outward; none to the cache."""
        if request.tier == self.cache:
            return ()
        return self.system.routes[request.block.initiator][request.tier]

    def latency_ps(self, request: Request) -> int:
        """Idle latency of the cache or the tier that a request goes to; of loads the nearest one."""
        if request.tier == self.cache:
            cache = self.system.cache
            return cache.latency_ps if request.write else lanes.nearest_slice_ps(cache)
        tier = self.system.tiers[request.tier]
        return tier.latency_ps[1] if request.write else self.nearest_ps[request.tier]

    def moved_bytes(self, tier: int, offset: int, nbytes: int) -> int:
        """Bytes that a tier moves for a request."""
        if tier == self.cache:
            return nbytes
        return int(rules.rounded_bytes(offset, nbytes, self.system.tiers[tier].unit_bytes))

    def pieces(self, number: int, offset: int, nbytes: int) -> Iterator[tuple[Station, int, int]]:
        """Channels that a request uses at a tier, the bytes that each moves, and how far it is."""
        tier = self.system.tiers[number]
        while nbytes > 0:
            piece = int(rules.piece_bytes(offset, nbytes, tier.interleave_bytes))
            channel = lanes.channel_of(offset, tier.interleave_bytes, tier.channels)
            moved = int(rules.rounded_bytes(offset, piece, tier.unit_bytes))
            away_ps = lanes.away_ps(int(channel), tier)
            yield self.channels[number][int(channel)], moved, away_ps
            offset += piece
            nbytes -= piece

    def packets(self, request: Request, link: int) -> int:
        """Packets that a request's data travels in over a link."""
        return int(rules.packets(request.moved, self.system.packet_bytes(request.block.initiator, link)))

    def credits(self, request: Request, hop: Hop) -> tuple[Pool | None, int]:
        """Tags or credits that a request takes to cross a link: their pool, and how many.

        None for a device that takes commands: it moves the data by itself, and asks for no credit.
        """
        if self.system.tiers[request.tier].commanded:
            return None, 0
        pools = self.link_pools[request.block.initiator][hop.link][hop.flipped]
        return pools[request.write], self.packets(request, hop.link)

    def booked_bytes(self, request: Request, hop: Hop, outward: bool) -> int:
        """Bytes that keep a link busy for one way of a request: headers and data, stretched."""
        if request.write and not outward:
            return 0  # an acknowledgement
        wire_bytes = self.packets(request, hop.link) * self.system.links[hop.link].header_bytes
        if request.write == outward:
            wire_bytes += request.moved
        points = self.efficiency[hop.link]
        if not len(points):
            return wire_bytes
        share = rules.transfer_share(points, 0, len(points), request.transfer)
        return int(rules.stretched(wire_bytes, share))

    def load_ps(self, number: int, nbytes: int, write: bool, now_ps: int) -> int:
        """Count bytes that arrive at a tier; returns what its load makes a request take more."""
        tier, points = self.system.tiers[number], self.loaded[number]
        if not len(points):
            return 0
        work_ps, _ = rules.service_ps(nbytes, tier.channel_mbps[write])
        load = self.loads[number].add(now_ps, int(work_ps))
        return int(rules.loaded_ps(points, 0, len(points), load))

    def tail_ps(self, request: Request, seed: int, kernel: int, block: int) -> int:
        """What a request takes more than usual at its tier."""
        steps = self.tails[request.tier]
        return int(rules.tail_ps(steps, 0, len(steps), seed, kernel, block, request.number))


def direction(hop: Hop, outward: bool) -> int:
    """Of the two directions of a link: 0 towards its first node, 1 away from it."""
    return int(outward != hop.flipped)


def count_waiting(machine: Machine, out: Outcome) -> None:
    """Enter in an outcome what was waited for each place, when all is over."""
    for tier, channels in enumerate(machine.channels):
        out.waiting_ps[tier] = _sum_ps([*channels, machine.queues[tier]])
    out.waiting_ps[machine.cache] = _sum_ps(machine.cache_ways)
    for link, stations in enumerate(machine.links):
        out.waiting_ps[machine.cache + 1 + link] = _sum_ps(set(stations))
        ways = [way for links in machine.link_pools for way in links[link]]
        out.tags_waiting_ps[link] = _sum_ps(pool for way in ways for pool in way)
    for tier, walkers in enumerate(machine.walkers):
        out.walks_waiting_ps[tier] = _sum_ps(walkers)
    out.ports_waiting_ps[0] = _sum_ps(way for ports in machine.ports for port in ports for way in port)
    out.units_waiting_ps[0] = _sum_ps(pool for pools in machine.unit_pools for pool in pools)


def _sum_ps(places: Iterable[Station | Pool]) -> int:
    """What was waited in all, as far as a sum goes (rules.added)."""
    return min(rules.MOST_WAITED_PS, sum(place.waited_ps for place in places))
