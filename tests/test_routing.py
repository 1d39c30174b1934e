"""Experts that tokens choose: as many different ones as chance says, from a seed, or from a file."""

from __future__ import annotations

import numpy as np
import pytest

from memsim.errors import UsageError
from workloads.experts import chosen_of
from workloads.routing import TURNS, Routing, expected_distinct, recorded


@pytest.mark.parametrize(
    ("experts", "active", "tokens"), [(256, 8, 1), (256, 8, 16), (256, 8, 64), (512, 10, 32)]
)
def test_as_many_different_experts_as_chance_says(experts, active, tokens):
    routing = Routing(experts, active, seed=3)
    counts = [len(np.unique(routing.chosen(0, step, tokens))) for step in range(200)]
    expected = expected_distinct(experts, active, tokens)
    assert abs(np.mean(counts) - expected) < 0.01 * expected
    if tokens == 1:
        assert set(counts) == {active}


def test_layers_take_turns_on_draws_that_the_seed_makes():
    one, other = Routing(64, 4, seed=1), Routing(64, 4, seed=2)
    assert np.array_equal(one.chosen(0, 0, 8), one.chosen(TURNS, 0, 8))
    assert not np.array_equal(one.chosen(0, 0, 8), one.chosen(1, 0, 8))
    assert not np.array_equal(one.chosen(0, 0, 8), one.chosen(0, 1, 8))
    assert not np.array_equal(one.chosen(0, 0, 8), other.chosen(0, 0, 8))


def test_pairs_of_the_experts_that_are_here():
    chosen = chosen_of(np.array([[0, 5], [2, 5], [0, 9]]), experts=6)
    assert chosen.experts == (0, 2, 5)
    assert [pairs.tolist() for pairs in chosen.pairs] == [[0, 4], [2], [1, 3]]


def test_a_recorded_file(tmp_path):
    path = tmp_path / "routing.txt"
    path.write_text("# step layer token experts\n0 3 0 5,1\n0 3 1 2,4\n")
    routing = recorded(path, experts=6, active=2)
    assert routing.chosen(3, 0, 2).tolist() == [[1, 5], [2, 4]]
    with pytest.raises(UsageError, match="layer 2, step 0: the file names 0 tokens, the step has 1"):
        routing.chosen(2, 0, 1)
    for text, wrong in (
        ("0 0 0 1 1", "expected 2 different experts below 6"),
        ("0 0 0 1 6", "expected 2 different experts below 6"),
        ("0 0 x 1 2", "expected whole numbers"),
        ("0 0 1 1 2", "are not 0, 1, 2"),
        ("", "names no token"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=wrong):
            recorded(path, experts=6, active=2)
    with pytest.raises(UsageError, match="none: cannot be read: No such file or directory; name"):
        recorded(tmp_path / "none", experts=6, active=2)
