"""`glue.*`, `inner.heads`, `inner.mla`: kernels of a step alone, recorded as whole steps have them.

`again`: the same call over and over. `after`: one call behind a kernel that has read its inputs; weights,
caches and kept taps are not in the L2. Each part declares the regions of a call, tells which are its inputs,
and launches it. Left out: the families whose measurement does not bear it, see
validation/measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_kernels import layer as alone
from validation.predict_recorded import Recorded, Turn, in_a_row, record, rotating
from validation.predict_script import Bench, Job, Recipe, count
from workloads import append, delta_rule, experts, head, kda, linear, pointwise
from workloads.activations import Rows, concat_blocks, declare, row_launch, rowwise
from workloads.feed_forward import scaled
from workloads.formats import LATENT, latent_fp8, plain
from workloads.grid import even
from workloads.kit import Shared
from workloads.models.matrices import Matrix
from workloads.record import Recorder, RegionHandle
from workloads.routing import Routing
from workloads.run import Run
from workloads.shapes import DIM, KdaShape, MlaShape

ROPE, KEY, QUERY = 64, 128, 192  # values of a head of queries
ROWS = 65_536  # of a cache that rows are added to
KV_HEADS = 8
READER = "reader"
Parts = Iterator[Sequence[RegionHandle]]
Part = Callable[[Recorder, Row, int], Parts]


def recipe(part: Part, row: Row, system: System, calls: int = 1) -> Job:
    """A call of `part`, which launches `calls` kernels where one is measured."""
    call = _recorded(part, row, system, after=False)
    if row["state"] == "again":
        job = rotating(call, [], 1)
        return Job(
            job.bytes_read // calls, job.bytes_written // calls, lambda bench: job.time_ns(bench) / calls
        )
    moved = call.moved()
    script, last = in_a_row([Turn(_recorded(part, row, system, after=True), {})])

    def time_ns(bench: Bench) -> float:
        return bench.run(script).between_ns(0, last[0]) / calls

    return Job(moved[0] // calls, moved[1] // calls, time_ns)


def _recorded(part: Part, row: Row, system: System, *, after: bool) -> Recorded:
    units = system.initiators[0].units

    def run(recorder: Recorder) -> None:
        recorder.among_others = after
        steps = part(recorder, row, units)
        inputs = next(steps)
        if after:
            with recorder.kernel(READER, READER, 0, units, row_launch("reads the inputs")):
                for handle in inputs:
                    handle.load(0, handle.region.rows, even(0, units - 1, 1))
        for _ in steps:
            pass

    return record(run)


def norm(recorder: Recorder, row: Row, units: int) -> Parts:
    """RMS norm, the residual added in it or not."""
    tokens, width = count(row, "tokens"), count(row, "width")
    x = declare(recorder, "x", tokens, width)
    weights = [recorder.region("norm", "weights", 0, 1, width * 2, "bf16")]
    if row["kind"] == "add":
        both = [x, declare(recorder, "residual", tokens, width)]
        yield [*(rows.handle for rows in both), *weights]
        rowwise(recorder, 0, "norm", "norm", tokens, both, both, pointwise.add_norm, weights=weights)
        return
    out = declare(recorder, "out", tokens, width)
    yield [x.handle, *weights]
    rowwise(recorder, 0, "norm", "norm", tokens, [x], [out], pointwise.norm, weights=weights)


def silu(recorder: Recorder, row: Row, units: int) -> Parts:
    """SiLU of one half times the other."""
    tokens, width = count(row, "rows"), count(row, "width")
    x, out = declare(recorder, "x", tokens, 2 * width), declare(recorder, "out", tokens, width)
    yield [x.handle]
    rowwise(recorder, 0, "silu", "silu-mul", tokens, [x], [out], pointwise.silu_mul)


def rotary(recorder: Recorder, row: Row, units: int) -> Parts:
    """The turn of queries and keys in place."""
    tokens, dim = count(row, "tokens"), count(row, "dim")
    both = [declare(recorder, name, tokens, count(row, name) * dim) for name in ("heads", "kv_heads")]
    yield [rows.handle for rows in both]
    rowwise(
        *(recorder, 0, "rotary", "rotary", tokens, both, both, pointwise.turn_both),
        *((1,) * tokens, dim),
    )


def router(recorder: Recorder, row: Row, units: int) -> Parts:
    """The choice of experts."""
    tokens, k, scored = count(row, "tokens"), count(row, "k"), count(row, "experts")
    dtype = "fp32" if row["kind"] == "grouped" else "bf16"
    logits, shared = declare(recorder, "logits", tokens, scored, dtype), Shared(recorder, tokens)
    ids, scales = shared.cells("ids", k, "int32"), shared.cells("scales", k, "fp32")
    yield [logits.handle]
    chosen, grouped = Routing(scored, k).chosen(0, 0, tokens), row["kind"] == "grouped"
    experts.route(recorder, 0, logits, ids, scales, tokens, chosen, grouped=grouped)


def total(recorder: Recorder, row: Row, units: int) -> Parts:
    """The sum over a token's experts."""
    tokens, width = count(row, "tokens"), count(row, "width")
    parts = declare(recorder, "parts", tokens * count(row, "k"), width)
    out = declare(recorder, "out", tokens, width)
    yield [parts.handle]
    experts.total(recorder, 0, parts.handle, out, tokens)


def elementwise(recorder: Recorder, row: Row, units: int) -> Parts:
    """A sum, a scale in place, or a fill."""
    numbers, kind = count(row, "numbers"), row["kind"]
    if kind == "add":
        x, y, out = (declare(recorder, name, 1, numbers) for name in ("x", "y", "out"))
        yield [x.handle, y.handle]
        rowwise(recorder, 0, "add", "add", 1, [x, y], [out], pointwise.plus)
        return
    x = declare(recorder, "x", 1, numbers, "fp32" if kind == "scale" else "int32")
    yield [x.handle]
    if kind == "scale":
        rowwise(recorder, 0, "scale", "glue", 1, [x], [x], scaled, 1.0)
    else:
        rowwise(recorder, 0, "fill", "glue", 1, [], [x], _filled, numbers)


def _filled(numbers: int) -> torch.Tensor:
    return torch.full((1, numbers), 7, dtype=torch.int32)


def concat(recorder: Recorder, row: Row, units: int) -> Parts:
    """Latent and rotary parts of queries side by side."""
    tokens, heads = count(row, "tokens"), count(row, "heads")
    parts = [declare(recorder, f"part{dim}", tokens, heads * dim) for dim in (LATENT, ROPE)]
    out = Rows(recorder.region("out", "activation", 0, tokens * heads, (LATENT + ROPE) * 2, "bf16"), heads)
    yield [rows.handle for rows in parts]
    blocks = concat_blocks(tokens * parts[0].width, units)
    rowwise(recorder, 0, "concat", "concat", tokens, parts, [out], pointwise.beside, heads, blocks=blocks)


def appended(recorder: Recorder, row: Row, units: int) -> Parts:
    """New rows into a cache."""
    tokens, kind = count(row, "tokens"), row["kind"]
    if kind == "flash":
        new = [declare(recorder, name, tokens, KV_HEADS * DIM) for name in ("k", "v")]
        caches = [
            recorder.region(f"cache-{name}", "kv", 0, ROWS * KV_HEADS, DIM * 2, "bf16") for name in ("k", "v")
        ]
        yield [rows.handle for rows in new]
        places = [ROWS // tokens - 1] * tokens
        append.keys_values(recorder, 0, (new[0], new[1]), (caches[0], caches[1]), KV_HEADS, places)
        return
    kept = {"latent": plain(LATENT + ROPE, "bf16"), "latent_fp8": latent_fp8(ROPE)}
    rows, widths = kept.get(str(kind)), [LATENT, ROPE]
    if rows is None:
        rows, widths = plain(DIM, "fp8"), [DIM]
    cache = rows.region(recorder, "cache", "kv", 0, ROWS)
    parts = [declare(recorder, f"new{width}", tokens, width) for width in widths]
    yield [part.handle for part in parts]
    kept_rows = ROWS // tokens
    append.latent_rows(recorder, 0, parts, (cache, rows), [kept_rows] * tokens)


def aligned(recorder: Recorder, row: Row, units: int) -> Parts:
    """Pairs of tokens and experts in the order of experts."""
    shared = Shared(recorder, count(row, "tokens"))
    ids, order = (shared.cells(name, 8, "int32") for name in ("ids", "order"))
    yield [ids]
    experts.align(recorder, 0, ids, order)


def convolution(recorder: Recorder, row: Row, units: int) -> Parts:
    """The convolutions of q, k and v, each of so many channels."""
    tokens, shape = count(row, "tokens"), KdaShape(count(row, "width") // DIM)
    regions = kda.declare(recorder, 0, shape, Run(tokens, 1, units))
    yield [regions.x, regions.conv_weight]
    delta_rule.convolve_all(recorder, 0, kda.rule_of(shape), regions, tokens)


def gated_norm(recorder: Recorder, row: Row, units: int) -> Parts:
    """The norm of each head times the sigmoid of a gate."""
    tokens, width = count(row, "tokens"), count(row, "heads") * DIM
    x, gate, out = (declare(recorder, name, tokens, width) for name in ("x", "gate", "out"))
    weights = [recorder.region("norm", "weights", 0, 1, DIM * 2, "bf16")]
    yield [x.handle, gate.handle, *weights]
    rowwise(
        *(recorder, 0, "norm", "gated-norm", tokens, [x, gate], [out], pointwise.gated_norm),
        weights=weights,
    )


def quantise(recorder: Recorder, row: Row, units: int) -> Parts:
    """Rows in fp8 with their scales."""
    tokens, width = count(row, "tokens"), count(row, "width")
    x = declare(recorder, "x", tokens, width)
    coded = recorder.region("coded", "activation", -1, tokens * width // DIM, linear.CODED_ROW, "bytes")
    yield [x.handle]
    linear.quantised(recorder, 0, "x", x, Rows(coded, 1), tokens)


def argmax(recorder: Recorder, row: Row, units: int) -> Parts:
    """The largest of each token's logits."""
    tokens = count(row, "tokens")
    logits, shared = declare(recorder, "logits", tokens, count(row, "vocabulary")), Shared(recorder, tokens)
    found = shared.cells("found", 1, "int32")
    yield [logits.handle]
    head.argmax(recorder, logits, found, tokens, units)


def heads(recorder: Recorder, row: Row, units: int) -> Parts:
    """A product for each head. Behind other kernels too its weights are in the L2: `after` takes 0.05 to
    0.5 us longer than `again`, of 25 MB 1.4, and from HBM they would take 4.
    """
    tokens, number = count(row, "tokens"), count(row, "heads")
    k, n = (KEY, LATENT) if row["part"] == "key" else (LATENT, KEY)
    made = linear.declare(recorder, 0, Matrix("x", n, k, number), "bf16", units, tokens)
    x, out = declare(recorder, "in", tokens, number * k), declare(recorder, "out", tokens, number * n)
    shared = Shared(recorder, tokens)
    shared.need(made)
    shared.close()
    yield [x.handle, made.weights]
    linear.product(recorder, 0, made, x, [out], tokens, shared.partial)


def attention(row: Row, system: System) -> Job:
    """Attention over a short context with its combine pass. Behind other kernels its code is still in the L2,
    not in the caches of instructions: what the combine pass takes for that stands for both.
    """
    lengths, shape = [count(row, "context")] * count(row, "batch"), MlaShape(count(row, "heads"))
    call = alone("mla", shape, lengths, system)
    if row["state"] == "again":
        return rotating(call, [], 1)
    later = alone("mla", shape, lengths, system, among_others=True).kernels
    pairs = zip(call.kernels, later, strict=True)
    call = replace(call, kernels=tuple(near if near.family == "mla" else far for near, far in pairs))
    script, last = in_a_row([Turn(record(_first), {}), Turn(call, {})])
    return Job(*call.moved(), lambda bench: bench.run(script).between_ns(last[0], last[1]))


def _first(recorder: Recorder) -> None:
    """A kernel that does nothing, so that the next one is not the first of a step."""
    with recorder.kernel(READER, READER, 0, 1, row_launch("nothing")):
        pass


PARTS: dict[str, tuple[Part, int]] = {
    "glue.norm": (norm, 1),
    "glue.silu": (silu, 1),
    "glue.rotary": (rotary, 1),
    "glue.router": (router, 1),
    "glue.sum": (total, 1),
    "glue.elementwise": (elementwise, 1),
    "glue.cat": (concat, 1),
    "glue.append": (appended, 1),
    "glue.align": (aligned, 1),
    "glue.conv": (convolution, 3),
    "glue.gated_norm": (gated_norm, 1),
    "glue.quantise": (quantise, 1),
    "glue.argmax": (argmax, 1),
    "inner.heads": (heads, 1),
}
RECIPES: dict[str, Recipe] = {
    name: partial(recipe, part, calls=calls) for name, (part, calls) in PARTS.items()
}
RECIPES |= {"inner.mla": attention}
