"""`gemv.*`: one product of few tokens, recorded as in whole steps: `workloads.linear`, `workloads.experts`.

A measured call is the kernel with what its library launches beside it: the sum of splits, a memset before
products of many tiles. Weights are others in each call, activations the same, hence found in the L2. Of
experts the choices are others in each call: of some draws those whose number of different experts is
nearest to that of the measured calls.
"""

from __future__ import annotations

import numpy as np

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_kernels import MEMSET
from validation.predict_recorded import Recorded, Turn, in_a_row, mean_of, record, rotating
from validation.predict_script import Job, count
from workloads import experts, linear
from workloads.activations import Rows, declare
from workloads.kit import Shared
from workloads.linear import Linear
from workloads.models.matrices import SCALED, Matrix
from workloads.record import Int64s, Recorder, RegionHandle
from workloads.routing import Routing

EXPERTS, ACTIVE = 256, 8
EXPERT_SHAPES = {"kimi": (2304, 1024, "bf16"), "deepseek": (7168, 2048, "fp8")}
CALLS, DRAWS = 3, 32  # with choices of their own; the first is not counted
WEIGHTS = "w-x"


def plain(row: Row, system: System) -> Job:
    """bf16 weights."""
    return rotating(_product(row, system, coded=False), [WEIGHTS], count(row, "buffers"))


def coded(row: Row, system: System) -> Job:
    """fp8 weights in blocks; activations come in fp8."""
    return rotating(_product(row, system, coded=True), [WEIGHTS, f"{WEIGHTS}-scale"], count(row, "buffers"))


def _product(row: Row, system: System, *, coded: bool) -> Recorded:
    n, k, tokens = count(row, "n"), count(row, "k"), count(row, "tokens")
    units = system.initiators[0].units

    def run(recorder: Recorder) -> None:
        matrix = Matrix("x", n, k, coded=coded)
        made = linear.declare(recorder, 0, matrix, "fp8" if coded else "bf16", units, tokens)
        shared = Shared(recorder, tokens)
        shared.need(made)
        x = Rows(_coded(recorder, tokens, k), k // SCALED) if coded else declare(recorder, "in", tokens, k)
        out = declare(recorder, "out", tokens, n)
        shared.coded_rows = 0
        shared.close()
        if linear.has_memset(made):
            with recorder.kernel("memset", "memset", 0, 1, MEMSET):
                pass
        linear.product(recorder, 0, made, x, [out], tokens, shared.partial)

    return record(run)


def _coded(recorder: Recorder, rows: int, k: int) -> RegionHandle:
    """Inputs in fp8, as the pass before a product leaves them."""
    return recorder.region("coded", "activation", -1, rows * k // SCALED, linear.CODED_ROW, "bytes")


def grouped(row: Row, system: System) -> Job:
    """All chosen experts, `part` up or down."""
    hidden, inner, dtype = EXPERT_SHAPES[str(row["model"])]
    tokens, up = count(row, "tokens"), row["part"] == "up"
    n, k = (2 * inner, hidden) if up else (hidden, inner)
    routing, units = Routing(EXPERTS, ACTIVE, seed=1), system.initiators[0].units

    wanted = count(row, "experts_milli") / 1000
    drawn = [routing.chosen(0, number, tokens) for number in range(DRAWS)]
    drawn = sorted(drawn, key=lambda ids: abs(len(np.unique(ids)) - wanted))[CALLS - 1 :: -1]

    def call(number: int) -> Recorded:
        def run(recorder: Recorder) -> None:
            matrix = Matrix("x", n, k, EXPERTS, coded=True)
            made = linear.declare(recorder, 0, matrix, dtype, units, tokens)
            _experts(recorder, made, drawn[number], up)

        return record(run)

    calls = [call(number) for number in range(CALLS)]
    turns = [Turn(made, {}) for made in calls]
    return mean_of(*in_a_row(turns), len(calls) - 1, calls[-1].moved())


def _experts(recorder: Recorder, made: Linear, ids: Int64s, up: bool) -> None:
    tokens, pairs, k = len(ids), ids.size, made.matrix.k
    rows = tokens if up else pairs
    x = declare(recorder, "in", rows, k)
    if made.scales is not None:
        x = Rows(_coded(recorder, rows, k), k // SCALED)
    shared = Shared(recorder, tokens)
    lookup = shared.cells("lookup", ACTIVE, "int32")
    scales = None if up else shared.cells("scales", ACTIVE, "fp32")
    out = declare(recorder, "out", pairs, made.matrix.n)
    chosen = experts.chosen_of(ids, EXPERTS)
    aligned = experts.needs_align(tokens, ACTIVE, EXPERTS)
    experts.grouped(
        recorder, 0, made, x, lookup, out.handle, chosen, first=up, aligned=aligned, weights=scales
    )


RECIPES = {"gemv.bf16": plain, "gemv.fp8": coded, "gemv.experts": grouped}
