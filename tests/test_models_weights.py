"""The format of a model's weights: every file names one with its source, and it can be asked for anew."""

from __future__ import annotations

import pytest

from memsim.errors import UsageError
from workloads.models import get_model, model_names
from workloads.models.load import WEIGHT_DTYPES, changes_of


@pytest.mark.parametrize("name", model_names())
def test_every_file_names_a_format_and_who_says_so(name):
    model = get_model(name)
    (fact,) = [fact for fact in model.facts if fact.path == "model.weights.dtype"]
    assert fact.value == model.weights.dtype in WEIGHT_DTYPES
    assert fact.source not in ("", [fact for fact in model.facts if fact.path == "model.stack"][0].source)


def test_another_format_is_a_counterfactual():
    model = get_model("kimi-linear", changes_of(weights_dtype="fp8"))
    assert model.weights.dtype == "fp8"
    assert model.name == "kimi-linear --weights-dtype fp8"
    assert [fact.provenance for fact in model.facts if fact.path == "model.weights.chosen"] == ["assumed"]
    same = get_model("kimi-linear", changes_of(weights_dtype="bf16"))
    assert not [fact for fact in same.facts if fact.path == "model.weights.chosen"]


def test_a_format_that_there_is_none_of_is_refused():
    with pytest.raises(
        UsageError, match="--weights-dtype fp4 with 'llama-3.1-70b': it has no routed experts"
    ):
        get_model("llama-3.1-70b", changes_of(weights_dtype="fp4"))
    with pytest.raises(UsageError, match="--weights-dtype fp3 with 'kimi-linear': choose one of: bf16, fp8"):
        get_model("kimi-linear", changes_of(weights_dtype="fp3"))


def test_a_wrong_format_in_a_file_is_named(tmp_path):
    text = """
title = "Mine"
max_context = 1024
stack = "4 mla"
source = "me"
sources = { me = "assumed: made up" }
cache = { kv = ["bf16"] }
layer.mla = { heads = 4, nope = 128, value = 128 }
"""
    path = tmp_path / "mine.toml"
    path.write_text(text + 'weights = { hidden = 8, vocab = 8, dtype = "int4" }\n')
    with pytest.raises(UsageError, match=r"\[weights\] dtype names 'int4'; weights have: bf16, fp8"):
        get_model(str(path))
    path.write_text(text)
    with pytest.raises(UsageError, match="it has no weights; leave it away"):
        get_model(str(path), changes_of(weights_dtype="fp8"))
