"""A trace, version 1: the rows it is made of, their columns, and the arrays a reader hands out.

A trace is one Parquet file of union rows. Column `record` says what a row is: a `region` (a named
allocation), a `kernel` (one launch) or an `access` (rows that blocks of the kernel before it read or
write). Regions come first, every kernel comes before its accesses. `trace_write` makes such a file,
`trace_read` streams it, `trace_check` states and tests its rules. docs/trace.md is the manual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

VERSION = 1

REGION_KINDS = ("weights", "kv", "index", "state", "activation", "output", "exchange")
RETIRE_ORDERS = ("in_order", "any")
FLOP_UNITS = ("none", "bf16", "fp8", "fp32", "fp4")
SPREADS = ("one", "even", "each")  # how an access is spread over its blocks; index = code in `Accesses`
ONE, EVEN, EACH = range(3)  # those codes
MAX_FLOPS = 9 * 10**12  # of a tile: 10^6 times as much still fits 64 bits

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Region:
    """A named allocation.

    bytes           size [bytes]; whole rows, or whole pages where rows are paged
    row_bytes       bytes of one row [bytes]
    page_rows       rows of a page, 0 where rows lie back to back
    page_head_bytes bytes of each row kept in the first array of its page; the rest of the rows follow
                    in a second array (an index page: 64 x 128 B of keys, then 64 x 4 B of scales)
    page_bytes      size of a page with its padding [bytes], 0 where rows are not paged
    layer           model layer, -1 for none
    """

    id: int
    name: str
    kind: str
    layer: int
    dtype: str
    bytes: int
    row_bytes: int
    page_rows: int = 0
    page_head_bytes: int = 0
    page_bytes: int = 0

    @property
    def rows(self) -> int:
        """Rows that the region holds."""
        if self.page_rows:
            return self.bytes // self.page_bytes * self.page_rows
        return self.bytes // self.row_bytes


@dataclass(frozen=True)
class Kernel:
    """One launch: a grid of blocks and how each of them works.

    waits_for       ids of kernels (all smaller) that must have ended
    blocks          thread blocks of the grid
    blocks_per_unit blocks that a unit holds at once (occupancy)
    tile_rows       rows of one tile of a worked access
    tile_bytes      bytes of one tile; accesses that are not worked move in tiles of at most this size
    tiles_in_flight tiles that a block has outstanding at most
    retire          `in_order`: a software pipeline; `any`: tiles retire as they arrive
    flops_per_tile  arithmetic of one tile after padding [FLOP]; flops_unit says on which unit
    startup_ps      from a block's start to its first request [ps]; drain_ps from its last tile to its end
    tile_ps         fixed time of a worked tile beside its arithmetic [ps], one tile of a block after another
    blocks_sharing  consecutive blocks that read the same rows (1: none)
    partial_region  region of partial results, -1 for none; partial_bytes of one split [bytes]
    partial_serial  the reduction walks the splits one after another
    tile_rule       name of the rule that cut the work into blocks and tiles
    """

    id: int
    name: str
    family: str
    layer: int
    step: int
    stream: int
    waits_for: tuple[int, ...]
    blocks: int
    blocks_per_unit: int
    tile_rows: int
    tile_bytes: int
    tiles_in_flight: int
    retire: str = "in_order"
    flops_per_tile: int = 0
    flops_unit: str = "none"
    startup_ps: int = 0
    drain_ps: int = 0
    tile_ps: int = 0
    blocks_sharing: int = 1
    partial_region: int = -1
    partial_bytes: int = 0
    partial_serial: bool = False
    tile_rule: str = ""


@dataclass(frozen=True)
class Access:
    """Rows of one region that blocks `block`..`block_last` of a kernel read or write, in order.

    spread     `one`: one block; `even`: grains of `grain` rows dealt to the blocks as equal runs, the
               first blocks get one grain more; `each`: every block reads all the rows
    first_row, rows, stride   rows first_row, first_row + stride, ...
    gather     the rows themselves (int64[n]), in order; first_row, stride are then 0, 1 and rows = n
    dependent  waits until all that its block asked for before has arrived and been worked
    worked     its tiles carry the kernel's arithmetic
    """

    kernel: int
    block: int
    block_last: int
    region: int
    write: bool
    first_row: int
    rows: int
    stride: int = 1
    spread: str = "one"
    grain: int = 1
    gather: Int64s | None = None
    dependent: bool = False
    worked: bool = False


class Accesses(NamedTuple):
    """The accesses of one kernel as a reader hands them out: parallel arrays, in file order.

    block, block_last, region, first_row, rows, stride, grain : int64[n]
    spread : int64[n]   index into SPREADS
    write, dependent, worked : bool[n]
    gather_at : int64[n]  first element of the row list in `gather_rows`, -1 for an extent
    gather_rows : int64[m]
    """

    block: Int64s
    block_last: Int64s
    region: Int64s
    write: npt.NDArray[np.bool_]
    first_row: Int64s
    rows: Int64s
    stride: Int64s
    spread: Int64s
    grain: Int64s
    gather_at: Int64s
    gather_rows: Int64s
    dependent: npt.NDArray[np.bool_]
    worked: npt.NDArray[np.bool_]


class Trace(Protocol):
    """What a replay needs of a trace, whether it lies in a file or not."""

    @property
    def regions(self) -> tuple[Region, ...]:
        """Index = id."""

    @property
    def kernel_count(self) -> int:
        """Kernels that `kernels` hands out."""

    def kernels(self) -> Iterator[tuple[Kernel, Accesses]]:
        """Every kernel with its accesses, in launch order."""
