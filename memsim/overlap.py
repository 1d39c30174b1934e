"""A trace whose selected rows are partly still there from the step before: fewer of them are fetched.

A trace recorded with `--stage kv` and a share enter, the same trace with thinner staging kernels leaves. Such
a kernel gathers selected rows into a buffer. Where a share of a step's selection was selected in the step
before, these rows lie in the buffer already: each block fetches and writes so much less, and the attention
reads the buffer as before. Left out: finding out which rows are there, and moving rows inside the buffer.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from memsim.trace import SPREADS, Access, Accesses, Kernel, Region
from memsim.trace_read import open_trace
from memsim.trace_write import TraceWriter

FAMILY = "kv-stage"
KEPT = ("kv", "activation")  # kinds of the rows that are fetched, and of the buffer


def thin(trace: Path, overlap: Fraction, out: Path) -> None:
    """Write `trace` with `overlap` of the staged rows left out to `out`. TraceError, OutputError."""
    found = open_trace(trace)
    with TraceWriter(out, _meta(found.meta, overlap)) as writer:
        for region in found.regions:
            writer.region(region)
        for kernel, accesses in found.kernels():
            writer.kernel(kernel)
            for access in _rows(kernel, accesses):
                writer.access(_thinner(access, found.regions, overlap) if kernel.family == FAMILY else access)


def _meta(meta: dict[str, Any], overlap: Fraction) -> dict[str, Any]:
    fact = {
        "path": "step.overlap",
        "value": f"{float(overlap):g}",
        "provenance": "assumed",
        "source": "share of the selected rows that the step before selected, too: asked for",
    }
    return {**meta, "inputs": [*meta.get("inputs", []), fact]}


def _thinner(access: Access, regions: tuple[Region, ...], overlap: Fraction) -> Access:
    """A gather of cached rows, or the write of them into the buffer, without what is there already."""
    moved = access.gather is not None if regions[access.region].kind == "kv" else access.write
    if regions[access.region].kind not in KEPT or not moved:
        return access
    rows = max(1, -int(-access.rows * (1 - overlap) // 1))
    gather = None if access.gather is None else access.gather[:rows]
    return replace(access, rows=rows, gather=gather)


def _rows(kernel: Kernel, accesses: Accesses) -> list[Access]:
    """The accesses of a kernel as rows of a trace."""
    found = []
    for at, first in enumerate(accesses.gather_at.tolist()):
        rows = int(accesses.rows[at])
        gather = None if first < 0 else np.asarray(accesses.gather_rows[first : first + rows])
        found.append(
            Access(
                kernel=kernel.id,
                block=int(accesses.block[at]),
                block_last=int(accesses.block_last[at]),
                region=int(accesses.region[at]),
                write=bool(accesses.write[at]),
                first_row=int(accesses.first_row[at]),
                rows=rows,
                stride=int(accesses.stride[at]),
                spread=SPREADS[int(accesses.spread[at])],
                grain=int(accesses.grain[at]),
                gather=gather,
                dependent=bool(accesses.dependent[at]),
                worked=bool(accesses.worked[at]),
            )
        )
    return found
