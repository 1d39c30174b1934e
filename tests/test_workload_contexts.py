"""Batches whose sequences differ in length: each takes the room of its own rows, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from workload_cases import CASES

CACHES = ("kv", "index")
MIXED = [name for name, case in CASES.items() if len(set(case.lengths)) > 1]


def places(handle, batch):
    """(first, rows) of each sequence in a region, in rows of its tensor: pages where it is paged."""
    page = handle.region.page_rows or 1
    ends = [handle.first(number, batch) for number in range(batch)] + [handle.region.rows]
    return [(a // page, (b - a) // page) for a, b in zip(ends, ends[1:], strict=False)]


def parts(handle, lengths):
    """Into how many a region was dealt: sequences, or heads of sequences; 0: it was not."""
    return len(handle._firsts) - 1


def copy(uniform, dealt, batch):
    """The same data for every row that a sequence has in either layout."""
    for source, target in zip(uniform.handles, dealt.handles, strict=True):
        count = parts(target, batch)
        if count < 0:
            target.data = source.data.clone()
            continue
        pairs = zip(places(source, count), places(target, count), strict=True)
        for (at, _), (to, rows) in pairs:
            target.data[to : to + rows] = source.data[at : at + rows]


@pytest.mark.parametrize("name", MIXED)
def test_the_room_of_a_sequence_changes_no_result(name):
    case = CASES[name]
    uniform, dealt = case.stack(), case.stack(dealt=True)
    copy(uniform, dealt, len(case.lengths))
    uniform.step()
    dealt.step()
    compared = 0
    for one, other in zip(uniform.handles, dealt.handles, strict=True):
        if one.region.kind in ("output", "state") or one.region.name.endswith("indices"):
            assert torch.equal(one.data, other.data), one.region.name
            compared += 1
        if one.region.kind in CACHES and "window" not in one.region.name:
            assert other.region.bytes < one.region.bytes
    assert compared
    assert [a.rows for a in uniform.sink.accesses] == [a.rows for a in dealt.sink.accesses]


@pytest.mark.parametrize("name", MIXED)
def test_rows_of_two_sequences_do_not_meet(name):
    case = CASES[name]
    layer = case.stack(dealt=True)
    for handle in layer.handles:
        count = parts(handle, len(case.lengths))
        if count > 0 and handle.region.kind in CACHES:
            assert all(rows > 0 for _, rows in places(handle, count))
            assert sum(rows for _, rows in places(handle, count)) == len(handle.data)
