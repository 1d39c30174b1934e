"""How a request travels: out over links, to its tier, back over the links, and what it books on the way."""

from __future__ import annotations

from memsim.fast_pool import pay
from memsim.fast_queue import schedule
from memsim.fast_state import (  # fmt: skip
    ACK_PS,
    BLOCK_AT,
    BUFFER_BYTES,
    CHANNELS,
    DIGEST,
    DRAWN,
    GATHERED_BYTES,
    GATHERED_PS,
    GATHERED_REST,
    HEADER,
    HOP_MBPS,
    HOP_PS,
    HOP_SERVER,
    INTERLEAVE,
    IN_CACHE,
    KERNEL,
    LAST_WORK_PS,
    LATENCY_PS,
    LINK,
    LOADED_AT,
    LOADED_END,
    MBPS,
    NONE,
    OCCUPANCY_PS,
    OUTWARD,
    PACKET,
    PIECE_PS,
    PIECE_REST,
    POINTS_AT,
    POINTS_END,
    POOL,
    QUEUE,
    RATE,
    REST,
    R_BLOCK,
    R_BYTES,
    R_ISSUE_PS,
    R_MOVED,
    R_NUMBER,
    R_OFFSET,
    R_PARTS,
    R_PASSED_PS,
    R_POOL,
    R_PUSHES,
    R_ROUTE,
    R_SLOT,
    R_STEP,
    R_TIER,
    R_TRANSFER,
    R_WRITE,
    SEED,
    SERVER_AT,
    SETTLED,
    START_PS,
    TAIL_AT,
    TAIL_END,
    TIERS,
    TURNAROUND_PS,
    UNIT,
    WAY,
    WHOLE_PS,
    WINDOW_AT_PS,
    WORK_PS,
)
from memsim.jit import inner
from memsim.rules import (  # fmt: skip
    WINDOW_PS,
    loaded_ps,
    added,
    dealt_lane,
    digest_term,
    latency_bucket,
    next_lane,
    operation_bytes,
    packets,
    piece_bytes,
    piece_service_ps,
    pieces_of,
    rounded_bytes,
    service_ps,
    stretched,
    tail_ps,
    transfer_share,
)

WAITS = 0  # instead of when its next event is due: a request stands in line


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
def book_piece(servers, i, now_ps, service, rate, write, turnaround_ps):
    """Give a channel a piece that arrives now, as `book` does; returns (when it ends, what it waited).

    In a busy period a change between reads and writes takes the turnaround, too.
    """
    begin_ps, rest = servers[i, WHOLE_PS], servers[i, REST]
    end_ps = begin_ps + (rest > 0)
    if servers[i, WAY] != write:  # a channel's rate goes with its way
        servers[i, WAY] = write
        if servers[i, RATE] != rate:
            begin_ps, rest = end_ps, 0
            servers[i, RATE] = rate
        begin_ps += turnaround_ps
    if now_ps >= end_ps:  # last, for it holds as often as not: a choice of values is quicker than a branch
        begin_ps, rest = now_ps, 0
    waited_ps = max(0, end_ps - now_ps)
    rest += service[1]
    carry = int(rest >= rate)
    rest -= carry * rate
    begin_ps += service[0] + carry
    servers[i, WHOLE_PS] = begin_ps
    servers[i, REST] = rest
    return begin_ps + (rest > 0), waited_ps


@inner
def write_piece(servers, i, now_ps, nbytes, service, rate, turnaround_ps, buffer_bytes):
    """Give a channel a written piece: it writes what it has gathered once that fills its buffer.

    Returns (when the channel ends what it has begun, what the piece waited).
    """
    rest = servers[i, GATHERED_REST] + service[1]
    carry = int(rest >= rate)
    servers[i, GATHERED_PS] += service[0] + carry
    servers[i, GATHERED_REST] = rest - carry * rate
    servers[i, GATHERED_BYTES] += nbytes
    if servers[i, GATHERED_BYTES] < buffer_bytes:
        end_ps = max(now_ps, free_ps(servers, i))
        return end_ps, end_ps - now_ps
    gathered = (servers[i, GATHERED_PS], servers[i, GATHERED_REST])
    servers[i, GATHERED_BYTES:] = 0
    return book_piece(servers, i, now_ps, gathered, rate, 1, turnaround_ps)


@inner
def book_pieces(hw, st, out, tier, write, request, now_ps):
    """Book the pieces of a request at a tier or the cache; returns when the last one ends."""
    rq = st.requests
    offset, left = rq[request, R_OFFSET], rq[request, R_BYTES]
    first, channels = hw.tiers[tier, SERVER_AT], hw.tiers[tier, CHANNELS]
    first += write * int(tier == hw.sizes[TIERS] - 1)  # the cache has a server for each way
    interleave = hw.tiers[tier, INTERLEAVE]
    mbps, turnaround_ps = hw.tiers[tier, MBPS + write], hw.tiers[tier, TURNAROUND_PS]
    buffer_bytes = write * hw.tiers[tier, BUFFER_BYTES]
    operation = operation_bytes(rq[request, R_TRANSFER], interleave)
    whole_piece = (hw.tiers[tier, PIECE_PS + write], hw.tiers[tier, PIECE_REST + write])
    lane = offset // interleave
    channel, place = dealt_lane(lane, channels)
    end_ps = now_ps
    waiting_ps = 0
    while left > 0:
        nbytes = piece_bytes(offset, left, interleave)
        moved, service = nbytes, whole_piece
        if nbytes < interleave:
            moved = rounded_bytes(offset, nbytes, hw.tiers[tier, UNIT])
            service = piece_service_ps(moved, mbps, hw.tiers[tier, OCCUPANCY_PS + write], operation)
        server = first + channel
        if buffer_bytes > 0:
            piece = write_piece(st.servers, server, now_ps, moved, service, mbps, turnaround_ps, buffer_bytes)
        else:
            piece = book_piece(st.servers, server, now_ps, service, mbps, write, turnaround_ps)
        end_ps = max(end_ps, piece[0] + (1 - write) * hw.away_ps[server])
        waiting_ps = added(waiting_ps, piece[1])
        lane += 1
        channel, place = next_lane(lane, channel, place, channels)
        offset += nbytes
        left -= nbytes
    out.waiting_ps[tier] = added(out.waiting_ps[tier], waiting_ps)
    return end_ps


@inner
def load_ps(hw, st, tier, nbytes, write, now_ps):
    """Count bytes that arrive at a tier; returns what its load makes a request take more (see rules)."""
    first, end = hw.tiers[tier, LOADED_AT], hw.tiers[tier, LOADED_END]
    if first == end:
        return 0
    loads = st.loads
    windows = (now_ps - loads[tier, WINDOW_AT_PS]) // WINDOW_PS
    if windows > 0:
        loads[tier, LAST_WORK_PS] = loads[tier, WORK_PS] if windows == 1 else 0
        loads[tier, WINDOW_AT_PS] += windows * WINDOW_PS
        loads[tier, WORK_PS] = 0
    loads[tier, WORK_PS] += service_ps(nbytes, hw.tiers[tier, MBPS + write])[0]
    return loaded_ps(hw.curves, first, end, loads[tier, LAST_WORK_PS])


@inner
def pass_cache(hw, st, out, tier, nbytes, now_ps):
    """Book the cache for a read that misses, whose bytes come through it; returns when they may be there."""
    cache = hw.sizes[TIERS] - 1
    server, mbps = hw.tiers[cache, SERVER_AT], hw.tiers[cache, MBPS]
    end_ps, waited_ps = book_piece(st.servers, server, now_ps, service_ps(nbytes, mbps), mbps, 0, 0)
    out.waiting_ps[cache] = added(out.waiting_ps[cache], waited_ps)
    return end_ps + hw.tiers[tier, LATENCY_PS]


@inner
def push_out(hw, st, out, request, now_ps):
    """Write the dirty lines that a request pushes out; returns when their tier has accepted them."""
    tier = st.requests[request, R_PUSHES]
    offset, nbytes = st.requests[request, R_OFFSET], st.requests[request, R_BYTES]
    load_ps(hw, st, tier, rounded_bytes(offset, nbytes, hw.tiers[tier, UNIT]), 1, now_ps)
    return book_pieces(hw, st, out, tier, 1, request, now_ps) + hw.tiers[tier, LATENCY_PS + 1]


@inner
def cross(hw, st, out, request, hop, outward, nbytes, now_ps):
    """Book a direction of a link for a request, outward (1) or inward (0); returns when it is across."""
    link = hw.hops[hop, LINK]
    first, end = hw.hops[hop, POINTS_AT], hw.hops[hop, POINTS_END]
    if first < end:
        nbytes = stretched(nbytes, transfer_share(hw.curves, first, end, st.requests[request, R_TRANSFER]))
    server, mbps = hw.hops[hop, HOP_SERVER + outward], hw.hops[hop, HOP_MBPS + outward]
    out.wire_bytes[link, hw.hops[hop, OUTWARD] ^ 1 ^ outward] += nbytes
    place = hw.sizes[TIERS] + link
    out.waiting_ps[place] = added(out.waiting_ps[place], max(0, free_ps(st.servers, server) - now_ps))
    return book(st.servers, server, now_ps, service_ps(nbytes, mbps), mbps) + hw.hops[hop, HOP_PS]


@inner
def travel(hw, prog, st, out, request, now_ps):
    """Take a request one step on, in phase 5: out over a link, to its tier, or back over a link."""
    rq = st.requests
    route = rq[request, R_ROUTE]
    first = hw.routes[route]
    hops = hw.routes[route + 1] - first
    step = rq[request, R_STEP]
    if step < hops:
        due = go_out(hw, st, out, request, first + step, now_ps)
    elif step == hops:
        due = visit(hw, prog, st, out, request, hops, now_ps)
    else:
        due = come_back(hw, st, out, request, first + 2 * hops - step, now_ps)
    if due == WAITS:
        return
    rq[request, R_STEP] = step + 1
    if step == 2 * hops:
        settle(prog, st, out, request, due >> 1)
    schedule(st, request, due)


@inner
def go_out(hw, st, out, request, hop, now_ps):
    """Take tags or credits and book the way out; returns when the request is due at the far end."""
    rq = st.requests
    write = rq[request, R_WRITE]
    parts = packets(rq[request, R_MOVED], hw.hops[hop, PACKET])
    rq[request, R_PARTS] = parts
    pool = hw.hops[hop, POOL]
    if pool != NONE and not pay(st, request, pool + write, now_ps):
        return WAITS
    nbytes = parts * hw.hops[hop, HEADER] + write * rq[request, R_MOVED]
    there_ps = now_ps + hw.hops[hop, HOP_PS]
    if nbytes > 0:
        there_ps = cross(hw, st, out, request, hop, 1, nbytes, now_ps)
    return 2 * there_ps + 1


@inner
def visit(hw, prog, st, out, request, hops, now_ps):
    """Take places in a tier's queue if it has one, and book the tier; returns when the request goes on."""
    rq = st.requests
    tier = rq[request, R_TIER]
    queue = hw.tiers[tier, QUEUE]
    if queue != NONE:
        interleave = hw.tiers[tier, INTERLEAVE]
        rq[request, R_PARTS] = pieces_of(rq[request, R_OFFSET], rq[request, R_BYTES], interleave)
        if not pay(st, request, queue, now_ps):
            return WAITS
    rq[request, R_POOL] = queue
    write = rq[request, R_WRITE]
    served_ps = book_pieces(hw, st, out, tier, write, request, now_ps) + hw.tiers[tier, LATENCY_PS + write]
    served_ps += load_ps(hw, st, tier, rq[request, R_MOVED], write, now_ps)
    first, end = hw.tiers[tier, TAIL_AT], hw.tiers[tier, TAIL_END]
    if first < end:
        kernel = st.slots[rq[request, R_SLOT], KERNEL]
        block = rq[request, R_BLOCK] - prog.kernels[kernel, BLOCK_AT]
        drawn, number = prog.kernels[kernel, DRAWN], rq[request, R_NUMBER]
        served_ps += tail_ps(hw.curves, first, end, hw.sizes[SEED], drawn, block, number)
    if hw.paths[rq[request, R_ROUTE], IN_CACHE]:
        served_ps = max(served_ps, pass_cache(hw, st, out, tier, rq[request, R_MOVED], now_ps))
    if rq[request, R_PUSHES] != NONE:
        served_ps = max(served_ps, push_out(hw, st, out, request, now_ps))
    return 2 * max(served_ps, rq[request, R_PASSED_PS]) + (hops > 0 and queue == NONE)


@inner
def come_back(hw, st, out, request, hop, now_ps):
    """Book the way back of a read; returns when it, or an acknowledgement, is due at the near end."""
    rq = st.requests
    write = rq[request, R_WRITE]
    parts = packets(rq[request, R_MOVED], hw.hops[hop, PACKET])
    rq[request, R_PARTS] = parts
    pool = hw.hops[hop, POOL]
    rq[request, R_POOL] = pool + write if pool != NONE else NONE
    if write:
        return 2 * (now_ps + hw.hops[hop, ACK_PS])
    nbytes = parts * hw.hops[hop, HEADER] + rq[request, R_MOVED]
    return 2 * cross(hw, st, out, request, hop, 0, nbytes, now_ps)


@inner
def settle(prog, st, out, request, done_ps):
    """It is known when a request is complete: count it."""
    rq = st.requests
    rq[request, R_STEP] = SETTLED
    kernel = st.slots[rq[request, R_SLOT], KERNEL]
    out.latency[rq[request, R_TIER], latency_bucket(done_ps - rq[request, R_ISSUE_PS])] += 1
    block = rq[request, R_BLOCK] - prog.kernels[kernel, BLOCK_AT]
    term = digest_term(block, rq[request, R_NUMBER], done_ps - out.kernels[kernel, START_PS])
    out.kernels[kernel, DIGEST] = (out.kernels[kernel, DIGEST] + term) % 2_147_483_647
