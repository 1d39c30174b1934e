"""What tests of the cache in closed form share: a cache of ROWS rows, and accesses to what is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from engine_cases import ONE_TIER, columns, flat_region, kernel, placed

from memsim.cache_plan import CachePlan
from memsim.system import Cache, System
from memsim.trace import Access, Int64s

MILLION = 1_000_000
ROW = 64
ROWS = 16_384  # that the cache holds
CAPACITY = ROWS * ROW
FINE = MILLION // 100  # what the thickness of layers may do to a share


class Machine:
    """A cache of ROWS rows, and regions of 64-byte rows behind it."""

    def __init__(
        self,
        rows: Sequence[int] = (8 * ROWS, 8 * ROWS),
        capacity: int = CAPACITY,
        copies: int = 1,
        ways: int = 0,
        base: System = ONE_TIER,
        tier: int = 0,
    ) -> None:
        self.system = replace(base, cache=Cache("l2", capacity, (10**7, 10**7), 1, copies, ways))
        self.regions = [flat_region(i, n, ROW) for i, n in enumerate(rows)]
        self.plan = CachePlan(self.system, placed(self.regions, tier), 4096)
        self.kernels = 0

    def run(self, *accesses: Access, home: int = 0, **launch: int) -> Int64s:
        self.kernels += 1
        return self.plan.shares(kernel(self.kernels, **launch), columns(accesses), home)


def read(first: int, rows: int, region: int = 0, write: bool = False, **more: object) -> Access:
    return Access(0, 0, 0, region, write, first, rows, **more)  # type: ignore[arg-type]


def write(first: int, rows: int, region: int = 0) -> Access:
    return read(first, rows, region, write=True)


def gather(rows: Sequence[int] | Int64s, region: int = 0) -> Access:
    return read(0, len(rows), region, gather=np.array(rows))


def spread(blocks: int, rows: int, is_write: bool = False) -> Access:
    return Access(0, 0, blocks - 1, 0, is_write, 0, rows, spread="even")
