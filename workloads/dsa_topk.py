"""The top-k of DSA: the entries with the largest scores, as the rows that they stand for, ascending.

Taken from vLLM's decode top-k: one block of 512 threads a sequence, which reads its scores several
times for a radix select; from 200,000 scores on, ten blocks take a tenth of them each and leave their
candidates to a second kernel, one block a sequence. Where all entries are selected, scores are not read.
An entry is a row, or a pool of consecutive rows; some rows may be taken in any case, unscored (`Choice`).
Left out: the order of the real kernel's output, and how the number of passes depends on the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.grid import Shape, one
from workloads.record import Recorder, RegionHandle
from workloads.splits import AS_PRODUCTION, Cut

PASSES = 3
TILE_BYTES = 8192
TILES_IN_FLIGHT = 2
BLOCKS_PER_UNIT = 2

Int64s = npt.NDArray[np.int64]

FACTS = (
    Fact(
        "kernel.dsa-topk.passes", "3 reads of the scores", "assumed", "radix select, 2 to 4 in public kernels"
    ),
    Fact("kernel.dsa-topk.split", "10 blocks from 200,000 rows on", "stated", "vLLM top_k_per_row_decode"),
    Fact("kernel.dsa-topk.tile_bytes", "8,192 B", "stated", "vLLM top_k_per_row_decode: 512 threads x 16 B"),
    Fact("kernel.dsa-topk.tiles_in_flight", "2", "assumed", "a loop with a dependent histogram update"),
    Fact("kernel.dsa-topk.blocks_per_unit", "2", "assumed", "shared memory of a block"),
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
    batch = len(choices)
    k = indices.region.rows // batch
    family, name = name, f"layer{layer}.{name}"
    most = max(choice.entries for choice in choices)
    if most >= cut.split_from and most > picks:
        assert candidates is not None, "a long context needs a region of candidates"
        with recorder.kernel(name, family, layer, len(choices) * cut.blocks, _launch()):
            for sequence, choice in enumerate(choices):
                if choice.entries > picks:
                    at, block = scores.first(sequence, batch) + choice.first, sequence * cut.blocks
                    _propose(scores, candidates, at, block, choice.entries, picks, cut)
        name += "-merge"
    else:
        candidates = None
    with recorder.kernel(name, family, layer, len(choices), _launch()):
        for sequence, choice in enumerate(choices):
            entries = choice.entries
            if entries <= picks:
                chosen = torch.arange(entries, device=recorder.device)
            elif candidates is not None:
                first, count = sequence * cut.blocks * picks, cut.blocks * picks
                chosen = merge(_passes(candidates, first, count, sequence), picks)
            else:
                at = scores.first(sequence, batch) + choice.first
                chosen = top_rows(_passes(scores, at, entries, sequence), picks)
            rows = rows_of(chosen, choice)
            if place is not None:
                rows = place(sequence, rows)
            if selected is not None and not recorder.is_meta:
                rows = torch.from_numpy(selected[sequence]).to(recorder.device)
            indices.store(sequence * k, padded_indices(rows, k), one(sequence), dependent=entries > picks)


def _propose(
    scores: RegionHandle, candidates: RegionHandle, at: int, block: int, entries: int, picks: int, cut: Cut
) -> None:
    """Each block's own best, as rows of 8 bytes: score and entry."""
    part = entries // cut.blocks
    for number in range(cut.blocks):
        first = number * part
        count = part if number + 1 < cut.blocks else entries - first
        found = _passes(scores, at + first, count, block + number)
        best = best_candidates(found, first, picks)
        candidates.store((block + number) * picks, best, one(block + number))


def _passes(region: RegionHandle, first: int, rows: int, block: int) -> torch.Tensor:
    """The same rows read `PASSES` times, each pass when the last is done."""
    for number in range(PASSES):
        data = region.load(first, rows, one(block), dependent=number > 0)
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


def _launch() -> Shape:
    return Shape(
        tile_rows=TILE_BYTES // 4,
        tile_bytes=TILE_BYTES,
        tiles_in_flight=TILES_IN_FLIGHT,
        blocks_per_unit=BLOCKS_PER_UNIT,
        tile_rule="vllm decode top-k: a block per sequence, ten from 200,000 rows on",
    )
