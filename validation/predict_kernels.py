"""`kda`, `mla.*`, `dsa.*`, `stage.gather`: one production kernel, by the code that records whole stacks.

What each kernel does, and what its trace leaves out, say `workloads.kda`, `mla`, `dsa_index`, `dsa_topk`,
`dsa_attend`, `stage` and `combine`. A measured call is the kernel with its combine pass (MLA), or with a
memset before it (top-k). Queries, gates and outputs are the same in all calls of a graph, hence found in the
L2. Left out: page tables and the shuffled order of pages; that an `mla.sparse` list may name a row twice.
"""

from __future__ import annotations

import numpy as np

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_recorded import Recorded, Turn, in_a_row, mean_of, record, rotating
from validation.predict_script import Job, count
from workloads import dsa, dsa_attend, dsa_index, dsa_topk, kda, mla, stage
from workloads.grid import Shape
from workloads.record import Recorder
from workloads.shapes import DsaShape, KdaShape, MlaShape

HEADS, INDEX_HEADS, TOP_K = 128, 64, 2048  # of parts that a call does not use
MEMSET = Shape(tile_rows=1, tile_bytes=4096, tiles_in_flight=1, tile_rule="a memset of a workspace")
CALLS = 3  # with lists of their own; the first is not counted


def recurrence(row: Row, system: System) -> Job:
    """KDA without the convolution before it."""
    shape, batch = KdaShape(count(row, "heads")), count(row, "batch")

    def run(recorder: Recorder) -> None:
        kda.step(recorder, 0, shape, kda.declare(recorder, 0, shape, batch), batch)

    return rotating(record(run, without=("kda-conv",)), [".state"], count(row, "buffers"))


def dense(row: Row, system: System) -> Job:
    """MLA over all rows."""
    shape, batch, context = MlaShape(count(row, "heads")), count(row, "batch"), count(row, "context")
    units = system.initiators[0].units

    def run(recorder: Recorder) -> None:
        regions = mla.declare(recorder, 0, shape, batch, context, units)
        mla.step(recorder, 0, shape, regions, [context] * batch, units)

    return rotating(record(run), [".kv"], count(row, "buffers"))


def sparse(row: Row, system: System) -> Job:
    """Attention over k rows of a pool of `span` that all sequences draw from, anew for each call."""
    batch, k, span = count(row, "batch"), count(row, "k"), count(row, "span")
    shape, units = MlaShape(count(row, "heads")), system.initiators[0].units
    random = np.random.default_rng(1)

    def run(recorder: Recorder) -> None:
        regions = mla.declare(recorder, 0, shape, batch, span // batch, units, fp8=True)
        indices = recorder.region("layer0.indices", "activation", 0, batch * k, 4, "int32")
        own = regions.kv.region.rows // batch  # rows of the pool are counted from a sequence's own
        drawn = [random.integers(span, size=k) - own * sequence for sequence in range(batch)]
        rows = dsa_attend.Rows(regions.kv, indices, None, drawn, batch)
        dsa_attend.step(recorder, 0, shape, regions, rows, [k] * batch, units)

    return _with_lists([record(run) for _ in range(CALLS)])


def scores(row: Row, system: System) -> Job:
    """Index scores of all rows."""
    batch, context, units = count(row, "batch"), count(row, "context"), system.initiators[0].units
    shape = DsaShape(MlaShape(HEADS), count(row, "heads"), TOP_K)

    def run(recorder: Recorder) -> None:
        r = dsa.declare(recorder, 0, shape, batch, context, units)
        lengths = [context] * batch
        dsa_index.step(recorder, 0, r.index_q, r.index_weights, r.index, r.scores, lengths, units)

    return rotating(record(run), [".index"], count(row, "buffers"))


def top_k(row: Row, system: System) -> Job:
    """The k largest of each row of scores, whatever these are like."""
    batch, length = count(row, "batch"), count(row, "length")
    shape = DsaShape(MlaShape(HEADS), INDEX_HEADS, count(row, "k"))

    def run(recorder: Recorder) -> None:
        r = dsa.declare(recorder, 0, shape, batch, length, system.initiators[0].units)
        with recorder.kernel("memset", "memset", 0, 1, MEMSET):
            pass
        dsa_topk.step(recorder, 0, r.scores, r.candidates, r.indices, [length] * batch)

    return rotating(record(run), [".scores"], count(row, "buffers"))


def staging(row: Row, system: System) -> Job:
    """Rows of host memory into a dense buffer, other ones in each call."""
    row_bytes, rows, span = count(row, "row"), count(row, "rows"), count(row, "span")
    random = np.random.default_rng(1)

    def run(recorder: Recorder) -> None:
        kv = recorder.region("kv", "kv", 0, span // row_bytes, row_bytes, "bytes")
        indices = recorder.region(".indices", "activation", 0, rows, 4, "int32")
        staged = recorder.region("staged", "activation", 0, rows, row_bytes, "bytes")
        drawn = dsa_attend.Rows(kv, indices, None, [random.integers(span // row_bytes, size=rows)], 1)
        stage.step(recorder, 0, drawn, staged, [rows])

    return _with_lists([record(run) for _ in range(CALLS)], {"kv": "host"})


def _with_lists(calls: list[Recorded], tiers: dict[str, str] | None = None) -> Job:
    """Calls each with an index list of its own, all on the same rows; the first is not counted."""
    turns = [Turn(call, {".indices": number}) for number, call in enumerate(calls)]
    return mean_of(*in_a_row(turns, tiers), len(calls) - 1, calls[-1].moved())


RECIPES = {
    "kda": recurrence,
    "mla.dense": dense,
    "mla.sparse": sparse,
    "dsa.logits": scores,
    "dsa.topk": top_k,
    "dsa.topk_per_row": top_k,
    "stage.gather": staging,
}
