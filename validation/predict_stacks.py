"""`stack.*`: the attention of all layers of a decode step, one after another in one graph.

Layers take turns on `own_layers` caches, as many as fitted the GPU; a step follows the one before. A layer of
sparse attention has three small launches beside the kernels of `workloads`: filling the list with -1, a
memset before the top-k, and the translation of rows to slots. What it attends to is drawn uniformly, as if by
random scores. In `v32_staged` the rows lie in host memory. Left out: as in `predict_kernels`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_kernels import MEMSET
from validation.predict_kernels import layer as alone
from validation.predict_recorded import INSIDE, PLENTY_BYTES, Recorded, Turn, in_a_row, record
from validation.predict_script import Bench, Job, count
from workloads import dsa, dsa_attend, indexer, stage
from workloads.grid import Shape, one
from workloads.models import get_model
from workloads.record import Recorder
from workloads.run import Run
from workloads.selection import Selection, make_selection
from workloads.shapes import DsaShape

SELECTIONS = 3  # drawn; layers take turns on them
GLUE = Shape(
    tile_rows=1024, tile_bytes=4096, tiles_in_flight=4, blocks_per_unit=8, tile_rule="small launches"
)


def stack(model: str, row: Row, system: System, staged: bool = False) -> Job:
    """One decode step after another one."""
    layers = [layer.kind for layer in get_model(model).layers]
    calls = _layers(model, row, system, staged)
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


def _layers(model: str, row: Row, system: System, staged: bool) -> list[Recorded]:
    """The call of each layer; layers that do the same share one, and recurrent ones have no convolution."""
    layers, lengths = get_model(model).layers, [count(row, "context")] * count(row, "batch")
    run = Run(len(lengths), lengths[0], system.initiators[0].units, staged)
    known: dict[tuple[object, int], Recorded] = {}
    calls = []
    for at, each in enumerate(layers):
        drawn = at % SELECTIONS if isinstance(each.shape, DsaShape) else 0
        if (each.shape, drawn) not in known:
            if isinstance(each.shape, DsaShape):
                selection = make_selection("uniform", each.shape.top_k, 0)
                found = record(partial(_sparse, each.shape, lengths, run, drawn, selection))
            else:
                found = alone(each.kind, each.shape, lengths, system, without=(f"{each.kind}-conv",))
            known[each.shape, drawn] = found
        calls.append(known[each.shape, drawn])
    return calls


def _sparse(
    shape: DsaShape, lengths: list[int], run: Run, layer: int, drawn: Selection, recorder: Recorder
) -> None:
    """A layer of sparse attention, its small launches with it."""
    batch, k = len(lengths), shape.top_k
    r = dsa.declare(recorder, 0, shape, run)
    own, indices = r.indexer, r.indices
    assert own is not None
    selected = [drawn.rows(layer, sequence, 0, rows) for sequence, rows in enumerate(lengths)]
    with recorder.kernel("fill", "glue", 0, 1, GLUE):
        indices.store(0, indices.load(0, 1, one(0)), one(0))
    indexer.scan(recorder, 0, own, lengths, run.units)
    with recorder.kernel("memset", "glue", 0, 1, MEMSET):
        pass
    indexer.select(recorder, 0, own, [dsa.choice_of(shape, rows) for rows in lengths], run.units)
    with recorder.kernel("slots", "glue", 0, batch, GLUE):
        for sequence in range(batch):
            indices.store(sequence * k, indices.load(sequence * k, k, one(sequence)), one(sequence))
    rows = dsa_attend.Rows(r.attention.kv, r.attention.rows, indices, None, selected, batch)
    if r.staged is not None:
        stage.step(recorder, 0, rows, r.staged, [k] * batch)
        rows = replace(rows, staged=r.staged)
    dsa_attend.step(recorder, 0, shape.attention, r.attention, rows, [k] * batch, run.units)


RECIPES = {
    "stack.kimi": partial(stack, "kimi-linear"),
    "stack.kimi_mla": partial(stack, "kimi-linear-all-mla"),
    "stack.v3": partial(stack, "deepseek-v3"),
    "stack.v32": partial(stack, "deepseek-v3.2"),
    "stack.v32_staged": partial(stack, "deepseek-v3.2", staged=True),
}
