"""What binds a kernel: the resource whose tenfold increase shortens it most, by replaying it again.

For each family its longest kernel is replayed, with the kernels that overlap with it, on machines that
differ from the given one in one resource. A latency-bound kernel whose partial results are reduced one
after another is bound by that serial chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from memsim.fast import localize, pack_hardware, replay_segment
from memsim.fast_state import END_PS, READY_PS
from memsim.program import Program, build_program
from memsim.rules import ROW_BYTES, Memory
from memsim.segments import Segment, split
from memsim.system import System
from memsim.trace import Accesses, Kernel, Trace

TENFOLD = 10


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
    trace: Trace, system: System, memory: Memory, quantum_bytes: int, longest: Mapping[str, int]
) -> dict[str, Bound]:
    """Bound of each family. longest: family -> id of its longest kernel."""
    family_of = {kernel: family for family, kernel in longest.items()}
    bounds: dict[str, Bound] = {}
    for segment in split(trace.kernels()):
        places = {family_of[k.id]: i for i, (k, _) in enumerate(segment.launches) if k.id in family_of}
        if places:
            bounds |= _bounds_of_segment(segment, places, system, memory, quantum_bytes)
        if len(bounds) == len(longest):
            break
    return bounds


def _bounds_of_segment(
    segment: Segment, places: Mapping[str, int], system: System, memory: Memory, quantum_bytes: int
) -> dict[str, Bound]:
    program = build_program(
        segment.launches, segment.waits, segment.new_step, system.initiator, memory.regions[:, ROW_BYTES]
    )
    _, program, local = localize(program, memory)
    serial = np.array([reduces_one_by_one(kernel, accesses) for kernel, accesses in segment.launches])
    times_ps = {
        variant.resource: _kernel_times_ps(variant, local, quantum_bytes)
        for variant in (Variant("", system, program), *variants(system, program, serial))
    }
    base_ps = times_ps.pop("")
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


def _kernel_times_ps(variant: Variant, memory: Memory, quantum_bytes: int) -> np.ndarray:
    hardware = pack_hardware(variant.system, quantum_bytes)
    times = replay_segment(hardware, variant.program, memory, variant.system).kernels
    took_ps: np.ndarray = times[:, END_PS] - times[:, READY_PS]
    return took_ps


def variants(system: System, program: Program, serial: np.ndarray) -> Iterator[Variant]:
    """Ten times of each resource in turn. Of equals the first named wins.

    serial  bool[kernels]: those that cannot have more in flight, each load waits for the one before
    """
    yield from _tier_variants(system, program)
    yield from _link_variants(system, program)
    flops = program._replace(mflops=program.mflops * TENFOLD)
    yield Variant("arithmetic", system, flops)
    yield Variant("latency", _quicker(system), program)
    initiator = system.initiator
    roomy = replace(initiator, unit_outstanding_bytes=initiator.unit_outstanding_bytes * TENFOLD)
    deep = program._replace(tiles=program.tiles * np.where(serial, 1, TENFOLD))
    yield Variant("bytes in flight", replace(system, initiator=roomy), deep)
    wide = replace(initiator, units=initiator.units * TENFOLD)
    yield Variant("units", replace(system, initiator=wide), program)
    prompt = program._replace(launch_ps=_tenth(program.launch_ps))
    yield Variant("launch", system, prompt)
    nimble = program._replace(startup_ps=_tenth(program.startup_ps), drain_ps=_tenth(program.drain_ps))
    yield Variant("block start-up", system, nimble)


def _tier_variants(system: System, program: Program) -> Iterator[Variant]:
    for number, tier in enumerate(system.tiers):
        faster = replace(tier, channel_mbps=tier.channel_mbps * TENFOLD)
        tiers = (*system.tiers[:number], faster, *system.tiers[number + 1 :])
        yield Variant(f"{tier.name} bandwidth", replace(system, tiers=tiers), program)
    cache = replace(system.cache, mbps=system.cache.mbps * TENFOLD)
    yield Variant(f"{system.cache.name} bandwidth", replace(system, cache=cache), program)


def _link_variants(system: System, program: Program) -> Iterator[Variant]:
    for number, link in enumerate(system.links):
        for resource, better in (
            ("bandwidth", replace(link, mbps=link.mbps * TENFOLD)),
            ("tags", replace(link, tags=link.tags * TENFOLD)),
        ):
            links = (*system.links[:number], better, *system.links[number + 1 :])
            yield Variant(f"{link.name} {resource}", replace(system, links=links), program)


def _quicker(system: System) -> System:
    """All hops at a tenth of their latency, 1 ps at least."""
    return replace(
        system,
        tiers=tuple(replace(t, latency_ps=max(1, t.latency_ps // TENFOLD)) for t in system.tiers),
        links=tuple(replace(k, latency_ps=max(1, k.latency_ps // TENFOLD)) for k in system.links),
        cache=replace(system.cache, latency_ps=max(1, system.cache.latency_ps // TENFOLD)),
    )


def _tenth(values_ps: np.ndarray) -> np.ndarray:
    return values_ps // TENFOLD
