"""What `memsim trace info` and `memsim trace head` print, as plain data.

Enters: a path. Leaves: dicts and lists of numbers and strings, which the commands turn into tables or
JSON. `info` reads and checks the whole file; `head` shows the first rows as they stand, so that it can
be used on a file that `check` refuses.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from memsim.errors import UsageError
from memsim.trace import VERSION
from memsim.trace_batch import raw_rows
from memsim.trace_read import open_trace
from memsim.unique import unique_bytes

LIST_SHOWN = 8
TOP_KEYS = ("model", "context_tokens", "batch", "steps", "tokens_per_step")


def info(path: str | Path) -> dict[str, Any]:
    """What the trace at `path` holds; TraceError if a row of it breaks a rule.

    file_bytes       size of the file
    rows             region, kernel, access: how many; gathered: rows in index lists
    kinds            by region kind: regions and their bytes; bytes_read and bytes_written, the unique
                     bytes that each kernel touches, summed over kernels
    families         by kernel family: kernels, accesses, bytes_read, bytes_written
    and what the recorder said: model, context_tokens, batch, steps, selection, software, ... (the
    first five are None where it did not)
    """
    trace = open_trace(path)
    kinds: dict[str, Counter[str]] = {}
    families: dict[str, Counter[str]] = {}
    gathered = 0
    for region in trace.regions:
        kinds.setdefault(region.kind, Counter()).update(regions=1, bytes=region.bytes)
    for kernel, accesses in trace.kernels():
        gathered += len(accesses.gather_rows)
        family = families.setdefault(kernel.family, Counter())
        family.update(kernels=1, accesses=len(accesses.block))
        for column, touched in zip(
            ("bytes_read", "bytes_written"), unique_bytes(kernel, accesses, trace.regions), strict=True
        ):
            family[column] += sum(touched.values())
            for region_id, touched_bytes in touched.items():
                kinds[trace.regions[region_id].kind][column] += touched_bytes
    return {
        "path": trace.path,
        "file_bytes": os.path.getsize(trace.path),
        "schema_version": VERSION,
        **{key: trace.meta.get(key) for key in TOP_KEYS},
        **trace.meta,
        "rows": {
            "region": len(trace.regions),
            "kernel": trace.kernel_count,
            "access": trace.access_count,
            "gathered": gathered,
        },
        "kinds": {
            kind: _counted(found, ("regions", "bytes", "bytes_read", "bytes_written"))
            for kind, found in kinds.items()
        },
        "families": {
            name: _counted(found, ("kernels", "accesses", "bytes_read", "bytes_written"))
            for name, found in families.items()
        },
    }


def head(path: str | Path, rows: int) -> list[dict[str, Any]]:
    """The first `rows` rows of the file, nulls left out; of a long list its first elements and a count."""
    if rows < 1:
        raise UsageError(f"{rows} rows to show; expected at least 1; ask for more")
    return [
        {name: _shortened(value) for name, value in row.items() if value is not None}
        for row in raw_rows(str(path), rows)
    ]


def _counted(found: Counter[str], names: tuple[str, ...]) -> dict[str, int]:
    return {name: found[name] for name in names}


def _shortened(value: Any) -> Any:
    if isinstance(value, list) and len(value) > LIST_SHOWN:
        return [*value[:LIST_SHOWN], f"... {len(value) - LIST_SHOWN} more"]
    return value
