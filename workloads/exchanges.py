"""What the GPUs that share a model exchange during a step, and when: collectives in their places.

A model that was cut for one GPU enters, with the regions of its layers; kernels leave, between those of the
layers. Every GPU of a tensor-parallel group has a part of each layer's output, so that these are added up
after attention and after the feed-forward layer, and after the input table; logits are gathered before
sampling. Where a group shares the positions of its caches (dcp), the queries of all its heads come together
before attention; afterwards every GPU has a result over its own positions for all heads: log-sum-exps are
gathered, results weighted by them, and added up at the GPU whose heads they are (vLLM, `cp_lse_ag_out_rs`). A
selection is made among the candidates of all. Left out: the packing of candidates, and the log-sum-exps that
an attention kernel writes (4 B a head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workloads import collective
from workloads.activations import Rows
from workloads.arithmetic import arithmetic
from workloads.collective import OUTSIDE, Peers
from workloads.dsa import DsaRegions
from workloads.dsa_topk import TILE_BYTES, TILES_IN_FLIGHT
from workloads.facts import Fact
from workloads.gqa import GqaRegions, pieces_of
from workloads.grid import Shape, even, one
from workloads.indexer import IndexerRegions
from workloads.mla import MlaRegions
from workloads.models.model import Layer, Model
from workloads.parallel import Parallel
from workloads.record import Recorder, RegionHandle
from workloads.shapes import DsaShape, GqaShape, MlaShape
from workloads.splits import CANDIDATE_BYTES

PASSES = 3  # reads of the candidates of all GPUs, as the top-k's own of its scores
BLOCKS_PER_UNIT = 8

FACTS = (
    Fact(
        "step.parallel",
        "partial sums are added up after attention and after the feed-forward layer",
        "stated",
        "vLLM RowParallelLinear, FusedMoE with tensor or expert parallelism",
    ),
    Fact(
        "step.embedding",
        "rows of the input table are added up, logits gathered",
        "stated",
        "vLLM VocabParallelEmbedding, LogitsProcessor",
    ),
)
DP_FACTS = (
    Fact(
        "step.dp",
        "experts have the tokens of all groups gathered, and their sums scattered back",
        "stated",
        "vLLM all2all backend allgather_reducescatter",
    ),
    Fact(
        "step.dp.groups", "as many tokens in every group", "stated", "vLLM pads the batches of a step alike"
    ),
)
DCP_FACTS = (
    Fact(
        "step.dcp",
        "queries gathered; log-sum-exps gathered, results weighted, added up by heads",
        "stated",
        "vLLM docs/serving/context_parallel_deployment.md; cp_lse_ag_out_rs",
    ),
    Fact(
        "step.dcp.selection",
        "the best of every GPU are gathered, the best of all selected",
        "stated",
        "vllm-project/vllm #46076: the exact merge of a global selection",
    ),
)


@dataclass(frozen=True)
class Sums:
    """What is exchanged outside attention: parts of `x`, and of the logits, gathered in `logits`."""

    x: Peers
    parts: Peers
    logits: Rows


@dataclass(frozen=True)
class Positions:
    """What the GPUs exchange that share positions, in layers of one shape.

    heads        query heads of this GPU, `pieces` rows of output each
    lse          [GPUs x tokens x heads of all] fp32
    candidates   [tokens x GPUs x k] scores and rows; None without a selection
    """

    heads: int
    pieces: int
    queries: Peers
    sums: Peers
    lse: RegionHandle
    lse_parts: Peers
    candidates: RegionHandle | None = None
    candidate_parts: Peers | None = None


@dataclass
class Exchanges:
    """All exchanges of a step of `batch` tokens on this GPU.

    tokens   those of the other groups, and what their GPUs have made of this group's
    """

    recorder: Recorder
    parallel: Parallel
    batch: int
    sums: Sums | None = None
    tokens: tuple[Peers, Peers] | None = None
    positions: dict[Layer, Positions] | None = None

    def after(self, recorder: Recorder, layer: int, x: Rows) -> None:
        """The outputs of all GPUs of the group, added up."""
        if self.sums is not None:
            rows = self.batch * x.pieces
            collective.all_reduce(recorder, layer, self.sums.x, x.handle, x.first, rows)

    def bring(self, recorder: Recorder, layer: int, given: Rows, to: Rows) -> None:
        """The tokens of all groups, before experts."""
        assert self.tokens is not None
        rows, own = self.batch * given.pieces, (given.handle, given.first)
        collective.all_gather(recorder, layer, self.tokens[0], to.handle, rows, rows, "dispatch-", own)

    def back(self, recorder: Recorder, layer: int, given: Rows, to: Rows) -> None:
        """What the experts of all GPUs have made of this group's tokens, added up."""
        assert self.tokens is not None
        rows, out = self.batch * given.pieces, (to.handle, to.first)
        collective.reduce_scatter(recorder, layer, self.tokens[1], given.handle, 0, rows, "combine-", out)

    def gather_logits(self, own: Rows) -> Rows:
        """The logits of all parts of the vocabulary."""
        if self.sums is None:
            return own
        rows, to = self.batch * own.pieces, self.sums.logits
        collective.all_gather(self.recorder, OUTSIDE, self.sums.parts, to.handle, rows, rows, "logits-")
        return to

    def before_attention(
        self, number: int, layer: Layer, regions: MlaRegions | DsaRegions | GqaRegions
    ) -> None:
        """Queries of all heads of the GPUs that share positions."""
        mine = self._of(layer)
        if mine is not None:
            rows = self.batch * mine.heads
            queries = _attention(regions).q
            collective.all_gather(self.recorder, number, mine.queries, queries, rows, rows, "query-")

    def merge(self, number: int, layer: Layer, indexer: IndexerRegions) -> None:
        """The best of the candidates of all GPUs that share positions, as the rows that are this GPU's."""
        mine = self._of(layer)
        assert mine is not None
        assert mine.candidates is not None
        assert mine.candidate_parts is not None
        k, gpus = indexer.indices.region.rows // self.batch, self.parallel.dcp
        parts, to, rows = mine.candidate_parts, mine.candidates, self.batch * k
        collective.all_gather(self.recorder, number, parts, to, rows, rows, "candidate-")
        launch = Shape(
            tile_rows=TILE_BYTES // CANDIDATE_BYTES,
            tile_bytes=TILE_BYTES,
            tiles_in_flight=TILES_IN_FLIGHT,
            blocks_per_unit=2,
            tile_rule="top-k of all GPUs' candidates: a block per sequence",
        )
        name = f"layer{number}.dsa-topk-shared"
        with self.recorder.kernel(name, "dsa-topk", number, self.batch, launch):
            for sequence in range(self.batch):
                for turn in range(PASSES):
                    to.load(sequence * gpus * k, gpus * k, one(sequence), dependent=turn > 0)
                found = torch.full((k, 1), -1, dtype=torch.int32, device=self.recorder.device)
                indexer.indices.store(sequence * k, found, one(sequence))

    def after_attention(
        self, number: int, layer: Layer, regions: MlaRegions | DsaRegions | GqaRegions
    ) -> None:
        """Results over all positions, of this GPU's heads."""
        mine = self._of(layer)
        if mine is None:
            return
        out, gpus = _attention(regions).out, self.parallel.dcp
        heads = self.batch * mine.heads * gpus
        collective.all_gather(self.recorder, number, mine.lse_parts, mine.lse, heads, heads, "lse-")
        launch = Shape(
            tile_rows=mine.pieces,
            tile_bytes=mine.pieces * out.region.row_bytes,
            tiles_in_flight=2,
            blocks_per_unit=BLOCKS_PER_UNIT,
            tile_rule="weighted by log-sum-exps: a block per token and head",
        )
        with self.recorder.kernel(f"layer{number}.dcp-weight", "dcp-weight", number, heads, launch):
            blocks = even(0, heads - 1, mine.pieces)
            lse = mine.lse.load_each(0, heads, even(0, heads - 1, 1), gpus, heads, same_blocks=True)
            out.store(0, weighted(out.load(0, heads * mine.pieces, blocks), lse), blocks)
        rows = self.batch * mine.heads * mine.pieces
        collective.reduce_scatter(self.recorder, number, mine.sums, out, 0, rows)

    def _of(self, layer: Layer) -> Positions | None:
        return None if self.positions is None else self.positions.get(_plain(layer))


def declare(
    recorder: Recorder, model: Model, parallel: Parallel, batch: int, regions: Sequence[object]
) -> Exchanges:
    """Exchanges of attention: of layers whose positions are shared, one set for each shape.

    regions  of the attention of every layer; heads of `model` are this GPU's alone
    """
    made = Exchanges(recorder, parallel, batch)
    if parallel.dcp == 1:
        return made
    made.positions = {}
    for layer, held in zip(model.layers, regions, strict=True):
        if isinstance(held, MlaRegions | DsaRegions | GqaRegions) and _plain(layer) not in made.positions:
            name = f"{layer.name}-" if made.positions else ""
            made.positions[_plain(layer)] = _positions(recorder, name, layer, parallel, batch, held)
    return made


def with_sums(made: Exchanges, x: Rows, logits: Rows) -> Exchanges:
    """The same with what a whole step adds up and gathers: parts of `x`, of the `logits`."""
    others, recorder, batch = made.parallel.tp - 1, made.recorder, made.batch
    if others:
        sums = _peers(recorder, "x", others, batch, x)
        parts = _peers(recorder, "logits", others, batch, logits)
        row, pieces = logits.handle.region.row_bytes, logits.pieces * (others + 1)
        whole = recorder.region("logits", "activation", OUTSIDE, batch * pieces, row, "bf16")
        made.sums = Sums(sums, parts, Rows(whole, pieces))
    return made


def with_tokens(made: Exchanges, x: Rows) -> Exchanges:
    """The same with what groups exchange before and after experts: tokens like `x`."""
    others = made.parallel.dp - 1
    sent, sums = (_peers(made.recorder, name, others, made.batch, x) for name in ("tokens", "made"))
    made.tokens = sent, sums
    return made


def _peers(recorder: Recorder, name: str, others: int, batch: int, rows: Rows) -> Peers:
    row = rows.handle.region.row_bytes
    return collective.declare(recorder, name, others, batch * rows.pieces, row, "bf16")


def _positions(
    recorder: Recorder,
    name: str,
    layer: Layer,
    parallel: Parallel,
    batch: int,
    regions: MlaRegions | DsaRegions | GqaRegions,
) -> Positions:
    shape, attention, gpus = layer.shape, _attention(regions), parallel.dcp
    others = gpus - 1
    assert isinstance(shape, MlaShape | DsaShape | GqaShape)
    heads = shape.attention.heads if isinstance(shape, DsaShape) else shape.heads
    pieces = pieces_of(shape)[1] if isinstance(shape, GqaShape) else 1

    def peers(what: str, rows: int, like: RegionHandle) -> Peers:
        region = like.region
        return collective.declare(recorder, f"{name}{what}", others, rows, region.row_bytes, region.dtype)

    def own(what: str, rows: int, row_bytes: int, dtype: str) -> RegionHandle:
        return recorder.region(f"dcp-{name}{what}", "activation", OUTSIDE, rows, row_bytes, dtype)

    lse = own("lse", gpus * batch * heads * gpus, 4, "fp32")
    found = Positions(
        heads=heads,
        pieces=pieces,
        queries=peers("queries", batch * heads, attention.q),
        sums=peers("results", batch * heads * pieces, attention.out),
        lse=lse,
        lse_parts=peers("lse", batch * heads * gpus, lse),
    )
    if not isinstance(regions, DsaRegions):
        return found
    k = regions.indices.region.rows
    candidates = own("candidates", k * gpus, CANDIDATE_BYTES, "bytes")
    return Positions(
        **vars(found) | {"candidates": candidates, "candidate_parts": peers("candidates", k, candidates)}
    )


def _attention(regions: MlaRegions | DsaRegions | GqaRegions) -> MlaRegions | GqaRegions:
    return regions.attention if isinstance(regions, DsaRegions) else regions


def _plain(layer: Layer) -> Layer:
    """A layer without the numbers of those that it shares with."""
    return Layer("", layer.kind, layer.shape, layer.projections)


@arithmetic
def weighted(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Results [heads x pieces, columns] of the first GPU, times its share of all sums [GPUs, heads, 1]."""
    share = (lse[0] - lse.logsumexp(0)).exp()
    return (out.float().reshape(len(share), -1) * share).reshape(out.shape)
