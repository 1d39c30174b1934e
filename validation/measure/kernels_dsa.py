"""The selection of DeepSeek sparse attention: index scores over a paged key cache, then the k best positions.

Scores: DeepGEMM's paged fp8 MQA kernel. Its scheduling kernel (`get_paged_mqa_logits_metadata`) runs once,
outside the graph: production makes it once a step for all layers. Top-k: vLLM's `persistent_topk` (what it
runs for k = 512, 1024 and 2048), its older `top_k_per_row_decode`, and `torch.topk`, each a family of its
own. Scores of a top-k are `peaked` (log-normal: few stand out), `normal`, or `flat` (all within a
thousandth of 1: leading digits do not tell them apart).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import kernels_libs as libs
from .device import Env
from .kernels_data import buffers_for, hold, off_ppm, shuffled_pages
from .points import Point
from .rows import Measured
from .timing import Work, time_work

if TYPE_CHECKING:
    import torch

PAGE_BYTES = libs.PAGE_TOKENS * libs.INDEX_ROW_BYTES
CHECKED_TOKENS = 16384
MOST_CALLS = 256


def index_queries(env: Env, batch: int, heads: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 queries [batch, 1, heads, 128] and the fp32 weights of the heads [batch, heads]."""
    import torch

    generator = torch.Generator(device=env.device).manual_seed(seed)
    q = torch.randn(batch, 1, heads, libs.INDEX_DIMS, generator=generator, device=env.device)
    weights = torch.randn(batch, heads, generator=generator, device=env.device) / heads
    return q.to(torch.float8_e4m3fn), weights


def index_scores(q: torch.Tensor, weights: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Reference in fp32: q [heads, 128] fp8, weights [heads], pages uint8 [n, 8448] -> [n * 64]."""
    import torch

    values = libs.PAGE_TOKENS * libs.INDEX_DIMS
    keys = pages[:, :values].contiguous().view(torch.float8_e4m3fn).float().view(-1, libs.INDEX_DIMS)
    scales = pages[:, values:].contiguous().view(torch.float32).view(-1)
    return (weights @ (q.float() @ keys.T).relu()) * scales


def scores(point: Point, env: Env) -> Measured:
    context, batch, heads = point["context"], point["batch"], point["heads"]
    pages = -(-context // libs.PAGE_TOKENS)
    moved = batch * pages * PAGE_BYTES
    count = buffers_for(moved, most=MOST_CALLS)
    found: dict[str, int] = {}

    def build(round_index: int) -> Work:
        import torch

        pool = hold(env, "index", count * moved)
        cache = pool.view(-1, libs.PAGE_TOKENS, 1, libs.INDEX_ROW_BYTES)
        order = shuffled_pages(count * batch * pages, point.seed + round_index, env.device)
        tables = order.view(count, batch, pages)
        lengths = torch.full((batch, 1), context, dtype=torch.int32, device=env.device)
        q, weights = index_queries(env, batch, heads, point.seed)
        plan = libs.index_plan(lengths)
        if round_index == 0 and context <= CHECKED_TOKENS and not env.profile:
            got = libs.index_logits(q, cache, weights, lengths, tables[0], plan, context)[0, :context]
            wanted = index_scores(q[0, 0], weights[0], pool.view(-1, PAGE_BYTES)[tables[0, 0].long()])
            found["off_ppm"] = off_ppm(got, wanted[:context])
        calls = [
            functools.partial(libs.index_logits, q, cache, weights, lengths, row, plan, context)
            for row in tables
        ]
        read = batch * (context * libs.INDEX_ROW_BYTES + pages * 4 + heads * (libs.INDEX_DIMS + 4))
        return Work(calls, read, batch * context * 4, count * moved, keep=(pool, plan))

    measured = time_work(build, env)
    measured.extra |= found
    return measured


def drawn_scores(env: Env, kind: str, count: int, batch: int, length: int, seed: int) -> torch.Tensor:
    """[count, batch, length] fp32, `peaked`, `normal` or `flat`; different in every row up to 2^28 numbers,
    then repeated.
    """
    import torch

    generator = torch.Generator(device=env.device).manual_seed(seed)
    rows = max(1, min(count, (1 << 28) // (batch * length)))
    shape = (rows, batch, length)
    if kind == "peaked":
        made = torch.randn(shape, generator=generator, device=env.device).mul_(2).exp_()
    elif kind == "normal":
        made = torch.randn(shape, generator=generator, device=env.device)
    else:
        made = torch.rand(shape, generator=generator, device=env.device).mul_(1e-3).add_(1)
    return made.repeat(-(-count // rows), 1, 1)[:count]


def misplaced(logits: torch.Tensor, chosen: torch.Tensor, k: int) -> int:
    """How many of the k positions of row 0 are not among the k largest (equal values pass), plus repeats."""
    least = logits[0].topk(k).values[-1]
    picked = chosen[0].long()
    wrong = int((logits[0][picked.clamp(0, logits.shape[1] - 1)] < least).sum()) + int((picked < 0).sum())
    return wrong + k - picked.unique().numel()


def timed_top_k(
    point: Point, env: Env, bind: Callable[..., Callable[[], object]], *, check: bool = True
) -> Measured:
    """`bind(logits, lengths, chosen, workspace)` gives the call for one buffer of scores."""
    length, batch, k = point["length"], point["batch"], point["k"]
    moved = batch * length * 4
    count = buffers_for(moved, most=MOST_CALLS)
    env.facts.pop("held", None)
    found: dict[str, int] = {}

    def build(round_index: int) -> Work:
        import torch

        made = drawn_scores(env, str(point["scores"]), count, batch, length, point.seed + round_index)
        lengths = torch.full((batch, 1), length, dtype=torch.int32, device=env.device)
        chosen = torch.empty(batch, k, dtype=torch.int32, device=env.device)
        workspace = torch.zeros(libs.TOPK_WORKSPACE_BYTES, dtype=torch.uint8, device=env.device)
        calls = [bind(row, lengths, chosen, workspace) for row in made]
        if round_index == 0 and check and not env.profile:
            calls[0]()
            found["misplaced"] = misplaced(made[0], chosen, k)
        return Work(calls, moved, batch * k * 4, count * moved, keep=(made, workspace))

    measured = time_work(build, env)
    measured.extra |= found
    return measured


def top_k(point: Point, env: Env) -> Measured:
    libs.load("_C")
    length = point["length"]
    return timed_top_k(
        point,
        env,
        lambda logits, lengths, chosen, space: functools.partial(
            libs.top_k, logits, lengths, chosen, space, length
        ),
    )


def top_k_per_row(point: Point, env: Env) -> Measured:
    libs.load("_C")
    return timed_top_k(
        point,
        env,
        lambda logits, lengths, chosen, space: functools.partial(libs.top_k_per_row, logits, lengths, chosen),
    )


def torch_top_k(point: Point, env: Env) -> Measured:
    import torch

    k = point["k"]
    return timed_top_k(
        point,
        env,
        lambda logits, lengths, chosen, space: functools.partial(torch.topk, logits, k, dim=-1, sorted=False),
        check=False,
    )


FAMILIES = {
    "dsa.logits": scores,
    "dsa.topk": top_k,
    "dsa.topk_per_row": top_k_per_row,
    "dsa.torch_topk": torch_top_k,
}
