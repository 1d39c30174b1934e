"""`stack.*`: the attention of all layers of a decode step, one after another in one graph.

Layers take turns on `own_layers` caches, as many as fitted the GPU; a step follows the one before. A layer of
sparse attention has three small launches beside the kernels of `workloads`: filling the list with -1, a
memset before the top-k, and the translation of rows to slots. What it attends to is drawn uniformly, as if by
random scores. In `v32_staged` the rows lie in host memory. Left out: as in `predict_kernels`.
"""

from __future__ import annotations

from functools import partial

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_kernels import MEMSET
from validation.predict_recorded import INSIDE, PLENTY_BYTES, Recorded, Turn, in_a_row, record
from validation.predict_script import Bench, Job, count
from workloads import dsa, dsa_attend, dsa_index, dsa_topk, kda, mla, stage
from workloads.grid import Shape, one
from workloads.models import get_model
from workloads.record import Recorder
from workloads.selection import Selection, make_selection

SELECTIONS = 3  # drawn; layers take turns on them
GLUE = Shape(
    tile_rows=1024, tile_bytes=4096, tiles_in_flight=4, blocks_per_unit=8, tile_rule="small launches"
)


def stack(model: str, row: Row, system: System, staged: bool = False) -> Job:
    """One decode step after another one."""
    layers = get_model(model).layers
    calls = _layers(model, row, system.initiators[0].units, staged)
    own = {".state": len(layers), ".index": count(row, "own_layers"), ".kv": count(row, "own_layers")}
    if staged:
        own[".kv"] = count(row, "own_row_layers")
    step = [
        Turn(
            call, {end: layers[:at].count(layers[at]) % _copies(call, end, most) for end, most in own.items()}
        )
        for at, call in enumerate(calls)
    ]
    script, last = in_a_row(step * 2, {".kv": "host"} if staged else None)
    read, written = _moved(calls)

    def time_ns(bench: Bench) -> float:
        return bench.run(script).between_ns(last[len(layers) - 1], last[-1])

    return Job(read, written, time_ns)


def _copies(call: Recorded, end: str, own: int) -> int:
    """Caches that the layers take turns on: their own ones, or as many as no cache of the chip holds."""
    return min(own, 1 + -(-PLENTY_BYTES // max(1, call.largest(end))))


def _moved(calls: list[Recorded]) -> tuple[int, int]:
    """Bytes as the measurement counts them: none of lists, and of staged rows only those written."""
    distinct = {id(call): call for call in calls}
    known = {key: call.moved((*INSIDE, ".indices")) for key, call in distinct.items()}
    read, written = (sum(known[id(call)][way] for call in calls) for way in (0, 1))
    return read - sum(call.largest(".staged") for call in calls), written


def _layers(model: str, row: Row, units: int, staged: bool) -> list[Recorded]:
    """The call of each layer; layers that do the same share one."""
    found, lengths = get_model(model), [count(row, "context")] * count(row, "batch")
    if found.dsa is not None:
        drawn = make_selection("uniform", found.dsa.top_k, 0)
        calls = [
            record(partial(_sparse, model, lengths, units, staged, layer, drawn))
            for layer in range(SELECTIONS)
        ]
        return [calls[layer % SELECTIONS] for layer in range(len(found.layers))]
    by_kind = {
        kind: record(partial(_layer, model, kind, lengths, units), ("kda-conv",))
        for kind in found.layer_counts
    }
    return [by_kind[kind] for kind in found.layers]


def _layer(model: str, kind: str, lengths: list[int], units: int, recorder: Recorder) -> None:
    """A recurrent layer without its convolution, or one of dense attention."""
    shapes, batch = get_model(model), len(lengths)
    if kind == "kda":
        assert shapes.kda is not None
        kda.step(recorder, 0, shapes.kda, kda.declare(recorder, 0, shapes.kda, batch), batch)
    else:
        assert shapes.mla is not None
        regions = mla.declare(recorder, 0, shapes.mla, batch, lengths[0], units)
        mla.step(recorder, 0, shapes.mla, regions, lengths, units)


def _sparse(
    model: str, lengths: list[int], units: int, staged: bool, layer: int, drawn: Selection, recorder: Recorder
) -> None:
    """A layer of sparse attention, its small launches with it."""
    shape, batch = get_model(model).dsa, len(lengths)
    assert shape is not None
    r = dsa.declare(recorder, 0, shape, batch, lengths[0], units, staged=staged)
    selected = [drawn.rows(layer, sequence, 0, rows) for sequence, rows in enumerate(lengths)]
    k, indices = shape.top_k, r.indices
    with recorder.kernel("fill", "glue", 0, 1, GLUE):
        indices.store(0, indices.load(0, 1, one(0)), one(0))
    dsa_index.step(recorder, 0, r.index_q, r.index_weights, r.index, r.scores, lengths, units)
    with recorder.kernel("memset", "glue", 0, 1, MEMSET):
        pass
    dsa_topk.step(recorder, 0, r.scores, r.candidates, indices, lengths)
    with recorder.kernel("slots", "glue", 0, batch, GLUE):
        for sequence in range(batch):
            indices.store(sequence * k, indices.load(sequence * k, k, one(sequence)), one(sequence))
    source = dsa_attend.Rows(r.attention.kv, indices, None, selected, batch)
    if r.staged is not None:
        stage.step(recorder, 0, source, r.staged, [k] * batch)
    rows = dsa_attend.Rows(r.attention.kv, indices, r.staged, selected, batch)
    dsa_attend.step(recorder, 0, shape.attention, r.attention, rows, [k] * batch, units)


RECIPES = {
    "stack.kimi": partial(stack, "kimi-linear"),
    "stack.kimi_mla": partial(stack, "kimi-linear-all-mla"),
    "stack.v3": partial(stack, "deepseek-v3"),
    "stack.v32": partial(stack, "deepseek-v3.2"),
    "stack.v32_staged": partial(stack, "deepseek-v3.2", staged=True),
}
