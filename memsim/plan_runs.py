"""What a kernel touches at about the same time, joined to runs: sorted, and each unit counted once.

Parts (see `plan_parts`) enter; order, runs and what of each part is new leave.
"""

from __future__ import annotations

from memsim.jit import inner, jit
from memsim.plan_parts import (
    BYTES,
    END,
    FIRST,
    LIST_AT,
    NEW,
    REGION,
    RUN,
    SPARSE,
    STRIDE,
    UNITS,
    WHEN,
    WRITE,
    share_of,
)
from memsim.plan_stack import (
    R_BYTES,
    R_END,
    R_FIRST,
    R_FOUND,
    R_MARK,
    R_REGION,
    R_SPARSE,
    R_UNITS,
    R_WRITTEN,
    S_LAYER,
    S_RUNS,
    S_STAMP,
    SORTED_BY,
)

_HALF, _MARK = (1 << 31) - 1, (1 << 62) - 1  # multipliers are below 2^31: products stay inside int64


@inner
def is_after(parts, i, j, columns):
    """1 if part i comes after part j by the first columns, else 0."""
    for column in range(columns):
        if parts[i, column] != parts[j, column]:
            return int(parts[i, column] > parts[j, column])
    return 0


@inner
def sort_parts(touched, count, columns):
    """Sort `order` by the first columns of the parts; equal ones stay in their order."""
    parts, order, aside = touched.parts, touched.order, touched.aside
    width = 1
    while width < count:
        for begin in range(0, count - width, 2 * width):
            i, middle = begin, begin + width
            j, end = middle, min(begin + 2 * width, count)
            if not is_after(parts, order[middle - 1], order[middle], columns):
                continue
            for k in range(begin, end):
                if j == end or (i < middle and not is_after(parts, order[i], order[j], columns)):
                    aside[k] = order[i]
                    i += 1
                else:
                    aside[k] = order[j]
                    j += 1
            for k in range(begin, end):
                order[k] = aside[k]
        width *= 2


@jit
def arrange(stack, touched, count):
    """Sort the parts of a kernel by time, number those that are touched together, and sort these by place.

    What is touched together is one moment of the kernel, or several that make up less than a layer.
    """
    parts, order = touched.parts, touched.order
    for i in range(count):
        order[i] = i
    sort_parts(touched, count, 1)
    together = nbytes = 0
    now = parts[order[0], WHEN]
    for k in range(count):
        part = order[k]
        if parts[part, WHEN] != now:
            now = parts[part, WHEN]
            if nbytes >= stack.sizes[S_LAYER]:
                together += 1
                nbytes = 0
        parts[part, WHEN] = together
        nbytes += parts[part, BYTES]
    sort_parts(touched, count, SORTED_BY)


@inner
def mark_of(value):
    """62 bits that stand for a number; those of a set are added up."""
    low, high = value & _HALF, value >> 31
    x = (low * 0x2C1B_3C6D ^ high * 0x297A_2D39) & _MARK
    x = (x ^ (x >> 29)) & _HALF
    y = x * 0x21F0_AAAD & _MARK
    return (y ^ (low << 31) ^ (y >> 27)) & _MARK


@inner
def see_list(stack, touched, part, run):
    """New units of a part that is a row list; their marks are added to its run."""
    parts, rows, seen = touched.parts, touched.rows, touched.seen
    stamp, places = stack.sizes[S_STAMP], len(seen) - 1
    new = 0
    for i in range(parts[part, LIST_AT], parts[part, LIST_AT] + parts[part, UNITS]):
        mark = mark_of(rows[i])
        place = (mark ^ (mark >> 23)) & places
        while seen[place, 1] == stamp and seen[place, 0] != rows[i]:
            place = (place + 1) & places
        if seen[place, 1] != stamp:
            seen[place, 0] = rows[i]
            seen[place, 1] = stamp
            touched.runs[run, R_MARK] = (touched.runs[run, R_MARK] + mark) & _MARK
            new += 1
    return new


@inner
def see_strided(touched, part, before, run):
    """New units of a strided part: none where the part before it is the same."""
    parts = touched.parts
    if before >= 0 and not is_after(parts, part, before, SORTED_BY) and parts[before, LIST_AT] < 0:
        return 0
    mark = mark_of(mark_of(parts[part, FIRST]) ^ mark_of(parts[part, STRIDE] << 31 ^ parts[part, UNITS]))
    touched.runs[run, R_MARK] = (touched.runs[run, R_MARK] + mark) & _MARK
    return parts[part, UNITS]


@inner
def begin_run(touched, run, part):
    """A new run that begins with a part."""
    runs, parts = touched.runs, touched.parts
    for column in range(R_UNITS, R_FOUND + 1):
        runs[run, column] = 0
    runs[run, R_REGION] = parts[part, REGION]
    runs[run, R_SPARSE] = parts[part, SPARSE]
    runs[run, R_FIRST] = parts[part, FIRST]


@inner
def form_runs(stack, touched, begin, end):
    """Join parts begin..end, touched together, where they meet; count of each what none before it touches."""
    parts, runs = touched.parts, touched.runs
    run, covered, written, before = -1, 0, 0, -1
    for k in range(begin, end):
        part = touched.order[k]
        first, last, sparse = parts[part, FIRST], parts[part, END], parts[part, SPARSE]
        elsewhere = (
            before < 0 or parts[part, REGION] != parts[before, REGION] or sparse != parts[before, SPARSE]
        )
        if elsewhere or first + sparse > covered:
            run += 1
            begin_run(touched, run, part)
            covered = written = first
            stack.sizes[S_STAMP] += elsewhere
        if not sparse:
            new = max(0, last - max(first, covered))
        elif parts[part, LIST_AT] >= 0:
            new = see_list(stack, touched, part, run)
        else:
            new = see_strided(touched, part, before, run)
        covered = max(covered, last)
        runs[run, R_END] = covered
        runs[run, R_UNITS] += new
        runs[run, R_BYTES] += share_of(parts[part, BYTES], new, parts[part, UNITS])
        if parts[part, WRITE]:
            wrote = parts[part, UNITS] if sparse else max(0, last - max(first, written))
            written = max(written, last)
            runs[run, R_WRITTEN] += share_of(parts[part, BYTES], wrote, parts[part, UNITS])
        parts[part, NEW] = new
        parts[part, RUN] = run
        before = part
    stack.sizes[S_RUNS] = run + 1
