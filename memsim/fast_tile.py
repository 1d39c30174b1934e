"""How a block asks for its tiles, and what becomes of a tile: requests, arrival, arithmetic, its end."""

from __future__ import annotations

from memsim.fast_depart import depart
from memsim.fast_pool import borrow, owed, give_back_bytes, give_back_credits
from memsim.fast_queue import post, schedule
from memsim.fast_serve import book
from memsim.fast_state import (  # fmt: skip
    BLOCK,
    BLOCK_END,
    CACHED,
    DRAIN_PS,
    FIXED_PS,
    FLOPS,
    FREE_REQUEST,
    FREE_TILES,
    IN_CACHE,
    IN_FLIGHT,
    IN_ORDER,
    ISSUE,
    KERNEL,
    LARGEST,
    LARGEST_BYTES,
    LATER,
    LEVELS,
    MFLOPS,
    MOST_TILES,
    NONE,
    OF_OP,
    ON_UNIT,
    OP,
    OP_ROW,
    OUTSTANDING,
    PAID,
    READING,
    REQUEST,
    ROUTES,
    ROW,
    ROW_END,
    R_BYTES,
    R_POOL,
    R_PUSHES,
    R_SLOT,
    R_STEP,
    R_TILE,
    R_WRITE,
    SECOND,
    SETTLED,
    SPAN_LEFT,
    SPAN_OFFSET,
    SPAN_TIER,
    TIERS,
    TILE,
    TILES,
    TILE_FREE,
    TILE_LEFT,
    TILE_NUMBER,
    TILE_READS,
    TILE_WORKED,
    TO_WORK,
    TRANSFER,
    TURNS,
    TURNS_LEFT,
    UNIT,
    UNITS,
    WAITS,
    WALKS,
    WORKED,
    WORKED_PS,
    WORKING_PS,
)
from memsim.jit import at, inner
from memsim.rules import (  # fmt: skip
    IS_DEPENDENT,
    IS_HIT,
    IS_WORKED,
    IS_WRITE,
    ROWS,
    TILE_ROWS,
    WALK_PPM,
    next_span,
    request_bytes,
    rounded_bytes,
    service_ps,
    turn_flops,
)

FULL = -2  # instead of a request: the table of requests is


@inner
def may_open_tile(prog, st, slot):
    """Whether a slot may ask for its next tile now."""
    sl = st.slots
    op = sl[slot, OP]
    if prog.ops.table[op, IS_DEPENDENT] and sl[slot, OP_ROW] == 0:
        awaited = READING if prog.ops.table[op, IS_WRITE] else OUTSTANDING
        if sl[slot, awaited] > 0:
            return False
    return sl[slot, OUTSTANDING] < prog.kernels[sl[slot, KERNEL], IN_FLIGHT]


@inner
def open_tile(prog, st, slot):
    """Begin the slot's next tile."""
    sl = st.slots
    kernel = sl[slot, KERNEL]
    op = sl[slot, OP]
    number = sl[slot, TILES]
    most = st.sizes[MOST_TILES]
    if prog.kernels[kernel, IN_ORDER]:
        tile = slot * most + number % most
    elif sl[slot, FREE_TILES] > 0:
        sl[slot, FREE_TILES] -= 1
        tile = slot * most + st.tiles[slot * most + sl[slot, FREE_TILES], TILE_FREE]
    else:  # all places used so far are taken
        tile = slot * most + sl[slot, OUTSTANDING]
    st.tiles[tile, TILE_LEFT] = 1
    st.tiles[tile, TILE_NUMBER] = number
    st.tiles[tile, TILE_WORKED] = prog.ops.table[op, IS_WORKED]
    st.tiles[tile, TILE_READS] = 1 - prog.ops.table[op, IS_WRITE]
    sl[slot, READING] += st.tiles[tile, TILE_READS]
    if sl[slot, OP_ROW] == 0:
        sl[slot, OF_OP] = 0
    sl[slot, TILE] = tile
    sl[slot, TILES] += 1
    sl[slot, OUTSTANDING] += 1
    sl[slot, ROW] = sl[slot, OP_ROW]
    sl[slot, ROW_END] = min(sl[slot, OP_ROW] + prog.ops.table[op, TILE_ROWS], prog.ops.table[op, ROWS])
    sl[slot, OP_ROW] = sl[slot, ROW_END]


@inner
def close_tile(prog, st, slot):
    """End the asking for a tile: all its requests are issued (the last one is still out)."""
    sl = st.slots
    st.tiles[sl[slot, TILE], TILE_LEFT] -= 1
    sl[slot, TILE] = NONE
    if sl[slot, OP_ROW] == prog.ops.table[sl[slot, OP], ROWS]:
        sl[slot, OP] += 1
        sl[slot, OP_ROW] = 0


@inner
def find_span(hw, prog, memory, st, slot):
    """Fetch the open tile's next span into the slot's cursor."""
    sl = st.slots
    op = sl[slot, OP]
    tier, offset, nbytes, row, second = next_span(
        prog.ops, memory, op, sl[slot, ROW], sl[slot, ROW_END], sl[slot, SECOND]
    )
    if prog.ops.table[op, IS_HIT]:
        tier = hw.sizes[TIERS] - 1
    sl[slot, SPAN_TIER] = tier
    sl[slot, SPAN_OFFSET] = offset
    sl[slot, TRANSFER] = rounded_bytes(offset, nbytes, hw.tiers[tier, UNIT])
    sl[slot, SPAN_LEFT] = nbytes
    route = prog.kernels[sl[slot, KERNEL], ROUTES] + tier
    sl[slot, LARGEST] = hw.paths[route, LARGEST_BYTES + prog.ops.table[op, IS_WRITE]]
    sl[slot, CACHED] = hw.paths[route, IN_CACHE]
    sl[slot, WALKS] = hw.paths[route, LEVELS] if prog.ops.table[op, WALK_PPM] > 0 else 0
    sl[slot, ROW] = row
    sl[slot, SECOND] = second


@inner
def ask(hw, prog, memory, st, out, slot, now_ps):
    """The next request that a block issues now; NONE when it has to wait or has asked for all, or FULL."""
    mine = st.slots[at(slot)]
    while True:
        if mine[TILE] == NONE:
            if has_asked_all(prog, st, slot):
                return NONE
            if not may_open_tile(prog, st, slot):
                mine[WAITS] = 1
                return NONE
            open_tile(prog, st, slot)
        elif mine[SPAN_LEFT] > 0:
            if st.sizes[FREE_REQUEST] == NONE:
                return FULL
            nbytes = request_bytes(mine[SPAN_OFFSET], mine[SPAN_LEFT], mine[LARGEST])
            if not mine[PAID] and not borrow(prog, st, slot, nbytes, now_ps):
                return NONE
            return depart(hw, prog, st, out, slot, nbytes, now_ps)
        elif mine[ROW] < mine[ROW_END]:
            find_span(hw, prog, memory, st, slot)
        else:
            close_tile(prog, st, slot)


@inner
def give_back(hw, prog, st, out, request, now_ps):
    """A request gives back what it holds at a link or a tier; it goes on in phase 5, or it is complete."""
    asked = st.requests[at(request)]
    if asked[R_POOL] != NONE:
        give_back_credits(st, out, request, now_ps)
    if asked[R_STEP] != SETTLED:
        schedule(st, request, 2 * now_ps + 1)
        return
    slot, tile = asked[R_SLOT], asked[R_TILE]
    nbytes = owed(prog, st, slot, asked[R_BYTES])
    if asked[R_PUSHES] != NONE and not asked[R_WRITE]:
        nbytes *= 2
    give_back_bytes(prog, st, out, slot, nbytes, now_ps)
    st.spokes[at(request), LATER] = st.sizes[FREE_REQUEST]
    st.sizes[FREE_REQUEST] = request
    st.tiles[at(tile), TILE_LEFT] -= 1
    if st.tiles[at(tile), TILE_LEFT] == 0:
        arrive(hw, prog, st, slot, tile, now_ps)


@inner
def arrive(hw, prog, st, slot, tile, now_ps):
    """A tile has arrived: work it, in order if the kernel says so."""
    sl = st.slots
    if not prog.kernels[sl[slot, KERNEL], IN_ORDER]:
        work(hw, prog, st, slot, tile, now_ps)
        return
    most = st.sizes[MOST_TILES]
    while sl[slot, TO_WORK] < sl[slot, TILES]:
        tile = slot * most + sl[slot, TO_WORK] % most
        if st.tiles[tile, TILE_LEFT] > 0:
            return
        sl[slot, TO_WORK] += 1
        work(hw, prog, st, slot, tile, now_ps)


@inner
def work(hw, prog, st, slot, tile, now_ps):
    """A tile's arithmetic begins, if it has any."""
    kernel = st.slots[slot, KERNEL]
    if st.tiles[tile, TILE_WORKED] and prog.kernels[kernel, FLOPS] > 0:
        st.tiles[tile, TURNS_LEFT] = prog.kernels[kernel, TURNS]
        take_turn(hw, prog, st, slot, tile, now_ps)
    else:
        settle(prog, st, slot, tile, now_ps, now_ps)


@inner
def take_turn(hw, prog, st, slot, tile, now_ps):
    """Book the next turn of a tile's arithmetic at its unit."""
    kernel, left = st.slots[slot, KERNEL], st.tiles[tile, TURNS_LEFT] - 1
    flops = turn_flops(prog.kernels[kernel, FLOPS], prog.kernels[kernel, TURNS], left)
    mflops = prog.kernels[kernel, MFLOPS]
    server = len(st.servers) - hw.sizes[UNITS] + st.slots[slot, ON_UNIT]
    end_ps = book(st.servers, server, now_ps, service_ps(flops, mflops), mflops)
    st.tiles[tile, TURNS_LEFT] = left
    if left > 0:
        post(st, WORKED, end_ps, st.slots[slot, BLOCK], st.tiles[tile, TILE_NUMBER], tile)
    else:
        settle(prog, st, slot, tile, now_ps, end_ps + prog.kernels[kernel, WORKING_PS])


@inner
def settle(prog, st, slot, tile, now_ps, end_ps):
    """A tile's arithmetic ends at end_ps; the tile now if that is now and it waits for none before it."""
    sl = st.slots
    kernel = sl[slot, KERNEL]
    fixed_ps = st.tiles[tile, TILE_WORKED] * prog.kernels[kernel, FIXED_PS]
    if prog.kernels[kernel, IN_ORDER] or fixed_ps > 0:
        end_ps = max(end_ps, sl[slot, WORKED_PS]) + fixed_ps
        sl[slot, WORKED_PS] = end_ps
    if end_ps == now_ps:
        end_tile(prog, st, slot, tile, now_ps)
    else:
        post(st, WORKED, end_ps, sl[slot, BLOCK], st.tiles[tile, TILE_NUMBER], tile)


@inner
def end_tile(prog, st, slot, tile, now_ps):
    """A tile is no longer outstanding: the block may ask for another, or it is at its end."""
    sl = st.slots
    kernel = sl[slot, KERNEL]
    most = st.sizes[MOST_TILES]
    if not prog.kernels[kernel, IN_ORDER]:
        st.tiles[slot * most + sl[slot, FREE_TILES], TILE_FREE] = tile - slot * most
        sl[slot, FREE_TILES] += 1
    sl[slot, OUTSTANDING] -= 1
    sl[slot, READING] -= st.tiles[tile, TILE_READS]
    if sl[slot, WAITS]:
        if may_open_tile(prog, st, slot):
            sl[slot, WAITS] = 0
            post(st, ISSUE, now_ps, sl[slot, BLOCK], sl[slot, REQUEST], -1 - slot)
    elif sl[slot, OUTSTANDING] == 0 and has_asked_all(prog, st, slot):
        post(st, BLOCK_END, now_ps + prog.kernels[kernel, DRAIN_PS], sl[slot, BLOCK], 0, slot)


@inner
def has_asked_all(prog, st, slot):
    """Whether a slot's block has issued all its requests."""
    return st.slots[slot, TILE] == NONE and st.slots[slot, OP] == prog.op_at[st.slots[slot, BLOCK] + 1]
