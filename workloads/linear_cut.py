"""How a library cuts a product of few tokens into blocks: tiles, splits, tiles in flight.

What enters: the sizes of a matrix, tokens, units. What leaves: a `Cut`. For bf16 the tiles are those that
cuBLAS chose on an H200 for the shapes measured there (names of the kernels that ran), and between them by a
rule that gives the same: the smallest tile that leaves no unit a second one. For fp8 they follow DeepGEMM's
own rule. Nothing here needs torch.
"""

from __future__ import annotations

from typing import NamedTuple

from workloads.facts import Fact

STEP_BYTES = 128  # of an output's inputs that one tile takes: 64 in bf16, 128 in fp8
TILES = ((64, 16), (128, 12), (192, 8), (256, 6))  # outputs of a tile in bf16, and tiles in flight
CLUSTER = 4  # blocks that share what they fetch of the inputs
WIDE = 128  # outputs of a tile where every unit gets several
LONG = 4096  # inputs from which they are split, if units would stay idle
LEAST_STEPS = 16  # of a split
CODED_TILES = (16, 32, 64, 96, 128, 144, 160)  # outputs of a tile in fp8
CODED_BYTES = 200 << 10  # shared memory for tiles in flight
CODED_STAGES = 16

# What cuBLAS took where the rule says otherwise: (outputs, inputs) -> tile, tiles in flight, splits; and with
# more than 32 tokens.
CHOSEN = {(2304, 9216): (128, 12, 6), (7168, 16_384): (256, 6, 4), (24_576, 1536): (256, 6, 1)}
MANY = 32
CHOSEN_OF_MANY = {(4096, 2304): (48, 15, 1), (7168, 16_384): (112, 9, 2)}

FACTS = (
    Fact(
        "kernel.linear.tile",
        "64 to 256 outputs x 128 B of inputs, 16 to 6 in flight",
        "interpolated",
        "names of cuBLAS's kernels captured on an H200 (validation/measured), a rule between them",
    ),
    Fact(
        "kernel.linear.split",
        "4096 inputs or more are split over idle units, 16 tiles a split at least",
        "interpolated",
        "cuBLAS's kernels captured on an H200; the number of splits is not in their names",
    ),
    Fact(
        "kernel.linear-fp8.tile",
        "16 to 160 outputs: fewest waves, then the fullest last one",
        "stated",
        "DeepGEMM: get_best_configs, SM90",
    ),
    Fact(
        "kernel.linear.cluster",
        "4 blocks fetch a share of the tokens' inputs each",
        "assumed",
        "cuBLAS: clusters of 4, in names of its kernels; DeepGEMM: neighbours ask for the same lines",
    ),
    Fact("kernel.linear.blocks_per_unit", "1", "stated", "shared memory of a block, from its tiles"),
)


class Cut(NamedTuple):
    """A product's blocks.

    tile    outputs of a tile; a tile takes 128 bytes of the inputs of each
    stages  tiles that a block has in flight
    split   blocks that share the inputs of the same outputs
    blocks  of the grid, 1 a unit at most
    cluster blocks that share what they fetch of the inputs
    """

    tile: int
    stages: int
    split: int
    blocks: int
    cluster: int


def cut_of(n: int, k: int, count: int, dtype: str, units: int, tokens: int) -> Cut:
    """Blocks of `count` products of n outputs and k inputs each."""
    if dtype == "fp8":
        return _coded(n, count, units)
    tile, stages = next(((t, s) for t, s in TILES if count * -(-n // t) <= units), (WIDE, dict(TILES)[WIDE]))
    split = _split(count * -(-n // tile), k * 2 // STEP_BYTES, units) if k >= LONG and count == 1 else 1
    if count == 1:
        known = CHOSEN | CHOSEN_OF_MANY if tokens > MANY else CHOSEN
        tile, stages, split = known.get((n, k), (tile, stages, split))
    blocks = min(units, count * -(-n // tile) * split)
    return Cut(min(tile, n), stages, split, blocks, CLUSTER)


def _split(tiles: int, steps: int, units: int) -> int:
    """The most equal parts of the inputs for which units are left."""
    most = max(1, min(units // tiles, steps // LEAST_STEPS))
    return next(parts for parts in range(most, 0, -1) if steps % parts == 0)


def _coded(n: int, count: int, units: int) -> Cut:
    """DeepGEMM: the fewest waves, then the most blocks in the last of them; one block a unit stays."""

    def worth(tile: int) -> tuple[int, int]:
        blocks = count * -(-n // tile)
        return -(-blocks // units), -((blocks - 1) % units + 1)

    tile = min(CODED_TILES, key=worth)
    stages = min(CODED_STAGES, CODED_BYTES // (tile * STEP_BYTES))
    return Cut(min(tile, n), stages, 1, min(units, count * -(-n // tile)), CLUSTER)
