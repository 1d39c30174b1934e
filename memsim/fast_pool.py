"""Credits: a unit's outstanding bytes and a link's tags, lent to blocks and queued for in order."""

from __future__ import annotations

from memsim.fast_queue import post
from memsim.fast_route import moved_bytes
from memsim.fast_state import (  # fmt: skip
    BLOCK, FREE, HEAD, ISSUE, LINKS, LINK_TAGS, LINK_TAG_BYTES, NEED, NEXT, NONE, ON_UNIT, REQUEST,
    ROUTE_AT, SINCE_PS, SPAN_OFFSET, SPAN_TIER, STAGE, TAIL, TIERS, UNITS, UNIT_BYTES,
)
from memsim.jit import inner


@inner
def pool_of(hw, st, slot, stage):
    """Pool that a slot's next request needs at a stage: its unit's, then those of its route's links."""
    if stage == 0:
        return st.slots[slot, ON_UNIT]
    return hw.sizes[UNITS] + hw.route[hw.tiers[st.slots[slot, SPAN_TIER], ROUTE_AT] + stage - 1]


@inner
def demand(hw, moved, nbytes, pool):
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
        need = demand(hw, moved, nbytes, pool)
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
        waited_ps = now_ps - sl[slot, SINCE_PS]
        if pool < hw.sizes[UNITS]:
            out.waiting_ps[-1] += waited_ps
        else:
            out.waiting_ps[hw.sizes[TIERS] + pool - hw.sizes[UNITS] + hw.sizes[LINKS]] += waited_ps
        post(st, ISSUE, now_ps, sl[slot, BLOCK], sl[slot, REQUEST], -1 - slot)
        slot = st.pools[pool, HEAD]
