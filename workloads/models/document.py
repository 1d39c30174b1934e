"""A model as one document of plain data: what `memsim models show` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from workloads.models import cache, footprint, parameters
from workloads.models.model import Layer, Model
from workloads.parallel import ALONE, Parallel

MODEL_CONTEXTS = (131_072, 1_048_576, 10_485_760)
FAR = 1 << 40  # a context where every ratio divides


def document(
    model: Model,
    contexts: Sequence[int] = MODEL_CONTEXTS,
    batch: int = 1,
    parallel: Parallel = ALONE,
) -> dict[str, Any]:
    """Layers, bytes at `contexts`, what a GPU holds of a batch, parameters, every number with its source."""
    return {
        "name": model.name,
        "title": model.title,
        "max_context_tokens": model.max_context,
        "kv_dtype": model.kv_dtype or None,
        "index_dtype": model.index_dtype or None,
        "cache_bytes_per_token": float(_cached_per_token(model.layers)),
        "scanned_bytes_per_context_token": float(cache.slope(model)),
        "layers": _layers(model),
        "contexts": [_at(model, context) for context in contexts],
        "held": _held(model, contexts, batch, parallel),
        "parameters": _parameters(model),
        "numbers": [fact._asdict() for fact in model.facts],
    }


def _cached_per_token(layers: Sequence[Layer]) -> Any:
    """Bytes by which the caches grow with a token, averaged where several make one row."""
    held = [sum(cache.of_layer(layer, context).resident for layer in layers) for context in (FAR, 2 * FAR)]
    return (held[1] - held[0]) / FAR


def _layers(model: Model) -> list[dict[str, Any]]:
    """One entry for each table of the model's file: where its layers stand, and what each of them keeps."""
    entries = []
    for name, count in model.name_counts.items():
        numbers = [number for number, layer in enumerate(model.layers) if layer.name == name]
        layer = model.layers[numbers[0]]
        entries.append(
            {
                "name": name,
                "kind": layer.kind,
                "count": count,
                "numbers": numbers,
                "shape": asdict(layer.shape),
                "shares": [
                    what for what in ("index", "kv", "blocks") if getattr(layer, f"{what}_from") is not None
                ],
                "cache_bytes_per_token": float(_cached_per_token([layer])),
                "constant_bytes": int(cache.of_layer(layer, FAR).constant),
            }
        )
    return entries


def _at(model: Model, context: int) -> dict[str, Any]:
    """Bytes of a step at a context, and the shares of what is held."""
    found = cache.of_model(model, context)
    return {
        "context_tokens": context,
        "resident_bytes": int(found.resident),
        "read_bytes": found.read,
        "scanned_bytes": int(found.scanned),
        "constant_bytes": int(found.constant),
        "gathered_bytes": int(found.gathered),
        "written_bytes": int(found.written),
        "touched_every_step_bytes": int(found.touched),
        "only_gathered_share": float(found.gathered_only),
    }


def _held(model: Model, contexts: Sequence[int], batch: int, parallel: Parallel) -> dict[str, Any]:
    """What one of the GPUs that share the model and the batch holds, of the GPU that holds most."""
    part = "attention" if model.weights is None else "step"
    found = [footprint.of_model(model, [context] * batch, parallel, part=part) for context in contexts]
    return {
        "parallel": parallel.words,
        "gpus": parallel.gpus,
        "batch": batch,
        "part": part,
        "contexts": [
            {
                "context_tokens": context,
                "weights_bytes": held.weights,
                "kv_bytes": held.kv,
                "index_bytes": held.index,
                "state_bytes": held.state,
                "scratch_bytes": held.activation + held.output,
                "total_bytes": held.total,
            }
            for context, held in zip(contexts, found, strict=True)
        ],
    }


def fitting(held: dict[str, Any], machine: str, tier: str, capacity_bytes: int) -> dict[str, Any]:
    """More of `held`: the first memory of a machine, and by context what is too much for it [bytes]."""
    short = [max(0, at["total_bytes"] - capacity_bytes) for at in held["contexts"]]
    contexts = [at | {"short_bytes": lack} for at, lack in zip(held["contexts"], short, strict=True)]
    return {"machine": machine, "tier": tier, "capacity_bytes": capacity_bytes, "contexts": contexts}


def _parameters(model: Model) -> dict[str, Any] | None:
    """Ours, the published figures, how far apart they are, and why; None where the file gives no sizes."""
    if model.weights is None:
        return None
    ours, published = parameters.of_model(model), model.published
    found: dict[str, Any] = {"total": ours.total, "active": ours.active, "non_routed": ours.non_routed}
    for what in ("total", "active"):
        stated = getattr(published, what)
        found[f"published_{what}"] = stated or None
        found[f"{what}_deviation"] = parameters.deviation(getattr(ours, what), stated) if stated else None
        found[f"{what}_reason"] = getattr(published, f"{what}_reason") or None
    return found
