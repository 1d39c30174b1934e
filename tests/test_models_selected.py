"""Rows that sparse layers gather: as many as there are, inside the context, the forced ones among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from workloads.models import get_model
from workloads.selected import Selected

CONTEXTS = (1, 5, 63, 64, 65, 300, 2047, 2048, 2051, 5003, 70_001)


def few(name: str, *numbers: int):
    """The model with some of its layers alone, none of which shares."""
    model = get_model(name)
    return replace(model, layers=tuple(model.layers[number] for number in numbers))


@pytest.mark.parametrize("spec", ["dsa_mid", "uniform", "overlap=0.5"])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    ("name", "layer"),
    [("deepseek-v3.2", 5), ("glm-5.3-flash", 3), ("longcat-2.0", 4), ("deepseek-v4-flash", 2)],
)
def test_a_step_gathers_min_of_k_and_what_there_is(name, layer, context, spec):
    model = few(name, layer)
    shape, chosen = model.layers[0].shape, Selected(model, spec, seed=1)
    for step in range(6):
        tokens = context + step
        (found,) = chosen.rows(0, step, [tokens])
        there = tokens // getattr(shape, "ratio", 1)
        open_pool = tokens % getattr(shape, "pool", 1)
        assert len(found) == min(there, shape.top_k + open_pool)
        assert (np.diff(found) > 0).all()
        assert len(found) == 0 or (found[0] >= 0 and found[-1] < there)


def test_longcat_forces_the_first_16_and_the_last_1024():
    chosen = Selected(few("longcat-2.0", 2), "uniform", seed=0)
    (found,) = chosen.rows(0, 0, [50_000])
    assert found[:16].tolist() == list(range(16))
    assert found[-1024:].tolist() == list(range(50_000 - 1024, 50_000))
    (after,) = chosen.rows(0, 1, [50_001])
    assert len(np.intersect1d(found, after)) >= 16 + 1023


def test_pools_are_gathered_whole_and_the_open_one_in_any_case():
    chosen = Selected(few("glm-5.3-flash", 3), "uniform", seed=0)
    (found,) = chosen.rows(0, 0, [40_003])
    assert found[-3:].tolist() == [40_000, 40_001, 40_002]
    assert (found[:-3].reshape(-1, 4) % 4 == np.arange(4)).all()


@pytest.mark.parametrize("context", [7, 900, 30_000, 300_001])
def test_candidate_blocks_bound_the_selection_of_all_layers_after(context):
    model = get_model("deepseek-v4.1-flash")
    chosen = Selected(model, "dsa_mid", seed=3)
    for step in range(2):
        lengths = [context + step, context // 2 + 1 + step]
        rows = {number: chosen.rows(number, step, lengths) for number in range(40)}
        blocks = {number: chosen.candidates(number) for number in range(40)}
        assert rows[1] is None
        assert blocks[19] is None
        for number in range(20, 40):
            assert blocks[number] is blocks[20]
            for tokens, found, among in zip(lengths, rows[number], blocks[20], strict=True):
                assert len(among) == min(2048, -(-tokens // 8))
                assert among[-1] == (tokens - 1) // 8
                assert np.isin(found // 8, among).all()
                assert len(found) == min(512, tokens)
                assert found[-1] < tokens
        assert rows[21] is rows[20]
        assert rows[39] is rows[36]
        if context > 1000:
            assert rows[24][0].tolist() != rows[20][0].tolist()


def test_the_same_seed_gives_the_same_rows_and_another_one_others():
    model = few("deepseek-v4-pro", 2)
    first, again, other = (Selected(model, "dsa_mid", seed).rows(0, 0, [500_000])[0] for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
