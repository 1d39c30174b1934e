"""Calls of production kernels as a `Script`: what `workloads` records on torch's meta device, in a row.

A call is recorded once and may stand in the script several times. Its buffers (caches, states) are then
others each time, all else (queries, partial results, outputs) is the same for all calls, as in the measured
graphs. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memsim.trace import SPREADS, Access, Accesses, Kernel, Region
from memsim.unique import unique_bytes
from validation.predict_script import Bench, Job, Script
from workloads.record import ListSink, Recorder

INSIDE = (".partial", ".candidates")  # ends of the names of regions that a call fills and reads by itself
PLAIN = ("block", "block_last", "region", "first_row", "rows", "stride", "grain")
FLAGS = ("write", "dependent", "worked")
PLENTY_BYTES = 128 << 20  # no cache holds as much


@dataclass(frozen=True)
class Recorded:
    """Regions, kernels and each kernel's accesses of one call."""

    regions: tuple[Region, ...]
    kernels: tuple[Kernel, ...]
    accesses: tuple[tuple[Access, ...], ...]

    def touched(self) -> list[int]:
        """Regions that a kernel reads or writes, or may."""
        found = {access.region for accesses in self.accesses for access in accesses}
        return sorted(found | {kernel.partial_region for kernel in self.kernels} - {-1})

    def moved(self, inside: tuple[str, ...] = INSIDE) -> tuple[int, int]:
        """Bytes that the kernels read and write, those of regions `inside` a call left out.

        Unique bytes of each kernel; rows that a list names count as often as it names them.
        """
        ways = [0, 0]
        for kernel, accesses in zip(self.kernels, self.accesses, strict=True):
            counted = [a for a in accesses if not self.regions[a.region].name.endswith(inside)]
            runs = as_columns([access for access in counted if access.gather is None])
            for way, found in enumerate(unique_bytes(kernel, runs, self.regions)):
                ways[way] += sum(found.values())
            listed = [access for access in counted if access.gather is not None]
            ways[0] += sum(access.rows * self.regions[access.region].row_bytes for access in listed)
        return ways[0], ways[1]

    def largest(self, end: str) -> int:
        """Bytes of the largest region whose name ends so; 0 if none does."""
        return max((region.bytes for region in self.regions if region.name.endswith(end)), default=0)


@dataclass(frozen=True)
class Turn:
    """A call in a script. buffers: end of a region's name -> which of its copies this call takes."""

    call: Recorded
    buffers: Mapping[str, int]


def record(run: Callable[[Recorder], None], without: Collection[str] = ()) -> Recorded:
    """What `run` records, without the kernels of some families."""
    sink = ListSink()
    run(Recorder(sink, "meta"))
    accesses: dict[int, list[Access]] = {kernel.id: [] for kernel in sink.kernels}
    for access in sink.accesses:
        accesses[access.kernel].append(access)
    kept = tuple(kernel for kernel in sink.kernels if kernel.family not in without)
    return Recorded(tuple(sink.regions), kept, tuple(tuple(accesses[kernel.id]) for kernel in kept))


def in_a_row(turns: Sequence[Turn], tiers: Mapping[str, str] | None = None) -> tuple[Script, list[int]]:
    """The calls one after another; the last kernel of each.

    tiers   end of a region's name -> the tier that it lies in, where that is not the first one
    """
    script, last = Script(), []
    known: dict[tuple[str, int], int] = {}
    for turn in turns:
        numbers = {-1: -1}
        for old in turn.call.touched():
            region = turn.call.regions[old]
            copy = next((n for end, n in turn.buffers.items() if region.name.endswith(end)), 0)
            tier = next((name for end, name in (tiers or {}).items() if region.name.endswith(end)), "")
            if (region.name, copy) not in known:
                known[region.name, copy] = script.add(region, tier)
            numbers[old] = known[region.name, copy]
        for kernel, accesses in zip(turn.call.kernels, turn.call.accesses, strict=True):
            script.launch(kernel, accesses, numbers)
        last.append(len(script.kernels) - 1)
    return script, last


def rotating(call: Recorded, ends: Sequence[str], buffers: int) -> Job:
    """Calls that go round the buffers once, and some more: their mean. `ends` names what a buffer holds.

    Of many buffers, as many as no cache holds and then others: none of them comes back soon.
    """
    moved = call.moved()
    first = min(buffers, -(-PLENTY_BYTES // max(1, sum(moved))))
    counted = 2 if first > 1 or buffers == 1 else 1
    copies = min(buffers, first + counted)
    turns = [Turn(call, dict.fromkeys(ends, number % copies)) for number in range(first + counted)]
    return mean_of(*in_a_row(turns), counted, moved)


def mean_of(script: Script, last: Sequence[int], counted: int, moved: tuple[int, int]) -> Job:
    """The mean of the last `counted` calls."""

    def time_ns(bench: Bench) -> float:
        return bench.run(script).between_ns(last[-counted - 1], last[-1]) / counted

    return Job(*moved, time_ns)


def as_columns(accesses: Sequence[Access]) -> Accesses:
    """Runs as a reader of traces hands them out."""
    columns: dict[str, Any] = {
        name: np.array([getattr(access, name) for access in accesses], np.int64) for name in PLAIN
    }
    columns |= {name: np.array([getattr(access, name) for access in accesses], np.bool_) for name in FLAGS}
    columns["spread"] = np.array([SPREADS.index(access.spread) for access in accesses], np.int64)
    columns |= {"gather_at": np.full(len(accesses), -1), "gather_rows": np.zeros(0, np.int64)}
    return Accesses(**columns)
