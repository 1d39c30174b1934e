"""What is before the first layer and after the last: rows of the input table, the output table, sampling.

A block a token reads its number and copies its row; after the last norm the whole output table is read once
for all tokens; the largest logit is found by some blocks a token (greedy). Left out: temperature, top-p, and
penalties, which read the logits again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from workloads import kit as kits
from workloads import pointwise
from workloads.activations import Rows, row_launch
from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.grid import even, one
from workloads.kit import Kit, Shared
from workloads.models.matrices import Matrix
from workloads.models.model import Weights
from workloads.record import Int64s, RegionHandle
from workloads.tensors import normal

SAMPLERS = 16  # blocks of a token that look for its largest logit

FACTS = (
    Fact("kernel.embedding.block", "a block a token", "assumed", "torch indexSelectSmallIndex"),
    Fact("kernel.sample.blocks", "16 a token", "assumed", "greedy: torch argmax over the vocabulary"),
    Fact("step.tokens", "drawn from the seed, all alike likely", "assumed", "rows of the input table"),
)


@dataclass(frozen=True)
class Outer:
    """Regions around the layers: numbers of tokens, the input table, and a kit with the output table.

    best   [tokens x 16] the largest logit of a part of the vocabulary, and its place
    """

    ids: RegionHandle
    next_ids: RegionHandle
    best: RegionHandle
    table: RegionHandle
    kit: Kit


def declare(shared: Shared, w: Weights, table: Matrix, head: Matrix, units: int, weights_dtype: str) -> Outer:
    """Regions around the layers."""
    recorder = shared.recorder
    acts = {"x": w.hidden, "residual": w.hidden, "vocabulary": w.vocab}
    if w.streams:
        acts = {"x": w.hidden, "streams": w.streams * w.hidden, "vocabulary": w.vocab}
    kit = kits.declare(shared, -1, units, weights_dtype, [head], {"last": w.hidden}, acts)
    return Outer(
        ids=shared.cells("token-ids", 1, "int32"),
        next_ids=shared.cells("next-ids", 1, "int32"),
        best=recorder.region("best", "activation", -1, shared.tokens * SAMPLERS, 8, "fp32"),
        table=recorder.region(f"w-{table.name}", "weights", -1, table.n, table.k * 2, "bf16"),
        kit=kit,
    )


def fill(outer: Outer, generator: torch.Generator) -> None:
    """Random normal tables."""
    outer.best.zero()
    outer.table.fill(normal(outer.table.shape, torch.bfloat16, generator))
    kits.fill(outer.kit, generator)


def embed(outer: Outer, tokens: Int64s) -> None:
    """Rows of the input table become the residual, or all streams of it."""
    kit, recorder = outer.kit, outer.kit.recorder
    to = kit.act["streams"] if "streams" in kit.act else kit.act["residual"]
    copies = to.width // kit.act["x"].width
    if not recorder.is_meta:
        outer.ids.fill(torch.from_numpy(tokens).to(recorder.device))
    launch = row_launch("embedding: a block per token")
    with recorder.kernel("embedding", "embedding", -1, kit.tokens, launch):
        for token in range(kit.tokens):
            mine = one(token)
            number = outer.ids.load(token, 1, mine)
            row = outer.table.gather(tokens[token : token + 1], mine)
            values = repeated(row, number, int(tokens[token]), copies)
            to.handle.store(token * to.pieces, values, mine)


def finish(outer: Outer) -> None:
    """The last norm, the logits of all tokens, the largest of them."""
    kit, act = outer.kit, outer.kit.act
    if "streams" in act:
        copies = act["streams"].width // act["x"].width
        kit.rows("last-norm", "norm", [act["streams"]], [act["x"]], mean_norm, copies, norm="last")
    else:
        both = [act["x"], act["residual"]]
        kit.rows("last-norm", "norm", both, both, pointwise.add_norm, norm="last")
    kit.product("head", act["x"], act["vocabulary"])


def sample(outer: Outer, logits: Rows) -> None:
    """The largest of each token's logits: of 16 parts each, then of these."""
    kit = outer.kit
    recorder, tokens, blocks = kit.recorder, kit.tokens, kit.tokens * SAMPLERS
    launch = row_launch("argmax: 16 blocks per token")
    with recorder.kernel("sample", "sample", -1, blocks, launch):
        found = logits.load(tokens, even(0, blocks - 1, 1))
        outer.best.store(0, part_maxima(found), even(0, blocks - 1, 1))
    with recorder.kernel("sample-last", "sample", -1, tokens, row_launch("argmax: a block per token")):
        found = outer.best.load(0, blocks, even(0, tokens - 1, SAMPLERS))
        outer.next_ids.store(0, last_maximum(found, tokens), even(0, tokens - 1, 1))


def drawn_tokens(seed: int, step: int, tokens: int, vocab: int) -> Int64s:
    """Numbers of the tokens that a step begins with."""
    return np.random.default_rng((seed, step)).integers(vocab, size=tokens)


@arithmetic
def repeated(row: torch.Tensor, number: torch.Tensor, wanted: int, copies: int) -> torch.Tensor:
    """A row of the table `copies` times; nothing where the number is another one than was looked up."""
    return torch.where(number == wanted, row.float(), torch.nan).repeat(1, copies)


@arithmetic
def mean_norm(streams: torch.Tensor, weight: torch.Tensor, count: int) -> torch.Tensor:
    """The norm of the mean of all streams."""
    return pointwise.norm(streams.float().unflatten(1, (count, -1)).mean(1), weight)


@arithmetic
def part_maxima(logits: torch.Tensor) -> torch.Tensor:
    """The largest logits of 16 parts of each token's, each beside its place: [tokens, 16, 2]."""
    parts = logits.float().unflatten(1, (SAMPLERS, -1))
    best = parts.max(dim=2)
    first = torch.arange(SAMPLERS, device=logits.device) * parts.shape[2]
    return torch.stack([best.values, (best.indices + first).float()], dim=2)


@arithmetic
def last_maximum(best: torch.Tensor, tokens: int) -> torch.Tensor:
    """The place of the largest logit of each token: [tokens]."""
    pairs = best.reshape(tokens, SAMPLERS, 2)
    return pairs[:, :, 1].gather(1, pairs[:, :, 0].argmax(1, keepdim=True)).int()
