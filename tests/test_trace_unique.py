"""Unique bytes against plain sets of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import SMALL, accesses, arrays, small_kernel, write

from memsim.trace import Access, Region
from memsim.trace_read import open_trace
from memsim.unique import unique_bytes


def by_sets(rows, regions):
    """Read and written bytes by region id, from a set of rows each."""
    touched = ({}, {})
    for row in rows:
        found = (
            row.gather
            if row.gather is not None
            else range(row.first_row, row.first_row + row.rows * row.stride, row.stride)
        )
        touched[row.write].setdefault(row.region, set()).update(found)
    return tuple({key: len(rows) * regions[key].row_bytes for key, rows in side.items()} for side in touched)


@st.composite
def kernels_with_accesses(draw):
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=3))
    regions = [Region(i, f"r{i}", "kv", 0, "u8", rows * (i + 5), i + 5) for i, rows in enumerate(sizes)]
    kernel = small_kernel(0)
    return regions, kernel, draw(st.lists(accesses(kernel, regions), max_size=12))


@settings(max_examples=80)
@given(sample=kernels_with_accesses())
def test_unique_bytes_are_those_of_sets_of_rows(sample):
    regions, kernel, rows = sample
    assert unique_bytes(kernel, arrays(rows), regions) == by_sets(rows, regions)


def unique_of(*rows, region_rows=1000):
    region = Region(0, "kv", "kv", 0, "u8", region_rows * 10, 10)
    return unique_bytes(small_kernel(0), arrays(rows), [region])


def extent(first, rows, stride=1, write=False):
    return Access(0, 0, 0, 0, write, first, rows, stride)


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        ([], {}),
        ([extent(0, 10), extent(10, 10)], {0: 200}),
        ([extent(5, 10), extent(0, 10)], {0: 150}),
        ([extent(0, 100), extent(20, 5), extent(90, 20)], {0: 1100}),
        ([extent(0, 10, 2), extent(1, 10, 2)], {0: 200}),
        ([extent(0, 10, 2), extent(0, 5, 4)], {0: 100}),
        ([extent(0, 20), extent(0, 10, 7)], {0: 10 * (20 + 7)}),
        ([extent(0, 10, 2), extent(0, 10, 3)], {0: 10 * (20 - 4)}),
        ([extent(0, 100, 3), extent(3, 1, 2**62)], {0: 1000}),
    ],
)  # fmt: skip
def test_unique_bytes_by_hand(rows, read):
    assert unique_of(*rows) == (read, {})


def test_reads_and_writes_are_counted_apart():
    assert unique_of(extent(0, 10), extent(5, 10, write=True)) == ({0: 100}, {0: 100})


def test_gathered_rows_join_extents():
    gather = Access(0, 0, 0, 0, False, 0, 4, gather=np.array([5, 5, 900, 10]))
    assert unique_of(extent(0, 10), gather) == ({0: 10 * 12}, {})


def test_a_scan_of_a_huge_region_stays_a_run():
    """Row by row these 3 x 10^14 rows would take petabytes."""
    rows = 10**14
    halves = [extent(0, rows // 2, 2), extent(1, rows // 2, 2), extent(0, rows // 4, 4)]
    assert unique_of(*halves, region_rows=rows) == ({0: 10 * rows}, {})


def test_two_strides_of_a_huge_region_stay_runs():
    rows = 10**14
    thirds = [extent(0, rows // 2, 2), extent(0, rows // 3, 3), extent(1, 7, rows // 10)]
    assert unique_of(thirds[0], thirds[1], region_rows=rows) == ({0: 10 * (rows // 3 * 2)}, {})
    assert unique_of(thirds[2], region_rows=rows) == ({0: 70}, {})


def test_every_region_of_the_largest_trace_fits_64_bits():
    regions = [Region(i, f"r{i}", "kv", 0, "u8", 10**16, 1) for i in range(100)]
    rows = [Access(0, 0, 0, i, write, 0, 10**16) for i in range(100) for write in (False, True)]
    everything = dict.fromkeys(range(100), 10**16)
    assert unique_bytes(small_kernel(0), arrays(rows), regions) == (everything, everything)


def test_what_a_file_holds_is_counted_kernel_by_kernel(tmp_path):
    write(tmp_path / "t.parquet", SMALL)
    trace = open_trace(tmp_path / "t.parquet")
    found = [unique_bytes(kernel, rows, trace.regions) for kernel, rows in trace.kernels()]
    assert found == [({0: 902 * 1152}, {}), ({}, {}), ({1: 640 * 132}, {0: 100 * 1152})]
