"""`memsim validate calibrate`: constants of machine files and costs of kernels, from measured points.

Enters: a folder of measurements, `constants.toml`. Leaves: `Found`, one per constant: what its file says,
what the points say, and how far the points are off with either. Only rows whose split says `calibrate` are
looked at, and of these only a constant's own points.

Constants are found one after another, each with what was found before it, and all of them twice where several
are fitted, because they interact.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.errors import UsageError, cut, nearest
from memsim.profile import load_machine
from memsim.route import build_system
from validation import calibrate_constants, calibrate_direct, calibrate_fit, predict
from validation.calibrate_constants import DIRECT, FIT, Constant, Place
from validation.calibrate_files import Files, held
from validation.calibrate_fit import MOST_TRIES, Search, Value
from validation.calibrate_values import Kind, kind_of, number
from validation.figures_rows import Row
from validation.figures_rows import number as column
from validation.measure import points
from validation.measure import rows as csv_rows
from validation.repeat import folder_of
from workloads import costs

if TYPE_CHECKING:
    from memsim.progress import Progress

ROUNDS = 2
PROVENANCE = {DIRECT: "measured", FIT: "calibrated"}
WORDS = ("split", "error", "run")  # columns that are never numbers


@dataclass(frozen=True)
class Found:
    """What the points say of one constant.

    rows     that were measured of its points
    now      what its file says; None: nothing
    value    what the points say; `now` where they say nothing
    before, after   mean absolute error of the points with `now`, with `value`, as shares: of their times, or,
                    where a formula gives the constant, of what each point says it is; None: not known
    note     why there is nothing to write; "" if there is
    source   words for the file
    """

    constant: Constant
    rows: int = 0
    now: Value | None = None
    value: Value | None = None
    before: float | None = None
    after: float | None = None
    note: str = ""
    source: str = ""

    @property
    def provenance(self) -> str:
        return PROVENANCE[self.constant.method]

    @property
    def told(self) -> bool:
        """Whether the file can be given the value."""
        return not self.note


def calibrated(
    machine: str = "nvidia-h200",
    only: Sequence[str] = (),
    progress: Progress | None = None,
    constants: Path = calibrate_constants.CONSTANTS,
) -> list[Found]:
    """All constants, or those of which `only` names the path, in the order in which they are found.

    machine    a name that comes with memsim, or a folder
    progress   called with (replays done, replays at most)

    UsageError: an unknown machine or path, a folder that no machine file stands for, a bad file of constants.
    """
    folder = folder_of(machine)
    if not predict.machine_of(folder, ""):
        known = ", ".join(predict.MACHINES)
        raise UsageError(f"{folder.name}: no machine file stands for it; calibrated is: {known}")
    chosen = _chosen(calibrate_constants.read(constants), only)
    work = _Work(folder, chosen, progress)
    return work.found()


def files(only: Sequence[str] = (), constants: Path = calibrate_constants.CONSTANTS) -> list[Path]:
    """The files that hold the constants, each once."""
    chosen = _chosen(calibrate_constants.read(constants), only)
    return list(dict.fromkeys(constant.held_by for constant in chosen))


def _chosen(constants: Sequence[Constant], only: Sequence[str]) -> list[Constant]:
    known = [constant.path for constant in constants]
    for path in only:
        if path not in known:
            raise UsageError(f"no measurement gives '{cut(path)}'; {nearest(path, known)}")
    return [constant for constant in constants if not only or constant.path in only]


@dataclass(frozen=True)
class _Task:
    """A constant that can be found: its rows, its kind, the machine that they are replayed on."""

    constant: Constant
    kind: Kind
    rows: tuple[Row, ...]
    machine: str
    now: Value | None


class _Work:
    """One calibration: what was found so far, and every replay that was made."""

    def __init__(self, folder: Path, chosen: Sequence[Constant], progress: Progress | None) -> None:
        self.folder, self.chosen, self.progress = folder, chosen, progress
        self.device = device_of(folder)
        self.values: dict[Place, Value] = {}  # found so far
        self.notes: dict[Place, str] = {}
        self._files = Files()
        self._known: dict[tuple[Any, ...], float] = {}  # times of replayed points [ns]
        self._done = self._total = 0

    def found(self) -> list[Found]:
        tasks = [task for constant in self.chosen if (task := self._task(constant))]
        fits = [task for task in tasks if task.constant.method == FIT]
        rounds = ROUNDS if len(fits) > 1 else 1
        self._total = rounds * MOST_TRIES * sum(len(task.rows) for task in fits)
        before = {task.constant.place: self._error(task) for task in tasks}
        for turn in range(rounds):
            for task in tasks:
                self._find(task, again=turn > 0)
        self._advance(self._total)
        placed = {task.constant.place: task for task in tasks}
        after = {place: self._error(task) for place, task in placed.items()}
        return [self._shown(constant, placed, before, after) for constant in self.chosen]

    def _shown(
        self,
        constant: Constant,
        tasks: Mapping[Place, _Task],
        before: Mapping[Place, float | None],
        after: Mapping[Place, float | None],
    ) -> Found:
        place = constant.place
        task, note = tasks.get(place), self.notes.get(place, "")
        if task is None:
            return Found(constant, note=note)
        source = f"{self.device}: {constant.family}, {constant.named}; {constant.how}"
        value = self.values.get(place, task.now)
        return Found(constant, len(task.rows), task.now, value, before[place], after[place], note, source)

    # What can be found -----------------------------------------------------------------------------------

    def _task(self, constant: Constant) -> _Task | None:
        """The constant with its rows; None, and a note, if it cannot be found."""
        kind = kind_of(constant.path)
        note = self._lacking(constant, kind)
        rows: tuple[Row, ...] = ()
        if not note:
            rows = calibrate_rows(self.folder, constant)
            fewest = 2 if constant.formula == "slope" else 1
            note = "" if len(rows) >= fewest else "not measured here"
        if note or kind is None:
            self.notes[constant.place] = note
            return None
        machine = predict.machine_of(self.folder, constant.family)
        return _Task(constant, kind, rows, machine, held(constant))

    def _lacking(self, constant: Constant, kind: Kind | None) -> str:
        """Why a constant cannot be found, whatever was measured; "" if it can."""
        if kind is None:
            return "no file has such a key yet"
        if not constant.of_kernel and not self._files.has(constant.file, constant.path):
            return f"{constant.file} has no [{constant.path.rpartition('.')[0]}]"
        if constant.method == FIT and constant.family not in predict.recipes():
            return f"no recipe predicts {constant.family} yet"
        return ""

    # Finding -----------------------------------------------------------------------------------------------

    def _find(self, task: _Task, again: bool) -> None:
        place = task.constant.place
        direct = task.constant.method == DIRECT
        value, note = self._direct(task) if direct else self._fitted(task, again)
        self.notes[place] = note
        if not note and value is not None:
            self.values[place] = value
        else:
            self.values.pop(place, None)

    def _direct(self, task: _Task) -> tuple[Value | None, str]:
        readings = self._readings(task)
        value = calibrate_direct.value(task.constant, readings)
        inside = self._end(task, 0) <= number(task.kind, value) <= self._end(task, 1)
        return value, "" if inside else "out of its range"

    def _readings(self, task: _Task) -> list[float]:
        overrides = self._overrides(task.machine)
        return calibrate_direct.readings(task.constant, task.rows, task.machine, overrides)

    def _fitted(self, task: _Task, again: bool) -> tuple[Value | None, str]:
        place, begin = task.constant.place, self._done
        around = number(task.kind, self.values[place]) if again and place in self.values else None
        holds = self.values.get(place, task.now)
        search = Search(
            task.kind,
            self._end(task, 0),
            self._end(task, 1),
            holds,
            task.now if task.now is not None else task.constant.least,
            lambda value: self._squared(task, value),
        )
        best = search.run(around)
        self._advance(begin + MOST_TRIES * len(task.rows))
        # A second turn looks near the first one's value: that it finds little left to tell is no fault.
        note = search.note(best)
        return best, "" if around and note == calibrate_fit.FLAT else note

    def _end(self, task: _Task, which: int) -> float:
        return number(task.kind, (task.constant.least, task.constant.most)[which])

    # Errors and replays ----------------------------------------------------------------------------------

    def _error(self, task: _Task) -> float | None:
        """Mean absolute error of the points with what was found so far."""
        value = self.values.get(task.constant.place, task.now)
        if task.constant.method == DIRECT:
            if value is None:
                return None
            return calibrate_direct.error(task.constant, value, self._readings(task))
        times = self._times(task, value)
        measured = [column(row, "median_ns") for row in task.rows]
        return statistics.fmean(abs(a / b - 1) for a, b in zip(times, measured, strict=True))

    def _squared(self, task: _Task, value: Value | None) -> float:
        """Mean squared log error of the points with a value."""
        measured = [column(row, "median_ns") for row in task.rows]
        pairs = zip(self._times(task, value), measured, strict=True)
        return statistics.fmean(math.log(a / b) ** 2 for a, b in pairs)

    def _times(self, task: _Task, value: Value | None) -> list[float]:
        """Nanoseconds of the points, each recorded and replayed once with the same numbers."""
        trial = {task.constant.place: value}
        overrides, of_kernels = self._overrides(task.machine, trial), self._costs(trial)
        keys = [
            (task.constant.family, *sorted(row.items()), *overrides, *of_kernels.items()) for row in task.rows
        ]
        new = [(key, row) for key, row in zip(keys, task.rows, strict=True) if key not in self._known]
        if new:
            system = build_system(load_machine(task.machine, overrides))
            with costs.tried(of_kernels):
                times = predict.predicted(task.constant.family, [row for _, row in new], system)
            for (key, _), ns in zip(new, times, strict=True):
                self._known[key] = ns
                self._advance(self._done + 1)
        return [self._known[key] for key in keys]

    def _overrides(self, machine: str, trial: Mapping[Place, Value | None] | None = None) -> list[str]:
        """What was found so far, and what is tried, as `--set` takes it: what the machine has."""
        values = self._values(trial)
        paths = sorted({path for _, path in values})
        found = [(path, self._files.ruling(machine, path, values)) for path in paths]
        return [f"{path}={value}" for path, value in found if value is not None]

    def _costs(self, trial: Mapping[Place, Value | None]) -> dict[str, Value]:
        """The same, of costs of kernels."""
        values = self._values(trial).items()
        return {path: value for (_, path), value in values if path.startswith(f"{costs.GROUP}.")}

    def _values(self, trial: Mapping[Place, Value | None] | None) -> dict[Place, Value]:
        """What was found so far, and what is tried, by file and path."""
        given = {place: value for place, value in (trial or {}).items() if value is not None}
        return dict(sorted((self.values | given).items()))

    def _advance(self, done: int) -> None:
        self._done = min(done, self._total)
        if self.progress:
            self.progress(self._done, self._total)


def calibrate_rows(folder: Path, constant: Constant) -> tuple[Row, ...]:
    """The newest good row of each of a constant's points; rows that are held out are never parsed."""
    newest: dict[tuple[str, ...], Row] = {}
    for raw in csv_rows.read(folder / f"{constant.family}.csv"):
        if raw["split"] != points.CALIBRATE or raw["error"] or not raw["median_ns"]:
            continue
        row = {name: text if name in WORDS else _number(text) for name, text in raw.items() if text}
        if points.matches(row, [dict(each) for each in constant.filters]):
            newest[tuple(raw[axis] for axis in constant.axes)] = row
    return tuple(newest.values())


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def device_of(folder: Path) -> str:
    """The GPU as sources of machine files name it, of the newest run that does; else the folder's name."""
    path = folder / "run.json"
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    named = [facts["device"] for facts in runs.values() if facts.get("device")]
    return str(named[-1] if named else folder.name).removeprefix("NVIDIA ")
