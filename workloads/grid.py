"""How a kernel says who reads what: its launch shape, the blocks of an access, the pages of a region.

Plain values that `record` turns into the rows of a trace. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Page(NamedTuple):
    """A page of a region: `rows` heads of `head_bytes` one after another, then the rows' tails."""

    rows: int
    head_bytes: int
    bytes: int


class Blocks(NamedTuple):
    """The thread blocks that do an access, and how its rows are spread over them."""

    first: int
    last: int
    spread: str = "one"
    grain: int = 1

    def shifted(self, by: int) -> Blocks:
        """The same for blocks `by` later."""
        return self._replace(first=self.first + by, last=self.last + by)


def one(block: int) -> Blocks:
    """All rows by one block."""
    return Blocks(block, block)


def each(first: int, last: int) -> Blocks:
    """All rows by each of the blocks first..last."""
    return Blocks(first, last, "each") if last > first else one(first)


def even(first: int, last: int, grain: int) -> Blocks:
    """Rows dealt to the blocks first..last as equal runs of whole grains of `grain` rows."""
    return Blocks(first, last, "even", grain) if last > first else one(first)


@dataclass(frozen=True)
class Shape:
    """How the blocks of a kernel work; the fields are those of `memsim.trace.Kernel`."""

    tile_rows: int
    tile_bytes: int
    tiles_in_flight: int
    blocks_per_unit: int = 1
    retire: str = "in_order"
    flops_per_tile: int = 0
    flops_unit: str = "none"
    blocks_sharing: int = 1
    partial_bytes: int = 0
    partial_serial: bool = False
    tile_rule: str = ""
