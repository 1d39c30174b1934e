"""The distinct kernels of a replay, ready to be replayed on machines that differ in some numbers.

A trace, a placement and the longest kernel of each family enter; times of these kernels leave, for a machine
and changed times of kernels. A kernel is replayed with those that overlap with it and no others, so that a
step of dozens of equal layers costs one, and long scans are cut short: only ratios of times count. The plan
of cache and translation is made anew only where a number of theirs differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from memsim.cache_plan import CachePlan
from memsim.fast import localize, replay_segment
from memsim.fast_pack import pack_hardware
from memsim.fast_state import END_PS, READY_PS
from memsim.options import ReplayOptions
from memsim.program import Int64s, Planned, build_program, home_of
from memsim.rules import ROW_BYTES, Memory
from memsim.segments import LONG_BYTES, Segment, shortened, split
from memsim.system import System
from memsim.trace import Kernel, Trace

KERNEL_TIMES = {"startup": "startup_ps", "drain": "drain_ps", "tile": "tile_ps"}  # keys of a fact: the field


@dataclass(frozen=True)
class Variation:
    """A machine, and factors of kernels' own times by (family, key of KERNEL_TIMES)."""

    system: System
    times: Mapping[tuple[str, str], Fraction] = field(default_factory=dict)


class Distinct:
    """The longest kernel of each family of a trace. wanted: family -> id of its kernel."""

    def __init__(
        self, trace: Trace, system: System, memory: Memory, options: ReplayOptions, wanted: Mapping[str, int]
    ) -> None:
        self._memory, self._options = memory, options
        self._launches = list(trace.kernels())
        family_of = {kernel: family for family, kernel in wanted.items()}
        self._segments: list[tuple[Segment, dict[str, int]]] = []
        for segment in split(self._launches, home=lambda kernel: home_of(kernel, options.run_on)):
            places = {family_of[k.id]: at for at, (k, _) in enumerate(segment.launches) if k.id in family_of}
            if places:
                short = shortened(segment, memory.regions[:, ROW_BYTES], LONG_BYTES)
                self._segments.append((short, places))
        self._needed = {kernel.id for segment, _ in self._segments for kernel, _ in segment.launches}
        self._planned = {_planned_by(system): self._plan(system)}

    def times_ps(self, variation: Variation) -> dict[str, int]:
        """Time of each family's kernel, its launch gap included [ps]."""
        system = variation.system
        planned_by = _planned_by(system)
        if planned_by not in self._planned:
            self._planned[planned_by] = self._plan(system)
        plan, hardware = Planned(self._planned[planned_by]), pack_hardware(system, self._options)
        found: dict[str, int] = {}
        for segment, places in self._segments:
            launches = [(_timed(kernel, variation.times), accesses) for kernel, accesses in segment.launches]
            no_graph = [False] * len(launches)  # a step's launch is no part of a kernel's own time
            program = build_program(
                launches, segment.waits, no_graph, system, self._memory.regions[:, ROW_BYTES],
                self._options.run_on, plan, segment.handed,
            )  # fmt: skip
            _, program, local = localize(program, self._memory)
            times = replay_segment(hardware, program, local, system).kernels
            took_ps = times[:, END_PS] - times[:, READY_PS]
            found |= {family: int(took_ps[place]) for family, place in places.items()}
        return found

    def _plan(self, system: System) -> dict[int, Int64s]:
        """Shares of the accesses of the kernels that are replayed, all before them seen."""
        plan = CachePlan(system, self._memory, self._options.quantum_bytes)
        found, left = {}, set(self._needed)
        for kernel, accesses in self._launches:
            shares = plan.shares(kernel, accesses, home_of(kernel, self._options.run_on))
            if kernel.id in left:
                found[kernel.id] = shares
                left.remove(kernel.id)
            if not left:
                break
        return found


def _planned_by(system: System) -> tuple[object, ...]:
    """All numbers of a machine that its plan of cache and translation rests on."""
    walked = tuple(
        (tier.translation, tier.unit_bytes, tier.commanded) if tier.translation else ()
        for tier in system.tiers
    )
    links = tuple((link.tags, link.credits, link.payload_bytes) for link in system.links)
    runners = tuple((r.units, r.request_bytes, r.tags, r.credits) for r in system.initiators)
    cache = system.cache
    return (cache.capacity_bytes, cache.copies, cache.ways, walked, links, runners)


def _timed(kernel: Kernel, factors: Mapping[tuple[str, str], Fraction]) -> Kernel:
    """The kernel with its own times changed by the factors of its family."""
    changed: dict[str, Any] = {
        KERNEL_TIMES[key]: int(getattr(kernel, KERNEL_TIMES[key]) * factor)
        for (family, key), factor in factors.items()
        if family == kernel.family
    }
    return replace(kernel, **changed) if changed else kernel
