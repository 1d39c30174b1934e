"""What the reference engine's processes wait for: stations, pools, and the blocks and requests that do.

Plain objects on a simpy clock; the rules that move them are in `reference`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import simpy

from memsim import rules
from memsim.system import System, Tier


class Station:
    """A server that takes work in order of arrival and keeps the remainder of its division."""

    def __init__(self) -> None:
        self.begin_ps = 0  # of the busy period
        self.work = 0  # in it so far
        self.rate = 1

    @property
    def free_ps(self) -> int:
        """When all work so far is done."""
        return self.begin_ps + -(-self.work * 1_000_000 // self.rate)

    def book(self, now_ps: int, work: int, rate: int) -> int:
        """Take work that arrives now; returns when it ends."""
        if now_ps >= self.free_ps or rate != self.rate:
            self.begin_ps, self.work = max(now_ps, self.free_ps), 0
        self.rate = rate
        self.work += work
        return self.free_ps


class Pool:
    """Credits that are lent; who finds too few waits in line."""

    def __init__(self, env: simpy.Environment, credits: int) -> None:
        self.env = env
        self.size = credits
        self.free = credits
        self.line: deque[tuple[int, simpy.Event]] = deque()

    def take(self, credits: int) -> simpy.Event | None:
        """Take credits at once (None), or the event that will say that they are granted."""
        if not self.line and credits <= self.free:
            self.free -= credits
            return None
        granted = self.env.event()
        self.line.append((credits, granted))
        return granted

    def give_back(self, credits: int) -> None:
        """Return credits; the oldest in line get theirs while they suffice."""
        self.free += credits
        while self.line and self.line[0][0] <= self.free:
            needed, granted = self.line.popleft()
            self.free -= needed
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
    """A thread block that lives on a unit."""

    kernel: int
    block: int
    unit: int
    emptied: simpy.Event
    requests: int = 0
    outstanding: int = 0
    asked: bool = False  # all its tiles are asked for
    wake: simpy.Event | None = None
    next_tile: Tile | None = None
    in_line: deque[Tile] = field(default_factory=deque)  # in order: tiles not yet booked
    worked_ps: int = 0


@dataclass
class Request:
    """A contiguous piece of a tile in one tier (or the cache)."""

    block: Block
    tile: Tile
    number: int
    tier: int
    offset: int
    nbytes: int
    moved: int
    write: int
    issue_ps: int = 0


class Machine:
    """Stations and pools of a system, and what they served."""

    def __init__(self, env: simpy.Environment, system: System) -> None:
        self.system = system
        self.cache = len(system.tiers)  # the cache's number among the tiers
        self.channels = [[Station() for _ in range(tier.channels)] for tier in system.tiers]
        self.cache_server = Station()
        self.links = [(Station(), Station()) for _ in system.links]  # inward, outward
        self.arithmetic = [Station() for _ in range(system.initiator.units)]
        self.unit_pools = [
            Pool(env, system.initiator.unit_outstanding_bytes) for _ in range(system.initiator.units)
        ]
        self.tag_pools = [Pool(env, link.tags) for link in system.links]

    def route(self, tier: int) -> tuple[int, ...]:
        """Links from the initiator outward; none to the cache."""
        return () if tier == self.cache else self.system.routes[tier]

    def route_ps(self, tier: int) -> int:
        """Latency of a tier's route, one way."""
        return sum(self.system.links[link].latency_ps for link in self.route(tier))

    def moved_bytes(self, tier: int, offset: int, nbytes: int) -> int:
        """Bytes that a tier moves for a request."""
        if tier == self.cache:
            return nbytes
        return int(rules.rounded_bytes(offset, nbytes, self.system.tiers[tier].unit_bytes))

    def credits(self, request: Request) -> list[tuple[Pool, int]]:
        """Pools that a request needs, in order, with the credits it takes of each."""
        unit = self.unit_pools[request.block.unit]
        needs = [(unit, min(request.nbytes, unit.size))]
        for link in self.route(request.tier):
            pool = self.tag_pools[link]
            tags = -(-request.moved // self.system.links[link].tag_bytes)
            needs.append((pool, min(tags, pool.size)))
        return needs


def pieces(tier: Tier, offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Channels that a request uses at a tier, with the bytes that each moves."""
    while nbytes > 0:
        piece = int(rules.piece_bytes(offset, nbytes, tier.interleave_bytes))
        channel = int(rules.channel_of(offset, tier.interleave_bytes, tier.channels))
        yield channel, int(rules.rounded_bytes(offset, piece, tier.unit_bytes))
        offset += piece
        nbytes -= piece
