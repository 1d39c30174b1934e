"""What a touch does to the stack: it comes to lie on top, and what is too deep then leaves it."""

from __future__ import annotations

from memsim.jit import inner, jit
from memsim.plan_find import find, judge_layers, look_up, weigh
from memsim.plan_parts import MISSED, PUSHED, WHEN, WRITE, share_of
from memsim.plan_runs import form_runs
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
    L_KEPT,
    L_TAKEN,
    L_TAKEN_DIRTY,
    L_TAKEN_HELD,
    L_WEIGHT,
    LAYERS,
    LISTS,
    MILLION,
    R_BYTES,
    R_DIRTY,
    R_END,
    R_FIRST,
    R_MARK,
    R_REGION,
    R_SPARSE,
    R_WRITTEN,
    S_BOTTOM,
    S_BY_ONE,
    S_LAYER,
    S_LISTS,
    S_OWED,
    S_RANGES,
    S_RUNS,
    S_TAKES,
    S_TOP,
    T_BY,
    T_BY_RUN,
    T_BYTES,
    T_DIRTY,
    T_ENTRY,
    T_HELD,
    T_IS_LIST,
    kept_ppm,
    next_run,
    weight_of,
)


@inner
def take_away(stack):
    """Take from layers, lists and ranges what is touched; runs of units are cut out later."""
    layers, takes = stack.layers, stack.takes
    for layer in range(stack.sizes[S_BOTTOM], stack.sizes[S_TOP] + 1):
        layers[layer, L_WEIGHT] = max(0, layers[layer, L_WEIGHT] - layers[layer, L_TAKEN])
        layers[layer, L_DIRTY] = max(0, layers[layer, L_DIRTY] - layers[layer, L_TAKEN_DIRTY])
        layers[layer, L_HELD] -= layers[layer, L_TAKEN_HELD]
        layers[layer, L_TAKEN] = layers[layer, L_TAKEN_DIRTY] = layers[layer, L_TAKEN_HELD] = 0
    for at in range(stack.sizes[S_TAKES]):
        if takes[at, T_IS_LIST] or takes[at, T_BY_RUN]:
            entries, entry = stack.lists if takes[at, T_IS_LIST] else stack.ranges, takes[at, T_ENTRY]
            entries[entry, E_BYTES] = max(0, entries[entry, E_BYTES] - takes[at, T_BYTES])
            entries[entry, E_DIRTY] = max(0, entries[entry, E_DIRTY] - takes[at, T_DIRTY])


@inner
def push_range(entries, count, region, first, end, amounts, layer):
    """Append a range, or make the last one longer where that says the same; returns how many there are.

    amounts  bytes, dirty bytes, whether one block alone touched them
    """
    nbytes, dirty, by_one = amounts
    if nbytes == 0:
        return count
    last = count - 1
    if (
        count
        and entries[last, E_REGION] == region
        and entries[last, E_END] == first
        and entries[last, E_LAYER] == layer
        and entries[last, E_BY_ONE] == by_one
        and (dirty == 0) == (entries[last, E_DIRTY] == 0)
        and (dirty == nbytes) == (entries[last, E_DIRTY] == entries[last, E_BYTES])
    ):
        entries[last, E_END] = end
        entries[last, E_BYTES] += nbytes
        entries[last, E_DIRTY] += dirty
        return count
    entries[count, E_REGION] = region
    entries[count, E_FIRST] = first
    entries[count, E_END] = end
    entries[count, E_BYTES] = nbytes
    entries[count, E_DIRTY] = dirty
    entries[count, E_LAYER] = layer
    entries[count, E_BY_ONE] = by_one
    return count + 1


@inner
def cut_out(stack, touched):
    """Ranges without what runs of units cover, into `spare`; returns how many."""
    ranges, runs, count = stack.ranges, touched.runs, stack.sizes[S_RUNS]
    run, kept = next_run(touched, 0, count), 0
    for entry in range(stack.sizes[S_RANGES]):
        region, layer = ranges[entry, E_REGION], ranges[entry, E_LAYER]
        if layer < stack.sizes[S_BOTTOM]:
            continue
        first, end = ranges[entry, E_FIRST], ranges[entry, E_END]
        nbytes, dirty = ranges[entry, E_BYTES], ranges[entry, E_DIRTY]
        by_one = ranges[entry, E_BY_ONE]
        while run < count and (
            runs[run, R_REGION] < region or (runs[run, R_REGION] == region and runs[run, R_END] <= first)
        ):
            run = next_run(touched, run + 1, count)
        at = run
        while at < count and runs[at, R_REGION] == region and runs[at, R_FIRST] < end:
            before, behind = max(first, runs[at, R_FIRST]), min(end, runs[at, R_END])
            piece = share_of(nbytes, before - first, end - first)
            part = share_of(dirty, before - first, end - first)
            kept = push_range(stack.spare, kept, region, first, before, (piece, part, by_one), layer)
            nbytes, dirty = (
                share_of(nbytes, end - behind, end - first),
                share_of(dirty, end - behind, end - first),
            )
            first = behind
            at = next_run(touched, at + 1, count)
        kept = push_range(stack.spare, kept, region, first, end, (nbytes, dirty, by_one), layer)
    return kept


@inner
def put_in(stack, touched, kept, layer, count):
    """Join the first `kept` of the spare ranges with the first `count` runs, in a layer."""
    spare, runs = stack.spare, touched.runs
    run, total = next_run(touched, 0, count), 0
    for entry in range(kept + 1):
        while run < count and (
            entry == kept
            or runs[run, R_REGION] < spare[entry, E_REGION]
            or (runs[run, R_REGION] == spare[entry, E_REGION] and runs[run, R_FIRST] < spare[entry, E_FIRST])
        ):
            total = push_range(
                stack.ranges, total, runs[run, R_REGION], runs[run, R_FIRST], runs[run, R_END],
                (runs[run, R_BYTES], runs[run, R_DIRTY], stack.sizes[S_BY_ONE]), layer,
            )  # fmt: skip
            run = next_run(touched, run + 1, count)
        if entry < kept:
            total = push_range(
                stack.ranges, total, spare[entry, E_REGION], spare[entry, E_FIRST], spare[entry, E_END],
                (spare[entry, E_BYTES], spare[entry, E_DIRTY], spare[entry, E_BY_ONE]), spare[entry, E_LAYER],
            )  # fmt: skip
    stack.sizes[S_RANGES] = total


@inner
def put_list(stack, touched, run, layer):
    """Remember a run of scattered rows; the lowest of too many lists is forgotten."""
    lists, runs = stack.lists, touched.runs
    kept = 0
    for entry in range(stack.sizes[S_LISTS]):
        if lists[entry, E_BYTES] and lists[entry, E_LAYER] >= stack.sizes[S_BOTTOM]:
            for column in range(E_MARK + 1):
                lists[kept, column] = lists[entry, column]
            kept += 1
    place = kept
    if kept == LISTS:
        place = 0
        for entry in range(kept):
            if lists[entry, E_LAYER] < lists[place, E_LAYER]:
                place = entry
    lists[place, E_REGION] = runs[run, R_REGION]
    lists[place, E_FIRST] = runs[run, R_FIRST]
    lists[place, E_END] = runs[run, R_END]
    lists[place, E_BYTES] = runs[run, R_BYTES]
    lists[place, E_DIRTY] = runs[run, R_DIRTY]
    lists[place, E_LAYER] = layer
    lists[place, E_BY_ONE] = stack.sizes[S_BY_ONE]
    lists[place, E_MARK] = runs[run, R_MARK]
    stack.sizes[S_LISTS] = min(LISTS, kept + 1)


@inner
def renumber(entries, count, layers):
    """Give ranges or lists the new numbers of their layers; those of layers that are gone have -1."""
    for entry in range(count):
        if entries[entry, E_LAYER] >= 0:
            entries[entry, E_LAYER] = layers[entries[entry, E_LAYER], L_TAKEN]


@inner
def squeeze(stack):
    """Make room for layers: those of the bottom go, thin neighbours become one."""
    layers, sizes = stack.layers, stack.sizes
    bottom, last = sizes[S_BOTTOM], -1
    for layer in range(sizes[S_TOP] + 1):
        if layer < bottom:
            layers[layer, L_TAKEN] = -1  # for this moment: the new number of a layer
            continue
        if last >= 0 and layers[last, L_WEIGHT] + layers[layer, L_WEIGHT] <= sizes[S_LAYER]:
            for column in (L_WEIGHT, L_DIRTY, L_HELD):
                layers[last, column] += layers[layer, column]
            layers[last, L_KEPT] = max(layers[last, L_KEPT], layers[layer, L_KEPT])
        else:
            last += 1
            for column in (L_WEIGHT, L_DIRTY, L_HELD, L_KEPT):
                layers[last, column] = layers[layer, column]
        layers[layer, L_TAKEN] = last
    renumber(stack.ranges, sizes[S_RANGES], layers)
    renumber(stack.lists, sizes[S_LISTS], layers)
    for layer in range(sizes[S_TOP] + 1):
        layers[layer, L_TAKEN] = 0
    sizes[S_BOTTOM] = 0
    sizes[S_TOP] = last


@inner
def put_on_top(stack, touched):
    """Put the runs on top of the stack, into its top layer while that is thin."""
    runs, layers, sizes = touched.runs, stack.layers, stack.sizes
    weight = held = 0
    for run in range(sizes[S_RUNS]):
        runs[run, R_DIRTY] = min(runs[run, R_BYTES], runs[run, R_WRITTEN] + runs[run, R_DIRTY])
        weight += weight_of(stack, runs[run, R_BYTES], runs[run, R_DIRTY], sizes[S_BY_ONE])
        held += runs[run, R_DIRTY]
    top = sizes[S_TOP]
    if top < sizes[S_BOTTOM] or layers[top, L_WEIGHT] + weight > sizes[S_LAYER]:
        if top + 1 == LAYERS:
            squeeze(stack)
        top = sizes[S_TOP] + 1
        sizes[S_TOP] = top
        layers[top, L_WEIGHT] = layers[top, L_DIRTY] = layers[top, L_HELD] = 0
        layers[top, L_KEPT] = MILLION
    layers[top, L_WEIGHT] += weight
    layers[top, L_DIRTY] += held
    layers[top, L_HELD] += held
    put_in(stack, touched, cut_out(stack, touched), top, sizes[S_RUNS])
    for run in range(sizes[S_RUNS]):
        if runs[run, R_SPARSE]:
            put_list(stack, touched, run, top)


@inner
def push_out(stack):
    """Let go what lies too deep now; returns its dirty bytes."""
    layers, sizes = stack.layers, stack.sizes
    above = out = 0
    for layer in range(sizes[S_TOP], sizes[S_BOTTOM] - 1, -1):
        kept = kept_ppm(stack, above, above + layers[layer, L_WEIGHT])
        if kept < layers[layer, L_KEPT]:
            left = share_of(layers[layer, L_HELD], layers[layer, L_KEPT] - kept, layers[layer, L_KEPT])
            layers[layer, L_HELD] -= left
            layers[layer, L_KEPT] = kept
            out += left
        above += layers[layer, L_WEIGHT]
    while sizes[S_BOTTOM] <= sizes[S_TOP] and layers[sizes[S_BOTTOM], L_KEPT] == 0:
        sizes[S_BOTTOM] += 1
    return out


@inner
def charge(stack, touched, begin, end, out):
    """Let what parts begin..end miss write back the dirty bytes, one for each at most; the rest is owed."""
    parts, missed = touched.parts, 0
    for k in range(begin, end):
        missed += parts[touched.order[k], MISSED]
    paid = min(missed, stack.sizes[S_OWED] + out)
    stack.sizes[S_OWED] += out - paid
    for k in range(begin, end):
        part = touched.order[k]
        parts[part, PUSHED] = share_of(paid, parts[part, MISSED], missed) if paid else 0


@inner
def drop(stack, touched):
    """Take out what others touch: of its dirty bytes, those that they read are yet to be written back."""
    takes = stack.takes
    for at in range(stack.sizes[S_TAKES]):
        by = takes[at, T_BY]
        writes = touched.runs[by, R_WRITTEN] if takes[at, T_BY_RUN] else touched.parts[by, WRITE]
        if not writes:
            stack.sizes[S_OWED] += takes[at, T_HELD]
    put_in(stack, touched, cut_out(stack, touched), 0, 0)


@jit
def touch(stack, touched, count, begin, by_others):
    """Touch the arranged parts from place `begin` on; returns count, or where the room for takes ran out.

    by_others  0 / 1: what is touched leaves the cache
    """
    while begin < count:
        end = begin + 1
        while (
            end < count
            and touched.parts[touched.order[end], WHEN] == touched.parts[touched.order[begin], WHEN]
        ):
            end += 1
        form_runs(stack, touched, begin, end)
        if not look_up(stack, touched, begin, end):
            return begin
        judge_layers(stack, weigh(stack, touched))
        if by_others:
            take_away(stack)
            drop(stack, touched)
        else:
            out = find(stack, touched, begin, end)
            take_away(stack)
            put_on_top(stack, touched)
            charge(stack, touched, begin, end, out + push_out(stack))
        begin = end
    return begin
