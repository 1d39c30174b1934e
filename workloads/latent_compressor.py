"""The compressor of DeepSeek V4.1: one or two tokens become a latent, this a cached row and an index key.

At 2:1 a token leaves its value and its score in a ring of fp32 states; the second of a pair makes

    latent = norm(sum over both of softmax(scores) x values);  at 1:1 latent = norm(value).

The latent is kept in bf16, then packed into the cache; its index key comes out of a projection, is normed and
packed. Taken from vLLM's kernels: the first takes a block a sequence and, at 2:1, another for every pair of
tokens of the launch, which have nothing to do in decode; the two others take a block a token. Left out: the
rotary turn and its table, and the projections that values, scores and keys come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from workloads.arithmetic import arithmetic
from workloads.compressor import packed
from workloads.facts import Fact
from workloads.formats import INDEX_DIM, LATENT, Format, Parts
from workloads.grid import Shape, one
from workloads.record import Recorder, RegionHandle
from workloads.tensors import normal

SLOTS = 8  # of a sequence's ring
LOADS_IN_FLIGHT = 8
BLOCKS_PER_UNIT = 16
EPSILON = 1e-6

VLLM = "vLLM deepseek_v41"

FACTS = (
    Fact(
        "kernel.latent.block",
        "a block a sequence; at 2:1 one more for every two",
        "stated",
        f"{VLLM}/common/ops/fused_compress_quant_cache.py",
    ),
    Fact("kernel.latent.ring", "8 slots of fp32 values and scores", "stated", f"{VLLM}/compressor.py"),
    Fact("kernel.latent.blocks_per_unit", "16", "assumed", "2048 threads of a unit / 128 of a block"),
    Fact(
        "kernel.latent.tiles_in_flight", "8", "assumed", "a block asks for all that it reads before it waits"
    ),
)


@dataclass(frozen=True)
class LatentRegions:
    """Regions of one compressor.

    new       [batch] the new token's values, at 2:1 then scores, fp32
    norm      [1] bf16
    state     [batch x 8] values and scores of earlier tokens, None at 1:1
    latent    [batch] bf16
    key       [batch] what the projection makes of the latent, bf16
    key_norm  [1] bf16
    rows, keys   where rows and keys go, each in its format
    """

    new: RegionHandle
    norm: RegionHandle
    state: RegionHandle | None
    latent: RegionHandle
    key: RegionHandle
    key_norm: RegionHandle
    rows: tuple[RegionHandle, Format]
    keys: tuple[RegionHandle, Format]
    ratio: int


def declare(
    recorder: Recorder,
    layer: int,
    ratio: int,
    rows: tuple[RegionHandle, Format],
    keys: tuple[RegionHandle, Format],
    batch: int,
) -> LatentRegions:
    """Regions of layer `layer` for `batch` sequences."""
    assert ratio in (1, 2), f"{ratio} tokens a row: this compressor takes 1 or 2"

    def region(name: str, kind: str, count: int, numbers: int, dtype: str) -> RegionHandle:
        size = numbers * (2 if dtype == "bf16" else 4)
        return recorder.region(f"layer{layer}.{name}", kind, layer, count, size, dtype)

    width = ratio * LATENT
    state = region("compressor", "state", batch * SLOTS, width, "fp32") if ratio == 2 else None
    return LatentRegions(
        new=region("compressor-in", "activation", batch, width, "fp32"),
        norm=region("compressor-norm", "weights", 1, LATENT, "bf16"),
        state=state,
        latent=region("latent", "activation", batch, LATENT, "bf16"),
        key=region("index-key-in", "activation", batch, INDEX_DIM, "bf16"),
        key_norm=region("index-norm", "weights", 1, INDEX_DIM, "bf16"),
        rows=rows,
        keys=keys,
        ratio=ratio,
    )


def fill(regions: LatentRegions, generator: torch.Generator) -> None:
    """Random normal inputs, weights and states; results are zero."""
    for handle in (regions.new, regions.norm, regions.state, regions.key, regions.key_norm):
        if handle is not None:
            handle.fill(normal(handle.shape, handle.dtype, generator))
    regions.latent.zero()


def step(
    recorder: Recorder,
    layer: int,
    regions: LatentRegions,
    lengths: Sequence[int],
    project: Callable[[], None] | None = None,
) -> None:
    """Take in the new token of each sequence and write the row and the key that it completes.

    `project` launches the product that makes `key` of `latent`.
    """
    batch, complete = len(lengths), [tokens % regions.ratio == 0 for tokens in lengths]
    _compress(recorder, layer, regions, lengths)
    if project is not None:
        project()
    launch = _launch(LATENT * 2, "latent insert: a block per token")
    with recorder.kernel(f"layer{layer}.latent-insert", "latent-insert", layer, batch, launch):
        for sequence in range(batch):
            if complete[sequence]:
                latent = regions.latent.load(sequence, 1, one(sequence), worked=True)
                _keep(regions.rows, sequence, lengths, regions.ratio, repacked(latent, regions.rows[1]))
    launch = _launch(INDEX_DIM * 2, "index insert: a block per token")
    with recorder.kernel(f"layer{layer}.index-insert", "index-insert", layer, batch, launch):
        for sequence in range(batch):
            if complete[sequence]:
                key = regions.key.load(sequence, 1, one(sequence), worked=True)
                norm = regions.key_norm.load(0, 1, one(sequence))
                parts = packed(key.float(), norm, regions.keys[1])
                _keep(regions.keys, sequence, lengths, regions.ratio, parts)


def _compress(recorder: Recorder, layer: int, regions: LatentRegions, lengths: Sequence[int]) -> None:
    batch, state = len(lengths), regions.state
    blocks = batch if state is None else batch + -(-batch // regions.ratio)
    launch = _launch(regions.new.region.row_bytes, "latent compress: a block per sequence and per pair")
    with recorder.kernel(f"layer{layer}.latent", "latent", layer, blocks, launch):
        for sequence, tokens in enumerate(lengths):
            new = regions.new.load(sequence, 1, one(sequence), worked=True)
            if tokens % regions.ratio == 0:
                rows = [new]
                if state is not None:
                    slot = sequence * SLOTS + (tokens - 2) % SLOTS
                    rows.insert(0, state.load(slot, 1, one(sequence), worked=True))
                norm = regions.norm.load(0, 1, one(sequence))
                regions.latent.store(sequence, latent_of(norm, *rows), one(sequence))
            if state is not None:
                state.store(sequence * SLOTS + (tokens - 1) % SLOTS, new, one(sequence))


def _keep(
    place: tuple[RegionHandle, Format], sequence: int, lengths: Sequence[int], ratio: int, parts: Parts
) -> None:
    """Write the last row of a sequence."""
    handle, kept = place
    last = handle.first(sequence, len(lengths)) + lengths[sequence] // ratio - 1
    kept.store(handle, last, parts, one(sequence))


@arithmetic
def latent_of(norm: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
    """The normed latent [1, 512] of rows [1, 512] of values, or of two [1, 1024] of values and scores."""
    stacked = torch.cat(rows)
    values, scores = stacked[:, :LATENT], stacked[:, LATENT:]
    pooled = (values * torch.softmax(scores, dim=0)).sum(0, keepdim=True) if len(rows) > 1 else values
    return pooled * (pooled.square().mean() + EPSILON).rsqrt() * norm.float()


@arithmetic
def repacked(latent: torch.Tensor, kept: Format) -> Parts:
    """A latent [1, 512] packed as the cache keeps it."""
    return kept.pack(latent.float())


def _launch(tile_bytes: int, rule: str) -> Shape:
    return Shape(
        tile_rows=1,
        tile_bytes=tile_bytes,
        tiles_in_flight=LOADS_IN_FLIGHT,
        blocks_per_unit=BLOCKS_PER_UNIT,
        flops_per_tile=4 * LATENT,
        flops_unit="fp32",
        tile_rule=rule,
    )
