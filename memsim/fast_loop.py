"""The fast engine's event loop: one function a step of docs/model.md, arrays in, counts out.

`run` replays one segment from time 0. Nothing here knows names; it returns a status, and the caller
words the error. All events of an instant are taken phase by phase, each phase in (kernel, block,
number) order.
"""

from __future__ import annotations

from memsim.fast_state import (  # fmt: skip
    BLOCK, BLOCK_AT, BLOCK_END, CHANNELS, COMPLETE, DIGEST, DONE_PS, DRAIN_PS, END_PS, FIRST_KERNEL, FLOPS, FREE,
    FREE_REQUESTS, FREE_SLOT, FREE_SLOTS, FREE_TILES, HEAD, HEAPS, IN_FLIGHT, IN_HEAPS, IN_ORDER, INTERLEAVE, ISSUE,
    ISSUED, ITEM, KERNEL, LATENCY_PS, LAUNCH_PS, LEFT, LINK_MBPS, LINK_PS, LINK_TAG_BYTES, LINK_TAGS, LINKS, MBPS,
    MFLOPS, MOST_TILES, MOVED, NEED, NEXT, NEXT_BLOCK, NEXT_KERNEL, NONE, ON_UNIT, ON_WHEEL, OP, OP_ROW, OUTSTANDING,
    PIECE_PS, PIECE_REST, PLACE, QUANTUM_BYTES, R_BLOCK, R_BYTES, R_FREE, R_HOP, R_ISSUE_PS, R_MOVED, R_NUMBER, R_OFFSET, R_SLOT, R_TIER,
    R_TILE, R_WRITE, RATE, READY_PS, REQUEST, REQUESTS, REST, ROUTE_AT, ROUTE_PS, ROW, ROW_END, RUNNING,
    SECOND, SERVER_AT, SHARES, SINCE_PS, SPAN_LEFT, SPAN_OFFSET, SPAN_TIER, STAGE, START, START_PS,
    STARTUP_PS, TAIL, TIERS, TIME_PS, TILE, TILE_FLOPS, TILE_FREE, TILE_LEFT, TILE_NUMBER, TILES, TO_WORK, UNIT,
    UNIT_BYTES, UNITS, WAIT_AT, WAITS, WAITS_FOR_POOL, WAITS_FOR_TILE, WHOLE_PS, WORKED,
    WORKED_PS, is_earlier, pop, push, wheel_add, wheel_first, wheel_take,
)
from memsim.jit import inner, jit
from memsim.rules import (  # fmt: skip
    IS_DEPENDENT, IS_HIT, IS_WORKED, IS_WRITE, REGION, ROWS, TILE_ROWS, channel_of, digest_term,
    latency_bucket, next_span, piece_bytes, request_bytes, rounded_bytes, service_ps,
)

DONE, MORE_REQUESTS, STUCK = 0, 1, 2
_NEVER = 1 << 62


@inner
def post(st, heap, time_ps, major, minor, item):
    """Schedule an event."""
    push(st.heap[heap], st.heap_size[heap], time_ps, major, minor, item)
    st.heap_size[heap] += 1
    st.sizes[IN_HEAPS] += 1


@inner
def post_request(st, heap, time_ps, request):
    """Schedule an event of a request."""
    post(st, heap, time_ps, st.requests[request, R_BLOCK], st.requests[request, R_NUMBER], request)


@inner
def take(st, heap):
    """Take the first event of a heap; returns its item."""
    item = pop(st.heap[heap], st.heap_size[heap])
    st.heap_size[heap] -= 1
    st.sizes[IN_HEAPS] -= 1
    return item


@inner
def is_due(st, heap, now_ps):
    """Whether the first event of a heap is due."""
    return st.heap_size[heap] > 0 and st.heap[heap, 0, TIME_PS] == now_ps


@inner
def free_ps(servers, i):
    """When a server has ended all it has been given."""
    return servers[i, WHOLE_PS] + (servers[i, REST] > 0)


@inner
def book(servers, i, now_ps, service, rate):
    """Give a server work that arrives now, `service` of (ps, rest) at this rate; returns when it ends."""
    if now_ps >= free_ps(servers, i):
        servers[i, WHOLE_PS] = now_ps
        servers[i, REST] = 0
    elif servers[i, RATE] != rate:
        servers[i, WHOLE_PS] = free_ps(servers, i)
        servers[i, REST] = 0
    servers[i, RATE] = rate
    rest = servers[i, REST] + service[1]
    carry = int(rest >= rate)
    servers[i, REST] = rest - carry * rate
    servers[i, WHOLE_PS] += service[0] + carry
    return free_ps(servers, i)


@inner
def book_waiting(servers, i, now_ps, service, rate, waiting_ps, place):
    """Book a server and count the wait at its place."""
    waiting_ps[place] += max(0, free_ps(servers, i) - now_ps)
    return book(servers, i, now_ps, service, rate)


@inner
def serve(hw, st, out, request, now_ps):
    """Book a request's pieces at its tier; returns when the last byte has left it.

    Pieces follow each other over the channels of a stripe, so rules.channel_of is asked once a stripe.
    """
    tier = st.requests[request, R_TIER]
    offset = st.requests[request, R_OFFSET]
    left = st.requests[request, R_BYTES]
    first, channels = hw.tiers[tier, SERVER_AT], hw.tiers[tier, CHANNELS]
    interleave, unit, mbps = hw.tiers[tier, INTERLEAVE], hw.tiers[tier, UNIT], hw.tiers[tier, MBPS]
    whole_piece = (hw.tiers[tier, PIECE_PS], hw.tiers[tier, PIECE_REST])
    end_ps = now_ps
    channel = 0
    in_stripe = 0  # pieces left before the next stripe
    while left > 0:
        if in_stripe == 0:
            channel = channel_of(offset, interleave, channels)
            in_stripe = channels - offset // interleave % channels
        nbytes = piece_bytes(offset, left, interleave)
        service = whole_piece
        if nbytes < interleave:
            service = service_ps(rounded_bytes(offset, nbytes, unit), mbps)
        ends_ps = book_waiting(st.servers, first + channel, now_ps, service, mbps, out.waiting_ps, tier)
        end_ps = max(end_ps, ends_ps)
        channel = channel + 1 if channel + 1 < channels else 0
        in_stripe -= 1
        offset += nbytes
        left -= nbytes
    return end_ps + hw.tiers[tier, LATENCY_PS]


@inner
def serve_hit(hw, st, out, request, now_ps):
    """Book a cache hit; returns when it is complete."""
    tier = st.requests[request, R_TIER]
    nbytes = st.requests[request, R_BYTES]
    server, mbps = hw.tiers[tier, SERVER_AT], hw.tiers[tier, MBPS]
    end_ps = book_waiting(st.servers, server, now_ps, service_ps(nbytes, mbps), mbps, out.waiting_ps, tier)
    return end_ps + hw.tiers[tier, LATENCY_PS]


@inner
def cross(hw, st, out, request, link, now_ps):
    """Book one direction of a link for a request; returns when it is at the link's other end."""
    tiers = hw.sizes[TIERS]
    server = hw.tiers[tiers, SERVER_AT] + 2 * link + st.requests[request, R_WRITE]
    mbps = hw.links[link, LINK_MBPS]
    service = service_ps(st.requests[request, R_MOVED], mbps)
    end_ps = book_waiting(st.servers, server, now_ps, service, mbps, out.waiting_ps, tiers + link)
    return end_ps + hw.links[link, LINK_PS]


@inner
def move(hw, prog, st, out, request, now_ps):
    """Take a request one hop on: to its tier, over a link, or to its completion.

    hop counts what is behind it. A read goes to the tier (hop 0), then inward over the links, outermost
    first; a write goes outward over the links, then to the tier.
    """
    tier = st.requests[request, R_TIER]
    first = hw.tiers[tier, ROUTE_AT]
    links = hw.tiers[tier + 1, ROUTE_AT] - first
    hop = st.requests[request, R_HOP]
    st.requests[request, R_HOP] = hop + 1
    write = st.requests[request, R_WRITE]
    if hop == (links if write else 0):
        if tier == hw.sizes[TIERS] - 1:
            there_ps = serve_hit(hw, st, out, request, now_ps)
        else:
            there_ps = serve(hw, st, out, request, now_ps)
        if write:
            there_ps += hw.tiers[tier, ROUTE_PS]  # the acknowledgement
    else:
        link = hw.route[first + (hop if write else links - hop)]
        there_ps = cross(hw, st, out, request, link, now_ps)
    if hop == links:
        settle(prog, st, out, request, there_ps)
    else:
        post_request(st, ISSUE, there_ps, request)


@inner
def settle(prog, st, out, request, done_ps):
    """It is known when a request is complete: count it, and schedule its completion."""
    rq = st.requests
    kernel = st.slots[rq[request, R_SLOT], KERNEL]
    out.latency[rq[request, R_TIER], latency_bucket(done_ps - rq[request, R_ISSUE_PS])] += 1
    block = rq[request, R_BLOCK] - prog.kernels[kernel, BLOCK_AT]
    term = digest_term(block, rq[request, R_NUMBER], done_ps - out.kernels[kernel, START_PS])
    out.kernels[kernel, DIGEST] = (out.kernels[kernel, DIGEST] + term) % 2_147_483_647
    st.spokes[request, DONE_PS] = done_ps
    if not wheel_add(st, request):
        post_request(st, COMPLETE, done_ps, request)


@inner
def moved_bytes(hw, tier, offset, nbytes):
    """Bytes that a tier moves for a request; interleave borders are multiples of the tier's unit."""
    if tier == hw.sizes[TIERS] - 1:
        return nbytes
    return rounded_bytes(offset, nbytes, hw.tiers[tier, UNIT])


@inner
def depart(hw, prog, st, out, slot, nbytes, now_ps):
    """Send a slot's next request, all its credits in hand, on its way; count it."""
    sl = st.slots
    rq = st.requests
    st.sizes[FREE_REQUESTS] -= 1
    request = rq[st.sizes[FREE_REQUESTS], R_FREE]
    tier = sl[slot, SPAN_TIER]
    op = sl[slot, OP]
    write = prog.ops.table[op, IS_WRITE]
    rq[request, R_SLOT] = slot
    rq[request, R_BLOCK] = sl[slot, BLOCK]
    rq[request, R_TILE] = sl[slot, TILE]
    rq[request, R_TIER] = tier
    rq[request, R_OFFSET] = sl[slot, SPAN_OFFSET]
    rq[request, R_BYTES] = nbytes
    rq[request, R_WRITE] = write
    rq[request, R_NUMBER] = sl[slot, REQUEST]
    rq[request, R_HOP] = 0
    rq[request, R_ISSUE_PS] = now_ps
    moved = moved_bytes(hw, tier, sl[slot, SPAN_OFFSET], nbytes)
    rq[request, R_MOVED] = moved
    st.tiles[sl[slot, TILE], TILE_LEFT] += 1
    count_request(hw, out, sl[slot, KERNEL], prog.ops.table[op, REGION], tier, write, nbytes, moved)
    if write or hw.tiers[tier + 1, ROUTE_AT] == hw.tiers[tier, ROUTE_AT]:
        move(hw, prog, st, out, request, now_ps)
    else:  # the request of a read: no bytes of its own
        post_request(st, ISSUE, now_ps + hw.tiers[tier, ROUTE_PS], request)
    sl[slot, REQUEST] += 1
    sl[slot, STAGE] = 0
    sl[slot, SPAN_OFFSET] += nbytes
    sl[slot, SPAN_LEFT] -= nbytes


@inner
def count_request(hw, out, kernel, region, tier, write, nbytes, moved):
    """Enter a request in the ledger: issued and moved, by region, tier and link."""
    out.kernels[kernel, REQUESTS] += 1
    out.ledger[region, tier, ISSUED + write] += nbytes
    out.ledger[region, tier, MOVED + write] += moved
    out.kernel_moved[kernel, tier, write] += moved
    for i in range(hw.tiers[tier, ROUTE_AT], hw.tiers[tier + 1, ROUTE_AT]):
        out.kernel_moved[kernel, hw.sizes[TIERS] + hw.route[i], write] += moved


@inner
def pool_of(hw, st, slot, stage):
    """Pool that a slot's next request needs at a stage: its unit's, then those of its route's links."""
    if stage == 0:
        return st.slots[slot, ON_UNIT]
    return hw.sizes[UNITS] + hw.route[hw.tiers[st.slots[slot, SPAN_TIER], ROUTE_AT] + stage - 1]


@inner
def demand(hw, tier, moved, nbytes, pool):
    """Credits that a request takes from a pool: bytes of a unit, tags of a link."""
    if pool < hw.sizes[UNITS]:
        return min(nbytes, hw.sizes[UNIT_BYTES])
    link = pool - hw.sizes[UNITS]
    tags = (moved + hw.links[link, LINK_TAG_BYTES] - 1) // hw.links[link, LINK_TAG_BYTES]
    return min(tags, hw.links[link, LINK_TAGS])


@inner
def acquire(hw, st, slot, nbytes, now_ps):
    """Take what the slot's next request needs; False if it has to queue for some of it."""
    sl = st.slots
    tier = sl[slot, SPAN_TIER]
    stages = 1 + hw.tiers[tier + 1, ROUTE_AT] - hw.tiers[tier, ROUTE_AT]
    moved = moved_bytes(hw, tier, sl[slot, SPAN_OFFSET], nbytes) if stages > 1 else nbytes
    while sl[slot, STAGE] < stages:
        pool = pool_of(hw, st, slot, sl[slot, STAGE])
        need = demand(hw, tier, moved, nbytes, pool)
        if st.pools[pool, HEAD] != NONE or st.pools[pool, FREE] < need:
            enqueue(st, pool, slot, need, now_ps)
            return False
        st.pools[pool, FREE] -= need
        sl[slot, STAGE] += 1
    return True


@inner
def enqueue(st, pool, slot, need, now_ps):
    """Put a slot at the end of a pool's queue."""
    sl = st.slots
    sl[slot, WAITS] = WAITS_FOR_POOL
    sl[slot, NEED] = need
    sl[slot, SINCE_PS] = now_ps
    sl[slot, NEXT] = NONE
    if st.pools[pool, HEAD] == NONE:
        st.pools[pool, HEAD] = slot
    else:
        sl[st.pools[pool, TAIL], NEXT] = slot
    st.pools[pool, TAIL] = slot


@inner
def release(hw, st, out, pool, credits, now_ps):
    """Return credits; the oldest waiters are granted theirs while they suffice."""
    sl = st.slots
    st.pools[pool, FREE] += credits
    slot = st.pools[pool, HEAD]
    while slot != NONE and sl[slot, NEED] <= st.pools[pool, FREE]:
        st.pools[pool, FREE] -= sl[slot, NEED]
        st.pools[pool, HEAD] = sl[slot, NEXT]
        sl[slot, STAGE] += 1
        sl[slot, WAITS] = RUNNING
        waited_ps = now_ps - sl[slot, SINCE_PS]
        if pool < hw.sizes[UNITS]:
            out.waiting_ps[-1] += waited_ps
        else:
            out.waiting_ps[hw.sizes[TIERS] + pool - hw.sizes[UNITS] + hw.sizes[LINKS]] += waited_ps
        post(st, ISSUE, now_ps, sl[slot, BLOCK], sl[slot, REQUEST], -1 - slot)
        slot = st.pools[pool, HEAD]


@inner
def may_open_tile(prog, st, slot):
    """Whether a slot may ask for its next tile now."""
    sl = st.slots
    op = sl[slot, OP]
    if prog.ops.table[op, IS_DEPENDENT] and sl[slot, OP_ROW] == 0 and sl[slot, OUTSTANDING] > 0:
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
    else:
        sl[slot, FREE_TILES] -= 1
        tile = slot * most + st.tiles[slot * most + sl[slot, FREE_TILES], TILE_FREE]
    st.tiles[tile, TILE_LEFT] = 1
    st.tiles[tile, TILE_NUMBER] = number
    st.tiles[tile, TILE_FLOPS] = prog.kernels[kernel, FLOPS] if prog.ops.table[op, IS_WORKED] else 0
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
    sl[slot, SPAN_TIER] = hw.sizes[TIERS] - 1 if prog.ops.table[op, IS_HIT] else tier
    sl[slot, SPAN_OFFSET] = offset
    sl[slot, SPAN_LEFT] = nbytes
    sl[slot, ROW] = row
    sl[slot, SECOND] = second


@inner
def issue(hw, prog, memory, st, out, slot, now_ps):
    """Let a block ask for all that it may ask for now; False if the request table is full."""
    sl = st.slots
    quantum_bytes = hw.sizes[QUANTUM_BYTES]
    while True:
        if sl[slot, TILE] == NONE:
            if has_asked_all(prog, st, slot):
                return True
            if not may_open_tile(prog, st, slot):
                sl[slot, WAITS] = WAITS_FOR_TILE
                return True
            open_tile(prog, st, slot)
        elif sl[slot, SPAN_LEFT] > 0:
            if st.sizes[FREE_REQUESTS] == 0:
                return False
            nbytes = request_bytes(sl[slot, SPAN_OFFSET], sl[slot, SPAN_LEFT], quantum_bytes)
            if not acquire(hw, st, slot, nbytes, now_ps):
                return True
            depart(hw, prog, st, out, slot, nbytes, now_ps)
        elif sl[slot, ROW] < sl[slot, ROW_END]:
            find_span(hw, prog, memory, st, slot)
        else:
            close_tile(prog, st, slot)


@inner
def complete(hw, prog, st, out, request, now_ps):
    """A request is complete: return its credits, and see whether its tile has arrived."""
    rq = st.requests
    slot = rq[request, R_SLOT]
    tier = rq[request, R_TIER]
    release(hw, st, out, st.slots[slot, ON_UNIT], min(rq[request, R_BYTES], hw.sizes[UNIT_BYTES]), now_ps)
    for i in range(hw.tiers[tier, ROUTE_AT], hw.tiers[tier + 1, ROUTE_AT]):
        pool = hw.sizes[UNITS] + hw.route[i]
        release(hw, st, out, pool, demand(hw, tier, rq[request, R_MOVED], 0, pool), now_ps)
    tile = rq[request, R_TILE]
    rq[st.sizes[FREE_REQUESTS], R_FREE] = request
    st.sizes[FREE_REQUESTS] += 1
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
    """Book a tile's arithmetic; it ends now if it has none and need not wait for the one before."""
    sl = st.slots
    kernel = sl[slot, KERNEL]
    end_ps = now_ps
    if st.tiles[tile, TILE_FLOPS] > 0:
        server = len(st.servers) - hw.sizes[UNITS] + sl[slot, ON_UNIT]
        mflops = prog.kernels[kernel, MFLOPS]
        end_ps = book(st.servers, server, now_ps, service_ps(st.tiles[tile, TILE_FLOPS], mflops), mflops)
    if prog.kernels[kernel, IN_ORDER]:
        end_ps = max(end_ps, sl[slot, WORKED_PS])
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
    if sl[slot, WAITS] == WAITS_FOR_TILE:
        if may_open_tile(prog, st, slot):
            sl[slot, WAITS] = RUNNING
            post(st, ISSUE, now_ps, sl[slot, BLOCK], sl[slot, REQUEST], -1 - slot)
    elif sl[slot, OUTSTANDING] == 0 and has_asked_all(prog, st, slot):
        post(st, BLOCK_END, now_ps + prog.kernels[kernel, DRAIN_PS], sl[slot, BLOCK], 0, slot)


@inner
def has_asked_all(prog, st, slot):
    """Whether a slot's block has issued all its requests."""
    return st.slots[slot, TILE] == NONE and st.slots[slot, OP] == prog.op_at[st.slots[slot, BLOCK] + 1]


@inner
def end_block(hw, prog, st, out, slot, now_ps):
    """A block ends: its place is free, and with the kernel's last block the kernel has ended."""
    kernel = st.slots[slot, KERNEL]
    st.room[st.slots[slot, ON_UNIT]] += prog.kernels[kernel, SHARES]
    st.slots[st.sizes[FREE_SLOTS], FREE_SLOT] = slot
    st.sizes[FREE_SLOTS] += 1
    st.sizes[PLACE] = 1
    st.kernels[kernel, LEFT] -= 1
    if st.kernels[kernel, LEFT] == 0:
        out.kernels[kernel, END_PS] = now_ps
        make_ready(prog, st, out, now_ps)


@inner
def make_ready(prog, st, out, now_ps):
    """See whether the next kernel of the file is ready; if so, launch it."""
    kernel = st.sizes[NEXT_KERNEL]
    if kernel == len(st.kernels) or out.kernels[kernel, READY_PS] != NONE:
        return
    if kernel > 0 and out.kernels[kernel - 1, START_PS] == NONE:
        return
    for i in range(prog.kernels[kernel, WAIT_AT], prog.kernels[kernel + 1, WAIT_AT]):
        if st.kernels[prog.wait_for[i], LEFT] > 0:
            return
    out.kernels[kernel, READY_PS] = now_ps
    post(st, START, now_ps + prog.kernels[kernel, LAUNCH_PS], kernel, 0, kernel)


@inner
def start_kernel(prog, st, out, kernel, now_ps):
    """A kernel starts: its blocks may be placed, and the next kernel of the file may become ready."""
    out.kernels[kernel, START_PS] = now_ps
    st.sizes[NEXT_KERNEL] = kernel + 1
    st.sizes[PLACE] = 1
    make_ready(prog, st, out, now_ps)


@inner
def roomiest(room):
    """Unit with the most room, the first of equals."""
    best = 0
    for unit in range(1, len(room)):
        if room[unit] > room[best]:
            best = unit
    return best


@inner
def place_blocks(prog, st, now_ps):
    """Place waiting blocks of started kernels on units while there is room."""
    st.sizes[PLACE] = 0
    while st.sizes[FIRST_KERNEL] < st.sizes[NEXT_KERNEL] and finished_placing(prog, st, st.sizes[FIRST_KERNEL]):
        st.sizes[FIRST_KERNEL] += 1
    for kernel in range(st.sizes[FIRST_KERNEL], st.sizes[NEXT_KERNEL]):
        while not finished_placing(prog, st, kernel):
            unit = roomiest(st.room)
            if st.room[unit] < prog.kernels[kernel, SHARES]:
                break
            st.room[unit] -= prog.kernels[kernel, SHARES]
            start_block(prog, st, kernel, unit, now_ps)
            st.kernels[kernel, NEXT_BLOCK] += 1


@inner
def finished_placing(prog, st, kernel):
    """Whether all blocks of a kernel have been placed."""
    return st.kernels[kernel, NEXT_BLOCK] == prog.kernels[kernel + 1, BLOCK_AT]


@inner
def start_block(prog, st, kernel, unit, now_ps):
    """Put a kernel's next block on a unit."""
    sl = st.slots
    st.sizes[FREE_SLOTS] -= 1
    slot = sl[st.sizes[FREE_SLOTS], FREE_SLOT]
    block = st.kernels[kernel, NEXT_BLOCK]
    sl[slot, :FREE_SLOT] = 0
    sl[slot, KERNEL] = kernel
    sl[slot, ON_UNIT] = unit
    sl[slot, BLOCK] = block
    sl[slot, OP] = prog.op_at[block]
    sl[slot, TILE] = NONE
    reset_tiles(st, slot)
    begin_ps = now_ps + prog.kernels[kernel, STARTUP_PS]
    if prog.op_at[block] == prog.op_at[block + 1]:
        end_ps = max(now_ps + 1, begin_ps + prog.kernels[kernel, DRAIN_PS])
        post(st, BLOCK_END, end_ps, block, 0, slot)
    else:
        post(st, ISSUE, begin_ps, block, 0, -1 - slot)


@inner
def reset_tiles(st, slot):
    """All places for outstanding tiles of a slot are free."""
    most = st.sizes[MOST_TILES]
    for i in range(most):
        st.tiles[slot * most + i, TILE_FREE] = most - 1 - i
    st.slots[slot, FREE_TILES] = most


@inner
def next_event_ps(st):
    """Time of the next event, _NEVER if there is none."""
    now_ps = _NEVER
    if st.sizes[ON_WHEEL] > 0:
        now_ps = st.spokes[wheel_first(st), DONE_PS]
    if st.sizes[IN_HEAPS] > 0:
        for heap in range(HEAPS):
            if st.heap_size[heap] > 0:
                now_ps = min(now_ps, st.heap[heap, 0, TIME_PS])
    return now_ps


@inner
def next_complete(st, now_ps):
    """Take the next request that is complete now, off the wheel or the heap; NONE if there is none."""
    request = NONE
    if st.sizes[ON_WHEEL] > 0:
        request = wheel_first(st)
        if st.spokes[request, DONE_PS] != now_ps:
            request = NONE
    if is_due(st, COMPLETE, now_ps):
        other = st.heap[COMPLETE, 0, ITEM]
        if request == NONE or is_earlier(st, other, request):
            return take(st, COMPLETE)
    if request != NONE:
        wheel_take(st, request)
    return request


@jit
def run(hw, prog, memory, st, out):
    """Replay a segment from time 0 on a fresh state and fill `out`.

    Returns DONE, MORE_REQUESTS (the table is too small: begin again with a larger one and fresh
    counts) or STUCK (events ran out before the kernels did).
    """
    make_ready(prog, st, out, 0)
    while True:
        now_ps = next_event_ps(st)
        if now_ps == _NEVER:
            break
        request = next_complete(st, now_ps)
        while request != NONE:
            complete(hw, prog, st, out, request, now_ps)
            request = next_complete(st, now_ps)
        if st.sizes[IN_HEAPS] == 0:
            continue
        while is_due(st, WORKED, now_ps):
            tile = take(st, WORKED)
            end_tile(prog, st, tile // st.sizes[MOST_TILES], tile, now_ps)
        while is_due(st, BLOCK_END, now_ps):
            end_block(hw, prog, st, out, take(st, BLOCK_END), now_ps)
        while is_due(st, START, now_ps):
            start_kernel(prog, st, out, take(st, START), now_ps)
        if st.sizes[PLACE]:
            place_blocks(prog, st, now_ps)
        while is_due(st, ISSUE, now_ps):
            item = take(st, ISSUE)
            if item >= 0:
                move(hw, prog, st, out, item, now_ps)
            elif not issue(hw, prog, memory, st, out, -1 - item, now_ps):
                return MORE_REQUESTS
    for kernel in range(len(st.kernels)):
        if out.kernels[kernel, END_PS] == NONE:
            return STUCK
    return DONE
