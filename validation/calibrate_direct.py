"""Constants that follow from measured times by a formula, without a replay.

Enters: a constant, its rows, the machine with all that was found before it. Leaves: readings, what each row
(or each two neighbours) says of the constant, in the number's own unit. Their mean is its value.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from memsim.closed_form import Way, round_trip_ps
from memsim.profile import load_machine
from memsim.profile_schema import Profile
from memsim.route import build_system
from memsim.system import MILLION, System
from validation.calibrate_constants import Constant
from validation.calibrate_values import kind_of, number, written
from validation.figures_rows import Row
from validation.figures_rows import number as column

LINE_BYTES = 128  # what a load brings in
STEP_PS = 1000
PS = 1000  # of a nanosecond


def readings(constant: Constant, rows: Sequence[Row], machine: str, overrides: Sequence[str]) -> list[float]:
    """What the rows say of the constant; none where they are too few."""
    if constant.formula == "slope":
        return _slopes(constant.over, rows)
    if constant.formula == "rate":
        return [column(row, constant.over) / column(row, "median_ns") * 1000 for row in rows]
    profile = load_machine(machine, overrides)
    if constant.formula == "rest":
        less_ps = _held(profile, constant.less)
        return [column(row, "median_ns") * PS - less_ps for row in rows]
    if constant.formula == "share":
        factor = _framed(build_system(profile), constant) / _held(profile, constant.of)
        return [_mbps(row) * factor for row in rows]
    return _idle(constant, rows, machine, overrides)


def _slopes(axis: str, rows: Sequence[Row]) -> list[float]:
    """Picoseconds that each step of an axis adds, between neighbours."""
    ordered = sorted((column(row, axis), column(row, "median_ns") * PS) for row in rows)
    return [(more - less) / (b - a) for (a, less), (b, more) in itertools.pairwise(ordered)]


def _mbps(row: Row) -> float:
    """Bytes of a call by its time, in 10^6 bytes/s."""
    nbytes, ns = column(row, "bytes_read") + column(row, "bytes_written"), column(row, "median_ns")
    mbps: float = nbytes / ns * 1000
    return mbps


def _held(profile: Profile, path: str) -> float:
    """The number at a path of a machine."""
    return float(dict(profile.quantities())[path].number)


def _framed(system: System, constant: Constant) -> float:
    """Bytes on the wire of a link for each byte of data; 1 for a memory, which has no headers."""
    group, name, _ = constant.path.split(".")
    if group != "link":
        return 1.0
    link = next(at for at, each in enumerate(system.links) if each.name == name)
    runner = next(at for at, each in enumerate(system.initiators) if each.name == constant.by)
    packet = system.packet_bytes(runner, link)
    return (packet + system.links[link].header_bytes) / packet


def _idle(constant: Constant, rows: Sequence[Row], machine: str, overrides: Sequence[str]) -> list[float]:
    """A latency from dependent loads: what they take longer than an idle machine says is the latency's.

    It may lie on the way more than once (a link, there and back): that many times a step of it shows.
    """
    kind = kind_of(constant.path)
    assert kind is not None
    now_ps = round(_held(load_machine(machine, overrides), constant.path))
    trips = []
    for value_ps in (now_ps, now_ps + STEP_PS):
        system = build_system(load_machine(machine, [*overrides, f"{constant.path}={value_ps} ps"]))
        trips.append(_trip_ps(constant, system))
    times = (trips[1] - trips[0]) / STEP_PS
    return [now_ps + (column(row, "median_ns") * PS - trips[0]) / times for row in rows]


def _trip_ps(constant: Constant, system: System) -> int:
    """A load of a line on an idle machine: a hit of the cache, or from the tier."""
    if constant.path.startswith("cache."):
        return system.cache.latency_ps + -(-LINE_BYTES * MILLION // system.cache.mbps[0])
    return round_trip_ps(Way(system, 0, system.tier_index(constant.tier)), LINE_BYTES, LINE_BYTES)


def value(constant: Constant, found: Sequence[float]) -> str | int | float:
    """The constant as a machine file writes it, from its readings."""
    kind = kind_of(constant.path)
    assert kind is not None
    return written(kind, statistics.fmean(found), constant.least)


def error(constant: Constant, value: object, found: Sequence[float]) -> float:
    """Mean distance of a value from its readings, as a share of them."""
    kind = kind_of(constant.path)
    assert kind is not None
    held = number(kind, value)
    return statistics.fmean(abs(held / reading - 1) for reading in found)
