"""What a replay gives back: integers per kernel, per tier and per link, never a time per request.

`Outcome` is what an engine counts, as arrays; both engines must fill it alike, bit for bit. `Result`
is the same with names, sums and the figures that people ask for; `simulate` builds it, `report`
prints it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

READ, WRITE = 0, 1
LATENCY_BUCKETS = 496  # of rules.latency_bucket


class Outcome(NamedTuple):
    """What an engine counted. A place is a tier (0..T-1), the cache (T) or a link (T+1..).

    ready_ps, start_ps, end_ps : int64[kernels]  when a kernel's predecessors were done, when its first
        block could start (ready + launch), when its last block ended
    initiator : int64[kernels]  the one that ran it
    requests : int64[kernels]
    digest   : int64[kernels]  sum over requests of a mix of block, number and completion - start
    kernel_moved : int64[kernels, places, 2]  bytes moved by each place, read and written; of a link: data
        towards its first node and away from it, headers not counted
    issued, moved : int64[regions, T + 1, 2]  bytes that blocks asked for and bytes served, by region and the
        place that served them (the cache: hits, and writes stored); moved differs from issued by the rounding
        to a tier's unit
    written_back : int64[T]  bytes that the cache pushed out and the tier wrote, a part of kernel_moved
    wire_bytes : int64[links, 2]  bytes that kept each direction of a link busy: data, headers, and what
        small transfers waste
    waiting_ps : int64[places]  time that pieces waited for a channel, a cache or a link to come free, and
        requests for a place in a tier's queue
    tags_waiting_ps : int64[links]  time that requests waited for a link's tags or credits
    units_waiting_ps : int64[1]  time that blocks waited for their unit's outstanding bytes
    ports_waiting_ps : int64[1]  time that requests waited for their unit's port
    walks_waiting_ps : int64[T]  time that requests waited for the walkers of a tier's address translation
    latency : int64[T + 1, LATENCY_BUCKETS]  histogram of issue to completion (see rules.latency_bucket)
    """

    ready_ps: Int64s
    start_ps: Int64s
    end_ps: Int64s
    initiator: Int64s
    requests: Int64s
    digest: Int64s
    kernel_moved: Int64s
    issued: Int64s
    moved: Int64s
    written_back: Int64s
    wire_bytes: Int64s
    waiting_ps: Int64s
    tags_waiting_ps: Int64s
    units_waiting_ps: Int64s
    ports_waiting_ps: Int64s
    walks_waiting_ps: Int64s
    latency: Int64s


def empty_outcome(kernels: int, regions: int, tiers: int, links: int) -> Outcome:
    """An outcome with nothing counted; times are -1."""
    return Outcome(
        ready_ps=np.full(kernels, -1, np.int64),
        start_ps=np.full(kernels, -1, np.int64),
        end_ps=np.full(kernels, -1, np.int64),
        initiator=np.zeros(kernels, np.int64),
        requests=np.zeros(kernels, np.int64),
        digest=np.zeros(kernels, np.int64),
        kernel_moved=np.zeros((kernels, tiers + 1 + links, 2), np.int64),
        issued=np.zeros((regions, tiers + 1, 2), np.int64),
        moved=np.zeros((regions, tiers + 1, 2), np.int64),
        written_back=np.zeros(tiers, np.int64),
        wire_bytes=np.zeros((links, 2), np.int64),
        waiting_ps=np.zeros(tiers + 1 + links, np.int64),
        tags_waiting_ps=np.zeros(links, np.int64),
        units_waiting_ps=np.zeros(1, np.int64),
        ports_waiting_ps=np.zeros(1, np.int64),
        walks_waiting_ps=np.zeros(tiers, np.int64),
        latency=np.zeros((tiers + 1, LATENCY_BUCKETS), np.int64),
    )


@dataclass(frozen=True)
class PlaceTotals:
    """One tier or link over the whole replay.

    kind             "tier" or "link"
    issued_*_bytes   what blocks asked of it (tiers only; 0 on links)
    moved_*_bytes    what it moved, rounded to its unit; a link's `read` goes towards its first node
    written_back_bytes   the part of moved_write_bytes that the cache pushed out (tiers only)
    busy_ps          what it moved / sustained bandwidth: of a link, its busier direction on the wire
    waiting_ps       sum over requests of the time they waited for it (queue, tags and credits included)
    sustained_mbps, peak_mbps    of reads, or of a link's busier direction
    used_bytes, capacity_bytes   of the placement (0, 0 on links)
    requests, p50_ps, p99_ps     latency of requests, issue to completion (tiers only)
    wire_bytes       a link's busier direction, with headers and what small transfers waste (0 on tiers)
    shared           a link whose directions take turns: both count together
    energy_pj        of what it moved, None where the machine does not say
    cost_usd         (scenario, dollars) of the bytes placed in it
    """

    name: str
    kind: str
    issued_read_bytes: int
    issued_write_bytes: int
    moved_read_bytes: int
    moved_write_bytes: int
    busy_ps: int
    waiting_ps: int
    sustained_mbps: int
    peak_mbps: int
    used_bytes: int = 0
    capacity_bytes: int = 0
    requests: int = 0
    p50_ps: int = 0
    p99_ps: int = 0
    wire_bytes: int = 0
    shared: bool = False
    written_back_bytes: int = 0
    energy_pj: int | None = None
    cost_usd: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class FamilyTotals:
    """All kernels of one family.

    time_ps       sum of launch gap + time from start to end; a step's graph launch is counted apart
    bytes_*       unique bytes of regions that each kernel touches, summed over kernels
    naive_ps      sum of launch + t0 + bytes / bandwidth of the slowest place
    naive_place   the tier or link that this bandwidth belongs to
    initiator     the one that ran its kernels
    bound         the resource whose tenfold increase shortens its longest kernel most ("" if not asked)
    bound_share   by how much it shortens it, share of its time; bound_shares: the same of every resource
    """

    name: str
    kernels: int
    time_ps: int
    bytes_read: int
    bytes_written: int
    bytes_issued: int
    naive_ps: int
    naive_place: str
    initiator: str
    bound: str = ""
    bound_share: float = 0.0
    bound_shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """What a resource has to do with a kernel's time.

    time_ps   its part of the time: what taking it out of the way saves, those before it gone already
    alone_ps  time of the kernel if everything else were out of the way; None where that was not asked
    saved_ps  what a tenth more of it saves; negative where more of it makes the kernel slower
    """

    resource: str
    time_ps: int
    alone_ps: int | None
    saved_ps: int


@dataclass(frozen=True)
class Explained:
    """A kernel's time, divided: time_ps = sum of its parts + rest_ps (see docs/result.md).

    number  the kernel's id in its trace
    parts   in the order in which their resources were taken out of the way
    tiles   that a block may have outstanding, as it is and with a tenth more, rounded up
    """

    kernel: str
    number: int
    family: str
    initiator: str
    time_ps: int
    parts: tuple[Part, ...]
    rest_ps: int
    tiles: tuple[int, int]


@dataclass(frozen=True)
class Result:
    """A replay with names and sums.

    batch         sequences, over all `gpus` GPUs that work together; the trace is of one of them
    step_ps       time of each step;  tokens_per_step  tokens it emits a sequence
    graph_launch_ps  what each step pays once, before its first kernel
    bytes_read, bytes_written   by region kind: unique bytes of its regions that a kernel touches
    bytes_issued                by region kind: what blocks asked for, reads and writes
    cache_hit_bytes, cache_stored_bytes, written_back_bytes, rounding_bytes   the other terms of the ledger:
                  issued = cache hits + stored + moved by tiers - written back - rounding
    provenance    worst of all inputs;  assumed  paths of the assumed ones
    digest        one number for all completion times
    explained     the times of the slowest kernels, divided; none if not asked
    notes         what a reader should know of how it came about, a line each
    """

    trace: str
    model: str
    machine: str
    engine: str
    context_tokens: int
    batch: int
    steps: int
    tokens_per_step: int
    step_ps: tuple[int, ...]
    graph_launch_ps: int
    families: tuple[FamilyTotals, ...]
    tiers: tuple[PlaceTotals, ...]
    links: tuple[PlaceTotals, ...]
    bytes_read: dict[str, int]
    bytes_written: dict[str, int]
    bytes_issued: dict[str, int]
    cache_hit_bytes: int
    rounding_bytes: int
    requests: int
    digest: str
    provenance: str
    assumed: tuple[str, ...]
    gpus: int = 1
    interval: str = "no interval (uncalibrated)"
    notes: tuple[str, ...] = ()
    cache_stored_bytes: int = 0
    written_back_bytes: int = 0
    explained: tuple[Explained, ...] = ()
    outcome: Outcome | None = field(default=None, repr=False, compare=False)

    @property
    def kept_bytes(self) -> int:
        """Bytes stored that are still in the cache; 0 where shares have pushed out a little more."""
        return max(0, self.cache_stored_bytes - self.written_back_bytes)

    @property
    def total_ps(self) -> int:
        """Time of all steps [ps]."""
        return sum(self.step_ps)

    @property
    def tpot_ps(self) -> int:
        """Mean step time over the tokens that a step emits a sequence [ps]."""
        return self.total_ps // (self.steps * self.tokens_per_step)
