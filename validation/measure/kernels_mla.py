"""FlashMLA decode attention on Hopper: dense over a paged bf16 cache, sparse over a paged fp8 cache (656-byte
rows).

Pages of 64 tokens lie in the pool in a random order. The scheduling kernel runs once, outside the graph
(production runs it once a step, not once a layer); a call is the attention kernel and the kernel that
combines its parts. `off_ppm` is the distance of one call's output from attention in fp32 over the same rows
(short ones only).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from . import kernels_libs as libs
from .device import Env
from .kernels_data import buffers_for, hold, off_ppm, shuffled_pages
from .points import Point
from .rows import Measured
from .timing import Work, time_work

if TYPE_CHECKING:
    import torch

PAGE_BYTES = libs.PAGE_TOKENS * libs.ROW_DIMS * 2
CHECKED_TOKENS = 16384
MOST_CALLS = 256


def queries(env: Env, batch: int, heads: int, seed: int) -> torch.Tensor:
    """[batch, 1, heads, 576] bf16."""
    import torch

    generator = torch.Generator(device=env.device).manual_seed(seed)
    return torch.randn(batch, 1, heads, libs.ROW_DIMS, generator=generator, device=env.device).bfloat16()


def answers(env: Env, batch: int, heads: int) -> torch.Tensor:
    """Room for [batch, 1, heads, 512] bf16."""
    import torch

    return torch.empty(batch, 1, heads, libs.LATENT, dtype=torch.bfloat16, device=env.device)


def small_bytes(batch: int, heads: int) -> tuple[int, int]:
    """Bytes of the queries (read) and of the outputs with their log-sums (written)."""
    return batch * heads * libs.ROW_DIMS * 2, batch * heads * (libs.LATENT * 2 + 4)


def attention(q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Reference in fp32: q [heads, 576], rows [tokens, 576] -> [heads, 512]."""
    scores = q.float() @ rows.float().T * libs.ROW_DIMS**-0.5
    return scores.softmax(dim=-1) @ rows[:, : libs.LATENT].float()


def decoded_rows(packed: torch.Tensor) -> torch.Tensor:
    """The numbers that 656-byte rows stand for: uint8 [tokens, 656] -> fp32 [tokens, 576]."""
    import torch

    packed = packed.contiguous()
    values = packed[:, : libs.LATENT].contiguous().view(torch.float8_e4m3fn).float()
    scales = packed[:, libs.LATENT : libs.LATENT + 16].contiguous().view(torch.float32)
    rope = packed[:, libs.LATENT + 16 :].contiguous().view(torch.bfloat16).float()
    return torch.cat([values * scales.repeat_interleave(128, dim=1), rope], dim=1)


def dense(point: Point, env: Env) -> Measured:
    context, batch, heads = point["context"], point["batch"], point["heads"]
    pages = -(-context // libs.PAGE_TOKENS)
    moved = batch * pages * PAGE_BYTES
    count = buffers_for(moved, most=MOST_CALLS)
    libs.load("_flashmla_C")
    found: dict[str, int] = {}

    def build(round_index: int) -> Work:
        import torch

        pool = hold(env, "bf16", count * moved).view(torch.bfloat16)
        cache = pool.view(-1, libs.PAGE_TOKENS, 1, libs.ROW_DIMS)
        order = shuffled_pages(count * batch * pages, point.seed + round_index, env.device)
        tables = order.view(count, batch, pages)
        lengths = torch.full((batch,), context, dtype=torch.int32, device=env.device)
        q, out = queries(env, batch, heads, point.seed), answers(env, batch, heads)
        _, plan = libs.dense_attend(q, cache, lengths, tables[0], None, out)
        if round_index == 0 and context <= CHECKED_TOKENS and not env.profile:
            wanted = attention(q[0, 0], cache[tables[0, 0].long()].reshape(-1, libs.ROW_DIMS)[:context])
            found["off_ppm"] = off_ppm(out[0, 0], wanted)
        calls = [functools.partial(libs.dense_attend, q, cache, lengths, row, plan, out) for row in tables]
        read, written = small_bytes(batch, heads)
        return Work(calls, batch * context * libs.ROW_DIMS * 2 + read, written, count * moved, keep=pool)

    measured = time_work(build, env)
    measured.extra |= found
    return measured


def sparse(point: Point, env: Env) -> Measured:
    """`span` tokens lie in the pool; every sequence draws its k rows from all of them, anew for each call."""
    batch, heads, k, span = point["batch"], point["heads"], point["k"], point["span"]
    moved = batch * k * libs.FP8_ROW_BYTES
    count = buffers_for(moved)
    libs.load("_flashmla_C")
    found: dict[str, int] = {}

    def build(round_index: int) -> Work:
        import torch

        pool = hold(env, "rows", span * libs.FP8_ROW_BYTES)
        cache = pool.view(-1, libs.PAGE_TOKENS, 1, libs.FP8_ROW_BYTES)
        generator = torch.Generator(device=env.device).manual_seed(point.seed + round_index)
        shape = (count, batch, 1, k)
        slots = torch.randint(0, span, shape, generator=generator, device=env.device).to(torch.int32)
        q, out = queries(env, batch, heads, point.seed), answers(env, batch, heads)
        _, plan = libs.sparse_attend(q, cache, slots[0], None, out)
        if round_index == 0 and not env.profile:
            rows = decoded_rows(pool.view(-1, libs.FP8_ROW_BYTES)[slots[0, 0, 0].long()])
            found["off_ppm"] = off_ppm(out[0, 0], attention(q[0, 0], rows))
        calls = [functools.partial(libs.sparse_attend, q, cache, row, plan, out) for row in slots]
        read, written = small_bytes(batch, heads)
        return Work(calls, moved + batch * k * 4 + read, written, count * moved, keep=(pool, slots))

    measured = time_work(build, env)
    measured.extra |= found
    return measured


FAMILIES = {"mla.dense": dense, "mla.sparse": sparse}
