"""The rules that both engines share: work to time, rows to tiers, spans to requests.

Plain integers and arrays in, integers out; nothing here waits. Every rule stands in docs/model.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memsim.jit import jit

MOST_WAITED_PS = 1 << 62  # 53 days: a sum over requests may pass what int64 holds
WINDOW_PS = 1_000_000  # in which the load of a tier is measured: work of as many ps is all its rate
_PRIME = 2_147_483_647  # 2^31 - 1: products of two residues stay inside int64


# Columns of Ops.table.
REGION, IS_WRITE, IS_HIT, FIRST_ROW, ROWS, STRIDE, GATHER_AT, TILE_ROWS, IS_WORKED, IS_DEPENDENT = range(10)
HIT_PPM, DIRTY_PPM, WALK_PPM, WALK_AGAIN_PPM = range(10, 14)
# Columns of Memory.regions, .pieces and .shares.
ROW_BYTES, PAGE_ROWS, PAGE_HEAD_BYTES, PAGE_BYTES, PIECE_AT = range(5)
END_ROW, CHUNK_ROWS, SHARE_AT = range(3)
TIER, WEIGHT = range(2)


class Memory(NamedTuple):
    """Layout and placement of regions, one row each.

    regions  int64[regions + 1, 5]  layout; the first of its pieces (the last row only ends the list)
    pieces   int64[pieces + 1, 3]   consecutive rows with one rule: end row, rows dealt at once, first share
    shares   int64[shares, 2]       a tier and its weight
    """

    regions: np.ndarray
    pieces: np.ndarray
    shares: np.ndarray


class Ops(NamedTuple):
    """What blocks do, one op after another (see program.py).

    table        int64[ops, 14]: region, write (0/1), hit (0/1), first row, rows, stride, first element in
                 gather_rows or -1, rows of a tile, worked (0/1), dependent (0/1); then of a million requests
                 those whose lines are cached, of a million that bring in a line those that push out a dirty
                 one; of a million requests those that walk, of a million of these those that walk again
    gather_rows  int64[m]
    """

    table: np.ndarray
    gather_rows: np.ndarray


@jit
def service_ps(work, rate):
    """Time of a service: work x 10^6 / rate, as whole ps and a rest in units of 1 / rate ps.

    work is in bytes or FLOP and rate in 10^6 of them a second.
    """
    total = work * 1_000_000
    whole_ps = total // rate
    return whole_ps, total - whole_ps * rate


@jit
def turn_flops(flops, turns, left):
    """Of a tile's arithmetic, what one of its turns does: equal parts; left: turns after it."""
    return flops * (turns - left) // turns - flops * (turns - left - 1) // turns


@jit
def least_ps(nbytes, occupancy_ps, operation):
    """Least time of a piece that is a part of an operation of so many bytes: its part of the occupancy."""
    if nbytes >= operation:
        return occupancy_ps
    each = occupancy_ps // operation  # ceil(occupancy x part), in terms that stay inside int64
    over = occupancy_ps - each * operation
    return each * nbytes + (over * nbytes + operation - 1) // operation


@jit
def piece_service_ps(nbytes, mbps, occupancy_ps, operation):
    """Time of a piece at its channel: its transfer, or its part of an operation where that is longer.

    An operation keeps a channel for occupancy_ps at least (see least_ps).
    """
    whole_ps, rest = service_ps(nbytes, mbps)
    shortest_ps = least_ps(nbytes, occupancy_ps, operation)
    if whole_ps < shortest_ps:
        return shortest_ps, 0
    return whole_ps, rest


@jit
def operation_bytes(transfer_bytes, interleave_bytes):
    """Bytes that one operation of a transfer moves: what lies together on a channel, or all there is."""
    return min(transfer_bytes, interleave_bytes)


@jit
def added(total_ps, more_ps):
    """A sum of times waited, which stays at MOST_WAITED_PS once it is there."""
    return total_ps + min(more_ps, MOST_WAITED_PS - total_ps)


@jit
def mixed(number):
    """32 bits mixed from a number. The multipliers are below 2^31, so that products stay inside int64."""
    x = (number ^ (number >> 32)) & 0xFFFF_FFFF
    x = (x ^ (x >> 16)) * 0x21F0_AAAD & 0xFFFF_FFFF
    x = (x ^ (x >> 15)) * 0x735A_2D97 & 0xFFFF_FFFF
    return x ^ x >> 15


@jit
def rounded_bytes(offset, nbytes, unit_bytes):
    """Bytes that a tier moves for `nbytes` at `offset`: whole transactions of unit_bytes, a power of 2."""
    return (offset + nbytes + unit_bytes - 1 & -unit_bytes) - (offset & -unit_bytes)


@jit
def request_bytes(offset, left_bytes, quantum_bytes):
    """Size of the next request of a span: all of it if small, else up to a multiple of the quantum."""
    if left_bytes <= quantum_bytes:
        return left_bytes
    return quantum_bytes - offset % quantum_bytes


@jit
def piece_bytes(offset, left_bytes, interleave_bytes):
    """Size of the next piece of a request: up to the next interleave border, a power of 2 apart."""
    return min(left_bytes, interleave_bytes - (offset & interleave_bytes - 1))


@jit
def locate(memory, region, row):
    """Where a row lives.

    Returns (tier, tier_row, run_rows): the tier, the row's number among those of its piece that this
    tier holds, and how many rows from it on follow back to back in the same tier.
    """
    pieces, shares = memory.pieces, memory.shares
    piece = memory.regions[region, PIECE_AT]
    begin = 0
    while row >= pieces[piece, END_ROW]:
        begin = pieces[piece, END_ROW]
        piece += 1
    share = pieces[piece, SHARE_AT]
    last = pieces[piece + 1, SHARE_AT] - 1
    if share == last:
        return shares[share, TIER], row - begin, pieces[piece, END_ROW] - row
    chunk_rows = pieces[piece, CHUNK_ROWS]
    chunk = (row - begin) // chunk_rows
    inside = (row - begin) % chunk_rows
    weight_left = 0
    for i in range(share, last + 1):
        weight_left += shares[i, WEIGHT]
    while share < last:  # deal the chunks: this tier's part of those left, spread evenly
        weight = shares[share, WEIGHT]
        before = chunk * weight // weight_left
        if (chunk + 1) * weight // weight_left > before:
            chunk = before
            break
        chunk -= before
        weight_left -= weight
        share += 1
    run_rows = min(chunk_rows - inside, pieces[piece, END_ROW] - row)
    return shares[share, TIER], chunk * chunk_rows + inside, run_rows


@jit
def row_of(ops, op, index):
    """Row of its region that is number `index` of an op."""
    if ops.table[op, GATHER_AT] >= 0:
        return ops.gather_rows[ops.table[op, GATHER_AT] + index]
    return ops.table[op, FIRST_ROW] + index * ops.table[op, STRIDE]


@jit
def next_span(ops, memory, op, index, end, second):
    """Next contiguous bytes of an op's rows index..end.

    second is 1 when the first array of a part of a page has been given and its second is due.
    Returns (tier, offset, nbytes, next index, next second).
    """
    region = ops.table[op, REGION]
    row_bytes = memory.regions[region, ROW_BYTES]
    tier, row, run_rows = locate(memory, region, row_of(ops, op, index))
    rows = 1
    if ops.table[op, GATHER_AT] < 0 and ops.table[op, STRIDE] == 1:
        rows = min(run_rows, end - index)
    page_rows = memory.regions[region, PAGE_ROWS]
    if page_rows == 0:
        return tier, row * row_bytes, rows * row_bytes, index + rows, 0
    page = row // page_rows
    inside = row % page_rows
    page_bytes = memory.regions[region, PAGE_BYTES]
    if inside == 0 and rows >= page_rows:
        pages = rows // page_rows if page_bytes == page_rows * row_bytes else 1
        return tier, page * page_bytes, pages * page_rows * row_bytes, index + pages * page_rows, 0
    rows = min(rows, page_rows - inside)
    head = memory.regions[region, PAGE_HEAD_BYTES]
    if second == 0:
        return tier, page * page_bytes + inside * head, rows * head, index, 1
    rest = row_bytes - head
    return tier, page * page_bytes + page_rows * head + inside * rest, rows * rest, index + rows, 0


@jit
def packets(nbytes, packet_bytes):
    """Packets that carry `nbytes`; also the tags or credits that they take."""
    return (nbytes + packet_bytes - 1) // packet_bytes


@jit
def pieces_of(offset, nbytes, interleave_bytes):
    """Pieces that a request is cut into at its tier."""
    return (offset + nbytes - 1) // interleave_bytes - offset // interleave_bytes + 1


@jit
def transfer_share(points, first, end, span_bytes):
    """Millionths of a link's rate that a transfer of span_bytes reaches.

    points int64[n, 2], of which rows first..end are the link's: sizes rising, and their shares. Linear
    between two points; the largest's share above; below the smallest in proportion to the size, for such
    a transfer takes as long as the smallest measured one.
    """
    if span_bytes <= points[first, 0]:
        return max(1, points[first, 1] * span_bytes // points[first, 0])
    for i in range(first + 1, end):
        if span_bytes <= points[i, 0]:
            run = points[i, 0] - points[i - 1, 0]
            rise = points[i, 1] - points[i - 1, 1]
            return points[i - 1, 1] + rise * (span_bytes - points[i - 1, 0]) // run
    return points[end - 1, 1]


@jit
def stretched(wire_bytes, share):
    """Bytes that keep a link busy for as long as `wire_bytes` do at `share` millionths of its rate."""
    return (wire_bytes * 1_000_000 + share - 1) // share


@jit
def tail_ps(steps, first, end, seed, kernel, block, number):
    """What a request takes more than usual, drawn from its place in the trace [ps].

    steps int64[n, 2], of which rows first..end are the tier's: (slowest of a million, extra ps), rarer
    ones later. The draw is a mix of seed, kernel, block and number, so it does not depend on time.
    """
    x = (seed % _PRIME * 1_299_709 + kernel % _PRIME * 15_485_863) % _PRIME
    x = (x * 48_271 + block % _PRIME * 1_000_003 + number % _PRIME * 524_287 + 11) % _PRIME
    for _ in range(3):
        x = (x ^ (x >> 15)) % _PRIME * 48_271 % _PRIME
    place = x % 1_000_000
    extra_ps = 0
    for i in range(first, end):
        if place < steps[i, 0]:
            extra_ps = steps[i, 1]
    return extra_ps


@jit
def loaded_ps(points, first, end, load):
    """What a request takes more at a load [millionths of the rate].

    Linear between the points; as at the first point below it, and as at the last above it.
    points int64[n, 2], of which rows first..end are the tier's: (load, extra ps), loads rising
    """
    if load <= points[first, 0]:
        return points[first, 1]
    for i in range(first + 1, end):
        if load <= points[i, 0]:
            run = points[i, 0] - points[i - 1, 0]
            rise = points[i, 1] - points[i - 1, 1]
            return points[i - 1, 1] + rise * (load - points[i - 1, 0]) // run
    return points[end - 1, 1]


@jit
def drawn_before(phase, number, ppm):
    """Requests drawn of the first `number` of a sequence: `ppm` of a million, evenly spread, exact to one.

    phase  0..999,999: where in the spacing the sequence begins
    """
    return (phase + number * ppm) // 1_000_000


@jit
def is_drawn(phase, number, ppm):
    """Whether request `number` of a sequence is drawn (see drawn_before)."""
    return drawn_before(phase, number + 1, ppm) > drawn_before(phase, number, ppm)


@jit
def draw_cached(block, op, number, hit_ppm, dirty_ppm):
    """What the cache does with a request: (whether its lines are there, whether it pushes out dirty ones).

    block is numbered in its kernel, op in its block, the request in its op. A request that finds its lines
    pushes out none. The steps from block to block and op to op are fractions of square roots (odd, in
    millionths), others for each draw, so that also sequences of one request are drawn evenly, and apart.
    """
    phase = (block * 618_033 + op * 414_213) % 1_000_000
    hits = drawn_before(phase, number, hit_ppm)
    if drawn_before(phase, number + 1, hit_ppm) > hits:
        return True, False
    phase = (block * 732_051 + op * 645_751) % 1_000_000
    return False, is_drawn(phase, number - hits, dirty_ppm)


@jit
def draw_walks(block, op, number, walk_ppm, again_ppm):
    """Levels of address translation that a request misses, 0 to 2; numbered as in draw_cached."""
    phase = (block * 316_623 + op * 605_551) % 1_000_000
    walks = drawn_before(phase, number, walk_ppm)
    if drawn_before(phase, number + 1, walk_ppm) == walks:
        return 0
    phase = (block * 123_107 + op * 358_899) % 1_000_000
    return 1 + is_drawn(phase, walks, again_ppm)


@jit
def latency_bucket(latency_ps):
    """Bucket of a latency in a histogram with eight buckets an octave (0..15 ps have one each)."""
    if latency_ps < 16:
        return latency_ps
    octave = 0
    rest = latency_ps
    for step in (32, 16, 8, 4, 2, 1):
        if rest >> step:
            rest >>= step
            octave += step
    return 16 + (octave - 4) * 8 + ((latency_ps >> (octave - 3)) & 7)


def bucket_floor_ps(bucket: int) -> int:
    """Smallest latency that falls into a bucket [ps]."""
    if bucket < 16:
        return bucket
    octave, eighth = divmod(bucket - 16, 8)
    return (8 + eighth) << (octave + 1)


@jit
def residue(x):
    """x mod 2^31 - 1 of 0 <= x < 2^63, without a division: 2^31 counts as 1."""
    x = (x & _PRIME) + (x >> 31)
    x = (x & _PRIME) + (x >> 31)
    return x - _PRIME * int(x >= _PRIME)


@jit
def digest_term(block, number, elapsed_ps):
    """Contribution of one request to its kernel's digest; squared, so that exchanged times show."""
    x = residue(residue(elapsed_ps) * 1_000_003 + residue(block) * 8_191 + residue(number) * 524_287)
    return residue(x * x)
