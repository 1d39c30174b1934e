"""A trace says what a kernel touches, no more and no less: shown by poisoning rows, kernel by kernel.

Rows that the trace calls unread are filled with NaN when the kernel is launched: nothing that it writes
may change, by a bit. Any row that it calls read is poisoned alone: something that it writes must change.
A selected score stays selected as NaN, which counts as the largest, so scores are also poisoned with
infinities.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from workload_cases import CASES, Layer, Stop, overwrite, padding, row_bytes, touched

NAN = torch.full((8,), 255, dtype=torch.uint8)  # NaN in fp32, bf16 and e4m3; -1 in int32
LEAST, MOST = (torch.tensor([value] * 2).view(torch.uint8) for value in (-torch.inf, torch.inf))
SAMPLED_ROWS = 24  # of a region, where it has more


@cache
def clean(case: str) -> tuple[Layer, list[torch.Tensor]]:
    layer = CASES[case].stack()
    start = [handle.data.clone() for handle in layer.handles]
    layer.step()
    return layer, start


def run_until(layer: Layer, start: list[torch.Tensor], name: str, before) -> None:
    """Run a step from `start` to the end of kernel `name`, with `before` called at its launch."""
    for handle, data in zip(layer.handles, start, strict=True):
        handle.data.copy_(data)
    layer.recorder.watched, layer.recorder.before = name, before
    with pytest.raises(Stop):
        layer.step()


def written(layer: Layer, name: str) -> list[torch.Tensor]:
    """Copies of all rows that kernel `name` writes."""
    return [
        row_bytes(layer.handles[region])[torch.from_numpy(np.flatnonzero(mask))].clone()
        for region, mask in touched(layer, name, write=True).items()
    ]


def kernels():
    for case in CASES:
        yield from (pytest.param(case, name, id=f"{case}: {name}") for name in clean(case)[0].kernel_names())


KERNELS = list(kernels())


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("case", "name"), KERNELS)
def test_unread_rows_do_not_matter(case, name):
    layer, start = clean(case)
    run_until(layer, start, name, lambda handles: None)
    expected, reads = written(layer, name), touched(layer, name, write=False)

    def poison(handles):
        for handle in handles:
            unread = ~reads.get(handle.region.id, np.zeros(handle.region.rows, bool))
            overwrite(handle, np.flatnonzero(unread), NAN)

    run_until(layer, start, name, poison)
    assert same(written(layer, name), expected)


@pytest.mark.parametrize(("case", "name"), KERNELS)
def test_every_row_that_is_read_matters(case, name):
    layer, start = clean(case)
    run_until(layer, start, name, lambda handles: None)
    expected = written(layer, name)
    for region, mask in touched(layer, name, write=False).items():
        rows = np.flatnonzero(mask)
        if len(rows) > SAMPLED_ROWS:
            rows = np.sort(np.random.default_rng(0).choice(rows, SAMPLED_ROWS, replace=False))
        patterns = (NAN, LEAST, MOST) if "topk" in name else (NAN,)
        for row in rows.tolist():
            for pattern in patterns:
                poisoned = lambda handles, p=pattern: overwrite(handles[region], np.array([row]), p)  # noqa: B023, E731
                run_until(layer, start, name, poisoned)
                if not same(written(layer, name), expected):
                    break
            else:
                pytest.fail(f"row {row} of {layer.handles[region].region.name} is called read and is not")


@pytest.mark.parametrize(("case", "name"), KERNELS)
def test_nothing_is_written_but_what_the_trace_says(case, name):
    layer, start = clean(case)
    at_launch: list[tuple[torch.Tensor, torch.Tensor]] = []

    def look(handles):
        at_launch.extend((row_bytes(h).clone(), padding(h).clone()) for h in handles)

    run_until(layer, start, name, look)
    writes = touched(layer, name, write=True)
    for handle, (rows, unused) in zip(layer.handles, at_launch, strict=True):
        mask = writes.get(handle.region.id)
        untouched = slice(None) if mask is None else torch.from_numpy(np.flatnonzero(~mask))
        assert torch.equal(row_bytes(handle)[untouched], rows[untouched])
        assert torch.equal(padding(handle), unused)
