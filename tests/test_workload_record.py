"""Regions give rows and write down who asked for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from memsim.trace import Access
from workloads.arithmetic import arithmetic
from workloads.grid import Page, Shape, each, even, one
from workloads.record import ListSink, Recorder

LAUNCH = Shape(tile_rows=4, tile_bytes=64, tiles_in_flight=1)


def recorder_of(device: str = "cpu"):
    sink = ListSink()
    recorder = Recorder(sink, device)
    region = recorder.region("a", "kv", 0, 20, 8, "fp32")
    if device == "cpu":
        region.fill(torch.arange(40.0))
    return sink, recorder, region


def test_a_load_returns_its_rows_and_is_written_down():
    sink, recorder, region = recorder_of()
    with recorder.kernel("k", "mla", 0, 3, LAUNCH):
        rows = region.load(2, 3, even(0, 2, 1), stride=5, worked=True)
    assert rows[:, 0].tolist() == [4, 14, 24]
    (access,) = sink.accesses
    assert access == Access(0, 0, 2, 0, False, 2, 3, 5, "even", 1, worked=True)


def test_grouped_loads_are_one_tensor_and_an_access_for_each_group():
    sink, recorder, region = recorder_of()
    with recorder.kernel("k", "kda", 0, 6, LAUNCH):
        rows = region.load_each(1, 2, each(0, 1), 3, 6, stride=3)
        region.store_each(0, rows + 1, one(0), 6, stride=3)
    assert rows[:, :, 0].tolist() == [[2, 8], [14, 20], [26, 32]]
    reads = [(a.block, a.block_last, a.spread, a.first_row, a.rows, a.stride) for a in sink.accesses[:3]]
    assert reads == [(0, 1, "each", 1, 2, 3), (2, 3, "each", 7, 2, 3), (4, 5, "each", 13, 2, 3)]
    writes = [(a.block, a.first_row, a.write, a.dependent) for a in sink.accesses[3:]]
    assert writes == [(0, 0, True, True), (1, 6, True, True), (2, 12, True, True)]
    assert region.data[[0, 3, 6, 9, 12, 15], 0].tolist() == [3, 9, 15, 21, 27, 33]


def test_a_gather_waits_for_its_list_and_keeps_its_order():
    sink, recorder, region = recorder_of()
    with recorder.kernel("k", "dsa-attend", 0, 1, LAUNCH):
        rows = region.gather(np.array([7, 3, 19]), one(0))
    assert rows[:, 1].tolist() == [15, 7, 39]
    (access,) = sink.accesses
    assert access.dependent
    assert (access.first_row, access.rows, access.stride) == (0, 3, 1)
    assert access.gather.tolist() == [7, 3, 19]


def test_rows_of_pages_come_in_two_parts():
    sink = ListSink()
    recorder = Recorder(sink, "cpu")
    region = recorder.region("index", "index", 0, 10, 3, "bytes", Page(4, 2, 16))
    assert (region.region.bytes, region.region.rows) == (48, 12)
    region.fill(torch.arange(48))
    with recorder.kernel("k", "dsa-index", 0, 1, LAUNCH):
        heads, tails = region.load_pages(3, 3, one(0))
    # pages of 16 bytes: 4 heads of 2, 4 tails of 1, 4 bytes of padding
    assert heads.tolist() == [[6, 7], [16, 17], [18, 19]]
    assert tails.tolist() == [[11], [24], [25]]


def test_every_kernel_waits_for_the_one_before():
    sink, recorder, region = recorder_of("meta")
    for step in range(2):
        recorder.step = step
        with recorder.kernel(f"k{step}", "mla", 0, 1, LAUNCH, region):
            region.load(0, 1, one(0))
    assert [(k.id, k.step, k.waits_for, k.partial_region) for k in sink.kernels] == [
        (0, 0, (), 0),
        (1, 1, (0,), 0),
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda recorder, region: region.load(18, 3, one(0)), "rows 18..20 of 20"),
        (lambda recorder, region: region.load(0, 0, one(0)), "an access of 0 rows"),
        (lambda recorder, region: region.gather(np.array([20]), one(0)), "rows 0..20 of 20"),
        (lambda recorder, region: recorder.region("b", "kv", 0, 1, 4, "fp32"), "after the first kernel"),
    ],
)
def test_a_kernel_cannot_leave_its_regions(wrong, message):
    _, recorder, region = recorder_of()
    with recorder.kernel("k", "mla", 0, 1, LAUNCH), pytest.raises(AssertionError, match=message):
        wrong(recorder, region)


def test_regions_are_reached_inside_kernels_only():
    _, _, region = recorder_of()
    with pytest.raises(AssertionError, match="outside a kernel"):
        region.load(0, 1, one(0))


def test_released_regions_have_no_data():
    _, recorder, region = recorder_of()
    recorder.release()
    with recorder.kernel("k", "mla", 0, 1, LAUNCH), pytest.raises(AssertionError, match="has no data"):
        region.load(0, 1, one(0))


def test_arithmetic_runs_once_for_each_set_of_shapes_on_meta_and_always_on_data():
    calls = []

    @arithmetic
    def double(tensor: torch.Tensor, factor: int) -> torch.Tensor:
        calls.append(tensor.shape)
        return tensor * factor

    meta = torch.empty(3, device="meta")
    assert double(meta, 2).shape == double(meta, 2).shape == (3,)
    double(torch.empty(4, device="meta"), 2)
    double(meta, 3)
    assert len(calls) == 3
    assert double(torch.ones(3), 2).tolist() == double(torch.ones(3), 2).tolist() == [2, 2, 2]
    assert len(calls) == 5
