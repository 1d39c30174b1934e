"""The recorder: hands a kernel the rows that it asks for and writes down that it asked.

What enters: region declarations, kernel launches, and `load`, `gather` and `store` on regions, each with
the blocks that do it. What leaves: tensors for the kernel's arithmetic, and trace rows in a sink
(a trace writer, or `ListSink` in memory). Backing is one switch: device "cpu" or "cuda" with real
tensors, or "meta", where tensors have shapes and no data and regions may be larger than any memory.
Left out: page tables and schedule metadata (pages lie in order), and every access to registers and
shared memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from memsim.trace import Access, Kernel, Region
from workloads import costs
from workloads.grid import Blocks, Page, Shape
from workloads.tables import At

Int64s = npt.NDArray[np.int64]

# How the rows of a region are held in torch. `bytes` is for rows of mixed types: `formats` reads them.
TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "int32": torch.int32,
    "bytes": torch.uint8,
}


class Sink(Protocol):
    """What trace rows are written to: `memsim.trace_write.TraceWriter`, or `ListSink`."""

    def region(self, row: Region) -> None: ...

    def kernel(self, row: Kernel) -> None: ...

    def access(self, row: Access) -> None: ...


class ListSink:
    """Keeps trace rows in memory, in order."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.kernels: list[Kernel] = []
        self.accesses: list[Access] = []

    def region(self, row: Region) -> None:
        self.regions.append(row)

    def kernel(self, row: Kernel) -> None:
        self.kernels.append(row)

    def access(self, row: Access) -> None:
        self.accesses.append(row)


class Recorder:
    """Declares regions and launches kernels; every kernel waits for the one before it, on stream 0.

    families      of the kernels so far
    beyond        those with kernels whose shape lies outside the table of their costs
    among_others  kernels are those of a whole step, whose weights push the code of each out of the caches
    """

    def __init__(self, sink: Sink, device: str = "meta") -> None:
        self.sink = sink
        self.device = torch.device(device)
        self.step = 0
        self.families: set[str] = set()
        self.beyond: set[str] = set()
        self.among_others = False
        self._regions: list[RegionHandle] = []
        self._kernels = 0
        self._inside = False

    @property
    def is_meta(self) -> bool:
        """True where tensors have no data."""
        return bool(self.device.type == "meta")

    def region(
        self,
        name: str,
        kind: str,
        layer: int,
        rows: int,
        row_bytes: int,
        dtype: str,
        page: Page | None = None,
    ) -> RegionHandle:
        """Declare a region of `rows` rows of `row_bytes` bytes; paged regions hold whole pages.

        All regions are declared before the first kernel. On meta it is ready to use; on a real device
        `fill` gives it data.
        """
        assert not self._kernels, f"region {name!r} is declared after the first kernel"
        layout = (
            {}
            if page is None
            else {"page_rows": page.rows, "page_head_bytes": page.head_bytes, "page_bytes": page.bytes}
        )
        size = rows * row_bytes if page is None else -(-rows // page.rows) * page.bytes
        region = Region(len(self._regions), name, kind, layer, dtype, size, row_bytes, **layout)
        handle = RegionHandle(self, region)
        self._regions.append(handle)
        self.sink.region(region)
        if self.is_meta:
            handle.fill(torch.empty(handle.shape, dtype=handle.dtype, device="meta"))
        return handle

    def release(self, keep: Collection[int] = ()) -> None:
        """Drop the data of all regions of a real device, but for those of the layers in `keep`."""
        if not self.is_meta:
            for handle in self._regions:
                if handle.region.layer not in keep:
                    handle.data = None

    @contextmanager
    def kernel(
        self,
        name: str,
        family: str,
        layer: int,
        blocks: int,
        shape: Shape,
        partial: RegionHandle | None = None,
        *,
        cost: str = "",
        at: At | None = None,
    ) -> Iterator[Kernel]:
        """Launch a kernel of `blocks` thread blocks; what regions are asked for inside is its doing.

        What it costs beside bytes and arithmetic is what `costs` says of its family or of `cost`, by shape.
        """
        assert not self._inside, f"kernel {name!r} is launched inside another kernel"
        kernel = Kernel(
            id=self._kernels,
            name=name,
            family=family,
            layer=layer,
            step=self.step,
            stream=0,
            waits_for=(self._kernels - 1,) if self._kernels else (),
            blocks=blocks,
            partial_region=-1 if partial is None else partial.region.id,
            **costs.of(cost or family, among_others=self.among_others, at=at),
            **{**vars(shape), "flops_per_tile": costs.flops_of(cost or family, shape.flops_per_tile)},
        )
        self.families.add(cost or family)
        if costs.outside(cost or family, at):
            self.beyond.add(cost or family)
        self._kernels += 1
        self._inside = True
        self.sink.kernel(kernel)
        try:
            yield kernel
        finally:
            self._inside = False

    def record(self, access: Access) -> None:
        """Write down one access of the kernel that runs."""
        self.sink.access(access)

    @property
    def running(self) -> int:
        """Id of the kernel that runs."""
        assert self._inside, "a region is touched outside a kernel"
        return self._kernels - 1


class RegionHandle:
    """A region and the tensor behind it, shape [rows, elements of a row], or [pages, page bytes]."""

    def __init__(self, recorder: Recorder, region: Region) -> None:
        self.recorder = recorder
        self.region = region
        self.dtype = TORCH_DTYPES[region.dtype]
        self.width = region.row_bytes // self.dtype.itemsize
        self.data: torch.Tensor | None = None
        self._firsts: tuple[int, ...] = ()

    def dealt(self, sizes: Sequence[int]) -> RegionHandle:
        """The same, its rows dealt to sequences, `sizes` rows to each; returns itself."""
        firsts = tuple(accumulate(sizes, initial=0))
        assert firsts[-1] == self.region.rows, f"region {self.region.name!r}: {firsts[-1]} rows are dealt"
        self._firsts = firsts
        return self

    def first(self, sequence: int, batch: int) -> int:
        """First row of a sequence: as they were dealt, else each of `batch` sequences has as many."""
        if self._firsts:
            assert len(self._firsts) == batch + 1, f"region {self.region.name!r}: not of {batch} sequences"
            return self._firsts[sequence]
        return sequence * (self.region.rows // batch)

    def per_token(self, sequences: int, draft: int) -> RegionHandle:
        """The same region for `draft` new tokens of each sequence, each of which sees all of its rows."""
        if draft == 1:
            return self
        assert self.recorder.is_meta, f"region {self.region.name!r}: data is not shared by its views"
        view = copy(self)
        firsts = [self.first(sequence, sequences) for sequence in range(sequences)]
        view._firsts = (*(first for first in firsts for _ in range(draft)), self.region.rows)
        return view

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the tensor behind the region."""
        if self.region.page_rows:
            return self.region.bytes // self.region.page_bytes, self.region.page_bytes
        return self.region.rows, self.width

    def fill(self, data: torch.Tensor) -> None:
        """Put `data` behind the region; any shape with the right number of elements."""
        self.data = data.to(self.dtype).reshape(self.shape).contiguous()

    def zero(self) -> None:
        """Put zeros behind the region, where the device is real."""
        if not self.recorder.is_meta:
            self.data = torch.zeros(self.shape, dtype=self.dtype, device=self.recorder.device)

    def load(
        self,
        first: int,
        rows: int,
        blocks: Blocks,
        *,
        stride: int = 1,
        worked: bool = False,
        dependent: bool = False,
    ) -> torch.Tensor:
        """Read rows first, first + stride, ...: [rows, elements]."""
        self._note(blocks, first, rows, stride, write=False, worked=worked, dependent=dependent)
        return self._rows()[first : first + rows * stride : stride]

    def load_each(
        self,
        first: int,
        rows: int,
        blocks: Blocks,
        groups: int,
        apart: int,
        *,
        stride: int = 1,
        worked: bool = False,
        same_blocks: bool = False,
    ) -> torch.Tensor:
        """`groups` reads in one call: group i reads `rows` rows from first + i x apart.

        `blocks` are those of group 0; every group's follow those of the one before, or are the same.
        Returns [groups, rows, elements].
        """
        for group in range(groups):
            shifted = blocks.shifted(0 if same_blocks else group * (blocks.last - blocks.first + 1))
            self._note(shifted, first + group * apart, rows, stride, write=False, worked=worked)
        return self._groups(first, rows, groups, apart, stride)

    def gather(self, rows: Int64s, blocks: Blocks, *, worked: bool = False) -> torch.Tensor:
        """Read the rows that are listed, in that order, once the list is known: [rows, elements]."""
        self._note(blocks, 0, len(rows), 1, write=False, worked=worked, dependent=True, gather=rows)
        data = self._rows()
        if self.recorder.is_meta:
            return data[: len(rows)]
        return data.index_select(0, torch.from_numpy(rows).to(data.device))

    def load_pages(
        self, first: int, rows: int, blocks: Blocks, *, worked: bool = False, dependent: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read consecutive rows of a paged region: heads [rows, head bytes] and tails [rows, tail bytes]."""
        self._note(blocks, first, rows, 1, write=False, worked=worked, dependent=dependent)
        size = self.region.page_rows
        first_page, skipped = divmod(first, size)
        heads, tails = self._halves(slice(first_page, -(-(first + rows) // size)))
        chosen = slice(skipped, skipped + rows)
        return heads.flatten(0, 1)[chosen], tails.flatten(0, 1)[chosen]

    def gather_pages(
        self, rows: Int64s, blocks: Blocks, *, worked: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`gather` of a paged region: heads [rows, head bytes] and tails [rows, tail bytes]."""
        self._note(blocks, 0, len(rows), 1, write=False, worked=worked, dependent=True, gather=rows)
        heads, tails = self._halves(slice(None))
        if self.recorder.is_meta:
            return heads.new_empty(len(rows), heads.shape[2]), tails.new_empty(len(rows), tails.shape[2])
        page, at = (
            torch.from_numpy(part).to(heads.device) for part in np.divmod(rows, self.region.page_rows)
        )
        return heads[page, at], tails[page, at]

    def store_pages(
        self, first: int, heads: torch.Tensor, tails: torch.Tensor, blocks: Blocks, *, dependent: bool = True
    ) -> None:
        """Write consecutive rows of one page: heads [rows, head bytes] and tails [rows, tail bytes]."""
        self._note(blocks, first, len(heads), 1, write=True, dependent=dependent)
        page, at = divmod(first, self.region.page_rows)
        assert at + len(heads) <= self.region.page_rows, f"region {self.region.name!r}: rows of two pages"
        whole_heads, whole_tails = self._halves(slice(page, page + 1))
        whole_heads[0, at : at + len(heads)] = heads
        whole_tails[0, at : at + len(tails)] = tails

    def store(self, first: int, values: torch.Tensor, blocks: Blocks, *, dependent: bool = True) -> None:
        """Write `values` (any shape of whole rows) to consecutive rows from `first` on."""
        rows = values.numel() // self.width
        self._note(blocks, first, rows, 1, write=True, dependent=dependent)
        self._rows()[first : first + rows].copy_(values.reshape(rows, self.width))

    def store_each(
        self, first: int, values: torch.Tensor, blocks: Blocks, apart: int, *, stride: int = 1
    ) -> None:
        """The writes of [groups, rows, elements] that `load_each` would read; each waits for its block."""
        groups, rows = values.shape[:2]
        for group in range(groups):
            shifted = blocks.shifted(group * (blocks.last - blocks.first + 1))
            self._note(shifted, first + group * apart, rows, stride, write=True, dependent=True)
        self._groups(first, rows, groups, apart, stride).copy_(values)

    def _rows(self) -> torch.Tensor:
        assert self.data is not None, f"region {self.region.name!r} has no data"
        assert not self.region.page_rows, f"region {self.region.name!r} is paged: use load_pages"
        return self.data

    def _halves(self, pages: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of pages: heads [pages, page rows, head bytes] and tails [pages, page rows, tail bytes]."""
        region = self.region
        assert self.data is not None, f"region {region.name!r} has no data"
        split, full = region.page_rows * region.page_head_bytes, region.page_rows * region.row_bytes
        shape = region.page_rows, -1
        return self.data[pages, :split].unflatten(1, shape), self.data[pages, split:full].unflatten(1, shape)

    def _groups(self, first: int, rows: int, groups: int, apart: int, stride: int) -> torch.Tensor:
        data, width = self._rows(), self.width
        strides = (apart * width, stride * width, 1)
        return data.as_strided((groups, rows, width), strides, data.storage_offset() + first * width)

    def _note(
        self,
        blocks: Blocks,
        first: int,
        rows: int,
        stride: int,
        *,
        write: bool,
        worked: bool = False,
        dependent: bool = False,
        gather: Int64s | None = None,
    ) -> None:
        last = first + (rows - 1) * stride if gather is None else int(gather.max(initial=0))
        assert rows > 0, f"region {self.region.name!r}: an access of {rows} rows"
        assert 0 <= first <= last < self.region.rows, (
            f"region {self.region.name!r}: rows {first}..{last} of {self.region.rows}"
        )
        self.recorder.record(
            Access(
                kernel=self.recorder.running,
                block=blocks.first,
                block_last=blocks.last,
                region=self.region.id,
                write=write,
                first_row=first,
                rows=rows,
                stride=stride,
                spread=blocks.spread,
                grain=blocks.grain,
                gather=gather,
                dependent=dependent,
                worked=worked,
            )
        )
