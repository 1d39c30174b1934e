"""Whole decode steps: weights close against parameters, real and meta say the same, both engines replay."""

from __future__ import annotations

import numpy as np
import pytest
from step_cases import MODELS, file_of, step_of

from memsim.errors import UsageError
from memsim.recording import record
from memsim.simulate import replay
from memsim.trace_check import check_trace
from memsim.trace_read import open_trace
from workloads import costs, experts, linear
from workloads import step as whole_step
from workloads.activations import declare
from workloads.decode import record_step
from workloads.kinds import kernels_of
from workloads.models import get_model, model_names, parameters
from workloads.models.load import Changes
from workloads.models.matrices import Matrix
from workloads.record import ListSink, Recorder
from workloads.run import Run

APART = ("norm", "sink", "-scale")  # weights that parameters do not count


def regions_of(name, batch=1, weights_dtype=None):
    """Regions of a whole step of a shipped model at 4K tokens."""
    model = get_model(name, Changes(weights_dtype=weights_dtype))
    sink, regions = ListSink(), []
    recorder = Recorder(sink, "meta")
    for number, layer in enumerate(model.layers):
        sources = {
            what: None if (at := getattr(layer, f"{what}_from")) is None else regions[at]
            for what in ("index", "kv", "blocks")
        }
        told = Run(batch, 4096, 132, **sources)
        regions.append(kernels_of(layer.kind).declare(recorder, number, layer.shape, told))
    whole_step.declare(recorder, model, batch, 132, model.weights.dtype, None, 0)
    return model, sink.regions


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, None) for name in model_names()), ("kimi-linear", "fp8"), ("deepseek-v3.2", "bf16")],
)
def test_weights_close_against_the_parameters(name, dtype):
    model, regions = regions_of(name, weights_dtype=dtype)
    held = 0
    for region in regions:
        if region.kind == "weights" and not region.name.endswith(APART):
            held += region.bytes * 8 // {"bf16": 16, "fp8_e4m3": 8, "fp32": 32, "bytes": 4}[region.dtype]
    assert held + model.weights.tables == parameters.of_model(model).total


@pytest.mark.parametrize("name", model_names())
def test_every_model_records_a_whole_step(name, tmp_path):
    path = tmp_path / "step.parquet"
    meta = record_step(name, 4096, part="step", out=path)
    assert meta["part"] == "step"
    summary = check_trace(path)
    model = get_model(name)
    assert summary.kernels > 8 * len(model.layers)


@pytest.mark.parametrize("case", MODELS)
def test_real_and_meta_say_the_same(case, tmp_path):
    lengths = [70, 64, 70]
    real, meta = (step_of(case, tmp_path, lengths, device) for device in ("cpu", "meta"))
    for step in (real, meta):
        step.run()
    assert real.sink.regions == meta.sink.regions
    assert real.sink.kernels == meta.sink.kernels
    for ours, theirs in zip(real.sink.accesses, meta.sink.accesses, strict=True):
        plain = [{**vars(access), "gather": None} for access in (ours, theirs)]
        assert plain[0] == plain[1]
        assert (
            np.array_equal(ours.gather, theirs.gather) if ours.gather is not None else theirs.gather is None
        )


@pytest.mark.parametrize("case", MODELS)
def test_both_engines_replay_a_step(case, tmp_path):
    path = tmp_path / "step.parquet"
    record(str(file_of(case, tmp_path)), 128, path, batch=2, part="step", units=6)
    results = [replay(path, "h200", engine=engine, bound=False) for engine in ("fast", "reference")]
    assert results[0].digest == results[1].digest
    assert {family.name for family in results[0].families} >= {"linear", "append", "embedding", "sample"}


def test_a_dense_model_takes_the_time_of_its_weights(tmp_path):
    path = tmp_path / "step.parquet"
    record_step("llama-3.1-70b", 4096, part="step", out=path)
    result = replay(path, "h200", overrides=["tier.hbm.capacity=400 GB"], bound=False)
    least_ps = result.bytes_read["weights"] / 4.8  # at the datasheet's 4.8 TB/s
    assert least_ps < result.tpot_ps < 1.3 * least_ps


@pytest.mark.parametrize("case", ["kda and mla", "dsa, fp8", "v4", "mla, fp4"])
def test_a_step_runs_on_real_tensors(case, tmp_path):
    path = tmp_path / "step.parquet"
    meta = record_step(
        str(file_of(case, tmp_path)), 130, batch=2, part="step", device="cpu", units=6, out=path
    )
    assert check_trace(path)
    routed = get_model(str(file_of(case, tmp_path))).weights.moe_layers
    assert meta["routing"] == ("real" if routed else None)


def test_weights_are_read_once_and_chosen_experts_alone(tmp_path):
    path = tmp_path / "step.parquet"
    record_step("kimi-linear", 4096, part="step", out=path)
    read = replay(path, "h200", bound=False).bytes_read["weights"]
    model = get_model("kimi-linear")
    w = model.weights
    active = parameters.of_model(model).active
    norms = 27 * 2 * w.hidden + w.hidden + 20 * 128 + 7 * 512
    assert read == 2 * (active + w.hidden + norms)


def test_what_a_step_refuses(tmp_path):
    out = tmp_path / "step.parquet"
    with pytest.raises(UsageError, match="--part all: unknown part; choose one of: attention, step"):
        record_step("kimi-linear", 128, part="all", out=out)
    with pytest.raises(UsageError, match="--routing real with --device meta: there are no scores"):
        record_step("kimi-linear", 128, part="step", routing="real", out=out)
    with pytest.raises(UsageError, match="--routing uniform with model 'llama-3.1-70b': it has no experts"):
        record_step("llama-3.1-70b", 128, part="step", routing="uniform", out=out)
    path = file_of("kda and mla", tmp_path)
    path.write_text(path.read_text().replace("moe_layers = 1", "moe_layers = 2"))
    with pytest.raises(UsageError, match="1 dense_layers and 2 moe_layers in 2 layers"):
        record_step(str(path), 128, part="step", out=out)
    path.write_text(path.read_text().partition("[weights]")[0])
    with pytest.raises(UsageError, match=r"its file has no \[weights\]"):
        record_step(str(path), 128, part="step", out=out)
    assert not out.exists()


def of_kinds(tmp_path, **options):
    """What a whole step of small KDA and MLA layers reads and writes, kind by kind, and its result."""
    path = tmp_path / "step.parquet"
    record(str(file_of("kda and mla", tmp_path)), 512, path, part="step", units=6, seed=1, **options)
    result = replay(path, "h200", bound=False)
    return result.bytes_read, result.bytes_written, result


def test_drafts_multiply_the_states_that_are_stored_and_no_weights(tmp_path):
    read, written, result = of_kinds(tmp_path)
    reads, writes, results = of_kinds(tmp_path, draft=4, accepted=3)
    state, conv = 2 * 128 * 512, 3 * 2 * 128 * 3 * 2
    assert (read["state"], written["state"]) == (state + conv, state + conv)
    assert (reads["state"], writes["state"]) == (state + conv, 4 * state + conv)
    assert (read["kv"], written["kv"]) == (512 * 1152, 1152)
    assert (reads["kv"], writes["kv"]) == (515 * 1152, 4 * 1152)
    experts = 2 * 3 * 256 * 128 * 2  # bytes of two of six: others may be chosen by four tokens
    assert read["weights"] <= reads["weights"] - 3 * 512 <= read["weights"] + 2 * experts
    assert (result.tokens_per_step, results.tokens_per_step) == (1, 3)
    assert results.tpot_ps == pytest.approx(results.step_ps[0] / 3, abs=1)


def counted(path, family, region):
    """Rows of regions whose name ends so that a family of kernels reads, and writes, of all blocks."""
    trace = open_trace(path)
    mine = [known.id for known in trace.regions if known.name.endswith(region)]
    rows = {False: 0, True: 0}
    for kernel, accesses in trace.kernels():
        chosen = np.isin(accesses.region, mine) & (kernel.family == family)
        for write in rows:
            rows[write] += int(accesses.rows[chosen & (accesses.write == write)].sum())
    return rows[False], rows[True]


@pytest.mark.parametrize("draft", [1, 3])
def test_new_tokens_read_index_keys_once_and_select_each_for_itself(draft, tmp_path):
    """One layer scores 512 keys and more, two attend to 64 rows for each new token, all are added."""
    path = tmp_path / "step.parquet"
    record_step(str(file_of("dsa, fp8", tmp_path)), 512, part="step", units=6, draft=draft, out=path)
    assert counted(path, "dsa-index", ".index") == (512 + draft - 1, 0)
    assert counted(path, "dsa-index", ".scores") == (0, sum(512 + token for token in range(draft)))
    assert counted(path, "dsa-attend", ".kv") == (2 * 64 * draft, 0)
    assert counted(path, "append", ".index") == (0, draft)
    assert counted(path, "append", ".kv") == (0, 2 * draft)


@pytest.mark.parametrize("draft", [1, 3])
def test_new_tokens_of_v4_each_store_what_compressors_keep(draft, tmp_path):
    """510 tokens and three new ones: one of these makes a row of CSA, each reads 128 rows of its window."""
    path = tmp_path / "step.parquet"
    record_step(str(file_of("v4", tmp_path)), 510, part="step", units=6, draft=draft, out=path)
    made = sum((510 + token) % 4 == 0 for token in range(draft))
    assert counted(path, "compress-save", ".compressor")[1] == draft * (4 + 2 * 8)
    assert counted(path, "compress", ".kv") == (0, made)
    assert counted(path, "csa-attend", ".window") == (draft * 128, 0)
    assert counted(path, "append", ".window") == (0, 3 * draft)


def test_what_a_draft_keeps_is_an_assumption(tmp_path):
    meta = record_step("kimi-linear", 128, draft=3, accepted=2, out=tmp_path / "step.parquet")
    found = [fact for fact in meta["inputs"] if fact["path"] == "step.draft"]
    assert [(fact["value"], fact["provenance"]) for fact in found] == [
        ("3 new tokens a step, 2 of them kept", "assumed")
    ]


def test_steps_go_on_by_the_tokens_that_are_kept(tmp_path):
    read = of_kinds(tmp_path, draft=4, accepted=3, steps=2)[0]
    assert read["kv"] == (515 + 518) * 1152


@pytest.mark.parametrize("case", ["kda and mla", "gdn and gqa", "swa beside", "dsa, fp8", "v4"])
def test_both_engines_replay_a_step_with_drafts(case, tmp_path):
    path = tmp_path / "step.parquet"
    record(str(file_of(case, tmp_path)), 300, path, batch=2, part="step", units=6, draft=3)
    assert check_trace(path)
    results = [replay(path, "h200", engine=engine, bound=False) for engine in ("fast", "reference")]
    assert results[0].digest == results[1].digest


@pytest.mark.parametrize(
    ("model", "options", "wrong"),
    [
        ("deepseek-v4.1-flash", {"draft": 2}, "its candidate blocks are recorded for one token a step"),
        ("deepseek-v3.2", {"draft": 2, "accepted": 1, "steps": 2}, "--steps 2: which rows a token selects"),
        ("kimi-linear", {"draft": 2, "device": "cpu"}, "--draft 2 with --device cpu"),
        ("kimi-linear", {"draft": 65}, "--draft 65: expected a whole number from 1 to 64"),
        ("kimi-linear", {"draft": 2, "accepted": 3}, "--accepted 3: expected a whole number from 1 to 2"),
        ("qwen3-235b", {"draft": 5}, "a tile of the attention holds the queries of 4 tokens"),
    ],
)
def test_what_drafts_refuse(model, options, wrong, tmp_path):
    with pytest.raises(UsageError, match=wrong):
        record(model, 128, tmp_path / "step.parquet", **options)


def test_what_code_takes_to_come_counts_in_whole_steps_alone(tmp_path):
    paths = {part: tmp_path / f"{part}.parquet" for part in ("attention", "step")}
    with costs.tried({"kernel.mla.code": "7 us"}):
        for part, path in paths.items():
            record_step("kimi-linear", 4096, part=part, out=path)
    found = {}
    for part, path in paths.items():
        launched = (kernel for kernel, _ in open_trace(path).kernels())
        found[part] = {kernel.startup_ps for kernel in launched if kernel.family == "mla"}
    assert {ps + 7_000_000 for ps in found["attention"]} == found["step"]


def test_pairs_that_are_not_brought_together_have_blocks_of_their_own():
    """Two tokens that choose the same eight experts: sixteen pairs, not eight experts, read weights."""
    sink = ListSink()
    recorder, tokens, active = Recorder(sink, "meta"), 2, 8
    made = linear.declare(recorder, 0, Matrix("x", 128, 256, 256), "bf16", 132, tokens)
    x, out = declare(recorder, "in", tokens, 256), declare(recorder, "out", tokens * active, 128)
    lookup = recorder.region("lookup", "activation", -1, tokens * active, 4, "int32")
    ids = np.tile(np.arange(active), (tokens, 1))
    for aligned in (False, True):
        chosen = experts.chosen_of(ids, 256)
        experts.grouped(recorder, 0, made, x, lookup, out.handle, chosen, first=True, aligned=aligned)
    apart, together = (kernel.blocks for kernel in sink.kernels)
    assert apart == 2 * together
