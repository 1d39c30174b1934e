"""Small layers to record in tests, and a recorder that stops at a kernel and looks at its regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memsim.trace import Access, Kernel
from workloads.dsa_topk import Cut
from workloads.grid import Shape as Launch
from workloads.kinds import kernels_of
from workloads.record import ListSink, Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import DsaShape, KdaShape, MlaShape, Shape
from workloads.tensors import generator_for

torch.set_num_threads(1)  # tensors here are small, and tests share their machine

SMALL_CUT = Cut(split_from=300, blocks=3)


class Stop(Exception):
    """The kernel that was watched has ended."""


class WatchingRecorder(Recorder):
    """Calls `before` when the kernel called `watched` is launched, and stops when it has ended."""

    watched: str | None = None
    before: Callable[[list[RegionHandle]], None]

    @contextmanager
    def kernel(
        self, name: str, family: str, layer: int, blocks: int, shape: Launch, partial: Any = None
    ) -> Iterator[Kernel]:
        if name == self.watched:
            self.before(self._regions)
        with super().kernel(name, family, layer, blocks, shape, partial) as kernel:
            yield kernel
        if name == self.watched:
            raise Stop


@dataclass
class Layer:
    """A layer of one kind, ready to run: `step()` runs it on the data that `fill()` drew."""

    recorder: WatchingRecorder
    sink: ListSink
    regions: Any
    fill: Callable[[], None]
    step: Callable[[], None]

    @property
    def handles(self) -> list[RegionHandle]:
        """All regions, index = id."""
        return self.recorder._regions

    def kernel_names(self) -> list[str]:
        """Names of the kernels that a step launches."""
        return [kernel.name for kernel in self.sink.kernels]

    def accesses(self, name: str) -> list[Access]:
        """Accesses of the kernel called `name`."""
        number = self.kernel_names().index(name)
        return [access for access in self.sink.accesses if access.kernel == number]


def layer_of(
    kind: str,
    lengths: list[int],
    device: str = "cpu",
    *,
    heads: int = 2,
    units: int = 4,
    top_k: int = 64,
    staged: bool = False,
    cut: Cut = SMALL_CUT,
    selected: list[np.ndarray] | None = None,
) -> Layer:
    """A layer of `kind` (kda, mla, dsa) for sequences of `lengths` rows, filled from seed 0."""
    sink = ListSink()
    recorder = WatchingRecorder(sink, device)
    run = Run(len(lengths), max(lengths), units, staged, cut)
    shapes: dict[str, Shape] = {
        "kda": KdaShape(heads),
        "mla": MlaShape(heads),
        "dsa": DsaShape(MlaShape(heads), index_heads=4, top_k=top_k),
    }
    shape, kernels = shapes[kind], kernels_of(kind)
    regions = kernels.declare(recorder, 0, shape, run)

    def fill() -> None:
        if device != "meta":
            kernels.fill(regions, generator_for(recorder.device, 0))

    def step() -> None:
        kernels.step(recorder, 0, shape, regions, lengths, run, selected)

    fill()
    return Layer(recorder, sink, regions, fill, step)


def rows_of(access: Access) -> np.ndarray:
    """Rows that an access touches."""
    if access.gather is not None:
        return access.gather
    return access.first_row + np.arange(access.rows) * access.stride


def touched(layer: Layer, name: str, *, write: bool) -> dict[int, np.ndarray]:
    """For each region that kernel `name` reads (or writes): bool[rows], True where it does."""
    masks: dict[int, np.ndarray] = {}
    for access in layer.accesses(name):
        if access.write == write:
            region = layer.handles[access.region].region
            masks.setdefault(access.region, np.zeros(region.rows, bool))[rows_of(access)] = True
    return masks


def row_bytes(handle: RegionHandle) -> torch.Tensor:
    """The region's bytes as a view [rows, bytes] where rows are contiguous, else [pages, bytes]."""
    assert handle.data is not None
    return handle.data.view(torch.uint8)


def overwrite(handle: RegionHandle, rows: np.ndarray, pattern: torch.Tensor) -> None:
    """Fill `rows` of a region with repeated bytes `pattern`, pages included."""
    data, region = row_bytes(handle), handle.region
    if not region.page_rows:
        repeats = data.shape[1] // len(pattern) + 1
        data[torch.from_numpy(rows)] = pattern.repeat(repeats)[: data.shape[1]]
        return
    head, tail = region.page_head_bytes, region.row_bytes - region.page_head_bytes
    for row in rows.tolist():
        page, at = divmod(row, region.page_rows)
        data[page, at * head : (at + 1) * head] = pattern[0]
        start = region.page_rows * head + at * tail
        data[page, start : start + tail] = pattern[0]
