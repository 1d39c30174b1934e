"""What the fast engine keeps in hand while it replays a segment: tables of int64, named.

A *slot* is a block that lives on a unit, a *tile* one of a slot's outstanding tiles (slot x most +
place), a *request* one in flight. A *server* is a channel, the cache, a link direction or a unit's
arithmetic; a *pool* a unit's outstanding bytes, a link's tags or credits, or a tier's queue. One table
each, a row per thing, and names for the columns: few arrays keep the compiler quick and a row near its
neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memsim.program import UNIT_SHARES
from memsim.rules import Ops

NONE = -1

# Hardware.sizes
UNITS, QUANTUM_BYTES, TIERS, LINKS, SEED = range(5)  # TIERS counts the cache, which is the last
# Hardware.tiers. QUEUE is a pool or NONE; the tail and the loaded latencies are ranges of Hardware.curves,
# WALKER_AT two servers. The last columns are pairs, + 0 for reads and + 1 for writes: rate of a channel,
# latency, occupancy, and the service of a whole piece (rules.piece_service_ps of INTERLEAVE), to save the
# division; then, of the two levels of translation, latency and occupancy
SERVER_AT, CHANNELS, INTERLEAVE, UNIT, QUEUE, TAIL_AT, TAIL_END, TURNAROUND_PS, BUFFER_BYTES = range(9)
LOADED_AT, LOADED_END, WALKER_AT = range(9, 12)
MBPS, LATENCY_PS, OCCUPANCY_PS, PIECE_PS, PIECE_REST, WALK_PS, WALKER_PS = range(12, 26, 2)
SPREAD_PS = 26  # of the cache: what a hit in its farthest slice takes more than in its nearest
TIER_COLUMNS = 27
# Hardware.paths: largest requests (a pair), whether the cache is in front of the tier, levels of translation
LARGEST_BYTES, IN_CACHE, LEVELS = 0, 2, 3
# Hardware.hops: a link as one initiator's route to one tier crosses it. PACKET is the data of a packet, POOL
# the tags of reads (+ 1: the credits of writes), OUTWARD the direction of the link (see system.Link) that
# leads away from the initiator; POINTS_AT and POINTS_END a range of Hardware.curves; ACK_PS what an
# acknowledgement takes back; HOP_SERVER and HOP_MBPS pairs, + 0 inward and + 1 outward
LINK, HOP_PS, PACKET, HEADER, POOL, OUTWARD, POINTS_AT, POINTS_END, ACK_PS = range(9)
HOP_SERVER, HOP_MBPS = range(9, 13, 2)
HOP_COLUMNS = 13
# Work.kernels. Units FIRST_UNIT..LAST_UNIT are those of its initiator, ROUTES the initiator's first route in
# Hardware.routes; DRAWN is the number that tails are drawn by; TURNS those that a worked tile's arithmetic
# takes, WORKING_PS what the tile takes after them, FIXED_PS what it takes then, one of a block after
# another; PORT_MBPS a pair, as above, of 0 where a unit has no port
(
    LAUNCH_PS, WAIT_AT, BLOCK_AT, SHARES, IN_FLIGHT, IN_ORDER, FLOPS, MFLOPS, TURNS, WORKING_PS, FIXED_PS,
    DISPATCH_PS, STARTUP_PS, DRAIN_PS, IDLE_PS, DRAWN, FIRST_UNIT, LAST_UNIT, ROUTES, WITHHELD,
    PORT_MBPS,
) = range(21)  # fmt: skip
# Counts.kernels
READY_PS, START_PS, END_PS, REQUESTS, DIGEST = range(5)
# Counts.ledger: + 0 for reads, + 1 for writes
ISSUED, MOVED = 0, 2
# State.servers: the last service of a server ends at WHOLE + REST / RATE; of a channel WAY says whether it
# was a write, and GATHERED what it is to write at once: bytes, and their service
WHOLE_PS, REST, RATE, WAY, GATHERED_BYTES, GATHERED_PS, GATHERED_REST = range(7)
SERVER_COLUMNS = 7
# State.pools: free credits, all of them, the queue of slots (of a unit) or requests, and where in
# Counts.waiting_ps the time in it is counted
FREE, SIZE, HEAD, TAIL, PLACE = range(5)
# State.kernels: blocks that have not ended; first block that is not placed
LEFT, NEXT_BLOCK = range(2)
# State.slots. BLOCK is numbered through the segment; OP_ROW begins the op's next tile; ROW, ROW_END and
# SECOND are the cursor in the open tile (TILE, NONE between tiles), SPAN_LEFT what is left of its span,
# TRANSFER the whole span in transactions, LARGEST the largest request of its route; REQUEST numbers the
# next request; TO_WORK is the next tile to be booked in order, WORKED_PS when the next one may end;
# PAID says (0 / 1) whether its unit has lent the bytes of the next request, NEED those it waits for; WAITS
# whether it waits for a tile to end; NEXT continues a queue; FREE_SLOT is the stack of unused slots,
# FREE_TILES the height of the slot's stack of places for tiles that were used before. OF_OP numbers the next
# request among those of its op; CACHED says whether the cache is in front of its span's tier, WALKS how many
# levels of translation it may miss; READING counts its outstanding tiles that read.
(
    KERNEL, ON_UNIT, BLOCK, OP, OP_ROW, ROW, ROW_END, SECOND, SPAN_TIER, SPAN_OFFSET, TRANSFER, LARGEST,
    SPAN_LEFT, REQUEST, TILES, OUTSTANDING, TILE, TO_WORK, WORKED_PS, WAITS, PAID, NEED, SINCE_PS, NEXT,
    FREE_TILES, OF_OP, CACHED, WALKS, READING, FREE_SLOT,
) = range(30)  # fmt: skip
SLOT_COLUMNS = 30
# State.tiles: requests still out (one more while the tile is open), number, whether it is worked (0 / 1),
# whether it reads (0 / 1), stack of unused
TILE_LEFT, TILE_NUMBER, TILE_WORKED, TILE_READS, TILE_FREE, TURNS_LEFT = range(6)
TILE_COLUMNS = 6
# State.requests. R_BLOCK is its slot's BLOCK; R_STEP counts the hops behind it, with the tier as one: out,
# tier, back; it is SETTLED when its completion is known. R_PARTS are its packets at this hop, or its pieces
# at the tier; R_PAID says whether it has taken their credits and not gone on yet, R_POOL is the pool that
# gets them back in its next event of phase 0, or NONE; R_PASSED_PS is when it may be complete at the
# earliest, R_PUSHES the tier that it pushes dirty lines out to, or NONE
(
    R_SLOT, R_BLOCK, R_NUMBER, R_TILE, R_TIER, R_OFFSET, R_BYTES, R_MOVED, R_WRITE, R_TRANSFER, R_ISSUE_PS,
    R_ROUTE, R_STEP, R_PARTS, R_PAID, R_POOL, R_PASSED_PS, R_PUSHES,
) = range(18)  # fmt: skip
REQUEST_COLUMNS = 18
SETTLED = -1
# State.wheel: first and last request of a bucket
FIRST, LAST = range(2)
# State.spokes, a row for each request. DUE is when its next event comes: twice the time [ps], and one more in
# phase 5; EARLIER and LATER are those before and after it in its bucket. Of requests that wait for credits
# DUE is since when [ps], and LATER the next in line; of unused ones LATER is the next unused.
DUE, EARLIER, LATER = range(3)
# State.sizes: height of the stack of slots, the first unused request, whether blocks wait to be placed, the
# next kernel to become ready, the first kernel with blocks to place, outstanding tiles of a slot; then of the
# wheel: requests in it, first and last bucket in use, log2 of a bucket's width [ps]; events in all heaps
(
    FREE_SLOTS, FREE_REQUEST, TO_PLACE, NEXT_KERNEL, FIRST_KERNEL, MOST_TILES, ON_WHEEL, BUCKET, LAST_BUCKET,
    SHIFT, IN_HEAPS,
) = range(11)  # fmt: skip
BUCKETS = 1 << 14
# State.loads: begin of a tier's window, work that arrived in it, the same of the window before
WINDOW_AT_PS, WORK_PS, LAST_WORK_PS = range(3)
# Heaps, in the order of their phases inside an instant
GIVE, WORKED, BLOCK_END, START, ISSUE = range(5)
HEAPS = 5
# An event: when, (major, minor) order inside its phase, and what: in GIVE a request, in ISSUE a request or,
# as -1 - slot, a slot
TIME_PS, MAJOR, MINOR, ITEM = range(4)


class Hardware(NamedTuple):
    """The machine.

    sizes   int64[5]
    tiers   int64[T + 2, 27]  the cache last, one row more to end the lists
    routes  int64[I * (T + 1) + 1]  first hop of the route of each initiator to each tier
    paths   int64[I * (T + 1), 4]   what else is to be known of each route
    hops    int64[m, 13]      hops of all routes, the initiator's first
    curves  int64[n, 2]       efficiency of links by size, and tails of tiers (see rules)
    pools   int64[P, 5]       every pool when it is full
    away_ps int64[channels + 2]   what a load of a channel takes more than LATENCY_PS; 0 of the cache
    """

    sizes: np.ndarray
    tiers: np.ndarray
    routes: np.ndarray
    paths: np.ndarray
    hops: np.ndarray
    curves: np.ndarray
    pools: np.ndarray
    away_ps: np.ndarray


class Work(NamedTuple):
    """A program (see program.py): kernels int64[K + 1, 20] (the last row ends the lists), wait_for int64[m],
    op_at int64[blocks + 1], ops."""

    kernels: np.ndarray
    wait_for: np.ndarray
    op_at: np.ndarray
    ops: Ops


class Counts(NamedTuple):
    (
        """What is counted (see result.Outcome): kernels int64[K, 5], kernel_moved [K, places, 2], ledger
    [R, T + 1, 4], written_back [T], wire_bytes [L, 2], waiting_ps [places + L + 2 + T] (places, pools of
    links, units, ports, walkers), latency."""
        ""
    )

    kernels: np.ndarray
    kernel_moved: np.ndarray
    ledger: np.ndarray
    written_back: np.ndarray
    wire_bytes: np.ndarray
    waiting_ps: np.ndarray
    latency: np.ndarray


class State(NamedTuple):
    """Everything that changes. heap: int64[HEAPS, n, 4]; wheel: int64[BUCKETS, 2];
    spokes: int64[requests, 3], apart from the requests to stay in the nearest cache; room: free
    shares of each unit; begun_ps: when an initiator's latest block began, by its first unit; loads:
    int64[T + 1, 3]."""

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
    begun_ps: np.ndarray
    loads: np.ndarray
    sizes: np.ndarray


def fresh_state(hardware: Hardware, work: Work, slots: int, most: int, requests: int, shift: int) -> State:
    """Fresh tables for a segment: nothing lives, everything is free.

    slots     blocks that can live at once;  most  tiles that one of them can have outstanding
    requests  size of the table of requests in flight;  shift  log2 of a bucket's width [ps]
    """
    units, links = hardware.sizes[UNITS], hardware.sizes[LINKS]
    kernels = len(work.kernels) - 1
    tiers = hardware.sizes[TIERS]
    channels = hardware.tiers[tiers, SERVER_AT]  # and the cache's two ways
    servers = np.zeros((channels + 2 * links + 2 * (tiers - 1) + 3 * units, SERVER_COLUMNS), np.int64)
    servers[:, RATE] = 1
    for tier in hardware.tiers[: tiers - 1]:
        servers[tier[SERVER_AT] : tier[SERVER_AT] + tier[CHANNELS], RATE] = tier[MBPS]  # WAY: they read
    progress = np.empty((kernels, 2), np.int64)
    progress[:, LEFT] = work.kernels[1:, BLOCK_AT] - work.kernels[:-1, BLOCK_AT]
    progress[:, NEXT_BLOCK] = work.kernels[:-1, BLOCK_AT]
    slot_table = np.zeros((slots, SLOT_COLUMNS), np.int64)
    slot_table[:, FREE_SLOT] = np.arange(slots)
    spokes = np.zeros((requests, 3), np.int64)
    spokes[:, LATER] = np.arange(1, requests + 1)
    spokes[-1, LATER] = NONE
    deep = max(requests + slots, max(slots * most, kernels)) + 2
    return State(
        servers,
        hardware.pools.copy(),
        progress,
        slot_table,
        np.zeros((slots * most, TILE_COLUMNS), np.int64),
        np.zeros((requests, REQUEST_COLUMNS), np.int64),
        np.empty((HEAPS, deep, 4), np.int64),
        np.zeros(HEAPS, np.int64),
        np.full((BUCKETS, 2), NONE, np.int64),
        spokes,
        np.full(units, UNIT_SHARES, np.int64),
        np.zeros(units, np.int64),
        np.zeros((tiers, 3), np.int64),
        np.array([slots, 0, 0, 0, 0, most, 0, 0, 0, shift, 0], np.int64),
    )
