"""Decode steps of a model, recorded as one trace: its attention stack, or all that a step does.

A model's name, a context and a batch enter; a trace file leaves: all layers, layer after layer, step after
step. Every sequence has the same length; step s has `context_tokens` + s rows, the
row of its own token included. Real tensors are drawn anew for every layer of every step from the seed
and dropped after it, so that one layer's fit is enough: caches and recurrent states therefore do not go
on from step to step, on which nothing in a trace depends. What a whole step holds says `step`; without
it, projections, experts, norms, and the write of the new row are left out.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from memsim import __version__
from memsim.errors import MissingExtra, UsageError
from memsim.trace_write import TraceWriter
from workloads import costs
from workloads import step as whole_step
from workloads.facts import Fact
from workloads.kinds import facts_of, kernels_of
from workloads.models import get_model
from workloads.models.load import UNCHANGED, Changes
from workloads.models.model import Model
from workloads.record import ListSink, Recorder
from workloads.routing import UNIFORM, Routing, routing_of
from workloads.run import Run
from workloads.selected import Selected
from workloads.stage import FACTS as STAGE_FACTS
from workloads.step import Step
from workloads.tensors import generator_for

MOST_TOKENS, MOST_BATCH, MOST_STEPS, MOST_UNITS = 2**27, 4096, 10_000, 65_536
DEVICES = ("cpu", "cuda", "meta")
PARTS = ("attention", "step")
STAGES = ("kv",)
REAL = "real"  # selections from the kernels' own scores
META_SELECTION = "dsa_mid"
WORKSPACE = 1.5  # memory that a layer needs, in its regions' bytes: kernels unpack what they read

STEP_FACTS = (
    Fact(
        "step.waits",
        "every kernel waits for the one before it",
        "assumed",
        "one stream, no overlap of launches",
    ),
    Fact(
        "step.costs",
        "no start-up and fixed times of kernels without a constant",
        "assumed",
        "until they are measured",
    ),
    Fact("step.pages", "pages in order, no page table read", "assumed", "4 B for 64 rows are left out"),
)


@dataclass(frozen=True)
class Job:
    """What is recorded: checked words and numbers of `record_step`."""

    model: Model
    context_tokens: int
    batch: int
    steps: int
    device: str
    selected: Selected | None
    staged: bool
    seed: int
    units: int
    part: str = "attention"
    routing: Routing | None = None

    @property
    def run(self) -> Run:
        """What every layer is told."""
        return Run(self.batch, self.context_tokens + self.steps - 1, self.units, self.staged)


def record_step(
    model: str,
    context_tokens: int,
    *,
    batch: int = 1,
    steps: int = 1,
    device: str = "meta",
    selection: str | None = None,
    stage: str | None = None,
    seed: int = 0,
    units: int = 132,
    changes: Changes = UNCHANGED,
    part: str = "attention",
    routing: str | None = None,
    out: str | Path,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write the trace of `steps` decode steps of all layers to `out`; returns its metadata.

    context_tokens  rows in the cache at the first step, the new one included
    device     `cpu` or `cuda`: real tensors; `meta`: shapes alone, of any size
    selection  rows of sparse attention: a name of `selection.make_selection`, or `real` scores (the
               default on real tensors; on meta it is `dsa_mid`)
    stage      `kv`: the selected rows are gathered into a buffer before the attention
    units      processors that the kernels split their work over (H200: 132)
    changes    other layers or formats than the model's file says
    part       `attention` of all layers, or the whole `step` (`workloads.step`)
    routing    experts of a whole step: `uniform`, `real` (by the router's scores), a recorded file; None:
               real on real tensors, uniform on meta
    progress   called with (layers done, layers in all)

    UsageError for a wrong word or number or too little memory, MissingExtra where there is no CUDA
    device, OutputError where `out` cannot be written; the file appears whole or not at all.
    """
    found = get_model(model, changes)
    _within("context", context_tokens, 1, MOST_TOKENS)
    _within("batch", batch, 1, MOST_BATCH)
    _within("steps", steps, 1, MOST_STEPS)
    _within("units", units, 1, MOST_UNITS)
    _within("seed", seed, 0, 2**63 - 1)
    _known("device", device, DEVICES)
    if stage is not None:
        _known("stage", stage, STAGES)
    drawn = _selected(found, device, selection, stage, seed)
    _known("part", part, PARTS)
    job = Job(found, context_tokens, batch, steps, device, drawn, stage is not None, seed, units, part)
    if part == "step":
        whole_step.check(found)
        job = replace(job, routing=routing_of(found, device, routing, seed))
    if device != "meta":
        _check_device(job)
    meta = _metadata(job)
    with _one_thread(device), TraceWriter(out, meta) as trace:
        recorder = Recorder(trace, device)
        _run(recorder, job, progress or (lambda done, total: None))
        meta["inputs"] += [fact._asdict() for fact in costs.facts(recorder.families)]
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
    whole = _whole(recorder, job)
    last_use = {source: number for number in range(layers) for source in job.model.layers[number].sources}
    for step in range(job.steps):
        recorder.step = step
        if whole is not None:
            whole_step.begin(whole, step)
        for layer in range(layers):
            _layer(recorder, job, layer, regions, whole)
            kept = {source for source, number in last_use.items() if source <= layer < number}
            recorder.release(keep={whole_step.OUTSIDE, *kept})
            progress(step * layers + layer + 1, job.steps * layers)
        if whole is not None:
            whole_step.end(whole)


def _whole(recorder: Recorder, job: Job) -> Step | None:
    """Regions of a whole step beside those of attention, filled where they are of no layer."""
    if job.part != "step":
        return None
    assert job.model.weights is not None
    dtype = job.model.weights.dtype
    whole = whole_step.declare(recorder, job.model, job.batch, job.units, dtype, job.routing, job.seed)
    if not recorder.is_meta:
        whole_step.fill_outer(whole, generator_for(recorder.device, job.seed))
    return whole


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
        regions.append(kernels_of(layer.kind).declare(recorder, number, layer.shape, run))
    return regions


def _layer(recorder: Recorder, job: Job, number: int, regions: Sequence[Any], whole: Step | None) -> None:
    """Run one layer of the present step."""
    layer, run = job.model.layers[number], _joined(job, number, regions)
    kernels, lengths = kernels_of(layer.kind), [job.context_tokens + recorder.step] * job.batch
    if not recorder.is_meta:
        generator = generator_for(recorder.device, job.seed, recorder.step, number)
        kernels.fill(regions[number], generator)
        if whole is not None:
            whole_step.fill(whole, number, generator)
    selected = None
    if job.selected is not None:
        selected = job.selected.rows(number, recorder.step, lengths)
        run = replace(run, candidates=job.selected.candidates(number))
    if whole is not None:
        whole_step.before(whole, number, regions[number], lengths)
        run = replace(run, project=whole_step.between(whole, number, regions[number]))
    kernels.step(recorder, number, layer.shape, regions[number], lengths, run, selected)
    if whole is not None:
        whole_step.after(whole, number, recorder.step, regions[number], lengths)


def _selected(
    model: Model, device: str, selection: str | None, stage: str | None, seed: int
) -> Selected | None:
    """What `selection` names; None for real scores and for models that select nothing."""
    if not model.selects:
        word = f"--selection {selection}" if selection is not None else f"--stage {stage}"
        if selection is not None or stage is not None:
            raise UsageError(
                f"{word} with model '{model.name}': it has no sparse attention, every row is read; "
                "leave the option away or record deepseek-v3.2"
            )
        return None
    if selection == REAL and device == "meta":
        raise UsageError(
            "--selection real with --device meta: there are no scores to select by; "
            f"use --device cpu or a named selection, such as {META_SELECTION}"
        )
    spec = selection or (META_SELECTION if device == "meta" else REAL)
    return None if spec == REAL else Selected(model, spec, seed)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"--{name} {value}: expected a whole number from {least:,} to {most:,}")


def _routing_word(routing: Routing | None) -> str:
    return REAL if routing is None else "recorded" if routing.recorded else "uniform"


def _known(name: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise UsageError(f"--{name} {word}: unknown {name}; choose one of: {', '.join(words)}")


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
    _declared(recorder, job)
    _whole(recorder, job)
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


def _metadata(job: Job) -> dict[str, Any]:
    model = job.model
    facts = list(model.facts) + list(STEP_FACTS)
    facts.append(Fact("step.units", f"{job.units} units", "stated", "given by the caller (H200: 132)"))
    for kind, shape in dict.fromkeys((layer.kind, layer.shape) for layer in model.layers):
        facts += facts_of(kind, shape)
    if job.staged:
        facts += STAGE_FACTS
    if job.part == "step":
        facts += whole_step.FACTS
        facts += [UNIFORM] if job.routing is not None and not job.routing.recorded else []
    details = job.selected.details if job.selected is not None else None
    if details is not None:
        facts.append(
            Fact("step.selection", str(details["name"]), str(details["provenance"]), str(details["source"]))
        )
    elif model.selects:
        facts.append(Fact("step.selection", REAL, "assumed", "top-k of scores of random normal tensors"))
    return {
        "model": model.name,
        "part": job.part,
        "context_tokens": job.context_tokens,
        "batch": job.batch,
        "steps": job.steps,
        "tokens_per_step": 1,
        "seed": job.seed,
        "device": job.device,
        "selection": None if not model.selects else REAL if details is None else details["name"],
        "selection_details": details,
        "stage": "kv" if job.staged else None,
        "units": job.units,
        "kv_dtype": model.kv_dtype,
        "index_dtype": model.index_dtype or None,
        "weights_dtype": model.weights.dtype if job.part == "step" and model.weights else None,
        "routing": None if job.part != "step" else _routing_word(job.routing),
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "memsim": __version__,
        },
        "inputs": [fact._asdict() for fact in dict.fromkeys(facts)],
    }
