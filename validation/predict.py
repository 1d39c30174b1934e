"""What memsim says of a measured point: from a family to its recipe, from a folder to its machine.

Enters: the rows of a family (`figures_rows`). Leaves: for each the prediction of its `median_ns`. A recipe
makes the trace that does what the measured kernel did; its module says what that is, and what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

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
from validation.figures_rows import Row
from validation.predict_script import Bench, Recipe

# The machine that stands for a folder of measurements; that of a family, or of all that begin with a word.
MACHINES = {
    "nvidia-h200": {
        "": "h200",
        "host": "h200-host",
        "stage": "h200-host",
        "stack.v32_staged": "h200-host",
        "peer": "h200-peer",
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
BY_TORCH = ("kda", "mla", "dsa", "stage", "stack")  # first words of families that torch records


def has_torch() -> bool:
    return find_spec("torch") is not None


def recipes() -> dict[str, Recipe]:
    """All recipes that work here: those of `BY_TORCH` where torch is installed."""
    if not has_torch():
        return PLAIN
    from validation import predict_kernels, predict_stacks

    return {**PLAIN, **predict_kernels.RECIPES, **predict_stacks.RECIPES}


def machine_of(folder: Path, family: str = "") -> str:
    """Name of the machine file for a family measured in a folder; "" if there is none."""
    machines = MACHINES.get(folder.name, {})
    names = (family, family.partition(".")[0], "")
    return next((machines[name] for name in names if name in machines), "")


def predictions(family: str, rows: Iterable[Row], system: System) -> Iterator[float]:
    """Nanoseconds that each row's `median_ns` should be."""
    recipe = recipes()[family]
    with Bench(system) as bench:
        for row in rows:
            yield recipe(row, system).time_ns(bench)


def system_of(machine: str) -> System:
    return build_system(load_machine(machine))
