"""Which segments need no queue of events: one block at a time, on one tier without hops (see fast_ring).

Left out is all by which something else than the block's own tiles could make it wait, all that is drawn, and
all that depends on the order in which tiles arrive.
"""

from __future__ import annotations

import numpy as np

from memsim.fast_state import (  # fmt: skip
    BUFFER_BYTES,
    CHANNELS,
    FIXED_PS,
    FLOPS,
    IN_CACHE,
    IN_ORDER,
    LEVELS,
    LOADED_AT,
    LOADED_END,
    NONE,
    PORT_MBPS,
    QUEUE,
    ROUTES,
    SERVER_AT,
    SIZE,
    TAIL_AT,
    TAIL_END,
    TURNS,
    FIRST_UNIT,
    WITHHELD,
    Hardware,
    Work,
)
from memsim.rules import (
    DIRTY_PPM,
    HIT_PPM,
    IS_DEPENDENT,
    IS_HIT,
    IS_WORKED,
    IS_WRITE,
    REGION,
    ROW_BYTES,
    ROWS,
    TIER,
    TILE_ROWS,
    WALK_PPM,
    Memory,
)


def tier_of_lone(hardware: Hardware, work: Work, memory: Memory, slots: int, most: int) -> int:
    """The tier of a segment of one kernel that `fast_ring` can replay; NONE for all others.

    slots  blocks that can live at once;  most  tiles that one of them can have outstanding
    """
    tiers = np.unique(memory.shares[:, TIER])
    if len(work.kernels) != 2 or slots != 1 or len(tiers) != 1:
        return NONE
    tier = int(tiers[0])
    alone = (
        _is_plain(hardware, work, tier)
        and _draws_nothing(hardware, work, tier)
        and _never_lacks_bytes(hardware, work, memory, most)
        and _ends_in_known_order(work)
    )
    return tier if alone else NONE


def _is_plain(hardware: Hardware, work: Work, tier: int) -> bool:
    """Whether requests come to the tier at once, and its channels alone say when they are served."""
    row, path = hardware.tiers[tier], work.kernels[0, ROUTES] + tier
    return bool(
        hardware.routes[path] == hardware.routes[path + 1]
        and row[QUEUE] == NONE
        and row[LOADED_AT] == row[LOADED_END]
        and not hardware.away_ps[row[SERVER_AT] : row[SERVER_AT] + row[CHANNELS]].any()
        and not (row[BUFFER_BYTES] and work.ops.table[:, IS_WRITE].any())
        and not work.kernels[0, PORT_MBPS : PORT_MBPS + 2].any()
    )


def _draws_nothing(hardware: Hardware, work: Work, tier: int) -> bool:
    """Whether no request goes to the cache, walks, or is slow."""
    table, path = work.ops.table, hardware.paths[work.kernels[0, ROUTES] + tier]
    cached = table[:, IS_HIT].any() or (
        path[IN_CACHE] and (table[:, IS_WRITE].any() or table[:, [HIT_PPM, DIRTY_PPM]].any())
    )
    walks = path[LEVELS] and table[:, WALK_PPM].any()
    return bool(not cached and not walks and hardware.tiers[tier, TAIL_AT] == hardware.tiers[tier, TAIL_END])


def _never_lacks_bytes(hardware: Hardware, work: Work, memory: Memory, most: int) -> bool:
    """Whether the unit can lend all that the block's tiles can have outstanding."""
    table = work.ops.table
    tile_rows = np.minimum(table[:, TILE_ROWS], table[:, ROWS])
    tile_bytes = int((tile_rows * memory.regions[table[:, REGION], ROW_BYTES]).max(initial=0))
    return most * tile_bytes <= int(
        hardware.pools[work.kernels[0, FIRST_UNIT], SIZE] - work.kernels[0, WITHHELD]
    )


def _ends_in_known_order(work: Work) -> bool:
    """Whether tiles are worked in order and in one piece, or not at all: the unit serves them as they arrive.

    A write that waits for reads alone goes past other writes.
    """
    if (work.ops.table[:, IS_WRITE] & work.ops.table[:, IS_DEPENDENT]).any():
        return False
    worked = work.kernels[0, [FLOPS, FIXED_PS]].any() and work.ops.table[:, IS_WORKED].any()
    return bool(not worked or work.kernels[0, IN_ORDER] and work.kernels[0, TURNS] == 1)
