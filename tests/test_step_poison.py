"""A whole step's trace says what its kernels touch, no more and no less: shown by poisoning rows.

As `test_workload_poison` does for attention, for the kernels around it: rows that the trace calls unread are
NaN and nothing changes; a row that it calls read is NaN, alone, and something does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from step_cases import MODELS, Recorded, step_of
from workload_cases import Stop, overwrite, padding, row_bytes, touched

NAN = torch.full((8,), 255, dtype=torch.uint8)
MOST = torch.tensor([torch.inf] * 2).view(torch.uint8)
SAMPLED_ROWS = 5  # of a region, where it has more
OF_ATTENTION = ("kda", "gdn", "mla", "dsa-", "gqa", "swa", "window-attend", "window-combine", "csa-", "hca-")


@cache
def clean(case: str) -> tuple[Recorded, list[torch.Tensor]]:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        step = step_of(case, Path(folder), [70, 64], by_score=True)
    start = [handle.data.clone() for handle in step.handles]
    step.run()
    return step, start


def run_until(step: Recorded, start: list[torch.Tensor], name: str, before) -> None:
    """Run a step from `start` to the end of kernel `name`, with `before` called at its launch."""
    for handle, data in zip(step.handles, start, strict=True):
        handle.data.copy_(data)
    step.recorder.watched, step.recorder.before = name, before
    with pytest.raises(Stop):
        step.run()


def around(step: Recorded) -> list[str]:
    """Kernels that are not attention's own."""
    names = [
        k.name for k in step.sink.kernels if not k.family.startswith((*OF_ATTENTION, "compress", "latent"))
    ]
    return [name for name in names if not name.endswith("index-insert")]


def written(step: Recorded, name: str) -> list[torch.Tensor]:
    """Copies of all rows that kernel `name` writes."""
    return [
        row_bytes(step.handles[region])[torch.from_numpy(np.flatnonzero(mask))].clone()
        for region, mask in touched(step, name, write=True).items()
    ]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def kernels():
    for case in MODELS:
        yield from (pytest.param(case, name, id=f"{case}: {name}") for name in around(clean(case)[0]))


KERNELS = list(kernels())


@pytest.mark.parametrize(("case", "name"), KERNELS)
def test_a_kernel_reads_and_writes_what_the_trace_says(case, name):
    step, start = clean(case)
    at_launch: list[tuple[torch.Tensor, torch.Tensor]] = []
    stored: list[torch.Tensor] = []

    def look(handles):
        stored.extend(handle.data.clone() for handle in handles)
        at_launch.extend((row_bytes(h).clone(), padding(h).clone()) for h in handles)

    run_until(step, start, name, look)
    writes, reads = touched(step, name, write=True), touched(step, name, write=False)
    for handle, (rows, unused) in zip(step.handles, at_launch, strict=True):
        mask = writes.get(handle.region.id)
        untouched = slice(None) if mask is None else torch.from_numpy(np.flatnonzero(~mask))
        assert torch.equal(row_bytes(handle)[untouched], rows[untouched])
        assert torch.equal(padding(handle), unused)
    expected = written(step, name)

    def poison(handles):
        for handle in handles:
            unread = ~reads.get(handle.region.id, np.zeros(handle.region.rows, bool))
            overwrite(handle, np.flatnonzero(unread), NAN)

    run_until(step, start, name, poison)
    assert same(written(step, name), expected)


@pytest.mark.parametrize(("case", "name"), KERNELS)
def test_every_row_that_is_read_matters(case, name):
    step, start = clean(case)
    run_until(step, start, name, lambda handles: None)
    expected = written(step, name)
    for region, mask in touched(step, name, write=False).items():
        rows = np.flatnonzero(mask)
        if len(rows) > SAMPLED_ROWS:
            rows = np.sort(np.random.default_rng(0).choice(rows, SAMPLED_ROWS, replace=False))
        for row in rows.tolist():
            for pattern in (NAN, MOST):  # as a number of an expert: less than all, and more
                poisoned = lambda handles, p=pattern: overwrite(handles[region], np.array([row]), p)  # noqa: B023, E731
                run_until(step, start, name, poisoned)
                if not same(written(step, name), expected):
                    break
            else:
                pytest.fail(f"row {row} of {step.handles[region].region.name} is called read and is not")
