"""How far a replayed time may be off: errors of what was measured, and guesses of the numbers it rests on.

What was replayed enters, an `Interval` leaves. Two things widen it. (a) Each family of kernels may take as
much more or less as measured times of its like differed from replayed ones, 5 to 95% of held-out points; the
families' ends are summed, as if all erred together. (b) Each guessed number may be another: all are drawn at
once, seeded, and the distinct kernels replayed again; 5 to 95% of the draws. The ends are multiplied.
docs/projection.md says what stands for what, and what is not covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from memsim.errors import MemsimError
from memsim.options import ReplayOptions
from memsim.profile_set import SET_SOURCE
from memsim.ranges import Range, Varied
from memsim.resimulate import Distinct
from memsim.result import FamilyTotals, Result
from memsim.rules import Memory
from memsim.system import System
from memsim.tally import Watched
from memsim.units import format_time

if TYPE_CHECKING:
    from validation.quantiles import Evidence

VALIDATED, EXTRAPOLATED, UNVALIDATED = TRUSTS = ("validated", "extrapolated", "unvalidated")
LITTLE = 0.1  # of the time: families that take no more together do not make a point unvalidated
FELT = 5e-4  # of the time: a number that moves it less is not told


@dataclass(frozen=True)
class Effect:
    """What a guessed number does to the time: shares by which it grows at the number's low and high end.

    stated   whether somebody said how far it may be off; else the default of `ranges`
    """

    path: str
    low: str
    high: str
    stated: bool
    at_low: float
    at_high: float


@dataclass(frozen=True)
class FamilyTrust:
    """A family's share of the time, and how far measured times may lie from it, as ratios."""

    family: str
    share: float
    low: float
    high: float
    like: tuple[str, ...]
    trust: str
    why: str


@dataclass(frozen=True)
class Interval:
    """Bounds of the time of a token [ps], and what they come from.

    trust     of TRUSTS, the worst that matters;  why  in words, where it is not validated
    measured, guessed   (low, high) ratios of (a) and (b)
    """

    low_ps: int
    high_ps: int
    trust: str
    why: tuple[str, ...]
    measured: tuple[float, float]
    guessed: tuple[float, float]
    families: tuple[FamilyTrust, ...]
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Replayed:
    """A result with all that it takes to replay its kernels again. longest: family -> id of its kernel."""

    result: Result
    trace: Watched
    system: System
    memory: Memory
    options: ReplayOptions
    longest: Mapping[str, int]


def of(replayed: Replayed, varied: Varied) -> Interval:
    """The interval of a replayed time. varied: the machine, its numbers free to be others."""
    result = replayed.result
    families = tuple(_trusted(replayed, family) for family in result.families)
    trust, why = _overall(families, varied.changed)
    measured = _summed(families)
    effects, guessed = _guessed(replayed, varied)
    low_ps, high_ps = (round(result.tpot_ps * a * b) for a, b in zip(measured, guessed, strict=True))
    return Interval(low_ps, high_ps, trust, why, measured, guessed, families, effects)


def by_measurements(replayed: Replayed) -> str:
    """What a replay says of its time: errors of measured kernels, where all were measured on its machine."""
    result = replayed.result
    if any(item.source == SET_SOURCE for item in replayed.system.inputs):
        return "no interval (numbers were set; 'memsim project' says how far guesses reach)"
    families = [_trusted(replayed, family) for family in result.families]
    if any(family.trust != VALIDATED for family in families):
        return "no interval (not all of it was measured on this machine; 'memsim project' says more)"
    low, high = (format_time(round(result.tpot_ps * end)) for end in _summed(families))
    return f"{low} to {high} by errors of measured kernels (5 to 95%)"


def _trusted(replayed: Replayed, family: FamilyTotals) -> FamilyTrust:
    """What measurements say of a family."""
    result = replayed.result
    first = replayed.system.initiators[0].name
    evidence = _evidence(result, family, _tiers_of(replayed, family.name), first)
    return FamilyTrust(
        family.name,
        family.time_ps / max(1, result.total_ps),
        *(evidence.low, evidence.high),
        *(evidence.like, evidence.trust, evidence.why),
    )


def _evidence(result: Result, family: FamilyTotals, tiers: Sequence[str], first: str) -> Evidence:
    from validation import quantiles

    book = quantiles.book_of(result.machine)
    if book is None:
        return quantiles.unmeasured(result.machine, family.name)
    name = family.name if family.initiator == first else f"{family.name} on {family.initiator}"
    return book.evidence(name, tiers, result.context_tokens, result.batch)


def _tiers_of(replayed: Replayed, family: str) -> list[str]:
    """Tiers that the family's kernels move bytes on."""
    outcome = replayed.result.outcome
    assert outcome is not None
    members = [number for number, name in enumerate(replayed.trace.tally.family) if name == family]
    moved = outcome.kernel_moved[members].sum(axis=(0, 2))
    return [tier.name for tier, nbytes in zip(replayed.system.tiers, moved, strict=False) if nbytes]


def _overall(families: Iterable[FamilyTrust], changed: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Trust of the whole, and why: what is never measured counts where it takes more than LITTLE."""
    trust, why = VALIDATED, []
    for level in (EXTRAPOLATED, UNVALIDATED):
        such = [family for family in families if family.trust == level]
        if sum(family.share for family in such) > LITTLE:
            trust = level
            why += list(dict.fromkeys(family.why for family in such))
    if changed:
        trust = UNVALIDATED if trust == UNVALIDATED else EXTRAPOLATED
        why.append(f"changed: {', '.join(changed)}")
    return trust, tuple(why)


def _summed(families: Iterable[FamilyTrust]) -> tuple[float, float]:
    """Ratios of the whole: the families' ends by their shares, all at once; what is no family stays."""
    families = list(families)
    rest = max(0.0, 1 - sum(family.share for family in families))
    low, high = (
        rest + sum(family.share * getattr(family, end) for family in families) for end in ("low", "high")
    )
    return low, high


def _guessed(replayed: Replayed, varied: Varied) -> tuple[tuple[Effect, ...], tuple[float, float]]:
    """What each guessed number does alone, and the ratios of all together: 5 and 95% of seeded draws."""
    ranges = varied.used(_paths_used(replayed))
    if not ranges:
        return (), (1.0, 1.0)
    again = _Again(replayed, varied)
    effects, felt = [], []
    for each in ranges:
        ends = [again.ratio({each.path: factor}) - 1 for factor in (each.low, each.high)]
        if max(map(abs, ends)) >= FELT:
            felt.append(each)
            effects.append(Effect(each.path, *each.texts, each.stated, *ends))
    effects.sort(key=lambda effect: -max(abs(effect.at_low), abs(effect.at_high)))
    return tuple(effects), _drawn(again, varied, felt)


def _drawn(again: _Again, varied: Varied, felt: Sequence[Range]) -> tuple[float, float]:
    if not felt:
        return 1.0, 1.0
    ratios = [again.ratio(choice) for choice in varied.draws(felt)]
    low, high = np.quantile(ratios, (0.05, 0.95)).tolist()
    return min(1.0, low), max(1.0, high)


def _paths_used(replayed: Replayed) -> set[str]:
    """Numbers of what the replay used: of tiers and links that moved something, of what ran its kernels."""
    result = replayed.result
    places = (("tier", result.tiers), ("link", result.links))
    idle = [
        f"{kind}.{place.name}."
        for kind, found in places
        for place in found
        if not place.moved_read_bytes + place.moved_write_bytes
    ]
    ran = {family.initiator for family in result.families}
    idle += [f"initiator.{runner.name}." for runner in replayed.system.initiators if runner.name not in ran]
    return {item.path for item in replayed.system.inputs if not item.path.startswith(tuple(idle))}


class _Again:
    """Ratios of the whole time when some numbers are others."""

    def __init__(self, replayed: Replayed, varied: Varied) -> None:
        self._varied, self._result = varied, replayed.result
        self._distinct = Distinct(
            replayed.trace.trace, replayed.system, replayed.memory, replayed.options, replayed.longest
        )
        self._base_ps = self._distinct.times_ps(varied.variation({}))

    def ratio(self, choice: Mapping[str, Fraction]) -> float:
        """The time with the chosen numbers, each family's in proportion to its longest kernel's; 1 where a
        machine cannot have them."""
        try:
            took_ps = self._distinct.times_ps(self._varied.variation(choice))
        except MemsimError:
            return 1.0
        more_ps = sum(
            family.time_ps * (took_ps[family.name] / self._base_ps[family.name] - 1)
            for family in self._result.families
        )
        return float(1 + more_ps / max(1, self._result.total_ps))
