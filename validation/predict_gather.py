"""`gather.rows`: scattered rows of the GPU's own memory by an index list (`measure/cuda/gather.cu`).

A thread takes one 16-byte word of the rows, four words at once: a warp asks for the entries of the list that
it needs, then for 2 KiB of rows, and goes on when all of it has come and is added up. The lists of a replay
were written just before it, by another kernel, and hold other rows in each: none comes back soon unless the
region is small. The calls before the one that is predicted are one kernel here, that reads as many bytes of
other rows. Lists of 17 MB and less are found in the L2 behind reads of hundreds of MB, for they were written;
those of 29 MB and more are not. The L2 of a replay keeps what was used last: small lists are read again.

Of rows below 2 KiB a warp takes whole ones here, as many as come nearest to 2 KiB; where that is not quite
2 KiB, there are so many warps that as many bytes are under way as in truth. Longer rows are several pieces.
Left out: that the words of a row may be asked for by two warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_script import Grid, Int64s, Job, Lengths, Move, Script, count
from workloads.grid import even
from workloads.patterns import distinct

WARP_BYTES, WARPS = 2048, 8  # asked for at once by a warp; warps of a block
INDEX_BYTES = 4
RESIDENT = 8  # blocks of 256 threads that a unit holds
LONG_BYTES = 1 << 30  # of rows: more are replayed in shorter lists; with fewer, the last warps count too much
KNOWN_BYTES = 256 << 20  # of a smaller region, earlier replays have read all; no cache holds as much


@dataclass(frozen=True)
class Gather:
    """One kernel: rows of `pieces` x `piece_bytes`; `warps` of them at work, each on `together` pieces."""

    piece_bytes: int
    pieces: int
    warps: int
    together: int

    @property
    def turn_rows(self) -> int:
        """Rows that all the warps take in one turn of their loop."""
        return max(1, self.warps * self.together // self.pieces)

    def grid(self, units: int) -> Grid:
        """All of them at once: the units hold a few more where these take less each."""
        at_once = max(RESIDENT * WARPS, -(-self.warps // units))
        return Grid(self.warps, at_once, self.together * self.piece_bytes, 2, worked_rows=self.together)

    def moves(self, data: int, lists: int, first_entry: int, rows: Int64s) -> Iterator[Move]:
        """Accesses of a call: entries of its list, then the rows that they name, turn by turn."""
        entries = even(0, self.warps - 1, max(1, self.together // self.pieces))
        blocks = even(0, self.warps - 1, self.together)
        for first in range(0, len(rows), self.turn_rows):
            mine = rows[first : first + self.turn_rows]
            whole = (mine[:, None] * self.pieces + np.arange(self.pieces)).ravel()
            yield Move(lists, entries, len(mine), first_entry + first, after=True)
            yield Move(data, blocks, len(whole), after=True, worked=True, gather=whole)


def of_row(row: Row) -> Gather:
    row_bytes = count(row, "row")
    piece = min(row_bytes, WARP_BYTES)
    together = round(WARP_BYTES / piece)
    warps = -(-count(row, "blocks") * WARPS * WARP_BYTES // (together * piece))
    return Gather(piece, row_bytes // piece, warps, together)


def gather(row: Row, system: System) -> Job:
    """`count` distinct rows of `row` bytes out of `region` bytes: the call in the middle of a replay."""
    what, rows, region_bytes = of_row(row), count(row, "count"), count(row, "region")
    units, calls = system.initiators[0].units, count(row, "calls")
    lengths = Lengths.of(rows, what.turn_rows, LONG_BYTES // count(row, "row"))
    script = Script(WARPS)
    data = script.region(region_bytes // what.piece_bytes, what.piece_bytes)
    lists = script.region(rows * calls, INDEX_BYTES, kind="index")
    before = data
    if region_bytes > KNOWN_BYTES:
        nbytes = min(KNOWN_BYTES, calls // 2 * rows * count(row, "row"))
        before = script.region(nbytes // what.piece_bytes, what.piece_bytes)
    _whole(script, lists, units, write=True)
    kernels = [_whole(script, before, units)]
    if before != data and _stay_kept(rows * calls * INDEX_BYTES, system):
        kernels = [_whole(script, lists, units)]
    random = np.random.default_rng(1)
    for call, length in enumerate(lengths.calls, calls // 2):
        drawn = distinct(length, region_bytes // count(row, "row"), random)
        moves = list(what.moves(data, lists, call * rows, drawn))
        kernels.append(script.kernel(what.grid(units), moves))
    return lengths.job(script, kernels)


def _stay_kept(nbytes: int, system: System) -> bool:
    """Whether so many bytes of lists, once written, are still in the cache: what a copy has room for."""
    return nbytes <= system.cache.capacity_bytes // system.cache.copies


def _whole(script: Script, region: int, units: int, write: bool = False) -> int:
    """A kernel that reads or writes all of a region."""
    grid, row_bytes = Grid(units * RESIDENT, RESIDENT, 8192, 2), script.regions[region].row_bytes
    blocks = even(0, grid.blocks - 1, max(1, grid.tile_bytes // row_bytes))
    return script.kernel(grid, [Move(region, blocks, script.regions[region].rows, write=write)])


RECIPES = {"gather.rows": gather}
