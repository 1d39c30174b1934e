"""The fast engine's event loop: kernels, blocks on units, and the phases of an instant.

`run` replays one segment from time 0, arrays in, counts out, one function a step of docs/model.md.
Nothing here knows names; it returns a status, and the caller words the error.
"""

from __future__ import annotations

from memsim.fast_depart import wait_for_stores, walk
from memsim.fast_queue import NEVER_PS, NOTHING, is_due, next_event_ps, next_item, post, take
from memsim.fast_route import travel
from memsim.fast_state import (  # fmt: skip
    BLOCK,
    BLOCK_AT,
    BLOCK_END,
    DISPATCH_PS,
    END_PS,
    FIRST_KERNEL,
    FIRST_UNIT,
    FREE_SLOT,
    FREE_SLOTS,
    GATHERED_BYTES,
    GIVE,
    IDLE_PS,
    IN_HEAPS,
    ISSUE,
    KERNEL,
    LAST_UNIT,
    LAUNCH_PS,
    LEFT,
    MOST_TILES,
    NEXT_BLOCK,
    NEXT_KERNEL,
    NONE,
    ON_UNIT,
    OP,
    READY_PS,
    SERVER_AT,
    SHARES,
    START,
    STARTUP_PS,
    START_PS,
    TIERS,
    TILE,
    TO_PLACE,
    TURNS_LEFT,
    WAIT_AT,
    WINDOW_AT_PS,
    WORKED,
)
from memsim.fast_tile import FULL, ask, end_tile, give_back, take_turn
from memsim.jit import inner, jit

DONE, PAUSED, MORE_REQUESTS, STUCK = range(4)
REQUESTS_A_RUN = 1_000_000  # between two pauses: about a second


@inner
def end_block(hw, prog, st, out, slot, now_ps):
    """A block ends: its place is free, and with the kernel's last block the kernel has ended."""
    kernel = st.slots[slot, KERNEL]
    st.room[st.slots[slot, ON_UNIT]] += prog.kernels[kernel, SHARES]
    st.slots[st.sizes[FREE_SLOTS], FREE_SLOT] = slot
    st.sizes[FREE_SLOTS] += 1
    st.sizes[TO_PLACE] = 1
    st.kernels[kernel, LEFT] -= 1
    if st.kernels[kernel, LEFT] == 0:
        out.kernels[kernel, END_PS] = now_ps
        make_ready(hw, prog, st, out, now_ps)


@inner
def make_ready(hw, prog, st, out, now_ps):
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
    forget(hw, st, kernel, now_ps)
    post(st, START, now_ps + prog.kernels[kernel, LAUNCH_PS], kernel, 0, kernel)


@inner
def forget(hw, st, kernel, now_ps):
    """If all kernels before this one have ended, tiers write what they gathered and measure loads anew."""
    for before in range(kernel):
        if st.kernels[before, LEFT] > 0:
            return
    st.loads[:] = 0
    st.loads[:, WINDOW_AT_PS] = now_ps
    channels = hw.tiers[hw.sizes[TIERS] - 1, SERVER_AT]
    st.servers[:channels, GATHERED_BYTES:] = 0


@inner
def start_kernel(hw, prog, st, out, kernel, now_ps):
    """A kernel starts: its blocks may be placed, and the next kernel of the file may become ready."""
    out.kernels[kernel, START_PS] = now_ps
    st.sizes[NEXT_KERNEL] = kernel + 1
    st.sizes[TO_PLACE] = 1
    make_ready(hw, prog, st, out, now_ps)


@inner
def roomiest(room, first, last):
    """Of units first..last the one with the most room, the first of equals."""
    best = first
    for unit in range(first + 1, last + 1):
        if room[unit] > room[best]:
            best = unit
    return best


@inner
def place_blocks(prog, st, now_ps):
    """Place waiting blocks of started kernels on units while there is room."""
    st.sizes[TO_PLACE] = 0
    launched = st.sizes[NEXT_KERNEL]
    while st.sizes[FIRST_KERNEL] < launched and finished_placing(prog, st, st.sizes[FIRST_KERNEL]):
        st.sizes[FIRST_KERNEL] += 1
    for kernel in range(st.sizes[FIRST_KERNEL], launched):
        while not finished_placing(prog, st, kernel):
            unit = roomiest(st.room, prog.kernels[kernel, FIRST_UNIT], prog.kernels[kernel, LAST_UNIT])
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
    first = prog.kernels[kernel, FIRST_UNIT]
    begin_ps = max(now_ps, st.begun_ps[first]) + prog.kernels[kernel, DISPATCH_PS]
    st.begun_ps[first] = begin_ps
    if prog.op_at[block] == prog.op_at[block + 1]:
        post(st, BLOCK_END, begin_ps + max(1, prog.kernels[kernel, IDLE_PS]), block, 0, slot)
    else:
        post(st, ISSUE, begin_ps + prog.kernels[kernel, STARTUP_PS], block, 0, -1 - slot)


@inner
def end_and_start(hw, prog, st, out, now_ps):
    """Phases 1 to 4: arithmetic and blocks end, kernels start, waiting blocks are placed."""
    while is_due(st, WORKED, now_ps):
        tile = take(st, WORKED)
        slot = tile // st.sizes[MOST_TILES]
        if st.tiles[tile, TURNS_LEFT] > 0:
            take_turn(hw, prog, st, slot, tile, now_ps)
        else:
            end_tile(prog, st, slot, tile, now_ps)
    while is_due(st, BLOCK_END, now_ps):
        end_block(hw, prog, st, out, take(st, BLOCK_END), now_ps)
    while is_due(st, START, now_ps):
        start_kernel(hw, prog, st, out, take(st, START), now_ps)
    if st.sizes[TO_PLACE]:
        place_blocks(prog, st, now_ps)


@inner
def issue(hw, prog, memory, st, out, item, now_ps):
    """Phase 5 of an item: a request goes on, or a block issues what it may; False if the table is full."""
    request = item
    while True:
        if item < 0:
            request = ask(hw, prog, memory, st, out, -1 - item, now_ps)
            if request < 0:
                return request != FULL
            if walk(hw, prog, st, out, -1 - item, request, now_ps):
                continue
            if wait_for_stores(hw, prog, st, -1 - item, request, now_ps):
                continue
        travel(hw, prog, st, out, request, now_ps)
        if item >= 0:
            return True


@jit
def run(hw, prog, memory, st, out):
    """Replay a segment from time 0 on a fresh state and fill `out`.

    Returns DONE, PAUSED (call again with the same arrays: the caller had no say for a while),
    MORE_REQUESTS (the table is too small: begin again with a larger one and fresh counts) or STUCK
    (events ran out before the kernels did).
    """
    if out.kernels[0, READY_PS] == NONE:
        make_ready(hw, prog, st, out, 0)
    left = REQUESTS_A_RUN
    while left > 0:
        now_ps = next_event_ps(st)
        if now_ps == NEVER_PS:
            break
        while True:
            item = next_item(st, GIVE, 2 * now_ps)
            if item == NOTHING:
                break
            give_back(hw, prog, st, out, item, now_ps)
            left -= 1
        if st.sizes[IN_HEAPS] > 0:
            end_and_start(hw, prog, st, out, now_ps)
        while True:
            item = next_item(st, ISSUE, 2 * now_ps + 1)
            if item == NOTHING:
                break
            if not issue(hw, prog, memory, st, out, item, now_ps):
                return MORE_REQUESTS
    else:
        return PAUSED
    for kernel in range(len(st.kernels)):
        if out.kernels[kernel, END_PS] == NONE:
            return STUCK
    return DONE
