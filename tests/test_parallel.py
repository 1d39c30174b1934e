"""How a model is spread over GPUs: what is cut, what every GPU has, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from memsim.errors import UsageError
from workloads.models import get_model, matrices, model_names
from workloads.models.footprint import of_model
from workloads.parallel import ALONE, Parallel, gathered, parse_parallel, shard
from workloads.shapes import GdnShape, KdaShape

M = 1 << 20
WHOLE = {
    *("down", "latent", "router", "gate-a", "out-gate-a", "index-q", "index-key", "index-weights"),
    *("latent-down", "latent-up", "mix-attention", "mix-experts", "compressor", "index-compressor"),
}


def matrix_bytes(model):
    """Parameters by the name of the matrix, over all layers."""
    found: dict[str, int] = {}
    for number in range(len(model.layers)):
        for matrix in matrices.of_layer(model, number):
            found[matrix.name] = found.get(matrix.name, 0) + matrix.parameters
    return found


def test_words_in_any_order():
    assert parse_parallel("dp=2, tp=4,ep=8") == Parallel(tp=4, ep=8, dp=2)
    assert parse_parallel("tp=8,dcp=4").words == "tp=8,ep=1,dp=1,dcp=4"
    assert Parallel(tp=4, dp=2).gpus == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=8,pp=2", "--parallel tp=8,pp=2: unknown word 'pp'; choose one of: dcp, dp, ep, tp"),
        ("", "unknown word ''"),
        ("tp", "expected a number of GPUs for each word, as in tp=8,ep=8"),
        ("tp=0", "expected a number of GPUs for each word"),
        ("tp=2,tp=2", "expected a number of GPUs for each word"),
        ("tp=8,ep=4", "ep=4; experts are dealt to all GPUs, ep=8, or cut by columns, ep=1"),
        ("tp=4,dp=2,ep=4", "ep=4; experts are dealt to all GPUs, ep=8"),
        ("tp=8,dcp=3", "dcp=3; the GPUs that share positions are of one tp group, so that dcp divides tp=8"),
    ],
)
def test_wrong_words_are_refused(text, message):
    with pytest.raises(UsageError) as error:
        parse_parallel(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("kimi-linear", "tp=32", "32 KDA heads cannot be cut by tp=32, an even number each"),
        ("qwen3.5-27b", "tp=8,dcp=8", "4 key heads are already cut by tp=8; expected dcp of 2 at most"),
        ("minimax-m2.7", "tp=12", "8 key heads are neither cut by tp=12 nor shared evenly"),
        ("deepseek-v3", "tp=3", "128 query heads cannot be cut by tp=3"),
        (
            "glm-5.3-flash",
            "tp=8,dcp=8",
            "dcp=8 with layers 'dsa' of kind dsa, whose positions are not shared",
        ),
        ("longcat-2.0", "tp=2,dcp=2", "whose positions are not shared here"),
        ("deepseek-v4-pro", "tp=8,dcp=2", "dcp=2 with layers 'hca' of kind hca"),
        ("mimo-v2-flash", "tp=8,dcp=2", "dcp=2 with layers 'swa' of kind swa"),
        ("kimi-k3", "tp=12,ep=12", "896 experts cannot be dealt to ep=12 GPUs evenly"),
    ],
)
def test_what_cannot_be_cut_is_refused(name, text, message):
    with pytest.raises(UsageError) as error:
        shard(get_model(name), parse_parallel(text))
    assert message in str(error.value)
    assert f"with '{name}': " in str(error.value)


@pytest.mark.parametrize("name", model_names())
def test_a_group_of_eight_holds_each_matrix_once_or_every_gpu_has_it(name):
    model = get_model(name)
    whole, part = matrix_bytes(model), matrix_bytes(shard(model, parse_parallel("tp=8,ep=8")))
    assert set(whole) == set(part)
    padded = {"shared-up", "shared-down"} if name == "deepseek-v4.1-flash" else set()
    for matrix in set(whole) - {"qkv"} - padded:
        assert part[matrix] * (1 if matrix in WHOLE else 8) == whole[matrix], matrix
    if name == "deepseek-v4.1-flash":  # 2,304 / 8 columns, padded to three blocks of 128
        assert part["shared-down"] * 6 == whole["shared-down"]
    if "qkv" in whole:  # key heads beyond those of the model are held twice
        assert whole["qkv"] <= part["qkv"] * 8 < 1.5 * whole["qkv"]


@pytest.mark.parametrize("name", ["deepseek-v3.2", "kimi-linear", "qwen3.5", "glm-5.3-flash"])
def test_states_are_cut_by_heads_and_latent_rows_by_positions_alone(name):
    model = get_model(name)
    alone, shared = (of_model(model, [M], parallel) for parallel in (ALONE, parse_parallel("tp=8,ep=8")))
    assert shared.state * 8 == alone.state
    kinds = {layer.kind for layer in model.layers}
    times = 1 if kinds & {"mla", "dsa"} else 2  # 2 key heads on 8 GPUs: one on each
    assert shared.kv * times == alone.kv
    assert shared.index == alone.index
    if name in ("deepseek-v3.2", "kimi-linear"):
        spread = of_model(model, [M], parse_parallel("tp=8,ep=8,dcp=8"))
        assert (spread.kv * 8, spread.index * 8, spread.state) == (alone.kv, alone.index, shared.state)


def test_groups_share_the_batch():
    parallel = parse_parallel("tp=2,dp=4")
    contexts = [M, 1, 2, 3, 4, 5]
    assert parallel.sequences(contexts) == [M, 4]
    model = get_model("kimi-linear")
    assert of_model(model, contexts, parallel) == of_model(model, [M, 4], parse_parallel("tp=2"))


def test_columns_of_experts_are_cut_by_all_gpus_unless_they_are_dealt():
    model = get_model("deepseek-v3.2")
    cut, dealt = (shard(model, parse_parallel(text)).weights for text in ("tp=4,dp=2", "tp=4,dp=2,ep=8"))
    assert (cut.held, cut.expert_width) == (256, 2048 // 8)
    assert (dealt.held, dealt.expert_width) == (256 // 8, 2048)
    assert cut.shared_width == dealt.shared_width == 2048 // 4
    assert cut.experts == dealt.experts == 256


def test_heads_of_the_gpus_that_share_positions_come_together():
    model, parallel = get_model("deepseek-v3.2"), parse_parallel("tp=8,dcp=4")
    shape = shard(model, parallel).layers[0].shape
    assert shape.attention.heads == 16
    assert gathered(shape, parallel).attention.heads == 64
    assert gathered(shape, parallel).index_heads == 64
    for state in (KdaShape(4), GdnShape(2, 4)):
        assert gathered(state, parallel) == state


def test_rows_of_a_vocabulary_are_padded_before_they_are_cut():
    assert shard(get_model("glm-5.2"), parse_parallel("tp=8")).weights.vocab == 154_880 // 8
    model = get_model("llama-3.1-70b")
    assert shard(model, parse_parallel("tp=16")).weights.vocab == 128_256 // 16


def test_the_manual_names_every_word_and_every_family():
    page = Path(__file__).parents[1].joinpath("docs", "parallel.md").read_text(encoding="utf-8")
    for field in fields(Parallel):
        assert f"| `{field.name}` |" in page
    for family in ("all-reduce", "all-gather", "reduce-scatter", "dcp-weight", "dsa-topk"):
        assert f"`{family}`" in page


def test_positions_are_not_shared_by_a_model_without_caches():
    whole = get_model("kimi-linear")
    states = tuple(layer for layer in whole.layers if layer.kind == "kda")
    with pytest.raises(UsageError, match="dcp=8 shares positions of caches, and it has none; leave dcp away"):
        shard(replace(whole, layers=states), parse_parallel("tp=8,dcp=8"))
    shard(whole, parse_parallel("tp=8,dcp=8"))
