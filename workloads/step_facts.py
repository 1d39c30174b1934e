"""What a trace says of itself: model, shapes, options, and every number that it rests on with its source."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from typing import Any

import torch

from memsim import __version__
from workloads import collective, exchanges
from workloads import step as whole_step
from workloads.experts import FP4_FACT
from workloads.facts import Fact
from workloads.job import REAL, Job
from workloads.kinds import facts_of
from workloads.parallel import ALONE
from workloads.routing import UNIFORM
from workloads.stage import FACTS as STAGE_FACTS

MOST_CONTEXTS = 64  # of a batch that are listed one by one

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


def metadata(job: Job) -> dict[str, Any]:
    """Metadata of a trace, but for the costs of its kernels."""
    model = job.model
    facts = list(model.facts) + list(STEP_FACTS)
    facts.append(Fact("step.units", f"{job.units} units", "stated", "given by the caller (H200: 132)"))
    for kind, shape in dict.fromkeys((layer.kind, layer.shape) for layer in model.layers):
        facts += facts_of(kind, shape)
    if job.staged:
        facts += STAGE_FACTS
    if job.part == "step":
        facts += whole_step.FACTS
        facts += [FP4_FACT] if model.weights is not None and model.weights.dtype == "fp4" else []
        facts += [UNIFORM] if job.routing is not None and not job.routing.recorded else []
    if job.draft > 1:
        kept = f"{job.draft} new tokens a step, {job.accepted} of them kept"
        facts.append(Fact("step.draft", kept, "assumed", "given by the caller (--draft, --accepted)"))
    facts += _of_parallel(job)
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
        "batch": len(job.contexts),
        "contexts": _contexts(job),
        "parallel": job.parallel.words if job.parallel.gpus > 1 else None,
        "gpus": job.parallel.gpus,
        "steps": job.steps,
        "tokens_per_step": job.accepted,
        "draft": job.draft,
        "seed": job.seed,
        "device": job.device,
        "selection": None if not model.selects else REAL if details is None else details["name"],
        "selection_details": details,
        "stage": "kv" if job.staged else None,
        "units": job.units,
        "kv_dtype": model.kv_dtype,
        "index_dtype": model.index_dtype or None,
        "weights_dtype": model.weights.dtype if job.part == "step" and model.weights else None,
        "routing": _routing_word(job),
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "memsim": __version__,
        },
        "inputs": [fact._asdict() for fact in dict.fromkeys(facts)],
    }


def _contexts(job: Job) -> list[int] | str | None:
    """Tokens of the sequences of a batch, or a digest of many; None where all have `context_tokens`."""
    if len(set(job.contexts)) == 1:
        return None
    if len(job.contexts) <= MOST_CONTEXTS:
        return list(job.contexts)
    return "sha256:" + hashlib.sha256(repr(job.contexts).encode()).hexdigest()


def _of_parallel(job: Job) -> Iterator[Fact]:
    """What rests on how GPUs share a model."""
    if job.parallel != ALONE:
        yield from exchanges.FACTS + collective.FACTS
    if job.parallel.dp > 1 and job.part == "step":
        yield from exchanges.DP_FACTS
    if job.parallel.dcp > 1:
        yield from exchanges.DCP_FACTS


def _routing_word(job: Job) -> str | None:
    """Where experts come from; None where there are none."""
    w = job.model.weights
    if job.part != "step" or w is None or not w.moe_layers:
        return None
    return REAL if job.routing is None else "recorded" if job.routing.recorded else "uniform"
