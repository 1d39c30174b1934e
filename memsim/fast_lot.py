"""What `fast_ring` replays, cut into lots: requests of one op of the block that is alive.

Here is all that changes in such a replay (`Ring`), and how an op's rows become requests with their channels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memsim.fast_state import CHANNELS, LARGEST_BYTES, RATE, ROUTES, SERVER_COLUMNS, UNIT
from memsim.jit import inner
from memsim.lanes import channel_of_lane, dealt_lane, next_lane
from memsim.rules import (  # fmt: skip
    GATHER_AT,
    IS_DEPENDENT,
    IS_WRITE,
    PAGE_ROWS,
    PIECE_AT,
    REGION,
    ROW_BYTES,
    ROWS,
    SHARE_AT,
    STRIDE,
    TILE_ROWS,
    next_span,
    request_bytes,
    rounded_bytes,
    row_of,
)

LOT = 1024  # requests of one op that are cut, served and counted together

# Ring.at: the tier; log2 of its interleave; the block, its op, its next request; the cursor in the op (as in
# fast_state: OP_ROW begins the next tile, SPAN_LEFT is left of the open tile's span); when the block issued
# last; the last end of the open tile's requests so far; when the last tile was booked; the last end of all
# tiles; the place of the next tile
(
    AT_TIER, AT_SHIFT, AT_BLOCK, AT_OP, AT_NUMBER, AT_OP_ROW, AT_ROW, AT_ROW_END, AT_SECOND, AT_OFFSET,
    AT_LEFT, AT_TRANSFER, AT_NOW_PS, AT_TILE_PS, AT_BOOKED_PS, AT_LAST_PS, AT_PLACE,
) = range(17)  # fmt: skip
OPENS_AFTER_ALL = 2  # in Ring.opens: a tile that waits for all before it


class Ring(NamedTuple):
    """All that changes.

    at       int64[17]
    servers  int64[channels + 2, 7]  the tier's channels, the cache, and the arithmetic of the unit (see
             State.servers)
    ends     int64[tiles in flight]  when tiles end: in order a ring, else a heap with the first end on top
    opens, closes  int64[LOT]  of each request of a lot whether it is its tile's first (1, or
             OPENS_AFTER_ALL), and its last
    offset, nbytes, transfer   int64[LOT]  where it is, its bytes, those of its span in whole transactions
    channel                    int64[LOT]  of its first piece
    issue_ps, done_ps          int64[LOT]  when it is issued and complete
    bucket                     int64[LOT]  of its latency
    """

    at: np.ndarray
    servers: np.ndarray
    ends: np.ndarray
    opens: np.ndarray
    closes: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    transfer: np.ndarray
    channel: np.ndarray
    issue_ps: np.ndarray
    done_ps: np.ndarray
    bucket: np.ndarray


def fresh_ring(tier: int, channels: int, interleave_bytes: int, read_mbps: int, most: int) -> Ring:
    """The ring of a segment on one tier, of whose tiles at most `most` are outstanding."""
    at = np.zeros(17, np.int64)
    at[AT_TIER], at[AT_SHIFT], at[AT_BLOCK] = tier, interleave_bytes.bit_length() - 1, -1
    servers = np.zeros((channels + 2, SERVER_COLUMNS), np.int64)
    servers[:, RATE] = 1
    servers[:channels, RATE] = read_mbps  # WAY: they read
    return Ring(at, servers, np.zeros(most, np.int64), *(np.zeros(LOT, np.int64) for _ in range(9)))


@inner
def cut(hw, prog, memory, ring):
    """Cut the op's next rows into requests, as many as a lot holds; returns how many, 0 at its end."""
    at, op = ring.at, ring.at[AT_OP]
    rows, tile_rows = prog.ops.table[op, ROWS], prog.ops.table[op, TILE_ROWS]
    path = prog.kernels[0, ROUTES] + at[AT_TIER]
    largest = hw.paths[path, LARGEST_BYTES + prog.ops.table[op, IS_WRITE]]
    unit = hw.tiers[at[AT_TIER], UNIT]
    if rows_stand_alone(prog, memory, op, largest):
        return cut_rows(prog, memory, ring, unit)
    op_row, row, row_end, second = at[AT_OP_ROW], at[AT_ROW], at[AT_ROW_END], at[AT_SECOND]
    offset, left, transfer = at[AT_OFFSET], at[AT_LEFT], at[AT_TRANSFER]
    nbytes = request_bytes(offset, left, largest)
    count = opens = 0
    while count < LOT:
        if left > 0:
            left -= nbytes
            ring.opens[count] = opens
            ring.closes[count] = left == 0 and row == row_end
            ring.offset[count] = offset
            ring.nbytes[count] = nbytes
            ring.transfer[count] = transfer
            offset += nbytes
            nbytes = min(left, largest)  # the first one of a span ends at a multiple of the largest
            opens = 0
            count += 1
        elif row < row_end:
            _, offset, left, row, second = next_span(prog.ops, memory, op, row, row_end, second)
            transfer = rounded_bytes(offset, left, unit)
            nbytes = request_bytes(offset, left, largest)
        elif op_row < rows:
            opens = OPENS_AFTER_ALL if op_row == 0 and prog.ops.table[op, IS_DEPENDENT] else 1
            row, row_end = op_row, min(op_row + tile_rows, rows)
            op_row = row_end
        else:
            break
    at[AT_OP_ROW], at[AT_ROW], at[AT_ROW_END], at[AT_SECOND] = op_row, row, row_end, second
    at[AT_OFFSET], at[AT_LEFT], at[AT_TRANSFER] = offset, left, transfer
    return count


@inner
def rows_stand_alone(prog, memory, op, largest):
    """Whether each row of an op is a span and a request of its own, and lies where its number says."""
    region = prog.ops.table[op, REGION]
    piece = memory.regions[region, PIECE_AT]
    apart = prog.ops.table[op, GATHER_AT] >= 0 or prog.ops.table[op, STRIDE] != 1
    return (
        (apart or prog.ops.table[op, TILE_ROWS] == 1)
        and memory.regions[region, PAGE_ROWS] == 0
        and memory.regions[region, ROW_BYTES] <= largest
        and memory.regions[region + 1, PIECE_AT] == piece + 1
        and memory.pieces[piece + 1, SHARE_AT] == memory.pieces[piece, SHARE_AT] + 1
    )


@inner
def cut_rows(prog, memory, ring, unit):
    """Cut a lot as `cut` does, where rows stand alone: AT_OP_ROW is the next row."""
    at, op, first = ring.at, ring.at[AT_OP], ring.at[AT_OP_ROW]
    rows, tile_rows = prog.ops.table[op, ROWS], prog.ops.table[op, TILE_ROWS]
    row_bytes = memory.regions[prog.ops.table[op, REGION], ROW_BYTES]
    count = min(LOT, rows - first)
    for i in range(count):
        offset = row_of(prog.ops, op, first + i) * row_bytes
        ring.offset[i] = offset
        ring.nbytes[i] = row_bytes
        ring.transfer[i] = rounded_bytes(offset, row_bytes, unit)
    inside = first % tile_rows
    for i in range(count):
        ring.opens[i] = inside == 0
        inside += 1
        ring.closes[i] = inside == tile_rows or first + i + 1 == rows
        inside = 0 if inside == tile_rows else inside
    if first == 0 and count and prog.ops.table[op, IS_DEPENDENT]:
        ring.opens[0] = OPENS_AFTER_ALL
    at[AT_OP_ROW] += count
    return count


@inner
def find_channels(hw, prog, ring, count):
    """The channel of each request's first piece; where rows lie together, from that of the one before."""
    shift, channels = ring.at[AT_SHIFT], hw.tiers[ring.at[AT_TIER], CHANNELS]
    if prog.ops.table[ring.at[AT_OP], GATHER_AT] >= 0 or prog.ops.table[ring.at[AT_OP], STRIDE] != 1:
        for i in range(count):
            ring.channel[i] = channel_of_lane(ring.offset[i] >> shift, channels)
        return
    before = ring.offset[0] >> shift
    turn, channel, place = dealt_lane(before, channels)
    for i in range(count):
        lane = ring.offset[i] >> shift
        if lane == before + 1:
            turn, channel, place = next_lane(turn, channel, place, channels)
        elif lane != before:
            turn, channel, place = dealt_lane(lane, channels)
        before = lane
        ring.channel[i] = channel


@inner
def begin_op(ring, op):
    """Put the cursor before the first row of an op."""
    ring.at[AT_OP] = op
    ring.at[AT_OP_ROW] = ring.at[AT_ROW] = ring.at[AT_ROW_END] = 0
