"""`chase.*`: dependent loads on an idle GPU, each of 8 bytes out of a line of 128 (`measure/cuda/chase.cu`).

One thread loads, in a random order over the lines that lie `stride` bytes apart. Where these are at most
2^20, its block has read each of them once before; else the L2 holds other bytes, as it does when a
replay begins. The clock is read inside the kernel, so no launch counts.

The lines lie side by side here: a cache holds lines, whatever is between them. Left out: the pages that they
lie on, and which multiprocessor it is (they differ by 6 %).
"""

from __future__ import annotations

import numpy as np

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_script import Bench, Grid, Job, Move, Script, bucket_middles_ps, count, percentile_ps
from workloads.grid import one
from workloads.patterns import distinct

LINE_BYTES, LOAD_BYTES = 128, 8
STEPS = 4096
TOUCH_PLACES = 1 << 20
# Two reads of the clock, which `chase.single` counts: its median in the L2 (calibrated on 4 MiB: 154.7 ns),
# whose loads lie evenly about their mean, less the mean of `chase.latency` (1 and 16 MiB: 142.7 ns)
CLOCK_NS = 12.0


def latency(row: Row, system: System) -> Job:
    """Nanoseconds of one load."""
    script, kernel, steps = _chased(row, system)
    return Job(LOAD_BYTES, 0, lambda bench: bench.run(script).inside_ns(kernel) / steps)


def single(row: Row, system: System) -> Job:
    """A percentile of single loads: what the histogram has more than that of the script without the chase.

    Its buckets are an eighth of an octave wide: loads lie evenly in each, and all are moved so that they
    give the mean that is known.
    """
    script, kernel, steps = _chased(row, system)
    before = Script(1, script.regions, script.kernels[:kernel], script.accesses[:kernel])

    def time_ns(bench: Bench) -> float:
        times = bench.run(script)
        loads = times.outcome.latency.sum(axis=0)
        if kernel:
            loads = loads - bench.run(before).outcome.latency.sum(axis=0)
        found_ps = percentile_ps(loads, count(row, "percent"))
        moved = times.inside_ns(kernel) / steps / float(loads @ bucket_middles_ps(len(loads)) / loads.sum())
        return found_ps * moved + CLOCK_NS

    return Job(LOAD_BYTES, 0, time_ns)


def _chased(row: Row, system: System) -> tuple[Script, int, int]:
    """The script, the number of the kernel that chases, and its loads."""
    footprint, stride = count(row, "footprint"), count(row, "stride") or LINE_BYTES
    places = footprint // stride
    script = Script()
    data = script.region(places, LINE_BYTES)
    if places <= TOUCH_PLACES:
        script.kernel(Grid(1, 1, 8192, 4), [Move(data, one(0), places)])
    order = distinct(min(STEPS, places), places, np.random.default_rng(1))
    order = np.resize(order, STEPS)  # round and round a cycle that is shorter
    chase = Grid(1, tile_bytes=LINE_BYTES)
    return script, script.kernel(chase, [Move(data, one(0), STEPS, gather=order)]), STEPS


RECIPES = {"chase.latency": latency, "chase.sm": latency, "chase.single": single}
