"""From a checked machine file to a `System`: the graph of nodes and links, the route to every tier.

A `Profile` enters, a `System` of plain integers leaves. The route to a tier is the path of least latency
from the initiator to the node that the tier is attached to; a tier that no link reaches is refused.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from memsim.errors import ProfileError, cut, nearest
from memsim.system import Cache, Initiator, Input, Link, System, Tier

if TYPE_CHECKING:
    import networkx as nx

    from memsim.profile_schema import CacheTable, InitiatorTable, LinkTable, Profile, TierTable


LEAST_UNIT_MFLOPS = 1000  # below, the time of one large tile would overflow


def build_system(profile: Profile) -> System:
    """The machine as the engines need it; ProfileError where its tables do not fit together."""
    gpu = _only(profile, "initiator")
    cache = _only(profile, "cache")
    if profile.cache[cache].attach != gpu:
        found = cut(profile.cache[cache].attach)
        raise _fault(profile, f"cache.{cache}.attach", f"found '{found}', expected the initiator '{gpu}'")
    if not profile.tier:
        raise _fault(profile, "tier", "no tier; add one [tier.NAME] at least")
    graph = _graph(profile, gpu)
    order = list(profile.link)
    return System(
        name=profile.name,
        initiator=_initiator(profile, gpu, profile.initiator[gpu]),
        cache=_cache(cache, profile.cache[cache]),
        tiers=tuple(_tier(profile, name, table) for name, table in profile.tier.items()),
        links=tuple(_link(profile, name, table) for name, table in profile.link.items()),
        routes=tuple(
            tuple(order.index(link) for link in _route(profile, graph, gpu, tier)) for tier in profile.tier
        ),
        inputs=inputs(profile),
    )


def inputs(profile: Profile) -> tuple[Input, ...]:
    """Every number of the machine with its provenance and source, in the order of the file."""
    return tuple(
        Input(path, str(number.value), number.provenance, number.source)
        for path, number in profile.quantities()
    )


def _fault(profile: Profile, where: str, what: str) -> ProfileError:
    return ProfileError(f"machine '{profile.name}': {where}: {what}")


def _only(profile: Profile, group: str) -> str:
    """The name of the one table of a group that may hold no more."""
    names = list(getattr(profile, group))
    if len(names) != 1:
        found = " and ".join(names) or "none"
        raise _fault(profile, group, f"found {found}, expected exactly one [{group}.NAME]")
    return str(names[0])


def _graph(profile: Profile, gpu: str) -> nx.Graph[str]:
    """Nodes (the initiator and the ends of links) joined by links, weighted by latency [ps]."""
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_node(gpu)
    for name, link in profile.link.items():
        if name in profile.tier:
            raise _fault(profile, f"link.{name}", f"a tier has this name; rename the link to '{name}-link'")
        near, far = link.between
        if near == far:
            raise _fault(profile, f"link.{name}.between", f"joins '{cut(near)}' to itself; name two nodes")
        if graph.has_edge(near, far):
            other = graph.edges[near, far]["link"]
            found = f"joins '{near}' and '{far}' as link.{other} does"
            raise _fault(profile, f"link.{name}.between", f"{found}; keep one of them")
        graph.add_edge(near, far, link=name, latency_ps=link.latency.number)
    return graph


def _route(profile: Profile, graph: nx.Graph[str], gpu: str, tier: str) -> list[str]:
    """Names of the links from the initiator outward to `tier`."""
    import networkx as nx

    node = profile.tier[tier].attach
    if node not in graph:
        raise _fault(profile, f"tier.{tier}.attach", f"no node '{cut(node)}'; {nearest(node, graph.nodes)}")
    try:
        path = nx.shortest_path(graph, gpu, node, weight="latency_ps")
    except nx.NetworkXNoPath:
        remedy = f"add a [link.NAME] between '{gpu}' and '{node}'"
        raise _fault(profile, f"tier.{tier}", f"no route from '{gpu}' to '{node}'; {remedy}") from None
    return [graph.edges[near, far]["link"] for near, far in zip(path, path[1:], strict=False)]


def _initiator(profile: Profile, name: str, table: InitiatorTable) -> Initiator:
    units = table.units.number
    for key in ("bf16", "fp8", "fp32"):
        rate = getattr(table, key).number
        if rate < units * LEAST_UNIT_MFLOPS:
            found = f"{rate} MFLOP/s over {units} units is less than 1 GFLOP/s a unit"
            raise _fault(profile, f"initiator.{name}.{key}", f"{found}; raise it or lower the units")
    return Initiator(
        name=name,
        units=units,
        unit_outstanding_bytes=table.unit_outstanding.number,
        launch_gap_ps=table.launch_gap.number,
        graph_launch_ps=table.graph_launch.number,
        bf16_mflops=table.bf16.number // units,
        fp8_mflops=table.fp8.number // units,
        fp32_mflops=table.fp32.number // units,
    )


def _cache(name: str, table: CacheTable) -> Cache:
    return Cache(name, table.capacity.number, table.bandwidth.number, table.latency.number)


def _tier(profile: Profile, name: str, table: TierTable) -> Tier:
    channels, interleave, unit = table.channels.number, table.interleave.number, table.unit.number
    if interleave % unit:
        found = f"{interleave} B is no multiple of the tier's unit, {unit} B"
        raise _fault(profile, f"tier.{name}.interleave", f"{found}; make it one")
    channel_mbps = int(table.bandwidth.number * table.efficiency.share / channels)
    if channel_mbps < 1:
        found = "less than 1 MB/s a channel"
        raise _fault(profile, f"tier.{name}.bandwidth", f"{found}; raise it or lower the channels")
    return Tier(
        name=name,
        capacity_bytes=table.capacity.number,
        channels=channels,
        channel_mbps=channel_mbps,
        interleave_bytes=interleave,
        unit_bytes=unit,
        latency_ps=table.latency.number,
        peak_mbps=table.bandwidth.number,
    )


def _link(profile: Profile, name: str, table: LinkTable) -> Link:
    peak_mbps = table.bandwidth.number
    mbps = int(peak_mbps * Fraction(table.efficiency.share))
    if mbps < 1:
        raise _fault(profile, f"link.{name}.bandwidth", "less than 1 MB/s sustained; raise it")
    return Link(name, mbps, peak_mbps, table.latency.number, table.tags.number, table.tag_bytes.number)
