"""Runs a campaign: family by family, point by point, a row for each. No point's fault stops the next.

Enters: families with their points, the folder. Leaves: the files of `rows`, a line per point on the terminal
and a `Summary`. A point that raises is a row with `error`. If the GPU's context is lost, the run stops with
`lost`, and `supervise` goes on in a new process; points that failed are not tried twice in one run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import device, families, rows, supervise
from .device import Env, Skipped
from .points import Family, Point

KEPT_FACTS = ("stream ", "empty graph ")


@dataclass
class Summary:
    """measured, failed, noisy, there (done before): points; skipped: family -> reason; seconds: by family.

    out_of_time: the budget ended before the last point. lost: the GPU context is gone.
    """

    measured: int = 0
    failed: int = 0
    noisy: int = 0
    there: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    out_of_time: bool = False
    lost: bool = False


def run(
    chosen: list[Family], env: Env, folder: Path, *, end: float, say: Callable[[str], None] = print
) -> Summary:
    """Measure every point that is not settled, until `end` (time.monotonic seconds)."""
    folder.mkdir(parents=True, exist_ok=True)
    rows.mend(folder / "captured.csv")
    summary = Summary()
    bury(chosen, env, folder, summary, say)
    before: Family | None = None
    for family in chosen:
        forget(env, before, family)
        before = family
        started = time.monotonic()
        _family(family, env, folder, end, summary, say)
        summary.seconds[family.name] = round(time.monotonic() - started, 1)
        if summary.lost or summary.out_of_time:
            return summary
    return summary


def bury(chosen: list[Family], env: Env, folder: Path, summary: Summary, say: Callable[[str], None]) -> None:
    """Write down the point during which an earlier process died or hung."""
    key = supervise.left(folder, env.run).get("point")
    for family in chosen:
        for point in family.points:
            if point.key == key:
                path = folder / f"{family.name}.csv"
                rows.mend(path)
                row = rows.error_row(point, "the process died or hung", env.run)
                rows.append(path, rows.columns(family), row)
                summary.failed += 1
                say(f"{key}: ERROR the process died or hung")
    supervise.unmark(folder)


def forget(env: Env, before: Family | None, now: Family) -> None:
    """Drop what the last family's module kept, if this one's is another; pools, if the suite is another."""
    if before is not None and before.module == now.module:
        return
    env.facts = {name: value for name, value in env.facts.items() if name.startswith(KEPT_FACTS)}
    gc.collect()
    if before is not None and before.suite != now.suite:
        device.drop_pools(env)


def _family(
    family: Family, env: Env, folder: Path, end: float, summary: Summary, say: Callable[[str], None]
) -> None:
    path = folder / f"{family.name}.csv"
    rows.mend(path)
    settled = rows.settled(path, family, env.run, env.since)
    todo = [point for point in family.points if point.key not in settled]
    summary.there += len(family.points) - len(todo)
    if not todo:
        return
    try:
        measure = families.function_of(family, env)
    except Skipped as reason:
        summary.skipped[family.name] = str(reason)
        say(f"{family.name}: skipped: {reason}")
        return
    pace(family, env)
    for point in todo:
        if time.monotonic() >= end:
            summary.out_of_time = True
            return
        _point(family, point, measure, env, folder, summary, say)
        if summary.lost or family.name in summary.skipped:
            return


def pace(family: Family, env: Env) -> None:
    """How long this family is timed, as its campaign file says; a smoke test keeps its own haste."""
    if env.smoke:
        return
    env.rounds = family.rounds
    env.warm_s, env.sample_s, env.budget_s, env.window_s = (
        ms / 1000 for ms in (family.warm_ms, family.sample_ms, family.timed_ms, family.window_ms)
    )


def _point(
    family: Family,
    point: Point,
    measure: families.Function,
    env: Env,
    folder: Path,
    summary: Summary,
    say: Callable[[str], None],
) -> None:
    started = time.monotonic()
    names, path = rows.columns(family), folder / f"{family.name}.csv"
    supervise.mark(folder, env.run, point.key)
    try:
        measured = measure(point, env)
        row = rows.row_of(family, point, measured, env.run)
    except Skipped as reason:
        summary.skipped[family.name] = str(reason)
        supervise.unmark(folder)
        say(f"{family.name}: skipped: {reason}")
        return
    except Exception as error:  # whatever a point raises is a row, and the campaign goes on
        text = f"{type(error).__name__}: {error}"
        rows.append(path, names, rows.error_row(point, text, env.run))
        supervise.unmark(folder)
        summary.failed += 1
        say(f"{point.key}: ERROR {text[:600]}")
        del error
        summary.lost = env.cuda and context_is_lost(env)
        return
    rows.append(path, names, row)
    supervise.unmark(folder)
    if measured.kernels:
        found = {name: (count, None) for name, count in measured.kernels.items()}
        rows.append_captured(folder, point, found, "graph", env.run)
    summary.measured += 1
    summary.noisy += int(row["noisy"])  # type: ignore[call-overload]
    say(f"{point.key}: {_line(row)} [{time.monotonic() - started:.2f} s]")


def _line(row: dict) -> str:
    """The row in a few words: time, rate, spread."""
    median, moved = float(row["median_ns"]), row["bytes_read"] + row["bytes_written"]
    rate = f" {moved / median:.1f} GB/s" if median > 0 and moved else ""
    return f"{median:.1f} ns{rate} spread {float(row['spread']):.1%}{' NOISY' if row['noisy'] else ''}"


def context_is_lost(env: Env) -> bool:
    """True if the GPU does not answer any more; also gives back memory after a point that ran out of it."""
    import torch

    gc.collect()
    try:
        torch.cuda.synchronize(env.device)
        torch.cuda.empty_cache()
        return int(torch.ones(8, device=env.device).sum().item()) != 8
    except Exception:  # any failure here means the same
        return True


def list_kernels(
    chosen: list[Family], env: Env, folder: Path, *, end: float, say: Callable[[str], None] = print
) -> None:
    """The profiler pass: one pass of the calls of each family's first point, or of all its points.

    Comes after all timing, because a profiler that was once on may slow what follows. A point already listed
    by the profiler is left out.
    """
    env.profile = True
    listed = {row["point"] for row in rows.read(folder / "captured.csv") if row["source"] == "profiler"}
    before: Family | None = None
    for family in chosen:
        forget(env, before, family)
        before = family
        wanted = family.points if family.profile == "all" else family.points[:1]
        todo = [point for point in wanted if point.key not in listed]
        try:
            measure = families.function_of(family, env) if todo else None
        except Skipped:
            continue
        for point in todo:
            if time.monotonic() >= end:
                return
            env.captured = {}
            supervise.mark(folder, env.run, point.key, "profiler")
            try:
                measure(point, env)  # type: ignore[misc]
                rows.append_captured(folder, point, dict(env.captured), "profiler", env.run)
            except Skipped:
                break
            except Exception as error:  # a listing that fails must not end the run
                say(f"{point.key}: not listed: {type(error).__name__}: {str(error)[:200]}")
                if env.cuda and context_is_lost(env):
                    return
            finally:
                supervise.unmark(folder)
