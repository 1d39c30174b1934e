"""Address translation in closed form: the share of an access's requests that miss a level of it.

Kernels enter in file order; shares of walks leave. A level covers `reach` bytes of what lies in its tier. All
of that, over all regions, is taken to come round between two touches of a page, as it does from step to step:
so a page is found as often as the reach is a part of it. Rows far apart meet a page each, a run meets one
after as many requests as a page has. Left out: that selections may come back to pages of their own sooner,
and the first touch of all.
"""

from __future__ import annotations

import numpy as np

from memsim.rules import END_ROW, PIECE_AT, ROW_BYTES, SHARE_AT, TIER, WEIGHT, Memory
from memsim.system import MILLION, System, Walk
from memsim.trace import Accesses, Kernel

LEVELS = 2

Int64s = np.ndarray


class TranslationPlan:
    """The levels of translation of all tiers, as the first initiator sees them.

    quantum_bytes  largest request [bytes]
    """

    def __init__(self, system: System, memory: Memory, quantum_bytes: int) -> None:
        self._row_bytes = memory.regions[:, ROW_BYTES]
        self._tiers = [
            _Tier(
                np.array([system.largest_request(0, number, way, quantum_bytes) for way in (False, True)]),
                tier.translation,
                tier_bytes(memory, number),
            )
            for number, tier in enumerate(system.tiers)
            if tier.translation
        ]

    def shares(self, kernel: Kernel, accesses: Accesses) -> Int64s:
        """Of a million requests of each access, those that miss each level, int64[n, 2].

        Where rows of a region lie in several tiers with translation, all count as those of the first.
        """
        walked = np.zeros((len(accesses.block), LEVELS), np.int64)
        for tier in reversed(self._tiers):
            here = tier.region_bytes[accesses.region] > 0
            if here.any():
                walked[here] = tier.walks(kernel, accesses, self._row_bytes)[here]
        np.minimum(walked[:, 0], walked[:, 1], out=walked[:, 1])
        return walked


class _Tier:
    """One tier: the largest read and write, its levels, what of each region lies in it [bytes]."""

    def __init__(self, largest: Int64s, levels: tuple[Walk, ...], region_bytes: Int64s) -> None:
        self.largest, self.levels, self.region_bytes = largest, levels, region_bytes

    def walks(self, kernel: Kernel, accesses: Accesses, row_bytes: Int64s) -> Int64s:
        """As `TranslationPlan.shares`, as if all rows were here."""
        whole = int(self.region_bytes.sum())
        each = row_bytes[accesses.region]
        apart = (accesses.gather_at >= 0) | (accesses.stride != 1)
        rows = np.where(accesses.worked, kernel.tile_rows, np.maximum(1, kernel.tile_bytes // each))
        span = each * np.where(apart, 1, np.minimum(rows, np.maximum(accesses.rows, 1)))
        request = np.minimum(self.largest[accesses.write.astype(np.int64)], span)
        walked = np.zeros((len(each), LEVELS), np.int64)
        for level, walk in enumerate(self.levels):
            missed = MILLION - min(whole, walk.reach_bytes) * MILLION // max(1, whole)
            # a row of its own begins on a page that was not the last one; a run's requests share pages
            pages = np.where(apart, np.maximum(request, walk.page_bytes), request)
            walked[:, level] = np.minimum(pages, walk.page_bytes) * missed // walk.page_bytes
        return walked


def tier_bytes(memory: Memory, tier: int) -> Int64s:
    """Bytes of each region that lie in a tier, int64[regions]."""
    found = np.zeros(len(memory.regions) - 1, np.int64)
    for region in range(len(found)):
        begin = 0
        for piece in range(memory.regions[region, PIECE_AT], memory.regions[region + 1, PIECE_AT]):
            shares = memory.shares[memory.pieces[piece, SHARE_AT] : memory.pieces[piece + 1, SHARE_AT]]
            rows = int(memory.pieces[piece, END_ROW]) - begin
            weight = int(shares[shares[:, TIER] == tier, WEIGHT].sum())
            found[region] += rows * weight // int(shares[:, WEIGHT].sum())
            begin = int(memory.pieces[piece, END_ROW])
    each: Int64s = found * memory.regions[:-1, ROW_BYTES]
    return each
