"""The weight matrices of a model, layer by layer: what a whole decode step reads, and what a GPU holds.

A model enters; `Matrix` rows leave: sizes, how many of a kind, and whether they are quantised where the
model's weights are fp8. Parts that engines multiply in one product are one matrix (queries' and keys'
low-rank projections, the gate and up projection). Nothing here needs torch. Left out: norms, biases, gates'
scalars, the taps of convolutions and a compressor's position bias, which the attention's own kernels
declare, and look-up tables beside the vocabulary's.
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.models.model import Layer, Model, Projections, Weights
from workloads.shapes import (
    DIM,
    LATENT,
    CsaShape,
    DsaShape,
    GdnShape,
    GqaShape,
    HcaShape,
    KdaShape,
    MlaShape,
    SwaShape,
    WindowShape,
)

SCALED = 128  # rows and columns of a block of fp8 weights that share a scale
SCALE_BYTES = 4
GROUP = 32  # inputs of fp4 weights that share a scale of a byte
BITS = {"bf16": 16, "fp8": 8, "fp4": 4}


@dataclass(frozen=True)
class Matrix:
    """Weights of a product: `count` matrices of `n` outputs from `k` inputs each.

    coded   fp8 in blocks of 128 x 128 with a fp32 scale each where the model's weights are fp8 or fp4; else
            bf16 in any case, as engines keep routers, small projections and absorbed ones
    routed  of routed experts: MXFP4 where the model's weights are fp4
    """

    name: str
    n: int
    k: int
    count: int = 1
    coded: bool = False
    routed: bool = False

    @property
    def parameters(self) -> int:
        """Numbers in all of them, scales left out."""
        return self.count * self.n * self.k

    def dtype(self, weights_dtype: str) -> str:
        """Format in a model whose weights are `weights_dtype`: bf16, fp8 or fp4."""
        if not self.coded or weights_dtype == "bf16":
            return "bf16"
        return weights_dtype if self.routed else "fp8"

    def scale_bytes(self, weights_dtype: str) -> int:
        """Bytes of the scales of one of the matrices; 0 in bf16."""
        dtype = self.dtype(weights_dtype)
        if dtype == "fp4":
            return self.n * (self.k // GROUP)
        return -(-self.n // SCALED) * -(-self.k // SCALED) * SCALE_BYTES if dtype == "fp8" else 0

    def bytes(self, weights_dtype: str) -> int:
        """Bytes of all of them, scales included."""
        values = self.parameters * BITS[self.dtype(weights_dtype)] // 8
        return values + self.count * self.scale_bytes(weights_dtype)


def of_outer(w: Weights) -> tuple[Matrix, ...]:
    """Input and output table."""
    return Matrix("embedding", w.vocab, w.hidden), Matrix("head", w.vocab, w.hidden)


def of_layer(model: Model, number: int) -> tuple[Matrix, ...]:
    """All matrices of layer `number`: attention, feed-forward, hyper-connections."""
    assert model.weights is not None, f"{model.name} has no weights"
    w = model.weights
    found = of_attention(model.layers[number], w.hidden)
    if has_dense(model, number):
        found += of_dense(w)
    if has_experts(model, number):
        found += of_experts(w)
    return found + of_streams(w)


def has_dense(model: Model, number: int) -> bool:
    """Whether every token passes a feed-forward layer of its own there: the first ones, or all."""
    assert model.weights is not None
    return number < model.weights.dense_layers


def has_experts(model: Model, number: int) -> bool:
    """Whether there are experts: after the dense layers, or beside every other one (LongCat)."""
    w = model.weights
    assert w is not None
    if w.dense_layers + w.moe_layers == len(model.layers):
        return number >= w.dense_layers
    return w.moe_layers > 0 and number % 2 == 0


def of_dense(w: Weights) -> tuple[Matrix, ...]:
    """A feed-forward layer that every token passes."""
    return _feed_forward("dense", w.hidden, w.dense_width)


def of_experts(w: Weights) -> tuple[Matrix, ...]:
    """Router, experts, shared experts (side by side in one product), way to a latent width and back."""
    inner, held = w.latent or w.hidden, w.held or w.experts
    found: tuple[Matrix, ...] = (
        Matrix("router", w.experts + w.zero_experts, w.hidden),
        Matrix("experts-up", 2 * w.expert_width, inner, held, coded=True, routed=True),
        Matrix("experts-down", inner, w.expert_width, held, coded=True, routed=True),
    )
    if w.shared:
        found += _feed_forward("shared", w.hidden, w.shared * (w.shared_width or w.expert_width))
    if w.latent:
        found += (
            Matrix("latent-down", w.latent, w.hidden, coded=True),
            Matrix("latent-up", w.hidden, w.latent, coded=True),
        )
    return found


def of_streams(w: Weights) -> tuple[Matrix, ...]:
    """Hyper-connections before attention and before the feed-forward layer; none with a plain residual."""
    if not w.streams:
        return ()
    n, k = w.streams * (w.streams + 2), w.streams * w.hidden
    return Matrix("mix-attention", n, k), Matrix("mix-experts", n, k)


def _feed_forward(name: str, hidden: int, width: int) -> tuple[Matrix, ...]:
    return Matrix(f"{name}-up", 2 * width, hidden, coded=True), Matrix(
        f"{name}-down", hidden, width, coded=True
    )


def of_attention(layer: Layer, hidden: int) -> tuple[Matrix, ...]:
    """Projections of an attention layer."""
    shape, p = layer.shape, layer.projections
    if isinstance(shape, KdaShape):
        return _kda(shape.heads, hidden, p.gate)
    if isinstance(shape, GdnShape):
        keys, values = shape.key_heads * DIM, shape.value_heads * DIM
        return (
            Matrix("in", 2 * keys + 2 * values, hidden, coded=True),
            Matrix("gates", 2 * shape.value_heads, hidden),
            Matrix("out", hidden, values, coded=True),
        )
    if isinstance(shape, SwaShape):
        return _gqa(shape.attention, hidden, p.gate)
    if isinstance(shape, GqaShape):
        return _gqa(shape, hidden, p.gate)
    if isinstance(shape, MlaShape):
        return _mla(shape, p, hidden)
    if isinstance(shape, DsaShape):
        own = _indexer(shape.index_heads, p.q_lora, hidden) if layer.index_from is None else ()
        return _mla(shape.attention, p, hidden) + own
    return _v4(layer, p, hidden)


def _kda(heads: int, hidden: int, full_gate: bool) -> tuple[Matrix, ...]:
    width = heads * DIM
    gate: tuple[Matrix, ...] = (Matrix("out-gate", width, hidden, coded=True),)
    if not full_gate:
        gate = Matrix("out-gate-a", DIM, hidden), Matrix("out-gate-b", width, DIM)
    return (
        *(Matrix(name, width, hidden, coded=True) for name in ("q", "k", "v")),
        Matrix("gate-a", DIM, hidden),
        Matrix("gate-b", width, DIM),
        Matrix("beta", heads, hidden),
        *gate,
        Matrix("out", hidden, width, coded=True),
    )


def _gqa(shape: GqaShape, hidden: int, gate: bool) -> tuple[Matrix, ...]:
    queries = shape.heads * shape.key_dim * (2 if gate else 1)
    keys_values = shape.kv_heads * (shape.key_dim + shape.value_dim)
    return (
        Matrix("qkv", queries + keys_values, hidden, coded=True),
        Matrix("out", hidden, shape.heads * shape.value_dim, coded=True),
    )


def _mla(shape: MlaShape, p: Projections, hidden: int) -> tuple[Matrix, ...]:
    width, row = shape.heads * shape.qk_dim, LATENT + shape.rope
    found: tuple[Matrix, ...] = (
        Matrix("q", width, hidden, coded=True),
        Matrix("latent", row, hidden, coded=True),
    )
    if p.q_lora:
        found = (
            Matrix("down", p.q_lora + row, hidden, coded=True),
            Matrix("q", width, p.q_lora, coded=True),
        )
    found += (
        Matrix("key-up", LATENT, p.nope, shape.heads),
        Matrix("value-up", p.value, LATENT, shape.heads),
    )
    if p.gate:
        found += (Matrix("out-gate", shape.heads * p.value, hidden, coded=True),)
    return (*found, Matrix("out", hidden, shape.heads * p.value, coded=True))


def _indexer(heads: int, q_lora: int, hidden: int) -> tuple[Matrix, ...]:
    return (
        Matrix("index-q", heads * DIM, q_lora, coded=True),
        Matrix("index-key", DIM, hidden, coded=True),
        Matrix("index-weights", heads, hidden),
    )


def _v4(layer: Layer, p: Projections, hidden: int) -> tuple[Matrix, ...]:
    """A layer of DeepSeek V4: queries and the shared row, grouped output, compressors and indexer."""
    shape = layer.shape
    window = shape if isinstance(shape, WindowShape) else shape.window
    assert isinstance(window, WindowShape)
    width = window.heads * LATENT
    found: tuple[Matrix, ...] = (
        Matrix("down", p.q_lora + LATENT, hidden, coded=True),
        Matrix("q", width, p.q_lora, coded=True),
        Matrix("out-down", p.o_lora, width // p.o_groups, p.o_groups, coded=True),
        Matrix("out", hidden, p.o_groups * p.o_lora, coded=True),
    )
    if isinstance(shape, HcaShape):
        found += (Matrix("compressor", 2 * LATENT, hidden),)
    if isinstance(shape, CsaShape):
        if layer.index_from is None:
            found += (
                Matrix("index-q", shape.index_heads * DIM, p.q_lora, coded=True),
                Matrix("index-weights", shape.index_heads, hidden),
            )
        if layer.kv_from is None:
            found += _compressors(shape, hidden)
    return found


def _compressors(shape: CsaShape, hidden: int) -> tuple[Matrix, ...]:
    """What makes compressed rows and index keys: values and scores; in V4.1 the key comes from the latent."""
    if shape.window.style == "v4.1":
        return Matrix("compressor", shape.ratio * LATENT, hidden), Matrix("index-key", DIM, LATENT)
    return Matrix("compressor", 4 * LATENT, hidden), Matrix("index-compressor", 4 * DIM, hidden)
