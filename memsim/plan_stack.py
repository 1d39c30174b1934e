"""An LRU stack of touched ranges: what is kept of what was touched how long ago.

The stack is made of layers, what was touched at about the same time, the latest on top; ranges and row lists
say which units of which region lie in which layer. A unit's distance is the weight of all that was touched
after it: bytes, those that several blocks only read times the copies that the cache keeps of them. Inside a
layer, and inside what is touched at once, units come in the same order, spread evenly. `Stack.kept` says what
is kept at a distance: all up to the capacity, or what is found by lines that fall to sets like dice.

Two row lists that are not the same, or a list and a run, share as many rows as chance gives. Of the latest
`LISTS` lists it is known which rows they are. How long a touch takes grows with the parts of a kernel: what
makes up less than a layer is one touch, so few touches meet many entries.

Compiled: arrays in, arrays out, nothing allocated. All numbers are int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memsim.jit import inner, jit
from memsim.plan_parts import RUN

MILLION = 1_000_000
LAYERS = 2048  # places for layers
LAYERS_OF_CAPACITY = 256  # layers that make up the capacity: what is not told apart in time is 1 / 256 of it
LISTS = 1024
SORTED_BY = 6  # columns of parts

# Places in Stack.sizes.
(
    S_RANGES, S_LISTS, S_BOTTOM, S_TOP, S_OWED, S_STAMP, S_STEP, S_BY_ONE, S_COPIES, S_LAYER, S_SHIFT,
    S_TAKES, S_RUNS,
) = range(13)  # fmt: skip
# Columns of Stack.ranges and .lists.
E_REGION, E_FIRST, E_END, E_BYTES, E_DIRTY, E_LAYER, E_BY_ONE, E_MARK = range(8)
E_COLUMNS = 8
# Columns of Stack.layers.
L_WEIGHT, L_DIRTY, L_HELD, L_KEPT, L_HIT, L_TAKEN, L_TAKEN_DIRTY, L_TAKEN_HELD = range(8)
# Columns of Stack.takes.
T_BY, T_BY_RUN, T_ENTRY, T_IS_LIST, T_LAYER, T_BYTES, T_DIRTY, T_HELD, T_BY_ONE = range(9)
T_COLUMNS = 9
# Columns of Touched.runs.
R_REGION, R_SPARSE, R_FIRST, R_END, R_UNITS, R_BYTES, R_WRITTEN, R_DIRTY, R_MARK, R_FOUND = range(10)
RUN_COLUMNS = 10


class Stack(NamedTuple):
    """The stack. Distances are kept as they are; those of `kept` are in 2^shift bytes, so that products fit.

    sizes   int64[13]   ranges, lists, bottom and top layer, dirty bytes pushed out and not yet written,
                        stamp of `seen`, step of `kept`, whether one block alone touches now, copies, bytes of
                        a layer, shift, takes, runs
    ranges  int64[n, 8] region, first unit, end, bytes, dirty bytes, layer, whether one block alone touched
                        them, 0; by region and unit, disjoint
    spare   int64[n, 8] room to rebuild them
    lists   int64[LISTS, 8]   the same for row lists between two units; the last column tells which rows
    layers  int64[LAYERS, 8]  weight; dirty bytes of its ranges; those still in the cache; share kept [ppm];
                        share found by the present touch [ppm]; what that takes: weight, dirty, still held
    takes   int64[m, 9] what the present touch takes up: by which part (or run), from which entry, layer,
                        bytes, dirty bytes, those still held, whether one block alone had
    kept    int64[k]    bytes kept between the top and a depth of 0, 1, 2, ... steps
    """

    sizes: np.ndarray
    ranges: np.ndarray
    spare: np.ndarray
    lists: np.ndarray
    layers: np.ndarray
    takes: np.ndarray
    kept: np.ndarray


class Touched(NamedTuple):
    """What a kernel touches.

    parts  int64[n, 17]; order, aside  int64[n]: parts sorted, room to sort; runs  int64[n, 10]
    rows   int64[m]     units of row lists; seen  int64[2^k, 2]: those that came before, and a stamp
    """

    parts: np.ndarray
    order: np.ndarray
    aside: np.ndarray
    runs: np.ndarray
    rows: np.ndarray
    seen: np.ndarray


@inner
def weight_of(stack, nbytes, dirty, by_one):
    """Room that bytes take: those that several blocks have only read once for each copy."""
    return nbytes if by_one else (nbytes - dirty) * stack.sizes[S_COPIES] + dirty


@inner
def kept_below(stack, depth):
    """Bytes kept between the top of the stack and a depth, both in 2^shift bytes."""
    step, last = stack.sizes[S_STEP], len(stack.kept) - 1
    at = min(depth // step, last)
    if at == last:
        return stack.kept[last]
    return stack.kept[at] + (stack.kept[at + 1] - stack.kept[at]) * (depth - at * step) // step


@inner
def kept_ppm(stack, one, other):
    """Share kept of what lies evenly between two depths [ppm]."""
    shift, step = stack.sizes[S_SHIFT], stack.sizes[S_STEP]
    near, far = min(one, other) >> shift, max(one, other) >> shift
    if near == far:  # as at the depth
        at = min(near // step, len(stack.kept) - 2)
        near, far = at * step, (at + 1) * step
        if one >> shift > far:
            return 0
    return (kept_below(stack, far) - kept_below(stack, near)) * MILLION // (far - near)


@inner
def run_of(stack, touched, at):
    """The run that a take is for."""
    return stack.takes[at, T_BY] if stack.takes[at, T_BY_RUN] else touched.parts[stack.takes[at, T_BY], RUN]


@inner
def next_run(touched, run, count):
    """The next run of units from number `run` on, or `count`."""
    while run < count and touched.runs[run, R_SPARSE]:
        run += 1
    return run


@jit
def held_bytes(stack):
    """Dirty bytes in the cache, and those pushed out for which no line has come in yet."""
    held = stack.sizes[S_OWED]
    for layer in range(stack.sizes[S_BOTTOM], stack.sizes[S_TOP] + 1):
        held += stack.layers[layer, L_HELD]
    return held
