"""`memsim.project`: what a decoded token costs on models, machines, contexts and batches, with its interval.

A grid of cells enters; a `Point` for each leaves, in the order of the grid. A cell is recorded on shapes
alone (`trace_cache` keeps what was recorded), replayed, and its distinct kernels are replayed again for what
binds them and how far the time may be off (`interval`). What does not fit is a point without a number that
says by how much. The work is done in `projection_run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.projection_cell import batch_of, check, grid
from memsim.projection_point import Ask, Point
from memsim.projection_run import run
from memsim.units import parse_time, parse_tokens

if TYPE_CHECKING:
    from memsim.progress import Progress


def project(
    models: str | Sequence[str],
    machine: str | Sequence[str] = "h200-host",
    *,
    context: str | int | Sequence[str | int] = "1M",
    batch: str | int | Sequence[str | int] = 1,
    slo: str | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[Point]:
    """Project what a decoded token costs, for every model on every machine at every context and batch.

    context    tokens in the cache: "128K", 1_048_576
    batch      sequences decoded together, or "max": as many as fit, with `slo` ("20 ms") as meet it, too
    out        a folder whose file `points.jsonl` keeps finished points: what it has is not made again
    workers    processes; None: as many as there are cores
    progress   called with (points done, points)
    options    as fields of `Ask`: place, overflow, run_on, overrides, selection, replace, kv_dtype, ...

    A point that does not fit has no number and says by how much (`Point.refused`). UsageError for a wrong
    word or number, MissingExtra without torch, OutputError where `out` cannot be written.
    """
    ask = Ask(slo_ps=parse_time(slo) if slo else None, **_tuples(options))
    cells = grid(
        _list(models),
        _list(machine),
        [parse_tokens(each) for each in _list(context)],
        [batch_of(each) for each in _list(batch)],
    )
    check(cells, ask)
    return run(cells, ask, None if out is None else Path(out), workers, progress)


def _list(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, int)) else list(value)


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as `Ask` holds them: several texts as a tuple."""
    several = ("place", "run_on", "overrides", "replace")
    return {name: tuple(_list(value)) if name in several else value for name, value in options.items()}
