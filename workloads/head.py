"""What is before the first layer and after the last: rows of the input table, the output table, sampling.

A block a token reads its number and copies its row; after the last norm the whole output table is read once
for all tokens; torch's argmax finds the largest logit of each (greedy): a block a token, or several where a
thread would have many logits. Left out: temperature, top-p, and penalties, which read the logits again, and
what the blocks of a token tell each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from workloads import kit as kits
from workloads import pointwise
from workloads.activations import Rows, row_launch, shape_at
from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.grid import even, one
from workloads.kit import Kit, Shared
from workloads.models.matrices import Matrix
from workloads.models.model import Weights
from workloads.record import Int64s, Recorder, RegionHandle
from workloads.tensors import normal

THREADS, RESIDENT = 512, 4  # of a block of torch's reductions; blocks of a unit
LEAST, MOST = 16, 256  # values of a thread: fewer, and blocks do not share a row; as many, and they do
ARGMAX, SHARED_ARGMAX = "argmax", "argmax-shared"  # costs

FACTS = (
    Fact("kernel.embedding.block", "a block a token", "assumed", "torch indexSelectSmallIndex"),
    Fact(
        "kernel.sample.blocks",
        "one a token; from 131,072 logits on as many as leave a thread 16, and fill the units",
        "stated",
        "torch's Reduce.cuh, setReduceConfig; H200: glue.argmax, 130,048 and 133,120 logits",
    ),
    Fact("step.tokens", "drawn from the seed, all alike likely", "assumed", "rows of the input table"),
)


@dataclass(frozen=True)
class Outer:
    """Regions around the layers: numbers of tokens, the input table, and a kit with the output table."""

    ids: RegionHandle
    next_ids: RegionHandle
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
        table=recorder.region(f"w-{table.name}", "weights", -1, table.n, table.k * 2, "bf16"),
        kit=kit,
    )


def fill(outer: Outer, generator: torch.Generator) -> None:
    """Random normal tables."""
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
    """The largest of each token's logits."""
    kit = outer.kit
    argmax(kit.recorder, logits, outer.next_ids, kit.tokens, kit.units)


def argmax(recorder: Recorder, logits: Rows, to: RegionHandle, tokens: int, units: int) -> None:
    """Places of the largest of each token's logits, by torch's reduction."""
    each_has = -(-logits.width // THREADS)
    shared = each_has >= MOST
    blocks = (
        max(min(-(-units * RESIDENT // tokens), -(-each_has // LEAST)), -(-each_has // MOST)) if shared else 1
    )
    launch, at = row_launch("argmax: a block per token, or several"), shape_at(tokens, logits.width)
    cost = SHARED_ARGMAX if shared else ARGMAX
    with recorder.kernel("sample", "sample", -1, tokens * blocks, launch, cost=cost, at=at):
        found = logits.load(tokens, even(0, tokens * blocks - 1, 1))
        to.store(0, largest(found), even(0, tokens - 1, 1))


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
def largest(logits: torch.Tensor) -> torch.Tensor:
    """The place of each token's largest logit: [tokens]."""
    return logits.float().argmax(1).int()
