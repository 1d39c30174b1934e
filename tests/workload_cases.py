"""Small layers to record in tests, and a recorder that stops at a kernel and looks at its regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from memsim.trace import Access, Kernel
from workloads.grid import Shape as Launch
from workloads.kinds import kernels_of
from workloads.record import ListSink, Recorder, RegionHandle
from workloads.run import Run
from workloads.shapes import (
    CsaShape,
    DsaShape,
    GdnShape,
    GqaShape,
    HcaShape,
    KdaShape,
    MlaShape,
    Shape,
    SwaShape,
    WindowShape,
)
from workloads.splits import Cut
from workloads.tensors import generator_for

torch.set_num_threads(1)  # tensors here are small, and tests share their machine

SMALL_CUT = Cut(split_from=300, blocks=3)
SHARED = ("index", "kv", "blocks")


class Stop(Exception):
    """The kernel that was watched has ended."""


class WatchingRecorder(Recorder):
    """Calls `before` when the kernel called `watched` is launched, and stops when it has ended."""

    watched: str | None = None
    before: Callable[[list[RegionHandle]], None]

    @contextmanager
    def kernel(
        self, name: str, family: str, layer: int, blocks: int, shape: Launch, partial: Any = None, **more: str
    ) -> Iterator[Kernel]:
        if name == self.watched:
            self.before(self._regions)
        with super().kernel(name, family, layer, blocks, shape, partial, **more) as kernel:
            yield kernel
        if name == self.watched:
            raise Stop


class Spec(NamedTuple):
    """A layer: its kind, its shape, and the numbers of the layers whose parts it uses, as in `Run`."""

    kind: str
    shape: Shape
    index: int | None = None
    kv: int | None = None
    blocks: int | None = None


@dataclass
class Layer:
    """One layer, or a few that share parts, ready to run: `step()` runs them on the data `fill()` drew.

    `regions` are those of the last layer.
    """

    recorder: WatchingRecorder
    sink: ListSink
    stack: list[Any]
    fill: Callable[[], None]
    step: Callable[[], None]

    @property
    def regions(self) -> Any:
        """Regions of the last layer."""
        return self.stack[-1]

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
    shape: Shape | None = None,
    heads: int = 2,
    top_k: int = 64,
    **options: Any,
) -> Layer:
    """A layer of `kind` for sequences of `lengths` rows: of `shape`, else of a small one (kda, mla, dsa)."""
    small: dict[str, Shape] = {
        "kda": KdaShape(heads),
        "mla": MlaShape(heads),
        "dsa": DsaShape(MlaShape(heads), index_heads=4, top_k=top_k),
    }
    return stack_of([Spec(kind, shape or small[kind])], lengths, device, **options)


def stack_of(
    specs: list[Spec],
    lengths: list[int],
    device: str = "cpu",
    *,
    units: int = 4,
    staged: bool = False,
    cut: Cut = SMALL_CUT,
    selected: list[np.ndarray] | dict[int, list[np.ndarray]] | None = None,
    candidates: list[np.ndarray] | None = None,
    dealt: bool = False,
) -> Layer:
    """Layers on one recorder, filled from seed 0; `selected` rows are those of all layers, or of each.

    `dealt`: a sequence has room for its own rows alone, not for as many as the longest has.
    """
    sink = ListSink()
    recorder = WatchingRecorder(sink, device)
    run = Run(len(lengths), max(lengths), units, staged, cut, candidates=candidates)
    run = replace(run, lengths=tuple(lengths)) if dealt else run
    stack: list[Any] = []
    runs: list[Run] = []
    for layer, spec in enumerate(specs):
        shared = {name: stack[at] for name in SHARED if (at := getattr(spec, name)) is not None}
        runs.append(replace(run, **shared))
        stack.append(kernels_of(spec.kind).declare(recorder, layer, spec.shape, runs[layer]))

    def fill() -> None:
        if device != "meta":
            for layer, spec in enumerate(specs):
                kernels_of(spec.kind).fill(stack[layer], generator_for(recorder.device, layer))

    def step() -> None:
        for layer, spec in enumerate(specs):
            kernels = kernels_of(spec.kind)
            rows = selected.get(layer) if isinstance(selected, dict) else selected
            kernels.step(recorder, layer, spec.shape, stack[layer], lengths, runs[layer], rows)

    fill()
    return Layer(recorder, sink, stack, fill, step)


class Case(NamedTuple):
    """Layers to run, sequences, and options of `stack_of`."""

    specs: list[Spec]
    lengths: list[int]
    options: dict[str, Any] = {}  # noqa: RUF012

    def stack(self, device: str = "cpu", **more: Any) -> Layer:
        """The layers on `device`."""
        return stack_of(self.specs, self.lengths, device, **self.options, **more)


def dsa_shape(heads: int = 2, top_k: int = 64, rope: int = 64, **more: Any) -> DsaShape:
    """A small DSA layer."""
    return DsaShape(MlaShape(heads, rope=rope), index_heads=4, top_k=top_k, **more)


def v41_shape(ratio: int, blocks: int = 0, **more: Any) -> CsaShape:
    """A small CSA layer of DeepSeek V4.1."""
    more = {"dtype": "fp4", "index_dtype": "fp4", **more}
    return CsaShape(WindowShape(3, style="v4.1"), 4, 16, ratio, blocks=blocks, **more)


# What the tests of poison and of backings run, kernel by kernel.
CASES = {
    "kda": Case([Spec("kda", KdaShape(2))], [1, 1]),
    "gdn": Case([Spec("gdn", GdnShape(2, 4))], [1, 1]),
    "mla": Case([Spec("mla", MlaShape(12))], [150, 20, 300]),
    "mla, two blocks a part": Case([Spec("mla", MlaShape(72))], [200], {"units": 8}),
    "mla, fp8": Case([Spec("mla", MlaShape(3, dtype="fp8"))], [150, 20]),
    "gqa": Case([Spec("gqa", GqaShape(12, 2, 64, 64))], [150, 20]),
    "gqa, split": Case([Spec("gqa", GqaShape(10, 2, 192, 128))], [700, 90], {"units": 12}),
    "gqa, wide values": Case([Spec("gqa", GqaShape(4, 2, 256, 256))], [480], {"units": 16}),
    "swa": Case([Spec("swa", SwaShape(GqaShape(4, 2, 192, 128), 128, sink=True))], [300, 128, 5]),
    "swa, split": Case([Spec("swa", SwaShape(GqaShape(4, 1, 256, 256), 400, sink=True))], [500, 30]),
    "window": Case([Spec("window", WindowShape(3))], [300, 128, 5]),
    "window, two blocks a part": Case([Spec("window", WindowShape(66))], [100], {"units": 8}),
    "hca": Case([Spec("hca", HcaShape(WindowShape(3)))], [512, 300, 90]),
    "hca, split": Case([Spec("hca", HcaShape(WindowShape(2), ratio=16))], [1600], {"units": 12}),
    "csa": Case([Spec("csa", CsaShape(WindowShape(3), 4, 32))], [200, 303, 8, 3]),
    "csa, fp4 keys, long": Case(
        [Spec("csa", CsaShape(WindowShape(66), 4, 32, index_dtype="fp4"))], [1240], {"units": 8}
    ),
    "csa, staged": Case([Spec("csa", CsaShape(WindowShape(3), 4, 80))], [400, 30], {"staged": True}),
    "v4.1, 2:1, shared": Case(
        [Spec("csa", v41_shape(2)), Spec("csa", v41_shape(2), index=0, kv=0)], [150, 301, 4, 1]
    ),
    "v4.1, 1:1, blocks": Case(
        [
            Spec("csa", v41_shape(1, blocks=5)),
            Spec("csa", v41_shape(1, blocks=5), kv=0, blocks=0),
            Spec("csa", v41_shape(1, blocks=5), index=1, kv=0, blocks=0),
        ],
        [150, 30, 1005],
    ),
    "dsa": Case([Spec("dsa", dsa_shape(top_k=80))], [250, 64]),
    "dsa, long and staged": Case([Spec("dsa", dsa_shape(66))], [330], {"staged": True, "units": 6}),
    "dsa, all selected": Case([Spec("dsa", dsa_shape())], [40]),
    "dsa, shared": Case([Spec("dsa", dsa_shape()), Spec("dsa", dsa_shape(3), index=0)], [90, 20]),
    "dsa, pooled, no rotary part": Case([Spec("dsa", dsa_shape(rope=0, pool=4))], [262, 65, 9]),
    "dsa, pooled, long": Case([Spec("dsa", dsa_shape(top_k=32, pool=4))], [1301], {"units": 6}),
    "dsa, forced rows": Case([Spec("dsa", dsa_shape(sink=5, local=20))], [200, 65, 30]),
    "dsa, forced rows, long": Case([Spec("dsa", dsa_shape(sink=5, local=20))], [400]),
    "dsa, fp4 keys": Case([Spec("dsa", dsa_shape(index_dtype="fp4"))], [150, 20]),
    "dsa, bf16 keys": Case([Spec("dsa", dsa_shape(index_dtype="bf16"))], [150, 20]),
}


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
    """The region's bytes, row by row: [rows, bytes]; a copy where rows are paged."""
    assert handle.data is not None
    data, region = handle.data.view(torch.uint8), handle.region
    if not region.page_rows:
        return data
    split, full = region.page_rows * region.page_head_bytes, region.page_rows * region.row_bytes
    heads = data[:, :split].reshape(region.rows, -1)
    return torch.cat([heads, data[:, split:full].reshape(region.rows, -1)], dim=1)


def padding(handle: RegionHandle) -> torch.Tensor:
    """Bytes of a region that are of no row: [pages, bytes]."""
    assert handle.data is not None
    region = handle.region
    used = region.page_rows * region.row_bytes if region.page_rows else region.row_bytes
    return handle.data.view(torch.uint8)[:, used:]


def overwrite(handle: RegionHandle, rows: np.ndarray, pattern: torch.Tensor) -> None:
    """Fill `rows` of a region with repeated bytes `pattern`, pages included."""
    assert handle.data is not None
    data, region = handle.data.view(torch.uint8), handle.region
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
