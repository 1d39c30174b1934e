"""A model as data: the kinds of its layers, their shapes, and where each number comes from."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.facts import Fact
from workloads.shapes import DsaShape, KdaShape, MlaShape

LAYER_KINDS = ("kda", "mla", "dsa")


@dataclass(frozen=True)
class Model:
    """The attention of a model.

    layers   kind of each layer in order: kda, mla or dsa
    kda, mla, dsa   shapes of the kinds that occur in it
    facts    every number above with its source
    """

    name: str
    title: str
    layers: tuple[str, ...]
    facts: tuple[Fact, ...]
    kda: KdaShape | None = None
    mla: MlaShape | None = None
    dsa: DsaShape | None = None

    def __post_init__(self) -> None:
        for kind in self.layers:
            assert kind in LAYER_KINDS, f"{self.name}: layer kind {kind!r}"
            assert getattr(self, kind) is not None, f"{self.name}: no shape for {kind}"

    @property
    def layer_counts(self) -> dict[str, int]:
        """Layers of each kind that occurs."""
        return {kind: self.layers.count(kind) for kind in LAYER_KINDS if kind in self.layers}
