"""The production kernels' cutting rules, against their own definition and by their properties."""

from __future__ import annotations

import math
import random

import pytest

from workloads import topk_grid
from workloads.splits import (
    even_segments,
    flash_attention_most_splits,
    flash_attention_split,
    flash_mla_parts,
    flash_mla_split,
    head_blocks,
)


def random_counts(rng: random.Random) -> list[int]:
    return [rng.choice((1, 2, rng.randint(1, 40), rng.randint(1, 3000))) for _ in range(rng.randint(1, 60))]


def greedy(tiles: list[int], parts: int) -> list[tuple[int, int, int, int]]:
    """FlashMLA's rule as a walk over parts: (sequence, part, first tile, tiles)."""
    payload = -(-sum(count + 5 for count in tiles) // parts) + 5
    shares, sequence, begun = [], 0, 0
    for part in range(parts):
        left = payload
        while sequence < len(tiles):
            rest = tiles[sequence] - begun
            if left >= rest + 5:
                shares.append((sequence, part, begun, rest))
                left -= rest + 5
                sequence, begun = sequence + 1, 0
                continue
            if left > 5:
                shares.append((sequence, part, begun, left - 5))
                begun += left - 5
            break
    assert sequence == len(tiles)
    return shares


@pytest.mark.parametrize("seed", range(200))
def test_flash_mla_split_is_the_greedy_rule_and_covers_every_tile_once(seed):
    rng = random.Random(seed)
    tiles, parts = random_counts(rng), rng.randint(1, 140)
    shares = flash_mla_split(tiles, parts)
    found = [(sequence, *share) for sequence, shares_of in enumerate(shares) for share in shares_of]
    assert found == greedy(tiles, parts)
    for count, shares_of in zip(tiles, shares, strict=True):
        assert [tile for share in shares_of for tile in range(share[1], share[1] + share[2])] == list(
            range(count)
        )


@pytest.mark.parametrize("seed", range(50))
def test_segments_go_to_blocks_as_equal_runs_the_first_ones_longer(seed):
    rng = random.Random(seed)
    segments, blocks = random_counts(rng), rng.randint(1, 140)
    load = [0] * blocks
    order = []
    for sequence, shares in enumerate(even_segments(segments, blocks)):
        for block, first, count in shares:
            load[block] += count
            order += [(sequence, first + number) for number in range(count)]
    each, extra = divmod(sum(segments), blocks)
    assert load == [each + 1] * extra + [each] * (blocks - extra)
    assert order == [(sequence, number) for sequence, count in enumerate(segments) for number in range(count)]


def test_parts_fill_the_units_of_an_h200_once():
    assert [flash_mla_parts(132, heads) for heads in (1, 32, 64, 65, 128, 192)] == [132, 132, 132, 66, 66, 44]
    assert head_blocks(65) == 2
    assert flash_mla_parts(1, 128) == 1


def test_one_long_sequence_is_split_over_all_parts_but_the_rounding():
    (shares,) = flash_mla_split([2048], 132)
    assert (len(shares), shares[0].tiles) == (
        128,
        16,
    )  # payload = ceil(2053 / 132) + 5 = 21 tiles, 5 of them overhead


def test_equal_sequences_that_fill_the_parts_are_not_split():
    assert [len(shares) for shares in flash_mla_split([100] * 66, 66)] == [1] * 66


def most_splits(tiles: int, heads: int, units: int) -> int:
    """FlashAttention-3's search in floats: the waves that each number of splits fills, 85% of the best."""
    if heads >= 0.8 * units or tiles <= 4:
        return 1
    filled = []
    for splits in range(1, min(128, units, tiles) + 1):
        waves = heads * splits / units
        filled.append(waves / math.ceil(waves))
    return next(at + 1 for at, share in enumerate(filled) if share >= 0.85 * max(filled) - 1e-12)


@pytest.mark.parametrize("seed", range(100))
def test_flash_attention_cuts_a_sequence_into_equal_splits_that_cover_it(seed):
    rng = random.Random(seed)
    tiles, heads, units = random_counts(rng), rng.choice((1, 2, 4, 8, 16)), rng.randint(2, 140)
    most = most_splits(max(tiles), heads, units)
    assert flash_attention_most_splits(max(tiles), heads, units) == most
    a_unit = math.ceil(sum(tiles) * heads * 11 / (10 * units))
    parts = []
    for count, shares in zip(tiles, flash_attention_split(tiles, heads, units), strict=True):
        size = math.ceil(count / max(1, min(most, math.ceil(count / a_unit))))
        assert [share.tiles for share in shares[:-1]] == [size] * (len(shares) - 1)
        assert 0 < shares[-1].tiles <= size
        assert [tile for _, first, length in shares for tile in range(first, first + length)] == list(
            range(count)
        )
        parts += [share.part for share in shares]
    assert parts == list(range(len(parts)))


def test_flash_attention_fills_an_h200_with_the_splits_of_one_sequence():
    # 8 key heads: 33 splits fill two waves whole; 15 fill 120 of 132 units, 14 fill 112, less than 85%
    assert flash_attention_most_splits(8192, 8, 132) == 15
    assert [flash_attention_most_splits(tiles, 8, 132) for tiles in (4, 5)] == [1, 5]
    assert flash_attention_most_splits(8192, 128, 132) == 1
    assert [share.tiles for share in flash_attention_split([8192], 8, 132)[0]] == [547] * 14 + [534]


@pytest.mark.parametrize(
    ("sequences", "most", "grid"),
    [
        (1, 32_768, None),  # one block is enough
        (33, 131_072, None),  # another kernel
        (1, 1 << 20, (1, 124, 8460, 2)),  # 35,968 B of shared memory a block, 2 blocks a unit
        (1, 2 << 20, (1, 248, 8460, 2)),  # more than one block a unit: none is left free
        (1, 4 << 20, None),  # 496 blocks do not fit 132 units at once
        (8, 1 << 20, (1, 90, 11_652, 2)),  # 49,152 B: one group at a time, a sequence after another
        (8, 131_072, (8, 12, 10_924, 2)),  # all groups at once
        (16, 1 << 20, (6, 19, 55_192, 1)),  # all of the shared memory; 131 blocks may run
        (16, 4 << 20, (1, 73, 57_460, 1)),
    ],
)
def test_a_top_k_is_spread_as_its_launcher_does(sequences, most, grid):
    assert topk_grid.spread(sequences, most, 132) == grid


def test_chunks_of_a_spread_top_k_cover_its_scores_and_fit():
    rng = random.Random(3)
    for _ in range(300):
        sequences, most, units = (
            rng.randint(1, 32),
            rng.randint(32_769, 10_485_760),
            rng.choice((78, 132, 160)),
        )
        grid = topk_grid.spread(sequences, most, units)
        if grid is not None:
            assert (grid.blocks - 1) * grid.chunk < most <= grid.blocks * grid.chunk
            assert grid.groups * grid.blocks <= units * grid.resident
            assert grid.groups <= sequences
