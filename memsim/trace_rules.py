"""The rules that the rows of a trace keep, each a small function that names the first row to break it.

Enters: regions and kernels as objects, the accesses of a batch as arrays. Leaves: words for the first
fault, or None. Regions and kernels are few and checked one by one in Python's unbounded integers;
accesses are many and checked as arrays, in forms that cannot overflow. Whether the file can be read at
all is settled in `trace_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from memsim.errors import nearest
from memsim.trace import EACH, FLOP_UNITS, MAX_FLOPS, ONE, REGION_KINDS, RETIRE_ORDERS, Int64s, Kernel, Region
from memsim.trace_batch import AccessRows, Bools, Fault
from memsim.trace_schema import short

MAX_REGION_BYTES = 10**16
MAX_TOTAL_BYTES = 10**18  # all regions together: sums of offsets stay inside int64
MAX_BLOCKS = 2**24  # an engine holds all blocks of a kernel in memory
MAX_TIME_PS = 10**15  # 1,000 s: longer than any block waits
MAX_TILES_IN_FLIGHT = 65_536
MAX_BLOCKS_PER_UNIT = 720_720  # a unit is dealt out in as many shares

KERNEL_LEAST = {
    "layer": -1,
    "step": 0,
    "stream": 0,
    "blocks": 1,
    "blocks_per_unit": 1,
    "tile_rows": 1,
    "tile_bytes": 1,
    "tiles_in_flight": 1,
    "flops_per_tile": 0,
    "startup_ps": 0,
    "drain_ps": 0,
    "tile_ps": 0,
    "blocks_sharing": 1,
    "partial_region": -1,
    "partial_bytes": 0,
}
KERNEL_MOST = {
    "blocks": MAX_BLOCKS,
    "blocks_per_unit": MAX_BLOCKS_PER_UNIT,
    "tile_rows": MAX_REGION_BYTES,
    "tile_bytes": MAX_REGION_BYTES,
    "tiles_in_flight": MAX_TILES_IN_FLIGHT,
    "flops_per_tile": MAX_FLOPS,
    "partial_bytes": MAX_REGION_BYTES,
    "startup_ps": MAX_TIME_PS,
    "drain_ps": MAX_TIME_PS,
    "tile_ps": MAX_TIME_PS,
}


class Owners(NamedTuple):
    """The kernel before each access in the file: int64[n], its id and its grid."""

    id: Int64s
    blocks: Int64s


def region_fault(region: Region, before: Mapping[str, Region]) -> str | None:
    """What is wrong with `region`, given those before it by name; None if nothing is."""
    return next(_region_faults(region, before), None)


def total_fault(regions: Sequence[Region]) -> str | None:
    """What is wrong with all regions together."""
    total_bytes = sum(region.bytes for region in regions)
    if total_bytes > MAX_TOTAL_BYTES:
        return (
            f"the regions take {total_bytes} bytes together; expected at most 10^18; check their unit: bytes"
        )
    return None


def kernel_fault(kernel: Kernel, before: Kernel | None, regions: int, steps: int | None) -> str | None:
    """What is wrong with `kernel`, which follows `before` in a trace of `steps` steps; None if nothing is."""
    return next(_kernel_faults(kernel, before, regions, steps), None)


def access_fault(accesses: AccessRows, owners: Owners, region_rows: Int64s) -> Fault | None:
    """The first access that breaks a rule.

    owners       the kernel before each access in the file
    region_rows  int64[regions]  rows that each region holds
    """
    table = np.append(region_rows, 0)  # a region of no rows, for accesses that name none
    region = accesses.values.region
    found_rows = table[np.where((region < 0) | (region >= len(region_rows)), -1, region)]
    faults = [rule(accesses, owners, found_rows, len(region_rows)) for rule in ACCESS_RULES]
    found = [fault for fault in faults if fault is not None]
    return min(found, key=lambda fault: fault.row, default=None)  # of one row, that of the first rule


def _region_faults(region: Region, before: Mapping[str, Region]) -> Iterator[str]:
    yield from _id_faults("region", region.id, len(before))
    for column in ("name", "dtype"):
        if not getattr(region, column):
            yield f"region {region.id} has an empty {column}; expected a text; write one"
    if region.name in before:
        yield (
            f"region {region.id} has the name {short(region.name)} of region {before[region.name].id}; "
            "expected another; add the layer or the sequence to it"
        )
    yield from _word_faults(f"region {region.id}", "kind", region.kind, REGION_KINDS)
    yield from _least_faults(
        f"region {region.id}", region, {"layer": -1, "bytes": 1, "row_bytes": 1, "page_rows": 0}
    )
    yield from _most_faults(f"region {region.id}", region, {"bytes": MAX_REGION_BYTES})
    if region.page_rows:
        yield from _page_faults(region)
        return
    for column in ("page_head_bytes", "page_bytes"):
        if getattr(region, column):
            yield (
                f"region {region.id} has {column} = {getattr(region, column)} and page_rows = 0; "
                "expected 0; set page_rows if its rows are paged"
            )
    if region.bytes % region.row_bytes:
        yield (
            f"region {region.id} has {region.bytes} bytes; expected whole rows of {region.row_bytes} bytes; "
            "round its bytes up to rows"
        )


def _page_faults(region: Region) -> Iterator[str]:
    if not 1 <= region.page_head_bytes < region.row_bytes:
        yield (
            f"region {region.id} has page_head_bytes = {region.page_head_bytes}; expected 1 to "
            f"{region.row_bytes - 1} (row_bytes - 1); write page_rows = 0 if its rows lie back to back"
        )
    full_bytes = region.page_rows * region.row_bytes
    if region.page_bytes < full_bytes:
        yield (
            f"region {region.id} has page_bytes = {region.page_bytes}; expected at least {full_bytes} "
            "(page_rows x row_bytes); write the size of a page with its padding"
        )
    if region.bytes % region.page_bytes:
        yield (
            f"region {region.id} has {region.bytes} bytes; expected whole pages of {region.page_bytes} "
            "bytes; round its bytes up to pages"
        )


def _kernel_faults(kernel: Kernel, before: Kernel | None, regions: int, steps: int | None) -> Iterator[str]:
    who = f"kernel {kernel.id}"
    yield from _id_faults("kernel", kernel.id, 0 if before is None else before.id + 1)
    for column in ("name", "family"):
        if not getattr(kernel, column):
            yield f"{who} has an empty {column}; expected a text; write one"
    yield from _word_faults(who, "retire", kernel.retire, RETIRE_ORDERS)
    yield from _word_faults(who, "flops_unit", kernel.flops_unit, FLOP_UNITS)
    yield from _least_faults(who, kernel, KERNEL_LEAST)
    yield from _most_faults(who, kernel, KERNEL_MOST)
    if before is not None and kernel.step < before.step:
        yield f"{who} is of step {kernel.step}; expected at least {before.step}, as before it; sort them"
    if steps is not None and kernel.step >= steps:
        yield f"{who} is of step {kernel.step}; expected 0 to {steps - 1} (metadata 'steps'); correct one"
    for other in kernel.waits_for:
        if not 0 <= other < kernel.id:
            yield f"{who} waits for kernel {other}; expected ids below its own; drop it"
    if kernel.flops_per_tile > 0 and kernel.flops_unit == "none":
        yield f"{who} has flops_per_tile = {kernel.flops_per_tile}, flops_unit none; expected a unit; name it"
    if kernel.partial_region >= regions:
        yield f"{who} has partial_region = {kernel.partial_region}; expected -1 to {regions - 1}; correct it"
    if kernel.partial_bytes > 0 and kernel.partial_region < 0:
        yield f"{who} has partial_bytes = {kernel.partial_bytes}, no partial_region; expected one; name it"


def _id_faults(record: str, found: int, expected: int) -> Iterator[str]:
    if found != expected:
        what = "is used twice or out of order" if 0 <= found < expected else "is out of order"
        yield f"{record} id {found} {what}; expected {expected}; number them 0, 1, 2, ... in file order"


def _word_faults(who: str, column: str, found: str, known: tuple[str, ...]) -> Iterator[str]:
    if found not in known:
        expected = ", ".join(known)
        yield f"{who} has unknown {column} {short(found)}; expected {expected}; {nearest(found, known)}"


def _least_faults(who: str, row: Region | Kernel, least: Mapping[str, int]) -> Iterator[str]:
    for column, limit in least.items():
        found = getattr(row, column)
        if found < limit:
            yield f"{who} has {column} = {found}; expected at least {limit}; write its true value"


def _most_faults(who: str, row: Region | Kernel, most: Mapping[str, int]) -> Iterator[str]:
    for column, limit in most.items():
        found = getattr(row, column)
        if found > limit:
            yield f"{who} has {column} = {found}; expected at most {limit:,}; check its unit"


def _first(bad: Bools, accesses: AccessRows, words: Callable[[int], str]) -> Fault | None:
    """The fault of the first access that is `bad`; `words` says it from the index of the access."""
    if not bad.any():
        return None
    at = int(bad.argmax())
    return Fault(int(accesses.row[at]), f"access of kernel {accesses.kernel[at]} {words(at)}")


def _names_its_kernel(accesses: AccessRows, owners: Owners, _rows: Int64s, _regions: int) -> Fault | None:
    def words(at: int) -> str:
        found = f"follows kernel {owners.id[at]}" if owners.id[at] >= 0 else "comes before any kernel"
        return f"{found}; expected it right after the kernel that it names; sort the rows"

    return _first((accesses.kernel != owners.id) | (owners.id < 0), accesses, words)


def _names_a_region(accesses: AccessRows, _owners: Owners, _rows: Int64s, regions: int) -> Fault | None:
    region = accesses.values.region
    return _first(
        (region < 0) | (region >= regions),
        accesses,
        lambda at: f"names region {region[at]}; expected the id of one of the {regions} regions; correct it",
    )


def _has_sizes(accesses: AccessRows, _owners: Owners, _rows: Int64s, _regions: int) -> Fault | None:
    values = accesses.values
    least = {"first_row": 0, "rows": 1, "stride": 1, "grain": 1}
    faults = []
    for column, limit in least.items():
        found = getattr(values, column)
        words = partial(_too_small, column, found, limit)
        faults.append(_first(found < limit, accesses, words))
    return min((fault for fault in faults if fault), key=lambda fault: fault.row, default=None)


def _too_small(column: str, found: Int64s, limit: int, at: int) -> str:
    return f"has {column} = {found[at]}; expected at least {limit}; drop an access of nothing, or correct it"


def _inside_grid(accesses: AccessRows, owners: Owners, _rows: Int64s, _regions: int) -> Fault | None:
    first, last = accesses.values.block, accesses.values.block_last
    return _first(
        (first < 0) | (last < first) | (last >= owners.blocks),
        accesses,
        lambda at: (
            f"is of blocks {first[at]}..{last[at]}; expected a range inside 0..{owners.blocks[at] - 1}, "
            "the grid of its kernel; correct block and block_last"
        ),
    )


def _spread_fits(accesses: AccessRows, _owners: Owners, _rows: Int64s, _regions: int) -> Fault | None:
    values = accesses.values
    ranged = _first(
        (values.spread == ONE) & (values.block != values.block_last),
        accesses,
        lambda at: (
            f"has spread one over blocks {values.block[at]}..{values.block_last[at]}; "
            "expected one block; write spread even or each"
        ),
    )
    written = _first(
        (values.spread == EACH) & values.write,
        accesses,
        lambda at: (
            "writes with spread each; expected a read, since blocks cannot all write the same rows; "
            "write spread even"
        ),
    )
    return min((fault for fault in (ranged, written) if fault), key=lambda fault: fault.row, default=None)


def _extent_inside(accesses: AccessRows, _owners: Owners, region_rows: Int64s, _regions: int) -> Fault | None:
    values = accesses.values
    room = region_rows - 1 - values.first_row  # from the first row to the region's last
    steps = room // np.maximum(values.stride, 1)  # division, because rows x stride may not fit 64 bits
    bad = (accesses.gathered < 0) & ((room < 0) | (values.rows - 1 > steps))

    def words(at: int) -> str:
        last = int(values.first_row[at]) + (int(values.rows[at]) - 1) * int(values.stride[at])
        return (
            f"reaches row {last} of region {values.region[at]}, which has {region_rows[at]} rows; "
            f"expected at most row {region_rows[at] - 1}; shorten it or enlarge the region"
        )

    return _first(bad, accesses, words)


def _gather_counts(accesses: AccessRows, _owners: Owners, _rows: Int64s, _regions: int) -> Fault | None:
    values, gathered = accesses.values, accesses.gathered
    counted = _first(
        (gathered >= 0) & (gathered != values.rows),
        accesses,
        lambda at: (
            f"gathers {gathered[at]} rows and has rows = {values.rows[at]}; expected the same number; "
            "write the length of gather in rows"
        ),
    )
    placed = _first(
        (gathered >= 0) & ((values.first_row != 0) | (values.stride != 1)),
        accesses,
        lambda at: (
            f"gathers with first_row = {values.first_row[at]}, stride = {values.stride[at]}; "
            "expected 0 and 1; write the rows themselves in gather"
        ),
    )
    return min((fault for fault in (counted, placed) if fault), key=lambda fault: fault.row, default=None)


def _gather_inside(accesses: AccessRows, _owners: Owners, region_rows: Int64s, _regions: int) -> Fault | None:
    values = accesses.values
    listed = np.flatnonzero(accesses.gathered > 0)
    if not len(listed):
        return None
    starts = values.gather_at[listed]  # lists lie back to back, so each ends where the next starts
    bad = np.zeros(len(accesses.row), np.bool_)
    bad[listed] = (np.minimum.reduceat(values.gather_rows, starts) < 0) | (
        np.maximum.reduceat(values.gather_rows, starts) >= region_rows[listed]
    )

    def words(at: int) -> str:
        rows = values.gather_rows[values.gather_at[at] :][: accesses.gathered[at]]
        place = int(np.argmax((rows < 0) | (rows >= region_rows[at])))
        return (
            f"gathers row {rows[place]} (element {place}) of region {values.region[at]}, which has "
            f"{region_rows[at]} rows; expected 0 to {region_rows[at] - 1}; correct the index"
        )

    return _first(bad, accesses, words)


# In the order in which a row is blamed: later rules may assume earlier ones.
ACCESS_RULES = (
    _names_its_kernel,
    _names_a_region,
    _has_sizes,
    _inside_grid,
    _spread_fits,
    _gather_counts,
    _extent_inside,
    _gather_inside,
)
