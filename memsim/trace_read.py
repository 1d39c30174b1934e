"""Read a trace: its metadata and regions at once, its kernels one by one with bounded memory.

Enters: the path of a trace file. Leaves: a `TraceFile`, whose `kernels()` streams. Every row is checked
before it is handed out, so a replay never sees a bad one; TraceError names the first that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memsim.errors import TraceError
from memsim.trace import Accesses, Int64s, Kernel, Region
from memsim.trace_batch import (
    AccessRows,
    Batch,
    Fault,
    Header,
    decode_accesses,
    decode_rows,
    read_batches,
    read_header,
)
from memsim.trace_rules import Owners, access_fault, kernel_fault, region_fault, total_fault
from memsim.trace_schema import KERNEL, RECORDS, REGION, ROW_GROUP_ROWS
from memsim.unique import unique_bytes

__all__ = ["TraceFile", "open_trace", "unique_bytes"]

MAX_DEALT = 10**8  # accesses of a kernel, counted once a block: an engine walks each of them


@dataclass(frozen=True)
class TraceFile:
    """A trace whose regions have been read.

    meta     what the recorder said of it: model, context_tokens, batch, steps, ...
    regions  index = id
    """

    path: str
    meta: dict[str, Any]
    regions: tuple[Region, ...]
    kernel_count: int
    access_count: int

    def kernels(self) -> Iterator[tuple[Kernel, Accesses]]:
        """Every kernel with its accesses, in file order; may be called again.

        Holds one kernel and one batch of rows at a time. Raises TraceError at the first row that
        breaks a rule; kernels whose rows come before it in earlier batches have been handed out.
        """
        region_rows = np.array([region.rows for region in self.regions], np.int64)
        held: Kernel | None = None
        parts: list[Accesses] = []
        found = dealt = 0
        for batch in read_batches(self.path):
            starts, kernels, accesses = _checked(self, batch, held, region_rows)
            found += len(accesses.row)
            bounds = np.searchsorted(accesses.row, starts).tolist()
            gathered = _gathered_before(accesses)
            spans = zip([held, *kernels], [0, *bounds], [*bounds, len(accesses.row)], strict=True)
            for kernel, begin, end in spans:
                if kernel is not held:
                    if held is not None:
                        yield held, _join(parts)
                    held, parts, dealt = kernel, [], 0
                dealt = _dealt(self.path, dealt, accesses, begin, end)
                parts.append(_cut(accesses.values, gathered, begin, end))
        if (0 if held is None else held.id + 1, found) != (self.kernel_count, self.access_count):
            raise TraceError(
                f"{self.path}: holds other rows than its metadata count; expected the same; record it again"
            )
        if held is not None:
            yield held, _join(parts)


def open_trace(path: str | Path) -> TraceFile:
    """Open the trace at `path`: read its metadata and check its regions.

    Raises TraceError if the file cannot be read, is not a trace of this version, or a region of it
    breaks a rule.
    """
    name = str(path)
    header = read_header(name)
    if not header.kernels:
        raise TraceError(f"{name}: has no kernels; expected at least one; record the trace again")
    return TraceFile(name, header.meta, _regions(name, header), header.kernels, header.accesses)


def _regions(path: str, header: Header) -> tuple[Region, ...]:
    known: dict[str, Region] = {}
    for batch in read_batches(path, min(header.regions + 1, ROW_GROUP_ROWS)):
        faults = [_misplaced(batch, header.regions)]
        for row, region in zip(*decode_rows(path, batch, REGION), strict=True):
            if (text := region_fault(region, known)) is not None:
                faults.append(Fault(row, text))
                break
            known[region.name] = region
        _raise_first(path, faults)
        if len(known) == header.regions:
            break
    if (text := total_fault(list(known.values()))) is not None:
        _raise_first(path, [Fault(len(known) - 1, text)])
    return tuple(known.values())


def _misplaced(batch: Batch, regions: int) -> Fault | None:
    """The first row that is no region among the first `regions` rows, or a region after them."""
    row = np.arange(batch.row, batch.row + len(batch.codes))
    wrong = np.flatnonzero((batch.codes == REGION) != (row < regions))
    if not len(wrong):
        return None
    at = int(wrong[0])
    return Fault(
        int(row[at]),
        f"is a {RECORDS[batch.codes[at]]}; expected the file's {regions} regions (as its metadata count) "
        "first and no region after them; sort the rows",
    )


def _checked(
    trace: TraceFile, batch: Batch, held: Kernel | None, region_rows: Int64s
) -> tuple[list[int], list[Kernel], AccessRows]:
    """The kernels of a batch with their row numbers, and its accesses, all rules kept."""
    rows, kernels = decode_rows(trace.path, batch, KERNEL)
    accesses = decode_accesses(batch)
    faults = [_misplaced(batch, len(region_rows))]
    before = held
    for row, kernel in zip(rows, kernels, strict=True):
        text = kernel_fault(kernel, before, len(region_rows), trace.meta.get("steps"))
        if text is not None:
            faults.append(Fault(row, text))
            break
        before = kernel
    owner = np.searchsorted(rows, accesses.row)  # 0: the kernel held from the batch before
    ids = np.array([-1 if held is None else held.id, *(kernel.id for kernel in kernels)], np.int64)
    blocks = np.array([0 if held is None else held.blocks, *(kernel.blocks for kernel in kernels)], np.int64)
    faults.append(access_fault(accesses, Owners(ids[owner], blocks[owner]), region_rows))
    _raise_first(trace.path, faults)
    return rows, kernels, accesses


def _raise_first(path: str, faults: Sequence[Fault | None]) -> None:
    found = [fault for fault in faults if fault is not None]
    if found:
        first = min(found, key=lambda fault: fault.row)
        raise TraceError(f"{path}: row {first.row}: {first.text}")


def _dealt(path: str, before: int, accesses: AccessRows, begin: int, end: int) -> int:
    """Accesses that the blocks of a kernel walk: `before`, and `begin` to `end` of a batch."""
    values = accesses.values
    walked = before + np.cumsum(values.block_last[begin:end] - values.block[begin:end] + 1)
    over = np.flatnonzero(walked > MAX_DEALT)
    if len(over):
        at = begin + int(over[0])
        text = (
            f"access of kernel {accesses.kernel[at]} brings what the kernel's blocks walk to "
            f"{walked[over[0]]:,} accesses (each counted once a block); expected at most {MAX_DEALT:,} a "
            "kernel; join its accesses, give it fewer blocks, or split it"
        )
        _raise_first(path, [Fault(int(accesses.row[at]), text)])
    return int(walked[-1]) if len(walked) else before


def _gathered_before(accesses: AccessRows) -> list[int]:
    """Elements of row lists before each access, and before the end."""
    return [0, *np.cumsum(np.maximum(accesses.gathered, 0)).tolist()]


def _cut(values: Accesses, gathered: list[int], begin: int, end: int) -> Accesses:
    """Accesses `begin` to `end` of a batch."""
    low, high = gathered[begin], gathered[end]
    part = Accesses._make(column[begin:end] for column in values)
    gather_at = part.gather_at if low == 0 else np.where(part.gather_at < 0, -1, part.gather_at - low)
    return part._replace(gather_at=gather_at, gather_rows=values.gather_rows[low:high])


def _join(parts: list[Accesses]) -> Accesses:
    """The accesses of one kernel from its parts in several batches."""
    if len(parts) == 1:
        return parts[0]
    before = 0
    shifted = []
    for part in parts:
        shifted.append(part._replace(gather_at=np.where(part.gather_at < 0, -1, part.gather_at + before)))
        before += len(part.gather_rows)
    return Accesses._make(np.concatenate(columns) for columns in zip(*shifted, strict=True))
