"""How far the guessed numbers of a machine and of kernels may be off, and machines that have them so.

A machine file and the numbers that a replay rests on enter; `Range`s leave, and a `Variation` for any choice
inside them. A number that states `low` and `high` is varied between them; one that is `assumed` and states
none by `FACTOR` each way (a size that must be a power of two by one power). Numbers set on the command line
are premises, not guesses: they stay. Prices, energies and capacities move no time and stay, too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log2
from typing import Any

from memsim.errors import ProfileError, UsageError
from memsim.profile import check
from memsim.profile_schema import Profile, effect_of
from memsim.profile_set import SET_SOURCE, overridden
from memsim.quantity import AlignedSize, Quantity, Share
from memsim.resimulate import KERNEL_TIMES, Variation
from memsim.route import build_system
from memsim.system import System
from memsim.units import format_time, parse_time

FACTOR = Fraction(3, 2)  # by which an assumed number without a range of its own is varied, each way
STEPS = 2  # of an assumed size that must be a power of two: half and double
TIMED = ("faster", "slower", "any")  # effects of numbers that move a time
DRAWS, SEED = 20, 1  # of all numbers at once; what they are drawn from

Choice = Mapping[str, Fraction]  # factor of a number, by its path


@dataclass(frozen=True)
class Range:
    """A number that may lie anywhere from `low` to `high` times what it is.

    stated   whether the file says so; else the default
    texts    the number at its low and its high end, in words
    """

    path: str
    low: Fraction
    high: Fraction
    stated: bool
    texts: tuple[str, str]

    def at(self, share: float, whole: bool) -> Fraction:
        """The factor at a share of the way from low to high, by ratio; a whole power of two if asked."""
        factor = float(self.low) * (float(self.high) / float(self.low)) ** share
        if whole:
            return Fraction(2) ** round(log2(factor))
        return Fraction(factor).limit_denominator(10**6)


class Varied:
    """A machine whose guessed numbers can be others, and kernels whose own times can be."""

    def __init__(self, profile: Profile) -> None:
        self._table = profile.model_dump(exclude_none=True)
        self._numbers = dict(profile.quantities())
        self._systems: dict[tuple[tuple[str, Fraction], ...], System] = {}
        ranges = [_range_of(path, number) for path, number in self._numbers.items()]
        self.ranges = [each for each in ranges if each is not None]
        self.kernel_ranges: list[Range] = []
        self.changed = [  # numbers that were set on the command line and move a time
            path
            for path, number in self._numbers.items()
            if number.source == SET_SOURCE and effect_of(path) in TIMED
        ]

    def with_kernels(self, inputs: Iterable[Mapping[str, Any]]) -> Varied:
        """The same machine for kernels of a trace. inputs: what the trace says of its numbers."""
        varied = copy(self)
        varied.kernel_ranges = [each for each in map(_kernel_range, inputs) if each is not None]
        return varied

    def used(self, paths: Collection[str]) -> list[Range]:
        """Ranges of the machine's numbers among `paths`, and of the kernels' own times."""
        return [each for each in self.ranges if each.path in paths] + self.kernel_ranges

    def variation(self, choice: Choice) -> Variation:
        """The machine and the kernels' times with some numbers changed; ProfileError where none is so."""
        machine = tuple(sorted((path, by) for path, by in choice.items() if path in self._numbers))
        if machine not in self._systems:
            self._systems[machine] = self._built(machine)
        times = {_of_kernel(path): factor for path, factor in choice.items() if path not in self._numbers}
        return Variation(self._systems[machine], times)

    def _built(self, choice: Iterable[tuple[str, Fraction]]) -> System:
        table = self._table
        for path, factor in choice:
            table = overridden(table, f"{path}={self._numbers[path].scaled(factor)}")
        found = check(table)
        if isinstance(found, list):
            raise ProfileError(found[0])
        system = build_system(found)
        return replace(system, tiers=tuple(replace(tier, tail=()) for tier in system.tiers))

    def draws(self, ranges: Sequence[Range], count: int = DRAWS, seed: int = SEED) -> list[Choice]:
        """Choices of all ranges at once: of each number one from every `count`-th part of its range, in
        seeded order (a Latin hypercube). A number's draws do not depend on which others are drawn."""
        columns = {}
        for each in ranges:
            source = random.Random(f"{seed} {each.path}")
            parts = list(range(count))
            source.shuffle(parts)
            whole = isinstance(self._numbers.get(each.path), AlignedSize)
            columns[each.path] = [each.at((part + source.random()) / count, whole) for part in parts]
        return [{path: column[at] for path, column in columns.items()} for at in range(count)]


def _range_of(path: str, number: Quantity) -> Range | None:
    """The range of a machine's number; None where it stays as it is."""
    if effect_of(path) not in TIMED or number.source == SET_SOURCE:
        return None
    if number.low is not None and number.high is not None:
        size = _size(number, number.value)
        if not size:
            return None
        low, high = (_size(number, end) / size for end in (number.low, number.high))
        return Range(path, low, high, True, (str(number.low), str(number.high)))
    if number.provenance != "assumed":
        return None
    factor = Fraction(STEPS) if isinstance(number, AlignedSize) else FACTOR
    texts = (number.told(1 / factor), number.told(factor))
    return Range(path, 1 / factor, factor, False, texts)


def _size(number: Quantity, value: object) -> Fraction:
    """A value of the same kind as `number`, in its integer unit, a share as a share."""
    parsed = type(number).parse(value)
    return Fraction(parsed) if isinstance(number, Share) else Fraction(int(parsed))


def _kernel_range(fact: Mapping[str, Any]) -> Range | None:
    """The range of a time of a family's kernels that the trace lists; None for all else."""
    match = re.fullmatch(rf"kernel\.(.+)\.({'|'.join(KERNEL_TIMES)})", str(fact["path"]))
    low, high = fact.get("low"), fact.get("high")
    if not match or (fact["provenance"] != "assumed" and low is None):
        return None
    try:
        size = parse_time(fact["value"])
    except UsageError:  # the rule by which tiles are cut has such a path, too
        return None
    if not size:
        return None
    if low is None or high is None:
        ends_ps = (int(size / FACTOR), int(size * FACTOR))
        texts = (format_time(ends_ps[0]), format_time(ends_ps[1]))
        return Range(str(fact["path"]), 1 / FACTOR, FACTOR, False, texts)
    factors = (Fraction(parse_time(low), size), Fraction(parse_time(high), size))
    return Range(str(fact["path"]), *factors, True, (str(low), str(high)))


def _of_kernel(path: str) -> tuple[str, str]:
    """Family and key of a kernel's time."""
    family, _, key = path.removeprefix("kernel.").rpartition(".")
    return family, key
