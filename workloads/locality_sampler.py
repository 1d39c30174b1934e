"""The locality law for long contexts: values only for rows that may be selected.

The newest rows, where a row is selected often, have a value each, as in the exact law. Of the rows
beyond, nearly all score too low, and the sampler never draws them. It works with blocks of 16 positions
and a bar, a score that more rows are expected to exceed than are selected. It keeps the fields of every
block of which a row has exceeded the bar within the last MEMORY_STEPS steps, and moves them in time. Each
step it looks for blocks to add: it draws rows that exceed the bar as often as the law says, draws the
rest of the block given that row, walks the block's fields back in time, and drops the block if it would
have exceeded the bar before (for then it is among those kept). What is left enters at a free place at
that distance. Then the best k of all rows with a value are selected.

What enters and what leaves is as in `locality`. What it keeps of the law: sets at any one step, runs,
recency, and the overlap of steps up to MEMORY_STEPS apart. What it misses: correlation between
neighbouring blocks beyond the newest rows (one pair of neighbours in 16), and a block that stayed below
the bar for MEMORY_STEPS steps is forgotten: another one comes up in its place, so that a cache that
would have held it that long is charged a miss too many. Layers are independent, as in the law.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache

import numpy as np

from workloads.locality import (
    Float32s,
    Float64s,
    Int64s,
    Law,
    NearRows,
    age,
    along_positions,
    best,
    distance_bins,
    expected_above,
    field_sum,
    tail_probability,
)

BLOCK = 16  # positions of a block
MEMORY_STEPS = 32  # a block is kept this long after a row of it was above the bar; 128 gains nothing seen
NEAR_PROBABILITY = 0.02  # rows nearer than where a row exceeds the bar this often all have a value
PLACES_TRIED = 16  # places looked at for a new block before it is dropped


@lru_cache(maxsize=64)
def plan(law: Law, k: int, positions: int) -> tuple[float, int]:
    """The bar, and how many of the newest rows have a value each.

    The bar lies where the law expects k + 6 sqrt(3 k) + 16 rows above it. The number of rows above a fixed
    score was seen to vary with a standard deviation of 66 at k = 2048 and 18 at k = 64, so that fewer than
    k of them are 7 and 5 standard deviations away; then the newest rows fill the set.
    """
    wanted = k + 6 * math.sqrt(3 * k) + 16
    if wanted >= positions:
        return -math.inf, positions
    low, high = -60.0, 60.0
    for _ in range(40):
        bar = (low + high) / 2
        low, high = (bar, high) if expected_above(law, bar, 0, positions)[1].sum() > wanted else (low, bar)
    near = 2 * k
    for distance, _ in distance_bins(near, positions):
        near = distance
        if tail_probability(low + float(law.decline(np.array(distance)))) <= NEAR_PROBABILITY:
            return low, near
    return low, positions


@lru_cache(maxsize=64)
def expected_far(law: Law, bar: float, first_tokens: int, end_tokens: int) -> tuple[Int64s, Float64s]:
    """`expected_above`, worked out once for all layers and steps."""
    return expected_above(law, bar, first_tokens, end_tokens)


def gaussian_above(rng: np.random.Generator, least: Float64s) -> Float64s:
    """Gaussians of variance 1 given that each exceeds its `least` > 0 (Marsaglia's tail method)."""
    drawn = np.empty_like(least)
    todo = np.arange(len(least))
    while len(todo):
        first, second = rng.random(len(todo)), rng.random(len(todo))
        drawn[todo] = np.sqrt(least[todo] ** 2 - 2.0 * np.log1p(-first))
        todo = todo[second * drawn[todo] > least[todo]]
    return drawn


class ThresholdDraw:
    """The law with values for the newest rows and for blocks that were above the bar of late."""

    def __init__(self, law: Law, k: int, rng: np.random.Generator, positions: int) -> None:
        self.law, self.k, self.rng, self.end, self.step = law, k, rng, positions, 0
        self.bar, self.near_rows = plan(law, k, positions)
        first = (positions - self.near_rows) // BLOCK * BLOCK
        if first == 0:
            self.near_rows = sys.maxsize  # nothing lies beyond, now and later
        self.near = NearRows(law, rng, first, positions)
        self.blocks = np.empty(0, dtype=np.int64)
        self.last_above = np.empty(0, dtype=np.int64)  # step
        self.fields: list[Float32s] = [np.empty((BLOCK, 0), dtype=np.float32) for _ in law.memories]

    def select(self) -> Int64s:
        """The rows of the present step: int64[min(k, positions)], ascending."""
        scores, rows = self.near.scores()
        kept_scores, kept_rows = self._kept()
        new_scores, new_rows = self._entering()
        scores = np.concatenate((scores, kept_scores.ravel(), new_scores.ravel()))
        rows = np.concatenate((rows, kept_rows.ravel(), new_rows.ravel()))
        other = rows > 0
        return np.concatenate(([0], best(scores[other], rows[other], self.k - 1)))

    def move(self, positions: int) -> None:
        """One step on, to a context of `positions` rows."""
        self.step += 1
        self.end = positions
        self.near.move(positions)
        stays = self.last_above >= self.step - MEMORY_STEPS
        if not self.law.memories:
            stays[:] = False  # nothing outlives the step
        self.blocks, self.last_above = self.blocks[stays], self.last_above[stays]
        self.fields = [field[:, stays] for field in self.fields]
        age(self.rng, self.law, self.fields)
        first = (positions - self.near_rows) // BLOCK * BLOCK
        if first > self.near.first:
            blocks = np.arange(self.near.first // BLOCK, first // BLOCK)
            given = [field.reshape(-1, BLOCK).T for field in self.near.give_up(first)]
            self._keep(blocks, given, self.step - 1)

    def _keep(self, blocks: Int64s, fields: list[Float32s], last_above: int) -> None:
        self.blocks = np.concatenate((self.blocks, blocks))
        self.last_above = np.concatenate((self.last_above, np.full(len(blocks), last_above)))
        self.fields = [np.concatenate(pair, axis=1) for pair in zip(self.fields, fields, strict=True)]

    def _rows_and_decline(self, blocks: Int64s) -> tuple[Int64s, Float64s]:
        rows = blocks * BLOCK + np.arange(BLOCK)[:, None]
        return rows, self.law.decline(self.end - 1 - rows)

    def _kept(self) -> tuple[Float64s, Int64s]:
        """Scores and rows of the blocks kept, float64[BLOCK, n] and int64[BLOCK, n]."""
        rows, decline = self._rows_and_decline(self.blocks)
        scores = field_sum(self.rng, self.law, self.fields, rows.shape) - decline
        self.last_above[(scores > self.bar).any(axis=0)] = self.step
        return scores, rows

    def _entering(self) -> tuple[Float64s, Int64s]:
        """Find the blocks that come up to the bar, keep them; their scores and rows as in `_kept`."""
        distances = self._distances_above()
        first_above = self.end - 1 - distances
        offset = first_above % BLOCK
        blocks = first_above // BLOCK
        _, decline = self._rows_and_decline(blocks)
        gaussian, fields = self._block_given_row(offset, self.bar + self.law.decline(distances))
        # Each block may be found through any of its rows above the bar: count it for the first one only.
        before = np.arange(BLOCK)[:, None] < offset
        new = np.flatnonzero(~((gaussian - decline > self.bar) & before).any(axis=0))
        new = new[self._below_before([field[:, new] for field in fields], decline[:, new])]
        found_place, blocks = self._free_places(blocks[new])
        new = new[found_place]
        self._keep(blocks, [field[:, new] for field in fields], self.step)
        rows, decline = self._rows_and_decline(blocks)
        return gaussian[:, new] - decline, rows

    def _distances_above(self) -> Int64s:
        """Distances of rows above the bar, beyond the newest rows, drawn as if nothing were known."""
        nearest, end = self.near_rows, self.end + BLOCK
        if self.near.first == 0:
            return np.empty(0, dtype=np.int64)
        # Bins reach a little past the context, so that they are worked out anew only now and then.
        edges, expected = expected_far(self.law, self.bar, nearest, (end // 4096 + 1) * 4096)
        found = self.rng.poisson(expected)
        low, high = np.repeat(edges[:-1], found), np.repeat(edges[1:], found)
        distances = low + (self.rng.random(len(low)) * (high - low)).astype(np.int64)
        rows = self.end - 1 - distances
        return distances[(rows >= 0) & (rows < self.near.first)]

    def _block_given_row(self, offset: Int64s, least: Float64s) -> tuple[Float64s, list[Float32s]]:
        """Blocks in which the row at `offset` has a Gaussian part above `least`.

        Returns the Gaussian part of the score, float64[BLOCK, n], and the fields that outlive the step.
        """
        columns = np.arange(len(offset))
        fields = [along_positions(self.rng, (BLOCK, len(offset)), self.law.rho) for _ in self.law.memories]
        free = field_sum(self.rng, self.law, fields, (BLOCK, len(offset)))
        # A Gaussian field given its value at a point: add the gap at the point times the covariance with it.
        reach = np.float32(self.law.rho) ** np.abs(np.arange(BLOCK)[:, None] - offset).astype(np.float32)
        gap = reach * (gaussian_above(self.rng, least) - free[offset, columns])
        for (weight, _), field in zip(self.law.memories, fields, strict=True):
            field += (weight * gap).astype(np.float32)
        return free + gap, fields

    def _below_before(self, fields: list[Float32s], decline: Float64s) -> Int64s:
        """Which blocks were below the bar in all the steps that the kept ones remember: indices."""
        below = np.arange(decline.shape[1])
        for _ in range(min(self.step, MEMORY_STEPS) if fields else 0):
            age(self.rng, self.law, fields)
            scores = field_sum(self.rng, self.law, fields, decline.shape) - decline
            stays = ~(scores > self.bar).any(axis=0)
            below, decline = below[stays], decline[:, stays]
            fields = [field[:, stays] for field in fields]
        return below

    def _free_places(self, blocks: Int64s) -> tuple[Int64s, Int64s]:
        """Move blocks whose place is taken to a free one at about the same distance.

        Returns the indices of those that have a place, and their places.
        """
        kept = set(self.blocks.tolist())
        found, places = [], []
        for index, block in enumerate(blocks.tolist()):
            for _ in range(PLACES_TRIED):
                if block not in kept:
                    kept.add(block)
                    found.append(index)
                    places.append(block)
                    break
                distance = self.end - 1 - block * BLOCK
                row = self.end - 1 - int(distance * (0.95 + 0.1 * self.rng.random()))
                block = min(max(row, 0), self.near.first - 1) // BLOCK
        return np.array(found, dtype=np.int64), np.array(places, dtype=np.int64)
