"""The models by the names that they keep, each a file beside this one; a path to a file will do as well."""

from __future__ import annotations

from pathlib import Path

from memsim.errors import UsageError, nearest
from workloads.facts import Fact
from workloads.models.load import UNCHANGED, Changes, load
from workloads.models.model import Model

FOLDER = Path(__file__).parent


def model_names() -> list[str]:
    """Names of the shipped models, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def get_model(name: str, changes: Changes = UNCHANGED) -> Model:
    """The model called `name`, or that a file of this path describes, changed; UsageError for none."""
    if name.endswith(".toml"):
        return load(Path(name), Path(name).stem, changes)
    if name not in model_names():
        raise UsageError(f"unknown model '{name}'; {nearest(name, model_names())}")
    return load(FOLDER / f"{name}.toml", name, changes)


def describe(model: Model) -> list[Fact]:
    """Rows of (label, value, provenance, source): what the model is, then every number with its source."""
    counts = ", ".join(f"{count} x {name}" for name, count in model.name_counts.items())
    head = [
        Fact("name", model.name, "stated", "this project"),
        Fact("title", model.title, "stated", "this project"),
        Fact("layers by name", counts, model.facts[0].provenance, model.facts[0].source),
    ]
    return head + list(model.facts)
