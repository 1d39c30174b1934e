"""`public.*`: tables that others measured on the same part; no constant has seen a row that counts.

public.kda       KDA recurrence of vLLM (packed decode), Kimi K3's 96 heads and shares of them
public.gdn       GDN recurrence of vLLM (packed decode), heads of Qwen3.5's models and shares of them
public.v4_index  paged index logits of DeepSeek V4 (DeepGEMM), a key for 4 tokens, 64 index heads
public.all_reduce  vLLM's own all-reduce between 2, 4 and 8 GPUs, up to the 8 MiB that it is used for

They were timed without a flush (`tables/aiconfigurator-h200/SOURCE.md`): a graph of one call, launched
again and again, on the same buffers: what the cache still holds is warm, each call pays the graph's launch.
What is warm is so in a kernel's start as well: page tables and schedules, which index scans look up before
their first keys, come at the latency of the cache, not the memory's. Of one shape that several models have,
the first row counts; of GDN shapes with the same bytes of states and the same value heads a key head, that
of the fewest sequences: their 197 shapes are 57 grids, equal program for program; of index scans with as
many segments of 256 keys likewise, 27 of 185. The kernels are those of `workloads`; vLLM's packed ones form
the gate themselves, which is left out, and follow no lists of sequences and states as FLA's KDA does: both
cost what FLA's GDN does beside bytes. Fused KDA, with convolution and norm, is another kernel. Sums were
timed in a graph of many; the smallest one of eight GPUs has set the waiting of `workloads/costs.toml`, and
does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memsim.system import System
from validation import public
from validation.figures_rows import FamilyRows, Row, number
from validation.measure.points import HELD_OUT
from validation.predict_kernels import by_sequences, layer
from validation.predict_recorded import Recorded, record, rotating
from validation.predict_script import PS, Job, count
from workloads import collective, costs, indexer
from workloads.formats import INDEX_FORMATS, QUERY_FORMATS
from workloads.record import Recorder
from workloads.run import Run
from workloads.shapes import GdnShape, KdaShape
from workloads.splits import SEGMENT_ROWS

FOLDER = "nvidia-h200"  # of measurements: the same part
INDEX_HEADS, RATIO = 64, 4
ROW_NUMBERS = 128  # of a sum's rows; the smallest sum is one
MOST_SUM_BYTES = 8 << 20  # vLLM's all-reduce is used up to that


def recurrence(row: Row, system: System) -> Job:
    """The step of `heads` value heads on `key_heads`; without these, KDA of as many heads."""
    heads, keys = count(row, "heads"), count(row, "key_heads")
    kind, shape = ("gdn", GdnShape(keys, heads)) if keys else ("kda", KdaShape(heads))

    def job(sequences: int) -> Job:
        with costs.tried({} if keys else {"kernel.kda.efficiency": "1"}):  # that of FLA's program
            call = layer(kind, shape, [1] * sequences, system, without=(f"{kind}-conv",))
        packed = tuple(replace(kernel, **costs.of("gdn")) for kernel in call.kernels)
        return _again(replace(call, kernels=packed), system)

    return by_sequences(row, job)


def index(row: Row, system: System) -> Job:
    """Scores of the keys of `context_tokens` and the new token."""
    batch, entries = count(row, "batch"), _entries(row)
    cold_ps, (cache_ps, memory_ps) = costs.of("dsa-index")["startup_ps"], _latencies_ps(system)
    warm_ps = cold_ps * cache_ps // memory_ps

    def run(recorder: Recorder) -> None:
        queries, keys = QUERY_FORMATS["fp8"], INDEX_FORMATS["fp8"]
        kept = indexer.Kept(queries, keys, INDEX_HEADS, picks=1, most=[entries] * batch, k=1)
        own = indexer.declare(recorder, 0, kept, Run(batch, entries, system.initiators[0].units))
        indexer.scan(recorder, 0, own, [entries] * batch, system.initiators[0].units)

    with costs.tried({"kernel.dsa-index.startup": f"{warm_ps} ps"}):
        return _again(record(run), system)


def _entries(row: Row) -> int:
    """Keys of a sequence, the new token's block included."""
    return (count(row, "context_tokens") + 1) // RATIO


def _latencies_ps(system: System) -> tuple[int, int]:
    """Of a load that the cache has, and of one from the memory behind it."""
    cache_ps = system.cache.latency_ps
    return cache_ps, cache_ps + system.tiers[0].latency_ps[0]


def sums(row: Row, system: System) -> Job:
    """The sum of `elements` bf16 numbers over all `gpus`."""
    rows = count(row, "elements") // ROW_NUMBERS

    def run(recorder: Recorder) -> None:
        mine = recorder.region("x", "activation", -1, rows, ROW_NUMBERS * 2, "bf16")
        peers = collective.declare(recorder, "x", count(row, "gpus") - 1, rows, ROW_NUMBERS * 2, "bf16")
        collective.all_reduce(recorder, -1, peers, mine, 0, rows)

    return rotating(record(run), (), 1)


def _again(call: Recorded, system: System) -> Job:
    """A call on the buffers of the call before it, each a graph of its own."""
    job = rotating(call, (), 1)
    launch_ns = system.initiators[0].graph_launch_ps / PS
    return Job(job.bytes_read, job.bytes_written, lambda bench: job.time_ns(bench) + launch_ns)


def families() -> list[FamilyRows]:
    """The public tables as families, all held out."""
    return [
        _distinct(_family("public.gdn", "gdn-vllm", ("key_heads", "heads", "batch"), _packed), _grid),
        _family("public.kda", "kda-vllm", ("heads", "batch"), _packed),
        _distinct(
            _family("public.v4_index", "index-logits-vllm", ("batch", "context_tokens"), _decoded), _scan
        ),
        _sums(),
    ]


def _sums() -> FamilyRows:
    """Sums that were timed in a graph, up to the largest that it is used for."""
    rows, described = [], public.table("allreduce-vllm")
    for row in public.load("allreduce-vllm").to_pylist():
        gpus, elements = row["gpus"], row["elements"]
        calibrated = (gpus, elements) == (8, ROW_NUMBERS)
        if row["kernel"].endswith("graph") and elements * 2 <= MOST_SUM_BYTES and not calibrated:
            share = 1 if collective.in_one_shot(gpus, 2 * elements) else 2 / gpus
            moved = {"bytes_read": 2.0 * elements * (1 + share * (gpus - 1)), "bytes_written": 2.0 * elements}
            times = {"split": HELD_OUT, "median_ns": row["latency_ps"] / PS}
            rows.append({"gpus": float(gpus), "elements": float(elements), **moved, **times})
    return FamilyRows("public.all_reduce", described.what, ("gpus", "elements"), tuple(rows))


def _distinct(family: FamilyRows, work: Callable[[Row], tuple[float, ...]]) -> FamilyRows:
    """Of the rows whose blocks have the same work, that of the fewest sequences."""
    found: dict[tuple[float, ...], Row] = {}
    for row in sorted(family.rows, key=lambda row: number(row, "batch")):
        found.setdefault(work(row), row)
    return replace(family, rows=tuple(found.values()))


def _grid(row: Row) -> tuple[float, ...]:
    """Recurrences: grids that are equal program for program."""
    heads = number(row, "heads")
    return heads * number(row, "batch"), heads / number(row, "key_heads")


def _scan(row: Row) -> tuple[float, ...]:
    """Index scans: segments of 256 keys, of all sequences."""
    return (number(row, "batch") * -(-_entries(row) // SEGMENT_ROWS),)


def _packed(row: Mapping[str, Any]) -> bool:
    return str(row["kernel"]).endswith("packed_decode") and row["phase"] == "generation"


def _decoded(row: Mapping[str, Any]) -> bool:
    return bool(row["query_tokens"] == 1 and row["context_tokens"] + 1 >= RATIO)


def _family(
    name: str, table: str, axes: tuple[str, ...], wanted: Callable[[Mapping[str, Any]], bool]
) -> FamilyRows:
    """Rows of a table that were timed and that no outlier marks, of each shape the first."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in public.load(table).to_pylist():
        if wanted(row) and row["latency_ps"] and not row["outlier"]:
            times = {"split": HELD_OUT, "median_ns": row["latency_ps"] / PS}
            numbers = {axis: float(row[axis]) for axis in (*axes, "bytes_read", "bytes_written")}
            found.setdefault(tuple(row[axis] for axis in axes), {**numbers, **times})
    return FamilyRows(name, public.table(table).what, axes, tuple(found.values()))


RECIPES = {
    "public.gdn": recurrence,
    "public.kda": recurrence,
    "public.v4_index": index,
    "public.all_reduce": sums,
}
