"""`step.*`: one whole decode step of Kimi Linear, recorded as `memsim trace record --part step` does it.

A step follows the one before in the measured graph: caches, states and weights are its own, and
everything but those is larger than the caches of the chip. The measured step ends with the logits:
sampling is left out, and tokens choose as many experts as they did there (`experts`, of all layers
together).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_recorded import Recorded, Turn, in_a_row, record
from validation.predict_script import Bench, Job, count
from workloads import step as whole_step
from workloads.kinds import kernels_of
from workloads.models import get_model
from workloads.models.model import Model
from workloads.record import Recorder
from workloads.routing import Routing
from workloads.run import Run

DRAWS = 32
SAMPLING = "sample"


def whole(name: str, row: Row, system: System) -> Job:
    """One decode step of a model after another one."""
    batch, context, model = count(row, "batch"), count(row, "context"), get_model(name)
    assert model.weights is not None
    routing = _AsMany.of(model, batch, count(row, "experts") / model.weights.moe_layers)
    call = _recorded(model, [context] * batch, routing, system.initiators[0].units)
    turn = Turn(call, {})
    script, last = in_a_row([turn, turn])

    def time_ns(bench: Bench) -> float:
        return bench.run(script).between_ns(last[0], last[1])

    return Job(*call.moved(), time_ns)


class _AsMany(Routing):
    """Choices whose number of different experts is nearest to what was measured."""

    @classmethod
    def of(cls, model: Model, tokens: int, wanted: float) -> _AsMany:
        """For steps of so many tokens."""
        w = model.weights
        assert w is not None
        plain = Routing(w.experts, w.active)
        drawn = [plain.chosen(0, number, tokens) for number in range(DRAWS)]
        found = min(drawn, key=lambda ids: abs(len(np.unique(ids)) - wanted))
        return cls(w.experts, w.active, recorded={(0, layer): found for layer in range(len(model.layers))})


def _recorded(model: Model, lengths: list[int], routing: Routing, units: int) -> Recorded:
    def run(recorder: Recorder) -> None:
        told = Run(len(lengths), max(lengths), units)
        kinds = [kernels_of(layer.kind) for layer in model.layers]
        regions = [
            kernels.declare(recorder, number, layer.shape, told)
            for number, (kernels, layer) in enumerate(zip(kinds, model.layers, strict=True))
        ]
        assert model.weights is not None
        whole = whole_step.declare(recorder, model, len(lengths), units, model.weights.dtype, routing, 0)
        whole_step.begin(whole, 0)
        for number, (kernels, layer) in enumerate(zip(kinds, model.layers, strict=True)):
            whole_step.before(whole, number, regions[number], lengths)
            kernels.step(recorder, number, layer.shape, regions[number], lengths, told)
            whole_step.after(whole, number, 0, regions[number], lengths)
        whole_step.end(whole)

    return record(run, without=[SAMPLING])


RECIPES = {
    "step.kimi": partial(whole, "kimi-linear"),
    "step.kimi_mla": partial(whole, "kimi-linear-all-mla"),
}
