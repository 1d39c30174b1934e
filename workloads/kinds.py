"""The kinds of attention layers: each is a module of four names, listed here and nowhere else.

A kind's name leads to the shape that a model gives it, which needs no torch, and to the module that runs it,
which does and is imported when asked for. The four names of such a module are those of `Kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from workloads.facts import Fact
from workloads.shapes import (
    CsaShape,
    DsaShape,
    GdnShape,
    GqaShape,
    HcaShape,
    KdaShape,
    MlaShape,
    Shape,
    SwaShape,
    WindowShape,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from workloads.record import Recorder
    from workloads.run import Run

    Int64s = npt.NDArray[np.int64]


class Kind(NamedTuple):
    """A kind of layer: the module in `workloads` that runs it, and what describes one of its layers."""

    module: str
    shape: type


KINDS = {
    "kda": Kind("kda", KdaShape),
    "gdn": Kind("gdn", GdnShape),
    "mla": Kind("mla", MlaShape),
    "dsa": Kind("dsa", DsaShape),
    "gqa": Kind("gqa", GqaShape),
    "swa": Kind("swa", SwaShape),
    "window": Kind("window", WindowShape),
    "csa": Kind("csa", CsaShape),
    "hca": Kind("hca", HcaShape),
}


class Kernels(Protocol):
    """What the module of a kind offers.

    declare   regions of a layer, before any kernel; those of the layers in `run.index`, `run.kv` and
              `run.blocks` are used where these are given, and not declared again
    fill      random tensors behind the layer's own regions, results zero
    step      one decode step: `lengths` are the tokens of each sequence, the new one included;
              `selected` the rows that the attention gathers, ascending, for each sequence; None: by scores
    FACTS     the numbers that its kernels rest on; where some depend on the shape, a function
              `facts_of(shape)` gives these
    """

    FACTS: tuple[Fact, ...]

    def declare(self, recorder: Recorder, layer: int, shape: Any, run: Run) -> Any: ...

    def fill(self, regions: Any, generator: torch.Generator) -> None: ...

    def step(
        self,
        recorder: Recorder,
        layer: int,
        shape: Any,
        regions: Any,
        lengths: Sequence[int],
        run: Run,
        selected: Sequence[Int64s] | None = None,
    ) -> None: ...


def kernels_of(kind: str) -> Kernels:
    """The module that runs layers of `kind`."""
    return cast(Kernels, import_module(f"workloads.{KINDS[kind].module}"))


def facts_of(kind: str, shape: Shape) -> tuple[Fact, ...]:
    """Numbers that a layer of `kind` and `shape` rests on."""
    kernels = kernels_of(kind)
    more: Callable[[Shape], tuple[Fact, ...]] = getattr(kernels, "facts_of", lambda shape: ())
    return kernels.FACTS + more(shape)
