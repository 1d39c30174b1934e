"""The locality law and its two ways to draw it: the exact one against published figures, the threshold
sampler against the exact one."""

from functools import cache

import numpy as np
import pytest

from workloads import locality_sampler
from workloads.locality import (
    CHANCE,
    LAWS,
    ExactDraw,
    Law,
    NearRows,
    along_positions,
    best,
    expected_above,
)
from workloads.locality_sampler import BLOCK, ThresholdDraw, gaussian_above, plan
from workloads.locality_stats import compared, lru_misses, mean_run, pages

K = 2048


def generator(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize(
    ("name", "overlap_1", "overlap_8", "newest_1024", "run", "pages_touched"),
    [
        ("dsa_lo", 0.356, 0.326, 0.24, 1.74, 509),
        ("dsa_mid", 0.410, 0.369, 0.24, 1.74, 510),
        ("dsa_hi", 0.490, 0.429, 0.24, 1.74, 511),
        ("smol_k256", 0.760, 0.688, 0.39, 2.60, 251),
    ],
)
def test_exact_law_gives_the_published_statistics(
    name, overlap_1, overlap_8, newest_1024, run, pages_touched
):
    # The figures are of one draw each; the tolerances are three standard deviations between draws.
    found, _ = compared(ExactDraw, LAWS[name], K, 68_665, steps=10, seeds=6)
    assert found.overlap_1 == pytest.approx(overlap_1, abs=0.02)
    assert found.overlap_8 == pytest.approx(overlap_8, abs=0.025)
    assert found.newest_1024 == pytest.approx(newest_1024, abs=0.025)
    assert found.run == pytest.approx(run, rel=0.04)
    assert found.pages == pytest.approx(pages_touched, abs=23)


@cache
def both(name):
    return [compared(draw, LAWS[name], K, 65_536, steps=10, seeds=5) for draw in (ExactDraw, ThresholdDraw)]


@pytest.mark.parametrize("name", ["dsa_lo", "dsa_mid", "dsa_hi"])
def test_sampler_keeps_runs_pages_recency_and_overlap(name):
    (exact, _), (sampled, _) = both(name)
    assert sampled.run == pytest.approx(exact.run, rel=0.05)
    assert sampled.pages == pytest.approx(exact.pages, rel=0.05)
    assert sampled.newest_1024 == pytest.approx(exact.newest_1024, rel=0.1)
    assert sampled.overlap_1 == pytest.approx(exact.overlap_1, abs=0.02)
    assert sampled.overlap_8 == pytest.approx(exact.overlap_8, abs=0.02)


@pytest.mark.parametrize("name", ["dsa_lo", "dsa_mid", "dsa_hi"])
def test_sampler_keeps_them_among_the_rows_that_it_does_not_hold(name):
    (_, exact), (_, sampled) = both(name)
    assert sampled.rows == pytest.approx(exact.rows, rel=0.1)
    assert sampled.run == pytest.approx(exact.run, rel=0.05)
    assert sampled.pages == pytest.approx(exact.pages, rel=0.1)
    assert sampled.overlap_1 == pytest.approx(exact.overlap_1, abs=0.03)
    assert sampled.overlap_8 == pytest.approx(exact.overlap_8, abs=0.03)


def test_sampler_of_the_chance_law_draws_afresh_in_short_runs():
    draw = ThresholdDraw(CHANCE, K, generator(), 1_000_000)
    sets = []
    for step in range(6):
        sets.append(draw.select())
        draw.move(1_000_001 + step)
    assert len(np.intersect1d(sets[0], sets[1])) < 0.01 * K
    # A row above the bar has its neighbour above it as often as two Gaussians of correlation rho agree.
    first = generator(1).standard_normal(4_000_000)
    second = CHANCE.rho * first + np.sqrt(1 - CHANCE.rho**2) * generator(2).standard_normal(4_000_000)
    least = np.quantile(first, 1 - K / 1_000_000)
    expected_run = 1 / (1 - (second[first > least] > least).mean())
    assert np.mean([mean_run(rows) for rows in sets]) == pytest.approx(expected_run, rel=0.03)


@pytest.mark.parametrize("draw", [ExactDraw, ThresholdDraw])
@pytest.mark.parametrize("law", [LAWS["dsa_mid"], CHANCE])
def test_row_0_is_always_selected(draw, law):
    for k in (1, 2, 50):
        drawing = draw(law, k, generator(), 30_000)
        drawing.select()
        drawing.move(30_001)
        rows = drawing.select()
        assert rows[0] == 0
        assert len(rows) == k


def test_enough_rows_score_above_the_bar():
    law, positions = LAWS["dsa_mid"], 65_536
    bar, _ = plan(law, K, positions)
    above = [(NearRows(law, generator(seed), 0, positions).scores()[0] > bar).sum() for seed in range(60)]
    assert np.mean(above) == pytest.approx(K + 6 * np.sqrt(3 * K) + 16, rel=0.02)
    assert np.std(above) < np.sqrt(3 * K)


def test_expected_above_adds_up_the_probabilities_of_all_distances():
    law = LAWS["smol_k256"]
    distances = np.arange(1000)
    scores = generator().standard_normal((4000, 1000)) - law.decline(distances)
    edges, expected = expected_above(law, -5.0, 0, 1000)
    assert (edges[0], edges[-1]) == (0, 1000)
    assert expected.sum() == pytest.approx((scores > -5.0).sum(axis=1).mean(), rel=0.005)


def test_sampler_holds_each_block_once_and_none_of_the_newest_rows(monkeypatch):
    monkeypatch.setattr(locality_sampler, "MEMORY_STEPS", 10)
    draw = ThresholdDraw(LAWS["dsa_mid"], 256, generator(), 100_000)
    first = draw.near.first
    for step in range(1, 60):
        draw.select()
        assert len(np.unique(draw.blocks)) == len(draw.blocks)
        assert draw.blocks.max() < draw.near.first // BLOCK
        assert draw.last_above.min() >= draw.step - 10
        draw.move(100_000 + step)
    assert first < draw.near.first <= draw.end - draw.near_rows


def test_sampler_forgets_so_that_its_size_settles():
    draw = ThresholdDraw(LAWS["dsa_mid"], 64, generator(), 1_000_000)
    sizes = []
    for step in range(3 * locality_sampler.MEMORY_STEPS):
        draw.select()
        sizes.append(len(draw.blocks))
        draw.move(1_000_001 + step)
    assert max(sizes) < 1.3 * sizes[locality_sampler.MEMORY_STEPS]


def test_field_along_positions_has_variance_1_and_the_correlation_asked_for():
    field = along_positions(generator(), (200, 5000), 0.6)
    assert field.dtype == np.float32
    np.testing.assert_allclose(field.std(axis=1), 1.0, atol=0.06)
    for apart in (1, 2, 5, 20):
        assert (field[apart:] * field[:-apart]).mean() == pytest.approx(0.6**apart, abs=0.01)


def test_rows_that_join_continue_the_field():
    law = Law(recency=0.5, static=0.9, fast=0.0, slow=0.0, length_tokens=2.0)
    near = NearRows(law, generator(), 0, 3)
    for joined in [0, 1, 2] * 3000:
        near.move(near.end + joined)
    static = near.fields[0][3:]
    assert len(static) == 9000
    assert static.var() == pytest.approx(1.0, abs=0.08)
    assert (static[1:] * static[:-1]).mean() == pytest.approx(law.rho, abs=0.05)


def test_rows_that_fall_out_of_the_newest_ones_are_kept_with_their_fields():
    draw = ThresholdDraw(LAWS["dsa_mid"], 256, generator(), 100_000)
    draw.select()
    block, static = draw.near.first // BLOCK, draw.near.fields[0][: 2 * BLOCK].copy()
    draw.move(100_000 + 2 * BLOCK)
    for kept in range(2):
        (column,) = np.flatnonzero(draw.blocks == block + kept)
        np.testing.assert_array_equal(draw.fields[0][:, column], static[kept * BLOCK : (kept + 1) * BLOCK])


def test_fields_keep_their_share_from_step_to_step():
    law = LAWS["dsa_mid"]
    near = NearRows(law, generator(), 0, 100_000)
    scores = [near.scores()[0] + law.decline(near.end - 1 - np.arange(100_000))]
    for _ in range(8):
        near.move(near.end)
        scores.append(near.scores()[0] + law.decline(near.end - 1 - np.arange(100_000)))
    for apart in (1, 8):
        shared = law.static + law.fast * np.exp(-apart / 8) + law.slow * np.exp(-apart / 128)
        assert (scores[apart] * scores[0]).mean() == pytest.approx(shared, abs=0.02)


def test_tail_draws_exceed_their_least_as_a_gaussian_does():
    least = np.repeat([1.0, 2.0, 3.5], 40_000)
    drawn = gaussian_above(generator(), least).reshape(3, -1)
    assert (drawn > least.reshape(3, -1)).all()
    # E[z | z > a] = density(a) / tail(a)
    np.testing.assert_allclose(drawn.mean(axis=1), [1.52514, 2.37322, 3.75136], atol=0.005)


def test_best_takes_the_last_of_equal_scores():
    scores, rows = np.array([1.0, 3.0, 2.0, 2.0, 2.0, 0.0]), np.array([7, 1, 9, 4, 2, 5])
    assert best(scores, rows, 3).tolist() == [1, 2, 4]
    assert best(scores, rows, 6).tolist() == [1, 2, 4, 5, 7, 9]
    assert best(scores, rows, 0).tolist() == []


def test_statistics_of_a_set_worked_by_hand():
    rows = np.array([0, 1, 2, 63, 64, 200])
    assert mean_run(rows) == 2.0
    assert pages(rows) == 3


def test_lru_cache_misses_what_it_has_dropped():
    sets = [np.array([10, 11]), np.array([12, 13]), np.array([10, 11])]
    assert lru_misses(sets, 101, 3, first_counted=0) == pytest.approx(6 / 6)
    assert lru_misses(sets, 101, 8, first_counted=0) == pytest.approx(4 / 6)
    assert lru_misses(sets, 101, 8, first_counted=2) == 0
    again = [np.array([row]) for row in (10, 11, 10, 12, 10)]
    assert lru_misses(again, 101, 3, first_counted=0) == pytest.approx(3 / 5)
