"""Decode steps of a model, recorded as one trace: its attention stack, or all that a step does.

A model's name and the contexts of a batch enter; a trace file leaves: all layers, layer after layer, step
after step. At step s a sequence has s rows more than its context, the row of its own token included. Real
tensors are drawn anew for every layer of every step from the seed and dropped after it, so that one layer's
fit is enough: caches and recurrent states therefore do not go on from step to step, on which nothing in a
trace depends. What a whole step holds says `step`; without it, projections, experts, norms, and the write of
the new row are left out. Of several GPUs one is recorded, the one with most to do (`parallel`), and what it
exchanges with the others (`exchanges`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from memsim.errors import MissingExtra, UsageError
from memsim.trace_write import TraceWriter
from workloads import costs, exchanges
from workloads import step as whole_step
from workloads.exchanges import Exchanges
from workloads.job import Job, job_of
from workloads.kinds import kernels_of
from workloads.models.load import UNCHANGED, Changes
from workloads.parallel import ALONE, Parallel
from workloads.record import ListSink, Recorder
from workloads.run import Run
from workloads.step import Step
from workloads.step_facts import metadata
from workloads.tensors import generator_for

WORKSPACE = 1.5  # memory that a layer needs, in its regions' bytes: kernels unpack what they read


def record_step(
    model: str,
    context_tokens: int = 1,
    *,
    batch: int = 1,
    contexts: Sequence[int] | None = None,
    steps: int = 1,
    device: str = "meta",
    selection: str | None = None,
    stage: str | None = None,
    seed: int = 0,
    units: int = 132,
    changes: Changes = UNCHANGED,
    part: str = "attention",
    routing: str | None = None,
    parallel: Parallel = ALONE,
    draft: int = 1,
    accepted: int | None = None,
    out: str | Path,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write the trace of `steps` decode steps of all layers to `out`; returns its metadata.

    context_tokens  tokens of each of `batch` sequences at the first step, the new one included
    contexts   tokens of each sequence, where they differ, in the place of both
    device     `cpu` or `cuda`: real tensors; `meta`: shapes alone, of any size
    selection  rows of sparse attention: a name of `selection.make_selection`, or `real` scores (the
               default on real tensors; on meta it is `dsa_mid`)
    stage      `kv`: the selected rows are gathered into a buffer before the attention
    units      processors that the kernels split their work over (H200: 132)
    changes    other layers or formats than the model's file says
    part       `attention` of all layers, or the whole `step` (`workloads.step`)
    routing    experts of a whole step: `uniform`, `real` (by the router's scores), a recorded file; None:
               real on real tensors, uniform on meta
    draft      new tokens that a step computes of each sequence: proposed ones, and the one that they follow
    accepted   of them, tokens that a step keeps; None: all
    parallel   GPUs that share the model and the batch; the trace is of the one with most to do
    progress   called with (layers done, layers in all)

    UsageError for a wrong word or number or too little memory, MissingExtra where there is no CUDA
    device, OutputError where `out` cannot be written; the file appears whole or not at all.
    """
    job = job_of(
        model,
        [context_tokens] * batch if contexts is None else contexts,
        steps=steps,
        device=device,
        selection=selection,
        stage=stage,
        seed=seed,
        units=units,
        changes=changes,
        part=part,
        routing=routing,
        parallel=parallel,
        draft=draft,
        accepted=accepted,
    )
    if device != "meta":
        _check_device(job)
    meta = metadata(job)
    with _one_thread(device), TraceWriter(out, meta) as trace:
        recorder = Recorder(trace, device)
        _run(recorder, job, progress or (lambda done, total: None))
        meta["inputs"] += costs.inputs(recorder.families, recorder.beyond)
    return meta


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """On the CPU, compute in one thread: blocks are small, and threads that meet after each wait longer."""
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run(recorder: Recorder, job: Job, progress: Callable[[int, int], None]) -> None:
    layers = len(job.model.layers)
    regions = _declared(recorder, job)
    shared = exchanges.declare(recorder, job.model, job.parallel, job.batch * job.draft, regions)
    whole = _whole(recorder, job, shared)
    last_use = {source: number for number in range(layers) for source in job.model.layers[number].sources}
    for step in range(job.steps):
        recorder.step = step
        if whole is not None:
            whole_step.begin(whole, step)
            shared.after(recorder, whole_step.OUTSIDE, whole_step.begun(whole))
        for layer in range(layers):
            _layer(recorder, job, layer, regions, whole, shared)
            kept = {source for source, number in last_use.items() if source <= layer < number}
            recorder.release(keep={whole_step.OUTSIDE, *kept})
            progress(step * layers + layer + 1, job.steps * layers)
        if whole is not None:
            whole_step.end(whole, shared.gather_logits)


def _whole(recorder: Recorder, job: Job, shared: Exchanges) -> Step | None:
    """Regions of a whole step beside those of attention, filled where they are of no layer."""
    if job.part != "step":
        return None
    assert job.model.weights is not None
    dtype = job.model.weights.dtype
    whole = whole_step.declare(
        recorder, job.model, job.batch, job.units, dtype, job.routing, job.seed, job.draft
    )
    if not recorder.is_meta:
        whole_step.fill_outer(whole, generator_for(recorder.device, job.seed))
    exchanges.with_sums(shared, whole.outer.kit.act["x"], whole_step.logits(whole))
    if whole.routed is not None and job.parallel.dp > 1:
        exchanges.with_tokens(shared, whole.outer.kit.act["x"])
        whole = whole_step.with_groups(whole, job.parallel.dp, shared.bring, shared.back)
    return replace(whole, after_attention=shared.after, after_experts=shared.after)


def _joined(job: Job, number: int, regions: Sequence[Any]) -> Run:
    """What layer `number` is told: the run, and the regions of the layers that it shares with."""
    layer = job.model.layers[number]
    index, kv, blocks = (
        None if source is None else regions[source]
        for source in (layer.index_from, layer.kv_from, layer.blocks_from)
    )
    return replace(job.run, index=index, kv=kv, blocks=blocks)


def _declared(recorder: Recorder, job: Job) -> list[Any]:
    """Regions of all layers."""
    regions: list[Any] = []
    for number, layer in enumerate(job.model.layers):
        run = _joined(job, number, regions)
        regions.append(kernels_of(layer.kind).declare(recorder, number, job.shape(layer.shape), run))
    return regions


def _layer(
    recorder: Recorder,
    job: Job,
    number: int,
    regions: Sequence[Any],
    whole: Step | None,
    shared: Exchanges,
) -> None:
    """Run one layer of the present step."""
    layer, run = job.model.layers[number], _joined(job, number, regions)
    kernels, lengths = kernels_of(layer.kind), job.rows(recorder.step)
    if not recorder.is_meta:
        generator = generator_for(recorder.device, job.seed, recorder.step, number)
        kernels.fill(regions[number], generator)
        if whole is not None:
            whole_step.fill(whole, number, generator)
    selected = None
    if job.selected is not None:
        seen = run.each_token(job.tokens(recorder.step))
        selected = job.selected.rows(number, recorder.step, seen, job.draft)
        run = replace(run, candidates=job.selected.candidates(number))
    if selected is not None and job.parallel.dcp > 1:
        selected = [job.parallel.here(rows) for rows in selected]
        run = replace(run, merge=lambda indexer: shared.merge(number, layer, indexer))
    if whole is not None:
        whole_step.before(whole, number, regions[number], job.each_token(recorder.step))
        run = replace(run, project=whole_step.between(whole, number, regions[number]))
    shared.before_attention(number, layer, regions[number])
    kernels.step(recorder, number, job.shape(layer.shape), regions[number], lengths, run, selected)
    shared.after_attention(number, layer, regions[number])
    if whole is not None:
        whole_step.after(whole, number, recorder.step, regions[number], job.each_token(recorder.step))


def _check_device(job: Job) -> None:
    """MissingExtra without the device, UsageError if a layer's tensors are larger than its free memory."""
    if job.device == "cuda" and not torch.cuda.is_available():
        raise MissingExtra("--device cuda: torch finds no CUDA device; use --device cpu or --device meta")
    needed = int(largest_layer_bytes(job) * WORKSPACE)
    free = torch.cuda.mem_get_info()[0] if job.device == "cuda" else _free_bytes()
    if needed > free:
        raise UsageError(
            f"--device {job.device}: a layer of {job.batch} x {job.context_tokens:,} tokens needs "
            f"{needed / 1e9:,.1f} GB and {free / 1e9:,.1f} GB are free; use --device meta, which needs none"
        )


def largest_layer_bytes(job: Job) -> int:
    """Bytes of the regions of the largest layer, with those of the layers that it uses."""
    sink, layers = ListSink(), job.model.layers
    recorder = Recorder(sink, "meta")
    regions = _declared(recorder, job)
    _whole(recorder, job, exchanges.declare(recorder, job.model, job.parallel, job.batch, regions))
    sizes = [0] * (len(layers) + 1)  # the last one of what is of no layer
    for region in sink.regions:
        sizes[region.layer] += region.bytes
    return sizes.pop() + max(
        sizes[at] + sum(sizes[source] for source in layers[at].sources) for at in range(len(sizes))
    )


def _free_bytes() -> int:
    """Free memory of the host, as Linux tells it; elsewhere all of it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free_kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(free_kib) * 1024
