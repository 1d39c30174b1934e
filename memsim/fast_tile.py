"""How a block asks for its tiles, and what becomes of a tile: requests, arrival, arithmetic, its end."""

from __future__ import annotations

from memsim.fast_pool import borrow, owed, give_back_bytes, give_back_credits
from memsim.fast_queue import post, schedule
from memsim.fast_route import book, free_ps
from memsim.fast_state import (  # fmt: skip
    BLOCK,
    BLOCK_AT,
    BLOCK_END,
    CACHED,
    DRAIN_PS,
    FIXED_PS,
    FLOPS,
    FREE,
    FREE_REQUEST,
    FREE_TILES,
    IN_CACHE,
    IN_FLIGHT,
    IN_ORDER,
    ISSUE,
    ISSUED,
    KERNEL,
    LARGEST,
    LARGEST_BYTES,
    LATENCY_PS,
    LATER,
    LEVELS,
    LINK,
    MFLOPS,
    MOST_TILES,
    MOVED,
    NONE,
    OF_OP,
    ON_UNIT,
    OP,
    OP_ROW,
    OUTSTANDING,
    OUTWARD,
    PAID,
    PORT_MBPS,
    READING,
    REQUEST,
    REQUESTS,
    ROUTES,
    ROW,
    ROW_END,
    R_BLOCK,
    R_BYTES,
    R_ISSUE_PS,
    R_MOVED,
    R_NUMBER,
    R_OFFSET,
    R_PAID,
    R_PASSED_PS,
    R_POOL,
    R_PUSHES,
    R_ROUTE,
    R_SLOT,
    R_STEP,
    R_TIER,
    R_TILE,
    R_TRANSFER,
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
    TILE_READS,
    TILE_WORKED,
    TILE_NUMBER,
    TO_WORK,
    TRANSFER,
    UNIT,
    UNITS,
    WAITS,
    WALKER_AT,
    WALKER_PS,
    WALKS,
    WALK_PS,
    WORKED,
    WORKED_PS,
    WORKING_PS,
)
from memsim.jit import inner
from memsim.rules import (  # fmt: skip
    WALK_AGAIN_PPM,
    WALK_PPM,
    draw_walks,
    DIRTY_PPM,
    HIT_PPM,
    draw_cached,
    IS_DEPENDENT,
    IS_HIT,
    IS_WORKED,
    IS_WRITE,
    REGION,
    ROWS,
    TILE_ROWS,
    added,
    next_span,
    request_bytes,
    rounded_bytes,
    service_ps,
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
    sl = st.slots
    while True:
        if sl[slot, TILE] == NONE:
            if has_asked_all(prog, st, slot):
                return NONE
            if not may_open_tile(prog, st, slot):
                sl[slot, WAITS] = 1
                return NONE
            open_tile(prog, st, slot)
        elif sl[slot, SPAN_LEFT] > 0:
            if st.sizes[FREE_REQUEST] == NONE:
                return FULL
            nbytes = request_bytes(sl[slot, SPAN_OFFSET], sl[slot, SPAN_LEFT], sl[slot, LARGEST])
            if not sl[slot, PAID] and not borrow(prog, st, slot, nbytes, now_ps):
                return NONE
            return depart(hw, prog, st, out, slot, nbytes, now_ps)
        elif sl[slot, ROW] < sl[slot, ROW_END]:
            find_span(hw, prog, memory, st, slot)
        else:
            close_tile(prog, st, slot)


@inner
def depart(hw, prog, st, out, slot, nbytes, now_ps):
    """Make a slot's next request, its bytes in hand, and count it; returns it."""
    sl, rq = st.slots, st.requests
    request = st.sizes[FREE_REQUEST]
    st.sizes[FREE_REQUEST] = st.spokes[request, LATER]
    kernel, op, tier = sl[slot, KERNEL], sl[slot, OP], sl[slot, SPAN_TIER]
    write = prog.ops.table[op, IS_WRITE]
    pushes = NONE
    if sl[slot, CACHED]:
        tier, pushes = draw_place(hw, prog, st, slot, tier, write)
    moved = rounded_bytes(sl[slot, SPAN_OFFSET], nbytes, hw.tiers[tier, UNIT])
    route = prog.kernels[kernel, ROUTES] + tier
    rq[request, R_SLOT] = slot
    rq[request, R_BLOCK] = sl[slot, BLOCK]
    rq[request, R_NUMBER] = sl[slot, REQUEST]
    rq[request, R_TILE] = sl[slot, TILE]
    rq[request, R_TIER] = tier
    rq[request, R_OFFSET] = sl[slot, SPAN_OFFSET]
    rq[request, R_BYTES] = nbytes
    rq[request, R_MOVED] = moved
    rq[request, R_WRITE] = write
    rq[request, R_TRANSFER] = sl[slot, TRANSFER]
    rq[request, R_ISSUE_PS] = now_ps
    rq[request, R_ROUTE] = route
    rq[request, R_STEP] = 0
    rq[request, R_PAID] = 0
    rq[request, R_PUSHES] = pushes
    rq[request, R_PASSED_PS] = pass_port(hw, prog, st, out, slot, route, tier, write, moved, now_ps)
    st.tiles[sl[slot, TILE], TILE_LEFT] += 1
    count_request(hw, out, kernel, prog.ops.table[op, REGION], tier, write, nbytes, moved, route)
    if pushes != NONE:
        if not write:  # what it pushes out is outstanding, too
            st.pools[sl[slot, ON_UNIT], FREE] -= owed(prog, st, slot, nbytes)
        pushed = rounded_bytes(sl[slot, SPAN_OFFSET], nbytes, hw.tiers[pushes, UNIT])
        out.written_back[pushes] += pushed
        out.kernel_moved[kernel, pushes, 1] += pushed
    sl[slot, PAID] = 0
    sl[slot, REQUEST] += 1
    sl[slot, OF_OP] += 1
    sl[slot, SPAN_OFFSET] += nbytes
    sl[slot, SPAN_LEFT] -= nbytes
    return request


@inner
def draw_place(hw, prog, st, slot, tier, write):
    """Where a slot's next request to a cached tier goes, and the tier that it pushes lines to, or NONE."""
    sl, table = st.slots, prog.ops.table
    op, cache = sl[slot, OP], hw.sizes[TIERS] - 1
    hit_ppm, dirty_ppm = table[op, HIT_PPM], table[op, DIRTY_PPM]
    if hit_ppm + dirty_ppm == 0:
        return cache if write else tier, NONE
    block = sl[slot, BLOCK] - prog.kernels[sl[slot, KERNEL], BLOCK_AT]
    place = op - prog.op_at[sl[slot, BLOCK]]
    hit, pushes = draw_cached(block, place, sl[slot, OF_OP], hit_ppm, dirty_ppm)
    return cache if hit or write else tier, tier if pushes else NONE


@inner
def walk(hw, prog, st, out, slot, request, now_ps):
    """Whether the request that a slot has just made looks up its page first; if so, book the walkers."""
    sl, table = st.slots, prog.ops.table
    tier, op = sl[slot, SPAN_TIER], sl[slot, OP]
    if sl[slot, WALKS] == 0:
        return False
    block = sl[slot, BLOCK] - prog.kernels[sl[slot, KERNEL], BLOCK_AT]
    place, number = op - prog.op_at[sl[slot, BLOCK]], sl[slot, OF_OP] - 1
    walks = draw_walks(block, place, number, table[op, WALK_PPM], table[op, WALK_AGAIN_PPM])
    if walks == 0:
        return False
    end_ps, latency_ps = now_ps, 0
    waiting = len(out.waiting_ps) - hw.sizes[TIERS] + 1 + tier
    for level in range(min(walks, sl[slot, WALKS])):
        walker, kept_ps = hw.tiers[tier, WALKER_AT] + level, hw.tiers[tier, WALKER_PS + level]
        waited_ps = max(0, free_ps(st.servers, walker) - now_ps)
        out.waiting_ps[waiting] = added(out.waiting_ps[waiting], waited_ps)
        end_ps = max(end_ps, book(st.servers, walker, now_ps, (kept_ps, 0), 1))
        latency_ps += hw.tiers[tier, WALK_PS + level]
    schedule(st, request, 2 * max(now_ps + 1, end_ps + latency_ps) + 1)
    return True


@inner
def pass_port(hw, prog, st, out, slot, route, tier, write, moved, now_ps):
    """Book the port of a slot's unit, where no link is on the way; returns when a request may be complete."""
    mbps = prog.kernels[st.slots[slot, KERNEL], PORT_MBPS + write]
    if mbps == 0 or hw.routes[route] < hw.routes[route + 1]:
        return now_ps
    units = hw.sizes[UNITS]
    port = len(st.servers) - 3 * units + 2 * st.slots[slot, ON_UNIT] + write
    place = len(out.waiting_ps) - hw.sizes[TIERS]
    out.waiting_ps[place] = added(out.waiting_ps[place], max(0, free_ps(st.servers, port) - now_ps))
    end_ps = book(st.servers, port, now_ps, service_ps(moved, mbps), mbps)
    return end_ps if write else end_ps + hw.tiers[tier, LATENCY_PS]


@inner
def wait_for_stores(hw, prog, st, slot, request, now_ps):
    """Whether the request that a slot has just made waits for what its unit stores; then it goes on later."""
    rq = st.requests
    route = rq[request, R_ROUTE]
    stored = prog.kernels[st.slots[slot, KERNEL], PORT_MBPS + 1] > 0
    if rq[request, R_WRITE] or not stored or hw.routes[route] < hw.routes[route + 1]:
        return False
    through_ps = free_ps(st.servers, len(st.servers) - 3 * hw.sizes[UNITS] + 2 * st.slots[slot, ON_UNIT] + 1)
    if through_ps <= now_ps:
        return False
    schedule(st, request, 2 * through_ps + 1)
    return True


@inner
def count_request(hw, out, kernel, region, tier, write, nbytes, moved, route):
    """Enter a request in the ledger: issued and moved, by region, tier and link."""
    out.kernels[kernel, REQUESTS] += 1
    out.ledger[region, tier, ISSUED + write] += nbytes
    out.ledger[region, tier, MOVED + write] += moved
    out.kernel_moved[kernel, tier, write] += moved
    for hop in range(hw.routes[route], hw.routes[route + 1]):
        direction = hw.hops[hop, OUTWARD] ^ 1 ^ write
        out.kernel_moved[kernel, hw.sizes[TIERS] + hw.hops[hop, LINK], direction] += moved


@inner
def give_back(hw, prog, st, out, request, now_ps):
    """A request gives back what it holds at a link or a tier; it goes on in phase 5, or it is complete."""
    rq = st.requests
    if rq[request, R_POOL] != NONE:
        give_back_credits(st, out, request, now_ps)
    if rq[request, R_STEP] != SETTLED:
        schedule(st, request, 2 * now_ps + 1)
        return
    slot, tile = rq[request, R_SLOT], rq[request, R_TILE]
    nbytes = owed(prog, st, slot, rq[request, R_BYTES])
    if rq[request, R_PUSHES] != NONE and not rq[request, R_WRITE]:
        nbytes *= 2
    give_back_bytes(prog, st, out, slot, nbytes, now_ps)
    st.spokes[request, LATER] = st.sizes[FREE_REQUEST]
    st.sizes[FREE_REQUEST] = request
    st.tiles[tile, TILE_LEFT] -= 1
    if st.tiles[tile, TILE_LEFT] == 0:
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
    """Book a tile's arithmetic; it ends now if it takes no time and need not wait for the one before."""
    sl = st.slots
    kernel, worked = sl[slot, KERNEL], st.tiles[tile, TILE_WORKED]
    flops, fixed_ps = worked * prog.kernels[kernel, FLOPS], worked * prog.kernels[kernel, FIXED_PS]
    end_ps = now_ps
    if flops > 0:
        server = len(st.servers) - hw.sizes[UNITS] + sl[slot, ON_UNIT]
        mflops = prog.kernels[kernel, MFLOPS]
        end_ps = book(st.servers, server, now_ps, service_ps(flops, mflops), mflops)
        end_ps += prog.kernels[kernel, WORKING_PS]
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
