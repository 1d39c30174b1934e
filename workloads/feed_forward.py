"""What follows attention in a layer: a feed-forward layer, or experts, and what hyper-connections add.

As vLLM runs them: gate and up projection in one product, SiLU and product in a pass, the down projection;
of experts the router, its top-k, the passes of `experts`, the shared experts as a feed-forward layer of
their own, and the sum of both. Hyper-connections keep several residual streams: a product of all streams
gives the weights by which a layer's input is mixed of them and its output dealt to them. Small launches
that engines make beside (the router's scale, a count of rows) are kernels too. Left out: the Sinkhorn
steps between the product and the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from workloads import experts, pointwise
from workloads.activations import Rows
from workloads.arithmetic import arithmetic
from workloads.experts import chosen_of, needs_align
from workloads.facts import Fact
from workloads.kit import Kit, Shared
from workloads.models.model import Weights
from workloads.record import Int64s, Recorder, RegionHandle

ROUTER_SCALE = 2.5  # any number but 1

FACTS = (
    Fact(
        "kernel.experts.glue",
        "a launch for the router's scale, one for the count of rows",
        "measured",
        "kernels captured in a decode step of vLLM's layers on an H200 (validation/measured)",
    ),
)


class Carry(Protocol):
    """Brings rows of this group's tokens to those of all groups, or back: from, to."""

    def __call__(self, recorder: Recorder, layer: int, given: Rows, to: Rows) -> None: ...


@dataclass(frozen=True)
class Everyone:
    """Experts that work on the tokens of several groups of GPUs.

    shared, kits   their activations, and the kit of each layer for them
    bring          gathers the tokens of all groups
    back           adds up what all GPUs have made of this group's tokens
    """

    shared: Shared
    kits: Sequence[Kit]
    bring: Carry
    back: Carry


@dataclass(frozen=True)
class Routed:
    """Activations of a layer of experts, `active` rows a token.

    ids, scales, order   a number each: experts, the router's weights, pairs in the order of experts
    count                rows of all experts, one number a token
    """

    ids: RegionHandle
    scales: RegionHandle
    order: RegionHandle
    count: RegionHandle
    up: Rows
    inner: Rows
    out: Rows


def acts(w: Weights, *, dense: bool, routed: bool) -> dict[str, int]:
    """Widths of activations."""
    widths = {"x": w.hidden}
    if dense:
        widths |= {"dense-up": 2 * w.dense_width, "dense-inner": w.dense_width}
    if routed:
        widths |= {"logits": w.experts + w.zero_experts, "routed": w.hidden}
        if w.shared:
            width = w.shared * (w.shared_width or w.expert_width)
            widths |= {"shared-up": 2 * width, "shared-inner": width, "shared-out": w.hidden}
        if w.latent:
            widths |= {"experts-in": w.latent, "experts-made": w.latent}
    if w.streams:
        widths |= {"streams": w.streams * w.hidden, "mix": w.streams * (w.streams + 2)}
    return widths


def declare(shared: Shared, w: Weights) -> Routed:
    """Activations of all layers of experts."""
    inner = w.latent or w.hidden
    return Routed(
        ids=shared.cells("experts-ids", w.active, "int32"),
        scales=shared.cells("experts-scales", w.active, "fp32"),
        order=shared.cells("experts-order", w.active, "int32"),
        count=shared.cells("experts-count", 1, "int32"),
        up=shared.rows("experts-up", 2 * w.expert_width, each=w.active),
        inner=shared.rows("experts-inner", w.expert_width, each=w.active),
        out=shared.rows("experts-out", inner, each=w.active),
    )


def mlp(kit: Kit, name: str, out: Rows) -> None:
    """A feed-forward layer of `x`: dense, or the shared experts."""
    act = kit.act
    kit.product(f"{name}-up", act["x"], act[f"{name}-up"])
    kit.rows(f"{name}-silu", "silu-mul", [act[f"{name}-up"]], [act[f"{name}-inner"]], pointwise.silu_mul)
    kit.product(f"{name}-down", act[f"{name}-inner"], out)


def expert_acts(w: Weights) -> dict[str, int]:
    """Widths of activations that the routed experts alone need."""
    names = ("x", "logits", "routed", "experts-in", "experts-made")
    return {name: width for name, width in acts(w, dense=False, routed=True).items() if name in names}


def everyone(shared: Shared, w: Weights, kits: Sequence[Kit], bring: Carry, back: Carry) -> Everyone:
    """Experts for the tokens of `shared`, those of all groups; `kits` have the weights."""
    made = {name: shared.rows(name, width) for name, width in expert_acts(w).items()}
    for kit in kits:
        for name in ("router", "experts-up", "experts-down", "latent-down", "latent-up"):
            if name in kit.w:
                shared.need(kit.w[name], w.active if name == "experts-down" else 1)
    wide = [replace(kit, shared=shared, act=made) for kit in kits]
    return Everyone(shared, wide, bring, back)


def routed(
    kit: Kit, w: Weights, r: Routed, drawn: Int64s | None, out: Rows, everyone: Everyone | None = None
) -> None:
    """The experts of every token, as `drawn` or by score, and the shared ones: into `out`."""
    if everyone is None:
        _experts(kit, w, r, drawn, kit.act["routed"] if w.shared else out)
    else:
        wide = everyone.kits[kit.layer]
        everyone.bring(kit.recorder, kit.layer, kit.act["x"], wide.act["x"])
        _experts(wide, w, r, drawn, wide.act["routed"])
        summed = kit.act["routed"] if w.shared else out
        everyone.back(kit.recorder, kit.layer, wide.act["routed"], summed)
    if w.shared:
        mlp(kit, "shared", kit.act["shared-out"])
        kit.rows("experts-add", "add", [kit.act["shared-out"], kit.act["routed"]], [out], pointwise.plus)


def _experts(kit: Kit, w: Weights, r: Routed, drawn: Int64s | None, out: Rows) -> None:
    """The routed experts of every token of the kit."""
    x, act, recorder, layer = kit.act["x"], kit.act, kit.recorder, kit.layer
    kit.product("router", x, act["logits"])
    ids = experts.route(recorder, layer, act["logits"], r.ids, r.scales, kit.tokens, drawn)
    scales, active = Rows(r.scales, w.active), w.active
    kit.rows("experts-scale", "glue", [scales], [scales], scaled, ROUTER_SCALE)
    kit.rows("experts-fill", "glue", [], [Rows(r.count, 1)], filled, kit.tokens * active, kit.tokens)
    chosen = chosen_of(*experts.held(ids, w.experts, w.held or w.experts))
    aligned = needs_align(kit.tokens, active, w.experts + w.zero_experts)
    if aligned:
        experts.align(recorder, layer, r.ids, r.order)
    if w.latent:
        kit.product("latent-down", x, act["experts-in"])
        x = act["experts-in"]
    up, down = kit.w["experts-up"], kit.w["experts-down"]
    coded = up.takes_coded
    given = kit.quantised("experts-up", x, kit.tokens) if coded else x
    lookup = r.order if aligned else r.ids
    experts.grouped(recorder, layer, up, given, lookup, r.up.handle, chosen, first=True, aligned=aligned)
    pairs = kit.tokens * active
    kit.rows("experts-silu", "silu-mul", [r.up], [r.inner], pointwise.silu_mul, rows=pairs)
    given = kit.quantised("experts-down", r.inner, pairs) if coded else r.inner
    experts.grouped(
        recorder,
        layer,
        down,
        given,
        lookup,
        r.out.handle,
        chosen,
        first=False,
        aligned=aligned,
        weights=r.scales,
    )
    summed = act["experts-made"] if w.latent else out
    experts.total(recorder, layer, r.out.handle, summed, kit.tokens)
    if w.latent:
        kit.product("latent-up", act["experts-made"], out)


def mix_in(kit: Kit, name: str, norm: str) -> None:
    """The input of attention or feed-forward, `x`, mixed of all streams and normed."""
    act = kit.act
    kit.product(f"mix-{name}", act["streams"], act["mix"])
    reads, streams = [act["streams"], act["mix"]], act["streams"].width // act["x"].width
    kit.rows(f"{name}-streams-in", "streams", reads, [act["x"]], mixed, streams, norm=norm)


def mix_out(kit: Kit, name: str) -> None:
    """The output of attention or feed-forward, `x`, dealt to all streams."""
    act = kit.act
    streams = act["streams"].width // act["x"].width
    reads = [act["streams"], act["x"], act["mix"]]
    kit.rows(f"{name}-streams-out", "streams", reads, [act["streams"]], spread, streams)


@arithmetic
def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    """x times a number."""
    return x * scale


def filled(number: int, tokens: int) -> torch.Tensor:
    """A number for each token."""
    return torch.full((tokens, 1), number, dtype=torch.int32)


@arithmetic
def mixed(streams: torch.Tensor, mix: torch.Tensor, norm: torch.Tensor, count: int) -> torch.Tensor:
    """The normed mean of streams [tokens, count x hidden], weighted by the first `count` of `mix`."""
    rows = streams.float().unflatten(1, (count, -1))
    weights = mix.float()[:, :count].softmax(dim=1)
    return pointwise.norm((rows * weights[:, :, None]).sum(1), norm)


@arithmetic
def spread(streams: torch.Tensor, x: torch.Tensor, mix: torch.Tensor, count: int) -> torch.Tensor:
    """Streams mixed with each other, x added to each: by the other numbers of `mix`."""
    rows, numbers = streams.float().unflatten(1, (count, -1)), mix.float()
    dealt, between = numbers[:, count : 2 * count], numbers[:, 2 * count :].unflatten(1, (count, count))
    return (between.softmax(2) @ rows + dealt.sigmoid()[:, :, None] * x.float()[:, None]).flatten(1)
