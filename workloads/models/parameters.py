"""Parameters of a model, recomputed from the sizes in its file: they close against what its makers publish.

A model enters, integers leave. Matrices, convolutions and router rows are counted; norms, biases, gates'
scalars and multi-token prediction layers are left out.
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

CONV = 4  # taps of the convolutions, the new token's included
CLOSE = 0.02  # a published figure further away needs its reason


@dataclass(frozen=True)
class Parameters:
    """Parameters of a model.

    total       all of them
    active      those that a token uses: the input table apart, the output table included
    non_routed  those of `active` that every token uses
    """

    total: int
    active: int
    non_routed: int


def of_model(model: Model) -> Parameters:
    """Parameters of the model with the layers that it has now."""
    w = model.weights
    assert w is not None, f"{model.name} has no weights"
    attention = sum(of_layer(layer, w.hidden) for layer in model.layers)
    table = w.vocab * w.hidden
    non_routed = attention + table + w.dense_layers * _feed_forward(w.hidden, w.dense_width)
    non_routed += w.moe_layers * _around_experts(w) + len(model.layers) * _streams(w)
    expert = _feed_forward(w.latent or w.hidden, w.expert_width)
    return Parameters(
        total=non_routed + table + w.moe_layers * (w.held or w.experts) * expert + w.tables,
        active=non_routed + w.moe_layers * w.active * expert,
        non_routed=non_routed,
    )


def deviation(ours: int, published: int) -> float:
    """How far ours is from the published figure, as a share of that."""
    return (ours - published) / published


def _feed_forward(hidden: int, width: int) -> int:
    """Gate, up and down projection."""
    return 3 * hidden * width


def _around_experts(w: Weights) -> int:
    """What every token passes in a layer of experts: router, shared experts, way to a latent width."""
    router = w.hidden * (w.experts + w.zero_experts)
    shared = w.shared * _feed_forward(w.hidden, w.shared_width or w.expert_width)
    return router + shared + 2 * w.hidden * w.latent


def _streams(w: Weights) -> int:
    """Hyper-connections of a layer, before attention and before experts: n (n + 2) numbers from n streams."""
    return 2 * (w.streams + 2) * w.streams * w.streams * w.hidden


def of_layer(layer: Layer, hidden: int) -> int:
    """Parameters of an attention layer."""
    shape, p = layer.shape, layer.projections
    if isinstance(shape, KdaShape):
        return _kda(shape.heads * DIM, shape.heads, hidden, p.gate)
    if isinstance(shape, GdnShape):
        keys, values = shape.key_heads * DIM, shape.value_heads * DIM
        projected = 2 * keys + 2 * values + 2 * shape.value_heads  # q, k, v, gate; decay and beta of a head
        return hidden * projected + values * hidden + CONV * (2 * keys + values)
    if isinstance(shape, SwaShape):
        return _gqa(shape.attention, hidden, p.gate)
    if isinstance(shape, GqaShape):
        return _gqa(shape, hidden, p.gate)
    if isinstance(shape, MlaShape):
        return _mla(shape, p, hidden)
    if isinstance(shape, DsaShape):
        indexer = 0 if layer.index_from is not None else _indexer(shape.index_heads, p.q_lora, hidden)
        return _mla(shape.attention, p, hidden) + indexer
    return _v4(layer, p, hidden)


def _kda(width: int, heads: int, hidden: int, full_gate: bool) -> int:
    low_rank = hidden * DIM + DIM * width
    gate = hidden * width if full_gate else low_rank
    return 3 * (hidden + CONV) * width + low_rank + gate + hidden * heads + width * hidden


def _gqa(shape: GqaShape, hidden: int, gate: bool) -> int:
    queries = shape.heads * shape.key_dim * (2 if gate else 1)
    keys_values = shape.kv_heads * (shape.key_dim + shape.value_dim)
    return hidden * (queries + keys_values) + shape.heads * shape.value_dim * hidden


def _queries(heads_width: int, q_lora: int, hidden: int) -> int:
    return q_lora * (hidden + heads_width) if q_lora else hidden * heads_width


def _mla(shape: MlaShape, p: Projections, hidden: int) -> int:
    values = shape.heads * p.value
    down = hidden * (LATENT + shape.rope)
    up = LATENT * shape.heads * (p.nope + p.value)
    queries = _queries(shape.heads * shape.qk_dim, p.q_lora, hidden)
    return queries + down + up + values * hidden * (2 if p.gate else 1)


def _indexer(heads: int, q_lora: int, hidden: int) -> int:
    return q_lora * heads * DIM + hidden * DIM + hidden * heads


def _v4(layer: Layer, p: Projections, hidden: int) -> int:
    """A layer of DeepSeek V4: queries, the shared row, grouped output, and its compressors and indexer."""
    shape = layer.shape
    window = shape if isinstance(shape, WindowShape) else shape.window
    width = window.heads * LATENT
    count = (
        _queries(width, p.q_lora, hidden)
        + hidden * LATENT
        + width * p.o_lora
        + p.o_groups * p.o_lora * hidden
    )
    if isinstance(shape, HcaShape):
        count += _compressor(LATENT, shape.ratio, hidden, overlap=1)
    if isinstance(shape, CsaShape):
        if layer.index_from is None:
            count += p.q_lora * shape.index_heads * DIM + hidden * shape.index_heads
        if layer.kv_from is None and shape.window.style == "v4.1":
            count += shape.ratio * LATENT * hidden + LATENT * DIM  # values (and scores); keys of latents
        elif layer.kv_from is None:
            count += _compressor(LATENT, shape.ratio, hidden, overlap=2)
            count += _compressor(DIM, shape.ratio, hidden, overlap=2)
    return count


def _compressor(width: int, ratio: int, hidden: int, overlap: int) -> int:
    """Values and gates of a compressed row, and the gates' position embeddings within a window."""
    return 2 * hidden * overlap * width + ratio * overlap * width
