"""Collectives between the GPUs that share a model: kernels that read what the others hold, over a link.

Each is the part of one GPU. What the others hold for it is a region of kind `exchange`, on the machine's tier
`peer`; it reads from there what it lacks, and leaves its result in its own memory. What they read of it
crosses the link the other way and is not there. Waiting for one another is the start-up and the end of a
family in `costs.toml`. Taken from vLLM's custom all-reduce: a block of 512 threads for every 8 KiB, 36 at
most, a thread's loads of all GPUs issued together; in one shot every GPU reads all of the others' rows; in
two, a share of them, then the sums of the other shares. The other collectives, NCCL's in production, are cut
alike. Left out: rings, multicast, and groups beyond one server.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.grid import Blocks, Shape, even
from workloads.record import Recorder, RegionHandle
from workloads.tensors import normal

STRIPE_BYTES = 8192  # of a block at once: 512 threads x 16 B
MOST_BLOCKS = 36
ONE_SHOT_BYTES = {4: 512 * 1024, 8: 256 * 1024}  # up to so many GPUs, in one shot below; two always are
OUTSIDE = -1  # the layer of what is of no layer

FACTS = (
    Fact(
        "kernel.all-reduce.blocks",
        "512 threads of 16 B, 36 blocks at most",
        "stated",
        "vLLM custom_all_reduce.cuh",
    ),
    Fact(
        "kernel.all-reduce.one_shot",
        "below 512 KiB up to 4 GPUs, below 256 KiB up to 8; always with 2",
        "stated",
        "vLLM custom_all_reduce.cuh",
    ),
    Fact(
        "kernel.all-gather.cut",
        "as vLLM's all-reduce: every GPU reads what it lacks",
        "assumed",
        "NCCL's rings and protocols were not followed",
    ),
    Fact(
        "step.peers",
        "all GPUs arrive at a collective together",
        "assumed",
        "the slowest one is the one that is recorded",
    ),
)


@dataclass(frozen=True)
class Peers:
    """Rows that the `others` of a group hold for this GPU, `rows` of each, one GPU's after another's."""

    handle: RegionHandle
    others: int

    @property
    def rows(self) -> int:
        """Rows of each of them."""
        return self.handle.region.rows // self.others


def declare(recorder: Recorder, name: str, others: int, rows: int, row_bytes: int, dtype: str) -> Peers:
    """Room of `rows` rows in the memory of each of the `others`."""
    region = f"exchange.{name}"
    return Peers(recorder.region(region, "exchange", OUTSIDE, others * rows, row_bytes, dtype), others)


def fill(peers: Peers, generator: torch.Generator) -> None:
    """Random normal rows."""
    peers.handle.fill(normal(peers.handle.shape, peers.handle.dtype, generator))


def all_reduce(
    recorder: Recorder, layer: int, peers: Peers, mine: RegionHandle, first: int, rows: int
) -> None:
    """Rows first.. of `mine` become the sums of those of all GPUs."""
    gpus, nbytes = peers.others + 1, rows * mine.region.row_bytes
    if in_one_shot(gpus, nbytes):
        blocks = _blocks(rows, mine)
        with recorder.kernel(_name(layer, "all-reduce"), "all-reduce", layer, *_launch(blocks, gpus)):
            mine.store(first, _sums(peers, mine, first, rows, blocks), blocks)
        return
    share = -(-rows // gpus)
    blocks = _blocks(share, mine)
    with recorder.kernel(_name(layer, "all-reduce"), "all-reduce-two-shot", layer, *_launch(blocks, gpus)):
        mine.store(first, _sums(peers, mine, first, share, blocks), blocks)
        shares = range(share, rows, share)  # the sums that the other GPUs have made of theirs
        sums = [peers.handle.load(at, min(share, rows - at), blocks, dependent=at == share) for at in shares]
        for at, found in zip(shares, sums, strict=True):
            mine.store(first + at, found, blocks, dependent=at == share)


def all_gather(
    recorder: Recorder,
    layer: int,
    peers: Peers,
    mine: RegionHandle,
    first: int,
    rows: int,
    name: str = "",
    own: tuple[RegionHandle, int] | None = None,
) -> None:
    """`rows` rows of each other GPU come to `mine`, from row `first` on.

    own  region and first row of this GPU's rows, which come before the others'; None: they are there
    """
    blocks = _blocks(rows, mine)
    family = "all-gather"
    with recorder.kernel(_name(layer, f"{name}{family}"), family, layer, *_launch(blocks, peers.others)):
        if own is not None:
            mine.store(first - rows, own[0].load(own[1], rows, blocks), blocks)
        found = _of_all(peers, 0, rows, blocks)
        for other in range(peers.others):
            mine.store(first + other * rows, found[other], blocks)


def reduce_scatter(
    recorder: Recorder,
    layer: int,
    peers: Peers,
    mine: RegionHandle,
    first: int,
    rows: int,
    name: str = "",
    to: tuple[RegionHandle, int] | None = None,
) -> None:
    """Rows first.. of `mine`, added to what the other GPUs have made for them.

    to  region and first row that the sums go to; None: they stay
    """
    blocks, family = _blocks(rows, mine), "reduce-scatter"
    with recorder.kernel(_name(layer, f"{name}{family}"), family, layer, *_launch(blocks, peers.others + 1)):
        target, at = to or (mine, first)
        target.store(at, _sums(peers, mine, first, rows, blocks), blocks)


def in_one_shot(gpus: int, nbytes: int) -> bool:
    """Whether every GPU of so many reads all that the others have of a sum of so many bytes."""
    return gpus == 2 or any(gpus <= most and nbytes < limit for most, limit in ONE_SHOT_BYTES.items())


def _sums(peers: Peers, mine: RegionHandle, first: int, rows: int, blocks: Blocks) -> torch.Tensor:
    """Rows first.. of `mine`, added to those of every other GPU."""
    return added(mine.load(first, rows, blocks), _of_all(peers, 0, rows, blocks))


def _of_all(peers: Peers, first: int, rows: int, blocks: Blocks) -> torch.Tensor:
    """Rows first.. of every other GPU: [others, rows, elements]."""
    return peers.handle.load_each(first, rows, blocks, peers.others, peers.rows, same_blocks=True)


def _blocks(rows: int, mine: RegionHandle) -> Blocks:
    """Rows dealt to blocks in stripes."""
    stripe = max(1, STRIPE_BYTES // mine.region.row_bytes)
    return even(0, min(MOST_BLOCKS, -(-rows // stripe)) - 1, stripe)


def _name(layer: int, name: str) -> str:
    return name if layer < 0 else f"layer{layer}.{name}"


def _launch(blocks: Blocks, loads: int) -> tuple[int, Shape]:
    """Blocks of a launch, each with `loads` stripes in flight."""
    return blocks.last + 1, Shape(
        tile_rows=1,
        tile_bytes=STRIPE_BYTES,
        tiles_in_flight=max(1, loads),
        tile_rule="collective: a block for 8 KiB, the loads of all GPUs together",
    )


@arithmetic
def added(mine: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Sums, in fp32, of rows [n, elements] and of those of the other GPUs [others, n, elements]."""
    return (mine.float() + others.float().sum(0)).to(mine.dtype)
