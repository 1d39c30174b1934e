"""What kernels cost beside bytes and arithmetic: `costs.toml`, read once, no torch.

The name of a kernel's family enters; picoseconds and FLOPs for its launch leave, and the numbers with
their sources for the trace that rests on them. A cost may be another's (`like`), or some times it: it follows
what the other one is, or follow a kernel's shape (`tables`). `tried` puts other values in their place, for
what is recorded inside it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from memsim.errors import UsageError, nearest, shown
from memsim.units import format_time, parse_share, parse_time
from workloads import tables
from workloads.facts import PROVENANCES, Fact

FILE = Path(__file__).with_name("costs.toml")
GROUP = "kernel"  # paths are kernel.FAMILY.KEY
TIMES = ("startup", "drain", "tile", "code")
SHARES = ("efficiency",)
KEYS = (*TIMES, *SHARES)
ALL = "all"  # of a family: as another family is throughout
WORDS, ENDS = ("provenance", "source"), ("low", "high")
MOST_TIMES = 100  # of another cost

Value = str | float

_tried: dict[str, Value] = {}  # path -> value
_listeners: list[list[tuple[str, tables.At]]] = []  # of those who listen: families and shapes of launches


class Cost(NamedTuple):
    """A number of the file: its own `value`, or `times` that of the path `like`; how far it may be off."""

    value: Value
    provenance: str
    source: str
    low: str = ""
    high: str = ""
    like: str = ""
    times: Fraction = Fraction(1)


class Costs(TypedDict):
    """Fields of a `memsim.trace.Kernel`."""

    startup_ps: int
    drain_ps: int
    tile_ps: int


def of(family: str, *, among_others: bool = False, at: tables.At | None = None) -> Costs:
    """What blocks and tiles of a family cost, 0 where nothing is known.

    among_others  the kernel's code has to come from memory
    at            the kernel's shape, for costs that follow it
    """
    if at is not None:
        for found in _listeners:
            found.append((family, at))
    startup, drain, tile, code = (_time_ps(f"{GROUP}.{family}.{key}", at) for key in TIMES)
    return Costs(startup_ps=startup + code * among_others, drain_ps=drain, tile_ps=tile)


def _time_ps(path: str, at: tables.At | None) -> int:
    table = tables.known().get(path)
    if at is None or table is None or path in _tried:
        return parse_time(_value(path, "0 ps"))
    return table.cost_ps(at)


def has_tile(family: str) -> bool:
    """Whether tiles of a family take a time of their own."""
    path = f"{GROUP}.{family}.tile"
    return path in tables.known() or _time_ps(path, None) > 0


def outside(family: str, at: tables.At | None) -> bool:
    """Whether a kernel's shape lies outside a table of its family."""
    if at is None:
        return False
    paths = [f"{GROUP}.{family}.{key}" for key in TIMES]
    return any(not tables.known()[path].inside(at) for path in paths if path in tables.known())


@contextmanager
def heard() -> Iterator[list[tuple[str, tables.At]]]:
    """Families and shapes of what is launched meanwhile, where costs follow a shape."""
    found: list[tuple[str, tables.At]] = []
    _listeners.append(found)
    try:
        yield found
    finally:
        _listeners.pop()


def flops_of(family: str, flops: int) -> int:
    """FLOPs that the units could do in the time that a tile's own take: more, where they wait in between."""
    return math.ceil(flops / parse_share(_value(f"{GROUP}.{family}.efficiency", "1")))


def inputs(families: Collection[str], beyond: Collection[str] = ()) -> list[dict[str, str]]:
    """The numbers behind the costs of some families, as a trace lists them; none for those that have none.

    beyond  families with kernels whose shape lies outside their table
    """
    found = [_input(path, cost) for path, cost in known().items() if path.split(".")[1] in families]
    for path, table in tables.known().items():
        family = path.split(".")[1]
        if family in families:
            provenance = "extrapolated" if family in beyond else "interpolated"
            found.append(Fact(path, table.words, provenance, table.source)._asdict())
    return found


def _input(path: str, cost: Cost) -> dict[str, str]:
    by = "" if cost.times == 1 else f"{float(cost.times):g} times "
    source = f"{by}{cost.like}: {cost.source}" if cost.like else cost.source
    fact = Fact(path, str(cost.value), cost.provenance, source)._asdict()
    return {**fact, "low": cost.low, "high": cost.high} if cost.low else fact


@contextmanager
def tried(values: Mapping[str, Value]) -> Iterator[None]:
    """Take these values, by their paths, instead of the file's for what is recorded meanwhile."""
    before = dict(_tried)
    _tried.update(values)
    try:
        yield
    finally:
        _tried.clear()
        _tried.update(before)


@cache
def known() -> dict[str, Cost]:
    """All constants of the file by their path."""
    return read(FILE)


def read(path: Path) -> dict[str, Cost]:
    """The constants of a file by their path, kernel.FAMILY.KEY; UsageError, one line, if one is none."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get(GROUP, {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name}: not valid TOML: {error}") from None
    entries = {}
    for family, table in tables.items():
        for key, entry in _keys(tables, table).items():
            name = f"{GROUP}.{family}.{key}"
            if key not in KEYS:
                raise UsageError(f"{path.name}: unknown key '{name}'; {nearest(key, (*KEYS, ALL))}")
            entries[name] = entry
    where = {name: f"{path.name}: {name}" for name in entries}
    own = {name: _own(where[name], name, entry) for name, entry in entries.items() if not _like(entry)}
    return {name: own.get(name) or _other(where[name], name, entries[name], own) for name in entries}


def _keys(tables: Mapping[str, Any], table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A family's entries; ALL stands for each key that the family has which it names."""
    if not _like(table.get(ALL)):
        return table
    others = tables.get(table[ALL]["like"])
    return dict.fromkeys(others, table[ALL]) if isinstance(others, dict) and len(table) == 1 else table


def _like(entry: object) -> bool:
    return isinstance(entry, dict) and "like" in entry


def _own(where: str, name: str, entry: Any) -> Cost:
    """A cost that has a value of its own."""
    _check(where, entry, needed=("value", *WORDS), others=ENDS)
    parse = _parser(name)
    try:
        ends = [parse(entry[end]) for end in ("low", "value", "high") if end in entry]
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if len(ends) == 2 or ends != sorted(ends):
        raise UsageError(f"{where} is {shown(entry)}; expected low and high around the value, or neither")
    return Cost(**entry)


def _other(where: str, name: str, entry: Any, own: Mapping[str, Cost]) -> Cost:
    """A cost that is another's, or some times it."""
    key = name.rpartition(".")[2]
    _check(where, entry, needed=("like", *WORDS), others=("times",) if key in TIMES else ())
    like = f"{GROUP}.{entry['like']}" + ("" if "." in str(entry["like"]) else f".{key}")
    if like not in own or _parser(like) is not _parser(name):
        raise UsageError(
            f"{where}: like is {shown(like)}, which has no value of its own; {nearest(like, own)}"
        )
    times = entry.get("times", 1)
    if type(times) not in (int, float) or not 0 < times <= MOST_TIMES:
        raise UsageError(f"{where}: times is {shown(times)}; expected a number above 0, {MOST_TIMES} at most")
    cost = Cost("", entry["provenance"], entry["source"], like=like, times=Fraction(str(times)))
    return cost._replace(value=_scaled(own[like].value, cost))


def _check(where: str, entry: Any, needed: tuple[str, ...], others: tuple[str, ...]) -> None:
    if not isinstance(entry, dict) or not set(needed) <= set(entry) <= {*needed, *others}:
        more = f", and {' and '.join(others)} at most" if others else ""
        raise UsageError(f"{where} is {shown(entry)}; expected a table of {', '.join(needed)}{more}")
    word = entry["provenance"]
    if word not in PROVENANCES:
        raise UsageError(f"{where}: unknown provenance {shown(word)}; {nearest(str(word), PROVENANCES)}")


def _parser(path: str) -> Callable[[object], Any]:
    key = path.rpartition(".")[2]
    return parse_share if key in SHARES else parse_time


def _value(path: str, default: Value) -> Value:
    cost = known().get(path)
    if path in _tried or cost is None:
        return _tried.get(path, default)
    return _scaled(_value(cost.like, default), cost) if cost.like else cost.value


def _scaled(value: Value, cost: Cost) -> Value:
    """Times of another cost, as the file would write it."""
    if cost.times == 1:
        return value
    return format_time(int(parse_time(value) * cost.times))
