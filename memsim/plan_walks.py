"""Requests that walk: from pages that were not covered to misses of a level of address translation.

Compiled: arrays in, arrays out. All numbers are int64.
"""

from __future__ import annotations

from memsim.jit import inner, jit
from memsim.plan_parts import (
    ASKED_TOGETHER,
    BYTES,
    LIST_AT,
    MISSED,
    NEW_TOGETHER,
    NUMBER,
    SPARSE,
    UNITS,
    share_of,
)

_ONE = 1 << 31  # fixed point: products stay inside int64
_MOST_PAGES = 64  # a page; of more a list comes back to fewer than one in a hundred


@jit
def add_requests(parts, count, request_bytes, requests):
    """Add to requests int64[accesses] those of each access, of request_bytes int64[accesses] at most."""
    for i in range(count):
        number = parts[i, NUMBER]
        most = request_bytes[number]
        if parts[i, SPARSE] or parts[i, LIST_AT] >= 0:
            row_bytes = parts[i, BYTES] // parts[i, UNITS]
            requests[number] += parts[i, UNITS] * max(1, (row_bytes + most - 1) // most)
        else:
            requests[number] += (parts[i, BYTES] + most - 1) // most


@inner
def expected_pages(pages, draws):
    """Different pages among so many draws of `pages`: pages x (1 - (1 - 1 / pages)^draws), below 2^31."""
    left, factor = _ONE, _ONE - _ONE // pages
    while draws:
        if draws & 1:
            left = left * factor >> 31
        factor = factor * factor >> 31
        draws >>= 1
    return share_of(pages, _ONE - left, _ONE)


@inner
def drawn_from(asked, new):
    """Pages that `asked` rows were drawn from, if `new` different ones came out."""
    low, high = new, min(_ONE - 1, asked * _MOST_PAGES)
    while low < high:
        middle = (low + high) // 2
        if expected_pages(middle, asked) < new:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def add_walks(parts, count, page_bytes, reach_bytes, misses):
    """Add to misses int64[accesses] the look-ups that each access needs of a level: pages that it brings in,
    and of scattered rows at least those that come back to a page which is covered no longer."""
    asked = new = span_bytes = 0
    for i in range(count):
        missed = (parts[i, MISSED] + page_bytes - 1) // page_bytes
        if parts[i, NEW_TOGETHER] < parts[i, ASKED_TOGETHER] and parts[i, SPARSE]:
            if (asked, new) != (parts[i, ASKED_TOGETHER], parts[i, NEW_TOGETHER]):
                asked, new = parts[i, ASKED_TOGETHER], parts[i, NEW_TOGETHER]
                span_bytes = drawn_from(asked, new) * page_bytes
            if span_bytes > reach_bytes:
                missed = max(missed, share_of(parts[i, UNITS], span_bytes - reach_bytes, span_bytes))
        misses[parts[i, NUMBER]] += missed
