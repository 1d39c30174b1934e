"""Real tensors and shapes alone give the same trace: every region, kernel and access of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_cases import CASES, Layer

from memsim.trace_check import check_trace
from memsim.trace_write import TraceWriter

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=3)


def rows(layer: Layer) -> list[tuple]:
    """Everything in a trace, accesses with the rows that they gather."""
    accesses = [
        (replace(access, gather=None), None if access.gather is None else access.gather.tolist())
        for access in layer.sink.accesses
    ]
    return [*layer.sink.regions, *layer.sink.kernels, *accesses]


def numbers_in(handle, batch: int) -> list[np.ndarray]:
    """Numbers of each sequence in a region that is filled up with -1."""
    chosen = handle.data.reshape(batch, -1).numpy().astype(np.int64)
    return [sequence[sequence >= 0] for sequence in chosen]


def selected_by(layer: Layer, batch: int) -> dict[int, list[np.ndarray]]:
    """Rows that the scores of real layers selected, layer by layer and sequence by sequence."""
    return {
        number: numbers_in(regions.indices, batch)
        for number, regions in enumerate(layer.stack)
        if getattr(regions, "indices", None) is not None
    }


def candidates_of(layer: Layer, batch: int) -> list[np.ndarray] | None:
    """Candidate blocks that the scores of a real layer chose."""
    blocks = next((r.blocks for r in layer.stack if getattr(r, "blocks", None) is not None), None)
    return None if blocks is None else numbers_in(blocks.numbers, batch)


@pytest.mark.parametrize("name", CASES)
def test_the_trace_is_one_that_can_be_read(name, tmp_path):
    layer = CASES[name].stack()
    layer.step()
    accesses = iter([*layer.sink.accesses, None])
    access = next(accesses)
    with TraceWriter(tmp_path / "a.parquet", {"model": name}) as trace:
        for region in layer.sink.regions:
            trace.region(region)
        for kernel in layer.sink.kernels:
            trace.kernel(kernel)
            while access is not None and access.kernel == kernel.id:
                trace.access(access)
                access = next(accesses)
    assert check_trace(tmp_path / "a.parquet").accesses == len(layer.sink.accesses)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(lengths=LENGTHS, units=st.integers(2, 9))
def test_real_tensors_and_shapes_alone_give_the_same_trace(name, lengths, units):
    case = CASES[name]._replace(lengths=lengths, options={**CASES[name].options, "units": units})
    real = case.stack()
    real.step()
    batch = len(lengths)
    shapes = case.stack("meta", selected=selected_by(real, batch), candidates=candidates_of(real, batch))
    shapes.step()
    assert rows(real) == rows(shapes)
