"""The locality law of top-k sparse attention: which cached rows a decode step selects.

Every cached row has a score, the k best are selected. For the query at position t and the row at
position i, at distance d = t - i,

    score = -recency ln(d + 8) + sqrt(static) u + sqrt(fast) v(t) + sqrt(slow) w(t) + sqrt(noise) n(t)

u stays, v and w are AR(1) in time with time constants of 8 and 128 steps, n is fresh every step. All
four are Gaussian of variance 1 and AR(1) along the positions, so that selected rows come in runs.
Row 0 is always selected: attention sinks there.

What enters: a `Law`, k, a generator of random numbers. What leaves: sets of rows, one a step. `ExactDraw`
holds a value of every field for every position; `locality_sampler` does with fewer, for long contexts.
What is left out: layers are drawn independently, so no layer's set tells about the next one's; the
fields are stationary, so that a change of topic, which renews a real working set at once, never comes;
and nothing is tied to a fixed distance. docs/selections.md says what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

NEAREST_TOKENS = 8  # distances well below this are alike; part of the law as it was fitted
FAST_STEPS, SLOW_STEPS = 8.0, 128.0  # time constants of v and w, fixed when the law was fitted


@dataclass(frozen=True)
class Law:
    """Parameters of the score.

    recency        how fast the score falls with the logarithm of the distance
    static         share of the variance that stays: the hot set
    fast, slow     shares that are renewed over 8 and over 128 steps; the rest is fresh noise
    length_tokens  correlation length along the positions [tokens]
    """

    recency: float
    static: float
    fast: float
    slow: float
    length_tokens: float

    @property
    def noise(self) -> float:
        """Share of the variance that is fresh every step."""
        return max(0.0, 1.0 - self.static - self.fast - self.slow)

    @property
    def rho(self) -> float:
        """Correlation of neighbouring positions."""
        return math.exp(-1.0 / self.length_tokens)

    @property
    def memories(self) -> tuple[tuple[float, float], ...]:
        """(weight, correlation from step to step) of every field that outlives a step."""
        shares = (self.static, 1.0), (self.fast, FAST_STEPS), (self.slow, SLOW_STEPS)
        return tuple(
            (math.sqrt(share), 1.0 if steps == 1.0 else math.exp(-1.0 / steps))
            for share, steps in shares
            if share > 0
        )

    def decline(self, distance_tokens: Int64s) -> Float64s:
        """What a row's distance takes off its score."""
        decline: Float64s = self.recency * np.log(distance_tokens + float(NEAREST_TOKENS))
        return decline


# Fitted to a small dense model (smol_k256: attention of SmolLM2-135M, 8K context), and to the overlaps
# published for DeepSeek-V3.2's indexer (35 to 50 % from step to step at 68,665 tokens, layers 20 to 60).
# For the latter one number fixes two parameters, so recency = 0.5 is assumed. docs/selections.md.
LAWS = {
    "dsa_lo": Law(recency=0.5, static=0.3344, fast=0.1098, slow=0.0558, length_tokens=2.0427),
    "dsa_mid": Law(recency=0.5, static=0.4013, fast=0.1317, slow=0.0670, length_tokens=2.0427),
    "dsa_hi": Law(recency=0.5, static=0.4815, fast=0.1581, slow=0.0804, length_tokens=2.0427),
    "smol_k256": Law(recency=0.8888, static=0.5855, fast=0.1922, slow=0.0977, length_tokens=2.0427),
}
# DeepSeek-V3.2's first two layers were seen to share 1 to 2 % of their set with the step before, which is
# chance: all noise, no recency.
CHANCE = Law(recency=0.0, static=0.0, fast=0.0, slow=0.0, length_tokens=2.0427)
CHANCE_LAYERS = 2


def law_of(name: str, layer: int) -> Law:
    """The law called `name` as it holds in a layer; KeyError if there is none."""
    law = LAWS[name]
    return CHANCE if name.startswith("dsa_") and layer < CHANCE_LAYERS else law


def along_positions(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> Float32s:
    """A Gaussian field of variance 1, AR(1) with correlation `rho` along its first axis: float32[shape].

    x[i] = rho x[i-1] + e[i] is applied as the product of (1 + rho^s shift(s)) over s = 1, 2, 4, ...:
    some passes over whole arrays instead of a loop over positions.
    """
    field = rng.standard_normal(shape, dtype=np.float32)
    field[1:] *= np.float32(math.sqrt(1.0 - rho * rho))
    shift = 1
    while shift < len(field) and rho**shift > 1e-8:
        field[shift:] += np.float32(rho**shift) * field[:-shift]
        shift *= 2
    return field


def age(rng: np.random.Generator, law: Law, fields: list[Float32s]) -> None:
    """Move the fields that outlive a step by one step, in place. Forward and backward are alike."""
    for (_, keep), field in zip(law.memories, fields, strict=True):
        if keep < 1.0:
            field *= np.float32(keep)
            field += np.float32(math.sqrt(1.0 - keep * keep)) * along_positions(rng, field.shape, law.rho)


def field_sum(rng: np.random.Generator, law: Law, fields: list[Float32s], shape: tuple[int, ...]) -> Float32s:
    """The Gaussian part of the score, with fresh noise: float32[shape], variance 1."""
    total = np.float32(math.sqrt(law.noise)) * along_positions(rng, shape, law.rho)
    for (weight, _), field in zip(law.memories, fields, strict=True):
        total += np.float32(weight) * field
    return total


def best(scores: Float64s, rows: Int64s, count: int) -> Int64s:
    """The `count` rows of the highest scores, ascending; of equal scores the last ones given."""
    if count >= len(rows) or count == 0:
        return np.sort(rows[: min(count, len(rows))])
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > least)
    ties = np.flatnonzero(scores == least)[len(above) - count :]
    return np.sort(rows[np.concatenate((above, ties))])


class NearRows:
    """The fields of all rows from `first` to the newest one, kept and moved step by step."""

    def __init__(self, law: Law, rng: np.random.Generator, first: int, end: int) -> None:
        self.law, self.rng, self.first, self.end = law, rng, first, end
        self.fields = [along_positions(rng, (end - first,), law.rho) for _ in law.memories]

    def move(self, end: int) -> None:
        """One step on: fields age, and rows up to `end` join, each correlated with the one before it."""
        age(self.rng, self.law, self.fields)
        rho = self.law.rho
        reach = np.float32(rho) ** np.arange(1, end - self.end + 1, dtype=np.float32)
        for index, field in enumerate(self.fields):
            chain = along_positions(self.rng, (end - self.end + 1,), rho)
            joined = chain[1:] + reach * (field[-1] - chain[0])  # as if the chain began at the last row
            self.fields[index] = np.concatenate((field, joined))
        self.end = end

    def give_up(self, first: int) -> list[Float32s]:
        """Forget the rows before `first`; returns their fields."""
        rows = first - self.first
        given = [field[:rows].copy() for field in self.fields]
        self.fields = [field[rows:].copy() for field in self.fields]
        self.first = first
        return given

    def scores(self) -> tuple[Float64s, Int64s]:
        """Scores under the newest row's query, and the rows that they belong to: float64[n], int64[n]."""
        rows = np.arange(self.first, self.end, dtype=np.int64)
        gaussian = field_sum(self.rng, self.law, self.fields, rows.shape)
        return gaussian - self.law.decline(self.end - 1 - rows), rows


class ExactDraw:
    """The law as it is written, a value for every position: O(positions) a step."""

    def __init__(self, law: Law, k: int, rng: np.random.Generator, positions: int) -> None:
        self.k = k
        self.near = NearRows(law, rng, 0, positions)

    def select(self) -> Int64s:
        """The rows of the present step: int64[min(k, positions)], ascending."""
        scores, rows = self.near.scores()
        return np.concatenate(([0], best(scores[1:], rows[1:], self.k - 1)))

    def move(self, positions: int) -> None:
        """One step on, to a context of `positions` rows."""
        self.near.move(positions)


def tail_probability(score: float) -> float:
    """Probability that a Gaussian of variance 1 exceeds `score`."""
    return 0.5 * math.erfc(score / math.sqrt(2.0))


def distance_bins(first_tokens: int, end_tokens: int) -> Iterator[tuple[int, int]]:
    """Cut the distances first..end-1 into bins (low, high) over which a score declines by little."""
    low = first_tokens
    while low < end_tokens:
        high = min(end_tokens, max(low + 1, low + low // 50))
        yield low, high
        low = high


def expected_above(law: Law, bar: float, first_tokens: int, end_tokens: int) -> tuple[Int64s, Float64s]:
    """How many rows of each distance bin are expected to score above `bar`: edges int64[n+1], float64[n]."""
    bins = list(distance_bins(first_tokens, end_tokens))
    edges = np.array([low for low, _ in bins] + [end_tokens], dtype=np.int64)
    expected = [
        (high - low) * tail_probability(bar + law.recency * math.log((low + high - 1) / 2 + NEAREST_TOKENS))
        for low, high in bins
    ]
    return edges, np.array(expected)
