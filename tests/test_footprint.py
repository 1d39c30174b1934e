"""What a GPU holds, in closed form: the bytes of a recording's regions, and figures worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace

import pytest

from workloads.decode import record_step
from workloads.models import get_model, matrices, model_names
from workloads.models.footprint import Footprint, most_sequences, of_model
from workloads.models.load import changes_of
from workloads.parallel import ALONE, parse_parallel
from workloads.step_scratch import activations

M = 1 << 20
H200_BYTES = 141 * 10**9


def held(path) -> Footprint:
    from memsim.trace_read import open_trace

    found: Counter[str] = Counter()
    for region in open_trace(path).regions:
        found[region.kind] += region.bytes
    return Footprint(**{field.name: found.pop(field.name, 0) for field in fields(Footprint)})


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize(("context", "batch", "steps", "units"), [(3001, 3, 2, 148), (900_000, 1, 1, 78)])
def test_it_is_the_sum_of_the_regions(tmp_path, name, context, batch, steps, units):
    record_step(name, context, batch=batch, steps=steps, units=units, out=tmp_path / "a")
    expected = of_model(get_model(name), [context] * batch, steps=steps, units=units)
    assert held(tmp_path / "a") == expected


DRAFTED = [name for name in model_names() if name != "deepseek-v4.1-flash"]


@pytest.mark.parametrize("name", DRAFTED)
def test_new_tokens_add_rows_and_states_and_no_weights(tmp_path, name):
    contexts, draft = [3001, 130], 3
    record_step(name, contexts=contexts, draft=draft, steps=2, out=tmp_path / "a")
    model = get_model(name)
    expected = of_model(model, contexts, steps=2, draft=draft)
    assert held(tmp_path / "a") == expected
    assert expected.weights == of_model(model, contexts).weights


@pytest.mark.parametrize(("name", "words"), [("kimi-linear", "tp=2,dp=2"), ("deepseek-v4-pro", "tp=8,ep=8")])
def test_a_whole_step_of_several_new_tokens(tmp_path, name, words):
    parallel, batch, draft = parse_parallel(words), 3, 2
    options = {"batch": batch, "part": "step", "parallel": parallel, "draft": draft}
    record_step(name, 900, **options, out=tmp_path / "a")
    ours = of_model(get_model(name), [900] * batch, parallel, part="step", draft=draft)
    more = activations(get_model(name), batch, 132, parallel, draft)
    assert held(tmp_path / "a") == replace(ours, activation=ours.activation + more)


@pytest.mark.parametrize("name", [name for name in model_names() if get_model(name).selects])
def test_staging_buffers_count(tmp_path, name):
    record_step(name, 5003, stage="kv", out=tmp_path / "a")
    assert held(tmp_path / "a") == of_model(get_model(name), [5003], staged=True)


@pytest.mark.parametrize("index_dtype", ["bf16", "fp4"])
def test_other_formats_of_keys_count(tmp_path, index_dtype):
    changes = changes_of(index_dtype=index_dtype)
    record_step("glm-5.2", 5003, changes=changes, out=tmp_path / "a")
    assert held(tmp_path / "a") == of_model(get_model("glm-5.2", changes), [5003])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deepseek-v3.2", "tp=8,ep=8,dcp=8"),
        ("glm-5.2", "tp=4,dcp=2"),
        ("qwen3.5-35b", "tp=8,dcp=4"),
        ("kimi-linear", "tp=2,dp=2"),
        ("deepseek-v4-flash", "tp=8"),
    ],
)
def test_one_of_several_gpus_holds_the_regions_of_its_trace(tmp_path, name, words):
    parallel, contexts = parse_parallel(words), [5003, 700, 64]
    record_step(name, contexts=contexts, parallel=parallel, out=tmp_path / "a")
    assert held(tmp_path / "a") == of_model(get_model(name), contexts, parallel)


@pytest.mark.parametrize("words", ["tp=1", "tp=8,ep=8", "tp=4", "tp=2,dp=2,ep=4"])
@pytest.mark.parametrize(
    "name", ["kimi-linear", "deepseek-v3.2", "longcat-flash", "deepseek-v4-pro", "qwen3.5"]
)
def test_a_whole_step_holds_all_weights_and_its_activations(tmp_path, name, words):
    parallel, batch = parse_parallel(words), 3
    record_step(name, 900, batch=batch, part="step", parallel=parallel, out=tmp_path / "a")
    found, ours = held(tmp_path / "a"), of_model(get_model(name), [900] * batch, parallel, part="step")
    more = activations(get_model(name), batch, 132, parallel)
    assert more > 0
    assert found == replace(ours, activation=ours.activation + more)


def test_hand_values():
    kimi = of_model(get_model("kimi-linear"), [10 * M], part="step")
    assert kimi.weights / 1e9 == pytest.approx(98.2, abs=0.05)  # 49.12e9 parameters in bf16
    assert kimi.kv == 7 * 1152 * 10 * M
    assert kimi.state == 20 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)
    v32 = of_model(get_model("deepseek-v3.2"), [10 * M])
    assert v32.caches == 61 * (656 + 132) * 10 * M == 504_029_511_680
    twin = of_model(get_model("kimi-linear-all-mla"), [10 * M])
    assert twin.caches == 27 * 1152 * 10 * M


@pytest.mark.parametrize(("words", "fitting"), [("tp=8,ep=8", 1), ("tp=8,ep=8,dcp=8", 8)])
def test_v32_at_a_million_tokens_on_eight_gpus(words, fitting):
    model, parallel = get_model("deepseek-v3.2"), parse_parallel(words)
    assert most_sequences(model, M, H200_BYTES, parallel, part="step") == fitting
    for batch in (fitting, fitting + 1):
        fits = of_model(model, [M] * batch, parallel, part="step").total <= H200_BYTES
        assert fits == (batch == fitting)


def test_most_sequences_counts_those_of_all_groups():
    model, parallel = get_model("kimi-linear"), parse_parallel("tp=2,dp=4,ep=8")
    most = most_sequences(model, M, H200_BYTES, parallel, part="step")
    assert most % 4 == 0
    assert of_model(model, [M] * most, parallel, part="step").total <= H200_BYTES
    assert of_model(model, [M] * (most + 4), parallel, part="step").total > H200_BYTES
    assert most_sequences(model, M, 10**9, parallel, part="step") == 0


def test_sequences_of_other_lengths_count_as_they_are():
    model = get_model("kimi-linear")
    mixed, long, short = (of_model(model, contexts) for contexts in ([M, 64], [M], [64]))
    assert mixed.caches == long.caches + short.caches


def test_a_row_of_fp8_weights_is_a_byte_and_its_share_of_a_scale():
    bf16, fp8 = (
        of_model(get_model("deepseek-v3.2", changes_of(weights_dtype=dtype)), [1], part="step").weights
        for dtype in ("bf16", "fp8")
    )
    model = get_model("deepseek-v3.2")
    layers = [matrix for number in range(61) for matrix in matrices.of_layer(model, number)]
    coded = sum(matrix.parameters for matrix in layers if matrix.coded)
    assert bf16 - fp8 == pytest.approx(coded * (1 - 4 / 128**2), rel=2e-5)


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro", "kimi-k3"])
def test_experts_whose_makers_ship_them_in_fp4_are_held_in_fp4(name):
    """4 bits and a byte for 32 of them in the place of a byte and its share of a scale."""
    w = get_model(name).weights
    assert w.dtype == "fp4"
    held, wider = (
        of_model(get_model(name, changes_of(weights_dtype=dtype)), [1], part="step").weights
        for dtype in (None, "fp8")
    )
    routed = w.moe_layers * w.experts * 3 * w.expert_width * (w.latent or w.hidden)
    assert wider - held == pytest.approx(routed * (1 + 4 / 128**2 - 1 / 2 - 1 / 32), rel=1e-4)


def test_it_is_the_same_alone_and_needs_no_torch():
    assert of_model(get_model("glm-5.2"), [M]) == of_model(get_model("glm-5.2"), [M], ALONE)
    code = (
        "import sys; from workloads.models import footprint, get_model;"
        "footprint.of_model(get_model('deepseek-v4-pro'), [1 << 20], part='step');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
