"""`memsim machines check`: does a machine behave as its file says, when plain patterns are replayed on it?

A machine enters, a list of `Check` leaves: what a closed form over its numbers expects, and what the replay
of a pattern found. For every tier: streams of reads and writes reach the bandwidth of the path, or what the
requests in flight allow by Little's law, where they meet on channels as thrown dice do at worst; a chase
takes the idle latency and the transfers; random units are not faster than units in a row; storage at depth
1 is bound by its latency. For every copy engine: the set-up of a transfer, and the rate of large ones.
Tiers are checked behind a cache that keeps nothing and without address translation, so that all that is
read comes out of them and all that is written goes there. Rates are slopes between two sizes, so that
launches, ramps and ends do not count. Nothing here is measured: the model is checked against the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim import kernel
from memsim.closed_form import (
    STRIPES,
    Expected,
    Way,
    expected_copy,
    expected_stream,
    most_of_units_mbps,
    needed_bytes,
    path_of,
    reached_stream,
    round_trip_ps,
)
from memsim.profile import load_machine
from memsim.route import build_system
from memsim.system import MILLION, System
from memsim.units import format_rate, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from memsim.profile_schema import Profile

FLIGHTS = 4  # bytes that a stream may have in flight, in what its path needs
SMALL, LARGE = 3, 9  # sizes between which a slope is taken, in bytes in flight
STORED_STRIPES = 2 * STRIPES  # of what the cache takes: little is in flight, and its lanes lie unevenly
CHASED, SCATTERED, ALONE = 256, 1 << 16, 64  # loads one by one, random units, requests at depth 1
LINE_BYTES, COPIED_BYTES = 64, (4 << 20, 16 << 20)
COPIED_STRIPES = (64, 256)  # at least: the fewer lanes, the more unevenly they lie on channels
ROUNDING, CHANCE = 1e-9, 0.01  # of a time in seconds; of random rows that meet less often than rows in a row
NARROW = 1.02  # a range that is shown as its middle
WIDE = 2.0  # a range, most over least, that says little
MOST_BYTES = 1 << 30  # of a stream
_PS = 10**12  # picoseconds of a second


@dataclass(frozen=True)
class Check:
    """One expectation and what was found.

    part         what is checked: "host", "host by copy"
    least, most, found   bytes/s or seconds, as `unit` says; least is 0 where nothing is expected at least
    bound        what binds by the closed form: a tier, a link, its tags, bytes in flight, latency
    """

    part: str
    what: str
    unit: str
    least: float
    most: float
    found: float
    bound: str

    @property
    def passed(self) -> bool:
        """Whether what was found is as expected."""
        return self.least <= self.found <= self.most

    @property
    def verdict(self) -> str:
        """FAILED, ok, or wide: passed, but what was expected leaves more than a factor of two."""
        if not self.passed:
            return "FAILED"
        return "wide" if 0 < self.least * WIDE < self.most else "ok"


def run(machine: str | Path | Profile | System, overrides: Sequence[str] = ()) -> list[Check]:
    """All checks of a machine: a shipped name, a file, a loaded one; ProfileError where it makes no sense."""
    if isinstance(machine, (str, Path)):
        machine = load_machine(machine, overrides)
    return list(_checks(machine if isinstance(machine, System) else build_system(machine)))


def _checks(system: System) -> Iterator[Check]:
    system = _bare(system)
    copying = kernel.copy_engines(system)
    for initiator in range(len(system.initiators)):
        for tier in range(len(system.tiers)):
            way = Way(system, initiator, tier)
            if initiator in copying:
                yield from _of_copies(way)
            elif not initiator or not way.hops:  # of units beside a memory, that memory
                yield from _of_loads(way)


def _bare(system: System) -> System:
    """A machine whose cache keeps nothing, whose pages are all at hand, whose channels are all as far, and
    whose blocks begin at once."""
    cache = replace(system.cache, capacity_bytes=1, ways=0, spread_ps=0)
    runners = tuple(replace(runner, dispatch_ps=0) for runner in system.initiators)
    tiers = tuple(replace(t, translation=(), spread_ps=(0, 0, 0)) for t in system.tiers)
    return replace(system, initiators=runners, cache=cache, tiers=tiers)


def _of_loads(way: Way) -> Iterator[Check]:
    reads = stream(way)
    yield reads
    yield stream(replace(way, write=True))
    yield _chase(way)
    yield _random(way, reads.found)
    if way.holder.queue_depth or any(way.holder.occupancy_ps):
        yield _depth_one(way)


def _of_copies(way: Way) -> Iterator[Check]:
    """Copies between a tier and the first one."""
    if way.tier:
        yield _setup(way)
        yield _copy(way)
        yield _copy(replace(way, write=True))


def stream(way: Way) -> Check:
    """A stream reaches what its path sustains, or what its requests in flight allow."""
    grid = _grid(way, max(FLIGHTS * needed_bytes(way), STRIPES * way.stripe_bytes))
    step = grid["programs"] * grid["block_bytes"]  # so that all blocks have as many tiles,
    at_once = max(1, way.runner.lent_bytes(grid["programs"]) // way.request_bytes)
    step *= at_once // gcd(at_once, grid["block_bytes"] // way.request_bytes)  # and whole rounds of requests
    stripes = STORED_STRIPES if way.stored else STRIPES
    flight = max(step, _flight(way, grid), stripes * max(way.stripe_bytes, way.gathered_bytes))
    large = max(2, min(LARGE * flight, MOST_BYTES, way.holder.capacity_bytes) // step)
    sizes = [max(1, large * SMALL // LARGE) * step, large * step]
    times_ps = [_time_ps(way, "stream", {**grid, "bytes": size, "write": way.write}) for size in sizes]
    return _reached(way, "writes" if way.write else "reads", expected_stream(way), sizes, times_ps)


def _reached(way: Way, what: str, expected: Expected, sizes: Sequence[int], times_ps: Sequence[int]) -> Check:
    """What was found: the slope between two sizes, or the rate of all where a size is but a few stripes."""
    if sizes[0] < STRIPES * way.stripe_bytes:
        sizes, times_ps = (0, sizes[1]), (0, times_ps[1])
    found = (sizes[1] - sizes[0]) * _PS / max(1, times_ps[1] - times_ps[0])
    least, most = expected.least_mbps * 10**6, expected.most_mbps * 10**6
    return Check(way.part, what, "bytes/s", least, most, found, expected.bound)


def _grid(way: Way, flight_bytes: int) -> dict[str, int]:
    """A grid of one block a unit that has about `flight_bytes` in flight, if the units can have as many.

    So many units that their ports do not bind before the path does.
    """
    block, room = way.span_bytes, way.runner.unit_outstanding_bytes
    port_mbps = 0 if way.hops else way.runner.port_mbps[way.write]
    through = FLIGHTS * -(-path_of(way)[0] // port_mbps) if port_mbps else 1
    programs = min(way.runner.units, max(through, -(-flight_bytes // room)))
    each = min(room, -(-flight_bytes // programs))
    tiles = min(65_536, -(-each // block) + 1)
    return {"programs": programs, "blocks_per_unit": 1, "block_bytes": block, "tiles_in_flight": tiles}


def _flight(way: Way, grid: dict[str, int]) -> int:
    """Bytes that a grid has in flight."""
    asked = grid["tiles_in_flight"] * grid["block_bytes"]
    return grid["programs"] * min(way.runner.unit_outstanding_bytes, asked)


def _chase(way: Way) -> Check:
    """Loads that wait for each other take the idle latency and the transfers, to the picosecond.

    The start of their block is taken off.
    """
    unit = way.holder.unit_bytes
    loads = {"count": CHASED, "row_bytes": unit, "span": _span(way, CHASED)}
    found_ps = (_time_ps(way, "chase", loads) - way.runner.setup_ps) / CHASED
    return _exactly(way, "one load", "s", round_trip_ps(way, unit, unit) / _PS, found_ps / _PS, "latency")


def _exactly(way: Way, what: str, unit: str, expected: float, found: float, bound: str) -> Check:
    return Check(way.part, what, unit, expected * (1 - ROUNDING), expected * (1 + ROUNDING), found, bound)


def _random(way: Way, stream: float) -> Check:
    """Units at random are not faster than a stream [bytes/s], than as many in a row, or than Little's law.

    Units in a row wait for each other at the channel that they lie on, units at random hardly ever. Where
    what may be in flight is what binds, that wait is lost bandwidth, so random units may be the faster ones
    by it; but never faster than what is in flight allows when nothing waits.
    """
    unit = way.holder.unit_bytes
    grid = _grid(way, 2 * needed_bytes(way))
    span = _span(way, SCATTERED)
    rows = min(SCATTERED, span // unit) // LINE_BYTES * LINE_BYTES
    scattered = {**grid, "count": rows, "row_bytes": unit, "span": span}
    random_ps = _time_ps(way, "gather", scattered, unit)
    in_a_row_ps = _time_ps(way, "stream", {**grid, "bytes": rows * unit}, unit)
    in_a_row, found = (rows * unit * _PS / time_ps for time_ps in (in_a_row_ps, random_ps))
    allowed = [(in_a_row, "units in a row"), (stream, "a stream")]
    if not expected_stream(way).exact:
        most_mbps = min(path_of(way)[0], most_of_units_mbps(way))
        allowed.append((most_mbps * MILLION, reached_stream(way)[1]))
    most, bound = max(allowed)
    return Check(way.part, f"random {unit} B", "bytes/s", 0.0, most * (1 + CHANCE), found, bound)


def _span(way: Way, rows: int) -> int:
    """Bytes that rows of a unit are drawn from: 16 times as many as are drawn, if the tier holds them."""
    return min(way.holder.capacity_bytes, 16 * rows * way.holder.unit_bytes)


def _depth_one(way: Way) -> Check:
    """Requests one by one are bound by the latency, whatever the bandwidth."""
    nbytes = max(LINE_BYTES, way.holder.unit_bytes)
    alone = {"bytes": ALONE * nbytes, "programs": 1, "block_bytes": nbytes, "tiles_in_flight": 1}
    found = ALONE * nbytes * _PS / (_time_ps(way, "stream", alone, nbytes) - way.runner.setup_ps)
    expected = nbytes * _PS / round_trip_ps(way, nbytes, nbytes)
    return _exactly(way, f"single {nbytes} B", "bytes/s", expected, found, "latency")


def _setup(way: Way) -> Check:
    """The smallest transfer takes the engine's set-up and the longer of a read there and a write here."""
    sizes = {"bytes": LINE_BYTES, "block_bytes": LINE_BYTES, "dma": True}
    found_ps = _time_ps(way, "stream", sizes)
    here = replace(way, tier=0, write=True)
    moved_ps = max(round_trip_ps(each, LINE_BYTES, LINE_BYTES) for each in (way, here))
    expected_ps = way.runner.setup_ps + moved_ps
    return _exactly(way, "smallest copy", "s", expected_ps / _PS, found_ps / _PS, "set-up")


def _copy(way: Way) -> Check:
    """Beyond its set-up a large transfer, one a unit, takes its bytes at the rate of its slower way."""
    engines, options = way.runner.units, {"dma": True, "write": way.write}
    sizes = [
        max(size, min(stripes * way.stripe_bytes, MOST_BYTES * size // COPIED_BYTES[1]))
        for size, stripes in zip(COPIED_BYTES, COPIED_STRIPES, strict=True)
    ]
    times_ps = [
        _time_ps(way, "stream", {**options, "bytes": size * engines, "block_bytes": size}) for size in sizes
    ]
    what = "copies out" if way.write else "copies in"
    return _reached(way, what, expected_copy(way), [size * engines for size in sizes], times_ps)


def _time_ps(way: Way, pattern: str, options: dict[str, Any], quantum_bytes: int = 0) -> int:
    """Time of a call without its launch [ps]."""
    return _run(way, pattern, options, quantum_bytes).call_ps - way.runner.launch_gap_ps


def _run(way: Way, pattern: str, options: dict[str, Any], quantum_bytes: int = 0) -> kernel.Answer:
    return kernel.run(
        pattern,
        way.system,
        options,
        tier=way.holder.name,
        run_on=[f"{pattern}={way.runner.name}"],
        quantum_bytes=quantum_bytes or way.request_bytes,
        bound=False,
    )


def table(checks: Sequence[Check]) -> Table:
    """The checks for people: what was expected and found, and what binds."""
    from memsim.report import plain_table

    rows = plain_table("part", "what", "expected", "found", "by", "", left=(0, 1, 4, 5))
    for column in (0, 1, 5):
        rows.columns[column].no_wrap = True
    for check in checks:
        show = format_rate if check.unit == "bytes/s" else _seconds
        cells = (_wanted(check, show), show(check.found), check.bound, check.verdict)
        rows.add_row(check.part, check.what, *cells)
    return rows


def _wanted(check: Check, show: Callable[[float], str]) -> str:
    if check.least == 0:
        return f"to {show(check.most)}"
    if check.most < check.least * NARROW:
        return show((check.least + check.most) / 2)
    return f"{show(check.least)} to\n{show(check.most)}"  # two lines, so that the rest fits beside it


def _seconds(time_s: float) -> str:
    return format_time(time_s * _PS)


def document(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks as JSON."""
    return [{**asdict(check), "passed": check.passed, "verdict": check.verdict} for check in checks]
