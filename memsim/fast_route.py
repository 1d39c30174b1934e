"""How a request travels: out over links, to its tier, back over the links, and what it books on the way."""

from __future__ import annotations

from memsim.fast_pool import pay
from memsim.fast_queue import schedule
from memsim.fast_serve import book, book_pieces, free_ps, load_ps, pass_cache, push_out
from memsim.fast_state import (  # fmt: skip
    ACK_PS,
    BLOCK_AT,
    DIGEST,
    DRAWN,
    HEADER,
    HOP_MBPS,
    HOP_PS,
    HOP_SERVER,
    INTERLEAVE,
    IN_CACHE,
    KERNEL,
    LATENCY_PS,
    LINK,
    NONE,
    OUTWARD,
    PACKET,
    POINTS_AT,
    POINTS_END,
    POOL,
    QUEUE,
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
    SETTLED,
    SPREAD_PS,
    START_PS,
    TAIL_AT,
    TAIL_END,
    TIERS,
)
from memsim.jit import at, inner
from memsim.lanes import slice_ps
from memsim.rules import (  # fmt: skip
    added,
    digest_term,
    latency_bucket,
    packets,
    pieces_of,
    service_ps,
    stretched,
    tail_ps,
    transfer_share,
)

WAITS = 0  # instead of when its next event is due: a request stands in line


@inner
def cross(hw, st, out, request, hop, outward, nbytes, now_ps):
    """Book a direction of a link for a request, outward (1) or inward (0); returns when it is across."""
    way = hw.hops[at(hop)]
    link = way[LINK]
    first, end = way[POINTS_AT], way[POINTS_END]
    if first < end:
        nbytes = stretched(nbytes, transfer_share(hw.curves, first, end, st.requests[request, R_TRANSFER]))
    server, mbps = way[HOP_SERVER + outward], way[HOP_MBPS + outward]
    out.wire_bytes[link, way[OUTWARD] ^ 1 ^ outward] += nbytes
    place = hw.sizes[TIERS] + link
    out.waiting_ps[place] = added(out.waiting_ps[place], max(0, free_ps(st.servers, server) - now_ps))
    return book(st.servers, server, now_ps, service_ps(nbytes, mbps), mbps) + way[HOP_PS]


@inner
def travel(hw, prog, st, out, request, now_ps):
    """Take a request one step on, in phase 5: out over a link, to its tier, or back over a link."""
    asked = st.requests[at(request)]
    route = asked[R_ROUTE]
    first = hw.routes[route]
    hops = hw.routes[route + 1] - first
    step = asked[R_STEP]
    if step < hops:
        due = go_out(hw, st, out, request, first + step, now_ps)
    elif step == hops:
        due = visit(hw, prog, st, out, request, hops, now_ps)
    else:
        due = come_back(hw, st, out, request, first + 2 * hops - step, now_ps)
    if due == WAITS:
        return
    asked[R_STEP] = step + 1
    if step == 2 * hops:
        settle(prog, st, out, request, due >> 1)
    schedule(st, request, due)


@inner
def go_out(hw, st, out, request, hop, now_ps):
    """Take tags or credits and book the way out; returns when the request is due at the far end."""
    asked, way = st.requests[at(request)], hw.hops[at(hop)]
    write = asked[R_WRITE]
    parts = packets(asked[R_MOVED], way[PACKET])
    asked[R_PARTS] = parts
    pool = way[POOL]
    if pool != NONE and not pay(st, request, pool + write, now_ps):
        return WAITS
    nbytes = parts * way[HEADER] + write * asked[R_MOVED]
    there_ps = now_ps + way[HOP_PS]
    if nbytes > 0:
        there_ps = cross(hw, st, out, request, hop, 1, nbytes, now_ps)
    return 2 * there_ps + 1


@inner
def visit(hw, prog, st, out, request, hops, now_ps):
    """Take places in a tier's queue if it has one, and book the tier; returns when the request goes on."""
    asked = st.requests[at(request)]
    tier = asked[R_TIER]
    here = hw.tiers[at(tier)]
    queue = here[QUEUE]
    if queue != NONE:
        interleave = here[INTERLEAVE]
        asked[R_PARTS] = pieces_of(asked[R_OFFSET], asked[R_BYTES], interleave)
        if not pay(st, request, queue, now_ps):
            return WAITS
    asked[R_POOL] = queue
    write = asked[R_WRITE]
    served_ps = book_pieces(hw, st, out, tier, write, request, now_ps) + here[LATENCY_PS + write]
    served_ps += load_ps(hw, st, tier, asked[R_MOVED], write, now_ps)
    if here[SPREAD_PS] and not write:
        served_ps += slice_ps(asked[R_OFFSET], here[SPREAD_PS])
    first, end = here[TAIL_AT], here[TAIL_END]
    if first < end:
        kernel = st.slots[asked[R_SLOT], KERNEL]
        block = asked[R_BLOCK] - prog.kernels[kernel, BLOCK_AT]
        drawn, number = prog.kernels[kernel, DRAWN], asked[R_NUMBER]
        served_ps += tail_ps(hw.curves, first, end, hw.sizes[SEED], drawn, block, number)
    if hw.paths[asked[R_ROUTE], IN_CACHE]:
        served_ps = max(served_ps, pass_cache(hw, st, out, tier, asked[R_MOVED], now_ps))
    if asked[R_PUSHES] != NONE:
        served_ps = max(served_ps, push_out(hw, st, out, request, now_ps))
    return 2 * max(served_ps, asked[R_PASSED_PS]) + (hops > 0 and queue == NONE)


@inner
def come_back(hw, st, out, request, hop, now_ps):
    """Book the way back of a read; returns when it, or an acknowledgement, is due at the near end."""
    asked, way = st.requests[at(request)], hw.hops[at(hop)]
    write = asked[R_WRITE]
    parts = packets(asked[R_MOVED], way[PACKET])
    asked[R_PARTS] = parts
    pool = way[POOL]
    asked[R_POOL] = pool + write if pool != NONE else NONE
    if write:
        return 2 * (now_ps + way[ACK_PS])
    nbytes = parts * way[HEADER] + asked[R_MOVED]
    return 2 * cross(hw, st, out, request, hop, 0, nbytes, now_ps)


@inner
def settle(prog, st, out, request, done_ps):
    """It is known when a request is complete: count it."""
    asked = st.requests[at(request)]
    asked[R_STEP] = SETTLED
    kernel = st.slots[at(asked[R_SLOT]), KERNEL]
    out.latency[asked[R_TIER], latency_bucket(done_ps - asked[R_ISSUE_PS])] += 1
    block = asked[R_BLOCK] - prog.kernels[kernel, BLOCK_AT]
    term = digest_term(block, asked[R_NUMBER], done_ps - out.kernels[kernel, START_PS])
    out.kernels[kernel, DIGEST] = (out.kernels[kernel, DIGEST] + term) % 2_147_483_647
