"""The combine pass of a split attention kernel: partial results of a sequence become its output.

Taken from FlashMLA: one block per sequence and 8 heads, launched for every sequence, with nothing to do
for one that was not split; it walks the splits one after another, each load waiting for the last to be
used. Adding up 16 values a thread is over before the next load arrives, and takes no time of its own. A row
of the partial region is what one block reads of one split: log-sum-exps of 8 heads, then 8 x 512 values,
fp32 (FlashMLA keeps the two in two arrays). A sink, a logit of each head that joins the sum and brings no
value, is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.formats import LATENT
from workloads.grid import Blocks, Shape, one
from workloads.record import Recorder, RegionHandle
from workloads.splits import COMBINE_HEADS as HEADS
from workloads.splits import HEADS_A_BLOCK, PARTIAL_ROW_BYTES, Share

RESULT_BYTES = HEADS_A_BLOCK // HEADS * PARTIAL_ROW_BYTES  # what a block of 64 heads leaves of one split
BLOCKS_PER_UNIT = 8

FACTS = (
    Fact("kernel.combine.heads_a_block", "8 heads", "stated", "FlashMLA combine: 8 warps, one head each"),
    Fact(
        "kernel.combine.tiles_in_flight",
        "1 split",
        "stated",
        "FlashMLA combine: a split is loaded as the last is used",
    ),
    Fact("kernel.combine.blocks_per_unit", "8", "assumed", "2048 threads of a unit / 256 of a block"),
)


@dataclass(frozen=True)
class Partials:
    """Partial results: `groups` rows of 8 heads for each split."""

    region: RegionHandle
    groups: int

    @property
    def split_bytes(self) -> int:
        """Bytes of one split."""
        return self.groups * self.region.region.row_bytes

    def store(self, split: int, out: torch.Tensor, lse: torch.Tensor, blocks: Blocks) -> None:
        """Write values [heads, 512] and log-sum-exps [heads] of one split, 64 heads by each block."""
        rows = _pack(out, lse, self.groups)
        self.region.store(split * self.groups, rows, blocks._replace(grain=max(1, blocks.grain // HEADS)))


def declare(recorder: Recorder, layer: int, heads: int, splits: int) -> Partials:
    """Partial results of at most `splits` splits."""
    groups = -(-heads // HEADS)
    rows = splits * groups
    region = recorder.region(f"layer{layer}.partial", "activation", layer, rows, PARTIAL_ROW_BYTES, "fp32")
    return Partials(region, groups)


def first_splits(schedule: Sequence[Sequence[Share]]) -> list[int]:
    """Number of each sequence's first split."""
    first = [0]
    for shares in schedule:
        first.append(first[-1] + len(shares))
    return first


def step(
    recorder: Recorder,
    layer: int,
    family: str,
    partials: Partials,
    out: RegionHandle,
    heads: int,
    schedule: Sequence[Sequence[Share]],
    sink: RegionHandle | None = None,
) -> None:
    """Combine the splits of every sequence that has more than one; `sink` [heads] fp32."""
    batch, groups, splits = len(schedule), partials.groups, first_splits(schedule)
    name = f"layer{layer}.{family}"
    with recorder.kernel(name, family, layer, batch * groups, _launch(partials), partials.region):
        for group in range(groups):
            mine = min(HEADS, heads - group * HEADS)
            for sequence, shares in enumerate(schedule):
                if len(shares) == 1:
                    continue
                block = one(group * batch + sequence)
                first = splits[sequence] * groups + group
                rows = partials.region.load(first, len(shares), block, stride=groups)
                logits = None if sink is None else sink.load(group * HEADS, mine, block)
                out.store(sequence * heads + group * HEADS, merge(rows, logits)[:mine], block)


@arithmetic
def merge(rows: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """Rows of all splits of 8 heads [splits, 8 + 8 x 512] and sinks [heads, 1] as one output [8, 512]."""
    sums = rows[:, :HEADS]
    weights = torch.softmax(sums, dim=0)
    if sink is not None:
        weights = weights * (sums.logsumexp(0) - pad(sink[:, 0], (0, HEADS - len(sink)))).sigmoid()
    values = rows[:, HEADS:].reshape(-1, HEADS, LATENT)
    return (weights[:, :, None] * values).sum(0)


@arithmetic
def _pack(out: torch.Tensor, lse: torch.Tensor, groups: int) -> torch.Tensor:
    missing = groups * HEADS - len(lse)
    sums = pad(lse, (0, missing)).reshape(groups, HEADS)
    values = pad(out, (0, 0, 0, missing)).reshape(groups, HEADS * LATENT)
    return torch.cat([sums, values], dim=1)


def _launch(partials: Partials) -> Shape:
    return Shape(
        tile_rows=1,
        tile_bytes=PARTIAL_ROW_BYTES,
        tiles_in_flight=1,
        blocks_per_unit=BLOCKS_PER_UNIT,
        partial_bytes=partials.split_bytes,
        partial_serial=True,
        tile_rule="flash-mla combine: a block per sequence and 8 heads, a tile per split",
    )
