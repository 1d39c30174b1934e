"""The kernels around KDA and GDN: projections before the recurrence, gated norm and projection after it.

As vLLM runs them: of KDA one product each for q, k and v, low-rank ones for decays and the output's gate, one
for beta; of GDN one product for q, k, v and the gate and one for decays and beta. The gates' activations are
in the epilogue of the product that makes them, where real kernels have them in the recurrence. Left out: the
gates' scalars (A, the bias of the time step).
"""

from __future__ import annotations

from workloads import pointwise
from workloads.activations import Rows
from workloads.delta_rule import DeltaRegions
from workloads.kit import Kit
from workloads.models.model import Layer
from workloads.shapes import CHANNELS, DIM, GdnShape, KdaShape


def acts(layer: Layer, hidden: int) -> dict[str, int]:
    """Widths of activations."""
    shape = layer.shape
    if isinstance(shape, KdaShape):
        width = shape.heads * DIM
        low = {} if layer.projections.gate else {"out-gate-low": DIM}
        return {"x": hidden, "gate-low": DIM, "beta": shape.heads, "out-gate": width, "normed": width} | low
    assert isinstance(shape, GdnShape)
    width = shape.value_heads * DIM
    return {"x": hidden, "out-gate": width, "normed": width}


def norms(layer: Layer) -> dict[str, int]:
    """Widths of norms."""
    return {"out": DIM}


def before(kit: Kit, layer: Layer, r: DeltaRegions) -> None:
    """What the convolution and the recurrence read."""
    x, shape = kit.act["x"], layer.shape
    segments = r.x.region.rows // kit.tokens
    if isinstance(shape, GdnShape):
        mixed = Rows(r.x, segments)
        kit.product("in", x, mixed, kit.act["out-gate"])
        gate = Rows(r.gate, shape.value_heads)
        kit.product("gates", x, gate, finish=pointwise.decay_beta)
        return
    assert isinstance(shape, KdaShape)
    pieces = shape.heads * DIM // CHANNELS
    for number, name in enumerate(("q", "k", "v")):
        kit.product(name, x, Rows(r.x, segments).part(number * pieces, pieces))
    kit.product("gate-a", x, kit.act["gate-low"])
    kit.product("beta", x, kit.act["beta"])
    gate = Rows(r.gate, shape.heads)
    kit.product("gate-b", kit.act["gate-low"], gate, finish=pointwise.decays, beside=[kit.act["beta"]])


def after(kit: Kit, layer: Layer, r: DeltaRegions) -> None:
    """The layer's output, into `x`."""
    x, gate = kit.act["x"], kit.act["out-gate"]
    if isinstance(layer.shape, KdaShape):
        if layer.projections.gate:
            kit.product("out-gate", x, gate)
        else:
            kit.product("out-gate-a", x, kit.act["out-gate-low"])
            kit.product("out-gate-b", kit.act["out-gate-low"], gate)
    out, normed = Rows(r.out, r.out.region.rows // kit.tokens), kit.act["normed"]
    kit.rows("gated-norm", "gated-norm", [out, gate], [normed], pointwise.gated_norm, norm="out")
    kit.product("out", normed, x)
