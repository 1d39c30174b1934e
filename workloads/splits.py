"""How production kernels cut a batch into the work of thread blocks.

What enters: lengths of sequences and the number of units. What leaves: for every sequence, which blocks
work on which of its tiles. Three rules: FlashMLA's greedy split over parts, DeepGEMM's equal runs of
segments, and FlashAttention-3's equal splits. All are the public kernels' own scheduling rules, written anew.
Also how large the scratch of a split is: partial results of attention, candidates of a top-k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from workloads.facts import Fact
from workloads.shapes import LATENT

TILE_ROWS = 64
HEADS_A_BLOCK = 64
OVERHEAD_TILES = 5
SEGMENT_ROWS = 256
MOST_SPLITS = 128
UNSPLIT_TILES = 4
GOOD_ENOUGH = Fraction(85, 100)
FILLED = Fraction(8, 10)
MARGIN = Fraction(11, 10)

FACTS = (
    Fact(
        "kernel.mla.tile_rows", "64 rows", "stated", "FlashMLA: page and tile of 64 rows (dense and sparse)"
    ),
    Fact("kernel.mla.heads_a_block", "64 heads", "stated", "FlashMLA: a block holds 64 query heads, padded"),
    Fact(
        "kernel.mla.overhead_tiles", "5 tiles", "stated", "FlashMLA: fixed overhead of a request in its split"
    ),
    Fact("kernel.dsa-index.segment_rows", "256 rows", "stated", "DeepGEMM paged logits, SM90: 4 x 64 rows"),
)


COMBINE_HEADS = 8  # heads whose partial results lie in one row
PARTIAL_ROW_BYTES = COMBINE_HEADS * (1 + LATENT) * 4  # a log-sum-exp and 512 values of each, fp32
CANDIDATE_BYTES = 8  # a score and its row


@dataclass(frozen=True)
class Cut:
    """How a top-k reads its scores.

    split_from, blocks   vLLM's older kernel, `top_k_per_row_decode`: sequences of so many scores are cut into
                         so many blocks; 0: its `persistent_topk`, laid out by `topk_grid`
    passes               reads of the scores of a sequence that one block takes: 3 where a few stand out, 4
                         where they are flat
    """

    split_from: int = 0
    blocks: int = 0
    passes: int = 3


AS_PRODUCTION = Cut()
PER_ROW = Cut(split_from=200_000, blocks=10)


class Share(NamedTuple):
    """Consecutive tiles of one sequence that one part (or block) works on."""

    part: int
    first_tile: int
    tiles: int


def head_blocks(heads: int) -> int:
    """Blocks that share the rows of a part, one per 64 heads."""
    return -(-heads // HEADS_A_BLOCK)


def flash_mla_parts(units: int, heads: int) -> int:
    """Parts that FlashMLA cuts the work into: one per group of blocks that fills the units once."""
    return max(1, units // head_blocks(heads))


def flash_mla_split(tiles: Sequence[int], parts: int) -> list[list[Share]]:
    """Shares of each sequence, in order; `tiles` holds the tiles of each sequence (1 at least).

    Every part gets the same payload, in tiles; beginning a sequence costs a part 5 tiles beside the
    tiles themselves. Parts walk the sequences in order; where a part's payload ends inside a sequence,
    the next part goes on there.
    """
    assert min(tiles) > 0, "a sequence without tiles"
    payload = -(-sum(count + OVERHEAD_TILES for count in tiles) // parts) + OVERHEAD_TILES
    shares: list[list[Share]] = [[] for _ in tiles]
    sequence = done = 0
    for part in range(parts):
        room = payload
        while sequence < len(tiles) and room > OVERHEAD_TILES:
            taken = min(tiles[sequence] - done, room - OVERHEAD_TILES)
            shares[sequence].append(Share(part, done, taken))
            room -= taken + OVERHEAD_TILES
            done += taken
            if done < tiles[sequence]:
                break
            sequence, done = sequence + 1, 0
    assert sequence == len(tiles), f"{len(tiles) - sequence} sequences are left without a part"
    return shares


def even_segments(segments: Sequence[int], blocks: int) -> list[list[Share]]:
    """Shares of each sequence: all segments as equal runs over the blocks, the first get one more."""
    each, extra = divmod(sum(segments), blocks)
    ends = [each * (block + 1) + min(block + 1, extra) for block in range(blocks)]
    shares: list[list[Share]] = []
    block = at = 0
    for count in segments:
        shares.append([])
        first = 0
        while first < count:
            while ends[block] <= at:
                block += 1
            taken = min(count - first, ends[block] - at)
            shares[-1].append(Share(block, first, taken))
            first += taken
            at += taken
    return shares


def flash_attention_most_splits(tiles: int, heads: int, units: int) -> int:
    """Splits that FlashAttention-3 gives a sequence of `tiles` tiles and `heads` blocks, alone, at most.

    The fewest that fill the units 85% as well as the best number up to 128 does; 1 where the heads alone
    fill 80% of the units, or there are no more than 4 tiles.
    """
    if heads >= FILLED * units or tiles <= UNSPLIT_TILES:
        return 1
    most = min(MOST_SPLITS, units, tiles)
    filled = [Fraction(heads * splits, -(-heads * splits // units) * units) for splits in range(1, most + 1)]
    return next(at for at, share in enumerate(filled, 1) if share >= GOOD_ENOUGH * max(filled))


def flash_attention_split(tiles: Sequence[int], heads: int, units: int) -> list[list[Share]]:
    """Shares of each sequence; `part` counts the splits of all sequences, `tiles` holds those of each.

    A split is as long as gives every unit a tenth more tiles than its even part, and a sequence has no more
    splits than it would have alone. Its splits are equal but the last; none is empty.
    """
    most = flash_attention_most_splits(max(tiles), heads, units)
    each = -(-sum(tiles) * heads * MARGIN // units)
    shares: list[list[Share]] = []
    part = 0
    for count in tiles:
        size = -(-count // min(most, -(-count // each)))
        firsts = range(0, count, size)
        shares.append([Share(part + at, first, min(size, count - first)) for at, first in enumerate(firsts)])
        part += len(firsts)
    return shares


def partial_rows(batch: int, units: int, heads: int) -> int:
    """Rows of partial results that FlashMLA's split of `batch` sequences leaves at most."""
    return (batch + flash_mla_parts(units, heads)) * -(-heads // COMBINE_HEADS)


def candidate_rows(batch: int, picks: int, most_entries: int, cut: Cut = AS_PRODUCTION) -> int:
    """Rows of the region of a top-k's candidates, 0 where `most_entries` entries need none."""
    return batch * cut.blocks * picks if is_cut(most_entries, picks, cut) else 0


def is_cut(most_entries: int, picks: int, cut: Cut) -> bool:
    """Whether the older top-k kernel cuts sequences and leaves candidates to a second one."""
    return bool(cut.blocks) and most_entries >= cut.split_from and most_entries > picks
