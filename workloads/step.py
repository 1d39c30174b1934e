"""A whole decode step: what the kernels around attention are, layer by layer, put together from a model.

Enters: a model (of one GPU: cut already where there are several), tokens, units. `declare` makes all
regions beside those of the attention, `before` and `after` launch what comes before and after the
attention of a layer, `begin` and `end` what is around the layers. Collectives belong into the two hooks,
which are called once `x` holds the output of attention, and of the feed-forward layer. docs/step.md says
what a step holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from memsim.errors import UsageError
from workloads import (
    activations,
    append,
    around_delta,
    around_gqa,
    around_mla,
    around_v4,
    experts,
    feed_forward,
    head,
    kit,
    linear,
    pointwise,
)
from workloads.activations import Rows
from workloads.feed_forward import Carry, Everyone, Routed
from workloads.head import Outer
from workloads.kit import Kit, Shared
from workloads.models import matrices
from workloads.models.model import Layer, Model, Weights
from workloads.record import Recorder
from workloads.routing import Routing

AROUND: dict[str, ModuleType] = {
    "kda": around_delta,
    "gdn": around_delta,
    "mla": around_mla,
    "dsa": around_mla,
    "gqa": around_gqa,
    "swa": around_gqa,
    "window": around_v4,
    "csa": around_v4,
    "hca": around_v4,
}

FACTS = (
    *linear.FACTS,
    *activations.FACTS,
    *append.FACTS,
    *head.FACTS,
    *experts.FACTS,
    *feed_forward.FACTS,
    *around_v4.FACTS,
)

OUTSIDE = -1  # the layer of what is of no layer

Hook = Callable[[Recorder, int, Rows], None]


def no_collective(recorder: Recorder, layer: int, x: Rows) -> None:
    """What one GPU does after attention and after experts."""


@dataclass(frozen=True)
class Step:
    """Regions of a step beside those of attention, and how it goes.

    kits      of each layer
    routed    activations of experts, None without
    routing   whom tokens choose, None: by the router's scores
    everyone  experts for the tokens of several groups of GPUs; None: for those of this group
    shortcut  what LongCat's experts made, until the next layer adds it
    """

    model: Model
    weights: Weights
    shared: Shared
    kits: tuple[Kit, ...]
    outer: Outer
    routed: Routed | None
    routing: Routing | None
    seed: int
    after_attention: Hook = no_collective
    after_experts: Hook = no_collective
    everyone: Everyone | None = None


def check(model: Model) -> None:
    """UsageError where the model's file does not say enough for a whole step."""
    w, layers = model.weights, len(model.layers)
    if w is None:
        raise UsageError(f"--part step with model '{model.name}': its file has no [weights]; add the table")
    whole = w.dense_layers == layers and w.moe_layers in (0, layers // 2)
    if w.dense_layers + w.moe_layers != layers and not whole:
        raise UsageError(
            f"--part step with model '{model.name}': {w.dense_layers} dense_layers and {w.moe_layers} "
            f"moe_layers in {layers} layers; expected as many together, or dense_layers in all and experts "
            "in every other"
        )


def declare(
    recorder: Recorder,
    model: Model,
    batch: int,
    units: int,
    weights_dtype: str,
    routing: Routing | None,
    seed: int,
    draft: int = 1,
) -> Step:
    """Regions of all layers beside their attention, and around them, for `batch` x `draft` tokens."""
    w = model.weights
    assert w is not None, f"{model.name} has no weights"
    recorder.among_others = True
    shared = Shared(recorder, batch * draft, draft)
    table, last = matrices.of_outer(w)
    outer = head.declare(shared, w, table, last, units, weights_dtype)
    kits = tuple(
        _layer(shared, model, w, number, units, weights_dtype) for number in range(len(model.layers))
    )
    routed = feed_forward.declare(shared, w) if w.moe_layers else None
    for made in kits:
        if "experts-down" in made.w:
            shared.need(made.w["experts-down"], w.active)
    shared.close()
    return Step(model, w, shared, kits, outer, routed, routing, seed)


def with_groups(step: Step, groups: int, bring: Carry, back: Carry) -> Step:
    """The step whose experts work on the tokens of `groups` groups of GPUs, as many of each."""
    shared = Shared(step.shared.recorder, step.shared.tokens * groups, prefix="all-")
    routed = feed_forward.declare(shared, step.weights)
    everyone = feed_forward.everyone(shared, step.weights, step.kits, bring, back)
    shared.close()
    return replace(step, routed=routed, everyone=everyone)


def _layer(shared: Shared, model: Model, w: Weights, number: int, units: int, weights_dtype: str) -> Kit:
    """Regions of one layer."""
    layer = model.layers[number]
    around, dense = AROUND[layer.kind], matrices.has_dense(model, number)
    routed = matrices.has_experts(model, number)
    norms = {"in": w.hidden, "mid": w.hidden, **around.norms(layer)}
    acts = around.acts(layer, w.hidden) | feed_forward.acts(w, dense=dense, routed=routed)
    if not w.streams:
        acts["residual"] = w.hidden
    if w.dense_layers + w.moe_layers > len(model.layers):
        acts["shortcut"] = w.hidden
    return kit.declare(shared, number, units, weights_dtype, matrices.of_layer(model, number), norms, acts)


def fill_outer(step: Step, generator: torch.Generator) -> None:
    """Random tables, and zeros in all activations."""
    step.shared.zero()
    head.fill(step.outer, generator)


def fill(step: Step, number: int, generator: torch.Generator) -> None:
    """Random weights of a layer."""
    kit.fill(step.kits[number], generator)


def begin(step: Step, number: int) -> None:
    """Rows of the input table, at the start of decode step `number`."""
    tokens = step.shared.tokens
    head.embed(step.outer, head.drawn_tokens(step.seed, number, tokens, step.weights.vocab))


def begun(step: Step) -> Rows:
    """What the rows of the input table have become."""
    act = step.outer.kit.act
    if "streams" not in act:
        return act["residual"]
    return Rows(act["streams"].handle, act["x"].pieces)  # before they are copied to the other streams


def logits(step: Step) -> Rows:
    """Logits over this GPU's part of the vocabulary."""
    return step.outer.kit.act["vocabulary"]


def end(step: Step, gather: Callable[[Rows], Rows] = lambda own: own) -> None:
    """Last norm, logits, sampling; `gather` brings the logits of all parts of the vocabulary together."""
    head.finish(step.outer)
    head.sample(step.outer, gather(logits(step)))


def before(step: Step, number: int, attention: Any, lengths: Sequence[int]) -> None:
    """The norm before attention, its projections, the rows that it adds to its caches."""
    k, layer = step.kits[number], step.model.layers[number]
    if step.weights.streams:
        feed_forward.mix_in(k, "attention", "in")
    elif number == 0:
        x, residual = k.act["x"], k.act["residual"]
        k.rows("in-norm", "norm", [residual], [x], pointwise.norm, norm="in")
    else:
        _add_norm(k, "in")
    if AROUND[layer.kind] is around_delta:
        around_delta.before(k, layer, attention)
    else:
        AROUND[layer.kind].before(k, layer, attention, lengths)


def between(step: Step, number: int, attention: Any) -> Callable[[], None] | None:
    """What runs between the kernels of a layer's attention: V4.1's product for index keys."""
    if AROUND[step.model.layers[number].kind] is not around_v4:
        return None
    return lambda: around_v4.latent_key(step.kits[number], attention)


def after(step: Step, number: int, decode_step: int, attention: Any, lengths: Sequence[int]) -> None:
    """The output of attention, then the feed-forward layer or experts."""
    k, layer, w = step.kits[number], step.model.layers[number], step.weights
    recorder, x = step.shared.recorder, k.act["x"]
    if AROUND[layer.kind] is around_v4:
        around_v4.after(k, layer, attention, lengths)
    else:
        AROUND[layer.kind].after(k, layer, attention)
    step.after_attention(recorder, number, x)
    if w.streams:
        feed_forward.mix_out(k, "attention")
        feed_forward.mix_in(k, "experts", "mid")
    else:
        _add_norm(k, "mid")
    _feed_forward(step, k, layer, number, decode_step)
    step.after_experts(recorder, number, x)
    if w.streams:
        feed_forward.mix_out(k, "experts")


def _feed_forward(step: Step, k: Kit, layer: Layer, number: int, decode_step: int) -> None:
    """A dense layer, experts, or both beside each other: experts then count a layer later (LongCat)."""
    model, x = step.model, k.act["x"]
    dense, both = matrices.has_dense(model, number), "shortcut" in k.act
    if matrices.has_experts(model, number):
        assert step.routed is not None
        drawn = None
        if step.routing is not None:
            shared = step.shared if step.everyone is None else step.everyone.shared
            drawn = step.routing.chosen(number, decode_step, shared.tokens)
        out = k.act["shortcut"] if both else x
        feed_forward.routed(k, step.weights, step.routed, drawn, out, step.everyone)
    if dense:
        feed_forward.mlp(k, "dense", x)
        if both and not matrices.has_experts(model, number):
            k.rows("shortcut-add", "add", [x, k.act["shortcut"]], [x], pointwise.plus)


def _add_norm(k: Kit, name: str) -> None:
    """x joins the residual; x is the normed sum."""
    both = [k.act["x"], k.act["residual"]]
    k.rows(f"{name}-norm", "norm", both, both, pointwise.add_norm, norm=name)
