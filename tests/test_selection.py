"""Selections by name: what every kind promises, overlap and uniform, and errors."""

import hashlib
import json
import tracemalloc

import numpy as np
import pytest

from memsim.errors import UsageError
from workloads import selection as selection_module
from workloads.locality_stats import overlap
from workloads.selection import make_selection

DRAWN = ["dsa_lo", "dsa_mid", "dsa_hi", "smol_k256", "uniform", "overlap=0.5"]


def sets_of(spec, k=32, seed=0, layer=2, sequence=0, contexts=range(300, 320)):
    selection = make_selection(spec, k, seed)
    return [selection.rows(layer, sequence, step, positions) for step, positions in enumerate(contexts)]


@pytest.fixture
def small_exact(monkeypatch):
    """Laws turn to the threshold sampler early, so that it can be tried on few positions."""
    monkeypatch.setattr(selection_module, "EXACT_POSITIONS", 2000)


@pytest.mark.parametrize("spec", DRAWN)
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(("k", "first"), [(1, 1), (32, 20), (32, 32), (64, 5000), (700, 1900), (1999, 2001)])
def test_rows_ascend_without_duplicates_inside_the_context(spec, layer, k, first, small_exact):
    contexts = first + np.cumsum([0, 1, 1, 0, 3, 17, 1, 1, 40])
    for rows, positions in zip(sets_of(spec, k, layer=layer, contexts=contexts), contexts, strict=True):
        assert rows.dtype == np.int64
        assert len(rows) == min(k, positions)
        assert (np.diff(rows) > 0).all()
        assert rows[0] >= 0
        assert rows[-1] < positions


@pytest.mark.parametrize("spec", DRAWN)
def test_same_arguments_give_the_same_rows_whatever_is_asked_between(spec):
    alone = sets_of(spec)
    selection = make_selection(spec, 32, 0)
    for step, positions in enumerate(range(300, 320)):
        selection.rows(3, 0, step, positions)
        np.testing.assert_array_equal(selection.rows(2, 0, step, positions), alone[step])
        selection.rows(2, 1, step, positions)


@pytest.mark.parametrize("spec", DRAWN)
@pytest.mark.parametrize("other", [{"seed": 1}, {"layer": 3}, {"sequence": 1}])
def test_seed_layer_and_sequence_each_change_the_rows(spec, other):
    assert any((a != b).any() for a, b in zip(sets_of(spec), sets_of(spec, **other), strict=True))


@pytest.mark.parametrize(
    ("spec", "digest"),
    [("dsa_mid", "399f1e52c0825e03"), ("uniform", "306c47910bb1c07d"), ("overlap=0.5", "ae3ad0b825084f20")],
)
def test_rows_are_the_same_on_every_machine(spec, digest):
    near = sets_of(spec, contexts=range(300, 310))
    far = sets_of(spec, k=512, contexts=range(1_000_000, 1_000_003))
    found = hashlib.sha256(b"".join(rows.astype("<i8").tobytes() for rows in near + far)).hexdigest()
    assert found[:16] == digest


def test_step_0_begins_anew():
    selection = make_selection("dsa_mid", 32, 0)
    first = [selection.rows(2, 0, step, 300 + step) for step in range(3)]
    again = [selection.rows(2, 0, step, 300 + step) for step in range(3)]
    np.testing.assert_array_equal(first, again)
    assert (first[0] != first[1]).any()


@pytest.mark.parametrize(("step", "positions"), [(2, 302), (1, 299), (-1, 300)])
def test_steps_out_of_order_and_shrinking_contexts_are_refused(step, positions):
    selection = make_selection("uniform", 32, 0)
    selection.rows(2, 0, 0, 300)
    with pytest.raises(ValueError, match="steps come one by one"):
        selection.rows(2, 0, step, positions)


@pytest.mark.parametrize(
    ("share", "kept"), [("0", 0), ("0.5", 50), ("0.333", 33), ("0.996", 100), ("1", 100)]
)
def test_overlap_keeps_exactly_the_rounded_share(share, kept):
    sets = sets_of(f"overlap={share}", k=100, contexts=range(1000, 1010))
    assert [len(np.intersect1d(a, b)) for a, b in zip(sets, sets[1:], strict=False)] == [kept] * 9


def test_overlap_keeps_more_where_too_few_other_rows_exist():
    sets = sets_of("overlap=0", k=100, contexts=[110, 111])
    assert len(np.intersect1d(*sets)) == 100 - 11


def test_overlap_draws_every_other_row_alike():
    joined = np.zeros(60)
    for seed in range(600):
        before, now = sets_of("overlap=0.5", k=20, seed=seed, contexts=[60, 60])
        joined[np.setdiff1d(now, before)] += 1
    assert joined.sum() == 600 * 10
    assert (np.abs(joined - 100) < 5 * np.sqrt(100)).all()


def test_uniform_sets_share_what_chance_gives():
    sets = sets_of("uniform", k=1000, contexts=range(10_000, 10_040))
    assert overlap(sets, 1) == pytest.approx(0.1, abs=0.01)
    assert np.mean(sets) == pytest.approx(5000, rel=0.03)


@pytest.mark.parametrize(
    ("spec", "most_bytes"), [("uniform", 1_000_000), ("overlap=0.5", 1_000_000), ("dsa_mid", 8_000_000)]
)
def test_ten_million_rows_cost_memory_for_the_selected_ones_only(spec, most_bytes):
    selection = make_selection(spec, 2048, 0)
    tracemalloc.start()
    rows = [selection.rows(2, 0, step, 10 * 2**20 + step) for step in range(2)]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rows[1]) == 2048
    assert peak_bytes < most_bytes


@pytest.mark.parametrize("positions", [8000, 200_000])
def test_first_two_layers_of_dsa_share_what_chance_gives(positions):
    shares = [
        overlap(sets_of("dsa_mid", 400, layer=layer, contexts=range(positions, positions + 8)), 1)
        for layer in range(3)
    ]
    assert shares[0] == pytest.approx(400 / positions, abs=0.02)
    assert shares[1] == pytest.approx(400 / positions, abs=0.02)
    assert shares[2] > 0.25


@pytest.mark.parametrize("spec", [*DRAWN, "pydoc_ctx7168_k256"])
def test_description_is_small_and_says_where_it_comes_from(spec):
    about = make_selection(spec, 256, 7).describe()
    assert len(json.dumps(about)) < 1000
    assert {"name", "how", "provenance", "source", "k", "seed"} <= about.keys()
    assert (about["name"], about["k"], about["seed"]) == (spec, 256, 7)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dsa_mif", "did you mean 'dsa_mid'"),
        ("Uniform", "did you mean 'uniform'"),
        ("overlap", "did you mean 'overlap=0.5'"),
        ("pydoc_ctx7168_k265", "did you mean 'pydoc_ctx7168_k256'"),
        ("", "choose one of: code_ctx7168_k256, "),
        ("overlap=1.5", "found '1.5', expected a share from 0 to 1"),
        ("overlap=-0.1", "expected a share from 0 to 1"),
        ("overlap=nan", "expected a share from 0 to 1"),
        ("overlap=half", "found 'half'"),
        ("overlap=", "found ''"),
    ],
)
def test_bad_name_says_what_to_write(spec, message):
    with pytest.raises(UsageError, match=message) as caught:
        make_selection(spec, 2048, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("k", "seed"), [(0, 0), (-3, 0), (2048, -1)])
def test_k_and_seed_are_checked(k, seed):
    with pytest.raises(UsageError, match=rf"found k = {k}, seed {seed}; expected"):
        make_selection("uniform", k, seed)
