"""How vLLM's `persistent_topk` lays the scores of a batch out over blocks; its own rules, written anew.

Sequences and the most scores of one enter; a `Grid` leaves, or None where one block takes a sequence. Up to
32,768 scores one block does; beyond, a group of blocks shares a sequence, each with a chunk in its shared
memory, and groups take sequences in turn. With more than 32 sequences, and where one group would not fit the
units at once, another kernel runs: one block a sequence again, however long. No torch.
"""

from __future__ import annotations

from typing import NamedTuple

from workloads.facts import Fact

ONE_BLOCK = 32_768  # scores
MOST_SPREAD = 32  # sequences
FEW, SOME = 4, 8  # sequences up to which a block takes less shared memory than it may
FEW_BYTES, SOME_BYTES, MOST_BYTES = 35_968, 49_152, 232_448
STATE_BYTES = 2080  # of it that is no chunk
UNIT_BYTES, RESERVED_BYTES = 233_472, 1024  # of a unit; that each block takes beside its own
VECTOR = 4  # scores of a load
SCORE_BYTES = 4

FACTS = (
    Fact(
        "kernel.dsa-topk.one_block", "32,768 scores", "measured", "H200: dsa.topk; 64K take no more than 32K"
    ),
    Fact(
        "kernel.dsa-topk.grid",
        "chunks of 8,472 scores (11,768 from 5 sequences on, 57,592 from 9 on), none from 33 sequences on",
        "stated",
        "vLLM topk.cu, launch_persistent_topk",
    ),
)


class Grid(NamedTuple):
    """`groups` groups of `blocks` blocks each; chunk: scores of a block; resident: blocks of a unit."""

    groups: int
    blocks: int
    chunk: int
    resident: int


def spread(sequences: int, most: int, units: int) -> Grid | None:
    """The grid for sequences of at most `most` scores; None: one block a sequence."""
    if most <= ONE_BLOCK or sequences > MOST_SPREAD:
        return None
    room = FEW_BYTES if sequences <= FEW else SOME_BYTES if sequences <= SOME else MOST_BYTES
    chunk = (room - STATE_BYTES) // SCORE_BYTES // VECTOR * VECTOR
    blocks = -(-most // chunk)
    chunk = -(-most // blocks // VECTOR) * VECTOR
    taken = max(STATE_BYTES + chunk * SCORE_BYTES, FEW_BYTES) + RESERVED_BYTES
    resident = 2 if 2 * taken <= UNIT_BYTES else 1
    there = units * resident
    spare = units if resident > 1 else 1  # left free for what else may run
    usable = there - spare if there >= spare + blocks else there
    groups = min(usable // blocks, sequences)
    return Grid(groups, blocks, chunk, resident) if groups else None
