"""A machine and a program as the tables of the compiled loop (see fast_state).

Servers: the channels of all tiers, the cache, two directions of each link, two walkers of each tier, two
directions of each unit's port, the units (their arithmetic). Pools: the units, for each initiator four
of each link (tags and credits of routes that cross it outward from its first node, then of those that do
from its second), the queues of all tiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from memsim import lanes
from memsim.fast_state import HOP_COLUMNS, NONE, TIER_COLUMNS, Hardware, Work
from memsim.options import ReplayOptions
from memsim.program import Program
from memsim.system import Cache, Hop, System, Tier, Walk

_NO_LIMIT = 1 << 60
_WHOLE = 1 << 62  # interleave of the cache: it serves requests in one piece

Int64s = np.ndarray


def pack_hardware(system: System, options: ReplayOptions) -> Hardware:
    """The machine as tables; the cache follows the tiers."""
    units = sum(initiator.units for initiator in system.initiators)
    tiers, links = len(system.tiers), len(system.links)
    routes = [[*by_tier, ()] for by_tier in system.routes]  # no link leads to the cache
    numbered = [(i, route) for i, by_tier in enumerate(routes) for route in by_tier]
    curves = [
        *(link.efficiency for link in system.links),
        *(tier.tail for tier in system.tiers),
        *(tier.loaded for tier in system.tiers),
    ]
    curve_at = _starts([len(curve) for curve in curves])
    hops = [
        _hop(system, i, hop, curve_at, tier.commanded)
        for i, by_tier in enumerate(system.routes)
        for tier, route in zip(system.tiers, by_tier, strict=True)
        for hop in route
    ]
    return Hardware(
        sizes=np.array([units, options.quantum_bytes, tiers + 1, links, options.seed], np.int64),
        tiers=_tiers(system, curve_at[links:]),
        routes=np.array(_starts([len(route) for _, route in numbered]), np.int64),
        paths=np.array(_paths(system, options.quantum_bytes), np.int64),
        hops=np.array(hops, np.int64).reshape(-1, HOP_COLUMNS),
        curves=np.array([point for curve in curves for point in curve], np.int64).reshape(-1, 2),
        pools=_pools(system),
        away_ps=_away_ps(system),
    )


def _paths(system: System, quantum_bytes: int) -> list[tuple[int, int, int, int]]:
    """Hardware.paths; hits of the cache are cut at the quantum."""
    rows = []
    for initiator in range(len(system.initiators)):
        for tier in range(len(system.tiers)):
            read, write = (
                system.largest_request(initiator, tier, way, quantum_bytes) for way in (False, True)
            )
            first = initiator == 0
            cached, walked = first and not system.routes[0][tier], first and system.tiers[tier].translation
            rows.append((read, write, int(cached), len(walked) if walked else 0))
        rows.append((quantum_bytes, quantum_bytes, 0, 0))
    return rows


def _starts(counts: Sequence[int]) -> list[int]:
    """Where each of some lists begins when they follow each other, and where the last one ends."""
    return list(accumulate(counts, initial=0))


def _tiers(system: System, curve_at: Sequence[int]) -> Int64s:
    """Hardware.tiers; curve_at: where their tails begin, then their loaded latencies."""
    tiers = len(system.tiers)
    units = sum(initiator.units for initiator in system.initiators)
    first_queue = units + 4 * len(system.links) * len(system.initiators)
    server_at = _starts([tier.channels for tier in system.tiers])
    rows = [
        _tier(
            tier,
            server_at[i],
            first_queue + i if tier.queue_depth else NONE,
            curve_at[i : i + 2],
            curve_at[tiers + i : tiers + i + 2],
            server_at[-1] + 2 + 2 * (len(system.links) + i),
        )
        for i, tier in enumerate(system.tiers)
    ]
    rows.append(_cache(system.cache, server_at[-1]))
    rows.append([server_at[-1] + 2] + [1] * (TIER_COLUMNS - 1))
    return np.array(rows, np.int64)


def _tier(
    tier: Tier, server: int, queue: int, tail: Sequence[int], loaded: Sequence[int], walker: int
) -> list[int]:
    walks = [*tier.translation, *[Walk(0, 1, 0, 0)] * 2][:2]
    services = [divmod(tier.interleave_bytes * 1_000_000, mbps) for mbps in tier.channel_mbps]
    pieces = [
        (least_ps, 0) if whole_ps < least_ps else (whole_ps, rest)  # rules.piece_service_ps
        for (whole_ps, rest), least_ps in zip(services, tier.occupancy_ps, strict=True)
    ]
    return [
        server, tier.channels, tier.interleave_bytes, tier.unit_bytes, queue, *tail,
        tier.turnaround_ps, tier.write_buffer_bytes,
        *loaded, walker,
        *tier.channel_mbps, lanes.nearest_ps(tier), tier.latency_ps[1], *tier.occupancy_ps,
        pieces[0][0], pieces[1][0], pieces[0][1], pieces[1][1],
        *(walk.latency_ps for walk in walks), *(walk.occupancy_ps for walk in walks), 0,
    ]  # fmt: skip


def _cache(cache: Cache, server: int) -> list[int]:
    latencies_ps = lanes.nearest_slice_ps(cache), cache.latency_ps
    return [server, 1, _WHOLE, 1, NONE, *[0] * 7, *cache.mbps, *latencies_ps, *[0] * 10, cache.spread_ps]


def _away_ps(system: System) -> Int64s:
    """Hardware.away_ps."""
    away_ps = [lanes.away_ps(channel, tier) for tier in system.tiers for channel in range(tier.channels)]
    return np.array([*away_ps, 0, 0], np.int64)


def _hop(system: System, initiator: int, hop: Hop, curve_at: Sequence[int], commanded: bool) -> list[int]:
    """A row of Hardware.hops; the way to a device that takes commands needs no tags."""
    link = system.links[hop.link]
    units = sum(runner.units for runner in system.initiators)
    first_server = sum(tier.channels for tier in system.tiers) + 2 + 2 * hop.link
    outward = 0 if hop.flipped else 1
    ways = (1 - outward, outward)  # inward, outward
    mine = initiator * len(system.links) + hop.link
    pool = NONE if commanded else units + 4 * mine + 2 * hop.flipped
    return [
        hop.link, hop.latency_ps, system.packet_bytes(initiator, hop.link), link.header_bytes,
        pool, outward, curve_at[hop.link], curve_at[hop.link + 1], system.back_ps(initiator, hop, True),
        *(first_server if link.shared else first_server + way for way in ways),
        *(link.mbps[way] for way in ways),
    ]  # fmt: skip


def _pools(system: System) -> Int64s:
    """Hardware.pools: sizes, empty queues, and where waiting is counted (see fast_state.Counts)."""
    links = len(system.links)
    first_tags = len(system.tiers) + 1 + links
    pools = [
        (initiator.unit_outstanding_bytes, first_tags + links)
        for initiator in system.initiators
        for _ in range(initiator.units)
    ]
    for initiator in range(len(system.initiators)):
        for link in range(links):
            both = (system.most_packets(initiator, link, write) or _NO_LIMIT for write in (False, True))
            pools += [(most, first_tags + link) for most in both] * 2
    pools += [(tier.queue_depth, i) for i, tier in enumerate(system.tiers)]
    return np.array([(size, size, NONE, NONE, place) for size, place in pools], np.int64)


def pack_work(program: Program, system: System) -> Work:
    """A program as the tables of the compiled loop."""
    kernels = len(program.launch_ps)
    unit_at = np.array(_starts([initiator.units for initiator in system.initiators]), np.int64)
    ports = np.array([initiator.port_mbps for initiator in system.initiators], np.int64)
    columns = (
        program.launch_ps, program.wait_at, program.block_at, program.unit_shares, program.tiles,
        program.in_order, program.flops, program.mflops, program.turns, program.work_ps, program.tile_ps,
        program.dispatch_ps, program.startup_ps, program.drain_ps, program.idle_ps, program.number,
        unit_at[program.initiator], unit_at[program.initiator + 1] - 1,
        program.initiator * (len(system.tiers) + 1), program.withheld, *ports[program.initiator].T,
    )  # fmt: skip
    table = np.zeros((kernels + 1, len(columns)), np.int64)
    for i, column in enumerate(columns):
        table[: len(column), i] = column
    return Work(table, program.wait_for, program.op_at, program.ops)
