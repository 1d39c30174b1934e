"""Measurements that others published: which there are, and their rows in plain integers.

Enters: `tables/` (files as they were published, `tables.toml`, `outliers.toml`). Leaves: `tables()`, what
each one is, and `load(name)`, a pyarrow table with our column names, times in picoseconds and bytes where a
plain formula gives them. Rows that look wrong are marked in the column `outlier`, never dropped or mended.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.errors import UsageError, cut, nearest

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Columns = dict[str, np.ndarray]
    Bytes = tuple[np.ndarray, np.ndarray, np.ndarray]  # read, written, rows that the formula holds for

FOLDER = Path(__file__).with_name("tables")

RENAMED = {
    "kernel_source": "kernel",
    "op_name": "operation",
    "model_name": "model",
    "batch_size": "batch",
    "isl": "query_tokens",
    "seq_len": "query_tokens",
    "num_tokens": "tokens",
    "step": "context_tokens",
    "window_size": "window_tokens",
    "num_heads": "heads",
    "num_v_heads": "heads",
    "num_k_heads": "key_heads",
    "num_key_value_heads": "key_heads",
    "kv_cache_dtype": "kv_dtype",
    "gemm_type": "gemm_dtype",
    "nccl_dtype": "dtype",
    "allreduce_dtype": "dtype",
    "hidden_size": "hidden",
    "inter_size": "inter",
    "num_experts": "experts",
    "tp_size": "tp",
    "moe_tp_size": "tp",
    "moe_ep_size": "ep",
    "num_gpus": "gpus",
    "message_size": "elements",
}
PS_PER_MS, PS_PER_US, PS_PER_NS = 10**9, 10**6, 10**3
DTYPE_BYTES = {"bfloat16": 2, "half": 2, "fp8": 1, "fp8_block": 1, "fp8_e4m3": 1, "int8": 1}


@dataclass(frozen=True)
class PublicTable:
    """One published table.

    kind          kernel (one operation alone), module (a whole layer part) or curve (bandwidth, latency)
    axes          columns that tell its rows apart
    run           axes along which more never takes less time, if nothing else changes
    formula       how bytes_read and bytes_written are counted; empty: they are not
    context_rule  which numbers of cached tokens it holds: 2^k, 2^k - 1 or mixed; empty: no context
    projections   the time includes the matrix products around the attention
    flushed       the L2 was flushed between calls
    clock_mhz     assumed clock of latencies that the file gives in cycles
    """

    name: str
    kind: str
    machine: str
    framework: str
    what: str
    path: Path
    source: str
    licence: str
    copyright: str
    axes: tuple[str, ...]
    run: tuple[str, ...] = ()
    formula: str = ""
    context_rule: str = ""
    projections: bool = False
    flushed: bool = False
    clock_mhz: int = 0


@cache
def tables() -> tuple[PublicTable, ...]:
    """All public tables, in the order of tables.toml."""
    listed = tomllib.loads((FOLDER / "tables.toml").read_text(encoding="utf-8"))
    return tuple(_described(name, entry, listed["source"]) for name, entry in listed["table"].items())


def _described(name: str, entry: dict[str, Any], sources: Mapping[str, Any]) -> PublicTable:
    source = sources[entry["source"]]
    plain = ("kind", "machine", "framework", "what", "context_rule", "projections", "flushed", "clock_mhz")
    return PublicTable(
        name=name,
        path=FOLDER / entry["source"] / entry["file"],
        source=f"{source['repository']} at {source['commit']}",
        licence=source["licence"],
        copyright=source["copyright"],
        axes=tuple(entry["axes"]),
        run=tuple(entry.get("run", ())),
        formula=entry.get("bytes", ""),
        **{key: entry[key] for key in plain if key in entry},
    )


def table(name: str) -> PublicTable:
    """The public table of that name; UsageError for another."""
    for each in tables():
        if each.name == name:
            return each
    raise UsageError(f"unknown table '{cut(name)}'; {nearest(name, (each.name for each in tables()))}")


def facts(described: PublicTable) -> dict[str, Any]:
    """What a table is, as plain values for JSON."""
    return {**asdict(described), "path": described.path.relative_to(FOLDER).as_posix()}


def load(name: str) -> pa.Table:
    """Every row of a public table, in the file's order.

    Kernels and modules: the axes, what else differs from row to row, `latency_ps` (null: not run),
    `bytes_read` and `bytes_written` (null: no plain formula holds) and `outlier` (a reason, or empty).
    Curves: read_percent, mbps, latency_ps and what the file says besides. UsageError for an unknown name.
    """
    import pyarrow as pa

    described = table(name)
    if described.kind == "curve":
        return pa.Table.from_pylist(list(_curve(described)))
    columns = _columns(described)
    data: dict[str, Any] = {name: columns[name] for name in _telling(described, columns)}
    data["latency_ps"] = _picoseconds(columns)
    if described.formula:
        read, written, holds = FORMULAS[described.formula](columns)
        data["bytes_read"] = pa.array(read, pa.int64(), mask=~holds)
        data["bytes_written"] = pa.array(written, pa.int64(), mask=~holds)
    data["outlier"] = _marks(name, columns)
    return pa.table(data)


def _columns(described: PublicTable) -> Columns:
    """All columns of the file under our names."""
    import pyarrow.csv
    import pyarrow.parquet

    if described.path.suffix == ".csv":
        read = pyarrow.csv.read_csv(described.path)
    else:
        read = pyarrow.parquet.read_table(described.path)
    return {
        RENAMED.get(name, name): read[name].combine_chunks().to_numpy(zero_copy_only=False)
        for name in read.column_names
    }


def _telling(described: PublicTable, columns: Columns) -> list[str]:
    """The axes, then the other columns that are not the same in every row."""
    others = [name for name in columns if name not in described.axes and not name.startswith("latency")]
    return [*described.axes, *(name for name in others if (columns[name] != columns[name][0]).any())]


def _picoseconds(columns: Columns) -> pa.Array:
    """Times of all rows [ps]; null where the file says 0, which stands for a case that was not run."""
    import numpy as np
    import pyarrow as pa

    unit, factor = ("latency", PS_PER_MS) if "latency" in columns else ("latency_us", PS_PER_US)
    times = columns[unit]
    return pa.array(np.rint(times * factor).astype(np.int64), mask=times == 0)


# Bytes of one call, from the shapes. The token that is decoded counts as one more row of the cache.


def _state(of: Columns) -> Bytes:
    """Recurrent state, fp32 [key width, value width] a head and sequence, read and written once a token."""
    import numpy as np

    moved = of["batch"] * of["heads"] * of["head_k_dim"] * of["head_v_dim"] * 4
    kernels = np.array(["fused" in kernel for kernel in of["kernel"]])
    return moved, moved, (of["phase"] == "generation") & kernels


def _latent(of: Columns) -> Bytes:
    """Latent rows of 512 + 64 elements a token, shared by all heads; queries and outputs left out."""
    import numpy as np

    rows = of["batch"] * (of["context_tokens"] + 1)
    width = _widths(of["kv_dtype"]) if "kv_dtype" in of else 2
    return rows * 576 * width, np.zeros_like(rows), rows > 0


def _kv(of: Columns) -> Bytes:
    """Keys and values of equal width, of the window if there is one; not for 192 (values may be narrower)."""
    import numpy as np

    held = of["context_tokens"] + 1
    seen = np.where(of["window_tokens"] > 0, np.minimum(held, of["window_tokens"]), held)
    rows = of["batch"] * of["key_heads"] * seen
    return rows * 2 * of["head_dim"] * _widths(of["kv_dtype"]), np.zeros_like(rows), of["head_dim"] != 192


def _index(of: Columns) -> Bytes:
    """Index rows of 128 B with a 4-byte scale, one per 4 tokens; an fp32 logit each; one query token."""
    rows = of["batch"] * ((of["context_tokens"] + of["query_tokens"]) // of["compress_ratio"])
    return rows * 132, rows * 4, of["query_tokens"] == 1


def _gemm(of: Columns) -> Bytes:
    """Both factors read once, the bf16 product written; scales left out."""
    width = _widths(of["gemm_dtype"])
    return (of["m"] * of["k"] + of["k"] * of["n"]) * width, of["m"] * of["n"] * 2, of["m"] > 0


FORMULAS: dict[str, Callable[[Columns], Bytes]] = {
    "state": _state,
    "latent": _latent,
    "kv": _kv,
    "index": _index,
    "gemm": _gemm,
}


def _widths(dtypes: Iterable[str]) -> np.ndarray:
    import numpy as np

    return np.array([DTYPE_BYTES[dtype] for dtype in dtypes], dtype=np.int64)


def _curve(described: PublicTable) -> Iterator[dict[str, Any]]:
    """Rows of a bandwidth-latency curve."""
    if described.path.is_dir():
        for path in sorted(described.path.glob("bwlat_*.txt"), key=_read_percent):
            yield from _cycles_curve(path, described.clock_mhz)
        return
    with described.path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            read, written = int(row["read_bytes_per_s"]), int(row["write_bytes_per_s"])
            yield {
                "read_percent": int(row["rd_percentage"]),
                "pause": int(row["pause"]),
                "mbps": round((read + written) / 10**6),
                "latency_ps": int(row["avg_access_latency_ns"]) * PS_PER_NS,
                "read_mbps": round(read / 10**6),
                "write_mbps": round(written / 10**6),
            }


def _read_percent(path: Path) -> int:
    return int(path.stem.removeprefix("bwlat_"))


def _cycles_curve(path: Path, clock_mhz: int) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    for point, line in enumerate(filter(str.strip, lines)):
        mbps, cycles = map(float, line.split())
        yield {
            "read_percent": _read_percent(path),
            "point": point,
            "mbps": max(0, round(mbps)),  # near idle the counters' difference can be below 0
            "latency_ps": round(cycles * 10**6 / clock_mhz),
            "latency_cycles": cycles,
        }


@dataclass(frozen=True)
class Oddity:
    """Rows of a table that look wrong, or that belong to another regime than their neighbours.

    sort    point (single rows) or regime (a stretch of rows that goes by other rules)
    axes    columns that pick the rows
    rows    for each pick the values that every one of the axes may have
    """

    table: str
    sort: str
    reason: str
    axes: tuple[str, ...]
    rows: tuple[tuple[tuple[Any, ...], ...], ...]

    def keys(self) -> set[tuple[Any, ...]]:
        """Values of `axes` of all the rows that it picks."""
        return {key for row in self.rows for key in product(*row)}


@cache
def oddities() -> tuple[Oddity, ...]:
    """What outliers.toml lists."""
    listed = tomllib.loads((FOLDER / "outliers.toml").read_text(encoding="utf-8"))
    return tuple(
        Oddity(
            entry["table"],
            entry["sort"],
            entry["reason"],
            tuple(entry["axes"]),
            tuple(tuple(_several(value) for value in row) for row in entry["rows"]),
        )
        for entry in listed["oddity"]
    )


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _marks(name: str, columns: Columns) -> list[str]:
    """The reason for each row that outliers.toml lists, else an empty word."""
    marks = [""] * len(next(iter(columns.values())))
    for oddity in (each for each in oddities() if each.table == name):
        wanted = oddity.keys()
        values = zip(*(columns[axis].tolist() for axis in oddity.axes), strict=True)
        for row, key in enumerate(values):
            if key in wanted:
                marks[row] = f"{marks[row]}; {oddity.reason}" if marks[row] else oddity.reason
    return marks
