"""The kernels around DeepSeek V4's attention: low-rank queries, the shared row, compressors, grouped output.

As vLLM runs them: queries' latents and the row come from one product; a kernel norms and turns queries
and row and writes the row to the window; products make the values and scores that compressors take in
(their own kernels are the attention's), an indexer's queries and weights are packed as its scan reads
them; the output is turned back, goes through a product for each group of heads and then through one for
all. Left out: the norms of single query heads' weights, and tables of angles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads import pointwise
from workloads.activations import Rows, dealt, kernel_name, row_launch
from workloads.arithmetic import arithmetic
from workloads.around_mla import index_acts, index_queries
from workloads.compressor import CompressorRegions
from workloads.csa import CsaRegions
from workloads.facts import Fact
from workloads.formats import Format, Parts
from workloads.grid import one
from workloads.hca import HcaRegions
from workloads.kit import Kit
from workloads.latent_compressor import LatentRegions
from workloads.models.model import Layer
from workloads.shapes import LATENT, CsaShape, WindowShape
from workloads.window_attend import WindowRegions

V4Regions = WindowRegions | HcaRegions | CsaRegions

FACTS = (
    Fact(
        "kernel.v4-insert.block",
        "a block a token",
        "assumed",
        "vLLM deepseek_v4: a fused norm, rotary and insert kernel, a warp a head",
    ),
)


def window_of(layer: Layer) -> WindowShape:
    """Shape of the window's attention."""
    shape = layer.shape if isinstance(layer.shape, WindowShape) else layer.shape.window
    assert isinstance(shape, WindowShape)
    return shape


def acts(layer: Layer, hidden: int) -> dict[str, int]:
    """Widths of activations."""
    p, width = layer.projections, window_of(layer).heads * LATENT
    widths = {
        "x": hidden,
        "q-lora": p.q_lora,
        "row": LATENT,
        "q": width,
        "turned-back": width,
        "out-low": p.o_groups * p.o_lora,
    }
    if isinstance(layer.shape, CsaShape) and layer.index_from is None:
        widths |= index_acts(layer.shape.index_heads)
    return widths


def norms(layer: Layer) -> dict[str, int]:
    """Widths of norms."""
    return {"q": layer.projections.q_lora, "row": LATENT}


def before(kit: Kit, layer: Layer, r: V4Regions, lengths: Sequence[int]) -> None:
    """Queries, the new row in the window, what compressors take in, the indexer's queries."""
    act = kit.act
    positions = tuple(tokens - 1 for tokens in lengths)
    kit.product("down", act["x"], act["q-lora"], act["row"])
    kit.rows("q-norm", "norm", [act["q-lora"]], [act["q-lora"]], pointwise.norm, norm="q")
    kit.product("q", act["q-lora"], act["q"])
    attention = r if isinstance(r, WindowRegions) else r.attention
    _insert(kit, window_of(layer), attention, positions)
    for maker in makers_of(r):
        name = maker.plan.name if isinstance(maker, CompressorRegions) else ""
        kit.product(f"{name}compressor", act["x"], Rows(maker.new, 1))
    if isinstance(r, CsaRegions) and r.indexer is not None:
        index_queries(kit, r.indexer, positions)


def makers_of(r: V4Regions) -> tuple[CompressorRegions | LatentRegions, ...]:
    """Compressors of a layer."""
    if isinstance(r, WindowRegions):
        return ()
    return (r.compressor,) if isinstance(r, HcaRegions) else r.makers


def latent_key(kit: Kit, r: V4Regions) -> None:
    """The index key of V4.1's latent, between the compressor's kernels."""
    for maker in makers_of(r):
        if isinstance(maker, LatentRegions):
            kit.product("index-key", Rows(maker.latent, 1), Rows(maker.key, 1))


def after(kit: Kit, layer: Layer, r: V4Regions, lengths: Sequence[int]) -> None:
    """The layer's output, into `x`."""
    attention = r if isinstance(r, WindowRegions) else r.attention
    positions = tuple(1 - tokens for tokens in lengths)
    back = kit.act["turned-back"]
    out = Rows(attention.out, window_of(layer).heads)
    kit.rows("turn-back", "rotary", [out], [back], pointwise.turn, positions, LATENT)
    kit.product("out-down", back, kit.act["out-low"])
    kit.product("out", kit.act["out-low"], kit.act["x"])


def _insert(kit: Kit, shape: WindowShape, r: WindowRegions, positions: tuple[int, ...]) -> None:
    """Turned queries, and the row in the window's place of its position."""
    q, row, batch, draft = kit.act["q"], kit.act["row"], kit.tokens, kit.shared.draft
    window = r.window.per_token(batch // draft, draft)
    to = Rows(r.q, shape.heads)
    launch = row_launch("v4 insert: a block per token")
    name = kernel_name(kit.layer, "window-append")
    with kit.recorder.kernel(name, "append", kit.layer, batch, launch):
        queries = q.load(batch, dealt(q, batch, batch))
        rows = row.load(batch, dealt(row, batch, batch))
        for sequence, position in enumerate(positions):
            mine = one(sequence)
            weight = kit.norms["row"].load(0, 1, mine)
            parts = packed_row(rows[sequence : sequence + 1], weight, r.kept, position)
            r.kept.store(window, window.first(sequence, batch) + position % shape.window, parts, mine)
        to.store(pointwise.turn(queries, positions, LATENT), dealt(to, batch, batch))


@arithmetic
def packed_row(row: torch.Tensor, weight: torch.Tensor, kept: Format, position: int) -> Parts:
    """A row [1, 512], normed and turned, as the window keeps it."""
    return kept.pack(pointwise.turn(pointwise.norm(row, weight), (position,), LATENT))
