"""What a touch finds on the stack: the entries that it meets, and how much of each is still in the cache.

Nothing on the stack changes here but the notes of the present touch.
"""

from __future__ import annotations

from memsim.jit import inner
from memsim.plan_parts import BYTES, END, MISSED, NEW, REGION, RUN, SPARSE, UNITS, share_of
from memsim.plan_stack import (
    E_BY_ONE,
    E_BYTES,
    E_DIRTY,
    E_END,
    E_FIRST,
    E_LAYER,
    E_MARK,
    E_REGION,
    L_DIRTY,
    L_HELD,
    L_HIT,
    L_KEPT,
    L_TAKEN,
    L_TAKEN_DIRTY,
    L_TAKEN_HELD,
    L_WEIGHT,
    MILLION,
    R_BYTES,
    R_DIRTY,
    R_END,
    R_FIRST,
    R_FOUND,
    R_MARK,
    R_REGION,
    R_SPARSE,
    R_UNITS,
    R_WRITTEN,
    S_BOTTOM,
    S_BY_ONE,
    S_LISTS,
    S_RANGES,
    S_RUNS,
    S_TAKES,
    S_TOP,
    T_BY,
    T_BY_ONE,
    T_BY_RUN,
    T_BYTES,
    T_DIRTY,
    T_ENTRY,
    T_HELD,
    T_IS_LIST,
    T_LAYER,
    kept_ppm,
    run_of,
    weight_of,
)


@inner
def take(stack, by, by_run, entry, is_list, nbytes):
    """Note that some bytes of a range or list are taken up. False: there is no room for the note."""
    entries = stack.lists if is_list else stack.ranges
    at = stack.sizes[S_TAKES]
    if nbytes == 0:
        return True
    if at == len(stack.takes):
        return False
    stack.takes[at, T_BY] = by
    stack.takes[at, T_BY_RUN] = by_run
    stack.takes[at, T_ENTRY] = entry
    stack.takes[at, T_IS_LIST] = is_list
    stack.takes[at, T_LAYER] = entries[entry, E_LAYER]
    stack.takes[at, T_BYTES] = nbytes
    stack.takes[at, T_DIRTY] = share_of(entries[entry, E_DIRTY], nbytes, entries[entry, E_BYTES])
    stack.takes[at, T_BY_ONE] = entries[entry, E_BY_ONE]
    stack.sizes[S_TAKES] += 1
    return True


@inner
def overlap(entries, entry, first, end):
    """Bytes of a range or list between two units, as many as lie evenly there."""
    begin, behind = entries[entry, E_FIRST], entries[entry, E_END]
    return share_of(entries[entry, E_BYTES], max(0, min(end, behind) - max(first, begin)), behind - begin)


@inner
def first_range(stack, region, unit):
    """First range of a region that ends after a unit, or the first one of a later region."""
    low, high = 0, stack.sizes[S_RANGES]
    while low < high:
        middle = (low + high) // 2
        here = stack.ranges[middle, E_REGION]
        if here < region or (here == region and stack.ranges[middle, E_END] <= unit):
            low = middle + 1
        else:
            high = middle
    return low


@inner
def look_up_part(stack, touched, part):
    """Take up what the new units of a run of units find. False: no room."""
    parts = touched.parts
    region, end = parts[part, REGION], parts[part, END]
    first = end - parts[part, NEW]
    left = share_of(parts[part, BYTES], parts[part, NEW], parts[part, UNITS])
    entry = first_range(stack, region, first)
    while entry < stack.sizes[S_RANGES] and stack.ranges[entry, E_REGION] == region:
        if stack.ranges[entry, E_FIRST] >= end:
            break
        if stack.ranges[entry, E_LAYER] >= stack.sizes[S_BOTTOM]:
            nbytes = min(left, overlap(stack.ranges, entry, first, end))
            left -= nbytes
            if not take(stack, part, 0, entry, 0, nbytes):
                return False
        entry += 1
    for entry in range(stack.sizes[S_LISTS]):
        if stack.lists[entry, E_REGION] == region and stack.lists[entry, E_LAYER] >= stack.sizes[S_BOTTOM]:
            nbytes = min(left, overlap(stack.lists, entry, first, end))
            left -= nbytes
            if not take(stack, part, 0, entry, 1, nbytes):
                return False
    return True


@inner
def by_chance(touched, run, entries, entry):
    """Bytes of a range or list that the rows of a run meet by chance."""
    runs = touched.runs
    nbytes = overlap(entries, entry, runs[run, R_FIRST], runs[run, R_END])
    return share_of(nbytes, runs[run, R_UNITS], runs[run, R_END] - runs[run, R_FIRST])


@inner
def look_up_rows(stack, touched, run):
    """Take up what scattered rows find: the same list as a whole, others by chance. False: no room."""
    runs, lists, bottom = touched.runs, stack.lists, stack.sizes[S_BOTTOM]
    region, left = runs[run, R_REGION], runs[run, R_BYTES]
    for entry in range(stack.sizes[S_LISTS]):
        same = lists[entry, E_REGION] == region and lists[entry, E_MARK] == runs[run, R_MARK]
        if same and lists[entry, E_LAYER] >= bottom:
            nbytes = min(left, lists[entry, E_BYTES])
            left -= nbytes
            if not take(stack, run, 1, entry, 1, nbytes):
                return False
    for entry in range(stack.sizes[S_LISTS]):
        same = lists[entry, E_REGION] == region and lists[entry, E_MARK] != runs[run, R_MARK]
        if same and lists[entry, E_LAYER] >= bottom:
            nbytes = min(left, by_chance(touched, run, lists, entry))
            left -= nbytes
            if not take(stack, run, 1, entry, 1, nbytes):
                return False
    entry = first_range(stack, region, runs[run, R_FIRST])
    while entry < stack.sizes[S_RANGES] and stack.ranges[entry, E_REGION] == region:
        if stack.ranges[entry, E_FIRST] >= runs[run, R_END]:
            break
        if stack.ranges[entry, E_LAYER] >= bottom:
            nbytes = min(left, by_chance(touched, run, stack.ranges, entry))
            left -= nbytes
            if not take(stack, run, 1, entry, 0, nbytes):
                return False
        entry += 1
    return True


@inner
def look_up(stack, touched, begin, end):
    """Take up all that parts begin..end find. False: no room, and nothing has changed."""
    stack.sizes[S_TAKES] = 0
    for k in range(begin, end):
        part = touched.order[k]
        if (
            not touched.parts[part, SPARSE]
            and touched.parts[part, NEW]
            and not look_up_part(stack, touched, part)
        ):
            return False
    for run in range(stack.sizes[S_RUNS]):
        if touched.runs[run, R_SPARSE] and not look_up_rows(stack, touched, run):
            return False
    return True


@inner
def weigh(stack, touched):
    """Add up what is taken of each layer; returns the weight of what is touched."""
    layers, takes, runs = stack.layers, stack.takes, touched.runs
    for at in range(stack.sizes[S_TAKES]):
        layer = takes[at, T_LAYER]
        held = share_of(layers[layer, L_HELD], takes[at, T_DIRTY], layers[layer, L_DIRTY])
        held = min(held, takes[at, T_DIRTY], layers[layer, L_HELD] - layers[layer, L_TAKEN_HELD])
        takes[at, T_HELD] = held
        nbytes, dirty, by_one = takes[at, T_BYTES], takes[at, T_DIRTY], takes[at, T_BY_ONE]
        layers[layer, L_TAKEN] += weight_of(stack, nbytes, dirty, by_one)
        layers[layer, L_TAKEN_DIRTY] += takes[at, T_DIRTY]
        layers[layer, L_TAKEN_HELD] += held
        runs[run_of(stack, touched, at), R_DIRTY] += held
    weight = 0
    for run in range(stack.sizes[S_RUNS]):
        dirty = min(runs[run, R_BYTES], runs[run, R_WRITTEN] + runs[run, R_DIRTY])
        runs[run, R_DIRTY] = 0
        weight += weight_of(stack, runs[run, R_BYTES], dirty, stack.sizes[S_BY_ONE])
    return weight


@inner
def judge_layers(stack, weight):
    """Share of each layer that is found by a touch of so much weight.

    Its first unit finds that of a layer which was touched first, beneath all of that layer; its last one
    the layer's last, beneath all that is touched now, save what that has taken up from above.
    """
    layers = stack.layers
    above = taken = 0
    for layer in range(stack.sizes[S_TOP], stack.sizes[S_BOTTOM] - 1, -1):
        hit = kept_ppm(stack, above + layers[layer, L_WEIGHT], above - taken + weight)
        layers[layer, L_HIT] = min(hit, layers[layer, L_KEPT])
        above += layers[layer, L_WEIGHT]
        taken += layers[layer, L_TAKEN]


@inner
def find(stack, touched, begin, end):
    """Say what parts begin..end miss; returns dirty bytes that had left before they were touched again."""
    parts, runs, layers, takes = touched.parts, touched.runs, stack.layers, stack.takes
    left = 0
    for k in range(begin, end):
        part = touched.order[k]
        parts[part, MISSED] = share_of(parts[part, BYTES], parts[part, NEW], parts[part, UNITS])
    for at in range(stack.sizes[S_TAKES]):
        layer, by = takes[at, T_LAYER], takes[at, T_BY]
        found = share_of(takes[at, T_BYTES], layers[layer, L_HIT], MILLION)
        kept = share_of(takes[at, T_HELD], layers[layer, L_HIT], layers[layer, L_KEPT])
        runs[run_of(stack, touched, at), R_DIRTY] += kept
        left += takes[at, T_HELD] - kept
        if takes[at, T_BY_RUN]:
            runs[by, R_FOUND] += found
        else:
            parts[by, MISSED] -= found
    for k in range(begin, end):
        part = touched.order[k]
        run = parts[part, RUN]
        if parts[part, SPARSE]:
            parts[part, MISSED] -= share_of(runs[run, R_FOUND], parts[part, MISSED], runs[run, R_BYTES])
    return left
