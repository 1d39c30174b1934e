"""The columns of a trace file as Arrow and Parquet see them, and the metadata beside them.

Enters: the row classes of `trace`. Leaves: one schema for all rows, how each column is encoded, and the
JSON text under the metadata key `memsim`. What a row may say is in `trace_rules`, not here.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pyarrow as pa

from memsim.errors import TraceError, nearest, shown
from memsim.system import PROVENANCES
from memsim.trace import VERSION, Access, Kernel, Region

KEY = b"memsim"
MAX_METADATA_BYTES = 1_000_000  # Parquet writes many MB without error and cannot read them back
ROW_GROUP_ROWS = 65_536

RECORDS = ("region", "kernel", "access")  # index = code of a record
REGION, KERNEL, ACCESS = range(3)
ROW_CLASSES = (Region, Kernel, Access)

# Which fields each kind of row fills, in the order of its class.
FIELDS = tuple(tuple(field.name for field in fields(row)) for row in ROW_CLASSES)
OPTIONAL = ("gather",)  # the one field that may be null in its own record

STRINGS = ("record", "name", "kind", "dtype", "family", "retire", "flops_unit", "tile_rule", "spread")
BOOLEANS = ("partial_serial", "write", "dependent", "worked")
LISTS = ("waits_for", "gather")

COLUMNS = tuple(dict.fromkeys(("record", *(name for names in FIELDS for name in names))))
INTEGERS = tuple(name for name in COLUMNS if name not in STRINGS + BOOLEANS + LISTS)


def _arrow_type(name: str) -> pa.DataType:
    if name in STRINGS:
        return pa.string()
    if name in BOOLEANS:
        return pa.bool_()
    return pa.list_(pa.int64()) if name in LISTS else pa.int64()


SCHEMA = pa.schema([pa.field(name, _arrow_type(name)) for name in COLUMNS])

# Deltas of integers are small; the default dictionary doubles the file.
ENCODINGS = {name: "DELTA_BINARY_PACKED" for name in INTEGERS} | {
    f"{name}.list.element": "DELTA_BINARY_PACKED" for name in LISTS
}

# Metadata that a replay or a table reads, and the least value of those that are numbers.
TEXT_KEYS = ("model",)
COUNT_KEYS = ("context_tokens", "batch", "steps", "tokens_per_step", "gpus")
OWN_KEYS = ("schema_version", "rows")
INPUT_KEYS = ("path", "value", "provenance", "source")


def _is_string(found: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    return bool(
        pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)
    )


def _is_list(found: pa.DataType) -> bool:
    listed = pa.types.is_list(found) or pa.types.is_large_list(found)
    return bool(listed and pa.types.is_int64(found.value_type))


def _same_type(name: str, found: pa.DataType) -> bool:
    """Other tools write strings and lists with 64-bit offsets: the values are the same."""
    if name in STRINGS:
        return _is_string(found)
    if name in LISTS:
        return _is_list(found)
    return bool(found.equals(_arrow_type(name)))


def check_columns(path: str, found: pa.Schema) -> None:
    """Raise TraceError unless `found` has exactly the columns of a trace, in any order."""
    for name in found.names:
        if name not in COLUMNS:
            missing = [known for known in COLUMNS if known not in found.names] or COLUMNS
            raise TraceError(
                f"{path}: unknown column {name!r}; expected the {len(COLUMNS)} columns of a trace; "
                f"drop or rename it, {nearest(name, missing)}"
            )
        if found.names.count(name) > 1:
            raise TraceError(f"{path}: column {name!r} occurs twice; expected it once; drop one of them")
    for name in COLUMNS:
        if name not in found.names:
            raise TraceError(
                f"{path}: column {name!r} is missing; expected {_arrow_type(name)}; "
                "add it (null in rows that have no use for it)"
            )
        if not _same_type(name, found.field(name).type):
            raise TraceError(
                f"{path}: column {name!r} has type {found.field(name).type}; "
                f"expected {_arrow_type(name)}; cast it when writing"
            )


def encode_meta(meta: dict[str, Any], rows: dict[str, int]) -> bytes:
    """The JSON text of the metadata; TraceError if it cannot be JSON or is too large."""
    taken = [key for key in OWN_KEYS if key in meta]
    if taken:
        raise TraceError(f"metadata key {taken[0]!r} is the format's own; expected other keys; rename it")
    try:
        text = json.dumps(
            {"schema_version": VERSION, "rows": rows} | meta, ensure_ascii=False, allow_nan=False
        )
        encoded = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceError(
            f"metadata are not JSON: {error}; expected strings, numbers, lists and dicts"
        ) from None
    if len(encoded) > MAX_METADATA_BYTES:
        raise TraceError(
            f"metadata take {len(encoded):,} bytes; expected at most {MAX_METADATA_BYTES:,}, because "
            "larger metadata cannot be read back; keep large inputs in a file beside it"
        )
    return encoded


def decode_meta(path: str, found: dict[bytes, bytes] | None) -> tuple[dict[str, Any], tuple[int, int, int]]:
    """The caller's metadata, and how many regions, kernels and accesses there are; TraceError if wrong."""
    if not found or KEY not in found:
        raise TraceError(
            f"{path}: no metadata under the key 'memsim'; expected a trace; "
            "see docs/trace.md for what a trace file holds"
        )
    try:
        meta = json.loads(found[KEY])
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path}: metadata 'memsim' are not JSON ({error}); record the trace again"
        ) from None
    if not isinstance(meta, dict):
        raise TraceError(f"{path}: metadata 'memsim' are a {type(meta).__name__}; expected a JSON object")
    version = meta.pop("schema_version", None)
    if version != VERSION or isinstance(version, bool):
        raise TraceError(
            f"{path}: trace version {version!r}; expected {VERSION}; "
            "record it again, or use the memsim that wrote it"
        )
    counts = _row_counts(path, meta.pop("rows", None))
    _check_values(path, meta)
    return meta, counts


def _row_counts(path: str, rows: Any) -> tuple[int, int, int]:
    counts = [rows.get(record) for record in RECORDS] if isinstance(rows, dict) else []
    whole = [count for count in counts if type(count) is int and count >= 0]
    if len(whole) != len(RECORDS):
        raise TraceError(
            f"{path}: metadata 'rows' are {short(rows)}; expected how many rows of each record there are, "
            'like {"region": 2, "kernel": 1, "access": 3}; add them when the file is closed'
        )
    return whole[0], whole[1], whole[2]


def _check_values(path: str, meta: dict[str, Any]) -> None:
    for key in TEXT_KEYS:
        if not isinstance(meta.get(key, ""), str):
            raise TraceError(f"{path}: metadata {key!r} is {short(meta[key])}; expected a string; quote it")
    for key in COUNT_KEYS:
        value = meta.get(key, 1)
        if type(value) is not int or value < 1:
            raise TraceError(
                f"{path}: metadata {key!r} is {short(value)}; expected an integer of at least 1; correct it"
            )
    inputs = meta.get("inputs", [])
    if not isinstance(inputs, list):
        raise TraceError(
            f"{path}: metadata 'inputs' are {short(inputs)}; expected a list of objects with "
            f"{', '.join(INPUT_KEYS)}; leave the key out if there are none"
        )
    for index, found in enumerate(inputs):
        _check_input(f"{path}: metadata 'inputs', element {index},", found)


def _check_input(where: str, found: Any) -> None:
    """One number that the trace rests on: what it is, its value, how far it can be trusted, who says so."""
    if not isinstance(found, dict):
        raise TraceError(
            f"{where} is {short(found)}; expected an object with {', '.join(INPUT_KEYS)}; write one"
        )
    for key in INPUT_KEYS:
        if key not in found:
            raise TraceError(f"{where} has no {key!r}; expected {', '.join(INPUT_KEYS)}; add it")
        value = found[key]
        number = key == "value" and type(value) in (int, float)
        if not (number or isinstance(value, str)):
            expected = "a text or a number" if key == "value" else "a text"
            raise TraceError(f"{where} has {key} = {short(value)}; expected {expected}; correct it")
    if found["provenance"] not in PROVENANCES:
        word = found["provenance"]
        raise TraceError(
            f"{where} has provenance = {short(word)}; expected {', '.join(PROVENANCES)}; "
            f"{nearest(word, PROVENANCES)}"
        )


def short(value: Any) -> str:
    """`value` as a message shows it: on one line, not too long."""
    return shown(value, 60)
