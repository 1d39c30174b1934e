"""Names and sums of what an engine counted.

A trace that was watched, a system, a placement and an `Outcome` enter; a `Result` leaves. Nothing is
replayed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memsim.placement import Placement
from memsim.profile import worst
from memsim.result import READ, WRITE, FamilyTotals, Outcome, PlaceTotals, Result
from memsim.route import idle_latency_ps
from memsim.rules import bucket_floor_ps
from memsim.system import Input, Link, System, Tier
from memsim.tally import Tally, Watched


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
        gpus=int(meta.get("gpus", 1)),
        steps=len(set(tally.step)),
        tokens_per_step=int(meta.get("tokens_per_step", 1)),
        step_ps=_step_times_ps(tally, outcome),
        graph_launch_ps=system.initiators[int(outcome.initiator[0])].graph_launch_ps,
        families=tuple(_families(tally, system, outcome)),
        tiers=tuple(_tier_totals(system, placement, outcome)),
        links=tuple(_link_totals(system, outcome)),
        bytes_read={kind: ways[READ] for kind, ways in kinds.items()},
        bytes_written={kind: ways[WRITE] for kind, ways in kinds.items()},
        bytes_issued=_issued_by_kind(trace),
        cache_hit_bytes=int(outcome.issued[:, tiers, READ].sum()),
        cache_stored_bytes=int(outcome.issued[:, tiers, WRITE].sum()),
        written_back_bytes=int(outcome.written_back.sum()),
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
                initiator=system.initiators[int(outcome.initiator[members[0]])].name,
            )
        )
    return totals


def kernel_times_ps(system: System, outcome: Outcome) -> np.ndarray:
    """Launch gap and time from start to end of every kernel [ps]; the graph launch of a step is apart."""
    took: np.ndarray = outcome.end_ps - outcome.start_ps + _gaps_ps(system, outcome)
    return took


def _naive_times_ps(system: System, outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Launch gap + t0 + bytes / bandwidth of the slowest place, for each kernel.

    t0 is the idle latency of the farthest tier that the kernel reads. Returns the times [ps] and, as
    [kernels, tiers + links], the bytes / bandwidth of every place [ps].
    """
    tiers = len(system.tiers)
    moved = outcome.kernel_moved.astype(object)  # exact: bytes x 10^6 may pass int64
    columns = [_tier_ps(tier, moved[:, i]) for i, tier in enumerate(system.tiers)]
    columns += [_link_ps(system, i, moved[:, tiers + 1 + i], outcome) for i in range(len(system.links))]
    places_ps = np.stack(columns, axis=1).astype(np.int64)
    idle_ps = np.array(
        [[idle_latency_ps(system, i, tier) for tier in range(tiers)] for i in range(len(system.initiators))],
        np.int64,
    )
    used = outcome.kernel_moved[:, :tiers].any(axis=2)
    t0_ps = (used * idle_ps[outcome.initiator]).max(axis=1)
    return _gaps_ps(system, outcome) + t0_ps + places_ps.max(axis=1), places_ps


def _tier_ps(tier: Tier, moved: np.ndarray) -> np.ndarray:
    """Time that all channels of a tier need for bytes read and written, object[n, 2] [ps]."""
    read_mbps, write_mbps = (tier.channels * mbps for mbps in tier.channel_mbps)
    took: np.ndarray = moved[:, READ] * 1_000_000 // read_mbps + moved[:, WRITE] * 1_000_000 // write_mbps
    return took


def _link_ps(system: System, number: int, moved: np.ndarray, outcome: Outcome) -> np.ndarray:
    """Time that a link needs for data of each direction and its headers, object[n, 2] [ps]."""
    link = system.links[number]
    packets = [system.packet_bytes(i, number) for i in range(len(system.initiators))]
    packet = np.array(packets, object)[outcome.initiator]
    ways = [
        moved[:, way] * (packet + link.header_bytes) * 1_000_000 // (packet * link.mbps[way])
        for way in (READ, WRITE)
    ]
    return np.array(ways[0] + ways[1] if link.shared else np.maximum(*ways))


def _gaps_ps(system: System, outcome: Outcome) -> np.ndarray:
    """Launch gap of each kernel, by the initiator that ran it [ps]."""
    return np.array([runner.launch_gap_ps for runner in system.initiators], np.int64)[outcome.initiator]


def _tier_totals(system: System, placement: Placement, outcome: Outcome) -> list[PlaceTotals]:
    totals = []
    for number, tier in enumerate(system.tiers):
        issued = outcome.issued[:, number].sum(axis=0).tolist()
        moved = outcome.kernel_moved[:, number].sum(axis=0)
        p50_ps, p99_ps = percentiles_ps(outcome.latency[number], (50, 99))
        used_bytes = placement.used_bytes[number]
        totals.append(
            PlaceTotals(
                tier.name, "tier", issued[READ], issued[WRITE], int(moved[READ]), int(moved[WRITE]),
                busy_ps=int(_tier_ps(tier, moved.astype(object)[None])[0]),
                waiting_ps=int(outcome.waiting_ps[number]),
                sustained_mbps=tier.channels * tier.channel_mbps[READ],
                peak_mbps=tier.peak_mbps,
                used_bytes=used_bytes,
                capacity_bytes=tier.capacity_bytes,
                requests=int(outcome.latency[number].sum()),
                p50_ps=p50_ps,
                p99_ps=p99_ps,
                written_back_bytes=int(outcome.written_back[number]),
                energy_pj=_energy_pj(tier, int(moved.sum())),
                cost_usd=tuple((name, used_bytes * price / 10**15) for name, price in tier.cost),
            )
        )  # fmt: skip
    return totals


def _link_totals(system: System, outcome: Outcome) -> list[PlaceTotals]:
    first = len(system.tiers) + 1
    totals = []
    for number, link in enumerate(system.links):
        moved = outcome.kernel_moved[:, first + number].sum(axis=0).tolist()
        wire = outcome.wire_bytes[number].tolist()
        busy_ps = [nbytes * 1_000_000 // mbps for nbytes, mbps in zip(wire, link.mbps, strict=True)]
        way = busy_ps.index(max(busy_ps))
        totals.append(
            PlaceTotals(
                link.name, "link", 0, 0, moved[READ], moved[WRITE],
                busy_ps=sum(busy_ps) if link.shared else max(busy_ps),
                waiting_ps=int(outcome.waiting_ps[first + number] + outcome.tags_waiting_ps[number]),
                sustained_mbps=link.mbps[way],
                peak_mbps=link.peak_mbps[way],
                wire_bytes=sum(wire) if link.shared else wire[way],
                shared=link.shared,
                energy_pj=_energy_pj(link, sum(moved)),
            )
        )  # fmt: skip
    return totals


def _energy_pj(place: Tier | Link, moved_bytes: int) -> int | None:
    return moved_bytes * 8 * place.energy_fj // 1000 if place.energy_fj else None


def percentiles_ps(histogram: np.ndarray, percents: Sequence[int]) -> list[int]:
    """Middle of the bucket that holds each percentile [ps], 6% off at most; 0 where nothing was counted."""
    total = int(histogram.sum())
    if not total:
        return [0] * len(percents)
    ranks = np.cumsum(histogram)
    buckets = [int(np.searchsorted(ranks, -(-total * p // 100))) for p in percents]
    return [(bucket_floor_ps(bucket) + bucket_floor_ps(bucket + 1)) // 2 for bucket in buckets]


def _inputs_used(system: System, outcome: Outcome, meta: Mapping[str, Any]) -> list[Input]:
    """Numbers that the result's times rest on: the trace's and the machine's, less those of parts that
    were not used, and prices and energies."""
    idle = {f"tier.{t.name}." for i, t in enumerate(system.tiers) if not outcome.kernel_moved[:, i].any()}
    first = len(system.tiers) + 1
    idle |= {
        f"link.{k.name}." for i, k in enumerate(system.links) if not outcome.kernel_moved[:, first + i].any()
    }
    ran = set(outcome.initiator.tolist())
    idle |= {f"initiator.{r.name}." for i, r in enumerate(system.initiators) if i not in ran}
    idle.add("cost.")
    used = [
        item
        for item in system.inputs
        if not item.path.startswith(tuple(idle)) and not item.path.endswith(".energy")
    ]
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
