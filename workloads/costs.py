"""What kernels cost beside bytes and arithmetic: `costs.toml`, read once, no torch.

The name of a kernel's family enters; picoseconds and FLOPs for its launch leave, and the numbers with
their sources for the trace that rests on them. `tried` puts other values in their place, for what is recorded
inside it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypedDict

from memsim.errors import UsageError, nearest, shown
from memsim.units import parse_share, parse_time
from workloads.facts import PROVENANCES, Fact

FILE = Path(__file__).with_name("costs.toml")
GROUP = "kernel"  # paths are kernel.FAMILY.KEY
TIMES = ("startup", "drain", "tile")
SHARES = ("efficiency",)
KEYS = (*TIMES, *SHARES)
ENTRY = ("value", "provenance", "source")

Value = str | float

_tried: dict[str, Value] = {}  # path -> value


class Costs(TypedDict):
    """Fields of a `memsim.trace.Kernel`."""

    startup_ps: int
    drain_ps: int
    tile_ps: int


def of(family: str) -> Costs:
    """What blocks and tiles of a family cost, 0 where nothing is known."""
    startup, drain, tile = (parse_time(_value(f"{GROUP}.{family}.{key}", "0 ps")) for key in TIMES)
    return Costs(startup_ps=startup, drain_ps=drain, tile_ps=tile)


def flops_of(family: str, flops: int) -> int:
    """FLOPs that the units could do in the time that a tile's own take: more, where they wait in between."""
    return math.ceil(flops / parse_share(_value(f"{GROUP}.{family}.efficiency", "1")))


def facts(families: Collection[str]) -> list[Fact]:
    """The numbers behind the costs of some families; none for those that have none."""
    return [fact for path, fact in known().items() if path.split(".")[1] in families]


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
def known() -> dict[str, Fact]:
    """All constants of the file by their path."""
    return read(FILE)


def read(path: Path) -> dict[str, Fact]:
    """The constants of a file by their path, kernel.FAMILY.KEY; UsageError, one line, if one is none."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get(GROUP, {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name}: not valid TOML: {error}") from None
    found = {}
    for family, table in tables.items():
        for key, entry in table.items():
            name = f"{GROUP}.{family}.{key}"
            if key not in KEYS:
                raise UsageError(f"{path.name}: unknown key '{name}'; {nearest(key, KEYS)}")
            found[name] = _fact(f"{path.name}: {name}", name, entry)
    return found


def _fact(where: str, name: str, entry: object) -> Fact:
    if not isinstance(entry, dict) or set(entry) != set(ENTRY):
        raise UsageError(f"{where} is {shown(entry)}; expected a table of {', '.join(ENTRY)}")
    fact = Fact(name, **entry)
    if fact.provenance not in PROVENANCES:
        expected = nearest(fact.provenance, PROVENANCES)
        raise UsageError(f"{where}: unknown provenance {shown(fact.provenance)}; {expected}")
    try:
        _parser(name)(fact.value)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return fact._replace(value=str(fact.value)) if name.endswith(SHARES) else fact


def _parser(path: str) -> Callable[[object], object]:
    key = path.rpartition(".")[2]
    return parse_share if key in SHARES else parse_time


def _value(path: str, default: Value) -> Value:
    fact = known().get(path)
    return _tried.get(path, fact.value if fact else default)
