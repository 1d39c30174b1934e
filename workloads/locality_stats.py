"""Statistics of selections: what makes one law, sampler or recording comparable with another.

What enters: the sets of successive steps of one layer, ascending rows, and for recency the position of
each step's query. What leaves: plain numbers. Run as a module it prints the tables of docs/selections.md:
the exact law against its published figures, and the sampler against the exact law.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from workloads.locality import LAWS, ExactDraw, Int64s, Law
from workloads.locality_sampler import ThresholdDraw, plan
from workloads.selection import make_selection

PAGE_ROWS = 64


class Statistics(NamedTuple):
    """Means over steps (and draws). Shares are of the set; `overlap_n` of steps n apart."""

    rows: float
    run: float
    pages: float
    newest_1024: float
    overlap_1: float
    overlap_8: float


def mean_run(rows: Int64s) -> float:
    """Rows per run of consecutive rows."""
    return len(rows) / (1 + int((np.diff(rows) > 1).sum()))


def pages(rows: Int64s) -> int:
    """64-row pages touched."""
    return len(np.unique(rows // PAGE_ROWS))


def newest_share(rows: Int64s, positions: int, newest: int = 1024) -> float:
    """Share of the set that lies among the newest rows."""
    return float((rows >= positions - newest).mean())


def overlap(sets: Sequence[Int64s], steps: int) -> float:
    """Share of a set that was in the set `steps` before, mean over all pairs."""
    shares = [
        len(np.intersect1d(now, before, assume_unique=True)) / len(now)
        for now, before in zip(sets[steps:], sets, strict=False)
    ]
    return float(np.mean(shares))


def lru_misses(sets: Sequence[Int64s], positions: int, capacity: int, first_counted: int) -> float:
    """Misses a step of a least-recently-used cache of `capacity` rows, as a share of the set.

    The first set is of a context of `positions` rows, each further one of one row more. The cache starts
    with the newest rows; a step's new row is resident when written. Steps from `first_counted` on count.
    """
    newest = positions - 1
    cache: OrderedDict[int, None] = OrderedDict((row, None) for row in range(newest - capacity, newest))
    missed = 0
    for step, rows in enumerate(sets):
        cache[newest + step] = None
        for row in rows.tolist():
            if row in cache:
                cache.move_to_end(row)
            else:
                missed += step >= first_counted
                cache[row] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return missed / sum(len(rows) for rows in sets[first_counted:])


def statistics(sets: Sequence[Int64s], positions: int) -> Statistics:
    """Statistics of successive sets, the first of a context of `positions` rows, each of one row more."""
    return Statistics(
        rows=float(np.mean([len(rows) for rows in sets])),
        run=float(np.mean([mean_run(rows) for rows in sets])),
        pages=float(np.mean([pages(rows) for rows in sets])),
        newest_1024=float(np.mean([newest_share(rows, positions + step) for step, rows in enumerate(sets)])),
        overlap_1=overlap(sets, 1),
        overlap_8=overlap(sets, 8),
    )


def drawn_sets(
    draw: type[ExactDraw] | type[ThresholdDraw], law: Law, k: int, positions: int, steps: int, seed: int
) -> list[Int64s]:
    """The sets of `steps` steps by one way to draw them, in a context that grows by a row a step."""
    drawing = draw(law, k, np.random.Generator(np.random.PCG64(seed)), positions)
    sets = [drawing.select()]
    for step in range(1, steps):
        drawing.move(positions + step)
        sets.append(drawing.select())
    return sets


def compared(
    draw: type[ExactDraw] | type[ThresholdDraw], law: Law, k: int, positions: int, steps: int, seeds: int
) -> tuple[Statistics, Statistics]:
    """Mean statistics over `seeds` draws: of whole sets, and of the rows that the sampler treats as far."""
    first_near = positions - plan(law, k, positions)[1]
    whole, far = [], []
    for seed in range(seeds):
        sets = drawn_sets(draw, law, k, positions, steps, seed)
        whole.append(statistics(sets, positions))
        far.append(statistics([rows[rows < first_near] for rows in sets], positions))
    return Statistics(*np.mean(whole, axis=0)), Statistics(*np.mean(far, axis=0))


def _line(name: str, shown: Statistics) -> str:
    return (
        f"{name:34} rows {shown.rows:6.0f}  run {shown.run:.3f}  pages {shown.pages:5.1f}  newest 1024 "
        f"{shown.newest_1024:.3f}  overlap 1: {shown.overlap_1:.3f}  8: {shown.overlap_8:.3f}"
    )


def _misses(draw: type[ExactDraw] | type[ThresholdDraw], steps: int) -> str:
    sets = drawn_sets(draw, LAWS["dsa_mid"], 2048, 68_665, steps, seed=0)
    sizes = 2048, 4096, 6144, 8192
    return "  ".join(f"{size}: {lru_misses(sets, 68_665, size, steps // 4):.3f}" for size in sizes)


def _seconds(name: str, steps: int) -> str:
    selection = make_selection(name, 2048, 0)
    took = []
    for step in range(steps):
        start = time.perf_counter()
        for layer in range(61):
            selection.rows(layer, 0, step, 10 * 2**20 + step)
        took.append(time.perf_counter() - start)
    return f"first step {took[0]:.2f} s, last of {steps} {took[-1]:.2f} s"


def main() -> None:
    """Print the tables of docs/selections.md; takes about a minute."""
    print("exact law at 68,665 rows, k = 2048")
    for name, law in LAWS.items():
        print(_line(name, compared(ExactDraw, law, 2048, 68_665, steps=32, seeds=4)[0]))
    print("exact law against threshold sampler, k = 2048: whole sets, and rows beyond the newest")
    cases = [(name, 65_536, 32, 4) for name in LAWS] + [("dsa_mid", 2**20, 16, 2)]
    for name, positions, steps, seeds in cases:
        for draw in ExactDraw, ThresholdDraw:
            whole, far = compared(draw, LAWS[name], 2048, positions, steps, seeds)
            print(_line(f"{name} {positions} {draw.__name__}", whole))
            print(_line("  far", far))
    print("dsa_mid at 68,665 rows, misses of an LRU cache by its rows, share of k")
    for draw in ExactDraw, ThresholdDraw:
        print(f"{draw.__name__:34} {_misses(draw, 192)}")
    print("61 layers at 10M rows, k = 2048")
    for name, steps in ("dsa_mid", 40), ("uniform", 3):
        print(f"{name:34} {_seconds(name, steps)}")


if __name__ == "__main__":
    main()
