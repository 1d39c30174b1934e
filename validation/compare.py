"""`memsim validate compare`: your own decode runs against what memsim says of them.

Enters: a CSV file of runs, a row each (columns `COLUMNS`). Leaves: a `Run` with its projected point for each,
in the file's order: measured, predicted, and whether the measured time lies in the interval.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.errors import UsageError, shown
from memsim.projection_cell import check, grid
from memsim.projection_point import Ask, Cell, Point
from memsim.projection_run import run
from memsim.units import format_time, format_tokens, is_whole, parse_tokens
from validation import show
from workloads.parallel import parse_parallel

if TYPE_CHECKING:
    from memsim.progress import Progress

COLUMNS = ("model", "machine", "parallel", "context", "batch", "tpot_ms")
PS = 10**9  # of a millisecond
NAMES = ("model", "machine", "context", "batch", "measured", "predicted", "error", "interval", "")


@dataclass(frozen=True)
class Run:
    """A measured run, and what is predicted of it; a point without a number says why in `refused`."""

    measured_ps: int
    point: Point

    @property
    def error(self) -> float | None:
        """predicted / measured - 1; None without a number."""
        return self.point.tpot_ps / self.measured_ps - 1 if self.point.tpot_ps else None

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.point.low_ps <= self.measured_ps <= self.point.high_ps


@dataclass(frozen=True)
class Asked:
    """A row of the file."""

    model: str
    machine: str
    parallel: str
    context_tokens: int
    batch: int
    tpot_ps: int


def read(path: Path) -> list[Asked]:
    """The rows of a file; UsageError, one line, for a file or a row that is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                expected = ", ".join(COLUMNS)
                raise UsageError(f"{path}: no column '{missing[0]}'; expected the columns {expected}")
            found = [_asked(f"{path}: row {number}", row) for number, row in enumerate(reader, 1)]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; name a CSV file of runs") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a CSV file: {error}; expected UTF-8 text with commas") from None
    if not found:
        raise UsageError(f"{path}: no rows; expected a run in each")
    return found


def _asked(where: str, row: dict[str, Any]) -> Asked:
    words = {name: (row[name] or "").strip() for name in COLUMNS}
    try:
        context_tokens = parse_tokens(words["context"])
    except UsageError as error:
        raise UsageError(f"{where}: context: {error}") from None
    batch, tpot_ms = words["batch"], words["tpot_ms"]
    if not is_whole(batch) or int(batch) < 1:
        raise UsageError(f"{where}: batch is {shown(batch)}; expected a whole number of 1 at least")
    try:
        ms = float(tpot_ms)
    except ValueError:
        ms = math.nan
    if not 1 <= ms * PS < 2**63:
        raise UsageError(
            f"{where}: tpot_ms is {shown(tpot_ms)}; expected milliseconds above 0 (and below 10^9)"
        )
    names = (words[name] for name in ("model", "machine", "parallel"))
    return Asked(*names, context_tokens, int(batch), round(ms * PS))


def compared(path: Path, ask: Ask | None = None, progress: Progress | None = None) -> list[Run]:
    """Every run of a file with its prediction; UsageError names a row that is none.

    ask   what all runs share, None: whole steps as models come; each row adds how many GPUs it was on
    """
    asked = read(path)
    wanted = [_cell(f"{path}: row {number}", each, ask or Ask()) for number, each in enumerate(asked, 1)]
    points: dict[tuple[Ask, Cell], Point] = {}
    for one in dict.fromkeys(one for one, _ in wanted):
        cells = list(dict.fromkeys(cell for other, cell in wanted if other == one))
        found = run(cells, one, None, None, _after(len(points), len(set(wanted)), progress))
        points |= {(one, cell): point for cell, point in zip(cells, found, strict=True)}
    return [Run(each.tpot_ps, points[key]) for each, key in zip(asked, wanted, strict=True)]


def _cell(where: str, asked: Asked, ask: Ask) -> tuple[Ask, Cell]:
    """What a row asks a projection for; UsageError if there is no such thing."""
    cells = grid([asked.model], [asked.machine], [asked.context_tokens], [asked.batch])
    ask = replace(ask, parallel=asked.parallel or None)
    try:
        if ask.parallel:
            parse_parallel(ask.parallel)
        check(cells, ask)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return ask, cells[0]


def _after(done: int, total: int, progress: Progress | None) -> Progress | None:
    """Progress of some points after others."""
    return None if progress is None else lambda more, _: progress(done + more, total)


def text(runs: Sequence[Run]) -> str:
    """A row a run, and a line of how many lie in their intervals."""
    known = [run for run in runs if run.error is not None]
    parts = [show.table(NAMES, [_row(run) for run in runs], left=(0, 1, 8))]
    if known:
        mean = sum(abs(run.error or 0.0) for run in known) / len(known)
        inside = sum(run.inside for run in known)
        parts.append(f"mean error {mean:.1%}; {inside} of {len(known)} lie in their interval\n")
    return "".join(parts)


def _row(run: Run) -> list[str]:
    point, measured = run.point, format_time(run.measured_ps)
    where = [point.model, point.machine, format_tokens(point.context_tokens), str(point.batch)]
    if run.error is None:
        return [*where, measured, "-", "-", "-", point.refused]
    span = f"{format_time(point.low_ps)} to {format_time(point.high_ps)}"
    words = point.trust if run.inside else f"{point.trust}, outside"
    return [*where, measured, format_time(point.tpot_ps), f"{run.error:+.1%}", span, words]


def document(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The same, times in ps, errors as shares."""
    return [
        {
            "model": run.point.model,
            "machine": run.point.machine,
            "context_tokens": run.point.context_tokens,
            "batch": run.point.batch,
            "measured_ps": run.measured_ps,
            "predicted_ps": run.point.tpot_ps or None,
            "low_ps": run.point.low_ps or None,
            "high_ps": run.point.high_ps or None,
            "error": run.error,
            "inside": run.inside if run.error is not None else None,
            "trust": run.point.trust,
            "refused": run.point.refused,
        }
        for run in runs
    ]
