"""Figures of the public tables: which rows of each are shown, and how.

Enters: the tables of `public`. Leaves: a `figures_model.Figure` for each entry of SHOWN and for each curve.
A table has far more rows than a figure can hold; `where` picks shapes close to the models at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from validation import figures_model, public
from validation.figures_model import BANDWIDTH, TIME, Figure, Line, Quantity, View, panel
from validation.figures_rows import FamilyRows, Row

PS_PER_NS = 1000
LISTED = "listed in validation/tables/outliers.toml"


@dataclass(frozen=True)
class Shown:
    """Rows of a table for one figure. where: a value or several of a column; axes: x first, then lines."""

    name: str
    table: str
    axes: tuple[str, ...]
    where: Mapping[str, Any] = field(default_factory=dict)
    facet: str = ""
    note: str = ""


BATCHES = (1, 8, 64, 256)
SHOWN = (
    Shown(
        "kda",
        "kda-vllm",
        ("batch", "heads", "kernel"),
        {"phase": "generation", "kernel": ("fused_recurrent_kda_packed_decode", "fused_kda_decode")},
        "kernel",
    ),
    Shown(
        "gdn",
        "gdn-vllm",
        ("batch", "heads"),
        {"phase": "generation", "kernel": "fused_recurrent_gated_delta_rule_packed_decode"},
    ),
    Shown(
        "mla-sglang",
        "mla-sglang",
        ("context_tokens", "batch", "heads"),
        {"kv_dtype": "bfloat16", "heads": (16, 64, 128), "batch": (1, 8, 64, 128)},
        "heads",
    ),
    Shown(
        "mla-sglang-fp8",
        "mla-sglang",
        ("context_tokens", "batch", "kv_dtype"),
        {"heads": 128, "batch": (1, 8, 64, 128)},
        "kv_dtype",
    ),
    Shown("mla-trtllm-quoted", "mla-trtllm-quoted", ("context_tokens", "batch", "heads"), {}, "heads"),
    Shown(
        "mla-module",
        "mla-module-vllm",
        ("context_tokens", "batch", "kv_dtype"),
        {"heads": 128, "gemm_dtype": "fp8_block", "batch": BATCHES},
        "kv_dtype",
    ),
    Shown(
        "dsa-module",
        "dsa-module-vllm",
        ("context_tokens", "batch", "kv_dtype"),
        {"model": "deepseek-ai/DeepSeek-V3.2", "heads": 128, "gemm_dtype": "fp8_block", "batch": BATCHES},
        "kv_dtype",
    ),
    Shown(
        "csa-module",
        "csa-module-vllm",
        ("context_tokens", "batch", "model"),
        {"tp": 1, "batch": BATCHES},
        "model",
    ),
    Shown(
        "hca-module",
        "hca-module-vllm",
        ("context_tokens", "batch", "model"),
        {"tp": 1, "batch": BATCHES},
        "model",
    ),
    Shown(
        "hca-attention",
        "hca-attention-vllm",
        ("context_tokens", "batch"),
        {"query_tokens": 1, "batch": BATCHES},
    ),
    Shown(
        "index-logits",
        "index-logits-vllm",
        ("context_tokens", "batch"),
        {"query_tokens": 1, "batch": BATCHES},
    ),
    Shown(
        "sparse-attention",
        "sparse-attention-glm5-sglang",
        ("context_tokens", "batch"),
        {"query_tokens": 1, "batch": BATCHES},
    ),
    Shown(
        "topk-csa",
        "topk-csa-sglang",
        ("context_tokens", "batch", "score_mode"),
        {"model": "sgl-project/DeepSeek-V4-Pro-FP8", "query_tokens": 1, "batch": BATCHES},
        "score_mode",
    ),
    Shown(
        "topk-glm5",
        "topk-glm5-sglang",
        ("context_tokens", "batch", "score_mode"),
        {"query_tokens": 1, "batch": BATCHES},
        "score_mode",
    ),
    Shown(
        "attention",
        "attention-vllm",
        ("context_tokens", "batch", "kv_dtype"),
        {"heads": 64, "key_heads": 8, "head_dim": 128, "window_tokens": 0, "batch": BATCHES},
        "kv_dtype",
    ),
    Shown(
        "gemm",
        "gemm-vllm",
        ("m", "n", "gemm_dtype"),
        {"k": 8192, "n": (256, 2048, 16384)},
        "gemm_dtype",
    ),
    Shown(
        "moe",
        "moe-vllm",
        ("tokens", "ep", "distribution"),
        {"moe_dtype": "fp8_block", "hidden": 7168, "inter": 2048, "experts": 256, "topk": 8, "tp": 1},
        "distribution",
    ),
    Shown("nccl", "nccl", ("elements", "gpus", "operation"), {"dtype": "half"}, "operation"),
)


def figures() -> Iterator[Figure]:
    """All figures of the public tables."""
    for shown in SHOWN:
        yield _shown(shown)
    for table in public.tables():
        if table.kind == "curve":
            yield _curve(table)


def _shown(shown: Shown) -> Figure:
    table = public.table(shown.table)
    rows = tuple(_rows(shown))
    counted = any("bytes_read" in row for row in rows)
    view = View(quantities=(BANDWIDTH, TIME) if counted else (TIME,), x=shown.axes[0], facet=shown.facet)
    family = FamilyRows(f"public-{shown.name}", table.what, shown.axes, rows)
    (drawn,) = figures_model.figures(family, f"{table.machine}, {table.framework}", view)
    fixed = ", ".join(f"{key} {value}" for key, value in shown.where.items() if not isinstance(value, tuple))
    subtitle = ", ".join(filter(None, (drawn.subtitle, fixed)))
    l2 = "time includes projections; L2 not flushed" if table.projections else "L2 not flushed"
    licence = f"{table.source.split(' at ')[0]}, {table.licence}"
    return replace(
        drawn,
        title=f"{table.name}: {table.what}",
        subtitle=f"{subtitle}. {licence}; {l2}",
        odd_words=LISTED,
    )


def _rows(shown: Shown) -> Iterator[Row]:
    """The timed rows that pass, as measured rows are written; of rows with equal axes the first."""
    wanted = {key: value if isinstance(value, tuple) else (value,) for key, value in shown.where.items()}
    table = public.load(shown.table)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    seen = set()
    for index in range(table.num_rows):
        key = tuple(columns[axis][index] for axis in shown.axes)
        passes = all(columns[name][index] in values for name, values in wanted.items())
        if not passes or key in seen or not columns["latency_ps"][index]:
            continue
        seen.add(key)
        yield _row(shown.axes, key, {name: values[index] for name, values in columns.items()})


def _row(axes: tuple[str, ...], key: tuple[Any, ...], row: Mapping[str, Any]) -> Row:
    values = {
        axis: value if isinstance(value, str) else float(value) for axis, value in zip(axes, key, strict=True)
    }
    moved = {name: float(row[name]) for name in ("bytes_read", "bytes_written") if row.get(name) is not None}
    return {
        **values,
        **moved,
        "median_ns": row["latency_ps"] / PS_PER_NS,
        "noisy": float(bool(row["outlier"])),
    }


LOADED = Quantity("Latency of a load", lambda row, time_ns: time_ns, "ns")
FEW = (0, 20, 40, 50, 60, 80, 90, 98, 100)  # shares of reads shown where a table has many


def _curve(table: public.PublicTable) -> Figure:
    """Latency against bandwidth, a line for each share of reads."""
    rows = public.load(table.name).to_pylist()
    lines = []
    for share in sorted({row["read_percent"] for row in rows} & set(FEW)):
        part = sorted(
            (row["mbps"] / 1000, row["latency_ps"] / PS_PER_NS)
            for row in rows
            if row["read_percent"] == share
        )
        lines.append(Line(f"{share} % reads", tuple(x for x, _ in part), tuple(y for _, y in part)))
    drawn = panel("", "Bandwidth of reads and writes [GB/s]", LOADED, tuple(lines), ordered=True)
    drawn = replace(drawn, x_log=False, y_log=False)
    foot = f"{table.machine}. {table.source.split(' at ')[0]}, {table.licence}"
    return Figure(f"public-{table.name}", f"{table.name}: {table.what}", foot, ((drawn,),))
