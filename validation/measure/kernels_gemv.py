"""Matrix products of one decode step: few tokens against weights that are read once. bf16, fp8 in blocks,
experts.

bf16: `torch.nn.functional.linear` (cuBLAS), which serving engines call for unquantised weights. fp8: DeepGEMM
with 128 x 128 blocks of weight scales and 1 x 128 of activation scales, as DeepSeek checkpoints have them;
scales of the activations come in the layout that the kernel takes, so that it is the only kernel. Experts:
vLLM's fused MoE kernel, 8 of 256 experts a token, drawn at random for each call; which experts a call reads
is known, and counted. Activations are the same for all calls of a graph, hence found in the L2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import kernels_libs as libs
from .device import Env
from .kernels_data import buffers_for, hold, off_ppm
from .points import Point
from .rows import Measured
from .timing import Work, time_work

if TYPE_CHECKING:
    import torch

BLOCK = 128
EXPERTS, ACTIVE = 256, 8
EXPERT_SHAPES = {
    "kimi": (2304, 1024, "bf16"),
    "deepseek": (7168, 2048, "fp8"),
}  # hidden, intermediate, weights
MOST_CALLS = 256


def bf16(point: Point, env: Env) -> Measured:
    n, k, tokens = point["n"], point["k"], point["tokens"]
    moved = n * k * 2
    count = buffers_for(moved, most=MOST_CALLS)
    found: dict[str, int] = {}

    def build(round_index: int) -> Work:
        import torch

        weights = hold(env, "bf16", count * moved).view(torch.bfloat16)[: count * n * k].view(count, n, k)
        generator = torch.Generator(device=env.device).manual_seed(point.seed + round_index)
        x = torch.randn(tokens, k, generator=generator, device=env.device).bfloat16()
        order = torch.randperm(
            count, generator=torch.Generator().manual_seed(point.seed + round_index)
        ).tolist()
        if round_index == 0 and not env.profile:
            wanted = x[:1].float() @ weights[0].float().T
            found["off_ppm"] = off_ppm(torch.nn.functional.linear(x, weights[0])[:1], wanted)
        calls = [functools.partial(torch.nn.functional.linear, x, weights[i]) for i in order]
        return Work(calls, moved + tokens * k * 2, tokens * n * 2, count * moved, keep=weights)

    measured = time_work(build, env)
    measured.extra |= found
    return measured


def blocks(n: int, k: int) -> tuple[int, int]:
    """Scales of an n x k matrix in 128 x 128 blocks."""
    return -(-n // BLOCK), -(-k // BLOCK)


def fp8_activations(env: Env, tokens: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 [tokens, k] and fp32 scales [tokens, k / 128]."""
    import torch

    generator = torch.Generator(device=env.device).manual_seed(seed)
    x = torch.randn(tokens, k, generator=generator, device=env.device).to(torch.float8_e4m3fn)
    return x, torch.rand(tokens, k // BLOCK, generator=generator, device=env.device) + 0.5


def column_major(scales: torch.Tensor) -> torch.Tensor:
    """The same scales with rows side by side and 16-byte columns: what DeepGEMM takes without a copy."""
    rows, columns = scales.shape
    room = scales.new_zeros(columns, -(-rows // 4) * 4)
    room[:, :rows] = scales.T
    return room.T[:rows]


def fp8(point: Point, env: Env) -> Measured:
    n, k, tokens = point["n"], point["k"], point["tokens"]
    moved = n * k
    count = buffers_for(moved, most=MOST_CALLS)
    gemm = libs.deep_gemm()
    found: dict[str, int] = {}

    def build(round_index: int) -> Work:
        import torch

        pool = hold(env, "fp8", count * moved)
        weights = pool[: count * moved].view(torch.float8_e4m3fn).view(count, n, k)
        generator = torch.Generator(device=env.device).manual_seed(point.seed + round_index)
        scales = torch.rand(count, *blocks(n, k), generator=generator, device=env.device) + 0.5
        x, plain = fp8_activations(env, tokens, k, point.seed + round_index)
        x_scales = column_major(plain)
        out = torch.empty(tokens, n, dtype=torch.bfloat16, device=env.device)
        bind = functools.partial(gemm.fp8_gemm_nt, (x, x_scales), disable_ue8m0_cast=True)
        calls = [functools.partial(bind, (weights[i], scales[i]), out) for i in range(count)]
        if round_index == 0 and not env.profile:
            calls[0]()
            spread = scales[0].repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
            row = x[0].float() * plain[0].repeat_interleave(BLOCK)
            found["off_ppm"] = off_ppm(out[0], (weights[0].float() * spread) @ row)
        moved_scales = scales[0].numel() * 4
        read = moved + moved_scales + tokens * (k + k // BLOCK * 4)
        return Work(calls, read, tokens * n * 2, count * moved, keep=(pool, scales, out))

    measured = time_work(build, env)
    measured.extra |= found
    return measured


def expert_config(tokens: int, hidden: int, inner: int, fp8_blocks: bool) -> dict[str, int]:
    """Tiles that vLLM chooses where it has no tuned file for the shape."""
    dtype, shape = ("fp8_w8a8", [BLOCK, BLOCK]) if fp8_blocks else (None, None)
    return libs.experts_module().get_default_config(tokens, EXPERTS, inner, hidden, ACTIVE, dtype, shape)


def assigned(ids: torch.Tensor, block_m: int) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Which block of rows goes to which expert, as vLLM does it: one token a block while tokens are few, else
    aligned.

    ids [tokens, 8] int32 -> (sorted token numbers or None, expert of each block, rows after padding).
    """
    import torch

    tokens = ids.shape[0]
    if tokens * ACTIVE * 4 <= EXPERTS:
        padded = torch.full((1,), ids.numel() * block_m, dtype=torch.int32, device=ids.device)
        return None, ids.view(-1), padded
    most = ids.numel() + EXPERTS * (block_m - 1)
    if ids.numel() < EXPERTS:
        most = min(ids.numel() * block_m, most)
    order = torch.empty(most, dtype=torch.int32, device=ids.device)
    experts = torch.empty(-(-most // block_m), dtype=torch.int32, device=ids.device)
    padded = torch.empty(1, dtype=torch.int32, device=ids.device)
    torch.ops._moe_C.moe_align_block_size(ids, EXPERTS, block_m, order, experts, padded, None)
    return order, experts, padded


def expert_call(
    x: tuple[torch.Tensor, torch.Tensor | None],
    weights: tuple[torch.Tensor, torch.Tensor | None],
    out: torch.Tensor,
    routed: tuple[torch.Tensor | None, torch.Tensor, torch.Tensor],
    config: dict[str, int],
    top_weights: torch.Tensor | None = None,
) -> Callable[[], None]:
    """One product of all the chosen experts. x [rows, k], weights [256, n, k], out [tokens, 8, n] bf16.

    With `top_weights` (the second product) every row is one token of one expert and the router's weight is
    applied.
    """
    import triton.language as tl

    launch = libs.experts_module().invoke_fused_moe_triton_kernel
    second, coded = top_weights is not None, weights[1] is not None

    def call() -> None:
        launch(
            x[0],
            weights[0],
            out,
            x[1],
            weights[1],
            top_weights,
            *routed,
            mul_routed_weight=second,
            top_k=1 if second else ACTIVE,
            config=config,
            compute_type=tl.bfloat16,
            use_fp8_w8a8=coded,
            use_int8_w8a8=False,
            use_int8_w8a16=False,
            use_int4_w4a16=False,
            per_channel_quant=False,
            block_shape=[BLOCK, BLOCK] if coded else None,
        )

    return call


def drawn_ids(count: int, tokens: int, seed: int, device: str) -> torch.Tensor:
    """[count, tokens, 8] int32: different experts for each token."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    noise = torch.rand(count, tokens, EXPERTS, generator=generator, device=device)
    return noise.topk(ACTIVE, dim=-1).indices.to(torch.int32).contiguous()


def experts(point: Point, env: Env) -> Measured:
    """`part` up: gate and up projections (n = 2 x inner, k = hidden); down: n = hidden, k = inner.

    Which block of rows goes to which expert is worked out once, outside the graph.
    """
    tokens, up = point["tokens"], point["part"] == "up"
    hidden, inner, kind = EXPERT_SHAPES[str(point["model"])]
    n, k = (2 * inner, hidden) if up else (hidden, inner)
    width = 2 if kind == "bf16" else 1
    count = 16
    libs.load("_moe_C")
    used: list[int] = []

    def build(round_index: int) -> Work:
        import torch

        dtype = torch.bfloat16 if kind == "bf16" else torch.float8_e4m3fn
        pool = hold(env, kind, EXPERTS * n * k * width)
        weights = pool[: EXPERTS * n * k * width].view(dtype).view(EXPERTS, n, k)
        rows = tokens if up else tokens * ACTIVE
        generator = torch.Generator(device=env.device).manual_seed(point.seed)
        x: tuple[torch.Tensor, torch.Tensor | None]
        scales = None
        if kind == "fp8":
            x = fp8_activations(env, rows, k, point.seed)
            scales = torch.rand(EXPERTS, *blocks(n, k), generator=generator, device=env.device) + 0.5
        else:
            x = torch.randn(rows, k, generator=generator, device=env.device).bfloat16(), None
        ids = drawn_ids(count, tokens, point.seed + round_index, env.device)
        used[:] = [row.unique().numel() for row in ids]
        config = expert_config(tokens, hidden, inner, kind == "fp8")
        out = torch.empty(tokens, ACTIVE, n, dtype=torch.bfloat16, device=env.device)
        top_weights = None if up else torch.rand(tokens, ACTIVE, generator=generator, device=env.device)
        calls = [
            expert_call(x, (weights, scales), out, assigned(row, config["BLOCK_SIZE_M"]), config, top_weights)
            for row in ids
        ]
        one = n * k * width + (blocks(n, k)[0] * blocks(n, k)[1] * 4 if kind == "fp8" else 0)
        read = round(sum(used) / count * one) + rows * k * width
        return Work(calls, read, tokens * ACTIVE * n * 2, EXPERTS * n * k * width, keep=(pool, ids, out))

    measured = time_work(build, env)
    measured.extra["experts_milli"] = round(sum(used) * 1000 / count)
    return measured


FAMILIES = {"gemv.bf16": bf16, "gemv.fp8": fp8, "gemv.experts": experts}
