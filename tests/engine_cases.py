"""Small systems and traces for the engines, drawn from any `random.Random`.

Numbers are drawn small and mostly round on purpose: services of a few picoseconds make many events meet
in one instant, which is where two engines would come apart. Rates of arithmetic are not round, so that
divisions leave remainders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from memsim import fast, reference
from memsim.lanes import channel_of_lane
from memsim.options import ReplayOptions
from memsim.placement import Piece, Placement, build_memory
from memsim.program import Plan
from memsim.result import Outcome
from memsim.rules import Memory
from memsim.system import Cache, Hop, Initiator, Link, System, Tier, Walk
from memsim.trace import FLOP_UNITS, SPREADS, Access, Accesses, Kernel, Region

GPU = Initiator("gpu", 4, 65_536, 128, 1_300_000, 10_000_000, 0, 7_490_000, 14_990_000, 500_000)
L2 = Cache("l2", 50_000_000, (10_000_000, 10_000_000), 254_000)
HBM_MBPS, HBM_PS = 46_000, 345_000  # of a channel; the same for reads and writes
HOST_MBPS, HOST_PS = 30_000, 111_000
PCIE_MBPS, PCIE_PS = 55_000, 545_000  # of a direction; no headers
HBM = Tier("hbm", 10**12, 8, (HBM_MBPS, HBM_MBPS), 512, 32, (HBM_PS, HBM_PS), 400_000)
HOST = Tier("host", 10**12, 4, (HOST_MBPS, HOST_MBPS), 256, 64, (HOST_PS, HOST_PS), 150_000)
PCIE = Link("pcie", (PCIE_MBPS, PCIE_MBPS), (63_000, 63_000), PCIE_PS, 768, 768, 256, 0)
ONE_TIER = System("one-tier", (GPU,), L2, (HBM,), (), (((),),))
TWO_TIERS = System("two-tiers", (GPU,), L2, (HBM, HOST), (PCIE,), (((), (Hop(0, False, PCIE_PS),)),))
QUANTUM = 4096
NO_CACHE = {"f": 1}  # all kernels on the second initiator


@dataclass
class MemoryTrace:
    """A trace that never was a file."""

    regions: tuple[Region, ...]
    launches: list[tuple[Kernel, Accesses]]
    path: str = "memory"
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def kernel_count(self) -> int:
        return len(self.launches)

    @property
    def access_count(self) -> int:
        return sum(len(accesses.block) for _, accesses in self.launches)

    def kernels(self) -> Iterator[tuple[Kernel, Accesses]]:
        return iter(self.launches)


def flat_region(number: int, rows: int, row_bytes: int, kind: str = "kv") -> Region:
    return Region(number, f"r{number}", kind, 0, "uint8", rows * row_bytes, row_bytes)


def paged_region(number: int, pages: int, padding: int = 0) -> Region:
    page_bytes = 64 * 132 + padding
    return Region(number, f"r{number}", "index", 0, "uint8", pages * page_bytes, 132, 64, 128, page_bytes)


def kernel(number: int = 0, **changes: Any) -> Kernel:
    fields: dict[str, Any] = {
        "id": number, "name": f"k{number}", "family": "f", "layer": 0, "step": 0, "stream": 0,
        "waits_for": (), "blocks": 1, "blocks_per_unit": 1, "tile_rows": 1, "tile_bytes": 4096,
        "tiles_in_flight": 1, "retire": "any",
    }  # fmt: skip
    return Kernel(**(fields | changes))


def columns(accesses: Sequence[Access]) -> Accesses:
    """Accesses as a reader would hand them out."""
    lists = [np.zeros(0, np.int64) if a.gather is None else np.asarray(a.gather, np.int64) for a in accesses]
    starts = np.cumsum([0, *[len(rows) for rows in lists]])[:-1]

    def ints(values: list[int]) -> np.ndarray:
        return np.array(values, np.int64)

    return Accesses(
        block=ints([a.block for a in accesses]),
        block_last=ints([a.block_last for a in accesses]),
        region=ints([a.region for a in accesses]),
        write=np.array([a.write for a in accesses], bool),
        first_row=ints([a.first_row for a in accesses]),
        rows=ints([a.rows for a in accesses]),
        stride=ints([a.stride for a in accesses]),
        spread=ints([SPREADS.index(a.spread) for a in accesses]),
        grain=ints([a.grain for a in accesses]),
        gather_at=ints([-1 if a.gather is None else s for a, s in zip(accesses, starts, strict=True)]),
        gather_rows=np.concatenate([np.zeros(0, np.int64), *lists]).astype(np.int64),
        dependent=np.array([a.dependent for a in accesses], bool),
        worked=np.array([a.worked for a in accesses], bool),
    )


def placed(regions: Sequence[Region], tier: int = 0) -> Memory:
    """All regions whole in one tier."""
    pieces = tuple((Piece(region.rows, ((tier, 1),)),) for region in regions)
    return build_memory(regions, Placement(pieces, (0,)))


def one_kernel(launch: Kernel, region: Region, *accesses: Access) -> MemoryTrace:
    return MemoryTrace((region,), [(launch, columns(accesses))])


# Systems


def with_gpu(system: System, **changes: Any) -> System:
    """A system whose only initiator is changed."""
    (gpu,) = system.initiators
    return replace(system, initiators=(replace(gpu, **changes),))


def with_tier(system: System, number: int, **changes: Any) -> System:
    """A system with one tier changed."""
    tiers = list(system.tiers)
    tiers[number] = replace(tiers[number], **changes)
    return replace(system, tiers=tuple(tiers))


def with_link(system: System, **changes: Any) -> System:
    """A system whose only link is changed, but for its latency: that stands in the hops."""
    (link,) = system.links
    return replace(system, links=(replace(link, **changes),))


def behind(tier: Tier, *links: Link) -> System:
    """HBM beside the initiator, and a tier behind some links, the initiator's first."""
    route = tuple(Hop(number, False, link.latency_ps) for number, link in enumerate(links))
    return System("behind", (GPU,), L2, (HBM, tier), links, (((), route),))


def uncached(system: System) -> System:
    """A system with a second initiator like the first, but without a cache; NO_CACHE sends kernels there."""
    return replace(system, initiators=system.initiators * 2, routes=system.routes * 2)


def drawn_system(random: Random) -> System:
    """Initiators and tiers anywhere in a tree of nodes: where no requests wait for one another in a ring."""
    scale, speed = random.choice(((1, 1), (1, 1000), (1000, 1)))  # of times and of rates
    parents = [random.randrange(node) for node in range(1, random.randint(1, 5))]
    links = tuple(_drawn_link(random, f"link{i}", scale, speed) for i in range(len(parents)))
    turned = [random.random() < 0.4 for _ in parents]  # the child is the link's first node
    switch_ps = [random.choice((0, 0, 3)) * scale for _ in range(len(parents) + 1)]

    def hop(child: int, outward: bool) -> Hop:
        """The link between a child and its parent, crossed from the parent (outward) or from the child."""
        link, leads_to = child - 1, child if outward else parents[child - 1]
        return Hop(link, turned[link] == outward, links[link].latency_ps + switch_ps[leads_to])

    def line(node: int) -> list[int]:
        """A node and those above it, up to the root."""
        return [node, *line(parents[node - 1])] if node else [0]

    def route(begin: int, end: int) -> tuple[Hop, ...]:
        up = [node for node in line(begin) if node not in line(end)]
        down = [node for node in line(end) if node not in line(begin)]
        return (*(hop(node, False) for node in up), *(hop(node, True) for node in reversed(down)))

    tiers = tuple(_drawn_tier(random, name, scale, speed) for name in ("near", "far", "farther"))
    initiators = tuple(_drawn_initiator(random, f"gpu{i}", scale) for i in range(random.randint(1, 3)))
    homes = [random.randrange(len(switch_ps)) for _ in initiators]
    places = [random.randrange(len(switch_ps)) for _ in tiers]
    cache = Cache("l2", 1 << 20, _drawn_pair(random, (1_000_000, 777_777)), random.randint(1, 9) * scale)
    cache = replace(cache, spread_ps=random.choice((0, cache.latency_ps)))
    routes = tuple(tuple(route(home, place) for place in places) for home in homes)
    return System("drawn", initiators, cache, tiers, links, routes)


def _drawn_initiator(random: Random, name: str, scale: int) -> Initiator:
    return Initiator(
        name, random.randint(1, 4), random.choice((64, 1000, 4096, 10**9)), random.choice((32, 128, 4096)),
        random.choice((0, 5, 1_300)) * scale, random.choice((0, 7)) * scale, random.choice((0, 11)) * scale,
        999_983, 3_000_001, 499, random.choice(((0, 0), (0, 0), (50_021, 0), (1_000_000, 46_000))),
        work_latency_ps=random.choice((0, 0, 3)) * scale, turn_ps=random.choice((0, 1, 40)) * scale,
        wake_ps=random.choice((0, 0, 70)) * scale,
        dispatch_ps=random.choice((0, 1, 2 * scale)), posts=random.random() < 0.3,
        outstanding_bytes=random.choice((0, 0, 100, 5_000, 10**9)),
    )  # fmt: skip


def _drawn_pair(random: Random, values: Sequence[int]) -> tuple[int, int]:
    """Two values, half the time the same."""
    value = random.choice(values)
    return value, value if random.random() < 0.5 else random.choice(values)


def _drawn_tier(random: Random, name: str, scale: int, speed: int) -> Tier:
    mbps = _drawn_pair(random, [rate * speed for rate in (1_000_000, 46_000, 99_991)])
    latency_ps = _drawn_pair(random, [n * scale for n in range(1, 10)])
    tails = ((), ((300_000, 5 * scale),), ((500_000, 2), (100_000, 90 * scale)))
    channels = random.choice((1, 2, 3, 8))
    loads = ((), ((0, 5), (300_000, 90 * scale)), ((500_000, 0), (900_000, 11 * scale), (1_000_000, 700)))
    walks = tuple(
        Walk(1 << 20, 4096, random.choice((0, 1, 40 * scale)), random.choice((0, 3, 9 * scale)))
        for _ in range(random.choice((0, 1, 2)))
    )
    return Tier(
        name, 1 << 40, channels, mbps, random.choice((64, 256, 512)),
        random.choice((1, 32, 64)), latency_ps, 1 << 40,
        occupancy_ps=_drawn_pair(random, (0, 0, 900, 7 * scale)), queue_depth=random.choice((0, 0, 1, 2, 5)),
        tail=random.choice(tails), commanded=random.random() < 0.2,
        turnaround_ps=random.choice((0, 0, 1, 50 * scale)),
        write_buffer_bytes=random.choice((0, 0, 700, 1 << 20)),
        loaded=random.choice(loads) if channels == 1 else (), translation=walks,
        spread_ps=random.choice(((0, 0, 0), (0, 0, 0), (1, 0, 0), (latency_ps[0] // 2,) * 3)),
    )  # fmt: skip


def _drawn_link(random: Random, name: str, scale: int, speed: int) -> Link:
    efficiencies = (
        (), (), ((64, 300_000),), ((100, 240_000), (1_000, 480_000), (4_000, 1_000_000)),
        ((50, 900_001), (600, 500_000)),
    )  # fmt: skip
    mbps = _drawn_pair(random, [rate * speed for rate in (1_000_000, 123_457, 40_000)])
    return Link(
        name, mbps, (10**7, 10**7), random.randint(1, 9) * scale,
        random.choice((1, 2, 5, 64)), random.choice((1, 3, 64)), random.choice((32, 64, 256)),
        random.choice((0, 0, 7, 24, 64)), random.random() < 0.3, random.choice(efficiencies),
    )  # fmt: skip


@dataclass
class FixedPlan:
    """The same shares for every access of the first initiator's kernels, in millionths."""

    hit: int = 0
    dirty: int = 0
    walk: int = 0
    walk_again: int = 0

    def shares(self, kernel: Kernel, accesses: Accesses, home: int) -> np.ndarray:
        row = (self.hit, self.dirty, self.walk, self.walk_again)
        return np.tile(np.array(row, np.int64) * (home == 0), (len(accesses.rows), 1))


@dataclass
class DrawnPlan:
    """Shares of each access drawn from a seed and the kernel."""

    seed: int

    def shares(self, kernel: Kernel, accesses: Accesses, home: int) -> np.ndarray:
        random = Random(self.seed * 1000 + kernel.id)
        rows = [[_drawn_share(random) for _ in range(4)] for _ in accesses.rows]
        return np.array(rows, np.int64).reshape(-1, 4)


def _drawn_share(random: Random) -> int:
    return random.choice((0, 0, 1_000_000, 500_000, 333_333, random.randrange(1_000_001)))


def drawn_regions(random: Random) -> tuple[Region, ...]:
    return (
        flat_region(0, 256, random.choice((4, 64, 656, 1152))),
        flat_region(1, 300, random.choice((1, 512, 4096)), "state"),
        paged_region(2, 4, random.choice((0, 60))),
    )


def drawn_memory(random: Random, regions: Sequence[Region], tiers: int) -> Memory:
    return build_memory(regions, Placement(tuple(_drawn_pieces(random, r, tiers) for r in regions), ()))


def _drawn_pieces(random: Random, region: Region, tiers: int) -> tuple[Piece, ...]:
    names = random.sample(range(tiers), random.randint(1, tiers))
    shares = tuple((tier, random.randint(1, 5)) for tier in names)
    whole = Piece(region.rows, shares)
    if random.random() < 0.5:
        return (whole,)
    return (Piece(64 * random.randint(1, 3), ((random.randrange(tiers), 1),)), whole)


def drawn_trace(random: Random, regions: Sequence[Region]) -> MemoryTrace:
    launches = []
    for number in range(random.randint(1, 4)):
        launch = _drawn_kernel(random, number)
        accesses = [_drawn_access(random, launch, regions) for _ in range(random.randint(0, 6))]
        launches.append((launch, columns(accesses)))
    return MemoryTrace(tuple(regions), launches)


def _drawn_kernel(random: Random, number: int) -> Kernel:
    flops = random.choice((0, 0, 3, 50_000))
    return kernel(
        number, family=random.choice("fg"), step=number // 2, stream=random.randrange(2),
        waits_for=tuple(k for k in range(number) if random.random() < 0.4),
        blocks=random.randint(1, 9), blocks_per_unit=random.randint(1, 3),
        tile_rows=random.randint(1, 9), tile_bytes=random.choice((64, 5000)),
        tiles_in_flight=random.randint(1, 4), retire=random.choice(("in_order", "any")),
        flops_per_tile=flops, flops_unit=random.choice(FLOP_UNITS[1:4]) if flops else "none",
        startup_ps=random.choice((0, 1, 5_000)), drain_ps=random.choice((0, 2, 700)),
        tile_ps=random.choice((0, 0, 1, 3_000)),
    )  # fmt: skip


def _drawn_access(random: Random, launch: Kernel, regions: Sequence[Region]) -> Access:
    block = random.randrange(launch.blocks)
    spread = random.choice(SPREADS)
    last = block if spread == "one" else random.randint(block, launch.blocks - 1)
    region = random.choice(regions)
    rows = random.randint(1, 40)
    gather = None
    first, stride = random.randint(0, 100), random.choice((1, 1, 3))
    if random.random() < 0.3:
        gather, first, stride = np.array([random.randrange(region.rows) for _ in range(rows)]), 0, 1
    return Access(
        launch.id, block, last, region.id, spread != "each" and random.random() < 0.4, first, rows, stride,
        spread, random.randint(1, 7), gather, random.random() < 0.3, random.random() < 0.6,
    )  # fmt: skip


def drawn_case(
    random: Random,
) -> tuple[MemoryTrace, System, Memory, int, dict[str, int], int, DrawnPlan | None]:
    """Arguments of run_both."""
    system = drawn_system(random)
    regions = drawn_regions(random)
    memory = drawn_memory(random, regions, len(system.tiers))
    trace = drawn_trace(random, regions)
    sent = random.sample(("f", "g", "k0", "k1", "k2"), random.randint(0, 3))
    run_on = {name: random.randrange(len(system.initiators)) for name in sent}
    quantum_bytes, seed = random.choice((64, 100, 512, 4096)), random.randrange(1 << 40)
    plan = random.choice((None, DrawnPlan(seed)))
    return trace, system, memory, quantum_bytes, run_on, seed, plan


def run_both(
    trace: MemoryTrace,
    system: System,
    memory: Memory,
    quantum_bytes: int = QUANTUM,
    run_on: Mapping[str, int] | None = None,
    seed: int = 0,
    plan: Plan | None = None,
) -> Outcome:
    """The outcome of both engines; AssertionError names the first field in which they differ."""
    options = ReplayOptions(quantum_bytes, run_on or {}, seed)
    quick = fast.run(trace, system, memory, options, plan=plan)
    slow = reference.run(trace, system, memory, options, plan=plan)
    for name, a, b in zip(Outcome._fields, quick, slow, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    return quick


# Closed forms and the replays that are held against them


def transfer_ps(nbytes: int, mbps: int) -> int:
    """Time of a transfer on an idle station, rounded up; of arithmetic too, with FLOPs and 10^6 FLOP/s."""
    return -(-nbytes * 1_000_000 // mbps)


def fullest(lanes: int, channels: int) -> int:
    """How many of the first lanes of a region lie on the channel that has most of them."""
    return int(np.bincount([channel_of_lane(lane, channels) for lane in range(lanes)]).max())


def gathered(rows: Sequence[int], **changes: Any) -> Access:
    """A read of some rows of region 0 by block 0 of kernel 0, one span each."""
    return replace(Access(0, 0, 0, 0, False, 0, len(rows), gather=np.array(rows, np.int64)), **changes)


def replayed(trace: MemoryTrace, system: System, tier: int = 0, **options: Any) -> Outcome:
    """The outcome of both engines with all regions in one tier."""
    return run_both(trace, system, placed(trace.regions, tier), **options)


def elapsed_ps(outcome: Outcome, number: int = 0) -> int:
    """Time of a kernel from start to end."""
    return int(outcome.end_ps[number] - outcome.start_ps[number])


def one_access_ps(system: System, tier: int, row_bytes: int, write: bool = False, **options: Any) -> int:
    """Time of one access to one row on an idle machine."""
    trace = one_kernel(kernel(), flat_region(0, 8, row_bytes), Access(0, 0, 0, 0, write, 0, 1))
    return elapsed_ps(replayed(trace, system, tier, **options))


def same_row_twice(row_bytes: int, write: bool = False) -> MemoryTrace:
    """Two requests for one place, issued at once."""
    launch = kernel(tiles_in_flight=2, tile_bytes=row_bytes)
    return one_kernel(launch, flat_region(0, 8, row_bytes), gathered([0, 0], write=write))


def hundred_rows(row_bytes: int, write: bool = False) -> MemoryTrace:
    """Up to eight rows at once, one request each."""
    rows = Access(0, 0, 0, 0, write, 0, 100, worked=True)
    return one_kernel(kernel(tiles_in_flight=8), flat_region(0, 100, row_bytes), rows)
