"""One whole decode step of a model in Kimi Linear's shape, random weights, bf16, one GPU, one CUDA graph.

27 layers (20 KDA, 7 MLA), hidden 2304; layer 1 has a dense MLP, the others a router, 8 of 256 experts and a
shared one; embedding, norms, head. In the order of vLLM 0.22.0 and with its kernels (norms, router, experts,
silu, cache write); FlashMLA attends; the KDA layers take FLA's convolution, recurrence (gate, beta and q, k
norms inside) and gated norm. Products are `torch.nn.functional.linear` and `bmm`. FlashMLA's scheduling
kernel runs outside the graph. The router picks by what it sees: the same tokens at each replay, hence the
same experts; `experts` says how many. `step.kimi_mla` has MLA in all layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import kernels_libs as libs
from .device import Env
from .kernels_data import drawn, hold, repeat, shuffled_pages
from .kernels_fla import DIMS, STATE_BYTES, quiet_fla
from .kernels_gemv import ACTIVE, EXPERTS, assigned, expert_call, expert_config
from .points import Point
from .rows import Measured
from .stacks import KIMI_HEADS, KIMI_LAYERS, KIMI_MLA, dense_bytes, timed_step
from .timing import Work

if TYPE_CHECKING:
    import torch

HIDDEN, INNER, DENSE_INNER, VOCABULARY = 2304, 1024, 9216, 163_840
NOPE, ROPE = 128, 64
WIDTH = KIMI_HEADS * DIMS  # of q, k and v of a KDA layer, and of the output of an MLA layer
TAPS = 4
ROUTER_SCALE, EPSILON = 2.446, 1e-5
KDA_WEIGHTS = {"q": (WIDTH, HIDDEN), "k": (WIDTH, HIDDEN), "v": (WIDTH, HIDDEN), "beta": (KIMI_HEADS, HIDDEN)}
KDA_WEIGHTS |= {"gate_a": (DIMS, HIDDEN), "gate_b": (WIDTH, DIMS), "out_gate_a": (DIMS, HIDDEN)}
KDA_WEIGHTS |= {"out_gate_b": (WIDTH, DIMS), "out": (HIDDEN, WIDTH), "out_norm": (DIMS,)}
KDA_WEIGHTS |= {f"{name}_taps": (WIDTH, TAPS) for name in ("q", "k", "v")}
MLA_WEIGHTS = {"q": (KIMI_HEADS * (NOPE + ROPE), HIDDEN), "latent": (libs.ROW_DIMS, HIDDEN)}
MLA_WEIGHTS |= {"latent_norm": (libs.LATENT,), "key_up": (KIMI_HEADS, NOPE, libs.LATENT)}
MLA_WEIGHTS |= {"value_up": (KIMI_HEADS, libs.LATENT, DIMS), "out": (HIDDEN, WIDTH)}
DENSE_WEIGHTS = {"up": (2 * DENSE_INNER, HIDDEN), "down": (HIDDEN, DENSE_INNER)}
SHARED_WEIGHTS = {"router": (EXPERTS, HIDDEN), "up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
EXPERT_WEIGHTS = {"experts_up": (EXPERTS, 2 * INNER, HIDDEN), "experts_down": (EXPERTS, HIDDEN, INNER)}
NORMS = {"norm_in": (HIDDEN,), "norm_mid": (HIDDEN,)}
OUTER = {"embedding": (VOCABULARY, HIDDEN), "head": (VOCABULARY, HIDDEN), "norm": (HIDDEN,)}
ALL_MLA = frozenset(range(1, KIMI_LAYERS + 1))
Shapes = dict[str, tuple[int, ...]]
Weights = dict[str, "torch.Tensor"]


def layer_shapes(layer: int, mla_layers: frozenset[int] = KIMI_MLA) -> tuple[Shapes, Shapes]:
    """Weights of attention (with the layer's norms) and of the MLP; layers count from 1."""
    attention = MLA_WEIGHTS if layer in mla_layers else KDA_WEIGHTS
    return NORMS | attention, DENSE_WEIGHTS if layer == 1 else SHARED_WEIGHTS | EXPERT_WEIGHTS


def numbers(shapes: Shapes) -> int:
    """Numbers in all the tensors, each rounded up to 128 (256 bytes in bf16)."""
    total = 0
    for shape in shapes.values():
        size = 1
        for extent in shape:
            size *= extent
        total += -(-size // 128) * 128
    return total


def weight_bytes(mla_layers: frozenset[int] = KIMI_MLA) -> int:
    """bf16 bytes of the whole model."""
    numbered = range(1, KIMI_LAYERS + 1)
    layers = sum(numbers(part) for layer in numbered for part in layer_shapes(layer, mla_layers))
    return 2 * (layers + numbers(OUTER))


@dataclass
class Model:
    """Weights as views of one pool: `attention` and `mlp` per layer, and what is around the layers."""

    mla_layers: frozenset[int]
    attention: list[Weights] = field(default_factory=list)
    mlp: list[Weights] = field(default_factory=list)
    outer: Weights = field(default_factory=dict)


def model(env: Env, mla_layers: frozenset[int] = KIMI_MLA) -> Model:
    """The model, made once a family: normal weights of deviation 0.02, norms of 1."""
    import torch

    known = env.facts.get("model")
    if isinstance(known, Model) and known.mla_layers == mla_layers:
        return known
    env.facts.pop("model", None)
    pool = hold(env, "weights", weight_bytes(mla_layers)).view(torch.bfloat16)
    at = 0

    def cut(shapes: Shapes) -> Weights:
        nonlocal at
        made: Weights = {}
        for name, shape in shapes.items():
            size = numbers({name: shape})
            made[name] = pool[at : at + functools.reduce(int.__mul__, shape)].view(shape)
            if len(shape) == 1:
                made[name].fill_(1)
            at += size
        return made

    built = Model(mla_layers, outer=cut(OUTER))
    for layer in range(1, KIMI_LAYERS + 1):
        attention, mlp = layer_shapes(layer, mla_layers)
        built.attention.append(cut(attention))
        built.mlp.append(cut(mlp))
    env.facts["model"] = built
    return built


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    import torch

    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.ops._C.rms_norm(out, x, weight, EPSILON)
    return out


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    import torch

    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    torch.ops._C.silu_and_mul(out, x)
    return out


def dense_mlp(x: torch.Tensor, w: Weights) -> torch.Tensor:
    from torch.nn.functional import linear

    return linear(silu_mul(linear(x, w["up"])), w["down"])


def experts_mlp(
    x: torch.Tensor, w: Weights, bias: torch.Tensor, seen: list[torch.Tensor] | None
) -> torch.Tensor:
    """Router, experts and shared expert; the chosen experts [tokens, 8] are appended to `seen`."""
    import torch

    tokens = x.shape[0]
    logits = torch.nn.functional.linear(x, w["router"])
    scale = torch.empty(tokens, ACTIVE, dtype=torch.float32, device=x.device)
    ids, rows = (torch.empty(tokens, ACTIVE, dtype=torch.int32, device=x.device) for _ in range(2))
    torch.ops._moe_C.topk_sigmoid(scale, ids, rows, logits, True, bias)
    scale *= ROUTER_SCALE
    if seen is not None:
        seen.append(ids)
    config = expert_config(tokens, HIDDEN, INNER, False)
    routed = assigned(ids, config["BLOCK_SIZE_M"])
    up = x.new_empty(tokens, ACTIVE, 2 * INNER)
    expert_call((x, None), (w["experts_up"], None), up, routed, config)()
    down = x.new_empty(tokens, ACTIVE, HIDDEN)
    held = silu_mul(up.view(-1, 2 * INNER))
    expert_call((held, None), (w["experts_down"], None), down, routed, config, scale)()
    out = torch.empty_like(x)
    torch.ops._moe_C.moe_sum(down, out)
    return dense_mlp(x, w) + out


@dataclass
class Sequences:
    """What the sequences of a step keep: caches of the MLA layers, states and convolution taps of the KDA
    layers.
    """

    caches: torch.Tensor  # [MLA layers, pages, 64, 1, 576] bf16
    table: torch.Tensor  # [batch, pages] int32
    lengths: torch.Tensor  # [batch] int32
    write: torch.Tensor  # [batch] int64: slot of the new token
    states: torch.Tensor  # [KDA layers, batch, 32, 128, 128] fp32
    taps: torch.Tensor  # [KDA layers, 3, batch, 4096, 4] bf16
    slots: torch.Tensor  # [batch] int32: which state is whose
    starts: torch.Tensor  # [batch + 1] int32
    decay: torch.Tensor  # [32] fp32: A_log
    decay_bias: torch.Tensor  # [4096] fp32
    one: torch.Tensor  # fp32 scale of the cache
    plan: tuple[torch.Tensor, torch.Tensor]


def sequences(env: Env, batch: int, context: int, seed: int, dense: int = len(KIMI_MLA)) -> Sequences:
    """Sequences of a model with so many MLA layers."""
    import torch

    pages = -(-context // libs.PAGE_TOKENS)
    generator = torch.Generator(device=env.device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=env.device)

    page_bytes = libs.PAGE_TOKENS * libs.ROW_DIMS * 2
    data = torch.empty(dense * batch * pages * page_bytes, dtype=torch.uint8, device=env.device)
    repeat(data, drawn("bf16", min(data.numel(), 64 * page_bytes) // 4096 * 4096, env.device))
    shape = (dense, batch * pages, libs.PAGE_TOKENS, 1, libs.ROW_DIMS)
    caches = data.view(torch.bfloat16).view(shape)
    table = shuffled_pages(batch * pages, seed, env.device).view(batch, pages)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=env.device)
    last = context - 1
    write = table[:, last // libs.PAGE_TOKENS].long() * libs.PAGE_TOKENS + last % libs.PAGE_TOKENS
    q = normal(batch, 1, KIMI_HEADS, libs.ROW_DIMS).bfloat16()
    _, plan = libs.dense_attend(q, caches[0], lengths, table, None, None)
    recurrent = KIMI_LAYERS - dense
    return Sequences(
        caches=caches,
        table=table,
        lengths=lengths,
        write=write,
        states=normal(recurrent, batch, KIMI_HEADS, DIMS, DIMS),
        taps=normal(recurrent, 3, batch, WIDTH, TAPS).bfloat16(),
        slots=shuffled_pages(batch, seed, env.device),
        starts=torch.arange(batch + 1, dtype=torch.int32, device=env.device),
        decay=normal(KIMI_HEADS).abs(),
        decay_bias=normal(WIDTH),
        one=torch.ones(1, dtype=torch.float32, device=env.device),
        plan=plan,
    )


def mla(x: torch.Tensor, w: Weights, s: Sequences, index: int) -> torch.Tensor:
    """MLA layer number `index`, keys and values absorbed into queries and outputs."""
    import torch
    from torch.nn.functional import linear

    batch = x.shape[0]
    q = linear(x, w["q"]).view(batch, KIMI_HEADS, NOPE + ROPE)
    row = linear(x, w["latent"])
    latent = norm(row[:, : libs.LATENT], w["latent_norm"])
    cache = s.caches[index]
    torch.ops._C_cache_ops.concat_and_cache_mla(
        latent, row[:, libs.LATENT :], cache.squeeze(2), s.write, "auto", s.one
    )
    asked = torch.bmm(q[..., :NOPE].transpose(0, 1), w["key_up"]).transpose(0, 1)
    whole = torch.cat([asked, q[..., NOPE:]], dim=-1).view(batch, 1, KIMI_HEADS, libs.ROW_DIMS)
    found, _ = libs.dense_attend(whole, cache, s.lengths, s.table, s.plan, None)
    out = x.new_empty(batch, KIMI_HEADS, DIMS)
    torch.bmm(
        found.view(batch, KIMI_HEADS, libs.LATENT).transpose(0, 1), w["value_up"], out=out.transpose(0, 1)
    )
    return linear(out.view(batch, WIDTH), w["out"])


def kda(x: torch.Tensor, w: Weights, s: Sequences, index: int) -> torch.Tensor:
    """KDA layer number `index`."""
    quiet_fla()
    from fla.modules.causal_conv1d import causal_conv1d_update
    from fla.modules.norm.fused_norm_gate import layer_norm_gated_fwd
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd
    from torch.nn.functional import linear

    batch = x.shape[0]
    heads = (1, batch, KIMI_HEADS, DIMS)
    mixed = {}
    for at, name in enumerate(("q", "k", "v")):
        taps = {"cache": s.taps[index, at], "weight": w[f"{name}_taps"], "activation": "silu"}
        mixed[name] = causal_conv1d_update(linear(x, w[name]), **taps)[0].view(heads)
    out = x.new_empty(heads)
    fused_recurrent_kda_fwd(
        **mixed,
        g=linear(linear(x, w["gate_a"]), w["gate_b"]).view(heads),
        beta=linear(x, w["beta"]).view(1, batch, KIMI_HEADS),
        A_log=s.decay,
        dt_bias=s.decay_bias,
        initial_state=s.states[index],
        inplace_final_state=True,
        state_v_first=True,
        cu_seqlens=s.starts,
        ssm_state_indices=s.slots,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        out=out,
    )
    gate = linear(linear(x, w["out_gate_a"]), w["out_gate_b"]).view(-1, DIMS)
    rows = out.view(-1, DIMS)
    normed = layer_norm_gated_fwd(rows, gate, w["out_norm"], None, "sigmoid", EPSILON, is_rms_norm=True)[0]
    return linear(normed.view(batch, WIDTH), w["out"])


def decode(
    m: Model, s: Sequences, tokens: torch.Tensor, bias: torch.Tensor, seen: list[torch.Tensor] | None
) -> torch.Tensor:
    """Logits [batch, vocabulary] of one step; the experts of each layer are appended to `seen`, if given."""
    import torch

    residual = torch.nn.functional.embedding(tokens, m.outer["embedding"])
    x = norm(residual, m.attention[0]["norm_in"])
    dense, recurrent = 0, 0
    for layer in range(1, KIMI_LAYERS + 1):
        w, after = m.attention[layer - 1], m.mlp[layer - 1]
        if layer > 1:
            torch.ops._C.fused_add_rms_norm(x, residual, w["norm_in"], EPSILON)
        if layer in m.mla_layers:
            x, dense = mla(x, w, s, dense), dense + 1
        else:
            x, recurrent = kda(x, w, s, recurrent), recurrent + 1
        torch.ops._C.fused_add_rms_norm(x, residual, w["norm_mid"], EPSILON)
        x = dense_mlp(x, after) if layer == 1 else experts_mlp(x, after, bias, seen)
    torch.ops._C.fused_add_rms_norm(x, residual, m.outer["norm"], EPSILON)
    return torch.nn.functional.linear(x, m.outer["head"])


def step_bytes(
    batch: int, context: int, experts: int, mla_layers: frozenset[int] = KIMI_MLA
) -> tuple[int, int]:
    """Bytes that a step reads and writes: weights once (`experts` experts in all layers together), caches,
    states.
    """
    around = (layer_shapes(layer, mla_layers)[0] for layer in range(1, KIMI_LAYERS + 1))
    fixed = sum(map(numbers, around)) + numbers(DENSE_WEIGHTS)
    fixed += (KIMI_LAYERS - 1) * numbers(SHARED_WEIGHTS) + VOCABULARY * HIDDEN + batch * HIDDEN
    read, written = dense_bytes(batch, context, KIMI_HEADS)
    taps = 3 * WIDTH * TAPS * 2
    moved = (KIMI_LAYERS - len(mla_layers)) * batch * (KIMI_HEADS * STATE_BYTES + taps)
    read = 2 * fixed + experts * 2 * 3 * INNER * HIDDEN + len(mla_layers) * read + moved
    return read, len(mla_layers) * written + moved + batch * VOCABULARY * 2


def whole(point: Point, env: Env, mla_layers: frozenset[int]) -> Measured:
    context, batch = point["context"], point["batch"]
    for library in ("_C", "_C_stable_libtorch", "_moe_C", "_flashmla_C"):
        libs.load(library)
    m = model(env, mla_layers)
    used: list[int] = []

    def build(round_index: int) -> Work:
        import torch

        generator = torch.Generator(device=env.device).manual_seed(point.seed + round_index)
        s = sequences(env, batch, context, point.seed + round_index, len(mla_layers))
        tokens = torch.randint(0, VOCABULARY, (batch,), generator=generator, device=env.device)
        bias = torch.randn(EXPERTS, generator=generator, device=env.device) * 0.01
        seen: list[torch.Tensor] = []
        logits = decode(m, s, tokens, bias, seen)
        if not bool(logits.isfinite().all()):
            raise ValueError("the logits are not finite")
        used.append(sum(ids.unique().numel() for ids in seen))
        step: Callable[[], object] = functools.partial(decode, m, s, tokens, bias, None)
        footprint = weight_bytes(mla_layers) + s.caches.numel() * 2 + s.states.numel() * 4
        moved = step_bytes(batch, context, used[-1], mla_layers)
        return Work([step], *moved, footprint)  # type: ignore[list-item]

    measured = timed_step(env, build, len(mla_layers))
    measured.extra["experts"] = used[0]
    return measured


FAMILIES = {
    "step.kimi": functools.partial(whole, mla_layers=KIMI_MLA),
    "step.kimi_mla": functools.partial(whole, mla_layers=ALL_MLA),
}
