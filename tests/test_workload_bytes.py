"""Recorded bytes equal the models' closed forms, exactly: each row of a region counted once a kernel."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from memsim.trace_check import check_trace
from memsim.trace_read import open_trace
from workloads.decode import record_step

STATE, CONV = 2_097_152, 73_728  # of a KDA layer of Kimi Linear


def unique_bytes(path: Path) -> dict[tuple[str, str, str], int]:
    """(family, region name without its layer, "read" or "write") -> bytes, summed over kernels.

    Marks every row that is touched, one by one; memory grows with the region, unlike the replay's own count.
    """
    trace = open_trace(path)
    total: dict[tuple[str, str, str], int] = defaultdict(int)
    for kernel, found in trace.kernels():
        masks: dict[tuple[int, bool], np.ndarray] = {}
        for at in range(len(found.block)):
            region = trace.regions[found.region[at]]
            mask = masks.setdefault((region.id, bool(found.write[at])), np.zeros(region.rows, bool))
            first, rows, stride = (int(values[at]) for values in (found.first_row, found.rows, found.stride))
            begin = int(found.gather_at[at])
            if begin >= 0:
                mask[found.gather_rows[begin : begin + rows]] = True
            else:
                mask[first : first + rows * stride : stride] = True
        for (region_id, write), mask in masks.items():
            region = trace.regions[region_id]
            name = region.name.split(".", 1)[1]
            key = kernel.family, name, "write" if write else "read"
            total[key] += int(mask.sum()) * region.row_bytes
    return total


def record(tmp_path: Path, model: str, context_tokens: int, **options: object) -> dict:
    path = tmp_path / f"{model}-{context_tokens}.parquet"
    record_step(model, context_tokens, out=path, **options)
    assert check_trace(path).steps == options.get("steps", 1)
    return unique_bytes(path)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("context_tokens", [1, 65, 20_000])
def test_kimi_linear(tmp_path, context_tokens, batch):
    found = record(tmp_path, "kimi-linear", context_tokens, batch=batch)
    assert found["mla", "kv", "read"] == batch * 7 * 1152 * context_tokens
    for direction in ("read", "write"):
        assert found["kda", "state", direction] == batch * 20 * STATE
        assert found["kda-conv", "conv", direction] == batch * 20 * CONV
    assert ("mla", "kv", "write") not in found
    assert (
        found["kda-conv", "conv-weight", "read"] == 20 * 12_288 * 4 * 2
    )  # weights do not grow with the batch


def test_kda_bytes_do_not_depend_on_the_context(tmp_path):
    short, long = (record(tmp_path, "kimi-linear", tokens) for tokens in (100, 3000))
    kda = [key for key in short if key[0].startswith("kda")]
    assert len(kda) == 10
    assert [short[key] for key in kda] == [long[key] for key in kda]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("model", "layers"), [("kimi-linear-all-mla", 27), ("deepseek-v3", 61)])
def test_dense_mla(tmp_path, model, layers, batch):
    found = record(tmp_path, model, 10_001, batch=batch)
    assert found["mla", "kv", "read"] == batch * layers * 1152 * 10_001


@pytest.mark.parametrize(("context_tokens", "batch"), [(64, 2), (2048, 1), (6401, 2), (210_048, 1)])
def test_deepseek_v32(tmp_path, context_tokens, batch):
    found = record(tmp_path, "deepseek-v3.2", context_tokens, batch=batch, selection="uniform")
    chosen = min(context_tokens, 2048)
    assert found["dsa-index", "index", "read"] == batch * 61 * 132 * context_tokens
    assert found["dsa-attend", "kv", "read"] == batch * 61 * 656 * chosen
    assert found["dsa-index", "scores", "write"] == batch * 61 * 4 * context_tokens
    assert found["dsa-topk", "scores", "read"] == (
        batch * 61 * 4 * context_tokens if context_tokens > 2048 else 0
    )
    assert found["dsa-topk", "indices", "write"] == batch * 61 * 4 * 2048
    assert ("dsa-topk", "candidates", "read") not in found


def test_selected_rows_are_gathered_once_each(tmp_path):
    path = tmp_path / "a.parquet"
    record_step("deepseek-v3.2", 50_000, batch=2, selection="uniform", units=16, out=path)
    for kernel, found in open_trace(path).kernels():
        if kernel.family == "dsa-attend":
            assert len(np.unique(found.gather_rows)) == len(found.gather_rows) == 2 * 2048


def test_staging_moves_the_gather_and_adds_a_dense_copy(tmp_path):
    found = record(tmp_path, "deepseek-v3.2", 5000, selection="uniform", stage="kv")
    rows = 61 * 656 * 2048
    assert found["kv-stage", "kv", "read"] == rows
    assert found["kv-stage", "staged", "write"] == found["dsa-attend", "staged", "read"] == rows
    assert ("dsa-attend", "kv", "read") not in found


def test_steps_read_the_rows_that_they_have(tmp_path):
    found = record(tmp_path, "kimi-linear-all-mla", 1000, steps=3)
    assert found["mla", "kv", "read"] == 27 * 1152 * (1000 + 1001 + 1002)


def test_partial_results_are_written_by_splits_and_read_by_the_combine_pass(tmp_path):
    found = record(tmp_path, "deepseek-v3", 131_072)
    # payload = ceil((2048 + 5) / 66) + 5 = 37 tiles, 5 of them overhead: 64 splits of 32 tiles
    assert found["mla", "partial", "write"] == 61 * 64 * 128 * (512 + 1) * 4
    assert found["mla-combine", "partial", "read"] == found["mla", "partial", "write"]
    assert found["mla-combine", "out", "write"] == 61 * 128 * 1024
    assert ("mla", "out", "write") not in found
