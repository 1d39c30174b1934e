"""What the trace writer leaves on disk: exact rows, the promised columns and encodings, all or nothing."""

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from trace_samples import KV, META, SMALL, listed, read_rows, small_kernel, traces, without_rights, write

from memsim import trace_batch, trace_write
from memsim.errors import OutputError, TraceError
from memsim.trace import VERSION, Access, Kernel, Region
from memsim.trace_read import open_trace
from memsim.trace_write import TraceWriter

INTEGERS = [
    *("id", "layer", "bytes", "row_bytes", "page_rows", "page_head_bytes", "page_bytes"),
    *("step", "stream", "blocks", "blocks_per_unit", "tile_rows", "tile_bytes", "tiles_in_flight"),
    *("flops_per_tile", "startup_ps", "drain_ps", "tile_ps", "blocks_sharing", "partial_region"),
    *("partial_bytes", "kernel", "block", "block_last", "region", "first_row", "rows", "stride", "grain"),
]
STRINGS = ["record", "name", "kind", "dtype", "family", "retire", "flops_unit", "tile_rule", "spread"]
BOOLEANS = ["partial_serial", "write", "dependent", "worked"]
LISTS = ("waits_for", "gather")
HEADS = (*SMALL[:2], small_kernel(0))


@settings(max_examples=40)
@given(rows=traces())
def test_what_is_written_is_read_back(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.parquet"
    write(path, rows)
    trace = open_trace(path)
    assert read_rows(trace) == [listed(row) for row in rows]
    assert trace.meta == META


@settings(max_examples=25)
@given(rows=traces())
def test_rows_survive_small_row_groups_and_small_batches(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_write, "ROW_GROUP_ROWS", 5)
        patch.setattr(trace_batch, "BATCH_GATHERED", 2)
        write(path, rows)
        assert pq.ParquetFile(path).num_row_groups == -(-len(rows) // 5)
        assert read_rows(open_trace(path)) == [listed(row) for row in rows]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.parquet"
    write(path, SMALL)
    return path


def test_every_column_has_its_type(small):
    expected = {name: pa.int64() for name in INTEGERS} | {name: pa.string() for name in STRINGS}
    expected |= {name: pa.bool_() for name in BOOLEANS} | {name: pa.list_(pa.int64()) for name in LISTS}
    found = pq.read_schema(small)
    assert {field.name: field.type for field in found} == expected
    assert all(field.nullable for field in found)


def test_columns_are_the_fields_of_the_rows(small):
    known = {field.name for row in (Region, Kernel, Access) for field in fields(row)}
    assert set(pq.read_schema(small).names) == known | {"record"}


def test_integers_are_delta_packed_and_strings_are_dictionaries(small):
    group = pq.ParquetFile(small).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for name in [*INTEGERS, "waits_for.list.element", "gather.list.element"]:
        assert "DELTA_BINARY_PACKED" in columns[name].encodings, name
        assert not columns[name].has_dictionary_page, name
    for name in STRINGS:
        assert columns[name].has_dictionary_page, name
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_plain_pyarrow_reads_the_rows(small):
    rows = pq.read_table(small).to_pylist()
    assert [row["record"] for row in rows] == (
        ["region"] * 2 + ["kernel"] + ["access"] * 2 + ["kernel"] * 2 + ["access"] * 2
    )
    assert rows[4]["gather"] == [999, 0, 5]
    assert rows[3]["gather"] is None
    assert rows[6]["waits_for"] == [0, 1]
    assert rows[0]["kernel"] is None


def test_metadata_hold_version_counts_and_what_the_caller_says(small):
    meta = json.loads(pq.read_metadata(small).metadata[b"memsim"])
    counts = {"region": 2, "kernel": 3, "access": 4}
    assert meta == {"schema_version": VERSION, "rows": counts, **META}


def test_row_groups_are_flushed_while_rows_come(tmp_path):
    accesses = (Access(0, 0, 0, 0, False, row % 1000, 1) for row in range(140_000))
    held = []
    with TraceWriter(tmp_path / "t.parquet", META) as trace:
        trace.region(KV)
        trace.kernel(small_kernel(0))
        for access in accesses:
            trace.access(access)
            held.append(len(trace._rows))
    file = pq.ParquetFile(tmp_path / "t.parquet").metadata
    assert [file.row_group(i).num_rows for i in range(3)] == [65_536, 65_536, 140_002 - 2 * 65_536]
    assert max(held) < 65_536


def test_many_gathered_rows_close_a_row_group_early(tmp_path):
    rows = np.zeros(1_000_000, np.int64)
    with TraceWriter(tmp_path / "t.parquet", META) as trace:
        for row in HEADS:
            trace.kernel(row) if isinstance(row, Kernel) else trace.region(row)
        for _ in range(9):
            trace.access(Access(0, 0, 0, 0, False, 0, len(rows), gather=rows))
    file = pq.ParquetFile(tmp_path / "t.parquet").metadata
    assert [file.row_group(i).num_rows for i in range(2)] == [8, 4]


def test_a_row_list_is_copied(tmp_path):
    buffer = np.array([1, 2, 3])
    with TraceWriter(tmp_path / "t.parquet", META) as trace:
        trace.region(KV)
        trace.kernel(small_kernel(0))
        trace.access(Access(0, 0, 0, 0, False, 0, 3, gather=buffer))
        buffer[:] = 9
    (_, accesses), *_ = open_trace(tmp_path / "t.parquet").kernels()
    assert accesses.gather_rows.tolist() == [1, 2, 3]


# All or nothing


def start(trace, error=None):
    """Write enough rows for several row groups of 10; then raise `error`."""
    trace.region(KV)
    trace.kernel(small_kernel(0))
    for row in range(50):
        trace.access(Access(0, 0, 0, 0, False, row, 1))
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("older", [None, b"older"])
def test_an_exception_leaves_nothing_new(tmp_path, monkeypatch, error, older):
    monkeypatch.setattr(trace_write, "ROW_GROUP_ROWS", 10)
    path = tmp_path / "t.parquet"
    if older is not None:
        path.write_bytes(older)
    with pytest.raises(error), TraceWriter(path, META) as trace:
        start(trace, error)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if older is None else [older])
    assert trace._file.closed


def test_an_exception_that_drops_the_writer_leaves_nothing(tmp_path):
    """The writer has no other owner, so it is collected while the exception passes."""
    with pytest.raises(ZeroDivisionError), TraceWriter(tmp_path / "t.parquet", META):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("where", "name"),
    [(pq.ParquetWriter, "write_table"), (pq.ParquetWriter, "close"), (os, "fsync"), (os, "replace")],
)
def test_ctrl_c_while_writing_leaves_nothing(tmp_path, monkeypatch, where, name):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trace_write, "ROW_GROUP_ROWS", 10)
        patch.setattr(where, name, interrupt)
        with pytest.raises(KeyboardInterrupt), TraceWriter(tmp_path / "t.parquet", META) as trace:
            start(trace)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attempt", range(3))
def test_a_signal_in_mid_write_leaves_nothing(tmp_path, attempt):
    program = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts without one
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_trace_write import *
trace_write.ROW_GROUP_ROWS = 10
with TraceWriter({str(tmp_path / "t.parquet")!r}, META) as trace:
    start(trace)
    print("begun", flush=True)
    for row in range(30_000):  # seconds of work, should the signal be lost
        trace.access(Access(0, 0, 0, 0, False, row % 1000, 1))
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writing:
        assert writing.stdout.readline() == b"begun\n"
        assert len(list(tmp_path.iterdir())) == 1
        writing.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in writing.communicate()[1]
    assert list(tmp_path.iterdir()) == []


def test_no_module_is_imported_while_rows_are_written(small, monkeypatch):
    """pyarrow swallows a Ctrl-C that comes while it imports one to infer a type."""
    asked = []

    class Finder:
        def find_spec(self, name, path=None, target=None):
            asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    write(small, SMALL)
    assert asked == []


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_write, "ROW_GROUP_ROWS", 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(
            OutputError, match=r"t\.parquet: cannot be written \(File too large\); expected"
        ) as error:
            write(tmp_path / "t.parquet", [*HEADS, *(Access(0, 0, 0, 0, False, i, 1) for i in range(500))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_older_trace_is_replaced_through_a_link(tmp_path):
    write(tmp_path / "real.parquet", HEADS)
    (tmp_path / "link.parquet").symlink_to(tmp_path / "real.parquet")
    write(tmp_path / "link.parquet", SMALL)
    assert (tmp_path / "link.parquet").is_symlink()
    assert open_trace(tmp_path / "real.parquet").kernel_count == 3


def test_a_new_trace_is_as_readable_as_any_new_file(small, tmp_path):
    (tmp_path / "other").touch()
    assert small.stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/t.parquet", "no directory .*missing; expected an existing one; create it first"),
        ("folder", "is a directory; expected a file to write"),
        ("file/t.parquet", "no directory .*file; expected"),
        ("x" * 300, r"cannot be written \(File name too long\)"),
        ("nul\0", "cannot be written .*null"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line(tmp_path, name, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match=words) as error:
        write(tmp_path / name, SMALL)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # as /dev/null, which a test should rather not put at risk
    with pytest.raises(OutputError, match=r"pipe: is a device, pipe or socket; expected a file"):
        write(tmp_path / "pipe", SMALL)
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_without_permission_is_one_line(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with without_rights(), pytest.raises(OutputError, match="Permission denied|write-protected"):
        write(tmp_path / "locked" / "t.parquet", SMALL)
    assert list((tmp_path / "locked").iterdir()) == []


# What a programmer may get wrong


def test_regions_come_before_kernels(tmp_path):
    with pytest.raises(TraceError, match="region 'layer0.index' after kernel 0; expected all regions first"):
        write(tmp_path / "t", [KV, small_kernel(0), SMALL[1]])


def test_an_access_needs_a_kernel(tmp_path):
    with pytest.raises(TraceError, match="access of kernel 0 before any kernel; expected its kernel first"):
        write(tmp_path / "t", [KV, SMALL[3]])


def test_an_access_follows_its_own_kernel(tmp_path):
    with pytest.raises(TraceError, match="access of kernel 0 after kernel 1; expected its kernel first"):
        write(tmp_path / "t", [KV, small_kernel(0), small_kernel(1), SMALL[3]])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            Access(0, 0, 0, 0, False, 0.5, 1),
            r"access column 'first_row' has a wrong type \(float\); expected",
        ),
        (Access(0, 0, 0, 0, False, "5", 1), r"wrong type \(str\); expected int64; convert"),
        (Access(0, 0, 0, 0, False, None, 1), "'first_row'.* wrong type"),
        (Access(0, 0, 0, True, False, 0, 1), "'region'.* wrong type"),
        (small_kernel(1, flops_unit=3), "kernel column 'flops_unit' has a wrong type"),
        (Kernel(1, "k", "k", 0, 0, 0, (0.5,), 1, 1, 1, 1, 1), r"'waits_for'.* \(float\); expected"),
        (Access(0, 0, 0, 0, False, 2**63, 1), "'first_row'.* wrong type"),
        (Access(0, 0, 0, 0, 1, 0, 1), "'write'.* wrong type"),
        (
            Access(0, 0, 0, 0, False, 0, 2, gather=np.array([0.0, 1.0])),
            r"gather is float64\[2\]; expected .*int64",
        ),
        (Access(0, 0, 0, 0, False, 0, 2, gather=np.array([[0, 1]])), r"gather is int64\[1, 2\]; expected"),
        (Access(0, 0, 0, 0, False, 0, 2, gather=[0, 1]), "gather is list; expected"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(tmp_path, row, words):
    with pytest.raises(TraceError, match=words):
        write(tmp_path / "t", [*HEADS, row])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"rows": 3}, "metadata key 'rows' is the format's own"),
        ({"schema_version": 3}, "metadata key 'schema_version' is the format's own"),
        ({"seed": np.int64(3)}, "metadata are not JSON: .*int64"),
        ({"seed": float("nan")}, "metadata are not JSON"),
        ({"selection": "x" * 1_000_000}, r"metadata take 1,000,\d+ bytes; expected at most 1,000,000"),
    ],
)
def test_metadata_are_refused_before_the_work(tmp_path, meta, words):
    with pytest.raises(TraceError, match=words), TraceWriter(tmp_path / "t", meta):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == []
