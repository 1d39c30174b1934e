"""Check a whole trace: read every row of it by the rules, and count what was read.

Enters: a path. Leaves: a `Summary`, or the TraceError of the first fault. The rules are in
`trace_rules` (values), `trace_batch` (files, nulls) and `trace_schema` (columns, metadata).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memsim.trace_read import open_trace


@dataclass(frozen=True)
class Summary:
    """What a checked trace holds.

    gathered_rows  rows that accesses pick by an index list
    region_bytes   size of all regions [bytes]
    """

    path: str
    regions: int
    kernels: int
    accesses: int
    steps: int
    gathered_rows: int
    region_bytes: int


def check_trace(path: str | Path) -> Summary:
    """Read all of the trace at `path`; raises TraceError at the first row that breaks a rule."""
    trace = open_trace(path)
    gathered_rows = 0
    steps: set[int] = set()
    for kernel, accesses in trace.kernels():
        gathered_rows += len(accesses.gather_rows)
        steps.add(kernel.step)
    return Summary(
        path=trace.path,
        regions=len(trace.regions),
        kernels=trace.kernel_count,
        accesses=trace.access_count,
        steps=len(steps),
        gathered_rows=gathered_rows,
        region_bytes=sum(region.bytes for region in trace.regions),
    )
