"""The top-k of DSA: the entries with the largest scores, as the rows that they stand for, ascending.

Taken from vLLM's `persistent_topk`: one block of 1024 threads a sequence, which reads its scores several
times for a radix select; where `topk_grid` says so a group of blocks instead, each of which reads its part
once and keeps it, and whose rounds take a fixed time a sequence. A `Cut` may ask for the older kernel: one
block a sequence, or ten from 200,000 scores on, which leave their candidates to a second launch, one block a
sequence. Where all entries are selected, scores are not read. An entry is a row, or a pool of consecutive
rows; some rows may be taken in any case, unscored (`Choice`). Left out: the order of the real kernel's
output, waiting of a group's blocks for each other, and that a short sequence beside long ones is not spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from memsim.trace import Kernel
from workloads import topk_grid
from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.grid import Blocks, Shape, even, one
from workloads.record import Recorder, RegionHandle
from workloads.splits import AS_PRODUCTION, Cut, is_cut
from workloads.topk_grid import MOST_SPREAD, ONE_BLOCK, SCORE_BYTES, Grid, spread

TILE_BYTES = 16_384
TILES_IN_FLIGHT = 1
ALONE_IN_FLIGHT = 3
COST, SPREAD_COST = "dsa-topk", "dsa-topk-spread"
CROWDED_COST = "dsa-topk-crowded"  # of groups with more blocks than units
ALONE_COST, OLDER_COST = "dsa-topk-alone", "dsa-topk-per-row"

Int64s = npt.NDArray[np.int64]

FACTS = (
    Fact(
        "kernel.dsa-topk.passes",
        "3 reads of the scores",
        "assumed",
        "radix select, 2 to 4 in public kernels; H200: dsa.topk agrees, with 4 where scores are flat",
    ),
    Fact("kernel.dsa-topk.tile_bytes", "16,384 B", "stated", "vLLM persistent_topk: 1024 threads x 16 B"),
    Fact("kernel.dsa-topk.tiles_in_flight", "1", "assumed", "a loop with a dependent histogram update"),
    Fact(
        "kernel.dsa-topk-alone.tiles_in_flight",
        "3",
        "measured",
        "H200: dsa.topk, length 3M to 10M: a block reads 47 to 50 GB/s, whether the L2 has its scores or not",
    ),
    *topk_grid.FACTS,
)


class Choice(NamedTuple):
    """What the top-k of a sequence chooses from, and what is taken in any case.

    first, entries  entries that compete: first..first + entries - 1; all are taken where they are no more
                    than are picked
    head, tail      unscored rows: 0..head - 1, and `tail` as (first, count)
    pool            rows that an entry stands for
    """

    entries: int
    first: int = 0
    head: int = 0
    tail: tuple[int, int] = (0, 0)
    pool: int = 1


def step(
    recorder: Recorder,
    layer: int,
    scores: RegionHandle,
    candidates: RegionHandle | None,
    indices: RegionHandle,
    choices: Sequence[Choice],
    picks: int,
    units: int,
    selected: Sequence[Int64s] | None = None,
    cut: Cut = AS_PRODUCTION,
    *,
    name: str = "dsa-topk",
    place: Callable[[int, torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Write the rows of each sequence's choice of `picks` entries, ascending, then -1, to indices.

    scores [batch x padded entries] fp32; candidates [batch x blocks x picks] where the most scores are cut;
    indices [batch x k] int32; `selected` puts given rows in the place of the computed ones, without changing
    what is read. `place` turns the rows of a sequence into those to write, inside the kernel.
    """
    batch, k = len(choices), indices.region.rows // len(choices)
    family, name = name, f"layer{layer}.{name}"
    most = max(choice.entries for choice in choices)
    cuts = is_cut(most, picks, cut)
    if cuts:
        assert candidates is not None, "a long context needs a region of candidates"
        with recorder.kernel(name, family, layer, batch * cut.blocks, _launch(2), cost=OLDER_COST):
            for sequence, choice in enumerate(choices):
                if choice.entries > picks:
                    _propose(scores, candidates, sequence, batch, choice, picks, cut)
        name += "-merge"
    grid = None if cut.blocks or most <= picks else spread(batch, most, units)
    with _kernel(recorder, name, family, layer, batch, most, picks, grid, cut, units):
        for sequence, choice in enumerate(choices):
            if choice.entries <= picks:
                chosen = torch.arange(choice.entries, device=recorder.device)
            elif cuts and candidates is not None:
                first, count = sequence * cut.blocks * picks, cut.blocks * picks
                chosen = merge(_passes(candidates, first, count, sequence, cut), picks)
            else:
                chosen = top_rows(_read(scores, sequence, batch, choice, grid, cut), picks)
            rows = rows_of(chosen, choice)
            if place is not None:
                rows = place(sequence, rows)
            if selected is not None and not recorder.is_meta:
                rows = torch.from_numpy(selected[sequence]).to(recorder.device)
            blocks, waits = _blocks(sequence, grid), choice.entries > picks
            indices.store(sequence * k, padded_indices(rows, k), blocks, dependent=waits)


def _kernel(
    recorder: Recorder,
    name: str,
    family: str,
    layer: int,
    sequences: int,
    most: int,
    picks: int,
    grid: Grid | None,
    cut: Cut,
    units: int,
) -> AbstractContextManager[Kernel]:
    """The launch that writes the selection, of `most` scores a sequence."""
    at = {"length": max(1, most), "passes": cut.passes, "picks": max(1, picks)}
    if grid is not None:
        blocks, shape = grid.groups * grid.blocks, _spread_launch(grid)
        cost = SPREAD_COST if blocks <= units else CROWDED_COST
        return recorder.kernel(name, family, layer, blocks, shape, cost=cost, at=at)
    alone = not cut.blocks and (sequences > MOST_SPREAD or most > ONE_BLOCK)
    shape = _launch(1 if sequences > MOST_SPREAD else 2, ALONE_IN_FLIGHT if alone else TILES_IN_FLIGHT)
    cost = OLDER_COST if cut.blocks else ALONE_COST if alone else COST
    return recorder.kernel(name, family, layer, sequences, shape, cost=cost, at=at)


def _blocks(sequence: int, grid: Grid | None) -> Blocks:
    """Those that write the selection of a sequence, each an equal part."""
    if grid is None:
        return one(sequence)
    first = sequence % grid.groups * grid.blocks
    return even(first, first + grid.blocks - 1, 1)


def _read(
    scores: RegionHandle, sequence: int, batch: int, choice: Choice, grid: Grid | None, cut: Cut
) -> torch.Tensor:
    """All competing scores of a sequence: by one block in passes, or once by a group of blocks."""
    at = scores.first(sequence, batch) + choice.first
    if grid is None:
        return _passes(scores, at, choice.entries, sequence, cut)
    blocks = _blocks(sequence, grid)._replace(grain=grid.chunk)
    return scores.load(at, choice.entries, blocks, worked=True)


def _propose(
    scores: RegionHandle,
    candidates: RegionHandle,
    sequence: int,
    batch: int,
    choice: Choice,
    picks: int,
    cut: Cut,
) -> None:
    """Each block's own best of a sequence, as rows of 8 bytes: score and entry."""
    at = scores.first(sequence, batch) + choice.first
    part = choice.entries // cut.blocks
    for number in range(cut.blocks):
        block, first = sequence * cut.blocks + number, number * part
        count = part if number + 1 < cut.blocks else choice.entries - first
        found = _passes(scores, at + first, count, block, cut)
        best = best_candidates(found, first, picks)
        candidates.store(block * picks, best, one(block))


def _passes(region: RegionHandle, first: int, rows: int, block: int, cut: Cut) -> torch.Tensor:
    """The same rows read in several passes, each when the last is done."""
    for number in range(cut.passes):
        data = region.load(first, rows, one(block), worked=True, dependent=number > 0)
    return data


@arithmetic
def top_rows(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Positions of the k largest of scores [rows, 1], ascending."""
    return torch.topk(scores[:, 0], k).indices.sort().values


@arithmetic
def best_candidates(scores: torch.Tensor, first: int, k: int) -> torch.Tensor:
    """The k largest of scores [rows, 1] as bytes [k, 8]; fewer rows are filled up with -inf."""
    best = torch.topk(scores[:, 0], min(k, len(scores)))
    missing = k - len(best.values)
    values = torch.nn.functional.pad(best.values, (0, missing), value=-torch.inf)
    rows = torch.nn.functional.pad((best.indices + first).int(), (0, missing), value=-1)
    return torch.stack([values.view(torch.int32), rows], dim=1).view(torch.uint8)


@arithmetic
def merge(candidates: torch.Tensor, k: int) -> torch.Tensor:
    """Entries of the k best of candidates [n, 8], ascending."""
    pairs = candidates.view(torch.int32)
    best = torch.topk(pairs[:, 0].contiguous().view(torch.float32), k).indices
    return pairs[:, 1].index_select(0, best).long().sort().values


@arithmetic
def rows_of(chosen: torch.Tensor, choice: Choice) -> torch.Tensor:
    """Rows of the entries `chosen`, counted from the first that competes, and those taken in any case."""
    within = torch.arange(choice.pool, device=chosen.device)
    picked = ((chosen + choice.first)[:, None] * choice.pool + within).flatten()
    first, count = choice.tail
    head = torch.arange(choice.head, device=chosen.device)
    return torch.cat([head, picked, torch.arange(first, first + count, device=chosen.device)])


@arithmetic
def padded_indices(rows: torch.Tensor, k: int) -> torch.Tensor:
    """Rows as int32 [k, 1], filled up with -1."""
    return torch.nn.functional.pad(rows.int(), (0, k - len(rows)), value=-1)[:, None]


def _launch(resident: int, in_flight: int = TILES_IN_FLIGHT) -> Shape:
    return Shape(
        tile_rows=TILE_BYTES // SCORE_BYTES,
        tile_bytes=TILE_BYTES,
        tiles_in_flight=in_flight,
        blocks_per_unit=resident,
        tile_rule="vllm top-k: a block a sequence",
    )


def _spread_launch(grid: Grid) -> Shape:
    return Shape(
        tile_rows=grid.chunk,
        tile_bytes=grid.chunk * SCORE_BYTES,
        tiles_in_flight=1,
        blocks_per_unit=grid.resident,
        tile_rule="vllm top-k: groups of blocks, each with a chunk of a sequence",
    )
