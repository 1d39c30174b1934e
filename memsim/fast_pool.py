"""Credits, lent and queued for in order: a unit's outstanding bytes to blocks, the rest to requests.

A request takes tags or credits of a link, or places in a tier's queue, one for each of its parts there.
"""

from __future__ import annotations

from memsim.fast_queue import post, schedule
from memsim.fast_state import (  # fmt: skip
    BLOCK,
    DUE,
    FREE,
    HEAD,
    ISSUE,
    KERNEL,
    LATER,
    NEED,
    NEXT,
    NONE,
    ON_UNIT,
    PAID,
    PLACE,
    REQUEST,
    R_PAID,
    R_PARTS,
    R_POOL,
    SINCE_PS,
    SIZE,
    TAIL,
    WITHHELD,
)
from memsim.jit import inner
from memsim.rules import added


@inner
def owed(prog, st, slot, nbytes):
    """Bytes of its unit that a slot holds for a request: no more than the unit lends to its kernel."""
    pool = st.slots[slot, ON_UNIT]
    return min(nbytes, st.pools[pool, SIZE] - prog.kernels[st.slots[slot, KERNEL], WITHHELD])


@inner
def borrow(prog, st, slot, nbytes, now_ps):
    """Take the bytes of a slot's next request from its unit; False if the slot has to wait in line."""
    sl, pools = st.slots, st.pools
    pool = sl[slot, ON_UNIT]
    withheld = prog.kernels[sl[slot, KERNEL], WITHHELD]
    need = owed(prog, st, slot, nbytes)
    if pools[pool, HEAD] == NONE and pools[pool, FREE] >= need + withheld:
        pools[pool, FREE] -= need
        return True
    sl[slot, NEED] = need
    sl[slot, SINCE_PS] = now_ps
    sl[slot, NEXT] = NONE
    if pools[pool, HEAD] == NONE:
        pools[pool, HEAD] = slot
    else:
        sl[pools[pool, TAIL], NEXT] = slot
    pools[pool, TAIL] = slot
    return False


@inner
def give_back_bytes(prog, st, out, slot, nbytes, now_ps):
    """Return bytes of a slot to its unit; slots that have waited longest get theirs while they suffice."""
    sl, pools = st.slots, st.pools
    pool = sl[slot, ON_UNIT]
    pools[pool, FREE] += nbytes
    slot = pools[pool, HEAD]
    while slot != NONE and sl[slot, NEED] + prog.kernels[sl[slot, KERNEL], WITHHELD] <= pools[pool, FREE]:
        pools[pool, FREE] -= sl[slot, NEED]
        pools[pool, HEAD] = sl[slot, NEXT]
        sl[slot, PAID] = 1
        place = pools[pool, PLACE]
        out.waiting_ps[place] = added(out.waiting_ps[place], now_ps - sl[slot, SINCE_PS])
        post(st, ISSUE, now_ps, sl[slot, BLOCK], sl[slot, REQUEST], -1 - slot)
        slot = pools[pool, HEAD]


@inner
def credits(st, request, pool):
    """Credits of a pool that a request takes and gives back: one for each part, no more than there are."""
    return min(st.requests[request, R_PARTS], st.pools[pool, SIZE])


@inner
def pay(st, request, pool, now_ps):
    """Take a request's credits unless it has been granted them; False if it has to wait in line."""
    rq, pools, spokes = st.requests, st.pools, st.spokes
    if rq[request, R_PAID]:
        rq[request, R_PAID] = 0
        return True
    need = credits(st, request, pool)
    if pools[pool, HEAD] == NONE and pools[pool, FREE] >= need:
        pools[pool, FREE] -= need
        return True
    spokes[request, DUE] = now_ps
    spokes[request, LATER] = NONE
    if pools[pool, HEAD] == NONE:
        pools[pool, HEAD] = request
    else:
        spokes[pools[pool, TAIL], LATER] = request
    pools[pool, TAIL] = request
    return False


@inner
def give_back_credits(st, out, request, now_ps):
    """Return a request's credits to their pool; the oldest in line get theirs while they suffice."""
    rq, pools = st.requests, st.pools
    pool = rq[request, R_POOL]
    pools[pool, FREE] += credits(st, request, pool)
    waiting = pools[pool, HEAD]
    while waiting != NONE and credits(st, waiting, pool) <= pools[pool, FREE]:
        pools[pool, FREE] -= credits(st, waiting, pool)
        pools[pool, HEAD] = st.spokes[waiting, LATER]
        rq[waiting, R_PAID] = 1
        place = pools[pool, PLACE]
        out.waiting_ps[place] = added(out.waiting_ps[place], now_ps - st.spokes[waiting, DUE])
        schedule(st, waiting, 2 * now_ps + 1)
        waiting = pools[pool, HEAD]
