"""Bytes and parameters of the models: every figure of the reference, and the known traps."""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction

import pytest

from workloads.models import cache, checks, document, get_model, model_names, parameters
from workloads.models.load import changes_of

CHECKS = list(checks.run())
M1, M10 = 1_048_576, 10_485_760


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.about)
def test_a_figure_is_met(check):
    assert check.passed, f"{check.about}: found {check.found}, expected {check.expected}"


def test_the_reference_is_whole():
    """Every quantity of every model and format that the reference has, so that none can get lost."""
    with checks.REFERENCE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    of_bytes = [row for row in rows if row["quantity"] not in checks.PARAMETERS]
    stacks = {(row["model"], row["options"]) for row in of_bytes}
    assert len(stacks) == 29
    assert len(of_bytes) == len(stacks) * 14
    assert len(rows) - len(of_bytes) == 19 * 3
    assert {row["model"] for row in rows} == set(model_names())


@pytest.mark.parametrize(
    ("quantity", "change"), [("read", 1.02), ("resident", 0.97), ("total", 1.006), ("slope", 1.001)]
)
def test_a_figure_that_is_off_is_found(monkeypatch, quantity, change):
    right = checks.quantity

    def wrong(model, name, context):
        return right(model, name, context) * (Fraction(change) if name == quantity else 1)

    monkeypatch.setattr(checks, "quantity", wrong)
    failed = [check for check in checks.run() if not check.passed]
    assert failed
    assert all(f": {quantity}" in check.about for check in failed)


def test_a_published_figure_that_is_far_needs_a_reason(monkeypatch):
    model = get_model("qwen3-next")
    silent = replace(model, published=replace(model.published, active_reason=""))
    monkeypatch.setattr(checks, "get_model", lambda name, *changes: silent)
    failed = {check.about for check in checks.run() if not check.passed and "published" in check.about}
    assert failed == {"qwen3-next: active parameters, published"}


def test_a_reason_stands_only_where_a_figure_is_far():
    for name in model_names():
        found = document.document(get_model(name))["parameters"]
        for what in ("total", "active"):
            far = found[f"published_{what}"] and abs(found[f"{what}_deviation"]) > parameters.CLOSE
            assert bool(found[f"{what}_reason"]) == bool(far), (name, what)


def test_kimi_k3_keeps_rows_in_24_layers_of_93():
    model = get_model("kimi-k3")
    held = [cache.of_layer(layer, M1).scanned > 0 for layer in model.layers]
    assert (sum(held), len(held)) == (24, 93)
    assert cache.slope(model) == 24 * 1152 == 27_648
    assert cache.slope(get_model("kimi-k3", changes_of(kv_dtype="fp8"))) == 24 * 576


@pytest.mark.parametrize("name", ["kimi-linear", "kimi-k3", "glm-5.3-flash", "qwen3-next", "qwen3.5"])
def test_states_do_not_grow_with_the_context(name):
    model = get_model(name)
    recurrent = [layer for layer in model.layers if layer.kind in ("kda", "gdn")]
    for layer in recurrent:
        assert cache.of_layer(layer, 1) == cache.of_layer(layer, M10)
        found = cache.of_layer(layer, M1)
        assert found.read == found.written == found.resident
    assert recurrent


def test_slopes_that_look_alike_differ_in_their_cause():
    sparse, hybrid = get_model("deepseek-v3.2"), get_model("kimi-linear")
    assert cache.slope(sparse) == 61 * 132 == 8052
    assert cache.slope(hybrid) == 7 * 1152 == 8064
    assert cache.of_model(sparse, M1).gathered == 61 * 2048 * 656
    assert cache.of_model(hybrid, M1).gathered == 0


def test_glm_52_runs_21_indexers_of_78():
    def indexers(name):
        return sum(layer.index_from is None for layer in get_model(name).layers)

    assert (indexers("glm-5"), indexers("glm-5.2"), indexers("longcat-2.0")) == (78, 21, 38)


@pytest.mark.parametrize("name", [name for name in model_names() if get_model(name).selects])
@pytest.mark.parametrize("context", [1, 3, 127, 128, 2047, 2048, 2049, 4099, 100_003])
def test_gathers_take_no_more_rows_than_there_are(name, context):
    for layer in get_model(name).layers:
        found = cache.of_layer(layer, context)
        if not layer.selects:
            assert found.gathered == 0
        elif layer.kind == "dsa":
            assert found.gathered <= context * layer.shape.row_bytes
            least = min(layer.selects, context) * layer.shape.row_bytes
            assert least <= found.gathered < least + layer.shape.pool * layer.shape.row_bytes
        else:
            entries = context // layer.shape.ratio
            assert found.gathered == min(layer.selects, entries) * layer.shape.row_bytes
        assert found.resident >= found.touched


@pytest.mark.parametrize("name", model_names())
def test_bytes_never_shrink_as_the_context_grows(name):
    found = [cache.of_model(get_model(name), context) for context in (1, 64, 200, 5000, 70_001, M1, M10)]
    for before, after in zip(found, found[1:], strict=False):
        assert before.read <= after.read
        assert before.resident <= after.resident


@pytest.mark.parametrize(
    ("name", "rows", "missed_mb"),
    [
        ("deepseek-v3.2", 124_928, {0.35: 53.3, 0.5: 41.0, 0.7: 24.6, 0.9: 8.2, 0.95: 4.1}),
        ("glm-5.2", 159_744, {0.35: 68.1, 0.5: 52.4, 0.7: 31.4, 0.9: 10.5, 0.95: 5.2}),
        ("longcat-2.0", 155_648, {0.35: 66.4, 0.5: 51.1, 0.7: 30.6, 0.9: 10.2, 0.95: 5.1}),
        ("deepseek-v4-pro", 30_720, {0.35: 11.7, 0.5: 9.0, 0.7: 5.4, 0.9: 1.8, 0.95: 0.9}),
        ("deepseek-v4-flash", 10_752, {0.35: 4.1, 0.5: 3.1, 0.7: 1.9, 0.9: 0.6, 0.95: 0.3}),
    ],
)
def test_what_a_hot_tier_of_the_last_selection_misses(name, rows, missed_mb):
    model = get_model(name)
    assert sum(layer.selects for layer in model.layers) == rows
    gathered = float(cache.of_model(model, M1).gathered)
    for overlap, expected in missed_mb.items():
        assert gathered * (1 - overlap) / 1e6 == pytest.approx(expected, abs=0.05001)


def test_an_fp4_index_halves_what_an_fp8_one_scans():
    for name in ("deepseek-v3.2", "glm-5.2", "longcat-2.0", "glm-5.3-flash"):
        eight, four = (cache.slope(get_model(name, changes_of(index_dtype=d))) for d in ("fp8", "fp4"))
        assert four / eight == Fraction(68, 132)


def test_shared_rows_are_held_once():
    model = get_model("deepseek-v4.1-flash")
    assert sum(cache.of_layer(layer, M1).resident > 128 * 528 for layer in model.layers) == 4
    found = cache.of_model(model, M1)
    assert found.scanned == 3 * 68 * M1 // 2 + 68 * M1 + 4 * 16_384 * 68
    assert found.resident - 40 * 128 * 528 == (3 * M1 // 2 + M1) * (288 + 68)
