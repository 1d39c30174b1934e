"""Small systems and traces for the engines, drawn from any `random.Random`.

Numbers are drawn small and mostly round on purpose: services of a few picoseconds make many events meet
in one instant, which is where two engines would come apart. Rates of arithmetic are not round, so that
divisions leave remainders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from memsim import fast, reference
from memsim.placement import Piece, Placement, build_memory
from memsim.result import Outcome
from memsim.rules import Memory
from memsim.system import Cache, Initiator, Link, System, Tier
from memsim.trace import FLOP_UNITS, SPREADS, Access, Accesses, Kernel, Region

GPU = Initiator("gpu", 4, 65_536, 1_300_000, 10_000_000, 7_490_000, 14_990_000, 500_000)
L2 = Cache("l2", 50_000_000, 10_000_000, 254_000)
HBM = Tier("hbm", 10**12, 8, 46_000, 512, 32, 345_000, 400_000)
HOST = Tier("host", 10**12, 4, 30_000, 256, 64, 111_000, 150_000)
PCIE = Link("pcie", 55_000, 63_000, 545_000, 768, 128)
ONE_TIER = System("one-tier", GPU, L2, (HBM,), (), ((),))
TWO_TIERS = System("two-tiers", GPU, L2, (HBM, HOST), (PCIE,), ((), (0,)))
QUANTUM = 4096


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


def drawn_system(random: Random) -> System:
    """Tiers: one at the initiator, one behind a link, one behind two."""
    scale = random.choice((1, 1000))
    initiator = Initiator(
        "gpu", random.randint(1, 4), random.choice((64, 1000, 4096, 10**9)),
        random.choice((0, 5, 1_300)) * scale, random.choice((0, 7)) * scale, 999_983, 3_000_001, 499,
    )  # fmt: skip
    cache = Cache("l2", 1 << 20, random.choice((1_000_000, 777_777)), random.randint(1, 9) * scale)
    tiers = tuple(_drawn_tier(random, name, scale) for name in ("near", "far", "farther"))
    links = tuple(
        Link(
            f"link{i}", random.choice((1_000_000, 123_457)), 10**7, random.randint(1, 9) * scale,
            random.choice((1, 2, 5, 64)), random.choice((1, 32, 128)),
        )
        for i in range(2)
    )  # fmt: skip
    return System("drawn", initiator, cache, tiers, links, ((), (0,), (0, 1)))


def _drawn_tier(random: Random, name: str, scale: int) -> Tier:
    interleave = random.choice((64, 256, 512))
    return Tier(
        name, 1 << 40, random.choice((1, 2, 3, 8)), random.choice((1_000_000, 46_000, 99_991)), interleave,
        random.choice((1, 32, 64)), random.randint(1, 9) * scale, 1 << 40,
    )  # fmt: skip


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
        number, step=number // 2, stream=random.randrange(2),
        waits_for=tuple(k for k in range(number) if random.random() < 0.4),
        blocks=random.randint(1, 9), blocks_per_unit=random.randint(1, 3),
        tile_rows=random.randint(1, 9), tile_bytes=random.choice((64, 5000)),
        tiles_in_flight=random.randint(1, 4), retire=random.choice(("in_order", "any")),
        flops_per_tile=flops, flops_unit=random.choice(FLOP_UNITS[1:]) if flops else "none",
        startup_ps=random.choice((0, 1, 5_000)), drain_ps=random.choice((0, 2, 700)),
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


def drawn_case(random: Random) -> tuple[MemoryTrace, System, Memory, int]:
    system = drawn_system(random)
    regions = drawn_regions(random)
    memory = drawn_memory(random, regions, len(system.tiers))
    return drawn_trace(random, regions), system, memory, random.choice((64, 100, 512, 4096))


def run_both(trace: MemoryTrace, system: System, memory: Memory, quantum_bytes: int) -> Outcome:
    """The outcome of both engines; AssertionError names the first field in which they differ."""
    quick = fast.run(trace, system, memory, quantum_bytes)
    slow = reference.run(trace, system, memory, quantum_bytes)
    for name, a, b in zip(Outcome._fields, quick, slow, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    return quick


# Closed forms and the replays that are held against them


def transfer_ps(nbytes: int, mbps: int) -> int:
    """Time of a transfer on an idle station, rounded up; of arithmetic too, with FLOPs and 10^6 FLOP/s."""
    return -(-nbytes * 1_000_000 // mbps)


def gathered(rows: Sequence[int], **changes: Any) -> Access:
    """A read of some rows of region 0 by block 0 of kernel 0, one span each."""
    return replace(Access(0, 0, 0, 0, False, 0, len(rows), gather=np.array(rows, np.int64)), **changes)


def replayed(trace: MemoryTrace, system: System, tier: int = 0) -> Outcome:
    """The outcome of both engines with all regions in one tier."""
    return run_both(trace, system, placed(trace.regions, tier), QUANTUM)


def elapsed_ps(outcome: Outcome, number: int = 0) -> int:
    """Time of a kernel from start to end."""
    return int(outcome.end_ps[number] - outcome.start_ps[number])


def one_access_ps(system: System, tier: int, row_bytes: int, write: bool = False) -> int:
    """Time of one access to one row on an idle machine."""
    trace = one_kernel(kernel(), flat_region(0, 8, row_bytes), Access(0, 0, 0, 0, write, 0, 1))
    return elapsed_ps(replayed(trace, system, tier))
