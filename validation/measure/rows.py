"""Files that a campaign leaves: one CSV per family, run.json, captured.csv. Rows are only ever added.

Enters: points and what was measured. Leaves: `<DIR>/<family>.csv`, one row per point and attempt, written
at once; `run.json` with one entry per run; `captured.csv` with the kernels that a point's graph held. A
point whose newest row has no error is done and is not measured again.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .points import Family, Point

COMMON = (
    "split",
    "bytes_read",
    "bytes_written",
    "calls",
    "buffers",
    "footprint_bytes",
    "replays",
    "median_ns",
    "p10_ns",
    "p90_ns",
    "spread",
    "graph_ns",
    "sm_mhz",
    "mem_mhz",
    "watts",
    "temperature_c",
    "kernels",
    "noisy",
    "error",
    "run",
)
CAPTURED = ("family", "point", "kernel", "count", "total_ns", "source", "run")
NOISY = 0.03


@dataclass
class Measured:
    """What a family function returns for one point.

    samples_ns       one number per replay (or per trial): nanoseconds of ONE call, overhead already taken off
    bytes_read/written  of one call, counted from the shapes
    calls            calls per replay; buffers: variants that the calls go round
    footprint_bytes  bytes that all the variants touch together
    graph_ns         what an empty replay takes, already subtracted (0: nothing was)
    clocks           sm_mhz, mem_mhz, watts, temperature_c while it ran; missing ones stay empty
    kernels          name -> count of the captured kernels; None: not known
    extra            the family's further columns
    """

    samples_ns: Sequence[float]
    bytes_read: int = 0
    bytes_written: int = 0
    calls: int = 1
    buffers: int = 1
    footprint_bytes: int = 0
    graph_ns: float = 0.0
    clocks: dict[str, int | float] = field(default_factory=dict)
    kernels: dict[str, int] | None = None
    extra: dict[str, int | float | str] = field(default_factory=dict)


def percentile(values: Iterable[float], share: float) -> float:
    """Value below which `share` (0 to 1) of the values lie, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def columns(family: Family) -> list[str]:
    return [*family.axes, *family.extra, *COMMON]


def row_of(family: Family, point: Point, measured: Measured, run: str) -> dict[str, object]:
    """The row of one measured point. ValueError if it has no samples or fills a column nobody declared."""
    if not measured.samples_ns:
        raise ValueError("no samples")
    unknown = measured.extra.keys() - set(family.extra)
    if unknown:
        raise ValueError(f"column {sorted(unknown)[0]} is not in the family's extra list")
    median = statistics.median(measured.samples_ns)
    p10, p90 = percentile(measured.samples_ns, 0.1), percentile(measured.samples_ns, 0.9)
    spread = (p90 - p10) / median if median > 0 else 1.0
    row: dict[str, object] = {**point.axes, **measured.extra, **measured.clocks}
    names = ("bytes_read", "bytes_written", "calls", "buffers", "footprint_bytes")
    row |= {name: getattr(measured, name) for name in names}
    row |= {"split": point.split, "replays": len(measured.samples_ns), "run": run, "error": ""}
    row |= {"median_ns": f"{median:.2f}", "p10_ns": f"{p10:.2f}", "p90_ns": f"{p90:.2f}"}
    row |= {"spread": f"{spread:.4f}", "noisy": int(spread > NOISY), "graph_ns": f"{measured.graph_ns:.0f}"}
    row["kernels"] = "" if measured.kernels is None else len(measured.kernels)
    return row


def error_row(point: Point, error: str, run: str) -> dict[str, object]:
    return {**point.axes, "split": point.split, "error": " ".join(error.split())[:300], "run": run}


def append(path: Path, names: Sequence[str], row: dict[str, object]) -> None:
    """Add one row; a new file gets the header. ValueError if the file on disk has other columns."""
    fresh = not path.exists() or path.stat().st_size == 0
    if not fresh:
        with path.open(newline="", encoding="utf-8") as file:
            found = next(csv.reader(file))
        if found != list(names):
            raise ValueError(f"{path}: columns {found}; expected {list(names)}: measure into another folder")
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def read(path: Path) -> list[dict[str, str]]:
    """All rows of a file as words; an unfinished last line is left out. No file: no rows."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [row for row in csv.DictReader(lines) if None not in row and None not in row.values()]


def mend(path: Path) -> None:
    """Cut a last line that a stopped run left half written, so that the next row starts on its own line."""
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            path.write_bytes(whole)


def settled(path: Path, family: Family, run: str, since: str = "") -> set[str]:
    """Keys of the points that need no measuring: the newest row has no error and is of the run `since` or a
    later one, or this very run made it.
    """
    newest: dict[str, bool] = {}
    for row in read(path):
        key = " ".join([family.name, *(f"{axis}={row[axis]}" for axis in family.axes)])
        newest[key] = (not row["error"] and row["run"] >= since) or row["run"] == run
    return {key for key, done in newest.items() if done}


def append_captured(
    folder: Path, point: Point, kernels: dict[str, tuple[int, int | None]], source: str, run: str
) -> None:
    """Kernels of one point: name -> (count, total ns or None). `source`: "graph" or "profiler".

    Names of templates run to thousands of letters: of each the first 200 are kept.
    """
    for name, (count, total_ns) in sorted(kernels.items()):
        took = "" if total_ns is None else total_ns
        values = (point.family, point.key, name[:200], count, took, source, run)
        append(folder / "captured.csv", CAPTURED, dict(zip(CAPTURED, values, strict=True)))


def note_run(folder: Path, run: str, facts: dict[str, object]) -> None:
    """Add facts to the entry of a run in run.json."""
    path = folder / "run.json"
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    runs.setdefault(run, {}).update(facts)
    whole = path.with_suffix(".new")
    whole.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    whole.replace(path)
