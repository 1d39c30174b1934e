"""Progress on stderr for work that takes more than two seconds.

`shown(label)` gives a callback `(done, total)` for the work to call as it goes. On a terminal it draws a
bar that vanishes at the end; elsewhere it writes a plain line every few seconds. Short work shows
nothing, and stdout is never touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

Progress = Callable[[int, int], None]

_AFTER_S = 2.0  # work that is shorter shows nothing
_LINE_EVERY_S = 5.0


@contextmanager
def shown(label: str) -> Iterator[Progress]:
    """A callback `(done, total)` that shows `label` and how far the work is, from two seconds on."""
    with _bar(label) if sys.stderr.isatty() else _lines(label) as advance:
        yield advance


@contextmanager
def _lines(label: str) -> Iterator[Progress]:
    begin_s = monotonic()
    next_s = begin_s + _AFTER_S

    def advance(done: int, total: int) -> None:
        nonlocal next_s
        now_s = monotonic()
        if now_s >= next_s:
            next_s = now_s + _LINE_EVERY_S
            line = f"{label}: {_percent(done, total)}% after {now_s - begin_s:.0f} s"
            print(line, file=sys.stderr, flush=True)

    yield advance


@contextmanager
def _bar(label: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None)
    begin_s = monotonic()

    def advance(done: int, total: int) -> None:
        if monotonic() - begin_s >= _AFTER_S:
            bar.start()  # does nothing where it runs already
            bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


def _percent(done: int, total: int) -> int:
    return 100 * done // total if total > 0 else 0
