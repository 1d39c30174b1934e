"""Address translation in closed form: the share of an access's requests that miss a level of it.

Kernels of the first initiator enter in file order; shares of walks leave. A level covers the pages that were
touched last, as many as its reach holds; a run misses a page once, however many requests it takes. Rows that
come back to a page by chance find it as often as the reach is a part of the pages that they are drawn from.
Left out: pages of what others run, and that the second level sees only what the first one misses.
"""

from __future__ import annotations

import numpy as np

from memsim.plan_touch import Cut, Int64s, Seen, TouchedRanges, view_of
from memsim.plan_walks import add_requests, add_walks
from memsim.rules import ROW_BYTES, Memory
from memsim.system import MILLION, System
from memsim.trace import Accesses, Kernel

LEVELS = 2


class TranslationPlan:
    """The levels of translation of all tiers, as they stand after the kernels so far.

    quantum_bytes  largest request [bytes]
    """

    def __init__(self, system: System, memory: Memory, quantum_bytes: int) -> None:
        self._row_bytes = memory.regions[:, ROW_BYTES]
        self._tiers = [
            _TierPlan(system, memory, number, quantum_bytes)
            for number, tier in enumerate(system.tiers)
            if tier.translation
        ]

    def shares(self, kernel: Kernel, accesses: Accesses, done: Cut) -> Int64s:
        """Of a million requests of each access to tiers with translation, those that walk: int64[n, 2]."""
        walked = np.zeros((len(accesses.block), LEVELS), np.int64)
        requests = np.zeros(len(walked), np.int64)
        tile_bytes = _tile_bytes(kernel, accesses, self._row_bytes) if self._tiers else requests
        for tier in self._tiers:
            tier.add(accesses, done, tile_bytes, requests, walked)
        shares = np.minimum(walked, requests[:, None]) * MILLION // np.maximum(requests, 1)[:, None]
        return np.minimum.accumulate(shares, axis=1)


class _TierPlan:
    """The levels of one tier."""

    def __init__(self, system: System, memory: Memory, number: int, quantum_bytes: int) -> None:
        self._largest = np.array(
            [system.largest_request(0, number, write, quantum_bytes) for write in (False, True)], np.int64
        )
        self._rows = Seen(view_of(memory, {number}))
        self._levels = [
            (walk, TouchedRanges(view_of(memory, {number}, walk.page_bytes), walk.reach_bytes))
            for walk in system.tiers[number].translation
        ]

    def add(
        self, accesses: Accesses, done: Cut, tile_bytes: Int64s, requests: Int64s, walked: Int64s
    ) -> None:
        """Add each access's requests to this tier, int64[n], and its walks of each level, int64[n, 2]."""
        count = self._rows.see(done)
        if count == 0:
            return
        request_bytes = np.minimum(self._largest[accesses.write.astype(np.int64)], tile_bytes)
        add_requests(self._rows.parts, count, request_bytes, requests)
        for level, (walk, touched) in enumerate(self._levels):
            count = touched.touch(done)
            misses = np.zeros(len(requests), np.int64)
            add_walks(touched.seen.parts, count, walk.page_bytes, walk.reach_bytes, misses)
            walked[:, level] += misses


def _tile_bytes(kernel: Kernel, accesses: Accesses, row_bytes: Int64s) -> Int64s:
    """Bytes of a tile of each access, int64[n]."""
    each = row_bytes[accesses.region]
    rows = np.where(accesses.worked, kernel.tile_rows, np.maximum(1, kernel.tile_bytes // each))
    return each * rows
