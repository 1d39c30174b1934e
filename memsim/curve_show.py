"""A curve of latency under load as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memsim.curve import Curve, Errors, Found, Point, errors, off
from memsim.units import format_share, format_time

if TYPE_CHECKING:
    from rich.console import RenderableType

_PS = 10**12


def document(curve: Curve) -> dict[str, Any]:
    """The curve as JSON."""
    return {
        "machine": curve.machine,
        "tier": curve.tier,
        "peak_bytes_per_s": curve.peak_mbps * 10**6,
        "peak_each_way": curve.each_way,
        "points": [_point_document(point, curve) for point in curve.points],
        "errors": [asdict(error) for error in errors(curve)],
    }


def _point_document(point: Point, curve: Curve) -> dict[str, Any]:
    described: dict[str, Any] = {
        "kind": point.kind,
        "units": point.units,
        "flight_bytes": point.flight,
        "pause_s": point.pause_ps / _PS,
        "load_bytes_per_s": point.replayed.mbps * 10**6,
        "peak_share": point.replayed.mbps / curve.peak_mbps,
        "latency_s": point.replayed.latency_ps / _PS,
    }
    if point.measured is not None:
        load_off, latency_off = off(point)
        described |= {
            "measured_load_bytes_per_s": point.measured.mbps * 10**6,
            "measured_latency_s": point.measured.latency_ps / _PS,
            "load_error": load_off,
            "latency_error": latency_off,
            "noisy": point.noisy,
            "split": point.split,
        }
    return described


def table(curve: Curve) -> RenderableType:
    """The curve for people: replayed, then measured and how far off."""
    from rich.console import Group
    from rich.text import Text

    from memsim.report import plain_table

    measured = any(point.measured for point in curve.points)
    (scale, rate), (time_ps, time) = rate_unit(curve), time_unit(curve)
    more = ("measured", "off", time, "off") if measured else ("peak",)
    rows = plain_table("streams", "units", "KiB", "pause", rate, time, *more, left=(0,))
    for point in curve.points:
        share = format_share(point.replayed.mbps / curve.peak_mbps) if point.units else ""
        last = _measured_cells(point, scale, time_ps) if measured else [share]
        rows.add_row(*_load_cells(point), *_found_cells(point.replayed, scale, time_ps), *last)
    paused = ", each warp with a pause before a tile" if any(point.pause_ps for point in curve.points) else ""
    words = (
        f"{curve.tier} of {curve.machine}: a pointer chase on one unit beside units that stream, each with "
        f"so many KiB in flight{paused}.",
        f"{rate}: reads and writes of the streams together; {time}: one load of the chase.",
    )
    notes = [_error_line(error) for error in errors(curve)]
    if any(point.noisy for point in curve.points):
        notes.append("~ measured samples lie more than 3% apart")
    return Group(*map(Text, words), Text(), rows, *([Text()] if notes else []), *map(Text, notes))


def rate_unit(curve: Curve) -> tuple[int, str]:
    """The unit that suits the curve's bandwidths: its size [10^6 bytes/s] and name."""
    return (10**6, "TB/s") if curve.peak_mbps >= 10**6 else (10**3, "GB/s")


def time_unit(curve: Curve) -> tuple[int, str]:
    """The unit that suits the curve's latencies: its size [ps] and name."""
    least_ps = min(point.replayed.latency_ps for point in curve.points)
    return (10**6, "us") if least_ps >= 10**7 else (10**3, "ns")


def _load_cells(point: Point) -> list[str]:
    if not point.units:
        return ["none", "", "", ""]
    pause = format_time(point.pause_ps) if point.pause_ps else ""
    return [point.kind, str(point.units), f"{point.flight / 1024:g}", pause]


def _found_cells(found: Found, scale: int, time_ps: int) -> tuple[str, str]:
    load = f"{found.mbps / scale:.3g}" if found.mbps else ""
    return (
        load,
        f"{found.latency_ps / time_ps:,.0f}" if time_ps == 1000 else f"{found.latency_ps / time_ps:,.1f}",
    )


def _measured_cells(point: Point, scale: int, time_ps: int) -> list[str]:
    if point.measured is None:
        return ["", "", "", ""]
    load, latency = _found_cells(point.measured, scale, time_ps)
    load_off, latency_off = off(point)
    mark = "~" if point.noisy else ""
    return [load, "" if load_off is None else _percent(load_off), f"{mark}{latency}", _percent(latency_off)]


def _percent(share: float) -> str:
    return f"{share:+.1%}" if abs(share) < 0.0995 else f"{share:+.0%}"


def _error_line(error: Errors) -> str:
    load, latency = (
        f"{format_share(mean)} off on average, {format_share(worst)} at most"
        for mean, worst in (
            (error.load_mean, error.load_worst),
            (error.latency_mean, error.latency_worst),
        )
    )
    return f"{error.kind}: bandwidth {load}; latency {latency}"
