"""Faults of a trace file, its metadata and columns: one line with the file, what was found, the remedy."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_samples import SMALL, changed, fault, without_rights

from memsim import trace_batch, trace_read
from memsim.trace_check import Summary, check_trace
from memsim.trace_read import open_trace

HUGE = 2**63 - 1
INPUT = {"path": "model.layers", "value": 61, "provenance": "stated", "source": "its configuration"}


def test_a_valid_trace_is_counted(path):
    expected = Summary(
        path=str(path),
        regions=2,
        kernels=3,
        accesses=4,
        steps=2,
        gathered_rows=3,
        region_bytes=1_152_000 + 84_480,
    )
    assert check_trace(path) == expected


def test_a_rewritten_valid_trace_stays_valid(path):
    changed(path)
    assert check_trace(path).accesses == 4


# Files


def test_a_missing_file(tmp_path):
    assert fault(tmp_path / "no.parquet").startswith("no such file; expected a trace; check the path")


def test_a_directory(tmp_path):
    assert fault(tmp_path).startswith("is a directory; expected a trace file; name a file in it")


def test_a_device():
    assert fault(Path("/dev/null")).startswith("is a device, pipe or socket; expected a trace file")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert fault(tmp_path / "pipe").startswith("is a device, pipe or socket")


def test_a_path_through_a_file(path):
    assert fault(path / "t.parquet").startswith("cannot be read")


def test_no_permission(path):
    path.chmod(0)
    with without_rights():
        assert fault(path).startswith("no permission to read it; expected a readable trace; change its mode")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty (0 bytes); expected a trace; record it again"),
        (b"hello, world", "is not a Parquet file (begins with b'hell'); expected b'PAR1'"),
        (b"PAR1", "is truncated (ends with b'PAR1', not b'PAR1')"),
        (b"PAR1 and then nothing", "is truncated (ends with b'hing', not b'PAR1'); copy or record it again"),
        (b"PAR1 a footer? \xff\xff\xff\x00PAR1", "truncated or damaged ("),
        (b"PAR1" + bytes(50) + b"\x10\x00\x00\x00PAR1", "truncated or damaged ("),
    ],
)
def test_other_content(tmp_path, content, words):
    (tmp_path / "t.parquet").write_bytes(content)
    assert fault(tmp_path / "t.parquet").startswith(words)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99])
def test_a_truncated_trace(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "truncated" in fault(path)


def test_damaged_pages_are_found_by_their_checksums(path):
    content = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content[column.dictionary_page_offset + column.total_compressed_size - 2] ^= 0xFF
    path.write_bytes(content)
    assert fault(path).startswith("row 0 or later: truncated or damaged (")


# Metadata and columns


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            {"schema_version": 2},
            "trace version 2; expected 1; record it again, or use the memsim that wrote it",
        ),
        ({"schema_version": None}, "trace version None; expected 1"),
        ({"schema_version": True}, "trace version True; expected 1"),
        ({"rows": None}, "metadata 'rows' are None; expected how many rows of each record there are"),
        ({"rows": {"region": 2, "kernel": -3, "access": 4}}, "metadata 'rows' are {"),
        (
            {"rows": {"region": 2, "kernel": 3, "access": 5}},
            "the file holds 9 rows and its metadata count 10",
        ),
        ({"rows": {"region": 2, "kernel": 4, "access": 3}}, "holds other rows than its metadata count"),
        (
            {"rows": {"region": 3, "kernel": 3, "access": 3}},
            "row 2: is a kernel; expected the file's 3 regions",
        ),
        (
            {"rows": {"region": 1, "kernel": 3, "access": 5}},
            "row 1: is a region; expected the file's 1 regions",
        ),
        ({"rows": {"region": 9, "kernel": 0, "access": 0}}, "has no kernels; expected at least one"),
        ({"model": 3}, "metadata 'model' is 3; expected a string"),
        ({"steps": 0}, "metadata 'steps' is 0; expected an integer of at least 1"),
        ({"batch": 1.5}, "metadata 'batch' is 1.5; expected an integer of at least 1"),
        ({"context_tokens": "1M"}, "metadata 'context_tokens' is '1M'; expected an integer"),
        ({"tokens_per_step": True}, "metadata 'tokens_per_step' is True; expected an integer"),
        ({"inputs": "abc"}, "metadata 'inputs' are 'abc'; expected a list of objects with path, value,"),
        ({"inputs": None}, "metadata 'inputs' are None; expected a list of objects"),
        ({"inputs": [INPUT, 1]}, "metadata 'inputs', element 1, is 1; expected an object with path, value,"),
        ({"inputs": [{}]}, "metadata 'inputs', element 0, has no 'path'; expected path, value, provenance,"),
        (
            {"inputs": [INPUT | {"value": [1]}]},
            "metadata 'inputs', element 0, has value = [1]; expected a text or a number; correct it",
        ),
        (
            {"inputs": [INPUT | {"source": 3}]},
            "metadata 'inputs', element 0, has source = 3; expected a text; correct it",
        ),
        (
            {"inputs": [INPUT | {"provenance": "guesed"}]},
            "metadata 'inputs', element 0, has provenance = 'guesed'; expected measured, calibrated, stated,",
        ),
    ],
)
def test_wrong_metadata(path, edit, words):
    changed(path, edit_meta=lambda meta: meta.update(edit))
    assert fault(path).startswith(words)


def test_inputs_may_hold_texts_numbers_and_more_keys(path):
    inputs = [INPUT, INPUT | {"value": "61"}, INPUT | {"value": 0.5, "note": None}]
    changed(path, edit_meta=lambda meta: meta.update(inputs=inputs))
    assert open_trace(path).meta["inputs"] == inputs


def test_what_the_blocks_of_a_kernel_walk_has_a_limit(path, monkeypatch):
    monkeypatch.setattr(trace_read, "MAX_DEALT", 5)  # kernel 0: one block, then four; kernel 2: four, one
    assert check_trace(path).accesses == 4
    monkeypatch.setattr(trace_read, "MAX_DEALT", 4)
    words = (
        "row 4: access of kernel 0 brings what the kernel's blocks walk to 5 accesses (each counted once a "
        "block); expected at most 4 a kernel; join its accesses, give it fewer blocks, or split it"
    )
    assert fault(path) == words
    monkeypatch.setattr(trace_batch, "BATCH_GATHERED", 1)  # the count goes on from batch to batch
    assert fault(path) == words


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "no metadata under the key 'memsim'; expected a trace; see docs/trace.md"),
        ({"pandas": "{}"}, "no metadata under the key 'memsim'"),
        ({"memsim": "{"}, "metadata 'memsim' are not JSON ("),
        ({"memsim": b"\xff"}, "metadata 'memsim' are not JSON ("),
        ({"memsim": "[1]"}, "metadata 'memsim' are a list; expected a JSON object"),
    ],
)
def test_no_metadata_of_a_trace(path, metadata, words):
    changed(path, edit_table=lambda table: table.replace_schema_metadata(metadata))
    assert fault(path).startswith(words)


def with_column(name, values):
    """An edit that replaces column `name`, or adds it."""

    def edit(table):
        if name not in table.column_names:
            return table.append_column(name, values)
        return table.set_column(table.column_names.index(name), name, values)

    return edit


NULLS = [None] * len(SMALL)


def without(name):
    return lambda table: table.drop_columns([name])


def misspelt(name, found):
    def edit(table):
        names = [found if column == name else column for column in table.column_names]
        return table.rename_columns(names).replace_schema_metadata(table.schema.metadata)

    return edit


def of_type(name, kind):
    return with_column(name, pa.array(NULLS, kind))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (without("stride"), "column 'stride' is missing; expected int64; add it"),
        (without("record"), "column 'record' is missing; expected string; add it"),
        (of_type("strides", pa.int64()), "unknown column 'strides'; expected the 44 columns of a trace; "),
        (misspelt("stride", "strid"), "unknown column 'strid'; expected the 44 columns of a trace; drop or "
                                      "rename it, did you mean 'stride'?"),
        (lambda table: table.append_column("rows", table["rows"]), "column 'rows' occurs twice"),
        (of_type("rows", pa.int32()), "column 'rows' has type int32; expected int64; cast it when writing"),
        (of_type("rows", pa.uint64()), "column 'rows' has type uint64; expected int64"),
        (of_type("rows", pa.float64()), "column 'rows' has type double; expected int64"),
        (of_type("write", pa.int64()), "column 'write' has type int64; expected bool"),
        (of_type("name", pa.int64()), "column 'name' has type int64; expected string"),
        (of_type("record", pa.binary()), "column 'record' has type binary; expected string"),
        (of_type("gather", pa.int64()), "column 'gather' has type int64; expected list<"),
        (of_type("gather", pa.list_(pa.int32())), "column 'gather' has type list<element: int32>; expected"),
    ],
)  # fmt: skip
def test_wrong_columns(path, edit, words):
    changed(path, edit_table=edit)
    assert fault(path).startswith(words)


def test_other_string_and_list_types_are_read(path):
    def edit(table):
        table = with_column("name", table["name"].dictionary_encode())(table)
        table = with_column("family", table["family"].cast(pa.large_string()))(table)
        return with_column("gather", table["gather"].cast(pa.large_list(pa.int64())))(table)

    changed(path, edit_table=edit)
    found = pq.read_schema(path)
    assert found.field("family").type == pa.large_string()
    assert pa.types.is_dictionary(found.field("name").type)
    assert check_trace(path).gathered_rows == 3


def test_columns_may_come_in_any_order(path):
    changed(path, edit_table=lambda table: table.select(sorted(table.column_names)))
    assert check_trace(path).accesses == 4
