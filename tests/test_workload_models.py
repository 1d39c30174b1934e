"""Models as data: layer counts, shapes, and a source for every number."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memsim.errors import UsageError
from workloads.models import describe, get_model, model_names

PROVENANCES = {"measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed"}


def test_models_keep_their_names():
    assert model_names() == ["kimi-linear", "kimi-linear-all-mla", "deepseek-v3", "deepseek-v3.2"]


def test_layers_are_those_of_the_models():
    assert get_model("kimi-linear").layer_counts == {"kda": 20, "mla": 7}
    full = [number for number, kind in enumerate(get_model("kimi-linear").layers, start=1) if kind == "mla"]
    assert full == [4, 8, 12, 16, 20, 24, 27]
    assert get_model("kimi-linear-all-mla").layer_counts == {"mla": 27}
    assert get_model("deepseek-v3").layer_counts == {"mla": 61}
    assert get_model("deepseek-v3.2").layer_counts == {"dsa": 61}


def test_shapes_are_those_of_the_models():
    kimi, sparse = get_model("kimi-linear"), get_model("deepseek-v3.2").dsa
    assert (kimi.mla.heads, kimi.kda.heads) == (32, 32)
    assert (sparse.attention.heads, sparse.index_heads, sparse.top_k) == (128, 64, 2048)
    assert sparse.attention.scale == pytest.approx(192**-0.5)


@pytest.mark.parametrize("name", model_names())
def test_every_number_has_a_provenance_and_a_source(name):
    rows = describe(get_model(name))
    assert rows[0][:2] == ("name", name)
    assert {provenance for _, _, provenance, _ in rows} <= PROVENANCES
    assert all(label and value and source for label, value, _, source in rows)
    assert len({label for label, *_ in rows}) == len(rows)


def test_an_unknown_model_is_refused_with_the_likely_one():
    with pytest.raises(UsageError, match=r"unknown model 'kimi-liner'; did you mean 'kimi-linear'\?"):
        get_model("kimi-liner")


def test_models_are_known_without_torch():
    code = "import sys; import workloads.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
