"""Which segments replay alike: a fingerprint of all that a replay rests on, and of nothing else.

A segment enters as it stands in the trace, before blocks are dealt out, with what the plan says of its
accesses; a digest leaves. Names, numbers and layers are left out, and regions are numbered afresh, so that
the layers of a step are alike wherever their rows lie alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from memsim.rules import PIECE_AT, SHARE_AT, Memory
from memsim.segments import Segment
from memsim.trace import Kernel

Int64s = npt.NDArray[np.int64]

# What a kernel's program does not hold: the rest of its row counts, known to this file or not.
_ONLY_NAMES = ("id", "name", "family", "layer", "step", "stream", "waits_for", "partial_region", "tile_rule")
_facts = attrgetter(*(field.name for field in fields(Kernel) if field.name not in _ONLY_NAMES))


def fingerprint(
    segment: Segment,
    homes: Sequence[int],
    shares: Sequence[Int64s],
    regions: Int64s,
    local: Memory,
    numbered: bool,
) -> bytes:
    """Equal for segments that replay alike on one machine.

    homes     the initiator that runs each kernel;  shares  what the plan says of the accesses of each
    regions   int64[n], ids of the regions in use;  local   the memory, these regions numbered from 0
    numbered  whether requests are drawn by the number of their kernel
    """
    digest = hashlib.sha256()  # processors have instructions for it
    kernels = [(_facts(kernel), kernel.id if numbered else 0) for kernel, _ in segment.launches]
    digest.update(repr((kernels, segment.waits, segment.new_step, segment.handed, list(homes))).encode())
    for table in local:
        _add(digest, table)
    for _, accesses in segment.launches:
        _add(digest, np.searchsorted(regions, accesses.region) if len(regions) > 1 else accesses.region[:0])
        for column in accesses._replace(region=accesses.region[:0]):
            _add(digest, column)
    for found in shares:
        for column in np.ascontiguousarray(found.T):
            _add(digest, column)
    return digest.digest()


def _add(digest: Any, array: npt.NDArray[Any]) -> None:
    """An array, one that holds a single value as this value."""
    values = np.ascontiguousarray(array).reshape(-1)
    one = len(values) > 1 and values[0] == values[-1] and bool((values == values[0]).all())
    digest.update(repr((array.shape, array.dtype.char, one)).encode())
    digest.update(values[:1] if one else values)


def regions_of(parts: Sequence[Int64s], count: int) -> Int64s:
    """Ids of the regions that some accesses name, in order. count: regions of the trace."""
    named = np.zeros(count, np.bool_)
    for regions in parts:
        named[regions] = True
    return np.flatnonzero(named)


def local_memory(memory: Memory, regions: Int64s) -> Memory:
    """The memory of some regions alone, numbered from 0."""
    pieces, piece_at = _pick(memory.regions[:, PIECE_AT], regions)
    shares, share_at = _pick(memory.pieces[:, SHARE_AT], pieces)
    return Memory(
        regions=_with_offsets(memory.regions[regions], PIECE_AT, piece_at),
        pieces=_with_offsets(memory.pieces[pieces], SHARE_AT, share_at),
        shares=memory.shares[shares],
    )


def _with_offsets(rows: Int64s, column: int, offsets: Int64s) -> Int64s:
    """Rows of a table with new offsets in a column, and the row that ends it."""
    table = np.vstack([rows, np.zeros((1, rows.shape[1]), np.int64)])
    table[:, column] = offsets
    return table


def _pick(offsets: Int64s, owners: Int64s) -> tuple[Int64s, Int64s]:
    """Items of some owners in a list grouped by owner, and the offsets of the list that they make."""
    counts = offsets[owners + 1] - offsets[owners]
    ends = np.cumsum(counts)
    items = np.arange(counts.sum()) + np.repeat(offsets[owners] - (ends - counts), counts)
    return items.astype(np.int64), np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int64)
