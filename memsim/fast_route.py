"""How a request travels: stations that it books, hop by hop, until it is known when it is complete."""

from __future__ import annotations

from memsim.fast_queue import post_request, wheel_add
from memsim.fast_state import (  # fmt: skip
    BLOCK_AT, CHANNELS, COMPLETE, DIGEST, DONE_PS, INTERLEAVE, ISSUE, KERNEL, LATENCY_PS, LINK_MBPS,
    LINK_PS, MBPS, PIECE_PS, PIECE_REST, RATE, REST, ROUTE_AT, ROUTE_PS, R_BLOCK, R_BYTES, R_HOP,
    R_ISSUE_PS, R_MOVED, R_NUMBER, R_OFFSET, R_SLOT, R_TIER, R_WRITE, SERVER_AT, START_PS, TIERS, UNIT,
    WHOLE_PS,
)
from memsim.jit import inner
from memsim.rules import channel_of, digest_term, latency_bucket, piece_bytes, rounded_bytes, service_ps


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
