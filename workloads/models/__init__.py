"""The models by the names that they keep."""

from __future__ import annotations

from memsim.errors import UsageError, nearest
from workloads.facts import Fact
from workloads.models.deepseek import DEEPSEEK_V3, DEEPSEEK_V32
from workloads.models.kimi_linear import KIMI_LINEAR, KIMI_LINEAR_ALL_MLA
from workloads.models.model import Model

MODELS = {model.name: model for model in (KIMI_LINEAR, KIMI_LINEAR_ALL_MLA, DEEPSEEK_V3, DEEPSEEK_V32)}


def model_names() -> list[str]:
    """Names of all models, in the order in which they are listed."""
    return list(MODELS)


def get_model(name: str) -> Model:
    """The model called `name`; UsageError if there is none."""
    if name not in MODELS:
        raise UsageError(f"unknown model '{name}'; {nearest(name, MODELS)}")
    return MODELS[name]


def describe(model: Model) -> list[Fact]:
    """Rows of (label, value, provenance, source): what the model is, then every number with its source."""
    counts = ", ".join(f"{count} x {kind}" for kind, count in model.layer_counts.items())
    head = [
        Fact("name", model.name, "stated", "this project"),
        Fact("title", model.title, "stated", "this project"),
        Fact("layers by kind", counts, model.facts[0].provenance, model.facts[0].source),
    ]
    return head + list(model.facts)
