"""What memsim says of a measured point: from a family to its recipe, from a folder to its machine.

Enters: the rows of a family (`figures_rows`). Leaves: for each the prediction of its `median_ns`. A recipe
makes the trace that does what the measured kernel did; its module says what that is, and what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

# The machine that stands for a folder of measurements; a family's own, by its first word.
MACHINES = {"nvidia-h200": {"": "h200", "host": "h200-host", "stage": "h200-host", "peer": "h200-peer"}}

RECIPES: dict[str, Recipe] = {
    **predict_stream.RECIPES,
    **predict_gather.RECIPES,
    **predict_chase.RECIPES,
    **predict_loaded.RECIPES,
    **predict_launch.RECIPES,
    **predict_far.RECIPES,
    **predict_beside.RECIPES,
}


def machine_of(folder: Path, family: str) -> str:
    """Name of the machine file for a family measured in a folder; "" if there is none."""
    machines = MACHINES.get(folder.name, {})
    return machines.get(family.partition(".")[0], machines.get("", ""))


def predictions(family: str, rows: Iterable[Row], system: System) -> Iterator[float]:
    """Nanoseconds that each row's `median_ns` should be."""
    with Bench(system) as bench:
        for row in rows:
            yield RECIPES[family](row, system).time_ns(bench)


def system_of(machine: str) -> System:
    return build_system(load_machine(machine))
