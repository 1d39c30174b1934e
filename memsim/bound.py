"""What binds a kernel: the resource whose tenfold increase shortens it most, by replaying it again.

For each family its longest kernel is replayed, with the kernels that overlap with it, on machines that
differ from the given one in one resource. A latency-bound kernel whose partial results are reduced one
after another is bound by that serial chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from memsim.fast import localize, replay_segment
from memsim.fast_pack import pack_hardware
from memsim.fast_state import END_PS, READY_PS
from memsim.options import ReplayOptions
from memsim.program import Plan, Program, build_program, home_of
from memsim.rules import ROW_BYTES, TIER, Memory
from memsim.segments import Segment, split
from memsim.system import Hop, System
from memsim.trace import Accesses, Kernel, Trace

TENFOLD = 10
_OF_PLACES = (  # variants of tiers and links
    "bandwidth", "operations", "turnaround", "translation", "write buffer", "queue depth", "tags",
)  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """The resource, the share of the kernel's time that ten times of it would save, and all shares."""

    resource: str
    share: float
    shares: dict[str, float]


@dataclass(frozen=True)
class Variant:
    """A machine and a program with ten times of one resource."""

    resource: str
    system: System
    program: Program


def find_bounds(
    trace: Trace,
    system: System,
    memory: Memory,
    options: ReplayOptions,
    longest: Mapping[str, int],
    plan: Plan | None = None,
) -> dict[str, Bound]:
    """Bound of each family. longest: family -> id of its longest kernel; plan: see build_program."""
    family_of = {kernel: family for family, kernel in longest.items()}
    bounds: dict[str, Bound] = {}
    for segment in split(trace.kernels()):
        places = {family_of[k.id]: i for i, (k, _) in enumerate(segment.launches) if k.id in family_of}
        if places:
            bounds |= _bounds_of_segment(segment, places, system, memory, options, plan)
        elif plan is not None:  # what these kernels leave behind
            for kernel, accesses in segment.launches:
                plan.shares(kernel, accesses, home_of(kernel, options.run_on))
        if len(bounds) == len(longest):
            break
    return bounds


def _bounds_of_segment(
    segment: Segment,
    places: Mapping[str, int],
    system: System,
    memory: Memory,
    options: ReplayOptions,
    plan: Plan | None,
) -> dict[str, Bound]:
    row_bytes = memory.regions[:, ROW_BYTES]
    no_graph = [False] * len(segment.launches)  # a step's launch is no part of a kernel's own time
    program = build_program(
        segment.launches, segment.waits, no_graph, system, row_bytes, options.run_on, plan
    )
    _, program, local = localize(program, memory)
    serial = np.array([reduces_one_by_one(kernel, accesses) for kernel, accesses in segment.launches])
    base_ps = _kernel_times_ps(Variant("", system, program), local, options)
    idle = idle_resources(system, program, local)
    times_ps = {
        variant.resource: base_ps if variant.resource in idle else _kernel_times_ps(variant, local, options)
        for variant in variants(system, program, serial)
    }
    bounds = {}
    for family, place in places.items():
        shares = {name: 1 - float(took[place]) / float(base_ps[place]) for name, took in times_ps.items()}
        if serial[place]:
            shares = {"serial chain" if name == "latency" else name: s for name, s in shares.items()}
        resource = max(shares, key=lambda name: shares[name])
        share = shares[resource]
        bounds[family] = Bound(resource if share > 0 else "nothing", max(0.0, share), shares)
    return bounds


def reduces_one_by_one(kernel: Kernel, accesses: Accesses) -> bool:
    """Whether the kernel reads partial results and walks them one after another."""
    reads = (accesses.region == kernel.partial_region) & ~accesses.write
    return kernel.partial_serial and bool(reads.any())


def _kernel_times_ps(variant: Variant, memory: Memory, options: ReplayOptions) -> np.ndarray:
    hardware = pack_hardware(variant.system, options)
    times = replay_segment(hardware, variant.program, memory, variant.system).kernels
    took_ps: np.ndarray = times[:, END_PS] - times[:, READY_PS]
    return took_ps


def idle_resources(system: System, program: Program, memory: Memory) -> set[str]:
    """Names of variants of tiers and links that no request of a program can come to: they save nothing."""
    tiers = set(memory.shares[:, TIER].tolist())
    runners = set(program.initiator.tolist())
    links = {hop.link for runner in runners for tier in tiers for hop in system.routes[runner][tier]}
    idle = [tier.name for number, tier in enumerate(system.tiers) if number not in tiers]
    idle += [link.name for number, link in enumerate(system.links) if number not in links]
    return {f"{name} {what}" for name in idle for what in _OF_PLACES}


def variants(system: System, program: Program, serial: np.ndarray) -> Iterator[Variant]:
    """Ten times of each resource in turn. Of equals the first named wins.

    serial  bool[kernels]: those that cannot have more in flight, each load waits for the one before
    """
    for resource, machine in (*_tier_variants(system), *_link_variants(system)):
        yield Variant(resource, machine, program)
    if any(rate for initiator in system.initiators for rate in initiator.port_mbps):
        ports = tuple(replace(i, port_mbps=_tenfold(i.port_mbps)) for i in system.initiators)
        yield Variant("unit ports", replace(system, initiators=ports), program)
    flops = program._replace(mflops=program.mflops * TENFOLD)
    yield Variant("arithmetic", system, flops)
    yield Variant("latency", _quicker(system), program)
    roomy = tuple(
        replace(i, unit_outstanding_bytes=i.unit_outstanding_bytes * TENFOLD) for i in system.initiators
    )
    deep = program._replace(tiles=program.tiles * np.where(serial, 1, TENFOLD))
    yield Variant("bytes in flight", replace(system, initiators=roomy), deep)
    wide = tuple(replace(i, units=i.units * TENFOLD) for i in system.initiators)
    yield Variant("units", replace(system, initiators=wide), program)
    prompt = program._replace(launch_ps=_tenth(program.launch_ps))
    yield Variant("launch", system, prompt)
    nimble = program._replace(startup_ps=_tenth(program.startup_ps), drain_ps=_tenth(program.drain_ps))
    yield Variant("block start-up", system, nimble)


def _tier_variants(system: System) -> Iterator[tuple[str, System]]:
    for number, tier in enumerate(system.tiers):
        better = {"bandwidth": replace(tier, channel_mbps=_tenfold(tier.channel_mbps))}
        if any(tier.occupancy_ps):
            better["operations"] = replace(tier, occupancy_ps=_tenth_pair(tier.occupancy_ps))
        if tier.turnaround_ps:
            better["turnaround"] = replace(tier, turnaround_ps=tier.turnaround_ps // TENFOLD)
        if any(walk.occupancy_ps for walk in tier.translation):
            walks = tuple(replace(w, occupancy_ps=w.occupancy_ps // TENFOLD) for w in tier.translation)
            better["translation"] = replace(tier, translation=walks)
        if tier.write_buffer_bytes:
            better["write buffer"] = replace(tier, write_buffer_bytes=tier.write_buffer_bytes * TENFOLD)
        if tier.queue_depth:
            better["queue depth"] = replace(tier, queue_depth=tier.queue_depth * TENFOLD)
        for resource, one in better.items():
            tiers = (*system.tiers[:number], one, *system.tiers[number + 1 :])
            yield f"{tier.name} {resource}", replace(system, tiers=tiers)
    read_mbps, write_mbps = system.cache.mbps
    caches = {
        "bandwidth": replace(system.cache, mbps=(read_mbps * TENFOLD, write_mbps)),
        "write bandwidth": replace(system.cache, mbps=(read_mbps, write_mbps * TENFOLD)),
    }
    for resource, cache in caches.items():
        yield f"{system.cache.name} {resource}", replace(system, cache=cache)


def _link_variants(system: System) -> Iterator[tuple[str, System]]:
    for number, link in enumerate(system.links):
        options = {"bandwidth": replace(link, mbps=_tenfold(link.mbps))}
        if link.tags or link.credits:
            options["tags"] = replace(link, tags=link.tags * TENFOLD, credits=link.credits * TENFOLD)
        for resource, better in options.items():
            links = (*system.links[:number], better, *system.links[number + 1 :])
            yield f"{link.name} {resource}", replace(system, links=links)


def _quicker(system: System) -> System:
    """All hops at a tenth of their latency, 1 ps at least, and what slow requests take more."""
    return replace(
        system,
        tiers=tuple(
            replace(
                tier,
                latency_ps=_tenth_pair(tier.latency_ps, least_ps=1),
                tail=tuple((slowest, extra_ps // TENFOLD) for slowest, extra_ps in tier.tail),
                loaded=tuple((load, extra_ps // TENFOLD) for load, extra_ps in tier.loaded),
                translation=tuple(replace(w, latency_ps=w.latency_ps // TENFOLD) for w in tier.translation),
            )
            for tier in system.tiers
        ),
        routes=tuple(
            tuple(tuple(_quicker_hop(hop) for hop in route) for route in by_tier)
            for by_tier in system.routes
        ),
        cache=replace(system.cache, latency_ps=max(1, system.cache.latency_ps // TENFOLD)),
    )


def _quicker_hop(hop: Hop) -> Hop:
    return replace(hop, latency_ps=max(1, hop.latency_ps // TENFOLD))


def _tenfold(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[0] * TENFOLD, pair[1] * TENFOLD


def _tenth_pair(pair_ps: tuple[int, int], least_ps: int = 0) -> tuple[int, int]:
    return max(least_ps, pair_ps[0] // TENFOLD), max(least_ps, pair_ps[1] // TENFOLD)


def _tenth(values_ps: np.ndarray) -> np.ndarray:
    return values_ps // TENFOLD
