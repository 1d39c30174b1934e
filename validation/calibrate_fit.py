"""The value at which replays err least: golden section on a log scale, a dozen tries at most.

Enters: what is minimised, a range, what holds now. Leaves: every value that was tried with its error. Values
are tried as a machine file would write them, so that what is written is what was replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from memsim.quantity import Count
from validation.calibrate_values import Kind, number, written

MOST_TRIES = 12
GOLDEN = (math.sqrt(5) - 1) / 2
NEAR_END = 0.02  # of the range, on its log scale
FLAT = "the points do not tell"
NOTICED = 0.002  # of the root of the mean squared log error: less is no difference
WIDE = 1.25  # values as good as the best that differ by this factor: points do not tell which

Value = str | int | float


@dataclass
class Search:
    """Tries of one fit.

    now    the value that holds, as the file writes it; None: the file has none
    tried  value -> mean squared log error; None is "no value"
    """

    kind: Kind
    least: float
    most: float
    now: object
    like: object
    error: Callable[[Value | None], float]
    tried: dict[Value | None, float] = field(default_factory=dict)

    def run(self, around: float | None = None) -> Value | None:
        """The best value of all that were tried. around: search within a factor of two of it."""
        assert self.now is None or isinstance(self.now, str | int | float)
        self._try(self.now)
        low, high = self.least, self.most
        if around:
            low, high = max(low, around / 2), min(high, around * 2)
        if issubclass(self.kind, Count) and high - low < MOST_TRIES - 1:
            for whole in range(math.ceil(low), int(high) + 1):
                self._try(whole)
        elif low < high:
            self._golden(math.log(low), math.log(high))
        return min(self.tried, key=lambda value: self.tried[value])  # of equals the first: what holds now

    def _golden(self, low: float, high: float) -> None:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_left, at_right = self._at(left), self._at(right)
        # Values close together are written alike and cost nothing: the number of turns ends those.
        for _ in range(2 * MOST_TRIES):
            if len(self.tried) >= MOST_TRIES:
                return
            if at_left <= at_right:
                high, right, at_right = right, left, at_left
                left = high - GOLDEN * (high - low)
                at_left = self._at(left)
            else:
                low, left, at_left = left, right, at_right
                right = low + GOLDEN * (high - low)
                at_right = self._at(right)

    def _at(self, log: float) -> float:
        return self._try(written(self.kind, math.exp(log), self.like))

    def _try(self, value: Value | None) -> float:
        if value not in self.tried:
            self.tried[value] = self.error(value)
        return self.tried[value]

    def note(self, best: Value | None) -> str:
        """Why the best value is none to write; "" if it is one."""
        low, high = (math.sqrt(pick(self.tried.values())) for pick in (min, max))
        if high - low < NOTICED:
            return FLAT
        if best is None:
            return "they err least without it"
        every = issubclass(self.kind, Count) and self.most - self.least < MOST_TRIES - 1
        place = math.log(number(self.kind, best) / self.least) / math.log(self.most / self.least)
        if not every and not NEAR_END < place < 1 - NEAR_END:  # where all were tried an end may be right
            return "at an end of its range"
        good = [number(self.kind, value) for value in self._as_good(low) if value is not None]
        if max(good) < WIDE * min(good):
            return ""
        ends = (written(self.kind, end, self.like) for end in (min(good), max(good)))
        return "the points allow {} to {}".format(*ends)

    def _as_good(self, least: float) -> list[Value | None]:
        """Values that err no more than the best one, as far as one can tell."""
        return [value for value, error in self.tried.items() if math.sqrt(error) - least < NOTICED]
