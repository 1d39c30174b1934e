"""What a replay keeps of its slowest kernels: enough to replay them again without a second look at the trace.

Segments enter as they end, with their times and what the plan said of them; of each family the slowest stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memsim.program import Plan, Planned
from memsim.segments import Segment
from memsim.trace import Accesses, Kernel

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Slowest:
    """A family's slowest kernel so far: its time and id, its segment, and shares of all kernels in there."""

    time_ps: int
    kernel: int
    segment: Segment
    shares: Mapping[int, Int64s]


class Longest:
    """A plan that remembers what it said of a segment until that has ended, of the slowest ones for good."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shares: dict[int, Int64s] = {}
        self._slowest: dict[str, _Slowest] = {}

    def shares(self, kernel: Kernel, accesses: Accesses, home: int) -> Int64s:
        """What the plan says of the next kernel."""
        self._shares[kernel.id] = self._plan.shares(kernel, accesses, home)
        return self._shares[kernel.id]

    def ended(self, segment: Segment, times_ps: Int64s) -> None:
        """Take note of a segment: times_ps int64[kernels], with launch gaps; of equal ones the last stays."""
        for (kernel, _), time_ps in zip(segment.launches, times_ps.tolist(), strict=True):
            known = self._slowest.get(kernel.family)
            if known is None or time_ps >= known.time_ps:
                self._slowest[kernel.family] = _Slowest(time_ps, kernel.id, segment, self._shares)
        self._shares = {}

    def of(self, wanted: Mapping[str, int]) -> tuple[list[Segment], Plan] | None:
        """The segments of some families' slowest kernels (by id) and their plan; None if one was not kept."""
        kept = [self._slowest.get(family) for family in wanted]
        found: dict[int, Segment] = {}
        shares: dict[int, Int64s] = {}
        for each, kernel in zip(kept, wanted.values(), strict=True):
            if each is None or each.kernel != kernel:
                return None
            found[each.segment.launches[0][0].id] = each.segment
            shares |= each.shares
        return [found[first] for first in sorted(found)], Planned(shares)
