"""One block alive at a time, on one tier without hops: its requests need no queue of events.

Nothing but its own tiles keeps such a block waiting, and a request is served in the instant in which it is
issued. So when it ends is known at once, and all that decides about a tile is when a place gets free: in
order when the tile that many places before has ended, in any order when the first of those outstanding has.
Equal to `fast_loop`, bit for bit; `fast_lone` says which segments come here.
"""

from __future__ import annotations

from typing import NamedTuple

from memsim.fast_lot import (  # fmt: skip
    AT_BLOCK,
    AT_BOOKED_PS,
    AT_LAST_PS,
    AT_NOW_PS,
    AT_NUMBER,
    AT_OP,
    AT_PLACE,
    AT_SHIFT,
    AT_TIER,
    AT_TILE_PS,
    OPENS_AFTER_ALL,
    begin_op,
    cut,
    find_channels,
)
from memsim.fast_serve import book, book_piece, then
from memsim.fast_state import (  # fmt: skip
    BLOCK_AT,
    CHANNELS,
    DIGEST,
    DISPATCH_PS,
    DRAIN_PS,
    END_PS,
    FIXED_PS,
    FLOPS,
    IDLE_PS,
    IN_CACHE,
    IN_ORDER,
    INTERLEAVE,
    ISSUED,
    LATENCY_PS,
    LAUNCH_PS,
    MBPS,
    MFLOPS,
    MOVED,
    OCCUPANCY_PS,
    PIECE_PS,
    PIECE_REST,
    READY_PS,
    REQUESTS,
    REST,
    ROUTES,
    START_PS,
    STARTUP_PS,
    TIERS,
    TURNAROUND_PS,
    UNIT,
    WHOLE_PS,
    WORKING_PS,
)
from memsim.jit import inner, jit
from memsim.lanes import channel_of_lane
from memsim.rules import (  # fmt: skip
    IS_WORKED,
    IS_WRITE,
    REGION,
    added,
    digest_term,
    latency_bucket,
    operation_bytes,
    piece_bytes,
    piece_service_ps,
    rounded_bytes,
    service_ps,
)

DONE, PAUSED = range(2)
REQUESTS_A_RUN = 1_000_000  # between two pauses


class Bank(NamedTuple):
    """What requests of one direction need to know of their tier (see fast_state.Hardware.tiers)."""

    interleave: int
    unit: int
    channels: int
    turnaround_ps: int
    mbps: int
    occupancy_ps: int
    piece_ps: int
    piece_rest: int
    latency_ps: int


@inner
def replace_first(heap, value):
    """Put a value in place of the first of a heap of numbers, which is on top."""
    size = len(heap)
    i, child = 0, 1
    while child < size:  # the hole goes down to a leaf, and the value comes up from there: it is mostly late
        child += int(child + 1 < size and heap[child + 1] < heap[child])
        heap[i] = heap[child]
        i, child = child, 2 * child + 1
    while i > 0 and heap[(i - 1) >> 1] > value:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = value


@inner
def bank_of(hw, tier, write):
    """What requests of one direction need to know of a tier."""
    return Bank(
        hw.tiers[tier, INTERLEAVE],
        hw.tiers[tier, UNIT],
        hw.tiers[tier, CHANNELS],
        hw.tiers[tier, TURNAROUND_PS],
        hw.tiers[tier, MBPS + write],
        hw.tiers[tier, OCCUPANCY_PS + write],
        hw.tiers[tier, PIECE_PS + write],
        hw.tiers[tier, PIECE_REST + write],
        hw.tiers[tier, LATENCY_PS + write],
    )


@inner
def serve_request(bank, ring, i, write, now_ps):
    """Book the pieces of request i of the lot; returns (when the last one ends, what they waited)."""
    offset, left, channel = ring.offset[i], ring.nbytes[i], ring.channel[i]
    end_ps, waiting_ps = now_ps, 0
    while True:
        nbytes = piece_bytes(offset, left, bank.interleave)
        service = (bank.piece_ps, bank.piece_rest)
        if nbytes < bank.interleave:
            moved = rounded_bytes(offset, nbytes, bank.unit)
            operation = operation_bytes(ring.transfer[i], bank.interleave)
            service = piece_service_ps(moved, bank.mbps, bank.occupancy_ps, operation)
        piece = book_piece(ring.servers, channel, now_ps, service, bank.mbps, write, bank.turnaround_ps)
        end_ps = max(end_ps, piece[0])
        waiting_ps = added(waiting_ps, piece[1])
        offset += nbytes
        left -= nbytes
        if left == 0:
            return end_ps, waiting_ps
        channel = channel_of_lane(offset >> ring.at[AT_SHIFT], bank.channels)


@inner
def pass_cache(whole_ps, rest, service, mbps, now_ps):
    """Book the cache, which stands at whole_ps and a rest, for what a request brings in.

    Returns (where it stands then, twice, and what the request waited).
    """
    end_ps = whole_ps + (rest > 0)
    if now_ps >= end_ps:
        whole_ps, rest = now_ps, 0
    whole_ps, rest = then(whole_ps, rest, service, mbps)
    return whole_ps, rest, max(0, end_ps - now_ps)


@inner
def work_tile(prog, ring, booked_ps):
    """Book the arithmetic of a tile of the op, if it has any; returns when that ends."""
    if prog.kernels[0, FLOPS] == 0 or not prog.ops.table[ring.at[AT_OP], IS_WORKED]:
        return booked_ps
    mflops = prog.kernels[0, MFLOPS]
    service = service_ps(prog.kernels[0, FLOPS], mflops)
    end_ps = book(ring.servers, len(ring.servers) - 1, booked_ps, service, mflops)
    return end_ps + prog.kernels[0, WORKING_PS]


@inner
def serve(hw, prog, ring, out, count):
    """Issue a lot of requests, each as soon as its tile has a place, and book their pieces."""
    at, ends, tier, in_order = ring.at, ring.ends, ring.at[AT_TIER], prog.kernels[0, IN_ORDER]
    write = prog.ops.table[at[AT_OP], IS_WRITE]
    fixed_ps = prog.ops.table[at[AT_OP], IS_WORKED] * prog.kernels[0, FIXED_PS]
    bank = bank_of(hw, tier, write)
    now_ps, tile_ps, booked_ps, last_ps = at[AT_NOW_PS], at[AT_TILE_PS], at[AT_BOOKED_PS], at[AT_LAST_PS]
    place, waiting_ps = at[AT_PLACE], out.waiting_ps[tier]
    cache, cache_waiting_ps = hw.sizes[TIERS] - 1, out.waiting_ps[hw.sizes[TIERS] - 1]
    cache_mbps, reading = hw.tiers[cache, MBPS], ring.servers[len(ring.servers) - 2]
    cache_ps, cache_rest = reading[WHOLE_PS], reading[REST]
    through = hw.paths[prog.kernels[0, ROUTES] + tier, IN_CACHE] and not write
    moved, passing = 0, (0, 0)  # most requests move as many bytes as the one before: no division for them
    for i in range(count):
        if ring.opens[i]:
            now_ps, tile_ps = max(now_ps, ends[place]), 0
            if ring.opens[i] == OPENS_AFTER_ALL:
                now_ps = max(now_ps, last_ps)
        end_ps, waited_ps = serve_request(bank, ring, i, write, now_ps)
        waiting_ps = added(waiting_ps, waited_ps)
        if through:
            if moved != rounded_bytes(ring.offset[i], ring.nbytes[i], bank.unit):
                moved = rounded_bytes(ring.offset[i], ring.nbytes[i], bank.unit)
                passing = service_ps(moved, cache_mbps)
            cache_ps, cache_rest, waited_ps = pass_cache(cache_ps, cache_rest, passing, cache_mbps, now_ps)
            end_ps = max(end_ps, cache_ps + (cache_rest > 0))
            cache_waiting_ps = added(cache_waiting_ps, waited_ps)
        ring.issue_ps[i] = now_ps
        ring.done_ps[i] = end_ps + bank.latency_ps
        tile_ps = max(tile_ps, end_ps + bank.latency_ps)
        if ring.closes[i] and in_order:
            booked_ps = max(booked_ps, tile_ps)
            last_ps = max(last_ps, work_tile(prog, ring, booked_ps)) + fixed_ps
            ends[place] = last_ps
            place = place + 1 if place + 1 < len(ends) else 0
        elif ring.closes[i]:
            last_ps = max(last_ps, tile_ps)
            replace_first(ends, tile_ps)
    at[AT_NOW_PS], at[AT_TILE_PS], at[AT_BOOKED_PS], at[AT_LAST_PS] = now_ps, tile_ps, booked_ps, last_ps
    at[AT_PLACE], out.waiting_ps[tier] = place, waiting_ps
    out.waiting_ps[cache] = cache_waiting_ps
    reading[WHOLE_PS], reading[REST] = cache_ps, cache_rest


@inner
def count_lot(hw, prog, ring, out, count):
    """Enter a lot of requests in the digest, the histogram and the ledger."""
    at, tier = ring.at, ring.at[AT_TIER]
    block, number, unit = at[AT_BLOCK], at[AT_NUMBER], hw.tiers[tier, UNIT]
    begin_ps = out.kernels[0, START_PS]
    digest = issued = moved = 0
    for i in range(count):  # below 2^42: terms are below 2^31
        digest += digest_term(block, number + i, ring.done_ps[i] - begin_ps)
    for i in range(count):
        issued += ring.nbytes[i]
        moved += rounded_bytes(ring.offset[i], ring.nbytes[i], unit)
    for i in range(count):
        ring.bucket[i] = latency_bucket(ring.done_ps[i] - ring.issue_ps[i])
    for i in range(count):
        out.latency[tier, ring.bucket[i]] += 1
    write, region = prog.ops.table[at[AT_OP], IS_WRITE], prog.ops.table[at[AT_OP], REGION]
    at[AT_NUMBER] += count
    out.kernels[0, REQUESTS] += count
    out.kernels[0, DIGEST] = (out.kernels[0, DIGEST] + digest) % 2_147_483_647
    out.ledger[region, tier, ISSUED + write] += issued
    out.ledger[region, tier, MOVED + write] += moved
    out.kernel_moved[0, tier, write] += moved


@inner
def begin_block(prog, ring, block, begin_ps):
    """Start a block: its first tile may be asked for `startup` later."""
    at = ring.at
    at[AT_BLOCK] = block
    at[AT_NUMBER] = 0
    begin_ps += prog.kernels[0, DISPATCH_PS]
    at[AT_LAST_PS] = at[AT_NOW_PS] = begin_ps + prog.kernels[0, STARTUP_PS]
    begin_op(ring, prog.op_at[block])


@inner
def block_end_ps(prog, ring, begin_ps):
    """When a block ends all of whose tiles are served, if it has any."""
    if prog.op_at[ring.at[AT_BLOCK]] == prog.op_at[ring.at[AT_BLOCK] + 1]:
        return begin_ps + prog.kernels[0, DISPATCH_PS] + max(1, prog.kernels[0, IDLE_PS])
    return max(begin_ps + 1, ring.at[AT_LAST_PS] + prog.kernels[0, DRAIN_PS])


@jit
def run(hw, prog, memory, ring, out):
    """Replay the only kernel of a segment from time 0, its blocks one after another, and fill `out`.

    Returns DONE, or PAUSED (call again with the same arrays).
    """
    at, blocks, left = ring.at, prog.kernels[1, BLOCK_AT], REQUESTS_A_RUN
    if at[AT_BLOCK] < 0:
        out.kernels[0, READY_PS] = 0
        out.kernels[0, START_PS] = out.kernels[0, END_PS] = prog.kernels[0, LAUNCH_PS]
        begin_block(prog, ring, 0, out.kernels[0, START_PS])
    while left > 0:
        if at[AT_OP] < prog.op_at[at[AT_BLOCK] + 1]:
            count = cut(hw, prog, memory, ring)
            if count == 0:
                begin_op(ring, at[AT_OP] + 1)
                continue
            find_channels(hw, prog, ring, count)
            serve(hw, prog, ring, out, count)
            count_lot(hw, prog, ring, out, count)
            left -= count
        else:
            out.kernels[0, END_PS] = block_end_ps(prog, ring, out.kernels[0, END_PS])
            if at[AT_BLOCK] + 1 == blocks:
                return DONE
            begin_block(prog, ring, at[AT_BLOCK] + 1, out.kernels[0, END_PS])
    return PAUSED
