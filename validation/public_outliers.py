"""Which rows of the public tables break the rule that more work takes no less time.

Enters: a public table. Leaves: the rows that must go so that no row of a series (all axes equal but one)
takes over 30% more time than a row with more of that axis: more tokens, a larger batch.
`tables/outliers.toml` lists all of them with a reason; `python -m validation.public_outliers TABLE` prints
them as they stand there. A last row that is too slow is seen only along another axis.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from validation.public import load, table

TOLERANCE = 1.3
Key = tuple[Any, ...]


def odd_places(times: Sequence[int], tolerance: float = TOLERANCE) -> list[int]:
    """Places of `times`, which should not fall, without which none exceeds `tolerance` times a later one.

    Takes the place in most such pairs first, so that a spike goes and its neighbours stay.
    """
    pairs = [
        (early, late)
        for late, short in enumerate(times)
        for early in range(late)
        if times[early] > tolerance * short
    ]
    odd = []
    while pairs:
        counts: dict[int, int] = {}
        for place in (place for pair in pairs for place in pair):
            counts[place] = counts.get(place, 0) + 1
        worst = max(counts, key=lambda place: (counts[place], -place))
        odd.append(worst)
        pairs = [pair for pair in pairs if worst not in pair]
    return sorted(odd)


def odd_rows(name: str) -> set[Key]:
    """Rows of a public table that break the rule along any of its run axes, as values of the table's axes."""
    described = table(name)
    rows = load(name)
    keys = list(zip(*(rows[axis].to_pylist() for axis in described.axes), strict=True))
    timed = [pair for pair in zip(keys, rows["latency_ps"].to_pylist(), strict=True) if pair[1]]
    return {key for axis in described.run for key in _along(timed, described.axes.index(axis))}


def _along(timed: list[tuple[Key, int]], run: int) -> Iterator[Key]:
    series: dict[Key, list[tuple[Any, int, Key]]] = {}
    for key, time_ps in timed:
        series.setdefault(key[:run] + key[run + 1 :], []).append((key[run], time_ps, key))
    for members in series.values():
        members.sort()
        for place in odd_places([time_ps for _, time_ps, _ in members]):
            yield members[place][2]


def listing(name: str) -> str:
    """The rows of `odd_rows` as outliers.toml has them: the axes' values, those of the last one gathered."""
    gathered: dict[Key, list[Any]] = {}
    for key in sorted(odd_rows(name)):
        gathered.setdefault(key[:-1], []).append(key[-1])
    rows = (_toml([*key, last if len(last) > 1 else last[0]]) for key, last in gathered.items())
    return "".join(f"    {row},\n" for row in rows)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    print(listing(sys.argv[1]), end="")
