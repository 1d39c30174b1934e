"""What the fast engine keeps in hand while it replays a segment: tables of int64, named.

A *slot* is a block that lives on a unit, a *tile* one of a slot's outstanding tiles (slot x most +
place), a *request* one in flight. A *server* is a channel, the cache, a link direction or a unit's
arithmetic; a *pool* a unit's outstanding bytes or a link's tags. One table each, a row per thing, and
names for the columns: few arrays keep the compiler quick and a row near its neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memsim.program import UNIT_SHARES
from memsim.rules import Ops

NONE = -1

# Hardware.sizes
UNITS, UNIT_BYTES, QUANTUM_BYTES, TIERS, LINKS = range(5)  # TIERS counts the cache, which is the last
# Hardware.tiers: rates per channel; route as a range of Hardware.route, and its latency one way; the
# service of a whole piece (rules.service_ps of INTERLEAVE), to save the division
SERVER_AT, CHANNELS, MBPS, INTERLEAVE, UNIT, LATENCY_PS, ROUTE_AT, ROUTE_PS, PIECE_PS, PIECE_REST = range(10)
# Hardware.links
LINK_MBPS, LINK_PS, LINK_TAGS, LINK_TAG_BYTES = range(4)
# Work.kernels
LAUNCH_PS, WAIT_AT, BLOCK_AT, SHARES, IN_FLIGHT, IN_ORDER, FLOPS, MFLOPS, STARTUP_PS, DRAIN_PS = range(10)
# Counts.kernels
READY_PS, START_PS, END_PS, REQUESTS, DIGEST = range(5)
# Counts.ledger: + 0 for reads, + 1 for writes
ISSUED, MOVED = 0, 2
# State.servers: the last service of a server ends at WHOLE + REST / RATE
WHOLE_PS, REST, RATE = range(3)
# State.pools: free credits, and the queue of slots
FREE, HEAD, TAIL = range(3)
# State.kernels: blocks that have not ended; first block that is not placed
LEFT, NEXT_BLOCK = range(2)
# State.slots. BLOCK is numbered through the segment; OP_ROW begins the op's next tile; ROW, ROW_END and
# SECOND are the cursor in the open tile (TILE, NONE between tiles); REQUEST numbers the next request;
# TO_WORK is the next tile to be booked in order, WORKED_PS the end of the last one booked; STAGE counts
# the pools already taken for the next request, NEED the credits it waits for; WAITS says (0 / 1) whether
# it waits for a tile to end; NEXT continues a queue; FREE_SLOT is the stack of unused slots, FREE_TILES
# the height of the slot's stack of places for tiles that were used before.
(
    KERNEL, ON_UNIT, BLOCK, OP, OP_ROW, ROW, ROW_END, SECOND, SPAN_TIER, SPAN_OFFSET, SPAN_LEFT, REQUEST,
    TILES, OUTSTANDING, TILE, TO_WORK, WORKED_PS, WAITS, STAGE, NEED, SINCE_PS, NEXT, FREE_SLOT, FREE_TILES,
) = range(24)  # fmt: skip
SLOT_COLUMNS = 24
# State.tiles: requests still out (one more while the tile is open), number, arithmetic, stack of unused
TILE_LEFT, TILE_NUMBER, TILE_FLOPS, TILE_FREE = range(4)
# State.requests; R_BLOCK is its slot's BLOCK
(
    R_SLOT, R_TILE, R_TIER, R_OFFSET, R_BYTES, R_MOVED, R_WRITE, R_NUMBER, R_HOP, R_ISSUE_PS, R_FREE, R_BLOCK,
) = range(12)  # fmt: skip
REQUEST_COLUMNS = 12
# State.wheel: first and last request of a bucket; State.spokes: when each request is complete, and the
# requests before and after it in its bucket
FIRST, LAST = range(2)
DONE_PS, EARLIER, LATER = range(3)
# State.sizes: heights of the stacks, whether blocks wait to be placed, the next kernel to become ready,
# the first kernel with blocks to place, outstanding tiles of a slot; then of the wheel: requests in it,
# first and last bucket in use, log2 of a bucket's width in ps; events in all heaps
(
    FREE_SLOTS, FREE_REQUESTS, PLACE, NEXT_KERNEL, FIRST_KERNEL, MOST_TILES, ON_WHEEL, BUCKET, LAST_BUCKET,
    SHIFT, IN_HEAPS,
) = range(11)  # fmt: skip
BUCKETS = 1 << 14
# Heaps, in the order of their phases inside an instant
COMPLETE, WORKED, BLOCK_END, START, ISSUE = range(5)
HEAPS = 5
# An event: when, (major, minor) order inside its phase, and what
TIME_PS, MAJOR, MINOR, ITEM = range(4)


class Hardware(NamedTuple):
    """The machine: sizes int64[5], tiers int64[T + 2, 10] (the cache last, one row more to end the
    lists), links int64[L, 4], route int64[m] (links of all routes)."""

    sizes: np.ndarray
    tiers: np.ndarray
    links: np.ndarray
    route: np.ndarray


class Work(NamedTuple):
    """A program (see program.py): kernels int64[K + 1, 10] (the last row ends the lists), wait_for int64[m],
    op_at int64[blocks + 1], ops."""

    kernels: np.ndarray
    wait_for: np.ndarray
    op_at: np.ndarray
    ops: Ops


class Counts(NamedTuple):
    """What is counted (see result.Outcome): kernels int64[K, 5], kernel_moved [K, places, 2], ledger
    [R, T + 1, 4], waiting_ps [places + L + 1] (places, then tags of links, then units), latency."""

    kernels: np.ndarray
    kernel_moved: np.ndarray
    ledger: np.ndarray
    waiting_ps: np.ndarray
    latency: np.ndarray


class State(NamedTuple):
    """Everything that changes. heap: int64[HEAPS, n, 4]; wheel: int64[BUCKETS, 2];
    spokes: int64[requests, 3], apart from the requests to stay in the nearest cache; room: free
    shares of each unit."""

    servers: np.ndarray
    pools: np.ndarray
    kernels: np.ndarray
    slots: np.ndarray
    tiles: np.ndarray
    requests: np.ndarray
    heap: np.ndarray
    heap_size: np.ndarray
    wheel: np.ndarray
    spokes: np.ndarray
    room: np.ndarray
    sizes: np.ndarray


def fresh_state(
    hardware: Hardware, work: Work, slots: int, most: int, requests: int, shift: int
) -> State:
    """Fresh tables for a segment: nothing lives, everything is free.

    slots     blocks that can live at once;  most  tiles that one of them can have outstanding
    requests  size of the table of requests in flight;  shift  log2 of a bucket's width [ps]
    """
    units, links = hardware.sizes[UNITS], hardware.sizes[LINKS]
    kernels = len(work.kernels) - 1
    servers = np.zeros((hardware.tiers[hardware.sizes[TIERS], SERVER_AT] + 2 * links + units, 3), np.int64)
    servers[:, RATE] = 1
    pools = np.full((units + links, 3), NONE, np.int64)
    pools[:units, FREE] = hardware.sizes[UNIT_BYTES]
    pools[units:, FREE] = hardware.links[:, LINK_TAGS]
    progress = np.empty((kernels, 2), np.int64)
    progress[:, LEFT] = work.kernels[1:, BLOCK_AT] - work.kernels[:-1, BLOCK_AT]
    progress[:, NEXT_BLOCK] = work.kernels[:-1, BLOCK_AT]
    slot_table = np.zeros((slots, SLOT_COLUMNS), np.int64)
    slot_table[:, FREE_SLOT] = np.arange(slots)
    request_table = np.zeros((requests, REQUEST_COLUMNS), np.int64)
    request_table[:, R_FREE] = np.arange(requests)
    deep = max(requests + slots, max(slots * most, kernels)) + 2
    return State(
        servers,
        pools,
        progress,
        slot_table,
        np.zeros((slots * most, 4), np.int64),
        request_table,
        np.empty((HEAPS, deep, 4), np.int64),
        np.zeros(HEAPS, np.int64),
        np.full((BUCKETS, 2), NONE, np.int64),
        np.zeros((requests, 3), np.int64),
        np.full(units, UNIT_SHARES, np.int64),
        np.array([slots, requests, 0, 0, 0, most, 0, 0, 0, shift, 0], np.int64),
    )
