"""How far off replays were of what nobody fitted to: quantiles of the errors of measured families.

`quantiles.toml` (written by `memsim validate --write`) and `trace_families.toml` enter; for a family of
kernels on a machine an `Evidence` leaves: by how much a measured time may differ from the predicted one, and
whether that was measured at all. Errors are predicted / measured - 1. Needs neither torch nor an engine.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
QUANTILES, FAMILIES, MEASURED = HERE / "quantiles.toml", HERE / "trace_families.toml", HERE / "measured"
VALIDATED, EXTRAPOLATED, UNVALIDATED = TRUSTS = ("validated", "extrapolated", "unvalidated")
WIDER = 2  # times a measured range, by ratio, where nothing was measured
BATCH, CONTEXT = "batch", "context"


@dataclass(frozen=True)
class Evidence:
    """How far a family's measured time may lie from the predicted one.

    low, high   measured / predicted: 5 and 95% quantiles over held-out points
    like        the measured families that say so
    trust       of TRUSTS: extrapolated, where the errors are those of smaller contexts or batches
    why         in words, where it is not validated
    """

    low: float
    high: float
    like: tuple[str, ...]
    trust: str
    why: str = ""


@dataclass(frozen=True)
class Book:
    """Quantiles of one folder of measurements.

    ratios   measured family -> (low, high) of measured / predicted
    folder   of its rows, for the axes
    """

    folder: str
    ratios: dict[str, tuple[float, float]]
    table: dict[str, Any] = field(repr=False)

    def widest(self) -> tuple[float, float]:
        """The widest range of all families that kernels of traces are like."""
        like = {name for names in self.table["families"].values() for name in names}
        return self.range_of(sorted(like & set(self.ratios)))

    def range_of(self, names: Collection[str]) -> tuple[float, float]:
        """The widest range of some measured families."""
        lows, highs = zip(*(self.ratios[name] for name in names), strict=True)
        return min(lows), max(highs)

    def like(self, family: str) -> list[str]:
        """Measured families that a family of traces is like, those with quantiles."""
        return [name for name in self.table["families"].get(family, []) if name in self.ratios]

    def evidence(self, family: str, tiers: Collection[str], context: int, batch: int) -> Evidence:
        """Of a family of kernels that moves bytes on some tiers, at a context and a batch of sequences."""
        far = [tier for tier in tiers if tier not in self.table["tiers"]]
        known = self.like(family)
        if not known or far:
            return self.guess(family, f"{' and '.join(far)} was never measured")
        known += [name for tier in tiers for name in self.table["tiers"][tier] if name in self.ratios]
        beyond = self.beyond(known[0], context, batch)
        trust = EXTRAPOLATED if beyond else VALIDATED
        return Evidence(*self.range_of(known), tuple(known), trust, beyond)

    def guess(self, family: str, why: str) -> Evidence:
        """Where it was never measured: twice the range of what it is like, or of the widest family."""
        known = self.like(family)
        low, high = self.range_of(known) if known else self.widest()
        words = why if known else f"{family} was never measured"
        return Evidence(low**WIDER, high**WIDER, tuple(known), UNVALIDATED, words)

    def beyond(self, name: str, context: int, batch: int) -> str:
        """What lies beyond the measured points of a family, in words; "" if nothing does."""
        columns = self.table["axes"].get(name, {})
        axes = largest(self.folder, name)
        found = []
        for word, value in ((CONTEXT, context), (BATCH, batch)):
            most = axes.get(columns.get(word, word), value)
            if value > most:
                found.append(f"{word} {value:,} beyond {most:,} of {name}")
        return " and ".join(found)


def unmeasured(machine: str, family: str) -> Evidence:
    """Of a family on a machine that nobody measured: twice the range that it has on one that was."""
    books = [book for folder in _read(QUANTILES) if (book := _book(folder)).ratios]
    found = [book.guess(family, f"{machine} was never measured") for book in books]
    return max(found, key=lambda each: each.high / each.low)


def book_of(machine: str) -> Book | None:
    """The quantiles that hold for a machine file by its name; None where its GPU was never measured."""
    folder = _read(FAMILIES)["machines"].get(machine)
    book = _book(folder) if folder else None
    return book if book is not None and book.ratios else None


def _book(folder: str) -> Book:
    table = _read(FAMILIES)
    entries = _read(QUANTILES).get(folder, {})
    ratios = {name: (1 / (1 + each["high"]), 1 / (1 + each["low"])) for name, each in entries.items()}
    return Book(folder, ratios, table)


@lru_cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@lru_cache
def largest(folder: str, name: str) -> dict[str, int]:
    """The largest value of each whole-number column of a measured family, points of tables apart."""
    path = MEASURED / folder / f"{name}.csv"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["split"] != "table"]  # they judge nothing
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: max(map(int, values))
        for name, values in columns.items()
        if all(value.isdecimal() for value in values)
    }
