"""From a Parquet file to numpy: open it, read it batch by batch, turn a batch into rows.

Enters: a path. Leaves: record batches of a bounded size, with the faults that need no knowledge of
traces: no file, not Parquet, truncated, a wrong version, wrong columns, an unknown record or spread, a
null where a value is needed. What values may be is in `trace_rules`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from memsim.errors import TraceError, nearest, reason
from memsim.trace import SPREADS, Accesses, Int64s, Kernel, Region
from memsim.trace_schema import (
    ACCESS,
    COLUMNS,
    FIELDS,
    KERNEL,
    LISTS,
    OPTIONAL,
    RECORDS,
    REGION,
    ROW_GROUP_ROWS,
    STRINGS,
    check_columns,
    decode_meta,
    short,
)

BATCH_ROWS = 2 * ROW_GROUP_ROWS  # a kernel of some 100,000 accesses is seldom cut
BATCH_GATHERED = 4_194_304  # gathered rows of a batch, about: 32 MiB
FEW_RUNS = 64  # of rows of one record in a batch, to be looked at one by one
MAGIC = b"PAR1"
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)

Codes = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

# Of each column, which records have it; behind them -2 and -1, what is no record, which have none.
_NEEDED = {
    name: np.array([name in (*fields, "record") for fields in FIELDS] + [False, False]) for name in COLUMNS
}


class Header(NamedTuple):
    """What stands in a file beside its rows: the caller's metadata and how many rows of each record."""

    meta: dict[str, Any]
    regions: int
    kernels: int
    accesses: int


class Fault(NamedTuple):
    """A row that breaks a rule, counted from 0 over the whole file, and the words for it."""

    row: int
    text: str


class Batch(NamedTuple):
    """Consecutive rows of a file: `row` is the number of the first, `codes` says what each row is."""

    row: int
    codes: Codes
    columns: pa.RecordBatch


class AccessRows(NamedTuple):
    """The access rows of a batch.

    row      int64[n]  their numbers in the file
    kernel   int64[n]  the kernel that each names
    gathered int64[n]  elements of its row list, -1 for an extent
    values   the columns, `gather_at` counted from the batch's first gathered row
    """

    row: Int64s
    kernel: Int64s
    gathered: Int64s
    values: Accesses


def read_header(path: str) -> Header:
    """Metadata and row counts of the trace at `path`; TraceError if it is not a whole trace file."""
    with _open(path) as file:
        meta, counts = decode_meta(path, file.metadata.metadata)
        check_columns(path, file.schema_arrow)
        if sum(counts) != file.metadata.num_rows:
            raise TraceError(
                f"{path}: the file holds {file.metadata.num_rows} rows and its metadata count {sum(counts)}; "
                "expected the same number; write both with one program"
            )
    return Header(meta, *counts)


def read_batches(path: str, most_rows: int = BATCH_ROWS) -> Iterator[Batch]:
    """All rows in file order, at most `most_rows` in a batch and fewer where they gather many.

    Raises TraceError at the first row whose record is unknown, or which lacks a value or has one too
    many; the rows before it have been yielded by then.
    """
    row = 0
    with _open(path, list(STRINGS)) as file:
        most = min(most_rows, _batch_rows(file.metadata))
        # threads would take half as much time again, of all cores together, and none less from start to end
        batches = file.iter_batches(most, columns=list(COLUMNS), use_threads=False)
        while (columns := _next(path, row, batches)) is not None:
            codes, fault = _codes(columns, row)
            whole = columns.num_rows if fault is None else fault.row - row
            if whole:
                yield Batch(row, codes[:whole], columns.slice(0, whole))
            if fault is not None:
                raise TraceError(f"{path}: row {fault.row}: {fault.text}")
            row += whole


def raw_rows(path: str, most: int) -> list[dict[str, Any]]:
    """The first `most` rows as they stand in the file, unchecked but for its columns."""
    rows: list[dict[str, Any]] = []
    read_header(path)
    with _open(path) as file:
        batches = file.iter_batches(min(most, _batch_rows(file.metadata)), columns=list(COLUMNS))
        while len(rows) < most and (columns := _next(path, len(rows), batches)) is not None:
            rows += columns.slice(0, min(most - len(rows), columns.num_rows)).to_pylist()
    return rows


def decode_rows(path: str, batch: Batch, code: int) -> tuple[list[int], list[Any]]:
    """Regions or kernels (`code`) of a batch: their row numbers and the objects."""
    at = np.flatnonzero(batch.codes == code)
    make = Region if code == REGION else Kernel
    try:
        columns = [batch.columns.column(name).take(pa.array(at)).to_pylist() for name in FIELDS[code]]
    except UNREADABLE as error:
        raise _damaged(path, batch.row, error) from None
    if code == KERNEL:
        waits = FIELDS[KERNEL].index("waits_for")
        columns[waits] = [tuple(ids) for ids in columns[waits]]
    return (at + batch.row).tolist(), [make(*values) for values in zip(*columns, strict=True)]


def decode_accesses(batch: Batch) -> AccessRows:
    """The access rows of a batch as arrays that are contiguous and may be written to."""
    at = np.flatnonzero(batch.codes == ACCESS)
    columns: pa.RecordBatch = batch.columns
    chosen: Int64s | slice = at
    if len(at) and at[-1] - at[0] == len(at) - 1:  # in one run, as rows of a large kernel are
        columns, chosen = batch.columns.slice(at[0], len(at)), slice(None)

    def integers(name: str) -> Int64s:
        values: Int64s = _numpy(columns.column(name).fill_null(0))[chosen].astype(np.int64)
        return values

    def booleans(name: str) -> Bools:
        values: Bools = _numpy(columns.column(name).fill_null(False))[chosen].astype(np.bool_)
        return values

    lists = columns.column("gather")
    gathered = _numpy(lists.value_lengths().fill_null(-1))[chosen].astype(np.int64)
    ends = np.cumsum(np.maximum(gathered, 0))
    values = Accesses(
        block=integers("block"),
        block_last=integers("block_last"),
        region=integers("region"),
        write=booleans("write"),
        first_row=integers("first_row"),
        rows=integers("rows"),
        stride=integers("stride"),
        spread=_words(columns.column("spread"), SPREADS)[chosen].astype(np.int64),
        grain=integers("grain"),
        gather_at=np.where(gathered < 0, -1, ends - gathered),
        gather_rows=np.array(_numpy(lists.flatten()), np.int64),
        dependent=booleans("dependent"),
        worked=booleans("worked"),
    )
    return AccessRows(at + batch.row, integers("kernel"), gathered, values)


def _open(path: str, dictionaries: list[str] | None = None) -> pq.ParquetFile:
    _refuse_other_files(path)
    try:
        return pq.ParquetFile(
            pa.OSFile(os.fsencode(path)),  # by its bytes: a name need not be UTF-8
            read_dictionary=dictionaries,
            pre_buffer=False,
            page_checksum_verification=True,
        )
    except UNREADABLE as error:
        raise _damaged(path, None, error) from None


def _refuse_other_files(path: str) -> None:
    """Name what is wrong with a path before Parquet sees it (a pipe would make it wait for ever)."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise TraceError(f"{path}: is a directory; expected a trace file; name a file in it")
        if not stat.S_ISREG(mode):
            raise TraceError(
                f"{path}: is a device, pipe or socket; expected a trace file; name a regular file"
            )
        with open(path, "rb") as file:
            head = file.read(4)
            file.seek(-min(8, os.stat(path).st_size), os.SEEK_END)
            tail = file.read()
    except FileNotFoundError:
        raise TraceError(
            f"{path}: no such file; expected a trace; check the path or record it with `memsim trace record`"
        ) from None
    except PermissionError:
        raise TraceError(
            f"{path}: no permission to read it; expected a readable trace; change its mode"
        ) from None
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{path}: cannot be read ({reason(error)}); expected a trace file; check the path"
        ) from None
    if not head:
        raise TraceError(f"{path}: is empty (0 bytes); expected a trace; record it again")
    if head != MAGIC:
        raise TraceError(
            f"{path}: is not a Parquet file (begins with {head!r}); expected {MAGIC!r}; name a trace"
        )
    if len(tail) < 8 or tail[-4:] != MAGIC:
        raise TraceError(
            f"{path}: is truncated (ends with {tail[-4:]!r}, not {MAGIC!r}); copy or record it again"
        )


def _damaged(path: str, row: int | None, error: Exception) -> TraceError:
    place = path if row is None else f"{path}: row {row} or later"
    reason = str(error).split("\n")[0][:200]
    return TraceError(
        f"{place}: truncated or damaged ({reason}); expected a whole file; copy or record it again"
    )


def _next(path: str, row: int, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except UNREADABLE as error:
        raise _damaged(path, row, error) from None


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Rows of a batch that hold about BATCH_GATHERED gathered rows where these are densest."""
    most = BATCH_ROWS
    leaf = next(
        i for i in range(metadata.num_columns) if metadata.schema.column(i).path.startswith("gather.")
    )
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        most = min(most, BATCH_GATHERED * group.num_rows // max(group.column(leaf).num_values, 1))
    return max(most, 1)


def _numpy(column: pa.Array) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _words(column: pa.Array, known: tuple[str, ...]) -> Codes:
    """Index of each text in `known`; -1 where it is unknown, -2 where it is null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    words = column.dictionary.to_pylist()
    codes = np.array([known.index(word) if word in known else -1 for word in words] + [-2], np.int8)
    chosen: Codes = codes[_numpy(column.indices.fill_null(len(words)))]
    return chosen


def _codes(columns: pa.RecordBatch, row: int) -> tuple[Codes, Fault | None]:
    """What each row is, and the first that is nothing, lacks a value or has one too many."""
    codes = _words(columns.column("record"), RECORDS)
    faults = [_word_fault(columns, "record", codes, RECORDS, row)]
    faults += _null_faults(columns, codes, row)
    faults += [_element_fault(columns, name, row) for name in LISTS]
    spreads = np.where(codes == ACCESS, _words(columns.column("spread"), SPREADS), 0)
    faults.append(_word_fault(columns, "spread", spreads, SPREADS, row))
    found = [fault for fault in faults if fault is not None]
    return codes, min(found, key=lambda fault: fault.row, default=None)


def _word_fault(
    columns: pa.RecordBatch, name: str, codes: Codes, known: tuple[str, ...], row: int
) -> Fault | None:
    unknown = np.flatnonzero(codes < 0)
    if not len(unknown):
        return None
    found = columns.column(name)[int(unknown[0])].as_py()
    what = f"{name} is null" if found is None else f"unknown {name} {short(found)}"
    return Fault(row + int(unknown[0]), f"{what}; expected {', '.join(known)}; {nearest(found or '', known)}")


def _null_faults(columns: pa.RecordBatch, codes: Codes, row: int) -> Iterator[Fault | None]:
    """The first wrong null of each column; by runs of one record's rows most columns need no look at rows."""
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    few = len(edges) <= FEW_RUNS
    for name in COLUMNS:
        column, needs = columns.column(name), _NEEDED[name]
        if not few or not all(
            _has_what_it_needs(column.slice(begin, end - begin), needs[codes[begin]], name in OPTIONAL)
            for begin, end in pairwise(edges)
        ):
            yield _null_fault(columns, codes, name, row)


def _has_what_it_needs(column: pa.Array, needed: bool, optional: bool) -> bool:
    """Whether rows of one record all have a value, or none has, as they should."""
    if needed:
        return optional or column.null_count == 0
    return bool(column.null_count == len(column))


def _null_fault(columns: pa.RecordBatch, codes: Codes, name: str, row: int) -> Fault | None:
    column = columns.column(name)
    needed = _NEEDED[name][codes]
    found = _numpy(column.is_valid())
    wrong = np.flatnonzero(found & ~needed if name in OPTIONAL else found != needed)
    if not len(wrong):
        return None
    at = int(wrong[0])
    kind = RECORDS[codes[at]]
    if found[at]:
        value = short(column[at].as_py())
        return Fault(row + at, f"{kind} has {name} = {value}; expected null; leave it null in such a row")
    return Fault(row + at, f"{kind} has null in {name!r}; expected a value; write one")


def _element_fault(columns: pa.RecordBatch, name: str, row: int) -> Fault | None:
    column = columns.column(name)
    elements = column.flatten()
    if not elements.null_count:
        return None
    ends = np.cumsum(_numpy(column.value_lengths().fill_null(0)))
    at = int(np.searchsorted(ends, np.argmin(_numpy(elements.is_valid())), side="right"))
    return Fault(row + at, f"null among the elements of {name!r}; expected integers; leave it out")
