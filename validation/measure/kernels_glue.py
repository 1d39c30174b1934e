"""Kernels between the products of a step: norms, activations, rotary turns, routers, sums, copies, samplers.

They are what vLLM 0.22.0 and FLA run, as `stacks_step` calls them; `kernels_after` says in which state. Each
`make_*` binds one call for a point: its inputs lie in the arena.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from . import kernels_libs as libs
from .kernels_after import Arena, Made, measured_by
from .kernels_fla import DIMS, quiet_fla
from .points import Point

if TYPE_CHECKING:
    import torch

EPSILON = 1e-5
TAPS = 4
PAGES = 1024  # of the caches that rows are written to
ROUTED_SCALE = 2.5
GROUPS, GROUPS_USED = 8, 4  # of DeepSeek's router
CODED = 128  # values that share a scale
CODED_MOST = 448.0


def rms(x: torch.Tensor) -> torch.Tensor:
    """The reference of a norm with weights of 1."""
    x = x.float()
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt()


def make_norm(point: Point, arena: Arena) -> Made:
    import torch

    for library in ("_C", "_C_stable_libtorch"):
        libs.load(library)
    width, tokens = point["width"], point["tokens"]
    x, weight = arena.normal(tokens, width), arena.room(width).fill_(1)
    row = tokens * width * 2
    if point["kind"] == "add":
        residual = arena.normal(tokens, width)
        call = functools.partial(torch.ops._C.fused_add_rms_norm, x, residual, weight, EPSILON)
        return Made(call, 2 * row + width * 2, 2 * row, lambda: rms(x + residual), lambda: x)
    out = arena.room(tokens, width)
    call = functools.partial(torch.ops._C.rms_norm, out, x, weight, EPSILON)
    return Made(call, row + width * 2, row, lambda: rms(x), lambda: out)


def make_silu(point: Point, arena: Arena) -> Made:
    import torch

    for library in ("_C", "_C_stable_libtorch"):
        libs.load(library)
    width, rows = point["width"], point["rows"]
    x, out = arena.normal(rows, 2 * width), arena.room(rows, width)

    def wanted() -> torch.Tensor:
        gate, up = x.float().chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up

    call = functools.partial(torch.ops._C.silu_and_mul, out, x)
    return Made(call, rows * width * 4, rows * width * 2, wanted, lambda: out)


def make_rotary(point: Point, arena: Arena) -> Made:
    import torch

    for library in ("_C", "_C_stable_libtorch"):
        libs.load(library)
    heads, keys, dim, tokens = (point[axis] for axis in ("heads", "kv_heads", "dim", "tokens"))
    q, k = arena.normal(tokens, heads * dim), arena.normal(tokens, keys * dim)
    table = torch.randn(1 << 16, dim, device=arena.device).bfloat16()
    positions = arena.whole(1 << 16, tokens, dtype=torch.int64)
    call = functools.partial(torch.ops._C.rotary_embedding, positions, q, k, dim, table, True)
    moved = tokens * (heads + keys) * dim * 2

    def wanted() -> torch.Tensor:
        cos, sin = table[positions].float()[:, None].chunk(2, dim=-1)
        first, second = q.float().view(tokens, heads, dim).chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(1)

    return Made(call, moved + tokens * (8 + dim * 2), moved, wanted, lambda: q, keep=table)


def make_router(point: Point, arena: Arena) -> Made:
    """The choice of `k` experts; of `grouped` ones among four of eight groups."""
    import torch

    libs.load("_moe_C")
    experts, k, tokens = point["experts"], point["k"], point["tokens"]
    logits = arena.normal(tokens, experts)
    scale = arena.room(tokens, k, dtype=torch.float32)
    ids, rows = (arena.room(tokens, k, dtype=torch.int32) for _ in range(2))
    bias = arena.room(experts, dtype=torch.float32).fill_(0)
    read, written = tokens * experts * 2 + experts * 4, tokens * k * 12
    if point["kind"] == "grouped":
        scores = arena.normal(tokens, experts, dtype=torch.float32)
        grouped = torch.ops._moe_C.grouped_topk
        chosen = functools.partial(grouped, scores, GROUPS, GROUPS_USED, k, True, ROUTED_SCALE, bias, 1)
        return Made(chosen, tokens * experts * 4 + experts * 4, tokens * k * 8)
    kernel = torch.ops._moe_C.topk_sigmoid if point["kind"] == "sigmoid" else torch.ops._moe_C.topk_softmax
    call = functools.partial(kernel, scale, ids, rows, logits, True, bias)

    def wanted() -> torch.Tensor:
        return logits.float().topk(k, dim=-1).values

    return Made(call, read, written, wanted, lambda: logits.float().gather(1, ids.long()))


def make_sum(point: Point, arena: Arena) -> Made:
    """The sum over the experts of each token: torch's reduction for more than four of them."""
    import torch

    libs.load("_moe_C")
    k, width, tokens = point["k"], point["width"], point["tokens"]
    x, out = arena.normal(tokens, k, width), arena.room(tokens, width)
    call = functools.partial(torch.ops._moe_C.moe_sum, x, out)
    return Made(call, x.numel() * 2, out.numel() * 2, lambda: x.float().sum(1), lambda: out)


def make_elementwise(point: Point, arena: Arena) -> Made:
    """torch's own: a sum of two bf16 tensors, a scale of a fp32 one in place, an int32 one filled."""
    import torch

    numbers = point["numbers"]
    if point["kind"] == "add":
        x, y, out = arena.normal(numbers), arena.normal(numbers), arena.room(numbers)
        call = functools.partial(torch.add, x, y, out=out)
        return Made(call, numbers * 4, numbers * 2, lambda: x.float() + y.float(), lambda: out)
    if point["kind"] == "scale":
        scaled = arena.room(numbers, dtype=torch.float32).fill_(1)
        return Made(functools.partial(scaled.mul_, 1.0001), numbers * 4, numbers * 4)
    filled = arena.room(numbers, dtype=torch.int32)
    return Made(functools.partial(filled.fill_, 7), 0, numbers * 4)


def make_cat(point: Point, arena: Arena) -> Made:
    """Latent and rotary parts of queries side by side; the latent ones heads first, as bmm leaves them."""
    import torch

    heads, tokens = point["heads"], point["tokens"]
    latent = arena.normal(heads, tokens, libs.LATENT).transpose(0, 1)
    whole = arena.normal(tokens, heads, 192)
    out = arena.room(tokens, heads, libs.ROW_DIMS)
    parts = [latent, whole[..., 128:]]
    moved = tokens * heads * libs.ROW_DIMS * 2
    call = functools.partial(torch.cat, parts, dim=-1, out=out)
    return Made(call, moved, moved, lambda: torch.cat([part.float() for part in parts], -1), lambda: out)


def make_argmax(point: Point, arena: Arena) -> Made:
    import torch

    vocabulary, tokens = point["vocabulary"], point["tokens"]
    logits, out = arena.normal(tokens, vocabulary), arena.room(tokens, dtype=torch.int64)
    call = functools.partial(torch.argmax, logits, dim=-1, out=out)

    def found() -> torch.Tensor:
        return logits.gather(1, out[:, None])

    return Made(call, logits.numel() * 2, tokens * 8, lambda: logits.float().amax(1, keepdim=True), found)


def make_append(point: Point, arena: Arena) -> Made:
    """New rows into a paged cache: latent rows in bf16 or fp8, keys and values of 8 heads, index keys."""
    import torch

    libs.load("_C")
    ops, tokens, kind = torch.ops._C_cache_ops, point["tokens"], point["kind"]
    slots = arena.whole(PAGES * libs.PAGE_TOKENS, tokens, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.float32, device=arena.device)

    def cache(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(PAGES, libs.PAGE_TOKENS, *shape, dtype=dtype, device=arena.device)

    if kind == "flash":
        pair = [arena.normal(tokens, 8, DIMS) for _ in range(2)]
        caches = [cache(8, DIMS, dtype=torch.bfloat16) for _ in range(2)]
        call = functools.partial(ops.reshape_and_cache_flash, *pair, *caches, slots, "auto", one, one)
        return Made(call, tokens * (8 * DIMS * 4 + 8), tokens * 8 * DIMS * 4, keep=(caches, one))
    if kind == "index":
        rows = cache(libs.INDEX_ROW_BYTES, dtype=torch.uint8)
        key = arena.normal(tokens, libs.INDEX_DIMS)
        call = functools.partial(ops.indexer_k_quant_and_cache, key, rows, slots, CODED, "ue8m0")
        return Made(call, tokens * (libs.INDEX_DIMS * 2 + 8), tokens * libs.INDEX_ROW_BYTES, keep=rows)
    coded = kind == "latent_fp8"
    width, dtype = (libs.FP8_ROW_BYTES, torch.uint8) if coded else (libs.ROW_DIMS, torch.bfloat16)
    rows, row = cache(width, dtype=dtype), arena.normal(tokens, libs.ROW_DIMS)
    latent = arena.normal(tokens, libs.LATENT)
    words = "fp8_ds_mla" if coded else "auto"
    call = functools.partial(ops.concat_and_cache_mla, latent, row[:, libs.LATENT :], rows, slots, words, one)
    return Made(call, tokens * (libs.ROW_DIMS * 2 + 8), tokens * width * dtype.itemsize, keep=(rows, one))


def make_align(point: Point, arena: Arena) -> Made:
    """Pairs of tokens and experts put in order of experts, each in blocks of rows: two kernels."""
    import torch

    libs.load("_moe_C")
    experts, block, tokens = point["experts"], point["block"], point["tokens"]
    ids = arena.distinct(experts, tokens, 8)
    most = ids.numel() + experts * (block - 1)
    if ids.numel() < experts:
        most = min(ids.numel() * block, most)
    order = arena.room(most, dtype=torch.int32)
    owners = arena.room(-(-most // block), dtype=torch.int32)
    padded = arena.room(1, dtype=torch.int32)
    align = torch.ops._moe_C.moe_align_block_size
    call = functools.partial(align, ids, experts, block, order, owners, padded, None)
    return Made(call, 2 * ids.numel() * 4, (most + owners.numel() + 1) * 4)


def make_conv(point: Point, arena: Arena) -> Made:
    """FLA's convolution of four taps over one new token of each sequence; the taps kept from former ones."""
    import torch

    quiet_fla()
    from fla.modules.causal_conv1d import causal_conv1d_update

    width, tokens = point["width"], point["tokens"]
    x, weight = arena.normal(tokens, width), arena.normal(width, TAPS)
    kept = torch.randn(tokens, width, TAPS, device=arena.device).bfloat16()
    call = functools.partial(causal_conv1d_update, x, cache=kept, weight=weight, activation="silu")
    taps = tokens * width * TAPS * 2
    return Made(call, tokens * width * 2 + taps + width * TAPS * 2, tokens * width * 2 + taps, keep=kept)


def make_gated_norm(point: Point, arena: Arena) -> Made:
    """FLA's norm of each head, times the sigmoid of a gate."""
    quiet_fla()
    from fla.modules.norm.fused_norm_gate import layer_norm_gated_fwd

    rows = point["tokens"] * point["heads"]
    x, gate, weight = arena.normal(rows, DIMS), arena.normal(rows, DIMS), arena.room(DIMS).fill_(1)
    call = functools.partial(
        layer_norm_gated_fwd, x, gate, weight, None, "sigmoid", EPSILON, is_rms_norm=True
    )
    return Made(call, rows * DIMS * 4 + DIMS * 2, rows * DIMS * 2 + rows * 4)


def make_quantise(point: Point, arena: Arena) -> Made:
    """Rows in fp8, 128 values to a scale; scales in the layout that DeepGEMM takes."""
    import torch

    for library in ("_C", "_C_stable_libtorch"):
        libs.load(library)
    width, tokens = point["width"], point["tokens"]
    x = arena.normal(tokens, width)
    coded = arena.room(tokens, width, dtype=torch.float8_e4m3fn)
    scales = arena.room(width // CODED, -(-tokens // 4) * 4, dtype=torch.float32).T[:tokens]
    limits = (CODED, 1e-10, -CODED_MOST, CODED_MOST)
    kernel = torch.ops._C.per_token_group_fp8_quant
    call = functools.partial(kernel, x, coded, scales, *limits, False, False, False)

    def found() -> torch.Tensor:
        return (coded.float().view(tokens, -1, CODED) * scales[:, :, None]).flatten(1)

    written = tokens * (width + width // CODED * 4)
    return Made(call, tokens * width * 2, written, lambda: x.float(), found)


FAMILIES = {
    "glue.norm": measured_by(make_norm),
    "glue.silu": measured_by(make_silu),
    "glue.rotary": measured_by(make_rotary),
    "glue.router": measured_by(make_router),
    "glue.sum": measured_by(make_sum),
    "glue.elementwise": measured_by(make_elementwise),
    "glue.cat": measured_by(make_cat),
    "glue.argmax": measured_by(make_argmax),
    "glue.append": measured_by(make_append),
    "glue.align": measured_by(make_align),
    "glue.conv": measured_by(make_conv),
    "glue.gated_norm": measured_by(make_gated_norm),
    "glue.quantise": measured_by(make_quantise),
}
