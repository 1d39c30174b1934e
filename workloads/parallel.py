"""How a model is spread over several GPUs, and what one of them holds of it.

The words of `--parallel` enter, a `Parallel` leaves; with it a model becomes the part that one GPU computes.
That is the rule of vLLM: `tp` GPUs share every layer by heads and columns, `dp` such groups share the batch,
the routed experts are dealt to all of them (`ep`) or cut by columns, and `dcp` of a group's GPUs share the
positions of those cached rows that heads cannot share. docs/parallel.md has the whole rule with its sources.
Nothing here needs torch. Left out: pipelines of layers, redundant experts, and more than one server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from memsim.errors import UsageError, nearest
from workloads.models.model import Layer, Model, Weights
from workloads.shapes import (
    DsaShape,
    GdnShape,
    GqaShape,
    KdaShape,
    MlaShape,
    Shape,
    SwaShape,
    WindowShape,
)

Int64s = npt.NDArray[np.int64]

EXAMPLE = "tp=8,ep=8"
BLOCK = 128  # rows and columns of fp8 weights that share a scale
VOCAB_PAD = 64  # vLLM pads the vocabulary to a multiple of so many rows before it is cut


@dataclass(frozen=True)
class Parallel:
    """GPUs that share a model.

    tp   tensor parallel: a layer's heads and columns
    ep   expert parallel: routed experts; 1 or tp x dp
    dp   data parallel: the batch
    dcp  decode context parallel: positions of cached rows, within a group of tp
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    dcp: int = 1

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.dp

    @property
    def words(self) -> str:
        """As `--parallel` spells it."""
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(Parallel))

    @property
    def expert_columns(self) -> int:
        """GPUs that share the columns of a routed expert."""
        return self.gpus if self.ep == 1 else 1

    def sequences(self, contexts: Sequence[int]) -> list[int]:
        """Of a batch, those of the group that has the most: contexts are dealt in turns."""
        return list(contexts[:: self.dp])

    def check_batch(self, batch: int) -> None:
        """UsageError for a batch that leaves a group without a sequence."""
        if batch < self.dp:
            raise UsageError(
                f"--parallel {self.words}: {batch} sequences for {self.dp} groups of GPUs; expected as "
                "many as groups at least (--batch)"
            )

    def rows(self, tokens: int) -> int:
        """Of a sequence's positions, those of the GPU that has the most: they are dealt in turns."""
        return -(-tokens // self.dcp)

    def here(self, rows: Int64s) -> Int64s:
        """Of the rows that a sequence selects, those of the GPU that has the most, as it numbers them."""
        owners = rows % self.dcp
        most = np.bincount(owners, minlength=self.dcp).argmax()
        mine: Int64s = rows[owners == most] // self.dcp
        return mine


ALONE = Parallel()


def parse_parallel(text: str) -> Parallel:
    """`tp=8,ep=8,dp=1,dcp=8` in any order, what is not there is 1; UsageError for anything else."""
    names, found = [field.name for field in fields(Parallel)], {}
    for word in text.split(","):
        name, _, count = (part.strip() for part in word.partition("="))
        if name not in names:
            raise UsageError(f"--parallel {text}: unknown word '{name}'; {nearest(name, names)}")
        if name in found or not re.fullmatch("[1-9][0-9]{0,3}", count):
            raise UsageError(f"--parallel {text}: expected a number of GPUs for each word, as in {EXAMPLE}")
        found[name] = int(count)
    parallel = Parallel(**found)
    if parallel.ep not in (1, parallel.gpus):
        raise UsageError(
            f"--parallel {text}: ep={parallel.ep}; experts are dealt to all GPUs, ep={parallel.gpus}, "
            "or cut by columns, ep=1"
        )
    if parallel.tp % parallel.dcp:
        raise UsageError(
            f"--parallel {text}: dcp={parallel.dcp}; the GPUs that share positions are of one tp group, "
            f"so that dcp divides tp={parallel.tp}"
        )
    return parallel


def shard(model: Model, parallel: Parallel) -> Model:
    """The part of `model` that one GPU holds; UsageError where its sizes cannot be cut so.

    Shapes have the heads whose projections this GPU has; `gathered` says those of its attention kernels.
    """
    if parallel == ALONE:
        return model
    cut = _Cut(model.name, parallel)
    if parallel.dcp > 1 and all(isinstance(layer.shape, KdaShape | GdnShape) for layer in model.layers):
        raise cut.wrong(f"dcp={parallel.dcp} shares positions of caches, and it has none; leave dcp away")
    layers = tuple(cut.layer(layer) for layer in model.layers)
    weights = None if model.weights is None else cut.weights(model.weights)
    return replace(model, layers=layers, weights=weights)


def gathered(shape: Shape, parallel: Parallel) -> Shape:
    """The shape that an attention kernel sees: with dcp, the heads of all GPUs that share its positions."""
    if parallel.dcp == 1:
        return shape
    if isinstance(shape, DsaShape):
        return replace(shape, attention=replace(shape.attention, heads=shape.attention.heads * parallel.dcp))
    if isinstance(shape, MlaShape | GqaShape):
        return replace(shape, heads=shape.heads * parallel.dcp)
    return shape


@dataclass(frozen=True)
class _Cut:
    """Cuts the sizes of one model."""

    name: str
    parallel: Parallel

    def layer(self, layer: Layer) -> Layer:
        p = layer.projections
        if p.o_groups:
            p = replace(p, o_groups=self.even("output groups", p.o_groups))
        self.check_positions(layer)
        return replace(layer, shape=self.shape(layer.shape), projections=p)

    def shape(self, shape: Shape) -> Shape:
        """The shape with this GPU's share of the heads."""
        if isinstance(shape, KdaShape):
            return KdaShape(self.even("KDA heads", shape.heads, pairs=True))
        if isinstance(shape, GdnShape):
            keys = self.even("GDN key heads", shape.key_heads)
            return GdnShape(keys, self.even("GDN value heads", shape.value_heads, pairs=True))
        if isinstance(shape, GqaShape):
            return self.grouped(shape)
        if isinstance(shape, SwaShape):
            return replace(shape, attention=self.grouped(shape.attention))
        if isinstance(shape, DsaShape):
            heads = self.even("query heads", shape.attention.heads)
            return replace(shape, attention=replace(shape.attention, heads=heads))
        if isinstance(shape, MlaShape | WindowShape):
            return replace(shape, heads=self.even("query heads", shape.heads))
        return replace(
            shape, window=replace(shape.window, heads=self.even("query heads", shape.window.heads))
        )

    def grouped(self, shape: GqaShape) -> GqaShape:
        """Key heads are cut while there are enough, then held by several GPUs."""
        tp, keys = self.parallel.tp, shape.kv_heads
        if keys % tp and tp % keys:
            raise self.wrong(f"{keys} key heads are neither cut by tp={tp} nor shared evenly by so many GPUs")
        return replace(shape, heads=self.even("query heads", shape.heads), kv_heads=max(1, keys // tp))

    def check_positions(self, layer: Layer) -> None:
        """Whether an engine shares the positions of such a layer."""
        shape, parallel = layer.shape, self.parallel
        if parallel.dcp == 1 or isinstance(shape, KdaShape | GdnShape | MlaShape):
            return
        if isinstance(shape, GqaShape):
            most = parallel.tp // shape.kv_heads
            if parallel.dcp > most:
                raise self.wrong(
                    f"its {shape.kv_heads} key heads are already cut by tp={parallel.tp}; expected dcp of "
                    f"{max(1, most)} at most (tp / key heads)"
                )
        elif not isinstance(shape, DsaShape) or shape.pool > 1 or shape.sink or shape.local:
            raise self.wrong(
                f"dcp={parallel.dcp} with layers '{layer.name}' of kind {layer.kind}, whose positions "
                "are not shared here; leave dcp away"
            )

    def weights(self, w: Weights) -> Weights:
        """Sizes outside attention."""
        p, columns = self.parallel, self.parallel.expert_columns
        rows, shared = -(-w.vocab // VOCAB_PAD) * VOCAB_PAD, 0
        if w.experts and w.experts % p.ep:
            raise self.wrong(f"{w.experts} experts cannot be dealt to ep={p.ep} GPUs evenly")
        if w.experts and w.expert_width % columns:
            raise self.wrong(
                f"the {w.expert_width} columns of an expert cannot be cut by {columns} GPUs; deal them, ep"
            )
        if w.shared:
            columns_of_shared = w.shared_width or w.expert_width
            shared = self.blocks(w, self.even("columns of the shared experts", columns_of_shared))
        return replace(
            w,
            vocab=-(-rows // p.tp),
            dense_width=self.even("columns of a dense layer", w.dense_width),
            held=w.experts // p.ep,
            expert_width=self.blocks(w, w.expert_width // columns, routed=True),
            shared_width=shared,
        )

    def blocks(self, w: Weights, columns: int, *, routed: bool = False) -> int:
        """Columns padded to whole blocks, where fp8 weights share a scale; of fp4 to pieces of 128 B."""
        block = 1 if w.dtype == "bf16" else 2 * BLOCK if routed and w.dtype == "fp4" else BLOCK
        return -(-columns // block) * block

    def even(self, what: str, count: int, *, pairs: bool = False) -> int:
        """`count` / tp; `pairs`: an even number of them."""
        tp = self.parallel.tp
        if count % (tp * (1 + pairs)):
            even = ", an even number each" if pairs else ""
            raise self.wrong(f"{count} {what} cannot be cut by tp={tp}{even}")
        return count // tp

    def wrong(self, why: str) -> UsageError:
        return UsageError(f"--parallel {self.parallel.words} with '{self.name}': {why}")
