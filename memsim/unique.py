"""Unique bytes: how many bytes of each region a kernel touches, each row counted once.

Enters: the accesses of one kernel. Leaves: bytes read and bytes written by region. Left out: what blocks
ask for again, and what a tier rounds up. Rows stay runs all the way, so a dense scan of millions of rows
costs no more than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

import numpy as np

from memsim.trace import Accesses, Int64s, Kernel, Region

MAX_LANES = 2**31  # of a common multiple: numbers of rows in their lanes still fit 64 bits


class Runs(NamedTuple):
    """Rows first, first + stride, ... of a group (2 x region + write): int64[n] each."""

    group: Int64s
    first: Int64s
    rows: Int64s
    stride: Int64s


def unique_bytes(
    kernel: Kernel, accesses: Accesses, regions: Sequence[Region]
) -> tuple[dict[int, int], dict[int, int]]:
    """Unique bytes that `kernel` reads and writes [bytes], by region id; only regions that it touches.

    regions  all of the trace, index = id. The grid of the kernel does not matter: however an access is
    spread over blocks, one of them at least touches every row of it.
    """
    touched: tuple[dict[int, int], dict[int, int]] = ({}, {})
    runs = _runs(accesses)
    if len(runs.group):
        for group, rows in zip(*_count_rows(_unstrided(runs)), strict=True):
            touched[group % 2][group // 2] = rows * regions[group // 2].row_bytes
    return touched


def _runs(accesses: Accesses) -> Runs:
    """All accesses as runs, gathered rows as runs of one."""
    group = accesses.region * 2 + accesses.write
    stride = np.where(accesses.rows == 1, 1, accesses.stride)
    listed = np.flatnonzero(accesses.gather_at >= 0)
    if not len(listed):
        return Runs(group, accesses.first_row, accesses.rows, stride)
    counts = accesses.rows[listed]
    points = accesses.gather_rows[np.repeat(accesses.gather_at[listed], counts) + _counting(counts)]
    extents = np.flatnonzero(accesses.gather_at < 0)
    ones = np.ones(len(points), np.int64)
    return Runs(
        np.concatenate((group[extents], np.repeat(group[listed], counts))),
        np.concatenate((accesses.first_row[extents], points)),
        np.concatenate((accesses.rows[extents], ones)),
        np.concatenate((stride[extents], ones)),
    )


def _counting(counts: Int64s) -> Int64s:
    """0..counts[0]-1, 0..counts[1]-1, ... in one array."""
    ends = np.cumsum(counts)
    numbers: Int64s = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    return numbers


def _unstrided(runs: Runs) -> Runs:
    """Runs of stride 1 that meet where `runs` do: rows of strided groups are renumbered."""
    strided = np.unique(runs.group[runs.stride > 1])
    if not len(strided):
        return runs
    plain = ~np.isin(runs.group, strided)
    parts = [Runs(*(column[plain] for column in runs))]
    for group in strided:
        mine = runs.group == group
        parts.append(_lanes(Runs(*(column[mine] for column in runs))))
    return Runs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _lanes(runs: Runs) -> Runs:
    """The runs of one group, its rows renumbered lane by lane, so that those of a stride lie together.

    Row r goes to lane r mod stride. A run of stride s becomes stride / s runs where s divides it, and
    single rows where not; of the strides in use and their least common multiple, the one that makes the
    fewest runs is taken.
    """
    strides = np.unique(runs.stride).tolist()
    common = lcm(*strides)
    bases = strides if common > MAX_LANES else [*strides, common]
    pieces, stride = min(((_pieces(runs, base), base) for base in bases), key=lambda choice: choice[0].sum())
    number = _counting(pieces)
    first = np.repeat(runs.first, pieces) + number * np.repeat(runs.stride, pieces)
    each = np.repeat(pieces, pieces)
    rows = (np.repeat(runs.rows, pieces) - number + each - 1) // each
    lane_rows = first.max() // stride + rows.max()
    ones = np.ones(len(first), np.int64)
    return Runs(np.repeat(runs.group, pieces), first % stride * lane_rows + first // stride, rows, ones)


def _pieces(runs: Runs, base: int) -> Int64s:
    """Into how many runs each run falls in lanes of stride `base`."""
    pieces: Int64s = np.where(base % runs.stride == 0, np.minimum(base // runs.stride, runs.rows), runs.rows)
    return pieces


def _count_rows(runs: Runs) -> tuple[list[int], list[int]]:
    """The groups of runs of stride 1, and how many rows the union of each group's runs has."""
    named = np.zeros(int(runs.group.max()) + 1, np.bool_)
    named[runs.group] = True
    groups, index = np.flatnonzero(named), (np.cumsum(named) - 1)[runs.group]
    length = np.zeros(len(groups), np.int64)
    np.maximum.at(length, index, runs.first + runs.rows)
    first = runs.first + (np.cumsum(length) - length)[index]  # all groups on one line, one after another
    order = np.argsort(first, kind="stable")
    first, last = first[order], first[order] + runs.rows[order]
    reached = np.concatenate(([0], np.maximum.accumulate(last)[:-1]))
    fresh = np.maximum(last - np.maximum(first, reached), 0)
    begins = np.searchsorted(index[order], np.arange(len(groups)))
    return groups.tolist(), np.add.reduceat(fresh, begins).tolist()
