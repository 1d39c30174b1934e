"""Where a trace falls apart into groups of kernels that nothing outside overlaps with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_cases import columns, kernel

from memsim.segments import Segment, shortened, split
from memsim.trace import EACH, Accesses, Kernel

Waits = Sequence[tuple[int, tuple[int, ...]]]  # of each kernel: stream, kernels it waits for


def groups(kernels: Waits) -> list[list[int]]:
    launches = [
        (kernel(i, stream=stream, waits_for=waits), columns([])) for i, (stream, waits) in enumerate(kernels)
    ]
    return [[k.id for k, _ in segment.launches] for segment in split(launches)]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([(0, ()), (0, ()), (0, ())], [[0], [1], [2]]),  # one stream is a chain
        ([(0, ()), (1, ()), (0, (0,))], [[0, 1, 2]]),  # kernel 1 may still run beside kernel 2
        ([(0, ()), (1, ()), (0, (0, 1))], [[0, 1], [2]]),
        ([(0, ()), (1, (0,)), (0, ()), (1, (2,))], [[0], [1, 2], [3]]),
    ],
)
def test_groups(kernels: Waits, expected: list[list[int]]) -> None:
    assert groups(kernels) == expected


def test_waits_are_positions_inside_the_segment_and_streams_count_as_waits() -> None:
    launches = [(kernel(0), columns([])), (kernel(1, stream=1), columns([])), (kernel(2), columns([]))]
    (segment,) = split(launches)
    assert segment.waits == [[], [], [0]]


def test_the_first_kernel_of_a_step_is_marked() -> None:
    launches = [(kernel(i, step=i // 2), columns([])) for i in range(4)]
    assert [segment.new_step for segment in split(launches)] == [[True], [False], [True], [False]]


def test_all_kernels_stay_in_one_segment_if_asked() -> None:
    launches = [(kernel(i), columns([])) for i in range(3)]
    (segment,) = split(launches, apart=False)
    assert segment.waits == [[], [0], [1]]


def test_long_runs_are_cut_alike_and_gathered_rows_stay():
    kernel = Kernel(0, "k", "k", 0, 0, 0, (), 2, 1, 1, 1, 1)
    accesses = Accesses(
        block=np.array([0, 0, 1]),
        block_last=np.array([1, 0, 1]),
        region=np.zeros(3, np.int64),
        write=np.zeros(3, bool),
        first_row=np.array([0, 0, 5]),
        rows=np.array([1000, 7, 3]),
        stride=np.ones(3, np.int64),
        spread=np.array([EACH, 0, 0]),
        grain=np.ones(3, np.int64),
        gather_at=np.array([-1, -1, 0]),
        gather_rows=np.array([1, 2, 3]),
        dependent=np.zeros(3, bool),
        worked=np.ones(3, bool),
    )
    segment = Segment([(kernel, accesses)], [[]], [True], [False])
    row_bytes = np.array([100])  # both blocks read the thousand rows: 200,700 B in runs
    assert shortened(segment, row_bytes, 200_700) is segment
    ((_, short),) = shortened(segment, row_bytes, 50_000).launches
    assert short.rows.tolist() == [1000 // 5, 7, 3]
    assert short.gather_rows is accesses.gather_rows
