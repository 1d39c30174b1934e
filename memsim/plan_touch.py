"""Kernels touch an LRU stack of ranges: the cut of a kernel, what a tier sees of it, and the stack's memory.

Python around compiled functions: `plan_parts` cuts and sees, `plan_runs` arranges, `plan_keep` touches;
here are their arrays, made larger where they must be.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from memsim.plan_keep import touch
from memsim.plan_parts import CUT_COLUMNS, PART_COLUMNS, STRIDED, View, cut, see
from memsim.plan_runs import arrange
from memsim.plan_stack import (
    E_COLUMNS,
    LAYERS,
    LAYERS_OF_CAPACITY,
    LISTS,
    RUN_COLUMNS,
    S_BY_ONE,
    T_COLUMNS,
    Stack,
    Touched,
    held_bytes,
)  # fmt: skip
from memsim.rules import END_ROW, PIECE_AT, ROW_BYTES, SHARE_AT, TIER, WEIGHT, Memory
from memsim.trace import EVEN, Accesses, Kernel

_DEEPEST = 1 << 30  # a capacity in 2^shift bytes at most: products of distances stay inside int64
_STEPS = 256  # of the capacity, at which `kept` is known
_CAPACITIES = 3.5  # at such a distance nothing is kept (of one way 3%, of eight a hundred-thousandth)

Int64s = np.ndarray


class Cut(NamedTuple):
    """A kernel in time.

    accesses  int64[n, 10], see plan_parts;  parts  int64[parts_count or more, 4], what blocks do at once
    most      parts that a view makes of them for each of its pieces, at most
    listed    int64[m], its row lists
    """

    accesses: Int64s
    parts: Int64s
    parts_count: int
    most: int
    listed: Int64s


def cut_kernel(kernel: Kernel, accesses: Accesses, resident: int) -> Cut:
    """The parts of a kernel of which `resident` blocks run side by side."""
    columns = (
        accesses.block, accesses.block_last, accesses.region, accesses.write, accesses.first_row,
        accesses.rows, accesses.stride, accesses.spread, accesses.grain, accesses.gather_at,
    )  # fmt: skip
    table = np.empty((len(accesses.block), len(columns)), np.int64)
    for i, column in enumerate(columns):
        table[:, i] = column
    even = accesses.spread == EVEN
    waves = int((accesses.block_last[even] // resident - accesses.block[even] // resident).sum())
    parts = np.empty((len(table) + waves, CUT_COLUMNS), np.int64)
    count = cut(table, resident, np.zeros(kernel.blocks, np.int64), parts)
    strided = accesses.rows[(accesses.stride > 1) & (accesses.rows <= STRIDED)]
    return Cut(table, parts, count, count + int(strided.sum()), np.array(accesses.gather_rows, np.int64))


def view_of(memory: Memory, tiers: Set[int], page_bytes: int = 0) -> View:
    """The rows of all regions that lie in some tiers, counted in pages, or in rows where `page_bytes` is 0.

    A row that is longer than a page counts as one. Rows of a piece that is dealt to several tiers lie back to
    back in each.
    """
    pieces, piece_at = [], [0]
    for region in range(len(memory.regions) - 1):
        row_bytes = int(memory.regions[region, ROW_BYTES])
        unit = max(page_bytes, row_bytes) if page_bytes else 0
        begin = base = 0
        for piece in range(memory.regions[region, PIECE_AT], memory.regions[region + 1, PIECE_AT]):
            end = int(memory.pieces[piece, END_ROW])
            shares = memory.shares[memory.pieces[piece, SHARE_AT] : memory.pieces[piece + 1, SHARE_AT]]
            weight = sum(int(share[WEIGHT]) for share in shares if share[TIER] in tiers)
            total = int(shares[:, WEIGHT].sum())
            if weight:
                pieces.append((begin, end, row_bytes, weight, total, base, unit))
                base += (end - begin) * row_bytes // unit + 1 if unit else 0
            begin = end
        piece_at.append(len(pieces))
    return View(np.array(piece_at, np.int64), np.array(pieces, np.int64).reshape(-1, 7))


class Seen:
    """What a view shows of one kernel after the other.

    parts  of the last one, int64[count or more, 15] (see plan_parts); rows  int64[m], units of its row lists
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._most_pieces = int(np.diff(view.piece_at).max(initial=0))
        self.parts = np.zeros((0, PART_COLUMNS), np.int64)
        self.rows = np.zeros(0, np.int64)
        self.count = 0

    def see(self, done: Cut) -> int:
        """Look at a kernel; returns how many parts it has."""
        most = done.most * self._most_pieces
        if len(self.parts) < most:
            self.parts = np.zeros((2 * most, PART_COLUMNS), np.int64)
        self.rows = np.empty(len(done.listed), np.int64)
        self.count = int(
            see(self._view, done.accesses, done.parts, done.parts_count, done.listed, self.rows, self.parts)
        )
        return self.count


class TouchedRanges:
    """An LRU stack over the units of a view, and what a kernel touches of it.

    capacity_bytes, copies, ways   as in `system.Cache`
    """

    def __init__(self, view: View, capacity_bytes: int, copies: int = 1, ways: int = 0) -> None:
        self.seen = Seen(view)
        shift = max(0, (capacity_bytes // _DEEPEST).bit_length())
        layer = -(-capacity_bytes // LAYERS_OF_CAPACITY)
        kept, step = kept_bytes(capacity_bytes >> shift, ways)
        sizes = [0, 0, 0, -1, 0, 0, step, 0, copies, layer, shift, 0, 0]
        self._stack = Stack(
            sizes=np.array(sizes, np.int64),
            ranges=np.zeros((0, E_COLUMNS), np.int64),
            spare=np.zeros((0, E_COLUMNS), np.int64),
            lists=np.zeros((LISTS, E_COLUMNS), np.int64),
            layers=np.zeros((LAYERS, 8), np.int64),
            takes=np.zeros((256, T_COLUMNS), np.int64),
            kept=kept,
        )
        self._marks = np.zeros((2, 2), np.int64)

    def touch(self, done: Cut, by_others: bool = False, by_one: bool = False) -> int:
        """Touch what a kernel does, or take it out; returns how many of `seen.parts` that were.

        by_one  one block does all of it: what it reads is kept once
        """
        count = self.seen.see(done)
        if count == 0:
            return 0
        self._make_room(count, len(self.seen.rows))
        touched = Touched(
            parts=self.seen.parts,
            order=np.empty(count, np.int64),
            aside=np.empty(count, np.int64),
            runs=np.empty((count, RUN_COLUMNS), np.int64),
            rows=self.seen.rows,
            seen=self._marks,
        )
        self._stack.sizes[S_BY_ONE] = by_one
        arrange(self._stack, touched, count)
        begin = 0
        while (begin := touch(self._stack, touched, count, begin, int(by_others))) < count:
            self._stack = self._stack._replace(takes=_longer(self._stack.takes, 2 * len(self._stack.takes)))
        return count

    def dirty_bytes(self) -> int:
        """Bytes written that no tier has got yet."""
        return int(held_bytes(self._stack))

    def _make_room(self, parts: int, rows: int) -> None:
        """Room for what a touch of some parts may leave: every run may also cut a range in two."""
        most = int(self._stack.sizes[0]) + 2 * parts + 2
        if len(self._stack.ranges) < most:
            longer = _longer(self._stack.ranges, 2 * most)
            self._stack = self._stack._replace(ranges=longer, spare=np.zeros_like(longer))
        if len(self._marks) < 2 * rows:
            self._marks = np.zeros((1 << (2 * rows).bit_length(), 2), np.int64)


def kept_bytes(capacity: int, ways: int) -> tuple[Int64s, int]:
    """What is kept between the top of the stack and depths 0, 1, 2, ... steps, and the step.

    A line is found as long as fewer than `ways` others have come to its set since: of lines that fall to sets
    as dice would have it, D / C x ways come there on the mean at distance D of capacity C, in the numbers of
    a Poisson distribution (Hill and Smith, Evaluating associativity in CPU caches, 1989). No ways: one set.
    """
    if not ways:
        return np.array([0, capacity], np.int64), max(1, capacity)
    step = max(1, capacity // _STEPS)
    means = np.arange(int(_CAPACITIES * capacity / step) + 1) * (step * ways / capacity)
    term = np.exp(-means)
    found = term.copy()
    for others in range(1, ways):
        term = term * means / others
        found += term
    kept = np.concatenate([[0.0], np.cumsum((found[1:] + found[:-1]) / 2) * step])
    return np.floor(kept + 0.5).astype(np.int64), step


def _longer(table: Int64s, rows: int) -> Int64s:
    longer = np.zeros((rows, table.shape[1]), np.int64)
    longer[: len(table)] = table
    return longer
