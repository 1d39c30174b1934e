"""Traces of one GPU of several: what it does, what it exchanges with the others, and where that can run."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import torch

import memsim
from memsim.errors import UsageError
from memsim.trace_read import open_trace, unique_bytes
from workloads.decode import record_step
from workloads.exchanges import weighted
from workloads.experts import held
from workloads.parallel import parse_parallel


def traced(tmp_path, model, words, context=20_000, **options):
    path = tmp_path / "a"
    meta = record_step(model, context, parallel=parse_parallel(words), out=path, **options)
    return path, meta


def bytes_read(path):
    """(family, region without its layer) -> unique bytes that kernels read, summed."""
    trace, found = open_trace(path), Counter()
    for kernel, accesses in trace.kernels():
        for region, nbytes in unique_bytes(kernel, accesses, trace.regions)[0].items():
            found[kernel.family, re.sub(r"^layer\d+\.", "", trace.regions[region].name)] += nbytes
    return found


def families(path):
    return Counter(kernel.family for kernel, _ in open_trace(path).kernels())


def test_a_layer_adds_up_its_parts_twice_and_the_tables_are_gathered(tmp_path):
    path, meta = traced(tmp_path, "kimi-linear", "tp=8,ep=8", part="step", batch=2)
    assert (meta["gpus"], meta["parallel"], meta["batch"]) == (8, "tp=8,ep=8,dp=1,dcp=1", 2)
    found = families(path)
    assert found["all-reduce"] == 2 * 27 + 1  # and the rows of the input table
    assert found["all-gather"] == 1  # of logits
    read = bytes_read(path)
    assert read["all-reduce", "exchange.x"] == 55 * 7 * 2 * 2304 * 2
    assert read["all-gather", "exchange.logits"] == 7 * 2 * 163_840 // 8 * 2


def test_attention_alone_exchanges_nothing_but_for_shared_positions(tmp_path):
    path, _ = traced(tmp_path, "kimi-linear", "tp=8,ep=8")
    assert {region.kind for region in open_trace(path).regions}.isdisjoint({"exchange"})
    path, _ = traced(tmp_path, "kimi-linear", "tp=8,ep=8,dcp=8")
    found = families(path)
    assert (found["all-gather"], found["dcp-weight"], found["reduce-scatter"]) == (14, 7, 7)


def test_a_gpu_reads_its_share_of_heads_and_of_positions(tmp_path):
    context = 20_003
    alone, tp, dcp = (
        bytes_read(traced(tmp_path, "kimi-linear", words, context)[0])
        for words in ("tp=1", "tp=8", "tp=8,dcp=8")
    )
    state = "kda", "state"
    rows = "mla", "kv"
    assert alone[state] == 8 * tp[state] == 8 * dcp[state]
    assert alone[rows] == tp[rows] == 7 * 1152 * context
    assert dcp[rows] == 7 * 1152 * -(-context // 8)
    queries = "mla", "q"
    assert alone[queries] == 8 * tp[queries] == dcp[queries]  # of all heads, gathered


def test_a_selection_among_all_positions_is_read_where_it_lies(tmp_path):
    context = 300_000
    one, eight = (
        bytes_read(traced(tmp_path, "deepseek-v3.2", words, context)[0]) for words in ("tp=8", "tp=8,dcp=8")
    )
    keys = "dsa-index", "index"
    assert one[keys] == 61 * 132 * context
    assert eight[keys] == 61 * 132 * context // 8
    rows = "dsa-attend", "kv"
    assert one[rows] == 61 * 656 * 2048
    share = eight[rows] / (61 * 656)  # of the GPU that has most of 2,048 rows dealt to eight
    assert 2048 / 8 < share < 2048 / 8 * 1.25
    assert eight["all-gather", "exchange.candidates"] == 61 * 7 * 2048 * 8
    assert eight["dsa-topk", "dcp-candidates"] == 61 * 8 * 2048 * 8
    assert eight["dcp-weight", "dcp-lse"] == 61 * 8 * 128 * 4
    assert eight["reduce-scatter", "exchange.results"] == 61 * 7 * 16 * 512 * 2


def test_results_over_a_part_of_the_positions_each_add_up_to_attention():
    generator = torch.Generator().manual_seed(0)
    heads, gpus = 6, 4
    q, rows = (torch.randn(n, 64, generator=generator) for n in (heads, 203))
    parts = [rows[gpu::gpus] for gpu in range(gpus)]
    sums = [(q @ part.T).logsumexp(-1) for part in parts]
    found = torch.zeros(heads, 64)
    for gpu, part in enumerate(parts):
        mine = (q @ part.T).softmax(-1) @ part
        others = [lse for at, lse in enumerate(sums) if at != gpu]
        found += weighted(mine, torch.stack([sums[gpu], *others])[:, :, None])
    assert torch.allclose(found, (q @ rows.T).softmax(-1) @ rows, atol=1e-5)


def test_rows_of_the_busiest_gpu():
    parallel = parse_parallel("tp=4,dcp=4")
    rows = np.array([0, 3, 7, 8, 11, 4 * 50 + 3])
    assert parallel.here(rows).tolist() == [0, 1, 2, 50]
    assert parallel.rows(13) == 4


def test_experts_of_the_busiest_gpu():
    ids = np.array([[0, 9], [1, 10], [8, 30], [10, 11]])  # 30 costs nothing
    own, count = held(ids, 24, 8)
    assert count == 8
    assert own.tolist() == [[8, 1], [8, 2], [0, 8], [2, 3]]
    assert held(ids, 24, 24)[0].tolist() == np.where(ids < 24, ids, 24).tolist()


def test_experts_that_are_dealt_are_read_whole_and_those_that_are_cut_all(tmp_path):
    batch = 4
    read = {}
    for words in ("tp=1", "tp=8,ep=8", "tp=8"):
        path, _ = traced(tmp_path, "kimi-linear", words, 500, part="step", batch=batch)
        read[words] = bytes_read(path)["experts", "w-experts-down"]
    expert = 2304 * 1024 * 2
    assert read["tp=8"] * 8 == read["tp=1"]
    assert read["tp=8,ep=8"] % expert == read["tp=1"] % expert == 0
    assert read["tp=1"] / 8 < read["tp=8,ep=8"] < read["tp=1"] / 2


@pytest.mark.parametrize("words", ["tp=1,dp=8,ep=8", "tp=2,dp=4,ep=8", "tp=2,dp=4"])
def test_experts_work_on_the_tokens_of_all_groups(tmp_path, words):
    parallel, batch = parse_parallel(words), 16
    path, _ = traced(tmp_path, "kimi-linear", words, 500, part="step", batch=batch)
    mine, row = batch // parallel.dp, 2304 * 2
    read = bytes_read(path)
    others = 26 * (parallel.dp - 1) * mine * row
    assert read["all-gather", "exchange.tokens"] == read["reduce-scatter", "exchange.made"] == others
    sums = "all-reduce", "exchange.x"
    assert read[sums] == (2 * 27 + 1) * (parallel.tp - 1) * mine * row
    found = {kernel.name for kernel, _ in open_trace(path).kernels() if kernel.layer == 1}
    assert {"layer1.dispatch-all-gather", "layer1.combine-reduce-scatter"} <= found
    queries = [region for region in open_trace(path).regions if region.name == "layer3.q"]
    assert queries[0].rows == mine * 32 // parallel.tp
    result = memsim.replay(path, "8xh200", bound=False)
    assert (result.gpus, result.batch) == (8, batch)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_both_engines_replay_it_on_eight_gpus_alone(tmp_path, engine):
    path, _ = traced(tmp_path, "kimi-linear", "tp=8,ep=8,dcp=8", 300, part="attention")
    result = memsim.replay(path, "8xh200", engine=engine, bound=False)
    assert result.gpus == 8
    assert {tier.name: tier.requests for tier in result.tiers}["peer"] > 0
    for machine in ("h200-host", "gh200", "h200-peer"):
        with pytest.raises(UsageError, match="is of one of 8 GPUs that work together; machine .* has [12]"):
            memsim.replay(path, machine, engine=engine)


def test_a_rate_a_gpu_is_that_of_one_of_them(tmp_path):
    path, _ = traced(tmp_path, "kimi-linear", "tp=4,dp=2", 300, batch=6)
    result = memsim.replay(path, "8xh200", bound=False)
    from memsim.report_json import document

    found = document(result)
    assert found["gpus"] == 8
    assert found["tokens_per_s_per_gpu"] == pytest.approx(6 / 8 * found["tokens_per_s_per_user"])


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ("tp=8", {"device": "cpu"}, "what the other GPUs hold is not there; use --device meta"),
        ("dp=4", {"batch": 3}, "3 sequences for 4 groups of GPUs; expected as many as groups at least"),
    ],
)
def test_what_is_not_recorded_is_refused(tmp_path, words, options, message):
    with pytest.raises(UsageError, match=message):
        traced(tmp_path, "kimi-linear", words, 100, **options)
    assert not (tmp_path / "a").exists()
