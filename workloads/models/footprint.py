"""Bytes that one GPU holds of a model: weights, caches, states, and the scratch of a step.

A model, the contexts of its batch and how it is spread over GPUs enter; a `Footprint` leaves: kind by kind
what the regions of a recorded step add up to, without recording one and without torch. Every term is some
bytes of a layer and some for each of its sequences. Left out: the activations outside attention of a whole
step, which its layers share (some megabytes a token: `workloads.step_scratch`), what an engine keeps beside
a step (its graphs, its workspace, unused pages), and look-up tables beside the vocabulary's, which lie in
host memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from workloads.models import matrices, region_bytes
from workloads.models.model import Layer, Model
from workloads.models.region_bytes import LayerRun
from workloads.parallel import ALONE, Parallel, gathered, shard
from workloads.shapes import drafted

UNITS = 132  # of an H200
PARTS = ("attention", "step")


@dataclass(frozen=True)
class Footprint:
    """Bytes of the regions of each kind; `exchange` is what the other GPUs hold for this one."""

    weights: int = 0
    kv: int = 0
    index: int = 0
    state: int = 0
    activation: int = 0
    output: int = 0
    exchange: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Footprint)))

    def __mul__(self, times: int) -> Footprint:
        return Footprint(*(getattr(self, f.name) * times for f in fields(Footprint)))

    @property
    def total(self) -> int:
        """All that this GPU holds."""
        return sum(getattr(self, field.name) for field in fields(Footprint)) - self.exchange

    @property
    def caches(self) -> int:
        """Cached rows, index keys and states: what grows with the batch and stays from step to step."""
        return self.kv + self.index + self.state


def of_model(
    model: Model,
    contexts: Sequence[int],
    parallel: Parallel = ALONE,
    *,
    part: str = "attention",
    steps: int = 1,
    units: int = UNITS,
    staged: bool = False,
    draft: int = 1,
) -> Footprint:
    """Bytes that the GPU with most of the batch holds while it decodes a step of `contexts`.

    model     the whole model: it is cut here
    contexts  tokens of each sequence, the new one included, over all groups of GPUs
    part      `attention`: the attention's own regions; `step`: with all weights
    steps     after the first, each sequence has a row more
    staged    selected rows are gathered into a buffer
    draft     new tokens that a step computes of each sequence, all of which it keeps: recurrent states are
              stored after each, rows and keys are added, weights are the same

    UsageError where the model cannot be spread so.
    """
    cut = shard(model, parallel)
    rows = [parallel.rows(tokens + steps * draft - 1) for tokens in parallel.sequences(contexts)]
    run = LayerRun(max(rows), units, staged, draft)
    found = Footprint()
    for layer, count in Counter(_plain(layer, parallel, draft) for layer in cut.layers).items():
        of_sequences = (_sequence(layer, run, held) * times for held, times in Counter(rows).items())
        found += sum(of_sequences, _fixed(layer, run)) * count
    for shape in {layer.shape for layer in cut.layers} if parallel.dcp > 1 else ():
        found += Footprint(**region_bytes.of_positions(shape, parallel.dcp)) * len(rows)
    if part == "step":
        found += Footprint(weights=_matrices(cut), exchange=_sums(cut, parallel) * len(rows) * draft)
    return found


def most_sequences(
    model: Model, context: int, free_bytes: int, parallel: Parallel = ALONE, *, part: str = "attention"
) -> int:
    """The largest batch of sequences of `context` tokens that fits into `free_bytes` a GPU; 0: none."""
    one, two = (
        of_model(model, [context] * batch * parallel.dp, parallel, part=part).total for batch in (1, 2)
    )
    if one > free_bytes:
        return 0
    return (1 + (free_bytes - one) // (two - one)) * parallel.dp


def _plain(layer: Layer, parallel: Parallel, draft: int) -> Layer:
    """The layer as its attention sees it, without the numbers of the layers that it shares with."""
    return Layer(
        "",
        layer.kind,
        drafted(gathered(layer.shape, parallel), draft),
        layer.projections,
        *(None if source is None else 0 for source in (layer.index_from, layer.kv_from, layer.blocks_from)),
    )


def _sums(model: Model, parallel: Parallel) -> int:
    """Bytes that other GPUs hold for a token: parts of its sums and logits, tokens of other groups."""
    w = model.weights
    assert w is not None
    groups = 2 * (parallel.dp - 1) * w.hidden if w.moe_layers else 0
    return 2 * ((parallel.tp - 1) * (w.hidden + w.vocab) + groups)


def _matrices(model: Model) -> int:
    """Bytes of all matrices and norms outside the attention's own regions."""
    w = model.weights
    assert w is not None, f"{model.name} has no weights"
    layers = (matrix for number in range(len(model.layers)) for matrix in matrices.of_layer(model, number))
    found: int = sum(matrix.bytes(w.dtype) for matrix in (*layers, *matrices.of_outer(w)))
    norms = sum(region_bytes.norms_of(layer, w.hidden) for layer in model.layers) + 2 * w.hidden
    return found + norms


@lru_cache(maxsize=4096)
def _fixed(layer: Layer, run: LayerRun) -> Footprint:
    return Footprint(**region_bytes.of_layer(layer, run))


@lru_cache(maxsize=4096)
def _sequence(layer: Layer, run: LayerRun, rows: int) -> Footprint:
    return Footprint(**region_bytes.of_sequence(layer, run, rows))
