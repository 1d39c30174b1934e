"""`memsim.crossover`: the context or the batch at which two models, or two placements, swap.

Two sides and a range enter, a `Crossover` leaves: where the faster one changes, and between which contexts
that may be, by the intervals of both times. The range is sampled, each change is halved down to `CLOSE`. That
the faster one never changes in the range is an answer, too. Left out: two changes between two samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import TYPE_CHECKING, Any

from memsim.errors import DoesNotFit, UsageError
from memsim.projection_cell import check, time_ps
from memsim.projection_point import Ask, Cell, Point
from memsim.projection_run import run
from memsim.units import parse_tokens

if TYPE_CHECKING:
    from memsim.progress import Progress

CONTEXT, BATCH = "context", "batch"
CLOSE = 0.02  # of the place of a change: the samples beside it are no further apart
SAMPLES_AN_OCTAVE = 1
CONTEXTS = ("4K", "16M")
A, B, NEITHER = "A", "B", ""


@dataclass(frozen=True)
class Side:
    """What is compared: a model on a machine, and rules of placement of its own."""

    model: str
    machine: str
    place: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """As tables name it."""
        return " ".join((self.model, "on", self.machine, *self.place))


@dataclass(frozen=True)
class Sample:
    """Both sides at one context or batch."""

    x: int
    a: Point
    b: Point

    @property
    def faster(self) -> str:
        """The side that takes less time; NEITHER where one does not fit, or both take the same."""
        if self.a.refused or self.b.refused or self.a.tpot_ps == self.b.tpot_ps:
            return NEITHER
        return A if self.a.tpot_ps < self.b.tpot_ps else B


@dataclass(frozen=True)
class Swap:
    """A change of the faster side.

    x          where both take the same time
    low, high  between which it may lie, by the intervals of both; None: beyond the range
    faster     the side that is faster from here on
    """

    x: int
    low: int | None
    high: int | None
    faster: str


@dataclass(frozen=True)
class Crossover:
    """Where two sides swap along the context or the batch. samples: with x rising."""

    a: Side
    b: Side
    axis: str
    samples: tuple[Sample, ...]
    swaps: tuple[Swap, ...]


def crossover(
    a: str,
    b: str,
    machine: str | Sequence[str] = "h200-host",
    *,
    context: str | int | Sequence[str | int] = CONTEXTS,
    batch: int | Sequence[int] = 1,
    place: str | Sequence[str] = (),
    place_a: str | Sequence[str] = (),
    place_b: str | Sequence[str] = (),
    workers: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Crossover:
    """Find where the model `a` and the model `b` swap.

    machine    of both, or one of each
    context, batch   one of them is a range (lowest, highest), the other one value
    place      rules for both;  place_a, place_b  for one of them, after these
    options    as fields of `Ask`: part, overflow, overrides, kv_dtype, ...
    progress   called with (points done, points), samples first

    UsageError for a wrong word or number; DoesNotFit where no sample has both times.
    """
    machines = [machine, machine] if isinstance(machine, str) else list(machine)
    if len(machines) not in (1, 2):
        raise UsageError(f"--machine: found {len(machines)} machines; expected one of both, or two")
    both = _texts(place)
    sides = (
        Side(a, machines[0], (*both, *_texts(place_a))),
        Side(b, machines[-1], (*both, *_texts(place_b))),
    )
    several = ("run_on", "overrides", "replace")
    told: dict[str, Any] = {n: tuple(_texts(o)) if n in several else o for n, o in options.items()}
    ask = Ask(**told)
    return _Search(sides, ask, *_axis(context, batch), workers, progress).found()


def _texts(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _axis(context: Any, batch: Any) -> tuple[str, tuple[int, int], int]:
    """Which one is a range, its ends, and the other one's value."""
    ranged = [not isinstance(each, str | int) for each in (context, batch)]
    if sum(ranged) != 1:
        raise UsageError("crossover: expected a range of --context or of --batch, and one value of the other")
    name, ends = (CONTEXT, context) if ranged[0] else (BATCH, batch)
    numbers = [parse_tokens(end) if ranged[0] else int(end) for end in ends]
    if len(numbers) != 2 or not 1 <= numbers[0] < numbers[1]:
        found = ",".join(map(str, ends))
        raise UsageError(f"--{name} {found}: expected the lowest and the highest, as in 4K,16M or 1,64")
    return name, (numbers[0], numbers[1]), int(batch) if ranged[0] else parse_tokens(context)


class _Search:
    """Samples both sides along an axis and closes in on what changes."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        ask: Ask,
        axis: str,
        ends: tuple[int, int],
        other: int,
        workers: int | None,
        progress: Progress | None,
    ) -> None:
        self.sides, self.ask, self.axis, self.ends, self.other = sides, ask, axis, ends, other
        self.workers, self.progress = workers, progress

    def found(self) -> Crossover:
        """The whole answer; DoesNotFit where no sample has both times."""
        check([self.cell(side, end) for side in self.sides for end in self.ends], self.ask)
        samples = self.sampled(_spread(*self.ends))
        known = [sample for sample in samples if sample.faster]
        if all(sample.a.refused or sample.b.refused for sample in samples):
            lacks = next(p.refused for sample in samples for p in (sample.a, sample.b) if p.refused)
            raise DoesNotFit(f"no {self.axis} in the range has both times; {lacks}")
        pairs = [(p, q) for p, q in zip(known, known[1:], strict=False) if p.faster != q.faster]
        places = [self.closed(before.x, after.x, before.faster) for before, after in pairs]
        more = self.sampled(sorted(set(places) - {sample.x for sample in samples}))
        samples = sorted([*samples, *more], key=lambda sample: sample.x)
        swaps = tuple(
            Swap(x, *_reach(samples, x, before.faster), after.faster)
            for x, (before, after) in zip(places, pairs, strict=True)
        )
        return Crossover(*self.sides, self.axis, tuple(samples), swaps)

    def sampled(self, xs: Sequence[int]) -> list[Sample]:
        """Both sides at each x, with intervals."""
        points = []
        for side in self.sides:
            cells = [self.cell(side, x) for x in xs]
            points.append(run(cells, self.asked(side), None, self.workers, self.progress))
        return [Sample(x, a, b) for x, a, b in zip(xs, *points, strict=True)]

    def cell(self, side: Side, x: int) -> Cell:
        """A side at a place of the axis."""
        along = (x, self.other) if self.axis == CONTEXT else (self.other, x)
        return Cell(side.model, side.machine, *along)

    def closed(self, low: int, high: int, faster: str) -> int:
        """The x at which `faster` stops being so, by halving: the upper one of two close samples."""
        while high - low > 1 and high > low * (1 + CLOSE):
            middle = min(high - 1, max(low + 1, round(exp((log(low) + log(high)) / 2))))
            batch = middle if self.axis == BATCH else self.other
            times = [time_ps(self.cell(side, middle), self.asked(side), batch) for side in self.sides]
            still = times[0] < times[1] if faster == A else times[1] < times[0]
            low, high = (middle, high) if still else (low, middle)
        return high

    def asked(self, side: Side) -> Ask:
        """What a side is replayed with."""
        return replace(self.ask, place=side.place)


def _spread(low: int, high: int) -> list[int]:
    """Samples from low to high, evenly by ratio, both ends among them."""
    count = max(2, 1 + round(SAMPLES_AN_OCTAVE * log(high / low) / log(2)))
    found = {round(exp(log(low) + (log(high) - log(low)) * at / (count - 1))) for at in range(count)}
    return sorted(found | {low, high})


def _reach(samples: Sequence[Sample], x: int, faster: str) -> tuple[int | None, int | None]:
    """Between which x a swap at `x` may lie: where neither side is surely faster. None: beyond them all."""
    fitting = [sample for sample in samples if not sample.a.refused and not sample.b.refused]
    below = [sample.x for sample in fitting if sample.x < x and _surely(sample) == faster]
    above = [sample.x for sample in fitting if sample.x > x and _surely(sample) not in ("", faster)]
    return max(below, default=None), min(above, default=None)


def _surely(sample: Sample) -> str:
    """The side whose interval lies below the other's; NEITHER where they overlap."""
    if sample.a.high_ps < sample.b.low_ps:
        return A
    return B if sample.b.high_ps < sample.a.low_ps else NEITHER
