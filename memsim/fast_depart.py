"""How a request sets out: where it goes, what it books at once (port, walkers), what is counted of it."""

from __future__ import annotations

from memsim.fast_pool import owed
from memsim.fast_queue import schedule
from memsim.fast_serve import book, free_ps
from memsim.fast_state import (  # fmt: skip
    BLOCK,
    BLOCK_AT,
    CACHED,
    FREE,
    FREE_REQUEST,
    ISSUED,
    KERNEL,
    LATENCY_PS,
    LATER,
    LINK,
    MOVED,
    NONE,
    OF_OP,
    ON_UNIT,
    OP,
    OUTWARD,
    PAID,
    PORT_MBPS,
    REQUEST,
    REQUESTS,
    ROUTES,
    R_BLOCK,
    R_BYTES,
    R_ISSUE_PS,
    R_MOVED,
    R_NUMBER,
    R_OFFSET,
    R_PAID,
    R_PASSED_PS,
    R_PUSHES,
    R_ROUTE,
    R_SLOT,
    R_STEP,
    R_TIER,
    R_TILE,
    R_TRANSFER,
    R_WRITE,
    SPAN_LEFT,
    SPAN_OFFSET,
    SPAN_TIER,
    TIERS,
    TILE,
    TILE_LEFT,
    TRANSFER,
    UNIT,
    UNITS,
    WALKER_AT,
    WALKER_PS,
    WALKS,
    WALK_PS,
)
from memsim.jit import at, inner
from memsim.rules import (  # fmt: skip
    DIRTY_PPM,
    HIT_PPM,
    IS_WRITE,
    REGION,
    WALK_AGAIN_PPM,
    WALK_PPM,
    added,
    draw_cached,
    draw_walks,
    rounded_bytes,
    service_ps,
)


@inner
def depart(hw, prog, st, out, slot, nbytes, now_ps):
    """Make a slot's next request, its bytes in hand, and count it; returns it."""
    request = st.sizes[FREE_REQUEST]
    st.sizes[FREE_REQUEST] = st.spokes[at(request), LATER]
    mine, asked = st.slots[at(slot)], st.requests[at(request)]
    kernel, op, tier = mine[KERNEL], mine[OP], mine[SPAN_TIER]
    write = prog.ops.table[op, IS_WRITE]
    pushes = NONE
    if mine[CACHED]:
        tier, pushes = draw_place(hw, prog, st, slot, tier, write)
    moved = rounded_bytes(mine[SPAN_OFFSET], nbytes, hw.tiers[tier, UNIT])
    route = prog.kernels[kernel, ROUTES] + tier
    asked[R_SLOT] = slot
    asked[R_BLOCK] = mine[BLOCK]
    asked[R_NUMBER] = mine[REQUEST]
    asked[R_TILE] = mine[TILE]
    asked[R_TIER] = tier
    asked[R_OFFSET] = mine[SPAN_OFFSET]
    asked[R_BYTES] = nbytes
    asked[R_MOVED] = moved
    asked[R_WRITE] = write
    asked[R_TRANSFER] = mine[TRANSFER]
    asked[R_ISSUE_PS] = now_ps
    asked[R_ROUTE] = route
    asked[R_STEP] = 0
    asked[R_PAID] = 0
    asked[R_PUSHES] = pushes
    asked[R_PASSED_PS] = pass_port(hw, prog, st, out, slot, route, tier, write, moved, now_ps)
    st.tiles[mine[TILE], TILE_LEFT] += 1
    count_request(hw, out, kernel, prog.ops.table[op, REGION], tier, write, nbytes, moved, route)
    if pushes != NONE:
        if not write:  # what it pushes out is outstanding, too
            st.pools[mine[ON_UNIT], FREE] -= owed(prog, st, slot, nbytes)
        pushed = rounded_bytes(mine[SPAN_OFFSET], nbytes, hw.tiers[pushes, UNIT])
        out.written_back[pushes] += pushed
        out.kernel_moved[kernel, pushes, 1] += pushed
    mine[PAID] = 0
    mine[REQUEST] += 1
    mine[OF_OP] += 1
    mine[SPAN_OFFSET] += nbytes
    mine[SPAN_LEFT] -= nbytes
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
    sums = out.ledger[at(region), at(tier)]
    sums[ISSUED + write] += nbytes
    sums[MOVED + write] += moved
    out.kernel_moved[kernel, tier, write] += moved
    for hop in range(hw.routes[route], hw.routes[route + 1]):
        direction = hw.hops[hop, OUTWARD] ^ 1 ^ write
        out.kernel_moved[kernel, hw.sizes[TIERS] + hw.hops[hop, LINK], direction] += moved
