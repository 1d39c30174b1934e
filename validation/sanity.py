"""Our figures beside published ones of the same chip: what should agree, and why where it does not.

Enters: the rows of one machine, the public tables, a few published constants. Leaves: `lines(machine)`. Rows
of a family and of a public table are the same if batch, heads and cached tokens are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from validation import figures_rows, public
from validation.figures_rows import Row, number
from validation.figures_words import said
from validation.repeat import folder_of

CLOSE = 0.05
GIB = 2**30
BENCHES, LINKS = "gpu-benches", "ml-engineering"
SOURCES = {
    BENCHES: "GH200, the same die with HBM of 4.0 TB/s; github.com/RRZE-HPC/gpu-benches",
    LINKS: "an H200 server; github.com/stas00/ml-engineering, compute/accelerator and network",
}


@dataclass(frozen=True)
class Line:
    """One comparison, in GB/s, us or ns. why: what is known of a difference."""

    what: str
    unit: str
    ours: float
    theirs: float
    source: str
    why: str = ""

    @property
    def difference(self) -> float:
        return self.ours / self.theirs - 1

    @property
    def close(self) -> bool:
        return abs(self.difference) <= CLOSE


@dataclass(frozen=True)
class Constant:
    """A published number and the row of ours that it is held against; `unit` GB/s or ns."""

    family: str
    where: Mapping[str, Any]
    unit: str
    theirs: float
    source: str
    why: str = ""


@dataclass(frozen=True)
class Shapes:
    """Points of a family that a public table has too.

    at       (batch, heads) or (batch, heads, context) of the points
    table    its name; `where` picks rows; `less` tokens that it has fewer of (2^k - 1 for 2^k)
    """

    family: str
    axes: tuple[str, ...]
    at: tuple[tuple[int, ...], ...]
    table: str
    where: Mapping[str, Any] = field(default_factory=dict)
    less: int = 0
    why: str = ""


def stream(size: int = 10 * GIB) -> dict[str, Any]:
    return {"bytes": size, "cache": "cold", "blocks": 1056, "flight": 8192}


WRITES = "the order of the writes matters: with 2 KiB at a time in 132 blocks it is 4.47 TB/s"
TURNS = "the order of reads and writes: in pieces of 32 KiB 3.81 TB/s; the GDN kernel, 4 KiB a block, 4.2"
KDA = "another kernel: FLA's reaches 3.2 TB/s up to 0.5 GB of states and 2.8 TB/s beyond 1 GB"
MLA = "another kernel: FlashMLA takes up to 64 heads as 64; 128 are bound by arithmetic at 700 W and 1.5 GHz"
CONSTANTS = (
    Constant("stream.read", stream(), "GB/s", 4800 * 0.94, f"{BENCHES}, 94 % of 4.8 TB/s"),
    Constant("stream.write", stream(), "GB/s", 4800 * 0.98, f"{BENCHES}, 98 % of 4.8 TB/s", WRITES),
    Constant("stream.copy", stream(), "GB/s", 4800 * 0.79, f"{BENCHES}, 79 % of 4.8 TB/s"),
    Constant("stream.update", stream(), "GB/s", 4110, "gdn-vllm, slope above 200 MB", TURNS),
    Constant("chase.latency", {"footprint": 16 << 20, "stride": 128}, "ns", 141.6, f"{BENCHES}, near L2"),
    Constant("chase.latency", {"footprint": GIB, "stride": 128}, "ns", 346, f"{BENCHES}, HBM"),
    Constant("host.copy", {"direction": "in", "bytes": GIB}, "GB/s", 55.43, LINKS),
    Constant("host.copy", {"direction": "out", "bytes": GIB}, "GB/s", 55.06, LINKS),
    Constant("peer.copy", {"direction": "in", "bytes": GIB}, "GB/s", 396.4, LINKS),
    Constant("peer.copy", {"direction": "out", "bytes": GIB}, "GB/s", 396.4, LINKS),
)
STATES, CACHES = ("batch", "heads"), ("batch", "heads", "context")
LARGE = ((64, 96), (128, 96), (256, 96))
KERNELS = {
    "packed": {"kernel": "fused_recurrent_kda_packed_decode"},
    "fused": {"kernel": "fused_kda_decode"},
    "gdn": {"kernel": "fused_recurrent_gated_delta_rule_packed_decode"},
}
LONG = ((1, 16, 131072), (1, 128, 131072), (128, 16, 65536), (128, 128, 65536))
MANY = ((1, 16, 131072), (1, 128, 131072), (64, 16, 32768), (64, 128, 32768))
SHAPES = (
    Shapes("kda", STATES, LARGE, "kda-vllm", KERNELS["packed"], why=KDA),
    Shapes("kda", STATES, LARGE, "kda-vllm", KERNELS["fused"], why=KDA),
    Shapes("gdn", STATES, ((64, 64), (128, 64), (256, 64), (256, 32)), "gdn-vllm", KERNELS["gdn"]),
    Shapes("mla.dense", CACHES, LONG, "mla-trtllm-quoted", why=MLA),
    Shapes("mla.dense", CACHES, MANY, "mla-sglang", {"kv_dtype": "bfloat16"}, less=1, why=MLA),
)


def lines(machine: str) -> Iterator[Line]:
    """All comparisons for which the machine has a row; UsageError for an unknown machine."""
    folder = folder_of(machine)
    for constant in CONSTANTS:
        for row in _picked(figures_rows.read_rows(folder, constant.family), constant.where):
            ours = number(row, "median_ns")
            if constant.unit == "GB/s":
                ours = (number(row, "bytes_read") + number(row, "bytes_written")) / ours
            what = f"{constant.family} {_words(constant.where)}"
            yield Line(what, constant.unit, ours, constant.theirs, constant.source, constant.why)
    for shapes in SHAPES:
        yield from _shapes(shapes, figures_rows.read_rows(folder, shapes.family))


def _words(where: Mapping[str, Any]) -> str:
    """What tells a point: sizes in words, the usual blocks and flight left out."""
    return ", ".join(said(axis, value) for axis, value in where.items() if axis not in ("blocks", "flight"))


def _picked(rows: list[Row], where: Mapping[str, Any]) -> list[Row]:
    return [row for row in rows if not row.get("error") and where.items() <= row.items()]


def _shapes(shapes: Shapes, rows: list[Row]) -> Iterator[Line]:
    """Times of one call, ours against the first row of the table with that shape."""
    table = public.load(shapes.table).to_pylist()
    for values in shapes.at:
        shape = dict(zip(shapes.axes, values, strict=True))
        cold = {"state": "cold"} if any("state" in row for row in rows) else {}
        mine = _picked(rows, shape | cold)
        there = dict(shape)
        if "context" in there:
            there["context_tokens"] = there.pop("context") - shapes.less
        wanted = {**shapes.where, **there}
        theirs = [row for row in table if wanted.items() <= row.items() and not row.get("outlier")]
        if mine and theirs:
            source = f"{shapes.table} {shapes.where.get('kernel', '')}".strip()
            ours, other = number(mine[0], "median_ns") / 1000, theirs[0]["latency_ps"] / 1e6
            yield Line(f"{shapes.family} {_words(shape)}", "us", ours, other, source, shapes.why)
