"""The kernels around MLA and DSA: low-rank projections, absorbed keys and values, the new row, the indexer.

As vLLM runs them for decode: queries and the latent row come from one product where queries have a low
rank; latents are normed, rotary parts turned, the row is written to the cache; a product for each head takes
queries to the latent space, another one outputs back. An indexer adds its queries, key and weights, packed
as its scan reads them. Left out: the table of rotary angles, and that the index key's norm has a bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads import append, pointwise
from workloads.activations import Rows, concat_blocks
from workloads.arithmetic import arithmetic
from workloads.codes import quantise
from workloads.dsa import DsaRegions
from workloads.formats import Format
from workloads.indexer import IndexerRegions
from workloads.kit import Kit
from workloads.mla import MlaRegions
from workloads.models.model import Layer
from workloads.shapes import DIM, LATENT, DsaShape, MlaShape


def shape_of(layer: Layer) -> MlaShape:
    """Shape of the attention itself."""
    shape = layer.shape.attention if isinstance(layer.shape, DsaShape) else layer.shape
    assert isinstance(shape, MlaShape)
    return shape


def acts(layer: Layer, hidden: int) -> dict[str, int]:
    """Widths of activations."""
    shape, p = shape_of(layer), layer.projections
    widths = {"x": hidden, "latent": LATENT, "q-nope": shape.heads * p.nope, "values": shape.heads * p.value}
    if shape.rope:
        widths |= {"row-rope": shape.rope, "q-rope": shape.heads * shape.rope, "asked": shape.heads * LATENT}
    if p.q_lora:
        widths["q-lora"] = p.q_lora
    if p.gate:
        widths["out-gate"] = widths["values"]
    if isinstance(layer.shape, DsaShape) and layer.index_from is None:
        widths |= index_acts(layer.shape.index_heads) | {"index-key": DIM}
    return widths


def index_acts(heads: int) -> dict[str, int]:
    """Widths of an indexer's activations."""
    return {"index-q": heads * DIM, "index-weights": heads}


def norms(layer: Layer) -> dict[str, int]:
    """Widths of norms."""
    widths = {"latent": LATENT}
    if layer.projections.q_lora:
        widths["q"] = layer.projections.q_lora
    if isinstance(layer.shape, DsaShape) and layer.index_from is None:
        widths["index-key"] = DIM
    return widths


def before(kit: Kit, layer: Layer, regions: MlaRegions | DsaRegions, lengths: Sequence[int]) -> None:
    """Queries, and the new row and its index key in the caches."""
    r = regions.attention if isinstance(regions, DsaRegions) else regions
    shape, act = shape_of(layer), kit.act
    positions = tuple(tokens - 1 for tokens in lengths)
    row = [act["latent"]] + ([act["row-rope"]] if shape.rope else [])
    _project(kit, layer, row)
    if isinstance(layer.shape, DsaShape) and isinstance(regions, DsaRegions) and regions.indexer is not None:
        _index(kit, regions.indexer, lengths, layer.shape.pool)
    if shape.rope and layer.projections.turned:
        both = [act["q-rope"], act["row-rope"]]
        kit.rows("rotary", "rotary", both, both, pointwise.turn_both, positions, shape.rope)
    append.latent_rows(kit.recorder, kit.layer, row, (r.kv, r.rows), lengths, kit.shared.draft)
    q = Rows(r.q, shape.heads)
    if not shape.rope:
        kit.product("key-up", act["q-nope"], q)
        return
    kit.product("key-up", act["q-nope"], act["asked"])
    both = [act["asked"], act["q-rope"]]
    blocks = concat_blocks(kit.tokens * act["asked"].width, kit.units)
    kit.rows("q-concat", "concat", both, [q], pointwise.beside, shape.heads, blocks=blocks)


def _project(kit: Kit, layer: Layer, row: list[Rows]) -> None:
    """Queries of all heads, and the normed parts of the new row."""
    act = kit.act
    heads = [act["q-nope"]] + ([act["q-rope"]] if shape_of(layer).rope else [])
    if layer.projections.q_lora:
        kit.product("down", act["x"], act["q-lora"], *row)
        kit.rows("q-norm", "norm", [act["q-lora"]], [act["q-lora"]], pointwise.norm, norm="q")
        kit.rows("latent-norm", "norm", row[:1], row[:1], pointwise.norm, norm="latent")
        kit.product("q", act["q-lora"], *heads)
        return
    kit.product("q", act["x"], *heads)
    kit.product("latent", act["x"], *row)
    kit.rows("latent-norm", "norm", row[:1], row[:1], pointwise.norm, norm="latent")


def _index(kit: Kit, own: IndexerRegions, lengths: Sequence[int], pool: int) -> None:
    """The new index key in its cache, the indexer's queries and weights."""
    draft = kit.shared.draft
    keys = own.index.per_token(kit.tokens // draft, draft)
    new, norm, cache = kit.act["index-key"], kit.norms["index-key"], (keys, own.kept.keys)
    kit.product("index-key", kit.act["x"], new)
    append.index_keys(kit.recorder, kit.layer, new, norm, cache, lengths, pool)
    index_queries(kit, own, tuple(tokens - 1 for tokens in lengths))


def index_queries(kit: Kit, own: IndexerRegions, positions: tuple[int, ...]) -> None:
    """The indexer's queries and weights, packed as its scan reads them."""
    act, heads = kit.act, own.kept.heads
    kit.product("index-q", act["q-lora"], act["index-q"])
    kit.product("index-weights", act["x"], act["index-weights"])
    writes = [Rows(own.index_q, heads), Rows(own.index_weights, 1)]
    reads = [act["index-q"], act["index-weights"]]
    kit.rows("index-quantise", "quantise", reads, writes, packed_queries, own.kept.queries, positions)


def after(kit: Kit, layer: Layer, regions: MlaRegions | DsaRegions) -> None:
    """The layer's output, into `x`."""
    r = regions.attention if isinstance(regions, DsaRegions) else regions
    values, x = kit.act["values"], kit.act["x"]
    kit.product("value-up", Rows(r.out, shape_of(layer).heads), values)
    if layer.projections.gate:
        kit.product("out-gate", x, kit.act["out-gate"])
        kit.rows("gate", "gate", [values, kit.act["out-gate"]], [values], pointwise.gated)
    kit.product("out", values, x)


@arithmetic
def packed_queries(
    q: torch.Tensor, weights: torch.Tensor, kept: Format, positions: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turned queries [tokens, heads x ...] as they are kept; their scales in the weights [tokens, heads]."""
    heads = pointwise.turn(q, positions, DIM).reshape(-1, DIM)
    if kept.dtype != "fp8_e4m3":
        return kept.pack(heads)[0].reshape(len(q), -1), weights.float().abs()
    coded, scales = quantise(heads)
    return coded.reshape(len(q), -1), weights.float().abs() * scales.reshape(weights.shape)
