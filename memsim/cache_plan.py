"""What the last-level cache and address translation do for each access, in closed form from footprints.

Kernels enter in file order, each once; shares of their accesses leave, by which engines draw requests. The
cache is in front of the tiers that the first initiator reaches without a link. It is write-back: a write
fills lines and fetches none, and a tier gets them when others push them out. Its state survives from kernel
to kernel. What others than the first initiator touch leaves it. No line is followed: `plan_stack` keeps
ranges. Left out: sets and ways, sectors of a line, prefetch, and that kernels of two streams mix.
"""

from __future__ import annotations

import numpy as np

from memsim.plan_parts import add_up, rate
from memsim.plan_touch import Int64s, TouchedRanges, cut_kernel, view_of
from memsim.rules import Memory
from memsim.system import System
from memsim.trace import Accesses, Kernel
from memsim.translation_plan import LEVELS, TranslationPlan

# Columns of shares.
HIT_PPM, DIRTY_PPM, WALK1_PPM, WALK2_PPM = range(4)
# What pushes out is told in steps of 0.1%: half of one moves a scan no more than drawing other requests does
# (0.1 to 0.2%), and scans that differ by less are equal, so that they are replayed only once.
DIRTY_STEP_PPM = 1000


class CachePlan:
    """The cache and the levels of translation of a machine, as they stand after the kernels so far.

    quantum_bytes  largest request [bytes]
    """

    def __init__(self, system: System, memory: Memory, quantum_bytes: int) -> None:
        cache = system.cache
        near = {tier for tier, hops in enumerate(system.routes[0]) if not hops}
        self._cached = TouchedRanges(view_of(memory, near), cache.capacity_bytes, cache.copies, cache.ways)
        self._translation = TranslationPlan(system, memory, quantum_bytes)
        self._units = [initiator.units for initiator in system.initiators]

    def shares(self, kernel: Kernel, accesses: Accesses, home: int) -> Int64s:
        """Shares of each access of the next kernel, int64[accesses, 4] [ppm], all 0 where it runs elsewhere.

        home  the initiator that runs it

        HIT_PPM    of a million requests to tiers behind the cache, those whose lines are in it
        DIRTY_PPM  of a million of those whose lines are not, those that push out a dirty one, in whole steps
        WALK1_PPM, WALK2_PPM  of a million requests to tiers with translation, those that miss a level
        """
        shares = np.zeros((len(accesses.block), WALK2_PPM + 1), np.int64)
        done = cut_kernel(kernel, accesses, self._units[home] * kernel.blocks_per_unit)
        count = self._cached.touch(done, by_others=home != 0, by_one=kernel.blocks == 1)
        if home == 0:
            totals = np.zeros((len(shares), 3), np.int64)
            add_up(self._cached.seen.parts, count, totals)
            rate(totals, shares)
            shares[:, DIRTY_PPM] += DIRTY_STEP_PPM // 2
            shares[:, DIRTY_PPM] -= shares[:, DIRTY_PPM] % DIRTY_STEP_PPM
            shares[:, WALK1_PPM : WALK1_PPM + LEVELS] = self._translation.shares(kernel, accesses)
        return shares

    def dirty_bytes(self) -> int:
        """Bytes that kernels have written and no tier has got yet."""
        return self._cached.dirty_bytes()
