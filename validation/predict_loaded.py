"""`loaded.latency`: a chase on one multiprocessor beside others that stream (`measure/cuda/loaded.cu`).

What is replayed is what `memsim machines curve --measured` replays (`workloads.beside`): one experiment, one
recipe. A row's bytes are what the streams moved meanwhile, a result too.
"""

from __future__ import annotations

from memsim import curve
from memsim.system import System
from validation.figures_rows import Row
from validation.predict_script import PS, Job

HBM = 0  # the tier


def loaded(row: Row, system: System) -> Job:
    """Nanoseconds of one dependent load."""
    load = curve.measured_load(row)
    return Job(0, 0, lambda bench: curve.replayed(bench.system, HBM, load).latency_ps / PS)


RECIPES = {"loaded.latency": loaded}
