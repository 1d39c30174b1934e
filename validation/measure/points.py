"""Campaign files: which points are measured, and which of them may calibrate. Plain data, committed first.

Enters: every `campaign/*.toml` beside this file. Leaves: families in file order, each with its points in a
fixed order; a point is a family name, integers and words per axis, and the split it belongs to. Nothing
here knows how a point is measured.
"""

from __future__ import annotations

import itertools
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CAMPAIGN = Path(__file__).with_name("campaign")
CALIBRATE, HELD_OUT, TABLE = "calibrate", "held_out", "table"
Value = int | str
PACE = ("rounds", "warm_ms", "sample_ms", "timed_ms", "window_ms")
KEYS = {"what", "module", "suite", "axes", "extra", "grid", "points", "exclude", "calibrate", "requires"} | {
    *("table", "gpus", "seconds_per_point", "setup_seconds", "profile"),
    *PACE,
}


class CampaignError(Exception):
    """A campaign file says something that cannot be run. One line: file, family, what, expected."""


@dataclass(frozen=True)
class Point:
    """One thing to measure. `point["bytes"]` reads an axis; `key` is stable and names it in every file."""

    family: str
    axes: Mapping[str, Value]
    split: str = HELD_OUT

    def __getitem__(self, axis: str) -> Value:
        return self.axes[axis]

    @property
    def key(self) -> str:
        return " ".join([self.family, *(f"{axis}={value}" for axis, value in self.axes.items())])

    @property
    def seed(self) -> int:
        """31 bits that differ from point to point and are the same in every run."""
        return zlib.crc32(self.key.encode()) & 0x7FFFFFFF


@dataclass(frozen=True)
class Family:
    """One table of a campaign file.

    module            python module in this folder whose FAMILIES[name] measures a point
    axes              axis names, in column order
    extra             names of further columns that the family fills
    requires          python modules without which the family is skipped
    gpus              GPUs that it needs (0: none)
    seconds_per_point estimated device seconds, `setup_seconds` once per family
    profile           "first" or "all": which points the profiler pass visits
    rounds            sets of fresh buffers
    warm_ms           of replays before the first sample of a round
    sample_ms         that the replays of one sample last together
    timed_ms          of samples a point, all rounds together
    window_ms         samples are averaged over so much, a mean beginning at each of them; 0: they are not
    """

    name: str
    suite: str
    module: str
    axes: tuple[str, ...]
    points: tuple[Point, ...]
    what: str = ""
    extra: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    gpus: int = 1
    seconds_per_point: float = 0.4
    setup_seconds: float = 0.5
    profile: str = "first"
    rounds: int = 2
    warm_ms: int = 20
    sample_ms: int = 8
    timed_ms: int = 150
    window_ms: int = 0
    file: str = field(default="", compare=False)

    @property
    def seconds(self) -> float:
        return self.setup_seconds + self.seconds_per_point * len(self.points)

    def count(self, split: str) -> int:
        return sum(point.split == split for point in self.points)


def read_campaign(folder: Path = CAMPAIGN) -> list[Family]:
    """All families of all campaign files, files in name order. CampaignError names the file at fault."""
    families: list[Family] = []
    for path in sorted(folder.glob("*.toml")):
        families += read_file(path)
    seen: dict[str, str] = {}
    for family in families:
        if family.name in seen:
            raise CampaignError(f"{family.file}: family {family.name} is also in {seen[family.name]}")
        seen[family.name] = family.file
    return families


def read_file(path: Path) -> list[Family]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CampaignError(f"{path.name}: not TOML: {error}") from None
    unknown = data.keys() - {"suite", "module", "family", *PACE}
    if unknown:
        raise CampaignError(f"{path.name}: unknown key {sorted(unknown)[0]}; expected suite, module, family")
    defaults = {key: data[key] for key in ("suite", "module", *PACE) if key in data}
    return [_family(path.name, name, defaults | table) for name, table in data.get("family", {}).items()]


def _family(file: str, name: str, table: dict) -> Family:
    place = f"{file}: family {name}"
    unknown = table.keys() - KEYS
    if unknown:
        raise CampaignError(f"{place}: unknown key {sorted(unknown)[0]}; expected one of {sorted(KEYS)}")
    missing = {"suite", "module", "axes", "calibrate"} - table.keys()
    if missing:
        raise CampaignError(f"{place}: {sorted(missing)[0]} is missing")
    axes = tuple(table["axes"])
    filters = [_filter(place, axes, entry) for entry in table["calibrate"]]
    exclude = [_filter(place, axes, entry) for entry in table.get("exclude", [])]
    points = []
    for values in dict.fromkeys(_values(place, axes, table)):
        point = dict(zip(axes, values, strict=True))
        if not matches(point, exclude):
            points.append(Point(name, point, CALIBRATE if matches(point, filters) else HELD_OUT))
    points += _tabled(name, place, axes, table, {point.key for point in points})
    for entry in filters:
        if not any(matches(point.axes, [entry]) for point in points):
            raise CampaignError(f"{place}: the calibrate filter {entry} matches no point")
    plain = ("suite", "module", "what", "gpus", "seconds_per_point", "setup_seconds", "profile", *PACE)
    return Family(
        name=name,
        axes=axes,
        points=tuple(points),
        extra=tuple(table.get("extra", ())),
        requires=tuple(table.get("requires", ())),
        file=file,
        **{key: table[key] for key in plain if key in table},
    )


def _tabled(name: str, place: str, axes: tuple[str, ...], table: dict, others: set[str]) -> list[Point]:
    """Points that tables are made of, products of grids of their own; none of them may be another's."""
    grids = {"grid": table.get("table", [])}
    points = [
        Point(name, dict(zip(axes, values, strict=True)), TABLE)
        for values in dict.fromkeys(_values(place, axes, grids))
    ]
    for point in points:
        if point.key in others:
            raise CampaignError(f"{place}: {point.key} is in a table, and judges or calibrates too")
    return points


def _filter(place: str, axes: tuple[str, ...], entry: dict) -> dict[str, tuple[Value, ...]]:
    """A filter's axes, each with the values that it lets through; axes not named let all through."""
    unknown = entry.keys() - set(axes)
    if unknown:
        raise CampaignError(f"{place}: a filter names {sorted(unknown)[0]}; expected one of {list(axes)}")
    return {axis: tuple(_listed(value)) for axis, value in entry.items()}


def _values(place: str, axes: tuple[str, ...], table: dict) -> Iterator[tuple[Value, ...]]:
    """Axis values of every point: the products of the grids in order, then the explicit points."""
    for grid in table.get("grid", []):
        if grid.keys() != set(axes):
            raise CampaignError(f"{place}: a grid has axes {sorted(grid)}; expected {sorted(axes)}")
        yield from itertools.product(*(_checked(place, _listed(grid[axis])) for axis in axes))
    for values in table.get("points", []):
        if len(values) != len(axes):
            raise CampaignError(f"{place}: point {values} has {len(values)} values; expected {len(axes)}")
        yield tuple(_checked(place, values))


def _listed(value: Value | list[Value]) -> list[Value]:
    return value if isinstance(value, list) else [value]


def _checked(place: str, values: list[Value]) -> list[Value]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise CampaignError(f"{place}: value {value!r}; expected an integer or a word")
    return values


def matches(point: Mapping[str, Value], filters: list[dict[str, tuple[Value, ...]]]) -> bool:
    """True if the point passes one filter on all the axes that the filter names."""
    return any(all(point[axis] in values for axis, values in entry.items()) for entry in filters)


def chosen(families: list[Family], suite: str, only: list[str]) -> list[Family]:
    """Families of a suite ("all": every one) whose name is one of `only` or starts with it and a dot."""
    families = [family for family in families if suite in ("all", family.suite)]
    if not only:
        return families
    hits = [f for f in families if any(f.name == word or f.name.startswith(word + ".") for word in only)]
    for word in only:
        if not any(f.name == word or f.name.startswith(word + ".") for f in hits):
            raise CampaignError(f"--only {word}: no such family in suite {suite}; see --list")
    return hits
