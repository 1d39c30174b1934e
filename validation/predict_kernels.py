"""`kda`, `gdn`, `mla.*`, `dsa.*`, `stage.gather`: one production kernel, recorded as in whole stacks.

What each kernel does, and what its trace leaves out, say `workloads.kda`, `gdn`, `mla`, `dsa_index`,
`dsa_topk`, `dsa_attend`, `stage` and `combine`. A measured call is the kernel with its combine pass (MLA), or
with a memset before it (top-k, not the older one). Queries, gates and outputs are the same in all calls of a
graph, hence found in the L2. Left out: page tables and the shuffled order of pages; that an `mla.sparse` list
may name a row twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_recorded import PLENTY_BYTES, Recorded, Turn, in_a_row, mean_of, record, rotating
from validation.predict_script import Bench, Job, Lengths, count
from workloads import dsa, dsa_attend, indexer, mla, stage
from workloads.formats import latent_fp8, plain
from workloads.grid import Shape
from workloads.indexer import IndexerRegions
from workloads.kinds import kernels_of
from workloads.record import Recorder
from workloads.run import Run
from workloads.shapes import DIM, DsaShape, GdnShape, KdaShape, MlaShape
from workloads.splits import AS_PRODUCTION, PER_ROW, Cut

GDN_KEY_HEADS = 16  # at most
HEADS, INDEX_HEADS, TOP_K = 128, 64, 2048  # of parts that a call does not use
MEMSET = Shape(tile_rows=1, tile_bytes=4096, tiles_in_flight=1, tile_rule="a memset of a workspace")
PASSES = {"peaked": AS_PRODUCTION.passes, "normal": AS_PRODUCTION.passes, "flat": AS_PRODUCTION.passes + 1}
STATE_BYTES = DIM * DIM * 4
MOST_BYTES = 2 * PLENTY_BYTES  # of states: larger calls are replayed with fewer sequences
CALLS = 3  # with lists of their own; the first is not counted


def recurrence(row: Row, system: System) -> Job:
    """KDA without the convolution before it."""
    return _recurrence("kda", KdaShape(count(row, "heads")), row, system)


def gated_delta(row: Row, system: System) -> Job:
    """GDN without the convolution before it; `heads` are value heads."""
    heads = count(row, "heads")
    return _recurrence("gdn", GdnShape(min(GDN_KEY_HEADS, heads), heads), row, system)


def _recurrence(kind: str, shape: KdaShape | GdnShape, row: Row, system: System) -> Job:
    def job(sequences: int) -> Job:
        call = layer(kind, shape, [1] * sequences, system, without=(f"{kind}-conv",))
        return rotating(call, [".state"], count(row, "buffers"))

    return by_sequences(row, job)


def by_sequences(row: Row, job: Callable[[int], Job]) -> Job:
    """Recurrences of `batch` sequences, by the `job` of so many; of many, from two with fewer sequences."""
    most = max(2, MOST_BYTES // (count(row, "heads") * STATE_BYTES))
    lengths = Lengths.of(count(row, "batch"), 1, most)
    jobs = [job(sequences) for sequences in lengths.calls]

    def time_ns(bench: Bench) -> float:
        return lengths.value([each.time_ns(bench) for each in jobs])

    ways = zip(*((each.bytes_read, each.bytes_written) for each in jobs), strict=True)
    read, written = (round(lengths.value(way)) for way in ways)
    return Job(read, written, time_ns)


def layer(
    kind: str,
    shape: object,
    lengths: Sequence[int],
    system: System,
    without: Collection[str] = (),
    *,
    among_others: bool = False,
) -> Recorded:
    """One layer of a kind, alone, as it is recorded in a whole stack (or step: `among_others`)."""
    kernels, told = kernels_of(kind), Run(len(lengths), max(lengths), system.initiators[0].units)

    def run(recorder: Recorder) -> None:
        recorder.among_others = among_others
        regions = kernels.declare(recorder, 0, shape, told)
        kernels.step(recorder, 0, shape, regions, lengths, told)

    return record(run, without)


def dense(row: Row, system: System) -> Job:
    """MLA over all rows."""
    lengths = [count(row, "context")] * count(row, "batch")
    call = layer("mla", MlaShape(count(row, "heads")), lengths, system)
    return rotating(call, [".kv"], count(row, "buffers"))


def sparse(row: Row, system: System) -> Job:
    """Attention over k rows of a pool of `span` that all sequences draw from, anew for each call."""
    batch, k, span = count(row, "batch"), count(row, "k"), count(row, "span")
    shape, units = MlaShape(count(row, "heads")), system.initiators[0].units
    random, format_ = np.random.default_rng(1), latent_fp8(shape.rope)

    def run(recorder: Recorder) -> None:
        regions = mla.regions_of(recorder, 0, shape, Run(batch, span // batch, units), format_)
        indices = recorder.region("layer0.indices", "activation", 0, batch * k, 4, "int32")
        own = regions.kv.region.rows // batch  # rows of the pool are counted from a sequence's own
        drawn = [random.integers(span, size=k) - own * sequence for sequence in range(batch)]
        rows = dsa_attend.Rows(regions.kv, regions.rows, indices, None, drawn, batch)
        dsa_attend.step(recorder, 0, shape, regions, rows, [k] * batch, units)

    return _with_lists([record(run) for _ in range(CALLS)])


def scores(row: Row, system: System) -> Job:
    """Index scores of all rows."""
    batch, context, units = count(row, "batch"), count(row, "context"), system.initiators[0].units
    shape = DsaShape(MlaShape(HEADS), count(row, "heads"), TOP_K)

    def run(recorder: Recorder) -> None:
        own = _indexer(recorder, shape, Run(batch, context, units))
        indexer.scan(recorder, 0, own, [context] * batch, units)

    return rotating(record(run), [".index"], count(row, "buffers"))


def _indexer(recorder: Recorder, shape: DsaShape, run: Run) -> IndexerRegions:
    """Regions of a layer's indexer, among all that the layer has."""
    own = dsa.declare(recorder, 0, shape, run).indexer
    assert own is not None
    return own


def top_k(row: Row, system: System) -> Job:
    """The k largest of each row of scores: flat ones take one pass more than those with a peak."""
    return _top_k(row, system, AS_PRODUCTION)


def top_k_per_row(row: Row, system: System) -> Job:
    """The same by vLLM's older kernel."""
    return _top_k(row, system, PER_ROW)


def _top_k(row: Row, system: System, cut: Cut) -> Job:
    batch, length = count(row, "batch"), count(row, "length")
    shape, units = DsaShape(MlaShape(HEADS), INDEX_HEADS, count(row, "k")), system.initiators[0].units
    cut = replace(cut, passes=PASSES[str(row["scores"])])

    def run(recorder: Recorder) -> None:
        own = _indexer(recorder, shape, Run(batch, length, units, cut=cut))
        if not cut.blocks:
            with recorder.kernel("memset", "memset", 0, 1, MEMSET):
                pass
        indexer.select(recorder, 0, own, [dsa.choice_of(shape, length)] * batch, units, None, cut)

    return rotating(record(run), [".scores"], count(row, "buffers"))


def staging(row: Row, system: System) -> Job:
    """Rows of host memory into a dense buffer, other ones in each call. The lists of all calls were written a
    moment ago, 6.5 MB: few rows leave them in the L2, so they are walked twice and counted then.
    """
    row_bytes, rows, span = count(row, "row"), count(row, "rows"), count(row, "span")
    random = np.random.default_rng(1)

    def run(recorder: Recorder) -> None:
        kv = recorder.region("kv", "kv", 0, span // row_bytes, row_bytes, "bytes")
        indices = recorder.region(".indices", "activation", 0, rows, 4, "int32")
        staged = recorder.region("staged", "activation", 0, rows, row_bytes, "bytes")
        listed = [random.integers(span // row_bytes, size=rows)]
        drawn = dsa_attend.Rows(kv, plain(row_bytes, "fp8"), indices, None, listed, 1)
        stage.step(recorder, 0, drawn, staged, [rows])

    return _with_lists([record(run) for _ in range(CALLS)], {"kv": "host"}, times=2)


def _with_lists(calls: list[Recorded], tiers: dict[str, str] | None = None, times: int = 1) -> Job:
    """Calls each with an index list of its own, all on the same rows, `times` over; the first is not counted,
    nor is what comes before the last time.
    """
    turns = [Turn(call, {".indices": number}) for number, call in enumerate(calls)]
    return mean_of(*in_a_row(turns * times, tiers), len(calls) - 1, calls[-1].moved())


RECIPES = {
    "kda": recurrence,
    "gdn": gated_delta,
    "mla.dense": dense,
    "mla.sparse": sparse,
    "dsa.logits": scores,
    "dsa.topk": top_k,
    "dsa.topk_per_row": top_k_per_row,
    "stage.gather": staging,
}
