"""What memsim says of a measured point: from a family to its recipe, from a folder to its machine.

Enters: the rows of a family (`figures_rows`). Leaves: for each the prediction of its `median_ns`. A recipe
makes the trace that does what the measured kernel did; its module says what that is, and what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from memsim.profile import load_machine
from memsim.route import build_system
from memsim.system import System
from validation import (
    predict_beside,
    predict_chase,
    predict_far,
    predict_gather,
    predict_launch,
    predict_loaded,
    predict_stream,
)
from validation.figures_rows import FamilyRows, Row, read_machine
from validation.predict_script import Bench, Grid, Move, Recipe, Script
from workloads.grid import one

if TYPE_CHECKING:
    from memsim.progress import Progress

SHARE = 10  # points that a process takes at a time
LEAST_SHARED = 40  # with fewer points, processes take longer to start than they save

# The machine that stands for a folder of measurements; that of a family, or of all that begin with a word.
MACHINES = {
    "nvidia-h200": {
        "": "h200",
        "host": "h200-host",
        "stage": "h200-host",
        "stack.v32_staged": "h200-host",
        "peer": "h200-peer",
        "public.all_reduce": "8xh200",
    }
}
PLAIN: dict[str, Recipe] = {
    **predict_stream.RECIPES,
    **predict_gather.RECIPES,
    **predict_chase.RECIPES,
    **predict_loaded.RECIPES,
    **predict_launch.RECIPES,
    **predict_far.RECIPES,
    **predict_beside.RECIPES,
}
BY_TORCH = (
    "kda",
    "gdn",
    "mla",
    "dsa",
    "stage",
    "stack",
    "public",
    "gemv",
    "step",
    "glue",
    "inner",
)  # first words of families that torch records


def has_torch() -> bool:
    return find_spec("torch") is not None


def recipes() -> dict[str, Recipe]:
    """All recipes that work here: those of `BY_TORCH` where torch is installed."""
    if not has_torch():
        return PLAIN
    from validation import (
        predict_glue,
        predict_kernels,
        predict_linear,
        predict_public,
        predict_stacks,
        predict_step,
    )

    by_torch = (
        *(predict_kernels, predict_linear, predict_glue),
        *(predict_stacks, predict_step, predict_public),
    )
    return PLAIN | {name: recipe for module in by_torch for name, recipe in module.RECIPES.items()}


def families_of(folder: Path) -> list[FamilyRows]:
    """Families of a folder, and the public tables of the same part where torch is installed."""
    measured = read_machine(folder)
    if not has_torch():
        return measured
    from validation import predict_public

    return measured + (predict_public.families() if folder.name == predict_public.FOLDER else [])


def machine_of(folder: Path, family: str = "") -> str:
    """Name of the machine file for a family measured in a folder; "" if there is none."""
    machines = MACHINES.get(folder.name, {})
    names = (family, family.partition(".")[0], "")
    return next((machines[name] for name in names if name in machines), "")


def predictions(family: str, rows: Iterable[Row], machine: str) -> list[float]:
    """Nanoseconds that each row's `median_ns` should be, on a machine by its name."""
    return predicted(family, rows, system_of(machine))


def predicted(family: str, rows: Iterable[Row], system: System) -> list[float]:
    """The same on a machine that is loaded."""
    recipe = recipes()[family]
    with Bench(system) as bench:
        return [recipe(row, system).time_ns(bench) for row in rows]


Task = tuple[str, list[Row], str]  # family, rows, machine


def in_parallel(tasks: Sequence[Task], workers: int, progress: Progress | None = None) -> list[list[float]]:
    """`predictions` of each task, by so many processes; progress(points done, points) is called."""
    points = sum(len(rows) for _, rows, _ in tasks)
    if workers < 2 or points < LEAST_SHARED:
        return _in_turn(tasks, points, progress)
    shares = [(task, part) for task in range(len(tasks)) for part in range(-(-len(tasks[task][1]) // SHARE))]
    found: list[list[float]] = [[0.0] * len(rows) for _, rows, _ in tasks]
    compile_engine()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = {}
        for task, part in shares:
            family, rows, machine = tasks[task]
            apart = slice(part, None, -(-len(rows) // SHARE))
            waiting[pool.submit(predictions, family, rows[apart], machine)] = (task, apart)
        done = 0
        try:
            for future in as_completed(waiting):
                task, apart = waiting[future]
                found[task][apart] = future.result()
                done += len(future.result())
                if progress:
                    progress(done, points)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _in_turn(tasks: Sequence[Task], points: int, progress: Progress | None) -> list[list[float]]:
    found: list[list[float]] = []
    for task in tasks:
        found.append(predictions(*task))
        if progress:
            progress(sum(map(len, found)), points)
    return found


def compile_engine() -> None:
    """Compile once, before several processes would."""
    script = Script()
    script.kernel(Grid(1), [Move(script.region(1, 64), one(0), 1)])
    with Bench(system_of("h200")) as bench:
        bench.run(script)


def system_of(machine: str) -> System:
    return build_system(load_machine(machine))
