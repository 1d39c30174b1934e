"""Traces that the trace tests write: a small one by hand, random ones, and tools to damage them."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from memsim.errors import TraceError
from memsim.trace import FLOP_UNITS, REGION_KINDS, RETIRE_ORDERS, SPREADS, Access, Accesses, Kernel, Region
from memsim.trace_check import check_trace
from memsim.trace_write import TraceWriter

META = {"model": "two-layer", "context_tokens": 640, "batch": 1, "steps": 2, "tokens_per_step": 1}

KV = Region(0, "layer0.kv", "kv", 0, "bf16", 1000 * 1152, 1152)
INDEX = Region(1, "layer0.index", "index", 0, "fp8_e4m3", 10 * 8448, 132, 64, 128, 8448)


def small_kernel(number, step=0, waits_for=(), **columns):
    return Kernel(number, f"kernel{number}", "mla", 0, step, 0, waits_for, 4, 1, 64, 64 * 1152, 4, **columns)


# File rows: 0, 1 regions; 2 kernel 0; 3, 4 its accesses; 5 kernel 1; 6 kernel 2; 7, 8 its accesses.
SMALL = [
    KV,
    INDEX,
    small_kernel(0),
    Access(0, 1, 1, 0, False, 100, 900, worked=True),
    Access(0, 0, 3, 0, False, 0, 3, spread="even", grain=2, gather=np.array([999, 0, 5])),
    small_kernel(1, waits_for=(0,)),
    small_kernel(2, step=1, waits_for=(0, 1), flops_per_tile=10, flops_unit="bf16", partial_region=0),
    Access(2, 0, 3, 1, False, 0, 640, spread="each", dependent=True),
    Access(2, 2, 2, 0, True, 9, 100, stride=10),
]


def write(path, rows, meta=META):
    with TraceWriter(path, meta) as trace:
        for row in rows:
            {Region: trace.region, Kernel: trace.kernel, Access: trace.access}[type(row)](row)


def changed(path, edit_rows=None, edit_table=None, edit_meta=None, **options):
    """Rewrite the trace at `path` without memsim, after edits of its rows, its table or its metadata."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    if edit_rows is not None:
        edit_rows(rows)
    meta = json.loads(pq.read_metadata(path).metadata[b"memsim"])
    meta["rows"] = {
        name: sum(row["record"] == name for row in rows) for name in ("region", "kernel", "access")
    }
    if edit_meta is not None:
        edit_meta(meta)
    table = pa.Table.from_pylist(rows, schema=table.schema.with_metadata({"memsim": json.dumps(meta)}))
    pq.write_table(table if edit_table is None else edit_table(table), path, **options)


@contextmanager
def without_rights():
    """Give up the rights of root, which may write and read anywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def access_rows(kernel, accesses):
    """What a reader hands out, as the `Access` objects that went in, their row lists as lists."""
    rows = []
    for i in range(len(accesses.block)):
        at, count = int(accesses.gather_at[i]), int(accesses.rows[i])
        gather = None if at < 0 else accesses.gather_rows[at : at + count].tolist()
        row = {
            name: getattr(accesses, name)[i].item()
            for name in Access.__dataclass_fields__
            if name not in ("kernel", "gather", "spread")
        }
        rows.append(Access(kernel.id, gather=gather, spread=SPREADS[accesses.spread[i]], **row))
    return rows


def arrays(rows):
    """The accesses `rows` of one kernel as a reader hands them out."""

    def column(name, dtype=np.int64):
        return np.array([getattr(row, name) for row in rows], dtype)

    counts = np.array([0 if row.gather is None else len(row.gather) for row in rows], np.int64)
    lists = [row.gather for row in rows if row.gather is not None]
    return Accesses(
        block=column("block"),
        block_last=column("block_last"),
        region=column("region"),
        write=column("write", np.bool_),
        first_row=column("first_row"),
        rows=column("rows"),
        stride=column("stride"),
        spread=np.array([SPREADS.index(row.spread) for row in rows], np.int64),
        grain=column("grain"),
        gather_at=np.where(counts > 0, np.cumsum(counts) - counts, -1),
        gather_rows=np.concatenate([np.empty(0, np.int64), *lists]),
        dependent=column("dependent", np.bool_),
        worked=column("worked", np.bool_),
    )


def listed(row):
    """`row` with its row list as a list, so that rows compare."""
    if isinstance(row, Access) and row.gather is not None:
        return Access(**{**vars(row), "gather": row.gather.tolist()})
    return row


def read_rows(trace):
    """All rows of an open trace in file order."""
    rows = list(trace.regions)
    for kernel, accesses in trace.kernels():
        rows += [kernel, *access_rows(kernel, accesses)]
    return rows


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)


@st.composite
def regions(draw, number):
    row_bytes = draw(st.integers(2, 5000))
    rows = draw(st.integers(1, 50) | st.integers(10**6, 10**12))
    row = (
        number,
        draw(names) + str(number),
        draw(st.sampled_from(REGION_KINDS)),
        draw(st.integers(-1, 90)),
        "u8",
    )
    if draw(st.booleans()):
        return Region(*row, rows * row_bytes, row_bytes)
    page_rows = draw(st.integers(1, 64))
    page_bytes = page_rows * row_bytes + draw(st.integers(0, 100))
    pages = draw(st.integers(1, 20))
    head = draw(st.integers(1, row_bytes - 1))
    return Region(*row, pages * page_bytes, row_bytes, page_rows, head, page_bytes)


@st.composite
def kernels(draw, number, step, region_count):
    small = st.integers(1, 200)
    unit = draw(st.sampled_from(FLOP_UNITS))
    return Kernel(
        id=number,
        name=draw(names),
        family=draw(names),
        layer=draw(st.integers(-1, 90)),
        step=step,
        stream=draw(st.integers(0, 3)),
        waits_for=tuple(draw(st.lists(st.integers(0, number - 1), max_size=3))) if number else (),
        blocks=draw(small),
        blocks_per_unit=draw(small),
        tile_rows=draw(small),
        tile_bytes=draw(st.integers(1, 10**16)),
        tiles_in_flight=draw(small),
        retire=draw(st.sampled_from(RETIRE_ORDERS)),
        flops_per_tile=0 if unit == "none" else draw(st.integers(0, 9 * 10**12)),
        flops_unit=unit,
        startup_ps=draw(st.integers(0, 10**15)),
        drain_ps=draw(st.integers(0, 10**15)),
        tile_ps=draw(st.integers(0, 10**15)),
        blocks_sharing=draw(small),
        partial_region=draw(st.integers(0, region_count - 1)),
        partial_bytes=draw(st.integers(0, 10**16)),
        partial_serial=draw(st.booleans()),
        tile_rule=draw(st.text(max_size=5)),
    )


@st.composite
def accesses(draw, kernel, all_regions, most_rows=10**13):
    region = draw(st.sampled_from(all_regions))
    block = draw(st.integers(0, kernel.blocks - 1))
    spread = draw(st.sampled_from(SPREADS))
    row = {
        "kernel": kernel.id,
        "block": block,
        "block_last": block if spread == "one" else draw(st.integers(block, kernel.blocks - 1)),
        "region": region.id,
        "write": spread != "each" and draw(st.booleans()),
        "spread": spread,
        "grain": draw(st.integers(1, 100)),
        "dependent": draw(st.booleans()),
        "worked": draw(st.booleans()),
    }
    if draw(st.integers(0, 3)) == 0:
        gather = np.array(draw(st.lists(st.integers(0, region.rows - 1), min_size=1, max_size=9)), np.int64)
        return Access(first_row=0, rows=len(gather), gather=gather, **row)
    first = draw(st.integers(0, region.rows - 1))
    room = region.rows - 1 - first
    stride = draw(st.sampled_from((1, 2, 3, 6)) | st.integers(1, 2**63 - 1))
    rows = draw(st.integers(1, min(room // stride + 1, most_rows)))
    return Access(first_row=first, rows=rows, stride=stride, **row)


@st.composite
def traces(draw):
    """Rows of a valid trace of up to two steps."""
    all_regions = [draw(regions(number)) for number in range(draw(st.integers(1, 3)))]
    rows = list(all_regions)
    steps = sorted(draw(st.lists(st.integers(0, 1), min_size=1, max_size=4)))
    for number, step in enumerate(steps):
        kernel = draw(kernels(number, step, len(all_regions)))
        rows += [kernel, *draw(st.lists(accesses(kernel, all_regions), max_size=5))]
    return rows


def fault(path):
    """The message of the first fault: one line that begins with the file."""
    with pytest.raises(TraceError) as error:
        check_trace(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message[len(f"{path}: ") :]
