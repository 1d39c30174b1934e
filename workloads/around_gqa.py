"""The kernels around full and sliding-window attention: q, k and v, turn, append, output.

As vLLM runs them. A gated layer (Qwen3-Next, Qwen3.5) has its gate in the same product as the queries. Left
out: norms of query and key heads, rotary turns of a part of a head, and the table of angles.
"""

from __future__ import annotations

from collections.abc import Sequence

from workloads import append, pointwise
from workloads.activations import Rows
from workloads.gqa import GqaRegions
from workloads.kit import Kit
from workloads.models.model import Layer
from workloads.shapes import GqaShape, SwaShape


def _shape(layer: Layer) -> GqaShape:
    shape = layer.shape.attention if isinstance(layer.shape, SwaShape) else layer.shape
    assert isinstance(shape, GqaShape)
    return shape


def acts(layer: Layer, hidden: int) -> dict[str, int]:
    """Widths of activations."""
    shape = _shape(layer)
    widths = {
        "x": hidden,
        "q": shape.heads * shape.key_dim,
        "k": shape.kv_heads * shape.key_dim,
        "v": shape.kv_heads * shape.value_dim,
    }
    if layer.projections.gate:
        widths |= {"gate": shape.heads * shape.key_dim, "gated": shape.heads * shape.value_dim}
    return widths


def norms(layer: Layer) -> dict[str, int]:
    """Widths of norms."""
    return {}


def before(kit: Kit, layer: Layer, r: GqaRegions, lengths: Sequence[int]) -> None:
    """Queries, and the new key and value in the cache."""
    shape, act = _shape(layer), kit.act
    outs = [act["q"], act["k"], act["v"]]
    if layer.projections.gate:
        outs.insert(1, act["gate"])
    kit.product("qkv", act["x"], *outs)
    positions = tuple(tokens - 1 for tokens in lengths)
    q = Rows(r.q, shape.heads)
    kit.rows(
        "rotary", "rotary", [act["q"], act["k"]], [q, act["k"]], pointwise.turn_both, positions, shape.key_dim
    )
    window = layer.shape.window if isinstance(layer.shape, SwaShape) else 0
    places = [position % window if window else position for position in positions]
    new, caches = (act["k"], act["v"]), (r.k, r.v)
    append.keys_values(kit.recorder, kit.layer, new, caches, shape.kv_heads, places, kit.shared.draft)


def after(kit: Kit, layer: Layer, r: GqaRegions) -> None:
    """The layer's output, into `x`."""
    out = Rows(r.out, r.out.region.rows // kit.tokens)
    if layer.projections.gate:
        kit.rows("gate", "gate", [out, kit.act["gate"]], [kit.act["gated"]], pointwise.gated)
        out = kit.act["gated"]
    kit.product("out", out, kit.act["x"])
