"""The largest batch that fits a machine, and meets a bound on the time of a token.

A cell enters, a number of sequences leaves. Whether a batch fits is asked of the footprint of one GPU, kind by
kind as rules place it; only a bound on the time is found by replays, few of them: between a batch that meets
it and one that does not.
"""

from __future__ import annotations

from memsim.projection_cell import time_ps
from memsim.projection_point import Ask, Cell
from memsim.units import format_time

MOST_BATCH = 4096  # sequences that a step is recorded for at most


def largest(cell: Cell, ask: Ask) -> tuple[int, str]:
    """The largest batch of a cell, and why no larger one; 0 where not even one sequence is possible."""
    raise NotImplementedError


def within(cell: Cell, ask: Ask, most: int, slo_ps: int) -> int:
    """The largest batch up to `most` whose token takes `slo_ps` at most; 0: not even one sequence does."""
    most_ps = time_ps(cell, ask, most)
    if most_ps <= slo_ps:
        return most
    least_ps = time_ps(cell, ask, 1)
    if least_ps > slo_ps:
        return 0
    low, high = (1, least_ps), (most, most_ps)
    guess_by_line = True
    while high[0] - low[0] > 1:
        middle = (low[0] + high[0]) // 2
        if guess_by_line:
            share = (slo_ps - low[1]) / max(1, high[1] - low[1])
            middle = min(high[0] - 1, max(low[0] + 1, low[0] + int(share * (high[0] - low[0]))))
        guess_by_line = not guess_by_line
        took_ps = time_ps(cell, ask, middle)
        low, high = (low, (middle, took_ps)) if took_ps > slo_ps else ((middle, took_ps), high)
    return low[0]
