"""The graph of a machine's nodes and links: the routes through it, and what keeps it from having them.

A checked `Profile` enters; hops leave, or faults as (where, what is wrong and what to do). A node is a name
that a link ends in, or the one that the first initiator sits at.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from memsim.errors import nearest
from memsim.system import Hop

if TYPE_CHECKING:
    import networkx as nx

    from memsim.profile_schema import Profile

Fault = tuple[str, str]  # where, and what is wrong


def graph_of(profile: Profile) -> nx.DiGraph[str]:
    """Nodes (the first initiator's and the ends of links), joined both ways, weighted by latency [ps]."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, runner in list(profile.initiator.items())[:1]:
        graph.add_node(runner.attach or name)
    for number, link in enumerate(profile.link.values()):
        near, far = link.between
        if near == far or graph.has_edge(near, far):
            continue
        for begin, end in ((near, far), (far, near)):
            switch = profile.switch.get(end)
            latency_ps = link.latency.number + (switch.latency.number if switch else 0)
            graph.add_edge(begin, end, hop=Hop(number, begin == far, latency_ps), latency_ps=latency_ps)
    return graph


def routes_of(profile: Profile) -> tuple[tuple[tuple[Hop, ...], ...], ...]:
    """Hops from every initiator to every tier."""
    import networkx as nx

    graph = graph_of(profile)
    routes = []
    for name, runner in profile.initiator.items():
        paths = nx.single_source_dijkstra_path(graph, runner.attach or name, weight="latency_ps")
        nodes = [paths[tier.attach] for tier in profile.tier.values()]
        routes.append(tuple(tuple(graph.edges[step]["hop"] for step in pairwise(path)) for path in nodes))
    return tuple(routes)


def faults_of_graph(profile: Profile) -> Iterator[Fault]:
    """What keeps initiators from their tiers, and routes that could lock.

    A link with a wrong end leaves nodes without one, and nodes at wrong names leave tiers without routes:
    what follows from a fault is not listed beside it.
    """
    graph = graph_of(profile)
    found = list(_faults_of_joints(profile)) or list(_faults_of_nodes(profile, graph))
    yield from found or _faults_of_routes(profile, graph)


def _faults_of_joints(profile: Profile) -> Iterator[Fault]:
    """Links that join a node to itself, or two nodes that are joined."""
    joined: dict[frozenset[str], str] = {}
    for name, link in profile.link.items():
        near, far = link.between
        if near == far:
            yield f"link.{name}.between", f"joins '{near}' to itself; name two nodes"
        elif frozenset(link.between) in joined:
            other = joined[frozenset(link.between)]
            found = f"joins '{near}' and '{far}' as link.{other} does"
            yield f"link.{name}.between", f"{found}; keep one of them"
        joined.setdefault(frozenset(link.between), name)


def _faults_of_nodes(profile: Profile, graph: nx.DiGraph[str]) -> Iterator[Fault]:
    """Initiators, tiers and switches at nodes that no link knows."""
    for name, runner in profile.initiator.items():
        node = runner.attach or name
        if node not in graph:
            remedy = f"{nearest(node, graph.nodes)} attach = ... says at which node it sits"
            yield f"initiator.{name}.attach", f"no node '{node}'; {remedy}"
    for name, tier in profile.tier.items():
        if tier.attach not in graph:
            yield f"tier.{name}.attach", f"no node '{tier.attach}'; {nearest(tier.attach, graph.nodes)}"
    for name in profile.switch:
        if name not in graph or not graph.in_degree(name):
            yield f"switch.{name}", f"no link leads to it; {nearest(name, graph.nodes)}"


def _faults_of_routes(profile: Profile, graph: nx.DiGraph[str]) -> Iterator[Fault]:
    import networkx as nx

    cut_off = list(_cut_off(profile, graph))
    yield from cut_off
    if cut_off:
        return
    waits: nx.DiGraph[tuple[int, bool]] = nx.DiGraph()  # who holds tags of one hop asks for the next
    for routes in routes_of(profile):
        for route in routes:
            waits.add_edges_from(pairwise((hop.link, hop.flipped) for hop in route))
    try:
        ring = nx.find_cycle(waits)
    except nx.NetworkXNoCycle:
        return
    links = list(profile.link)
    names = sorted({f"link.{links[link]}" for (link, _), _ in ring})
    found = f"requests wait in a ring over {', '.join(names)} and could lock"
    yield "link", f"{found}; remove one of them, or change latencies so that routes take a tree"


def _cut_off(profile: Profile, graph: nx.DiGraph[str]) -> Iterator[Fault]:
    """Tiers that an initiator cannot reach, once for each node that initiators sit at."""
    import networkx as nx

    seen: set[str] = set()
    for name, runner in profile.initiator.items():
        node = runner.attach or name
        if node in seen:
            continue
        seen.add(node)
        reached = nx.descendants(graph, node) | {node}
        for tier, table in profile.tier.items():
            if table.attach not in reached:
                remedy = f"add a [link.NAME] between '{node}' and '{table.attach}'"
                yield f"tier.{tier}", f"no route from '{node}' to '{table.attach}'; {remedy}"
