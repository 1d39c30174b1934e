"""Models as data: layers, shapes, a source for every number; files and changes that cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memsim.errors import UsageError
from workloads.models import describe, get_model, model_names
from workloads.models.load import changes_of
from workloads.models.stack import Wrong, in_ratio, layers_of, replaced

PROVENANCES = {"measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed"}
NAMED = {
    *("kimi-linear", "kimi-linear-all-mla", "kimi-k3", "qwen3-next", "qwen3.5", "mimo-v2-flash"),
    *("deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash"),
    *("glm-5", "glm-5.2", "glm-5.3-flash", "longcat-2.0", "llama-3.1-70b", "qwen3-235b"),
}


def numbers_of(name: str, kind: str) -> list[int]:
    """Where the layers of a table stand."""
    return [number for number, layer in enumerate(get_model(name).layers) if layer.name == kind]


def test_models_keep_their_names():
    assert set(model_names()) >= NAMED
    assert model_names() == sorted(model_names())


def test_layers_are_those_of_the_models():
    assert [number + 1 for number in numbers_of("kimi-linear", "mla")] == [4, 8, 12, 16, 20, 24, 27]
    assert [number + 1 for number in numbers_of("kimi-k3", "mla")] == [*range(4, 93, 4), 93]
    assert numbers_of("mimo-v2-flash", "gqa") == [0, *range(5, 48, 6)]
    assert numbers_of("glm-5.3-flash", "dsa") == list(range(3, 44, 4))
    assert numbers_of("glm-5.2", "dsa") == [0, 1, 2, *range(6, 75, 4)]
    assert numbers_of("longcat-2.0", "dsa") == list(range(0, 76, 2))
    assert numbers_of("deepseek-v4-flash", "csa") == list(range(2, 43, 2))
    assert numbers_of("deepseek-v4-flash", "window") == [0, 1]
    assert numbers_of("deepseek-v4-pro", "hca") == [0, 1, *range(3, 60, 2)]
    assert numbers_of("qwen3-next", "gqa") == list(range(3, 48, 4))
    v41 = get_model("deepseek-v4.1-flash").layers
    selecting = [number for number, layer in enumerate(v41) if layer.selects and layer.index_from is None]
    assert selecting == [2, 8, 14, 20, 24, 28, 32, 36]
    making = [number for number, layer in enumerate(v41) if layer.selects and layer.kv_from is None]
    assert making == [2, 8, 14, 20]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("kimi-linear", {"kda": 20, "mla": 7}),
        ("kimi-k3", {"kda": 69, "mla": 24}),
        ("deepseek-v4-flash", {"window": 2, "csa": 21, "hca": 20}),
        ("deepseek-v4-pro", {"hca": 31, "csa": 30}),
        ("deepseek-v4.1-flash", {"window": 2, "csa": 38}),
        ("glm-5.2", {"dsa": 78}),
        ("glm-5.3-flash", {"kda": 34, "dsa": 11}),
        ("mimo-v2-flash", {"gqa": 9, "swa": 39}),
        ("qwen3.5", {"gdn": 45, "gqa": 15}),
        ("longcat-2.0", {"dsa": 76}),
    ],
)
def test_kinds_are_counted(name, counts):
    assert get_model(name).layer_counts == counts


@pytest.mark.parametrize("name", model_names())
def test_every_number_has_a_provenance_and_a_source(name):
    rows = describe(get_model(name))
    assert rows[0][:2] == ("name", name)
    assert {provenance for _, _, provenance, _ in rows} <= PROVENANCES
    assert all(label and value and source for label, value, _, source in rows)
    assert len({label for label, *_ in rows}) == len(rows)


@pytest.mark.parametrize("name", model_names())
def test_layers_that_share_come_after_those_that_they_share_with(name):
    layers = get_model(name).layers
    for number, layer in enumerate(layers):
        for source in layer.sources:
            assert source < number
            assert layers[source].shape == layer.shape
        if layer.index_from is not None:
            assert layers[layer.index_from].index_from is None


def test_models_are_known_without_torch():
    code = (
        "import sys; from workloads.models import get_model; from workloads.models.document import document; "
        "document(get_model('deepseek-v4-pro')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_model_is_refused_with_the_likely_one():
    with pytest.raises(UsageError, match=r"unknown model 'kimi-liner'; did you mean 'kimi-linear'\?"):
        get_model("kimi-liner")


TEN_LINES = """
title = "Mine: 8 windows to one full layer"
max_context = 131_072
stack = "4 x (8 swa, gqa)"
source = "me"
sources = { me = "assumed: made up" }
cache = { kv = ["bf16"] }
layer.gqa = { heads = 32, kv_heads = 4, key_dim = 128, value_dim = 128 }
layer.swa = { like = "gqa", kind = "swa", window = 512, sink = true }
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_model_is_a_file_of_ten_lines(tmp_path):
    model = get_model(written(tmp_path, TEN_LINES))
    assert (model.name, len(model.layers), model.layer_counts) == ("mine", 36, {"swa": 32, "gqa": 4})
    assert model.layers[0].shape.window == 512
    assert model.layers[0].shape.attention == model.layers[8].shape
    assert model.weights is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title", "titel", "the file has an unknown key 'titel'; did you mean 'title'"),
        ('stack = "4 x (8 swa, gqa)"\n', "", "the file lacks 'stack'"),
        ("8 swa", "8 swe", "stack names 'swe' without a \\[layer.swe\\]; did you mean 'swa'"),
        ("4 x (8 swa, gqa)", "4 x (8 swa, gqa", "stack cannot be read: a bracket is not closed"),
        ("131_072", "0", "max_context is 0; expected a whole number from 1 on"),
        ("131_072", "true", "max_context is True; expected a whole number"),
        ("heads = 32,", "", r"\[layer.gqa\] lacks 'heads'"),
        ("heads = 32", "heads = 30", "has heads that are not a multiple of kv_heads"),
        ("heads = 32", 'heads = "32"', "heads is '32'; expected a whole number from 1 on"),
        ("heads = 32", "head = 32", "has an unknown key 'head'; did you mean 'heads'"),
        ('kind = "swa"', 'kind = "sva"', "has the kind 'sva'; did you mean 'swa'"),
        ('like = "gqa"', 'like = "gqs"', "is like 'gqs', which is no layer of its own; did you mean 'gqa'"),
        ("sink = true", "sink = 1", "sink is 1; expected true or false"),
        ("window = 512", 'window = 512, shares = ["index"]', "shares what layers of kind 'swa' do not have"),
        (
            "window = 512",
            'window = 512, shares = ["keys"]',
            "shares 'keys'; choose one of: blocks, index, kv",
        ),
        ('["bf16"]', '["fp8"]', r"\[cache\] kv names 'fp8'; its layers have: bf16"),
        ('["bf16"]', "[]", r"\[cache\] kv names ''"),
        ('["bf16"]', "[16]", r"\[cache\] kv is \[16\]; expected a list of texts"),
        ("kv =", "rows =", r"\[cache\] has an unknown key 'rows'"),
        ("assumed: made up", "made up", "expected 'stated: who says so'"),
        ('source = "me"', 'source = "you"', "has the source 'you'; choose one of: me"),
        ("title = ", "title ", "not TOML"),
        ("cache", "weights = { hidden = 8 }\ncache", r"\[weights\] lacks 'vocab'"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(tmp_path, old, new, message):
    assert old in TEN_LINES
    with pytest.raises(UsageError, match=message) as refused:
        get_model(written(tmp_path, TEN_LINES.replace(old, new, 1)))
    assert "\n" not in str(refused.value)
    assert "mine.toml" in str(refused.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        get_model(str(tmp_path / "none.toml"))


SPARSE = """
title = "Sparse"
max_context = 1024
stack = "dsa, other"
source = "me"
sources = { me = "assumed: made up" }
cache = { kv = ["fp8"], index = ["fp8"] }
layer.dsa = { heads = 8, nope = 128, value = 128, index_heads = 4, top_k = 64 }
"""


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ('like = "dsa", shares = ["kv"]', "shares what layers of kind 'dsa' do not have: kv"),
        ('like = "dsa", heads = 16, shares = ["index"]', "there is none of its shape"),
        ('like = "dsa", sink = 40, local = 40', "forces more rows"),
        ('like = "dsa", pool = 5', "has a top_k that is not a multiple of pool"),
        ('like = "dsa", pool = 4, sink = 4', "has pooled index keys beside forced rows"),
        ('kind = "kda", heads = 3', "has 3 heads; expected an even number"),
        ('kind = "gdn", key_heads = 4, value_heads = 6', "has value_heads that are not an even multiple"),
        (
            'kind = "window", heads = 8, window = 128, q_lora = 8, o_groups = 2, o_lora = 8, style = "v5"',
            "has the style 'v5'; choose one of: v4, v4.1",
        ),
    ],
)
def test_numbers_that_make_no_layer_are_refused(tmp_path, other, message):
    with pytest.raises(UsageError, match=message):
        get_model(written(tmp_path, SPARSE + f"layer.other = {{ {other} }}\n"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("3 a", ["a"] * 3),
        ("2 x (2 a, b), c", ["a", "a", "b", "a", "a", "b", "c"]),
        ("2 x (2 x (a), b)", ["a", "a", "b"] * 2),
        ("full-shared, v4.1", ["full-shared", "v4.1"]),
    ],
)
def test_a_stack_is_read(text, names):
    assert list(layers_of(text)) == names


@pytest.mark.parametrize(
    "text",
    ["", "3", "a b", "a,", "(a)", "2 x a", "2 x (a", "a)", "0 a", "99999 a", "200 x (200 x (a))", "A", "a;b"],
)
def test_a_text_that_is_no_stack_is_refused(text):
    with pytest.raises(Wrong):
        layers_of(text)


def test_layers_are_replaced_and_dealt_anew():
    names = ("a", "a", "x", "b", "a")
    assert replaced(names, "a", "b") == ("b", "b", "x", "b", "b")
    assert in_ratio(names, [("a", 1), ("b", 2)]) == ("a", "b", "x", "b", "a")
    seven = get_model("kimi-linear", changes_of(ratio="kda:mla=7:1"))
    assert [number for number, layer in enumerate(seven.layers) if layer.kind == "mla"] == [7, 15, 23]
    assert len(seven.layers) == 27


def test_changes_are_in_the_name_and_among_the_assumptions():
    model = get_model("kimi-k3", changes_of(["kda=mla"], kv_dtype="fp8"))
    assert model.name == "kimi-k3 --replace kda=mla --kv-dtype fp8"
    assert model.layer_counts == {"mla": 93}
    assert {layer.shape.row_bytes for layer in model.layers} == {576}
    assert [fact.provenance for fact in model.facts if fact.path == "model.changes"] == ["assumed"]
    assert model.published.total == 0
    index = get_model("glm-5", changes_of(index_dtype="fp4"))
    assert [f.provenance for f in index.facts if f.path == "model.cache.index.chosen"] == ["assumed"]
    assert {layer.shape.index_row_bytes for layer in index.layers} == {68}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("kimi-linear", {"replace": ["kda"]}, "--replace kda: expected two names of layers, such as kda=mla"),
        ("kimi-linear", {"replace": ["kda=dsa"]}, "--replace kda=dsa: no layers 'dsa'; "),
        (
            "kimi-linear",
            {"ratio": "kda:mla=7"},
            "--ratio kda:mla=7: expected names of layers and as many counts",
        ),
        ("kimi-linear", {"ratio": "kda:mla=0:1"}, "--ratio kda:mla=0:1: expected"),
        ("kimi-linear", {"ratio": "kda:kda=2:1"}, "a name stands there twice"),
        ("kimi-linear", {"ratio": "kda:mls=7:1"}, "--ratio: no layers 'mls'; did you mean 'mla'"),
        (
            "kimi-linear",
            {"kv_dtype": "fp4"},
            "--kv-dtype fp4 with 'kimi-linear': it has no such format; choose",
        ),
        (
            "kimi-linear",
            {"index_dtype": "fp4"},
            "--index-dtype fp4 with 'kimi-linear': it has no such format; leave",
        ),
        ("deepseek-v3.2", {"index_dtype": "fp2"}, "choose one of: bf16, fp8, fp4"),
        ("glm-5.2", {"ratio": "dsa-shared:dsa=7:1"}, "layer 0 .'dsa-shared'. of 'glm-5.2' shares the index"),
    ],
)
def test_changes_that_cannot_be_are_refused(name, changes, message):
    with pytest.raises(UsageError, match=message):
        get_model(name, changes_of(**changes))
