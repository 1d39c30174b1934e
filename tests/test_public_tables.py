"""The public tables: each loads, says what it is, keeps its licence and agrees with what was published."""

from __future__ import annotations

import hashlib
import re
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from memsim.errors import UsageError
from validation import public, published
from validation.public_outliers import listing, odd_places, odd_rows

ROOT = Path(__file__).parent.parent
NAMES = [table.name for table in public.tables()]
ROWS = {
    "kda-vllm": 1203,
    "gdn-vllm": 9100,
    "mla-sglang": 4648,
    "mla-module-vllm": 5888,
    "attention-vllm": 62166,
    "dsa-module-vllm": 11776,
    "csa-module-vllm": 1544,
    "hca-module-vllm": 1544,
    "hca-attention-vllm": 1959,
    "index-logits-vllm": 1959,
    "topk-csa-sglang": 9004,
    "topk-glm5-sglang": 6050,
    "sparse-attention-glm5-sglang": 3025,
    "gemm-vllm": 107225,
    "moe-vllm": 48762,
    "nccl": 504,
    "allreduce-vllm": 138,
    "mla-trtllm-quoted": 30,
    "mess-h100-hbm2e": 13,
    "mess-spr-ddr5": 2006,
}


load, odd = cache(public.load), cache(odd_rows)  # no test changes what it gets


def picked(name: str, **where: object) -> list[dict]:
    rows = load(name)
    for column, value in where.items():
        rows = rows.filter(pc.equal(rows[column], value))
    return rows.to_pylist()


def microseconds(rows: list[dict]) -> list[float]:
    return [round(row["latency_ps"] / 10**6, 1) for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_loads_whole_with_rows_that_its_axes_tell_apart(name):
    described, rows = public.table(name), load(name)
    assert rows.num_rows == ROWS[name]
    keys = set(zip(*(rows[axis].to_pylist() for axis in described.axes), strict=True))
    assert len(keys) == rows.num_rows
    assert str(rows.schema.field("latency_ps").type) == "int64"
    times = [time for time in rows["latency_ps"].to_pylist() if time is not None]
    assert min(times) > 0
    assert max(times) < 10**12
    assert not any(rows[axis].null_count for axis in described.axes)


@pytest.mark.parametrize("table", public.tables(), ids=lambda table: table.name)
def test_a_table_says_what_it_is(table):
    assert table.kind in ("kernel", "module", "curve")
    assert table.projections == (table.kind == "module" and table.name != "moe-vllm")
    assert not table.flushed
    assert table.path.exists()
    assert table.licence in ("Apache-2.0", "BSD-3-Clause")
    assert table.copyright.startswith("Copyright (c)")
    assert re.search(r"at [0-9a-f]{40}", table.source)
    assert set(table.run) <= set(table.axes)


@pytest.mark.parametrize(
    "table", [each for each in public.tables() if each.context_rule], ids=lambda t: t.name
)
def test_the_numbers_of_cached_tokens_follow_the_rule_that_is_stated(table):
    contexts = set(load(table.name)["context_tokens"].to_pylist())
    plain = {context for context in contexts if context & (context - 1) == 0}
    less_one = {context for context in contexts if context & (context + 1) == 0}
    if table.context_rule == "2^k":
        assert plain == contexts
    elif table.context_rule == "2^k - 1":
        assert less_one == contexts
    else:
        assert table.context_rule == "mixed"
        assert plain != contexts
        assert less_one != contexts


def test_every_file_is_described_and_no_licence_is_missing():
    data = {path for path in public.FOLDER.rglob("*") if path.suffix in (".parquet", ".csv")}
    figures = {published.TABLE}  # of a report: no table, hence told of beside it alone
    assert data - figures == {table.path for table in public.tables() if table.path in data}
    for path in figures:
        assert path.name in (path.parent / "SOURCE.md").read_text(encoding="utf-8")
    assert {table.path.suffix for table in public.tables() if table.path not in data} == {""}
    apache = (public.FOLDER / "aiconfigurator-h200" / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in apache
    assert "END OF TERMS AND CONDITIONS" in apache
    for name in ("h100-hbm2e/LICENSE", "spr-ddr5-4800/LICENSE.txt"):
        text = (public.FOLDER / "mess" / name).read_text(encoding="utf-8")
        assert "Barcelona Supercomputing Center" in text
        assert "Redistribution and use in source and binary forms" in text
    for folder in ("aiconfigurator-h200", "mess", "quoted"):
        assert re.search(r"[0-9a-f]{40}", (public.FOLDER / folder / "SOURCE.md").read_text(encoding="utf-8"))


def test_the_published_bytes_are_untouched():
    sums = {
        "aiconfigurator-h200/kda/vllm/0.1.dev19262/kda_perf.parquet": "0673ae9c60b53e2d",
        "aiconfigurator-h200/mla/sglang/0.5.9/generation_mla_perf.parquet": "55752506cc5bf408",
        "mess/spr-ddr5-4800/bwlat_100.txt": "8acc61504930df4c",
        "mess/h100-hbm2e/h100_hbm2e_points.csv": "6f143e4313c0ee95",
    }
    for name, sha256 in sums.items():
        assert hashlib.sha256((public.FOLDER / name).read_bytes()).hexdigest()[:16] == sha256, name


def test_the_wheel_carries_every_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["validation"]
    carried = {path for pattern in patterns for path in (ROOT / "validation").glob(pattern)}
    assert {path for path in public.FOLDER.rglob("*") if path.is_file()} <= carried


def test_the_tables_stay_small():
    sizes = [path.stat().st_size for path in public.FOLDER.rglob("*") if path.is_file()]
    assert sum(sizes) < 2_100_000


def test_kda_of_96_heads_takes_what_was_published():
    kernel = "fused_recurrent_kda_packed_decode"
    rows = picked("kda-vllm", kernel=kernel, heads=96)
    assert {row["batch"]: time for row, time in zip(rows, microseconds(rows), strict=True)} == {
        **{
            1: 4.4,
            2: 6.2,
            4: 10.4,
            8: 23.2,
            16: 52.0,
            32: 102.3,
            64: 203.1,
            128: 401.9,
            256: 802.1,
            512: 1598.7,
        }
    }
    assert rows[0]["latency_ps"] == 4_374_400
    assert {(row["bytes_read"], row["bytes_written"]) for row in rows if row["batch"] == 4} == {
        (4 * 96 * 128 * 128 * 4,) * 2
    }


def fit(rows: list[dict]) -> tuple[float, float, float]:
    """t0 [us], bandwidth [TB/s] and mean relative error of the line t0 + bytes / bandwidth."""
    moved = np.array([row["bytes_read"] + row["bytes_written"] for row in rows], float)
    time_us = np.array([row["latency_ps"] / 10**6 for row in rows])
    (t0_us, slope), *_ = np.linalg.lstsq(np.stack([np.ones_like(moved), moved], axis=1), time_us, rcond=None)
    return t0_us, 1e-6 / slope, float(np.mean(np.abs(t0_us + slope * moved - time_us) / time_us))


def streams(name: str, **where: object) -> list[dict]:
    """Rows that read and write more than 200 MB, far beyond the L2."""
    moved = [row for row in picked(name, **where) if row["bytes_read"]]
    return [row for row in moved if row["bytes_read"] + row["bytes_written"] > 200_000_000]


def test_lines_through_large_streams_are_those_that_were_published():
    kernel = "fused_recurrent_kda_packed_decode"
    kda, gdn = fit(streams("kda-vllm", kernel=kernel)), fit(streams("gdn-vllm", phase="generation"))
    assert (round(kda[0], 1), round(kda[1], 2)) == (5.4, 4.04)
    assert (round(gdn[0], 1), round(gdn[1], 2)) == (6.4, 4.11)
    assert round(fit(streams("kda-vllm", kernel=kernel, heads=96))[2], 3) == 0.004
    assert round(fit(streams("gdn-vllm", phase="generation", heads=64))[2], 3) == 0.001


def test_modules_take_what_was_published():
    where = {"heads": 128, "gemm_dtype": "fp8_block", "batch": 1}
    mla = picked("mla-module-vllm", kv_dtype="bfloat16", **where)
    assert {row["context_tokens"]: round(row["latency_ps"] / 10**6) for row in mla}.items() >= {
        (4096, 143),
        (32768, 163),
        (131072, 238),
    }
    dsa = picked("dsa-module-vllm", kv_dtype="fp8", model="deepseek-ai/DeepSeek-V3.2", **where)
    assert {row["context_tokens"]: round(row["latency_ps"] / 10**6) for row in dsa}.items() >= {
        (4096, 208),
        (32768, 211),
        (131072, 216),
    }


def test_topk_grows_with_the_length_and_says_nothing_below_k():
    rows = picked("topk-glm5-sglang", batch=1, query_tokens=1, score_mode="flat")
    times = {row["context_tokens"]: row["latency_ps"] for row in rows}
    assert times[1024] is None
    assert [round(times[context] / 10**6) for context in (2048, 32768, 131072, 202751)] == [10, 19, 62, 90]


def test_index_rows_count_132_bytes_for_every_four_tokens():
    (row,) = picked("index-logits-vllm", batch=1, query_tokens=1, context_tokens=1048575)
    assert row["bytes_read"] == 34_603_008
    assert row["latency_ps"] == 9_100_000


def test_attention_reads_its_window_and_fp8_rows_are_half_as_wide():
    same = {"heads": 64, "key_heads": 8, "head_dim": 128, "batch": 8, "context_tokens": 8191}
    wide, narrow = (
        picked("attention-vllm", kv_dtype=dtype, window_tokens=0, **same) for dtype in ("bfloat16", "fp8")
    )
    assert wide[0]["bytes_read"] == 2 * narrow[0]["bytes_read"] == 8 * 8192 * 8 * 2 * 128 * 2
    windowed = picked(
        "attention-vllm", kv_dtype="bfloat16", head_dim=64, window_tokens=128, context_tokens=8191
    )
    assert {row["bytes_read"] // (row["batch"] * row["key_heads"] * 64 * 4) for row in windowed} == {128}
    assert {row["bytes_read"] for row in picked("attention-vllm", head_dim=192)} == {None}


def test_quoted_figures_agree_with_another_kernel_of_the_same_table_family():
    quoted = {(row["heads"], row["batch"], row["context_tokens"]): row for row in picked("mla-trtllm-quoted")}
    assert quoted[128, 128, 131072]["latency_ps"] == 7_176_000_000
    assert quoted[16, 1, 8192]["bytes_read"] == 8193 * 1152
    sglang = picked("mla-sglang", kv_dtype="bfloat16", heads=128, batch=1, context_tokens=131071)
    assert microseconds(sglang) == [84.4]
    assert sglang[0]["latency_ps"] == pytest.approx(quoted[128, 1, 131072]["latency_ps"], rel=0.1)


def test_mess_curves_are_read_as_published():
    h100 = public.load("mess-h100-hbm2e").to_pylist()
    assert h100[0]["latency_ps"] == 365_000
    assert h100[7] == {
        "read_percent": 100,
        "pause": 110,
        "mbps": 1_433_702,
        "latency_ps": 703_000,
        "read_mbps": 1_433_676,
        "write_mbps": 26,
    }
    xeon = public.load("mess-spr-ddr5").to_pylist()
    assert len({row["read_percent"] for row in xeon}) == 48
    idle = [row["latency_ps"] for row in xeon if row["read_percent"] == 100 and row["mbps"] < 5000]
    assert 110_000 <= min(idle) <= 113_000
    assert min(row["mbps"] for row in xeon) == 0
    assert max(row["mbps"] for row in xeon) < 307_200
    first = next(row for row in xeon if row["read_percent"] == 100)
    assert (first["mbps"], first["latency_ps"]) == (264_094, 238_315)


def test_an_unknown_table_is_refused_with_the_likely_name():
    with pytest.raises(UsageError, match="unknown table 'kda-vlm'; did you mean 'kda-vllm'"):
        public.load("kda-vlm")


@pytest.mark.parametrize(
    ("times", "odd"),
    [
        ([10, 10, 11, 12], []),
        ([10, 50, 11, 12], [1]),
        ([50, 10, 11, 12], [0]),
        ([10, 12, 13, 4], [3]),
        ([10, 12, 10, 11], []),
        ([40, 41, 42, 10, 11], [3, 4]),
        ([10], []),
        ([], []),
    ],
)
def test_the_fewest_points_are_called_odd(times, odd):
    assert odd_places(times) == odd


@pytest.mark.parametrize(
    "table", [each for each in public.tables() if each.run], ids=lambda table: table.name
)
def test_all_rows_that_break_the_rule_are_listed_and_single_points_break_it(table):
    rows = load(table.name)
    keys = list(zip(*(rows[axis].to_pylist() for axis in table.axes), strict=True))
    listed = {key for key, reason in zip(keys, rows["outlier"].to_pylist(), strict=True) if reason}
    assert odd(table.name) <= listed
    for oddity in (each for each in public.oddities() if each.table == table.name):
        assert oddity.sort in ("point", "regime")
        assert oddity.reason
        if oddity.axes == table.axes:
            assert oddity.keys() <= odd(table.name)
        else:
            assert oddity.sort == "regime"
            picks = {tuple(row[axis] for axis in oddity.axes) for row in rows.to_pylist()}
            assert oddity.keys() <= picks


def test_outliers_are_marked_and_kept():
    rows = picked("mla-sglang", kv_dtype="fp8")
    assert len(rows) == 2324
    assert {row["outlier"] for row in rows} == {rows[0]["outlier"]}
    assert rows[0]["outlier"].startswith("not an 8-bit kernel")
    worst = picked("mla-sglang", heads=16, batch=128, context_tokens=16383, tp=4)
    bf16, fp8 = sorted(worst, key=lambda row: row["kv_dtype"])
    assert fp8["latency_ps"] > 7 * bf16["latency_ps"]
    assert sum(bool(row["outlier"]) for row in picked("attention-vllm")) == 124


def test_the_listing_is_in_the_format_of_the_file():
    text = (public.FOLDER / "outliers.toml").read_text(encoding="utf-8")
    assert listing("kda-vllm") in text
    assert listing("nccl") in text
