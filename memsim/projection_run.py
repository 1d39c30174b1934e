"""Computes the cells of a projection, in processes of their own, and keeps what is finished.

Cells and options enter, points leave in the order of the cells. Cells that one recording serves (machines of
equal units) are one task. With a folder, each finished point is a line of its `points.jsonl`, under a key
made of all that it rests on: a run that was interrupted goes on where it stood.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, BinaryIO

import memsim
from memsim import interval
from memsim.aside import cores
from memsim.errors import DoesNotFit, OutputError
from memsim.jit import is_compiled
from memsim.output import check_writable
from memsim.progress import Progress
from memsim.projection_batch import known_shortfall, largest
from memsim.projection_cell import machine_of, trace_of, units_of
from memsim.projection_point import Ask, Cell, Point, about, from_document, priced, refused
from memsim.route import build_system
from memsim.simulate import replayed
from memsim.trace_cache import key_of
from memsim.units import format_tokens

POINTS = "points.jsonl"
FEW = 4  # tasks that one process does sooner than several start

Task = tuple[Cell, ...]
Done = Callable[[Cell, Point], None]


def run(
    cells: Sequence[Cell], ask: Ask, folder: Path | None, workers: int | None, progress: Progress | None
) -> list[Point]:
    """The points of all cells. progress(points done, points)."""
    book = Book(folder, ask)
    found = {cell: point for cell in cells if (point := book.find(cell)) is not None}
    missing = [cell for cell in dict.fromkeys(cells) if cell not in found]

    def done(cell: Cell, point: Point) -> None:
        found[cell] = point
        book.add(cell, point)
        if progress is not None:
            progress(len(found), len(set(cells)))

    tasks = shared_out(missing, ask)
    if tasks and not is_compiled():
        _in_turn(tasks[:1], ask, done)  # or several processes would compile at once
        tasks = tasks[1:]
    workers = workers or cores()
    if workers < 2 or len(tasks) < FEW:
        _in_turn(tasks, ask, done)
    else:
        _in_processes(tasks, ask, workers, done)
    return [found[cell] for cell in cells]


def shared_out(cells: Iterable[Cell], ask: Ask) -> list[Task]:
    """Cells by what they are recorded from: a model, a context, a batch and a number of units."""
    tasks: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        tasks.setdefault((cell.model, cell.context_tokens, cell.batch, units_of(cell, ask)), []).append(cell)
    return [tuple(task) for task in tasks.values()]


def point_of(cell: Cell, ask: Ask) -> Point:
    """The point of a cell."""
    model = about(cell.model, ask)
    notes = list(_notes_of_context(model, cell.context_tokens))
    batch = cell.batch
    if isinstance(batch, str):
        batch, why = largest(cell, ask)
        if not batch:
            return refused(cell, ask, 1, why, notes)
        notes.append(why)
    elif lacks := known_shortfall(cell, ask, batch):
        return refused(cell, ask, batch, lacks, notes)
    profile, varied = machine_of(cell.machine, ask.overrides)
    with trace_of(cell, ask, batch) as trace:
        try:
            found = replayed(trace, profile, **ask.replaying())
        except DoesNotFit as error:
            return refused(cell, ask, batch, str(error), notes)
        inputs = found.trace.meta.get("inputs", [])
        trusted = interval.of(found, varied.with_kernels(inputs))
    return priced(cell, ask, found.result, trusted, notes)


def _notes_of_context(model: Any, context_tokens: int) -> Iterator[str]:
    if context_tokens > model.max_context:
        yield f"{model.name} is configured for {format_tokens(model.max_context)} tokens; longer is a what-if"


def points_of(task: Task, ask: Ask) -> list[Point]:
    """What a process does."""
    return [point_of(cell, ask) for cell in task]


def _in_turn(tasks: Iterable[Task], ask: Ask, done: Done) -> None:
    for task in tasks:
        for cell in task:
            done(cell, point_of(cell, ask))


def _in_processes(tasks: Sequence[Task], ask: Ask, workers: int, done: Done) -> None:
    before = set(active_children())
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin) as pool:
        waiting = {pool.submit(points_of, task, ask): task for task in tasks}
        try:
            for future in as_completed(waiting):
                for cell, point in zip(waiting[future], future.result(), strict=True):
                    done(cell, point)
        except BaseException:
            for child in set(active_children()) - before:
                child.terminate()  # what it had begun is lost, nothing that was finished
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    """A process ends without a word at Ctrl-C; the one that started it says what there is to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Book:
    """The finished points of a folder; without one it forgets."""

    def __init__(self, folder: Path | None, ask: Ask) -> None:
        self._ask, self._path = ask, None if folder is None else folder / POINTS
        self._points: dict[str, Point] = {}
        if self._path is not None and folder is not None:
            check_writable(folder)
            self._points = dict(_lines(self._path))

    def find(self, cell: Cell) -> Point | None:
        """The point of a cell, if it is finished."""
        return self._points.get(self._key(cell)) if self._points else None

    def add(self, cell: Cell, point: Point) -> None:
        """Keep a point, on the disk when this returns; OutputError if that fails."""
        if self._path is None:
            return
        told = {"key": self._key(cell), "point": point.document()}
        line = json.dumps(told | {"digest": _digest(told)})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                file.write(b"" if _ends_whole(file) else b"\n")
                file.write(f"{line}\n".encode())
        except OSError as error:
            where = f"{self._path}: cannot be written: {error.strerror}"
            raise OutputError(f"{where}; choose another folder") from None

    def _key(self, cell: Cell) -> str:
        """Equal where everything that a point rests on is."""
        return key_of_point(cell, self._ask)


def key_of_point(cell: Cell, ask: Ask) -> str:
    """A digest of a cell, its options, its machine, and all that computes it."""
    profile, _ = machine_of(cell.machine, ask.overrides)
    batch = cell.batch if isinstance(cell.batch, int) else 1
    trace = key_of(cell.model, cell.context_tokens, ask.recording(cell.model, batch, units_of(cell, ask)))
    text = f"{_engine_digest()} {trace} {cell} {ask} {build_system(profile)} {list(profile.entries())}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@lru_cache
def _engine_digest() -> str:
    """Digest of memsim's sources and of the quantiles."""
    here = Path(memsim.__file__).parent
    files = [*here.glob("*.py"), *(here.parent / "validation").glob("*.toml")]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(told: Mapping[str, Any]) -> str:
    """Of a key and a point, as they stand in a line."""
    return hashlib.sha256(json.dumps([told["key"], told["point"]]).encode()).hexdigest()[:16]


def _ends_whole(file: BinaryIO) -> bool:
    """Whether the next line may follow: the last one was not cut off."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _lines(path: Path) -> Iterator[tuple[str, Point]]:
    """Points of a file by key; a line that was cut off, changed, or is of another version, is no point."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if entry["digest"] == _digest(entry):
                yield entry["key"], from_document(entry["point"])
        except (ValueError, KeyError, TypeError):
            continue
