"""Real tensors and shapes alone give the same trace: every region, kernel and access of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_cases import CASES, Layer

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=3)


def rows(layer: Layer) -> list[tuple]:
    """Everything in a trace, accesses with the rows that they gather."""
    accesses = [
        (replace(access, gather=None), None if access.gather is None else access.gather.tolist())
        for access in layer.sink.accesses
    ]
    return [*layer.sink.regions, *layer.sink.kernels, *accesses]


def selected_by(layer: Layer, batch: int) -> list[np.ndarray] | None:
    """Rows that the scores of a real layer selected, sequence by sequence."""
    indices = next((r.indices for r in layer.stack if getattr(r, "indices", None) is not None), None)
    if indices is None:
        return None
    chosen = indices.data.reshape(batch, -1).numpy().astype(np.int64)
    return [sequence[sequence >= 0] for sequence in chosen]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(lengths=LENGTHS, units=st.integers(2, 9))
def test_real_tensors_and_shapes_alone_give_the_same_trace(name, lengths, units):
    case = CASES[name]._replace(lengths=lengths, options={**CASES[name].options, "units": units})
    real = case.stack()
    real.step()
    shapes = case.stack("meta", selected=selected_by(real, len(lengths)))
    shapes.step()
    assert rows(real) == rows(shapes)
