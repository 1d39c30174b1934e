"""Write a trace: rows in, one Parquet file out, whole or not at all.

Enters: regions, kernels and accesses in the order of the file, and metadata. Leaves: the file at the
given path, renamed into place when all of it is on disk. Left out: the rules of values, which
`trace_check` tests; only what would make the file unreadable is refused here.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from memsim.errors import OutputError, TraceError
from memsim.trace import Access, Int64s, Kernel, Region
from memsim.trace_schema import (
    COLUMNS,
    ENCODINGS,
    FIELDS,
    KEY,
    RECORDS,
    ROW_CLASSES,
    ROW_GROUP_ROWS,
    SCHEMA,
    STRINGS,
    encode_meta,
)

ROW_GROUP_GATHERED = 4_194_304  # gathered rows that close a row group early: 32 MiB

PYTHON_TYPES = {pa.int64(): (int, np.integer), pa.bool_(): (bool, np.bool_), pa.string(): (str,)}

Row = Region | Kernel | Access
Codes = npt.NDArray[np.int8]


class TraceWriter:
    """A trace file being written: `with TraceWriter(path, meta) as trace: trace.region(...) ...`.

    Regions come first, then each kernel before its accesses; TraceError if they do not. The file
    appears at `path` when the block ends without an exception; otherwise nothing is left, and an older
    file at `path` stays as it was. Raises OutputError if the file cannot be written. Memory is bounded
    by one row group (65,536 rows, fewer where these gather 4 M).
    """

    def __init__(self, path: str | Path, meta: dict[str, Any]) -> None:
        self._given = str(path)
        self._meta = meta
        self._rows: list[Row] = []
        self._gathers: list[Int64s] = []  # copies, because a recorder may reuse its buffer
        self._gathered = 0
        self._counts = [0, 0, 0]
        self._kernel: int | None = None

    def __enter__(self) -> TraceWriter:
        encode_meta(self._meta, {})  # to fail before the work, not after it
        self._target = _target(self._given)
        self._temporary = self._target.with_name(f".memsim-{uuid.uuid4().hex}.part")
        try:
            # A native file: Arrow calling back a Python one, while an exception passes, would crash.
            self._file = pa.OSFile(os.fsencode(self._temporary), "wb")
            self._parquet = _parquet_writer(self._file)
        except OSError as error:
            self._discard()
            raise _unwritable(self._given, error) from None
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self._finish()
        except OSError as failure:
            self._discard()
            raise _unwritable(self._given, failure) from None
        except BaseException:
            self._discard()
            raise

    def region(self, row: Region) -> None:
        """Add a region; all of them come before the first kernel."""
        if self._kernel is not None:
            raise TraceError(
                f"{self._given}: region {row.name!r} after kernel {self._kernel}; "
                "expected all regions first; write them before the kernels"
            )
        self._add(row)

    def kernel(self, row: Kernel) -> None:
        """Add a kernel; the accesses that follow are its own."""
        self._kernel = row.id
        self._add(row)

    def access(self, row: Access) -> None:
        """Add an access of the kernel before it."""
        if row.kernel != self._kernel:
            before = "before any kernel" if self._kernel is None else f"after kernel {self._kernel}"
            raise TraceError(
                f"{self._given}: access of kernel {row.kernel} {before}; expected its kernel first; "
                "write each kernel right before its accesses"
            )
        if row.gather is not None:
            self._gathers.append(_row_list(self._given, row.gather))
            self._gathered += len(row.gather)
        self._add(row)

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROW_GROUP_ROWS or self._gathered >= ROW_GROUP_GATHERED:
            self._flush()

    def _flush(self) -> None:
        """Write the rows at hand as one row group."""
        codes = np.array([ROW_CLASSES.index(type(row)) for row in self._rows], np.int8)
        table = _table(self._rows, codes, self._gathers)
        try:
            self._parquet.write_table(table, row_group_size=len(self._rows))
        except OSError as error:
            raise _unwritable(self._given, error) from None
        for code in range(len(RECORDS)):
            self._counts[code] += int(np.count_nonzero(codes == code))
        self._rows, self._gathers, self._gathered = [], [], 0

    def _finish(self) -> None:
        if self._rows:
            self._flush()
        rows = dict(zip(RECORDS, self._counts, strict=True))
        self._parquet.add_key_value_metadata({KEY: encode_meta(self._meta, rows)})
        self._parquet.close()
        self._file.close()
        with open(self._temporary, "rb") as written:
            os.fsync(written.fileno())  # or a crash of the machine could leave an empty file renamed
        os.replace(self._temporary, self._target)

    def _discard(self) -> None:
        """Leave nothing behind; what fails on the way has been reported or does not matter."""
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        for opened in ("_parquet", "_file"):
            with contextlib.suppress(Exception):
                getattr(self, opened).close()
        with contextlib.suppress(AttributeError):
            self._parquet.is_open = False  # or it tries again when it is dropped


def _parquet_writer(file: pa.NativeFile) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        use_dictionary=list(STRINGS),
        column_encoding=ENCODINGS,
        write_page_checksum=True,
    )


def _target(given: str) -> Path:
    """The file to be replaced, symbolic links followed; OutputError if it can be no regular file."""
    try:
        target = Path(os.path.realpath(given))
        if target.is_dir():
            raise OutputError(f"{given}: is a directory; expected a file to write; add a file name")
        if target.exists() and not target.is_file():
            raise OutputError(
                f"{given}: is a device, pipe or socket; expected a file to write; choose another"
            )
        if target.exists() and not os.access(target, os.W_OK):
            raise OutputError(f"{given}: is write-protected; expected a file to write; choose another")
        if not target.parent.is_dir():
            raise OutputError(
                f"{given}: no directory {target.parent}; expected an existing one; create it first"
            )
    except (OSError, ValueError) as error:
        raise _unwritable(given, error) from None
    return target


def _unwritable(given: str, error: Exception) -> OutputError:
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else _line(error)
    return OutputError(
        f"{given}: cannot be written ({reason}); expected a writable place with room; "
        "choose another path or make room"
    )


def _line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]


def _row_list(given: str, gather: Int64s) -> Int64s:
    if not isinstance(gather, np.ndarray) or gather.dtype != np.int64 or gather.ndim != 1:
        found = (
            f"{gather.dtype}{list(gather.shape)}" if isinstance(gather, np.ndarray) else type(gather).__name__
        )
        raise TraceError(f"{given}: gather is {found}; expected a numpy array int64[n]; convert it")
    return gather.copy()


def _table(rows: Sequence[Row], codes: Codes, gathers: Sequence[Int64s]) -> pa.Table:
    """The rows as columns: those of each record are collected together, then put in file order."""
    by_record = [[row for row in rows if type(row) is known] for known in ROW_CLASSES]
    order = np.empty(len(rows), np.int64)
    order[np.argsort(codes, kind="stable")] = np.arange(len(rows))
    columns = []
    for name in COLUMNS[1:]:
        parts = [_column(name, by_record[code], code, gathers) for code in range(len(RECORDS))]
        columns.append(pa.concat_arrays(parts).take(pa.array(order)))
    record = pa.array(RECORDS, pa.string()).take(pa.array(codes))
    return pa.Table.from_arrays([record, *columns], schema=SCHEMA)


def _column(name: str, rows: Sequence[Row], code: int, gathers: Sequence[Int64s]) -> pa.Array:
    """Column `name` of the rows of one record."""
    kind = SCHEMA.field(name).type
    if name not in FIELDS[code]:
        return pa.nulls(len(rows), kind)
    values = list(map(attrgetter(name), rows))
    if name != "gather":
        try:
            return _exact(values, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise TraceError(
                f"{RECORDS[code]} column {name!r} has a wrong type ({_line(error)}); "
                f"expected {kind}; convert the value"
            ) from None
    counts = np.array([0 if value is None else len(value) for value in values], np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    absent = pa.array([value is None for value in values], pa.bool_())
    elements = pa.array(np.concatenate(gathers) if gathers else np.empty(0, np.int64))
    return pa.ListArray.from_arrays(offsets, elements, kind, mask=absent)


def _exact(values: list[Any], kind: pa.DataType) -> pa.Array:
    """`values` as Arrow type `kind`, once their own types fit: pyarrow would make 0 of 0.5.

    The type is always given: to infer one, pyarrow imports modules and loses a Ctrl-C that comes then.
    """
    listed = pa.types.is_list(kind)
    fitting = PYTHON_TYPES[kind.value_type if listed else kind]
    for found in set(map(type, chain.from_iterable(values) if listed else values)):
        if not issubclass(found, fitting) or (found is bool and bool not in fitting):
            raise TypeError(found.__name__)
    return pa.array(values, kind)
