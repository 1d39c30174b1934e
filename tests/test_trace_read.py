"""How a trace is streamed: lazily, again and again, across row groups."""

import numpy as np
import pytest
from trace_samples import KV, META, SMALL, arrays, changed, listed, read_rows, small_kernel, write

from memsim import trace_batch, trace_read
from memsim.errors import TraceError
from memsim.trace import Access
from memsim.trace_read import open_trace


def scan(kernel, rows):
    return [Access(kernel, 0, 0, 0, False, row % 1000, 1) for row in range(rows)]


@pytest.fixture
def small(tmp_path):
    write(tmp_path / "t.parquet", SMALL)
    return tmp_path / "t.parquet"


def test_an_open_trace_says_what_it_holds(small):
    trace = open_trace(str(small))
    assert trace.path == str(small)
    assert trace.meta == META
    assert trace.regions == tuple(SMALL[:2])
    assert (trace.kernel_count, trace.access_count) == (3, 4)


def test_accesses_are_parallel_arrays(small):
    (_, first), (_, second), (_, third) = open_trace(small).kernels()
    for found, rows in ((first, SMALL[3:5]), (second, []), (third, SMALL[7:9])):
        for name, column in arrays(rows)._asdict().items():
            np.testing.assert_array_equal(getattr(found, name), column, err_msg=name)


def test_kernels_can_be_streamed_again(small):
    trace = open_trace(small)
    assert read_rows(trace) == read_rows(trace) == [listed(row) for row in SMALL]


def test_a_batch_is_read_only_when_its_kernels_are_wanted(tmp_path, monkeypatch):
    read = []

    def counted(path, *most):
        for batch in trace_batch.read_batches(path, *most):
            read.append(len(batch.codes))
            yield batch

    write(
        tmp_path / "t.parquet", [KV, *(row for k in range(3) for row in (small_kernel(k), *scan(k, 30_000)))]
    )
    trace = open_trace(tmp_path / "t.parquet")
    monkeypatch.setattr(trace_read, "read_batches", counted)
    kernels = trace.kernels()
    next(kernels)
    assert read == [65_536]
    assert [len(accesses.block) for _, accesses in kernels] == [30_000] * 2
    assert sum(read) == 90_004


def test_a_kernel_may_span_row_groups(tmp_path):
    rows = [KV, small_kernel(0), *scan(0, 70_000)]
    rows[10] = Access(0, 0, 0, 0, False, 0, 2, gather=np.array([7, 8]))
    rows[68_000] = Access(0, 0, 0, 0, False, 0, 1, gather=np.array([9]))
    write(tmp_path / "t.parquet", rows)
    ((_, accesses),) = open_trace(tmp_path / "t.parquet").kernels()
    assert len(accesses.block) == 70_000
    assert accesses.gather_at[[8, 67_998]].tolist() == [0, 2]
    assert accesses.gather_rows.tolist() == [7, 8, 9]
    np.testing.assert_array_equal(accesses.first_row[69_000:], np.arange(69_000, 70_000) % 1000)


def test_row_lists_of_each_kernel_are_counted_from_its_own_first(tmp_path):
    gathers = [Access(k, 0, 0, 0, False, 0, 2, gather=np.array([k, 9])) for k in range(3)]
    rows = [KV, *(row for k in range(3) for row in (small_kernel(k), *scan(k, 1), gathers[k]))]
    write(tmp_path / "t.parquet", rows)
    found = [accesses for _, accesses in open_trace(tmp_path / "t.parquet").kernels()]
    assert [accesses.gather_at.tolist() for accesses in found] == [[-1, 0]] * 3
    assert [accesses.gather_rows.tolist() for accesses in found] == [[0, 9], [1, 9], [2, 9]]


def test_batches_hold_fewer_rows_where_rows_gather_many(tmp_path, monkeypatch):
    gather = np.zeros(100, np.int64)
    gathers = [Access(0, 0, 0, 0, False, 0, 100, gather=gather) for _ in range(100)]
    write(tmp_path / "t.parquet", [KV, small_kernel(0), *gathers])
    monkeypatch.setattr(trace_batch, "BATCH_GATHERED", 1000)
    path = str(tmp_path / "t.parquet")
    assert {len(batch.codes) for batch in trace_batch.read_batches(path)} == {10, 2}


def test_a_file_that_shrank_since_it_was_opened_is_noticed(small):
    trace = open_trace(small)
    changed(small, lambda rows: rows.pop())
    with pytest.raises(TraceError, match="holds other rows than its metadata count; expected the same"):
        list(trace.kernels())


def test_a_file_that_went_away_is_noticed(small):
    trace = open_trace(small)
    small.unlink()
    with pytest.raises(TraceError, match="no such file"):
        next(trace.kernels())


def test_a_trace_without_accesses_or_regions_is_valid(tmp_path):
    write(tmp_path / "t.parquet", [small_kernel(0)])
    ((kernel, accesses),) = open_trace(tmp_path / "t.parquet").kernels()
    assert kernel == small_kernel(0)
    assert len(accesses.block) == len(accesses.gather_rows) == 0
