"""One attention kernel alone, recorded by the code that records the stacks.

A kernel's name and its options enter (`kernel_options` completes them), a trace file leaves. Kernels run on
torch's meta device, so any size will do. A call is one launch with all that belongs to it: the convolution
before the recurrence of KDA and GDN, the combine pass after MLA and sparse attention, both passes of a long
top-k.
Calls go round the buffers, each with regions of its own (a layer each); regions that the kernel does not
touch are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memsim.trace_write import TraceWriter
from workloads import combine, costs, dsa, dsa_attend, dsa_index, dsa_topk, gdn, indexer, kda, mla, splits
from workloads.delta_rule import DeltaRegions
from workloads.facts import Fact
from workloads.job import META_SELECTION
from workloads.record import ListSink, Recorder
from workloads.run import Run
from workloads.selection import make_selection
from workloads.shapes import DsaShape, GdnShape, KdaShape, MlaShape
from workloads.step_facts import STEP_FACTS

INDEX_HEADS, HEADS, TOP_K = 64, 128, 2048  # of parts of a DSA layer that the kernel at hand does not use
FIRST_LAYER = 2  # whose selection the first buffer takes: those of layers 0 and 1 are not typical


@dataclass(frozen=True)
class Job:
    """All options of a kernel; those that it does not take keep these values."""

    units: int
    seed: int
    context: int = 1
    batch: int = 1
    heads: int = HEADS
    key_heads: int = 1
    topk: int = TOP_K
    kv_dtype: str = ""
    selection: str = META_SELECTION
    buffers: int = 1
    calls_per_launch: int = 1

    @property
    def lengths(self) -> list[int]:
        """Rows of each sequence."""
        return [self.context] * self.batch

    @property
    def run(self) -> Run:
        """What every layer is told."""
        return Run(self.batch, self.context, self.units)


@dataclass(frozen=True)
class Single:
    """A kernel: `declare` gives the regions of a layer, `launch` runs it on them.

    far    end of the names of the regions that `--tier` places
    facts  numbers that its trace rests on
    """

    declare: Callable[[Recorder, int, Job], Any]
    launch: Callable[[Recorder, int, Job, Any], None]
    far: str
    facts: tuple[Fact, ...]


def write(name: str, options: Mapping[str, Any], units: int, seed: int, out: str | Path) -> list[str]:
    """Write the trace of an attention kernel to `out`; returns the regions that `--tier` places.

    options  as `kernel_options.complete` gives them;  units  processors that it splits its work over

    UsageError for an unknown selection, OutputError where `out` cannot be written.
    """
    job, single = Job(units=units, seed=seed, **options), KERNELS[name]
    sink = ListSink()
    recorder = Recorder(sink, "meta")
    regions = [single.declare(recorder, layer, job) for layer in range(job.buffers)]
    for call in range(job.calls_per_launch):
        layer = call % job.buffers
        single.launch(recorder, layer, job, regions[layer])
    meta = {**_metadata(name, job, single), "options": dict(options)}
    meta["inputs"] += costs.inputs(recorder.families, recorder.beyond)
    return _written(sink, meta, single.far, out)


def _declare_kda(recorder: Recorder, layer: int, job: Job) -> DeltaRegions:
    return kda.declare(recorder, layer, KdaShape(job.heads), job.run)


def _launch_kda(recorder: Recorder, layer: int, job: Job, regions: DeltaRegions) -> None:
    kda.step(recorder, layer, KdaShape(job.heads), regions, job.lengths, job.run)


def _declare_gdn(recorder: Recorder, layer: int, job: Job) -> DeltaRegions:
    return gdn.declare(recorder, layer, GdnShape(job.key_heads, job.heads), job.run)


def _launch_gdn(recorder: Recorder, layer: int, job: Job, regions: DeltaRegions) -> None:
    gdn.step(recorder, layer, GdnShape(job.key_heads, job.heads), regions, job.lengths, job.run)


def _declare_mla(recorder: Recorder, layer: int, job: Job) -> mla.MlaRegions:
    return mla.declare(recorder, layer, MlaShape(job.heads), job.run)


def _launch_mla(recorder: Recorder, layer: int, job: Job, regions: mla.MlaRegions) -> None:
    mla.step(recorder, layer, MlaShape(job.heads), regions, job.lengths, job.run)


def _declare_index(recorder: Recorder, layer: int, job: Job) -> dsa.DsaRegions:
    shape = DsaShape(MlaShape(HEADS), index_heads=job.heads, top_k=TOP_K)
    return dsa.declare(recorder, layer, shape, job.run)


def _launch_index(recorder: Recorder, layer: int, job: Job, r: dsa.DsaRegions) -> None:
    assert r.indexer is not None
    own, kept = r.indexer, r.indexer.kept
    dsa_index.step(
        recorder,
        layer,
        own.index_q,
        own.index_weights,
        own.index,
        own.scores,
        job.lengths,
        job.units,
        (kept.queries, kept.keys),
    )


def _declare_selecting(recorder: Recorder, layer: int, job: Job) -> dsa.DsaRegions:
    shape = DsaShape(MlaShape(job.heads), index_heads=INDEX_HEADS, top_k=job.topk)
    return dsa.declare(recorder, layer, shape, job.run)


def _launch_topk(recorder: Recorder, layer: int, job: Job, r: dsa.DsaRegions) -> None:
    assert r.indexer is not None
    own, shape = r.indexer, DsaShape(MlaShape(job.heads), index_heads=INDEX_HEADS, top_k=job.topk)
    choices = [dsa.choice_of(shape, tokens) for tokens in job.lengths]
    indexer.select(recorder, layer, own, choices, job.units)


def _launch_attend(recorder: Recorder, layer: int, job: Job, r: dsa.DsaRegions) -> None:
    """Calls on the same buffer select the same rows."""
    drawn = make_selection(job.selection, job.topk, job.seed)
    selected = [
        drawn.rows(FIRST_LAYER + layer, sequence, 0, rows) for sequence, rows in enumerate(job.lengths)
    ]
    rows = dsa_attend.Rows(r.attention.kv, r.attention.rows, r.indices, None, selected, job.batch)
    counts = [min(job.topk, length) for length in job.lengths]
    dsa_attend.step(recorder, layer, MlaShape(job.heads), r.attention, rows, counts, job.units)


KERNELS = {
    "kda": Single(_declare_kda, _launch_kda, ".state", kda.FACTS),
    "gdn": Single(_declare_gdn, _launch_gdn, ".state", gdn.FACTS),
    "mla": Single(_declare_mla, _launch_mla, ".kv", mla.FACTS),
    "dsa-index": Single(_declare_index, _launch_index, ".index", dsa_index.FACTS + splits.FACTS[3:]),
    "dsa-topk": Single(_declare_selecting, _launch_topk, ".scores", dsa_topk.FACTS),
    "dsa-attend": Single(
        _declare_selecting, _launch_attend, ".kv", dsa_attend.FACTS + combine.FACTS + splits.FACTS[:3]
    ),
}


def _written(sink: ListSink, meta: dict[str, Any], far: str, out: str | Path) -> list[str]:
    """Write what was recorded, without the regions that no kernel touches."""
    touched = {access.region for access in sink.accesses} | {k.partial_region for k in sink.kernels}
    kept = [region for region in sink.regions if region.id in touched]
    number = {region.id: at for at, region in enumerate(kept)} | {-1: -1}
    accesses = iter(sink.accesses)
    access = next(accesses, None)
    with TraceWriter(out, meta) as trace:
        for region in kept:
            trace.region(replace(region, id=number[region.id]))
        for kernel in sink.kernels:
            trace.kernel(replace(kernel, partial_region=number[kernel.partial_region]))
            while access is not None and access.kernel == kernel.id:
                trace.access(replace(access, region=number[access.region]))
                access = next(accesses, None)
    return [region.name for region in kept if region.name.endswith(far)]


def _metadata(name: str, job: Job, single: Single) -> dict[str, Any]:
    facts = [Fact("kernel.units", f"{job.units} units", "stated", "those of the machine that it runs on")]
    if name == "dsa-attend":
        about = make_selection(job.selection, job.topk, job.seed).describe()
        words = (str(about[key]) for key in ("name", "provenance", "source"))
        facts.append(Fact("kernel.selection", *words))
    return {
        "model": name,
        "part": "kernel",
        "context_tokens": job.context,
        "batch": job.batch,
        "steps": 1,
        "tokens_per_step": 1,
        "seed": job.seed,
        "device": "meta",
        "inputs": [fact._asdict() for fact in dict.fromkeys((*STEP_FACTS, *facts, *single.facts))],
    }
