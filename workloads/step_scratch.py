"""Bytes of the activations outside attention that a whole step needs on one GPU: what its layers share.

A model and how it is spread enter, bytes leave: the regions that `step` declares, added up. Beside the closed
forms of `models.footprint`, which need no torch, it makes the footprint of a step whole.
"""

from __future__ import annotations

from functools import lru_cache

from workloads import exchanges
from workloads import step as whole_step
from workloads.exchanges import Exchanges
from workloads.models.model import Model
from workloads.parallel import ALONE, Parallel, shard
from workloads.record import ListSink, Recorder


@lru_cache(maxsize=256)
def activations(model: Model, batch: int, units: int, parallel: Parallel = ALONE, draft: int = 1) -> int:
    """Bytes for `batch` sequences of `draft` new tokens over all groups, on the GPU that has most of them.

    model  the whole model: it is cut here; UsageError where it cannot be, or has no weights
    """
    whole_step.check(model)
    cut, sink = shard(model, parallel), ListSink()
    assert cut.weights is not None
    recorder, mine = Recorder(sink, "meta"), -(-batch // parallel.dp)
    made = whole_step.declare(recorder, cut, mine, units, cut.weights.dtype, None, 0, draft)
    shared = Exchanges(recorder, parallel, mine * draft)
    exchanges.with_sums(shared, made.outer.kit.act["x"], whole_step.logits(made))
    if made.routed is not None and parallel.dp > 1:
        whole_step.with_groups(made, parallel.dp, shared.bring, shared.back)
    return sum(region.bytes for region in sink.regions if region.kind == "activation")
