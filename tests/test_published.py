"""A published decode curve beside ours: the ratio of full MLA to Kimi Linear at nine contexts."""

from __future__ import annotations

import pytest

from memsim import trace_cache
from memsim.projection_cell import time_ps
from memsim.projection_point import Ask, Cell
from validation import published
from validation.published import FULL, HYBRID, MACHINE, beside, figure, text

PUBLISHED = (1.05, 1.05, 1.15, 1.21, 1.24, 1.34, 1.52, 1.80, 2.22)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The attention of both models replayed at all contexts."""
    rows, ask = published.published(), Ask(part="attention")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_cache, "cache_root", lambda: tmp_path_factory.mktemp("cache"))
        times = [
            [time_ps(Cell(model, MACHINE, row[0], 1), ask, 1) / 1e9 for row in rows]
            for model in (FULL, HYBRID)
        ]
    return beside(rows, *times)


def test_the_table_is_the_published_one():
    rows = published.published()
    assert [row[0] for row in rows] == [4096 << n for n in range(9)]
    assert [row[1] / row[2] for row in rows] == pytest.approx(PUBLISHED, abs=0.006)


def test_the_ratio_is_within_a_tenth_at_all_contexts(found):
    """With one constant, the rest of a step, closed at the shortest context alone."""
    differences = [found.difference(row) for row in found.rows]
    assert max(map(abs, differences)) <= 0.10, differences
    first = found.rows[0]
    assert found.rest_ms == pytest.approx(first.hybrid_ms - first.our_hybrid_ms)
    assert 4 < found.rest_ms < 5.09


def test_attention_alone_would_not_do(found):
    """Without the constant the ratio is that of the cached bytes: what the test above can see."""
    alone = [row.our_full_ms / row.our_hybrid_ms / (row.full_ms / row.hybrid_ms) - 1 for row in found.rows]
    assert min(alone) > 0.5


def test_table_and_figure_hold_all_contexts(found):
    printed = text(found)
    assert all(f"{row.context_tokens // 1024}K" in printed for row in found.rows)
    drawn = figure(found)
    assert [len(line.x) for (panel,) in drawn.grid for line in panel.lines] == [9] * 6
