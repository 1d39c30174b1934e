"""What happens when: heaps of events, and a wheel for what requests do next.

An event is (time, major, minor, item); the five heaps are the phases of an instant. Events of requests are
by far the most numerous and near in time, so they go on a wheel of buckets, and to a heap only when they
are too far from the others. A request has one event at a time.
"""

from __future__ import annotations

from memsim.fast_state import (  # fmt: skip
    BUCKET,
    BUCKETS,
    DUE,
    EARLIER,
    FIRST,
    GIVE,
    HEAPS,
    IN_HEAPS,
    ISSUE,
    ITEM,
    LAST,
    LAST_BUCKET,
    LATER,
    MAJOR,
    MINOR,
    NONE,
    ON_WHEEL,
    R_BLOCK,
    R_NUMBER,
    SHIFT,
    TIME_PS,
)
from memsim.jit import at, inner

NEVER_PS = 1 << 62
NOTHING = -NEVER_PS  # no item: those of slots are negative, too


@inner
def before(heap, i, j):
    """1 if entry i of a heap comes before entry j: by time, then by (major, minor); else 0."""
    if heap[i, TIME_PS] == heap[j, TIME_PS]:
        if heap[i, MAJOR] == heap[j, MAJOR]:
            return int(heap[i, MINOR] < heap[j, MINOR])
        return int(heap[i, MAJOR] < heap[j, MAJOR])
    return int(heap[i, TIME_PS] < heap[j, TIME_PS])


@inner
def copy_entry(heap, i, j):
    """Copy entry j of a heap to place i."""
    heap[i, TIME_PS] = heap[j, TIME_PS]
    heap[i, MAJOR] = heap[j, MAJOR]
    heap[i, MINOR] = heap[j, MINOR]
    heap[i, ITEM] = heap[j, ITEM]


@inner
def sift_up(heap, i, hole):
    """Put the entry kept at place `hole` where it belongs on the way from place i to the top."""
    while i > 0:
        parent = (i - 1) >> 1
        if not before(heap, hole, parent):
            break
        copy_entry(heap, i, parent)
        i = parent
    copy_entry(heap, i, hole)


@inner
def push(heap, size, time_ps, major, minor, item):
    """Add an event to a binary heap of `size` entries; one place more must be free behind it."""
    heap[size + 1, TIME_PS] = time_ps
    heap[size + 1, MAJOR] = major
    heap[size + 1, MINOR] = minor
    heap[size + 1, ITEM] = item
    sift_up(heap, size, size + 1)


@inner
def pop(heap, size):
    """Take the first event off a heap of `size` entries; returns its item.

    The hole goes down to a leaf along the earlier children, then the last entry comes up from there:
    it belongs near the bottom, so this compares half as often as sifting it down.
    """
    first = heap[0, ITEM]
    last = size - 1
    i = 0
    child = 1
    while child + 1 < last:
        child += before(heap, child + 1, child)
        copy_entry(heap, i, child)
        i = child
        child = 2 * i + 1
    if child < last:
        copy_entry(heap, i, child)
        i = child
    sift_up(heap, i, last)
    return first


@inner
def is_earlier(st, i, j):
    """Whether request i has its event before request j: by time and phase, then by (block, number)."""
    due, other_due = st.spokes[at(i), DUE], st.spokes[at(j), DUE]
    if due != other_due:
        return due < other_due
    one, other = st.requests[at(i)], st.requests[at(j)]
    if one[R_BLOCK] != other[R_BLOCK]:
        return one[R_BLOCK] < other[R_BLOCK]
    return one[R_NUMBER] < other[R_NUMBER]


@inner
def wheel_add(st, request):
    """Put a request on the wheel by its DUE; False if that is too far from the others.

    The wheel holds events that are near in time, in BUCKETS buckets of equal width, each a list in
    order. New ones mostly belong at the end of their list, which makes it quicker than a heap.
    """
    bucket = st.spokes[at(request), DUE] >> (st.sizes[SHIFT] + 1)
    if st.sizes[ON_WHEEL] == 0:
        st.sizes[BUCKET] = bucket
        st.sizes[LAST_BUCKET] = bucket
    first = min(bucket, st.sizes[BUCKET])
    last = max(bucket, st.sizes[LAST_BUCKET])
    if last - first >= BUCKETS:
        return False
    st.sizes[BUCKET] = first
    st.sizes[LAST_BUCKET] = last
    st.sizes[ON_WHEEL] += 1
    link_in(st, st.wheel[at(bucket & BUCKETS - 1)], request)
    return True


@inner
def link_in(st, bucket, request):
    """Put a request where it belongs in the list of a bucket, looking from the end."""
    earlier, later = bucket[LAST], NONE
    while earlier != NONE and is_earlier(st, request, earlier):
        later = earlier
        earlier = st.spokes[at(earlier), EARLIER]
    mine = st.spokes[at(request)]
    mine[EARLIER] = earlier
    mine[LATER] = later
    if earlier == NONE:
        bucket[FIRST] = request
    else:
        st.spokes[at(earlier), LATER] = request
    if later == NONE:
        bucket[LAST] = request
    else:
        st.spokes[at(later), EARLIER] = request


@inner
def wheel_first(st):
    """The earliest request on the wheel, which must not be empty."""
    bucket = st.sizes[BUCKET]
    while st.wheel[at(bucket & BUCKETS - 1), FIRST] == NONE:
        bucket += 1
    st.sizes[BUCKET] = bucket
    return st.wheel[at(bucket & BUCKETS - 1), FIRST]


@inner
def wheel_take(st, request):
    """Take the earliest request off the wheel."""
    bucket = st.wheel[at(st.sizes[BUCKET] & BUCKETS - 1)]
    later = st.spokes[at(request), LATER]
    bucket[FIRST] = later
    if later == NONE:
        bucket[LAST] = NONE
    else:
        st.spokes[at(later), EARLIER] = NONE
    st.sizes[ON_WHEEL] -= 1


@inner
def post(st, heap, time_ps, major, minor, item):
    """Schedule an event."""
    push(st.heap[heap], st.heap_size[heap], time_ps, major, minor, item)
    st.heap_size[heap] += 1
    st.sizes[IN_HEAPS] += 1


@inner
def schedule(st, request, due):
    """Schedule the next event of a request: `due` is twice its time, and one more in phase 5."""
    st.spokes[at(request), DUE] = due
    if not wheel_add(st, request):
        heap = ISSUE if due & 1 else GIVE
        post(st, heap, due >> 1, st.requests[request, R_BLOCK], st.requests[request, R_NUMBER], request)


@inner
def take(st, heap):
    """Take the first event of a heap; returns its item."""
    item = pop(st.heap[heap], st.heap_size[heap])
    st.heap_size[heap] -= 1
    st.sizes[IN_HEAPS] -= 1
    return item


@inner
def is_due(st, heap, now_ps):
    """Whether the first event of a heap is due."""
    return st.heap_size[heap] > 0 and st.heap[heap, 0, TIME_PS] == now_ps


@inner
def next_event_ps(st):
    """Time of the next event, NEVER_PS if there is none."""
    now_ps = NEVER_PS
    if st.sizes[ON_WHEEL] > 0:
        now_ps = st.spokes[at(wheel_first(st)), DUE] >> 1
    if st.sizes[IN_HEAPS] > 0:
        for heap in range(HEAPS):
            if st.heap_size[heap] > 0:
                now_ps = min(now_ps, st.heap[heap, 0, TIME_PS])
    return now_ps


@inner
def first_of_heap_is_before(st, heap, request):
    """Whether the first event of a heap comes before that of a request that is due now, too."""
    block, number = st.heap[heap, 0, MAJOR], st.heap[heap, 0, MINOR]
    if block != st.requests[request, R_BLOCK]:
        return block < st.requests[request, R_BLOCK]
    return number < st.requests[request, R_NUMBER]


@inner
def next_item(st, heap, due):
    """Take what is next in phase 0 (heap GIVE) or 5 (ISSUE) of an instant, off the wheel or the heap."""
    request = NONE
    if st.sizes[ON_WHEEL] > 0:
        request = wheel_first(st)
        if st.spokes[at(request), DUE] != due:
            request = NONE
    if is_due(st, heap, due >> 1) and (request == NONE or first_of_heap_is_before(st, heap, request)):
        return take(st, heap)
    if request == NONE:
        return NOTHING
    wheel_take(st, request)
    return request
