"""Cut the accesses of a kernel into parts in the order of their time, and these into units of memory.

Enters the table of a kernel's accesses; leaves rows for `plan_stack`. Blocks that a machine holds at once
run side by side: a part is what they do of one access, and parts follow each other by wave of blocks, then by
their place in a block's program. So a tile that is read and written back comes back soon, however long the
kernel is, and a second pass comes back after the first one of all blocks. Left out: how far one block runs
ahead of another.

Compiled: arrays in, arrays out. All numbers are int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memsim.jit import inner, jit
from memsim.trace import EVEN

# Columns of a table of accesses.
(
    A_BLOCK, A_BLOCK_LAST, A_REGION, A_WRITE, A_FIRST_ROW, A_ROWS, A_STRIDE, A_SPREAD, A_GRAIN, A_GATHER_AT,
) = range(10)  # fmt: skip
# Columns of a cut: when (wave, then place in the block's program), number of the access, its rows from-to.
C_WHEN, C_NUMBER, C_BEGIN, C_END = range(4)
CUT_COLUMNS = 4
# Columns of View.pieces.
V_BEGIN, V_END, V_ROW_BYTES, V_WEIGHT, V_TOTAL, V_BASE, V_UNIT = range(7)
# Columns of parts. The first six are what parts are sorted by.
(
    WHEN, REGION, SPARSE, FIRST, STRIDE, UNITS, END, BYTES, NUMBER, WRITE, LIST_AT,
    NEW, MISSED, PUSHED, RUN,
) = range(15)  # fmt: skip
PART_COLUMNS = 15
STRIDED = 4096  # rows of a strided access of which each is a part: which of them meet is known exactly


class View(NamedTuple):
    """Those rows of all regions that lie in some tiers, and the units that they are counted in.

    piece_at  int64[regions + 1]  first piece of each region
    pieces    int64[pieces, 7]    rows begin..end; bytes of a row; of `total` rows `weight` lie in these
                                  tiers; number of the first unit; bytes of a unit, 0: a unit is a row
    """

    piece_at: np.ndarray
    pieces: np.ndarray


@jit
def share_of(value, part, whole):
    """Value x part / whole, rounded down, inside int64; all of it where part is not less than whole."""
    if part >= whole:
        return value
    while whole >= 1 << 31:
        part >>= 1
        whole >>= 1
    return value // whole * part + value % whole * part // whole


@inner
def dealt_rows(accesses, number, blocks):
    """Rows that the first `blocks` blocks of an `even` access have together."""
    grain = accesses[number, A_GRAIN]
    grains = (accesses[number, A_ROWS] + grain - 1) // grain
    span = accesses[number, A_BLOCK_LAST] - accesses[number, A_BLOCK] + 1
    each = grains // span
    return min((each * blocks + min(blocks, grains - each * span)) * grain, accesses[number, A_ROWS])


@jit
def cut(accesses, resident, places, cuts):
    """Write the parts of a kernel's accesses into `cuts`; returns how many.

    resident  blocks that run side by side
    places    zeros, int64[blocks]: accesses that each block has had so far
    """
    count = 0
    for number in range(len(accesses)):
        first, last = accesses[number, A_BLOCK], accesses[number, A_BLOCK_LAST]
        even = accesses[number, A_SPREAD] == EVEN
        waves = last // resident - first // resident + 1 if even else 1
        for i in range(waves):
            wave = first // resident + i
            mine = max(first, wave * resident)
            cuts[count, C_WHEN] = wave << 32 | places[mine]
            cuts[count, C_NUMBER] = number
            cuts[count, C_BEGIN] = dealt_rows(accesses, number, mine - first) if even else 0
            cuts[count, C_END] = accesses[number, A_ROWS]
            if even:
                behind = min(last + 1, (wave + 1) * resident)
                cuts[count, C_END] = dealt_rows(accesses, number, behind - first)
            count += cuts[count, C_END] > cuts[count, C_BEGIN]
        for block in range(first, last + 1):
            places[block] += 1
    return count


@inner
def unit_of(view, piece, row):
    """Unit of the view that a row of one of its pieces begins in."""
    if view.pieces[piece, V_UNIT] == 0:
        return row
    offset = (row - view.pieces[piece, V_BEGIN]) * view.pieces[piece, V_ROW_BYTES]
    offset = share_of(offset, view.pieces[piece, V_WEIGHT], view.pieces[piece, V_TOTAL])
    return view.pieces[piece, V_BASE] + offset // view.pieces[piece, V_UNIT]


@inner
def bytes_of(view, piece, rows):
    """Bytes of rows of a piece that lie in the view's tiers."""
    nbytes = rows * view.pieces[piece, V_ROW_BYTES]
    return share_of(nbytes, view.pieces[piece, V_WEIGHT], view.pieces[piece, V_TOTAL])


@inner
def write_run(view, piece, first, rows, stride, parts, at):
    """Rows first, first + stride, ... of a piece as part number `at`."""
    last = first + (rows - 1) * stride
    unit = view.pieces[piece, V_UNIT]
    begin, step = unit_of(view, piece, first), stride
    end = unit_of(view, piece, last) + 1
    units, nbytes = rows, bytes_of(view, piece, rows)
    if unit:
        step = bytes_of(view, piece, stride) // unit
        if step <= 1:  # every unit on the way, that of the last byte included
            behind = bytes_of(view, piece, last + 1 - view.pieces[piece, V_BEGIN]) - 1
            end = max(end, view.pieces[piece, V_BASE] + behind // unit + 1)
            units, step = end - begin, 1
        nbytes = units * unit
    parts[at, SPARSE] = step > 1 and units > 1
    parts[at, FIRST] = begin
    parts[at, STRIDE] = step
    parts[at, UNITS] = units
    parts[at, END] = end
    parts[at, BYTES] = nbytes
    parts[at, LIST_AT] = -1


@inner
def write_list(view, first_piece, end_piece, listed, begin, end, found, found_at, parts, at):
    """Listed rows begin..end that lie in some pieces as part number `at`, their units into `found`."""
    count = nbytes = last = 0
    least = 1 << 62
    for piece in range(first_piece, end_piece):
        first_row, end_row, before = view.pieces[piece, V_BEGIN], view.pieces[piece, V_END], count
        for i in range(begin, end):
            if first_row <= listed[i] < end_row:
                unit = unit_of(view, piece, listed[i])
                found[found_at + count] = unit
                count += 1
                least = min(least, unit)
                last = max(last, unit)
        unit_bytes = view.pieces[piece, V_UNIT]
        nbytes += (count - before) * unit_bytes if unit_bytes else bytes_of(view, piece, count - before)
    parts[at, SPARSE] = 1
    parts[at, FIRST] = least
    parts[at, STRIDE] = 1
    parts[at, UNITS] = count
    parts[at, END] = last + 1
    parts[at, BYTES] = nbytes
    parts[at, LIST_AT] = found_at
    return count


@inner
def name_part(parts, at, cuts, i, accesses):
    """When, where and by whom part number `at` is touched."""
    number = cuts[i, C_NUMBER]
    parts[at, WHEN] = cuts[i, C_WHEN]
    parts[at, REGION] = accesses[number, A_REGION]
    parts[at, NUMBER] = number
    parts[at, WRITE] = accesses[number, A_WRITE]


@jit
def see(view, accesses, cuts, count, listed, found, parts):
    """The `count` cuts of a kernel as `parts` of a view; returns how many.

    listed, found  int64[m]  rows of the kernel's row lists; their units
    """
    parts_count = found_count = 0
    for i in range(count):
        number = cuts[i, C_NUMBER]
        region = accesses[number, A_REGION]
        first_piece, end_piece = view.piece_at[region], view.piece_at[region + 1]
        begin, end = cuts[i, C_BEGIN], cuts[i, C_END]
        if first_piece == end_piece:
            continue
        if accesses[number, A_GATHER_AT] >= 0:
            at = accesses[number, A_GATHER_AT]
            units = write_list(
                view,
                first_piece,
                end_piece,
                listed,
                at + begin,
                at + end,
                found,
                found_count,
                parts,
                parts_count,
            )
            name_part(parts, parts_count, cuts, i, accesses)
            found_count += units
            parts_count += units > 0
            continue
        first, stride = accesses[number, A_FIRST_ROW], accesses[number, A_STRIDE]
        for piece in range(first_piece, end_piece):  # rows of the run that lie in the piece
            low = max(begin, (view.pieces[piece, V_BEGIN] - first + stride - 1) // stride)
            high = min(end, (view.pieces[piece, V_END] - first + stride - 1) // stride)
            each = 1 if stride > 1 and accesses[number, A_ROWS] <= STRIDED else max(1, high - low)
            for row in range(low, high, each):
                write_run(view, piece, first + row * stride, each, stride, parts, parts_count)
                name_part(parts, parts_count, cuts, i, accesses)
                parts_count += 1
    return parts_count


@jit
def add_up(parts, count, totals):
    """Add to totals int64[accesses, 3] what each access asked for, missed and pushed out [bytes]."""
    for i in range(count):
        number = parts[i, NUMBER]
        totals[number, 0] += parts[i, BYTES]
        totals[number, 1] += parts[i, MISSED]
        totals[number, 2] += parts[i, PUSHED]


@jit
def rate(totals, shares):
    """Write into the first columns of `shares` what each access finds, and what its misses push out [ppm]."""
    for number in range(len(totals)):
        asked, missed, pushed = totals[number, 0], totals[number, 1], totals[number, 2]
        shares[number, 0] = share_of(1_000_000, asked - missed, asked) if asked else 0
        shares[number, 1] = share_of(1_000_000, pushed, missed) if missed else 0
