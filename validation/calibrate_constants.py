"""`constants.toml`: which constants measurements give, and which points of which family each of them.

Enters: the file and the campaign files. Leaves: `Constant`s in the order in which they are found. Refused are
points that are held out, and more than one constant per ten held-out points of its family: what judges must
outweigh what is fitted. No measured row is read here.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memsim.errors import UsageError, nearest, shown
from memsim.profile import locate
from validation.calibrate_values import kind_of
from validation.figures_words import said
from validation.measure import points
from validation.measure.points import CALIBRATE, HELD_OUT
from workloads import costs

CONSTANTS = Path(__file__).with_name("constants.toml")
COSTS = "costs"  # as the `file` of a constant: workloads/costs.toml
PER_CONSTANT = 10  # held-out points of its family

DIRECT, FIT = "direct", "fit"
FORMULAS = {  # of `direct`: the key that says on what, and words for a source
    "slope": ("over", "slope over {}"),
    "rest": ("less", "less {}"),
    "share": ("of", "as a share of {}"),
    "rate": ("over", "{} by time"),
    "idle": ("tier", "a load of {}, the rest of its way taken off"),
}
NEEDED = ("path", "file", "family", "points", "method", "range", "order")
OPTIONAL = ("formula", "over", "less", "of", "tier", "by")

Filter = Mapping[str, tuple[points.Value, ...]]
Place = tuple[Path, str]  # the file that holds a constant, and its path there


@dataclass(frozen=True)
class Constant:
    """A number of a machine file, or of the costs of kernels, that measurements give.

    path         GROUP.NAME.KEY, as in `--set`, or kernel.FAMILY.KEY
    file         the machine file that holds it: a name, or a path; COSTS: that of the kernels' costs
    family       whose points give it;  held_out: points of that family that judge it
    filters      a point that passes one of them gives it; each holds axes and their values
    method       `direct`: a formula on rows;  `fit`: replays of the points, to the least error
    least, most  where it may lie, as a machine file writes it
    order        constants are found from the least to the most, since later ones rest on earlier ones
    formula      of `direct`: a word of FORMULAS
    over, less, of, tier, by   what the formula takes: an axis, a path, a path, a tier, an initiator
    what         words of the family, for the units of its axes
    """

    path: str
    file: str
    family: str
    filters: tuple[Filter, ...]
    method: str
    least: object
    most: object
    order: int
    held_out: int
    formula: str = ""
    over: str = ""
    less: str = ""
    of: str = ""
    tier: str = ""
    by: str = ""
    axes: tuple[str, ...] = ()
    what: str = ""

    @property
    def of_kernel(self) -> bool:
        """Whether it is a cost of a kernel, which traces carry, and no number of a machine."""
        return self.file == COSTS

    @property
    def held_by(self) -> Path:
        """The file that holds it; UsageError if there is none."""
        return costs.FILE if self.of_kernel else locate(self.file).resolve()

    @property
    def place(self) -> Place:
        """What tells it from all others: machine files that extend one another may each hold a path."""
        return self.held_by, self.path

    @property
    def named(self) -> str:
        """The points in words: "stride 128 B, footprint 1 GiB and 32 GiB"."""
        return "; ".join(", ".join(self._said(*each) for each in one.items()) for one in self.filters)

    def _said(self, axis: str, values: Sequence[points.Value]) -> str:
        typed = [value if isinstance(value, str) else float(value) for value in values]
        first, *others = [said(axis, value, self.what) for value in typed]
        name = f"{axis.replace('_', ' ')} "
        others = [other.removeprefix(name) for other in others]
        *before, last = [first, *others]
        return f"{', '.join(before)} and {last}" if before else last

    @property
    def how(self) -> str:
        """How the value follows from the points, in words."""
        if self.method == FIT:
            return "where replays err least"
        key, words = FORMULAS[self.formula]
        return words.format(getattr(self, key))


def read(path: Path = CONSTANTS, campaign: Path = points.CAMPAIGN) -> list[Constant]:
    """All constants of the file, in their order.

    UsageError, one line: a key that is missing or unknown, a family, axis or point that no campaign file has,
    a held-out point, a constant that stands twice, too many constants of a family.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("constant", [])
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; name a file of constants") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path.name}: found a table 'constant'; expected one or more [[constant]]")
    families = {family.name: family for family in points.read_campaign(campaign)}
    found = [_constant(path.name, table, families) for table in tables]
    _check_twice(path.name, found)
    _check_number(path.name, found)
    return sorted(found, key=lambda constant: constant.order)


def _check_twice(place: str, found: Sequence[Constant]) -> None:
    for (path, file), times in Counter((constant.path, constant.file) for constant in found).items():
        if times > 1:
            words = f"{place}: {path} of {file} stands there {times} times"
            raise UsageError(f"{words}; expected once; remove the others")


def _check_number(place: str, found: Sequence[Constant]) -> None:
    held_out = {constant.family: constant.held_out for constant in found}
    for family, constants in Counter(constant.family for constant in found).items():
        most = held_out[family] // PER_CONSTANT
        if constants > most:
            raise UsageError(
                f"{place}: {family} gives {constants} constants and has {held_out[family]} held-out points; "
                f"expected one constant per {PER_CONSTANT}, {most} at most; take another family's points"
            )


def _constant(place: str, table: Mapping[str, Any], families: Mapping[str, points.Family]) -> Constant:
    where = f"{place}: {shown(table.get('path', 'a constant'))}"
    _check_keys(where, table)
    name = table["family"]
    if name not in families:
        raise UsageError(f"{where}: no family {shown(name)}; {nearest(str(name), families)}")
    family = families[name]
    filters = tuple(_filter(where, family, entry) for entry in table["points"])
    _check_points(where, family, filters)
    _check_file(where, table["path"], table["file"])
    _check_method(where, table)
    return Constant(
        **{key: table[key] for key in ("path", "file", "family", "method", "order")},
        **{key: table[key] for key in OPTIONAL if key in table},
        filters=filters,
        least=table["range"][0],
        most=table["range"][1],
        held_out=family.count(HELD_OUT),
        axes=family.axes,
        what=family.what,
    )


def _check_keys(where: str, table: Mapping[str, Any]) -> None:
    for key in NEEDED:
        if key not in table:
            raise UsageError(f"{where}: {key} is missing; every constant needs {', '.join(NEEDED)}")
    for key, value in table.items():
        if key not in (*NEEDED, *OPTIONAL):
            raise UsageError(f"{where}: unknown key '{key}'; {nearest(key, (*NEEDED, *OPTIONAL))}")
        kind = {"points": list, "range": list, "order": int}.get(key, str)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UsageError(f"{where}: {key} is {shown(value)}; expected {_WORDS[kind]}")
    if len(table["range"]) != 2:
        raise UsageError(f"{where}: range is {shown(table['range'])}; expected its least and its most value")
    _check_range(where, table["path"], *table["range"])


_WORDS = {list: "a list", int: "a whole number", str: "a word in quotes"}


def _check_range(where: str, path: str, least: object, most: object) -> None:
    kind = kind_of(path)
    if kind is None:  # a key that machine files do not have yet
        return
    try:
        low, high = (kind.parse(value) for value in (least, most))
    except UsageError as error:
        raise UsageError(f"{where}: range: {error}") from None
    if not 0 < low < high:
        raise UsageError(f"{where}: range is {least} to {most}; expected two rising values above 0")


def _check_file(where: str, path: str, file: str) -> None:
    of_kernel = path.startswith(f"{costs.GROUP}.")
    if of_kernel != (file == COSTS):
        expected = f"'{COSTS}'" if of_kernel else "a machine file"
        raise UsageError(f"{where}: file is {shown(file)}; expected {expected}, which holds it; name it")


def _check_method(where: str, table: Mapping[str, Any]) -> None:
    method, formula = table["method"], table.get("formula", "")
    if method not in (DIRECT, FIT):
        raise UsageError(f"{where}: method is {shown(method)}; choose one of: {DIRECT}, {FIT}")
    if method == FIT:
        if formula:
            raise UsageError(f"{where}: a fit takes no formula, found {shown(formula)}; remove it")
        return
    if formula not in FORMULAS:
        raise UsageError(f"{where}: formula is {shown(formula)}; choose one of: {', '.join(FORMULAS)}")
    if not table.get(FORMULAS[formula][0]):
        raise UsageError(f"{where}: formula '{formula}' needs the key '{FORMULAS[formula][0]}'; add it")


def _filter(where: str, family: points.Family, entry: object) -> Filter:
    if not isinstance(entry, dict) or not entry:
        raise UsageError(f"{where}: a point is {shown(entry)}; expected axes and values, {{ bytes = 4096 }}")
    for axis in entry:
        if axis not in family.axes:
            raise UsageError(f"{where}: {family.name} has no axis '{axis}'; {nearest(axis, family.axes)}")
    return {axis: tuple(value if isinstance(value, list) else [value]) for axis, value in entry.items()}


def _check_points(where: str, family: points.Family, filters: Sequence[Filter]) -> None:
    """UsageError unless each filter lets through a point, and none that is held out."""
    if not filters:
        raise UsageError(f"{where}: points is empty; expected one at least")
    for one in filters:
        passed = [point for point in family.points if points.matches(point.axes, [dict(one)])]
        if not passed:
            raise UsageError(
                f"{where}: {shown(dict(one))} is no point of {family.name}; see its campaign file"
            )
        for point in passed:
            if point.split != CALIBRATE:
                raise UsageError(f"{where}: '{point.key}' is held out; name points that may calibrate")
