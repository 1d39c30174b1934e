"""Kernels with weights or caches as a step runs them, behind other kernels: `kernels_after` says how.

Products in bf16 (cuBLAS), one for each head (bmm), experts (vLLM's Triton kernel), attention over short
contexts (FlashMLA, its combine pass with it). Weights and caches lie outside the arena: `again` they stay in
the L2 if they fit, `after` they come from HBM.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from . import kernels_libs as libs
from .kernels_after import Arena, Made, measured_by
from .kernels_data import shuffled_pages
from .kernels_gemv import ACTIVE, EXPERT_SHAPES, EXPERTS, assigned, expert_call, expert_config
from .kernels_mla import attention
from .points import Point

if TYPE_CHECKING:
    import torch

KEY_DIMS = 128
WEIGHT_DEVIATION = 0.02


def weights(arena: Arena, *shape: int) -> torch.Tensor:
    """bf16 weights outside the arena."""
    import torch

    made = torch.empty(shape, dtype=torch.bfloat16, device=arena.device)
    return made.normal_(std=WEIGHT_DEVIATION)


def make_linear(point: Point, arena: Arena) -> Made:
    import torch

    n, k, tokens = point["n"], point["k"], point["tokens"]
    x, weight = arena.normal(tokens, k), weights(arena, n, k)
    kept: list[torch.Tensor] = []

    def call() -> None:
        kept[:] = [torch.nn.functional.linear(x, weight)]

    moved = (n + tokens) * k * 2, tokens * n * 2
    return Made(call, *moved, lambda: x[:1].float() @ weight.float().T, lambda: kept[0][:1], keep=weight)


def make_heads(point: Point, arena: Arena) -> Made:
    """A product for each head: queries with the keys' part of the up projection, or latents with values'."""
    import torch

    heads, tokens = point["heads"], point["tokens"]
    k, n = (KEY_DIMS, libs.LATENT) if point["part"] == "key" else (libs.LATENT, KEY_DIMS)
    x = arena.normal(tokens, heads, k).transpose(0, 1)
    weight, out = weights(arena, heads, k, n), arena.room(heads, tokens, n)
    call = functools.partial(torch.bmm, x, weight, out=out)
    moved = (heads * k * (n + tokens)) * 2, heads * tokens * n * 2
    return Made(call, *moved, lambda: torch.bmm(x.float(), weight.float()), lambda: out, keep=weight)


def make_experts(point: Point, arena: Arena) -> Made:
    """bf16 experts of Kimi Linear; tokens choose different ones."""
    tokens, up = point["tokens"], point["part"] == "up"
    hidden, inner, _ = EXPERT_SHAPES["kimi"]
    n, k = (2 * inner, hidden) if up else (hidden, inner)
    libs.load("_moe_C")
    weight, rows = weights(arena, EXPERTS, n, k), tokens if up else tokens * ACTIVE
    x, out = arena.normal(rows, k), arena.room(tokens, ACTIVE, n)
    ids = arena.distinct(EXPERTS, tokens, ACTIVE)
    config = expert_config(tokens, hidden, inner, False)
    scale = None if up else arena.normal(tokens * ACTIVE).float().view(tokens, ACTIVE)
    routed = assigned(ids, config["BLOCK_SIZE_M"])
    call = expert_call((x, None), (weight, None), out, routed, config, scale)
    read = ids.unique().numel() * n * k * 2 + rows * k * 2
    return Made(call, read, out.numel() * 2, keep=(weight, routed, scale))


def make_mla(point: Point, arena: Arena) -> Made:
    import torch

    libs.load("_flashmla_C")
    context, batch, heads = point["context"], point["batch"], point["heads"]
    pages = -(-context // libs.PAGE_TOKENS)
    cache = torch.empty(
        *(batch * pages, libs.PAGE_TOKENS, 1, libs.ROW_DIMS), dtype=torch.bfloat16, device=arena.device
    ).normal_()
    table = shuffled_pages(batch * pages, point.seed, arena.device).view(batch, pages)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=arena.device)
    q, out = arena.normal(batch, 1, heads, libs.ROW_DIMS), arena.room(batch, 1, heads, libs.LATENT)
    _, plan = libs.dense_attend(q, cache, lengths, table, None, out)
    call = functools.partial(libs.dense_attend, q, cache, lengths, table, plan, out)

    def wanted() -> torch.Tensor:
        return attention(q[0, 0], cache[table[0].long()].reshape(-1, libs.ROW_DIMS)[:context])

    row = batch * heads * libs.ROW_DIMS * 2
    written = batch * heads * (libs.LATENT * 2 + 4)
    keep = (cache, table, lengths, plan)
    return Made(call, batch * context * libs.ROW_DIMS * 2 + row, written, wanted, lambda: out[0, 0], keep)


FAMILIES = {
    "inner.linear": measured_by(make_linear),
    "inner.heads": measured_by(make_heads),
    "inner.experts": measured_by(make_experts),
    "inner.mla": measured_by(make_mla),
}
