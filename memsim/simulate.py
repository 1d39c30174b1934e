"""Replay a trace on a machine: place, run an engine, check the invariants, name and sum.

Enters a trace file, a machine and options; leaves a `Result`. The engine is imported inside the call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memsim import ledger
from memsim.errors import TraceError, UsageError, nearest
from memsim.placement import Placement, build_memory, parse_rules, place_regions
from memsim.profile import load_machine, worst
from memsim.progress import Progress
from memsim.result import READ, WRITE, FamilyTotals, Outcome, PlaceTotals, Result
from memsim.route import build_system
from memsim.rules import Memory, bucket_floor_ps
from memsim.system import Input, System
from memsim.tally import Tally, Watched
from memsim.trace_read import open_trace

if TYPE_CHECKING:
    from memsim.profile_schema import Profile

ENGINES = ("fast", "reference")
DEFAULT_QUANTUM_BYTES = 8192  # half of it moves a kernel by under 1%, a host-bound one too
_LARGEST_QUANTUM_BYTES = 1 << 30


def replay(
    trace: str | Path,
    machine: str | Path | Profile | System = "h200",
    *,
    place: str | Sequence[str] = (),
    overflow: str = "refuse",
    engine: str = "fast",
    quantum_bytes: int = DEFAULT_QUANTUM_BYTES,
    bound: bool = True,
    progress: Progress | None = None,
) -> Result:
    """Replay a trace file on a machine.

    machine        a shipped name, a TOML file, a loaded machine, or a `System`
    place          rules `KIND|NAME|layer:A-B=TIER[:SHARE,TIER:SHARE]`, one or several; the last that
                   matches wins
    overflow       `refuse`, or the tier that takes rows that do not fit
    engine         `fast` or `reference`; their results are equal
    quantum_bytes  largest request [bytes]
    bound          also find what binds each kernel family, by replaying its longest kernel again
    progress       called with (kernels ended, kernels)

    Raises UsageError (trace, machine, names), DoesNotFit, or MemsimError if an invariant breaks.
    """
    _check_options(engine, quantum_bytes)
    system = _system(machine)
    watched = Watched(open_trace(trace))
    if not watched.kernel_count:
        raise TraceError(f"{watched.path}: no kernel to replay; record at least one")
    rules = parse_rules([place] if isinstance(place, str) else place, watched.regions, system)
    placement = place_regions(watched.regions, rules, overflow, system)
    memory = build_memory(watched.regions, placement)
    outcome = _run(engine, watched, system, memory, quantum_bytes, progress)
    ledger.check(outcome, watched.tally.issued, system)
    result = summarize(watched, system, placement, outcome, engine)
    return _with_bounds(result, watched, system, memory, quantum_bytes) if bound else result


def _system(machine: str | Path | Profile | System) -> System:
    if isinstance(machine, System):
        return machine
    return build_system(load_machine(machine) if isinstance(machine, (str, Path)) else machine)


def _check_options(engine: str, quantum_bytes: int) -> None:
    if engine not in ENGINES:
        raise UsageError(f"--engine '{engine}': no such engine; {nearest(engine, ENGINES)}")
    if not 1 <= quantum_bytes <= _LARGEST_QUANTUM_BYTES:
        raise UsageError(
            f"--quantum {quantum_bytes} B: expected 1 B to 1 GiB; the default is {DEFAULT_QUANTUM_BYTES} B"
        )


def _run(
    engine: str, trace: Watched, system: System, memory: Memory, quantum_bytes: int, progress: Progress | None
) -> Outcome:
    if engine == "fast":
        from memsim import fast

        return fast.run(trace, system, memory, quantum_bytes, progress)
    from memsim import reference

    return reference.run(trace, system, memory, quantum_bytes, progress)


def summarize(trace: Watched, system: System, placement: Placement, outcome: Outcome, engine: str) -> Result:
    """Names and sums of an outcome."""
    meta, tally = trace.meta, trace.tally
    kinds = _bytes_by_kind(tally)
    tiers = len(system.tiers)
    inputs = _inputs_used(system, outcome, meta)
    return Result(
        trace=trace.path,
        model=str(meta.get("model", "")),
        machine=system.name,
        engine=engine,
        context_tokens=int(meta.get("context_tokens", 0)),
        batch=int(meta.get("batch", 1)),
        steps=len(set(tally.step)),
        tokens_per_step=int(meta.get("tokens_per_step", 1)),
        step_ps=_step_times_ps(tally, outcome),
        graph_launch_ps=system.initiator.graph_launch_ps,
        families=tuple(_families(tally, system, outcome)),
        tiers=tuple(_tier_totals(system, placement, outcome)),
        links=tuple(_link_totals(system, outcome)),
        bytes_read={kind: ways[READ] for kind, ways in kinds.items()},
        bytes_written={kind: ways[WRITE] for kind, ways in kinds.items()},
        bytes_issued=_issued_by_kind(trace),
        cache_hit_bytes=int(outcome.issued[:, tiers].sum()),
        rounding_bytes=int((outcome.moved - outcome.issued).sum()),
        requests=int(outcome.requests.sum()),
        digest=f"{_digest(outcome):016x}",
        provenance=worst([item.provenance for item in inputs]),
        assumed=tuple(item.path for item in inputs if item.provenance == "assumed"),
        outcome=outcome,
    )


def _bytes_by_kind(tally: Tally) -> dict[str, list[int]]:
    kinds: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (_, kind), (read, written) in tally.unique.items():
        kinds[kind][READ] += read
        kinds[kind][WRITE] += written
    return dict(sorted(kinds.items()))


def _issued_by_kind(trace: Watched) -> dict[str, int]:
    kinds: dict[str, int] = defaultdict(int)
    for region, ways in zip(trace.regions, trace.tally.issued, strict=True):
        if ways.any():
            kinds[region.kind] += int(ways.sum())
    return dict(sorted(kinds.items()))


def _step_times_ps(tally: Tally, outcome: Outcome) -> tuple[int, ...]:
    """From the end of the step before to the end of the last kernel of each step."""
    ends: dict[int, int] = {}
    for step, end_ps in zip(tally.step, outcome.end_ps.tolist(), strict=True):
        ends[step] = max(end_ps, ends.get(step, 0))
    times, before_ps = [], 0
    for end_ps in ends.values():
        times.append(max(0, end_ps - before_ps))
        before_ps = max(before_ps, end_ps)
    return tuple(times)


def _families(tally: Tally, system: System, outcome: Outcome) -> list[FamilyTotals]:
    """Totals of each kernel family, in order of first appearance."""
    kernels: dict[str, list[int]] = defaultdict(list)
    for number, family in enumerate(tally.family):
        kernels[family].append(number)
    naive_ps, naive_places = _naive_times_ps(system, outcome)
    times_ps = kernel_times_ps(system, outcome)
    names = [tier.name for tier in system.tiers] + [link.name for link in system.links]
    totals = []
    for family, members in kernels.items():
        ways = [w for (f, _), w in tally.unique.items() if f == family]
        by_place = naive_places[members].sum(axis=0)
        totals.append(
            FamilyTotals(
                name=family,
                kernels=len(members),
                time_ps=int(times_ps[members].sum()),
                bytes_read=sum(w[READ] for w in ways),
                bytes_written=sum(w[WRITE] for w in ways),
                bytes_issued=tally.issued_by_family[family],
                naive_ps=int(naive_ps[members].sum()),
                naive_place=names[int(by_place.argmax())],
            )
        )
    return totals


def kernel_times_ps(system: System, outcome: Outcome) -> np.ndarray:
    """Launch gap and time from start to end of every kernel [ps]; the graph launch of a step is apart."""
    return outcome.end_ps - outcome.start_ps + system.initiator.launch_gap_ps


def _naive_times_ps(system: System, outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Launch gap + t0 + bytes / bandwidth of the slowest place, for each kernel.

    t0 is the idle latency of the farthest tier that the kernel uses. Returns the times [ps] and, as
    [kernels, tiers + links], the bytes / bandwidth of every place [ps].
    """
    tiers = len(system.tiers)
    moved = outcome.kernel_moved.astype(object)  # exact: bytes x 10^6 may pass int64
    columns = [
        moved[:, i].sum(axis=1) * 1_000_000 // (tier.channels * tier.channel_mbps)
        for i, tier in enumerate(system.tiers)
    ]
    columns += [
        moved[:, tiers + 1 + i].max(axis=1) * 1_000_000 // link.mbps for i, link in enumerate(system.links)
    ]
    places_ps = np.stack(columns, axis=1).astype(np.int64)
    idle_ps = np.array([idle_latency_ps(system, tier) for tier in range(tiers)], np.int64)
    used = outcome.kernel_moved[:, :tiers].any(axis=2)
    t0_ps = (used * idle_ps).max(axis=1)
    return system.initiator.launch_gap_ps + t0_ps + places_ps.max(axis=1), places_ps


def idle_latency_ps(system: System, tier: int) -> int:
    """Hops of one read of a tier on an idle machine, transfers not counted [ps]."""
    return system.tiers[tier].latency_ps + 2 * sum(system.links[i].latency_ps for i in system.routes[tier])


def _tier_totals(system: System, placement: Placement, outcome: Outcome) -> list[PlaceTotals]:
    totals = []
    for number, tier in enumerate(system.tiers):
        issued = outcome.issued[:, number].sum(axis=0).tolist()
        moved = outcome.moved[:, number].sum(axis=0).tolist()
        sustained_mbps = tier.channels * tier.channel_mbps
        p50_ps, p99_ps = percentiles_ps(outcome.latency[number], (50, 99))
        totals.append(
            PlaceTotals(
                tier.name, "tier", issued[READ], issued[WRITE], moved[READ], moved[WRITE],
                busy_ps=sum(moved) * 1_000_000 // sustained_mbps,
                waiting_ps=int(outcome.waiting_ps[number]),
                sustained_mbps=sustained_mbps,
                peak_mbps=tier.peak_mbps,
                used_bytes=placement.used_bytes[number],
                capacity_bytes=tier.capacity_bytes,
                requests=int(outcome.latency[number].sum()),
                p50_ps=p50_ps,
                p99_ps=p99_ps,
            )
        )  # fmt: skip
    return totals


def _link_totals(system: System, outcome: Outcome) -> list[PlaceTotals]:
    first = len(system.tiers) + 1
    totals = []
    for number, link in enumerate(system.links):
        moved = outcome.kernel_moved[:, first + number].sum(axis=0).tolist()
        totals.append(
            PlaceTotals(
                link.name, "link", 0, 0, moved[READ], moved[WRITE],
                busy_ps=max(moved) * 1_000_000 // link.mbps,
                waiting_ps=int(outcome.waiting_ps[first + number] + outcome.tags_waiting_ps[number]),
                sustained_mbps=link.mbps,
                peak_mbps=link.peak_mbps,
            )
        )  # fmt: skip
    return totals


def percentiles_ps(histogram: np.ndarray, percents: Sequence[int]) -> list[int]:
    """Lower edge of the bucket that holds each percentile [ps]; 0 where nothing was counted."""
    total = int(histogram.sum())
    if not total:
        return [0] * len(percents)
    ranks = np.cumsum(histogram)
    return [bucket_floor_ps(int(np.searchsorted(ranks, -(-total * p // 100)))) for p in percents]


def _inputs_used(system: System, outcome: Outcome, meta: Mapping[str, Any]) -> list[Input]:
    """Numbers that the result rests on: the trace's and the machine's, less those of unused tiers."""
    idle = {f"tier.{t.name}." for i, t in enumerate(system.tiers) if not outcome.moved[:, i].any()}
    first = len(system.tiers) + 1
    idle |= {
        f"link.{k.name}." for i, k in enumerate(system.links) if not outcome.kernel_moved[:, first + i].any()
    }
    used = [item for item in system.inputs if not item.path.startswith(tuple(idle))]
    return used + [
        Input(str(i["path"]), str(i["value"]), str(i["provenance"]), str(i["source"]))
        for i in meta.get("inputs", [])
    ]


def _digest(outcome: Outcome) -> int:
    """One number for all completion times, starts and ends."""
    total = 0
    for columns in zip(
        outcome.digest.tolist(), outcome.start_ps.tolist(), outcome.end_ps.tolist(), strict=True
    ):
        for value in columns:
            total = (total * 1_000_003 + value) % (1 << 61)
    return total


def _with_bounds(
    result: Result, trace: Watched, system: System, memory: Memory, quantum_bytes: int
) -> Result:
    """The result with what binds each family."""
    from memsim.bound import find_bounds

    assert result.outcome is not None
    times_ps = kernel_times_ps(system, result.outcome)
    longest: dict[str, int] = {}
    for number, family in enumerate(trace.tally.family):  # the last of equals: the first may launch a graph
        if family not in longest or times_ps[number] >= times_ps[longest[family]]:
            longest[family] = number
    bounds = find_bounds(trace.trace, system, memory, quantum_bytes, longest)
    families = tuple(
        replace(family, bound=b.resource, bound_share=b.share, bound_shares=b.shares)
        for family, b in ((family, bounds[family.name]) for family in result.families)
    )
    return replace(result, families=families)
