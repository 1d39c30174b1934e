"""What binds a kernel: the resource whose tenfold increase shortens it most, by replaying it again.

For each family its longest kernel is replayed, with the kernels that overlap with it, on machines that
differ from the given one in one resource. A latency-bound kernel whose partial results are reduced one
after another is bound by that serial chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from memsim.fast import localize, replay_segment
from memsim.fast_pack import pack_hardware
from memsim.fast_state import END_PS, READY_PS
from memsim.options import ReplayOptions
from memsim.program import Plan, Planned, build_program, home_of
from memsim.resources import SERIAL, TENFOLD, Case, Resource, idle, resources
from memsim.rules import ROW_BYTES, Memory
from memsim.segments import LONG_BYTES, Segment, shortened, split
from memsim.system import System
from memsim.trace import Accesses, Kernel, Trace


@dataclass(frozen=True)
class Bound:
    """The resource, the share of the kernel's time that ten times of it would save, and all shares."""

    resource: str
    share: float
    shares: dict[str, float]


@dataclass(frozen=True)
class Again:
    """Kernels that overlap, ready to be replayed on other machines.

    places  kernels asked for, by their family: where each stands among them
    case    the machine and the program as they are
    every   the machine's resources;  unused  names of those that no kernel has a use for
    """

    kernels: tuple[Kernel, ...]
    places: dict[str, int]
    case: Case
    memory: Memory
    options: ReplayOptions
    every: tuple[Resource, ...]
    unused: frozenset[str]

    def times_ps(self, case: Case) -> np.ndarray:
        """Time of each kernel, its launch gap included, int64[kernels]."""
        hardware = pack_hardware(case.system, self.options)
        times = replay_segment(hardware, case.program, self.memory, case.system).kernels
        took_ps: np.ndarray = times[:, END_PS] - times[:, READY_PS]
        return took_ps

    def name(self, resource: Resource, place: int) -> str:
        """What a resource is called for one of the kernels."""
        return SERIAL if resource.name == "latency" and self.case.serial[place] else resource.name


def segments_again(
    segments: Iterable[Segment],
    system: System,
    memory: Memory,
    options: ReplayOptions,
    wanted: Mapping[str, int],
    plan: Plan | None = None,
    whole: bool = True,
) -> Iterator[Again]:
    """The segments that hold certain kernels.

    segments  those of a trace, or of these the ones that hold them
    wanted  family -> id of its kernel;  plan  see build_program
    whole   false: long scans are cut short (`segments.shortened`), where only ratios of times count
    """
    family_of = {kernel: family for family, kernel in wanted.items()}
    found = 0
    for segment in segments:
        places = {family_of[k.id]: i for i, (k, _) in enumerate(segment.launches) if k.id in family_of}
        if places:
            if not whole:
                segment, plan_of = _short(segment, memory, options, plan)
                yield _again(segment, places, system, memory, options, plan_of)
            else:
                yield _again(segment, places, system, memory, options, plan)
        elif plan is not None:  # what these kernels leave behind
            for kernel, accesses in segment.launches:
                plan.shares(kernel, accesses, home_of(kernel, options.run_on))
        found += len(places)
        if found == len(wanted):
            return


def _again(
    segment: Segment,
    places: dict[str, int],
    system: System,
    memory: Memory,
    options: ReplayOptions,
    plan: Plan | None,
) -> Again:
    row_bytes = memory.regions[:, ROW_BYTES]
    no_graph = [False] * len(segment.launches)  # a step's launch is no part of a kernel's own time
    program = build_program(
        segment.launches, segment.waits, no_graph, system, row_bytes, options.run_on, plan, segment.handed
    )
    _, program, local = localize(program, memory)
    serial = np.array([reduces_one_by_one(kernel, accesses) for kernel, accesses in segment.launches])
    case = Case(system, program, serial)
    nobody = idle(case, local)
    every = tuple(resources(system))
    return Again(
        kernels=tuple(kernel for kernel, _ in segment.launches),
        places=places,
        case=case,
        memory=local,
        options=options,
        every=every,
        unused=frozenset(each.name for each in every if {each.place, each.name} & nobody),
    )


def _short(
    segment: Segment, memory: Memory, options: ReplayOptions, plan: Plan | None
) -> tuple[Segment, Plan | None]:
    """The segment with long scans cut short, and the shares that the plan has for the whole ones."""
    short = shortened(segment, memory.regions[:, ROW_BYTES], LONG_BYTES)
    if plan is None or short is segment:
        return short, plan
    homes = [home_of(kernel, options.run_on) for kernel, _ in segment.launches]
    found = {k.id: plan.shares(k, a, home) for (k, a), home in zip(segment.launches, homes, strict=True)}
    return short, Planned(found)


def segments_of(trace: Trace, options: ReplayOptions) -> Iterator[Segment]:
    """The segments of a trace, in order."""
    return split(trace.kernels(), home=lambda kernel: home_of(kernel, options.run_on))


def find_bounds(
    segments: Iterable[Segment],
    system: System,
    memory: Memory,
    options: ReplayOptions,
    longest: Mapping[str, int],
    plan: Plan | None = None,
) -> dict[str, Bound]:
    """Bound of each family. segments, plan: see segments_again; longest: family -> id of its kernel."""
    bounds: dict[str, Bound] = {}
    for again in segments_again(segments, system, memory, options, longest, plan, whole=False):
        bounds |= _bounds_of_segment(again)
    return bounds


def _bounds_of_segment(again: Again) -> dict[str, Bound]:
    base_ps = again.times_ps(again.case)
    times_ps = [
        (each, base_ps if each.name in again.unused else again.times_ps(each.grown(again.case, TENFOLD)))
        for each in again.every
    ]
    bounds = {}
    for family, place in again.places.items():
        shares = {
            again.name(each, place): 1 - float(took[place]) / float(base_ps[place]) for each, took in times_ps
        }
        resource = max(shares, key=lambda name: shares[name])
        share = shares[resource]
        bounds[family] = Bound(resource if share > 0 else "nothing", max(0.0, share), shares)
    return bounds


def reduces_one_by_one(kernel: Kernel, accesses: Accesses) -> bool:
    """Whether the kernel reads partial results and walks them one after another."""
    reads = (accesses.region == kernel.partial_region) & ~accesses.write
    return kernel.partial_serial and bool(reads.any())
