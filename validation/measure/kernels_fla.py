"""Recurrent state steps of flash-linear-attention: KDA and gated delta rule (GDN), one token, in place.

KDA runs through FLA's own wrapper for continuous batching (states of a pool by slot number, written where
they were read, as serving does); the kernel also normalises q and k, forms the gate and the sigmoid of beta.
FLA's GDN wrapper writes a new state; here its kernel gets the old one to write to, launched with FLA's own
tile and warps. States are V-first fp32, 128 x 128 a head. Activations are the same for all calls of a graph,
hence found in the L2.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from .device import Env
from .kernels_data import buffers_for, hold, shuffled_pages
from .points import Point
from .rows import Measured
from .timing import Work, time_work

if TYPE_CHECKING:
    import torch

DIMS = 128
STATE_BYTES = DIMS * DIMS * 4
GDN_KEY_HEADS = 16  # of Qwen3-Next and Qwen3.5, whatever the number of value heads
GDN_TILE, GDN_WARPS, GDN_STAGES = 8, 1, 3  # fla/ops/gated_delta_rule/fused_recurrent.py
SLACK_BYTES = 256 << 20  # by how much the place of the states in the pool differs from round to round


def quiet_fla() -> None:
    """No search for other back ends at each call: the Triton kernels are the same without it."""
    os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")


def states(env: Env, count: int, heads: int, round_index: int, seed: int) -> torch.Tensor:
    """[count, heads, 128, 128] fp32 somewhere in a pool of normal numbers."""
    import torch

    nbytes = count * heads * STATE_BYTES
    pool = hold(env, "f32", nbytes + SLACK_BYTES)
    base = (seed * 7 + round_index * 41) % 128 * (SLACK_BYTES // 128)
    return pool[base : base + nbytes].view(torch.float32).view(count, heads, DIMS, DIMS)


def activations(env: Env, batch: int, heads: int, key_heads: int, seed: int) -> dict[str, torch.Tensor]:
    """q, k, v, beta, A_log and dt_bias of one token per sequence, [1, batch, heads, 128] where FLA wants a
    time axis.
    """
    import torch

    generator = torch.Generator(device=env.device).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=env.device).to(dtype)

    made = {name: normal(1, batch, key_heads, DIMS) for name in ("q", "k")}
    made |= {"v": normal(1, batch, heads, DIMS), "beta": normal(1, batch, heads)}
    return made | {"A_log": normal(heads, dtype=torch.float32).abs()}


def kda_step(
    env: Env, pool: torch.Tensor, slots: torch.Tensor, made: dict[str, torch.Tensor]
) -> Callable[[], None]:
    """One KDA step of the sequences whose states are `pool[slots]`."""
    import torch

    quiet_fla()
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    batch = slots.numel()
    starts = torch.arange(batch + 1, dtype=torch.int32, device=env.device)
    out = torch.empty_like(made["v"])

    def step() -> None:
        fused_recurrent_kda_fwd(
            **made,
            initial_state=pool,
            inplace_final_state=True,
            state_v_first=True,
            cu_seqlens=starts,
            ssm_state_indices=slots,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            out=out,
        )

    return step


def kda_inputs(env: Env, batch: int, heads: int, seed: int) -> dict[str, torch.Tensor]:
    """What `kda_step` takes beside the states: the gate has one value a channel."""
    import torch

    made = activations(env, batch, heads, heads, seed)
    generator = torch.Generator(device=env.device).manual_seed(seed + 1)
    gate = torch.randn(1, batch, heads, DIMS, generator=generator, device=env.device)
    bias = torch.randn(heads * DIMS, generator=generator, device=env.device)
    return made | {"g": gate.bfloat16(), "dt_bias": bias}


def kda(point: Point, env: Env) -> Measured:
    batch, heads = point["batch"], point["heads"]
    moved = batch * heads * STATE_BYTES
    count = buffers_for(moved, warm=point["state"] == "warm")

    def build(round_index: int) -> Work:
        pool = states(env, count * batch, heads, round_index, point.seed)
        slots = shuffled_pages(count * batch, point.seed + round_index, env.device).view(count, batch)
        made = kda_inputs(env, batch, heads, point.seed)
        calls = [kda_step(env, pool, row, made) for row in slots]
        inputs = sum(t.numel() * t.element_size() for t in made.values()) + batch * 4
        return Work(
            calls, moved + inputs, moved + batch * heads * DIMS * 2, count * moved, keep=(pool, slots)
        )

    return time_work(build, env)


def gdn_step(state: torch.Tensor, made: dict[str, torch.Tensor], out: torch.Tensor) -> Callable[[], None]:
    """One GDN step in place; state [batch, heads, 128, 128]."""
    quiet_fla()
    from fla.ops.gated_delta_rule.fused_recurrent import fused_recurrent_gated_delta_rule_fwd_kernel as kernel

    batch, heads = state.shape[:2]
    key_heads = made["q"].shape[2]

    def step() -> None:
        kernel[(DIMS // GDN_TILE * batch * heads,)](
            **made,
            gk=None,
            gv=None,
            o=out,
            h0=state,
            ht=state,
            cu_seqlens=None,
            scale=DIMS**-0.5,
            T=1,
            H=key_heads,
            HV=heads,
            K=DIMS,
            V=DIMS,
            BK=DIMS,
            BV=GDN_TILE,
            IS_BETA_HEADWISE=True,
            USE_QK_L2NORM_IN_KERNEL=True,
            APPLY_BETA_SIGMOID=True,
            ALLOW_NEG_EIGVAL=False,
            STATE_V_FIRST=True,
            num_warps=GDN_WARPS,
            num_stages=GDN_STAGES,
        )

    return step


def gdn_inputs(env: Env, batch: int, heads: int, seed: int) -> dict[str, torch.Tensor]:
    """What `gdn_step` takes beside the states: the gate has one value a head; every sequence is a row of its
    own.
    """
    import torch

    key_heads = min(GDN_KEY_HEADS, heads)
    made = activations(env, batch, heads, key_heads, seed)
    for name in ("q", "k", "v", "beta"):
        made[name] = made[name].transpose(0, 1).contiguous()
    generator = torch.Generator(device=env.device).manual_seed(seed + 1)
    gate = torch.randn(batch, 1, heads, generator=generator, device=env.device).bfloat16()
    return made | {"g": gate, "dt_bias": torch.randn(heads, generator=generator, device=env.device)}


def gdn(point: Point, env: Env) -> Measured:
    batch, heads = point["batch"], point["heads"]
    moved = batch * heads * STATE_BYTES
    count = buffers_for(moved, warm=point["state"] == "warm")

    def build(round_index: int) -> Work:
        import torch

        pool = states(env, count * batch, heads, round_index, point.seed).view(
            count, batch, heads, DIMS, DIMS
        )
        made = gdn_inputs(env, batch, heads, point.seed)
        out = torch.empty_like(made["v"])
        calls = [gdn_step(state, made, out) for state in pool]
        inputs = sum(t.numel() * t.element_size() for t in made.values())
        return Work(calls, moved + inputs, moved + batch * heads * DIMS * 2, count * moved, keep=pool)

    return time_work(build, env)


FAMILIES = {"kda": kda, "gdn": gdn}
