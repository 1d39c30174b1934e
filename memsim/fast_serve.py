"""What serves: channels, the cache, links and units, and what a request books at its tier or the cache.

A server ends what it was given after whole ps and a rest (see rules.service_ps); what comes later waits.
"""

from __future__ import annotations

from memsim.fast_state import (  # fmt: skip
    BUFFER_BYTES,
    CHANNELS,
    GATHERED_BYTES,
    GATHERED_PS,
    GATHERED_REST,
    INTERLEAVE,
    LAST_WORK_PS,
    LATENCY_PS,
    LOADED_AT,
    LOADED_END,
    MBPS,
    OCCUPANCY_PS,
    PIECE_PS,
    PIECE_REST,
    RATE,
    REST,
    R_BYTES,
    R_OFFSET,
    R_PUSHES,
    R_TRANSFER,
    SERVER_AT,
    TIERS,
    TURNAROUND_PS,
    UNIT,
    WAY,
    WHOLE_PS,
    WINDOW_AT_PS,
    WORK_PS,
)
from memsim.jit import at, inner
from memsim.lanes import dealt_lane, next_lane, turn_begins
from memsim.rules import (  # fmt: skip
    MOST_WAITED_PS,
    WINDOW_PS,
    loaded_ps,
    added,
    operation_bytes,
    piece_bytes,
    piece_service_ps,
    rounded_bytes,
    service_ps,
)


@inner
def free_ps(servers, i):
    """When a server has ended all it has been given."""
    server = servers[at(i)]
    return server[WHOLE_PS] + (server[REST] > 0)


@inner
def then(whole_ps, rest, service, rate):
    """A time of whole ps and a rest, and a service of as much at the same rate after it."""
    rest += service[1]
    carry = int(rest >= rate)
    return whole_ps + service[0] + carry, rest - carry * rate


@inner
def book(servers, i, now_ps, service, rate):
    """Give a server work that arrives now, `service` of (ps, rest) at this rate; returns when it ends."""
    server = servers[at(i)]
    begin_ps, rest = server[WHOLE_PS], server[REST]
    end_ps = begin_ps + (rest > 0)
    if server[RATE] != rate:
        begin_ps, rest = end_ps, 0
        server[RATE] = rate
    if now_ps >= end_ps:
        begin_ps, rest = now_ps, 0
    begin_ps, rest = then(begin_ps, rest, service, rate)
    server[WHOLE_PS] = begin_ps
    server[REST] = rest
    return begin_ps + (rest > 0)


@inner
def book_piece(servers, i, now_ps, service, rate, write, turnaround_ps):
    """Give a channel a piece that arrives now, as `book` does; returns (when it ends, what it waited).

    In a busy period a change between reads and writes takes the turnaround, too.
    """
    server = servers[at(i)]
    begin_ps, rest = server[WHOLE_PS], server[REST]
    end_ps = begin_ps + (rest > 0)
    if server[WAY] != write:  # a channel's rate goes with its way
        server[WAY] = write
        if server[RATE] != rate:
            begin_ps, rest = end_ps, 0
            server[RATE] = rate
        begin_ps += turnaround_ps
    if now_ps >= end_ps:  # last, for it holds as often as not: a choice of values is quicker than a branch
        begin_ps, rest = now_ps, 0
    waited_ps = max(0, end_ps - now_ps)
    begin_ps, rest = then(begin_ps, rest, service, rate)
    server[WHOLE_PS] = begin_ps
    server[REST] = rest
    return begin_ps + (rest > 0), waited_ps


@inner
def book_equal(servers, i, now_ps, pieces, service, rate, write, turnaround_ps):
    """Give a channel equal pieces that arrive now, as so many calls of `book_piece` do.

    Returns (when the last ends, what all waited).
    """
    _, waited_ps = book_piece(servers, i, now_ps, service, rate, write, turnaround_ps)
    server = servers[at(i)]
    end_ps, rest = server[WHOLE_PS], server[REST]
    for _ in range(1, pieces):
        waited_ps = min(waited_ps + end_ps + (rest > 0) - now_ps, MOST_WAITED_PS)
        end_ps, rest = then(end_ps, rest, service, rate)
    server[WHOLE_PS] = end_ps
    server[REST] = rest
    return end_ps + (rest > 0), waited_ps


@inner
def write_piece(servers, i, now_ps, nbytes, service, rate, turnaround_ps, buffer_bytes):
    """Give a channel a written piece: it writes what it has gathered once that fills its buffer.

    Returns (when the channel ends what it has begun, what the piece waited).
    """
    gathered = then(servers[i, GATHERED_PS], servers[i, GATHERED_REST], service, rate)
    servers[i, GATHERED_PS], servers[i, GATHERED_REST] = gathered
    servers[i, GATHERED_BYTES] += nbytes
    if servers[i, GATHERED_BYTES] < buffer_bytes:
        end_ps = max(now_ps, free_ps(servers, i))
        return end_ps, end_ps - now_ps
    servers[i, GATHERED_BYTES:] = 0
    return book_piece(servers, i, now_ps, gathered, rate, 1, turnaround_ps)


@inner
def book_pieces(hw, st, out, tier, write, request, now_ps):
    """Book the pieces of a request at a tier or the cache; returns when the last one ends."""
    asked = st.requests[at(request)]
    here = hw.tiers[at(tier)]
    first = here[SERVER_AT] + write * int(tier == hw.sizes[TIERS] - 1)  # the cache has a server for each way
    offset, left = asked[R_OFFSET], asked[R_BYTES]
    operation = operation_bytes(asked[R_TRANSFER], here[INTERLEAVE])
    if write and here[BUFFER_BYTES] > 0:
        end_ps, waited_ps = write_pieces(st.servers, here, first, offset, left, operation, now_ps)
    else:
        end_ps, waited_ps = pass_pieces(
            st.servers, hw.away_ps, here, first, write, offset, left, operation, now_ps
        )
    out.waiting_ps[tier] = added(out.waiting_ps[tier], waited_ps)
    return end_ps


@inner
def pass_pieces(servers, away_ps, here, first, write, offset, left, operation, now_ps):
    """Book the pieces of bytes that are served as they come; returns when the last one ends, what all waited.

    here  the tier's row
    """
    channels, interleave = here[CHANNELS], here[INTERLEAVE]
    mbps, turnaround_ps = here[MBPS + write], here[TURNAROUND_PS]
    whole = (here[PIECE_PS + write], here[PIECE_REST + write])
    turn, channel, place = dealt_lane(offset // interleave, channels)
    turn_bytes = channels * interleave
    end_ps, waiting_ps = now_ps, 0
    while left > 0:
        nbytes = piece_bytes(offset, left, interleave)
        if left >= turn_bytes and place == 0 and nbytes == interleave:
            turns = left // turn_bytes
            nbytes = turns * turn_bytes
            ended_ps, waited_ps = pass_turns(servers, away_ps, here, first, write, turns, now_ps)
            turn, channel = turn + turns, turn_begins(turn + turns, channels)
        else:
            service = whole
            if nbytes < interleave:
                _, service = part_of_lane(here, write, offset, nbytes, operation)
            server = first + channel
            ended_ps, waited_ps = book_piece(servers, server, now_ps, service, mbps, write, turnaround_ps)
            ended_ps += 0 if write else away_ps[at(server)]
            turn, channel, place = next_lane(turn, channel, place, channels)
        end_ps = max(end_ps, ended_ps)
        waiting_ps = min(waiting_ps + waited_ps, MOST_WAITED_PS)
        offset += nbytes
        left -= nbytes
    return end_ps, waiting_ps


@inner
def part_of_lane(here, write, offset, nbytes, operation):
    """What a piece of less than a lane moves [bytes], and its service."""
    moved = rounded_bytes(offset, nbytes, here[UNIT])
    return moved, piece_service_ps(moved, here[MBPS + write], here[OCCUPANCY_PS + write], operation)


@inner
def pass_turns(servers, away_ps, here, first, write, turns, now_ps):
    """Book whole turns of pieces, channel by channel, for each gets as many; returns as pass_pieces does."""
    service = (here[PIECE_PS + write], here[PIECE_REST + write])
    mbps, turnaround_ps = here[MBPS + write], here[TURNAROUND_PS]
    end_ps, waiting_ps = now_ps, 0
    for server in range(first, first + here[CHANNELS]):
        ended_ps, waited_ps = book_equal(servers, server, now_ps, turns, service, mbps, write, turnaround_ps)
        end_ps = max(end_ps, ended_ps + (0 if write else away_ps[at(server)]))
        waiting_ps = min(waiting_ps + waited_ps, MOST_WAITED_PS)
    return end_ps, waiting_ps


@inner
def write_pieces(servers, here, first, offset, left, operation, now_ps):
    """Give channels that gather the pieces of written bytes; returns as pass_pieces does."""
    channels, interleave, buffer_bytes = here[CHANNELS], here[INTERLEAVE], here[BUFFER_BYTES]
    mbps, turnaround_ps = here[MBPS + 1], here[TURNAROUND_PS]
    whole = (here[PIECE_PS + 1], here[PIECE_REST + 1])
    turn, channel, place = dealt_lane(offset // interleave, channels)
    end_ps, waiting_ps = now_ps, 0
    while left > 0:
        nbytes = piece_bytes(offset, left, interleave)
        moved, service = nbytes, whole
        if nbytes < interleave:
            moved, service = part_of_lane(here, 1, offset, nbytes, operation)
        server = first + channel
        ended_ps, waited_ps = write_piece(
            servers, server, now_ps, moved, service, mbps, turnaround_ps, buffer_bytes
        )
        end_ps = max(end_ps, ended_ps)
        waiting_ps = min(waiting_ps + waited_ps, MOST_WAITED_PS)
        turn, channel, place = next_lane(turn, channel, place, channels)
        offset += nbytes
        left -= nbytes
    return end_ps, waiting_ps


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
