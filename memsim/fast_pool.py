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
from memsim.jit import at, inner
from memsim.rules import added


@inner
def owed(prog, st, slot, nbytes):
    """Bytes of its unit that a slot holds for a request: no more than the unit lends to its kernel."""
    mine = st.slots[at(slot)]
    return min(nbytes, st.pools[at(mine[ON_UNIT]), SIZE] - prog.kernels[at(mine[KERNEL]), WITHHELD])


@inner
def borrow(prog, st, slot, nbytes, now_ps):
    """Take the bytes of a slot's next request from its unit; False if the slot has to wait in line."""
    mine = st.slots[at(slot)]
    unit = st.pools[at(mine[ON_UNIT])]
    withheld = prog.kernels[at(mine[KERNEL]), WITHHELD]
    need = owed(prog, st, slot, nbytes)
    if unit[HEAD] == NONE and unit[FREE] >= need + withheld:
        unit[FREE] -= need
        return True
    mine[NEED] = need
    mine[SINCE_PS] = now_ps
    mine[NEXT] = NONE
    if unit[HEAD] == NONE:
        unit[HEAD] = slot
    else:
        st.slots[at(unit[TAIL]), NEXT] = slot
    unit[TAIL] = slot
    return False


@inner
def give_back_bytes(prog, st, out, slot, nbytes, now_ps):
    """Return bytes of a slot to its unit; slots that have waited longest get theirs while they suffice."""
    unit = st.pools[at(st.slots[at(slot), ON_UNIT])]
    unit[FREE] += nbytes
    while unit[HEAD] != NONE:
        first = st.slots[at(unit[HEAD])]
        if first[NEED] + prog.kernels[at(first[KERNEL]), WITHHELD] > unit[FREE]:
            return
        post(st, ISSUE, now_ps, first[BLOCK], first[REQUEST], -1 - unit[HEAD])
        unit[FREE] -= first[NEED]
        unit[HEAD] = first[NEXT]
        first[PAID] = 1
        out.waiting_ps[unit[PLACE]] = added(out.waiting_ps[unit[PLACE]], now_ps - first[SINCE_PS])


@inner
def credits(st, request, pool):
    """Credits of a pool that a request takes and gives back: one for each part, no more than there are."""
    return min(st.requests[at(request), R_PARTS], st.pools[at(pool), SIZE])


@inner
def pay(st, request, pool, now_ps):
    """Take a request's credits unless it has been granted them; False if it has to wait in line."""
    asked, lent = st.requests[at(request)], st.pools[at(pool)]
    if asked[R_PAID]:
        asked[R_PAID] = 0
        return True
    need = credits(st, request, pool)
    if lent[HEAD] == NONE and lent[FREE] >= need:
        lent[FREE] -= need
        return True
    mine = st.spokes[at(request)]
    mine[DUE] = now_ps
    mine[LATER] = NONE
    if lent[HEAD] == NONE:
        lent[HEAD] = request
    else:
        st.spokes[at(lent[TAIL]), LATER] = request
    lent[TAIL] = request
    return False


@inner
def give_back_credits(st, out, request, now_ps):
    """Return a request's credits to their pool; the oldest in line get theirs while they suffice."""
    pool = st.requests[at(request), R_POOL]
    lent = st.pools[at(pool)]
    lent[FREE] += credits(st, request, pool)
    waiting = lent[HEAD]
    while waiting != NONE and credits(st, waiting, pool) <= lent[FREE]:
        lent[FREE] -= credits(st, waiting, pool)
        lent[HEAD] = st.spokes[at(waiting), LATER]
        st.requests[at(waiting), R_PAID] = 1
        since_ps = st.spokes[at(waiting), DUE]
        out.waiting_ps[lent[PLACE]] = added(out.waiting_ps[lent[PLACE]], now_ps - since_ps)
        schedule(st, waiting, 2 * now_ps + 1)
        waiting = lent[HEAD]
