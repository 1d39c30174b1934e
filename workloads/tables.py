"""Costs of library kernels by shape, where no few constants give them: measured points and what lies between.

`tables.toml` enters, which `memsim validate calibrate --tables --write` makes out of measured points whose
split is `table` or `calibrate`. What leaves: the picoseconds that a kernel of a shape takes beside bytes and
arithmetic. On the grid it is what was found there; between, its logarithm is linear in that of each axis (the
time itself where a neighbour's is 0); outside, that of the nearest point, and `inside` says no. Nothing here
needs torch.
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from memsim.errors import UsageError
from memsim.units import format_time

FILE = Path(__file__).with_name("tables.toml")
NS = 1000  # picoseconds
At = Mapping[str, int]  # a kernel's shape: names of axes and whole numbers from 1 on


class Table(NamedTuple):
    """One cost of a kernel by its shape.

    axes    names;  grid  for each axis its numbers, ascending
    ns      of each point of the grid, the last axis first
    source  the device, the family of measurements
    """

    axes: tuple[str, ...]
    grid: tuple[tuple[int, ...], ...]
    ns: tuple[float, ...]
    source: str

    def cost_ps(self, at: At) -> int:
        """Picoseconds at a shape."""
        pairs = [_between(at[axis], numbers) for axis, numbers in zip(self.axes, self.grid, strict=True)]
        corners = []
        for corner in product(*pairs):
            place, share = 0, 1.0
            for (index, part), numbers in zip(corner, self.grid, strict=True):
                place, share = place * len(numbers) + index, share * part
            corners.append((self.ns[place], share))
        return round(_mean(corners) * NS)

    def inside(self, at: At) -> bool:
        """Whether a shape lies within the grid."""
        ends = [(numbers[0], numbers[-1]) for numbers in self.grid]
        return all(low <= at[axis] <= high for axis, (low, high) in zip(self.axes, ends, strict=True))

    @property
    def words(self) -> str:
        """Its least and most, for a reader."""
        low, high = (format_time(round(ns * NS)) for ns in (min(self.ns), max(self.ns)))
        return f"{low} to {high} by {', '.join(self.axes)}"


def _mean(corners: Sequence[tuple[float, float]]) -> float:
    """The mean of the logarithms of (time, share) pairs, as a time; of the times where one is 0."""
    if all(ns > 0 for ns, _ in corners):
        return math.exp(sum(share * math.log(ns) for ns, share in corners))
    return sum(share * ns for ns, share in corners)


def _between(number: int, numbers: Sequence[int]) -> list[tuple[int, float]]:
    """The neighbours of a number among `numbers`, and the share of each."""
    after = bisect_right(numbers, number)
    if after == 0 or after == len(numbers):
        return [(max(0, after - 1), 1.0)]
    low, high = numbers[after - 1], numbers[after]
    share = math.log(number / low) / math.log(high / low)
    return [(after - 1, 1 - share), (after, share)]


@cache
def known() -> dict[str, Table]:
    """All tables of the file by their path, kernel.FAMILY.KEY."""
    return read(FILE)


def read(path: Path) -> dict[str, Table]:
    """The tables of a file by their path; UsageError, one line, if one is none."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("table", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name}: not valid TOML: {error}") from None
    return {str(entry.get("path")): _table(f"{path.name}: {entry.get('path')}", entry) for entry in entries}


def _table(where: str, entry: Mapping[str, Any]) -> Table:
    needed = {"path", "axes", "grid", "ns", "source"}
    if entry.keys() != needed:
        raise UsageError(
            f"{where}: keys are {', '.join(sorted(entry))}; expected {', '.join(sorted(needed))}"
        )
    grid = tuple(tuple(numbers) for numbers in entry["grid"])
    points = math.prod(len(numbers) for numbers in grid)
    rising = all(list(numbers) == sorted(set(numbers)) and numbers[0] > 0 for numbers in grid if numbers)
    if not rising or len(grid) != len(entry["axes"]) or points != len(entry["ns"]) or not points:
        raise UsageError(
            f"{where}: expected a rising list of numbers for each of {len(entry['axes'])} axes, and a time "
            f"for each of their {points} points"
        )
    if min(entry["ns"]) < 0:
        raise UsageError(f"{where}: a time is {min(entry['ns'])}; expected none below 0")
    return Table(tuple(entry["axes"]), grid, tuple(map(float, entry["ns"])), entry["source"])
