"""Where a trace falls apart: groups of kernels that overlap with nothing outside.

Kernels arrive in file order, segments leave as soon as the next one begins; memory is one segment's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from memsim.trace import EACH, Accesses, Kernel

FEW_ROWS = 8  # that a run keeps when it is cut
LONG_BYTES = 1 << 29  # a kernel that asks for more is cut to this where only ratios of times count

Launch = tuple[Kernel, Accesses]


@dataclass
class Segment:
    """Kernels that may overlap with each other, and with no others.

    waits      for each, the kernels of this segment, by position, that must have ended
    new_step   whether it is the first of its step
    handed     whether it waits for a kernel that runs elsewhere
    """

    launches: list[Launch] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)
    new_step: list[bool] = field(default_factory=list)
    handed: list[bool] = field(default_factory=list)


def split(
    launches: Iterable[Launch], apart: bool = True, home: Callable[[Kernel], int] = lambda _: 0
) -> Iterator[Segment]:
    """Segments of a trace in order; all kernels in one where `apart` is false.

    home  the initiator that runs a kernel

    A kernel begins a new segment when every kernel of the last one must have ended before it starts:
    when it waits for all that nothing else in there waits for. Kernels are launched in file order, so
    none that comes later can reach back.
    """
    segment = Segment()
    position: dict[int, int] = {}  # kernels of this segment by id
    on_stream: dict[int, int] = {}  # last kernel of each stream
    unawaited: set[int] = set()
    homes: dict[int, int] = {}
    step = None
    for kernel, accesses in launches:
        before = set(kernel.waits_for)
        if kernel.stream in on_stream:
            before.add(on_stream[kernel.stream])
        if apart and segment.launches and unawaited <= before:
            yield segment
            segment, position, unawaited = Segment(), {}, set()
        segment.waits.append(sorted(position[k] for k in before if k in position))
        segment.new_step.append(kernel.step != step)
        homes[kernel.id] = home(kernel)
        segment.handed.append(any(homes[k] != homes[kernel.id] for k in before))
        position[kernel.id] = len(segment.launches)
        segment.launches.append((kernel, accesses))
        on_stream[kernel.stream] = kernel.id
        unawaited = (unawaited - before) | {kernel.id}
        step = kernel.step
    if segment.launches:
        yield segment


def shortened(segment: Segment, row_bytes: npt.NDArray[np.int64], most_bytes: int) -> Segment:
    """The segment with long runs of rows cut alike, so that its kernels ask for about `most_bytes` in runs.

    Blocks, their order and gathered rows stay: what binds such a kernel, and by how much its time grows with
    a number, is what it is for the whole one. row_bytes: int64[regions].
    """
    asked = sum(_run_bytes(accesses, row_bytes) for _, accesses in segment.launches)
    factor = -(-asked // most_bytes)
    if factor < 2:
        return segment
    launches = [(kernel, _cut(accesses, factor)) for kernel, accesses in segment.launches]
    return replace(segment, launches=launches)


def _run_bytes(accesses: Accesses, row_bytes: npt.NDArray[np.int64]) -> int:
    """Bytes that the blocks of a kernel ask for in runs."""
    readers = np.where(accesses.spread == EACH, accesses.block_last - accesses.block + 1, 1)
    runs = accesses.gather_at < 0
    return int((accesses.rows * readers * row_bytes[accesses.region])[runs].sum())


def _cut(accesses: Accesses, factor: int) -> Accesses:
    """The accesses with runs of many rows a `factor` shorter."""
    long = (accesses.gather_at < 0) & (accesses.rows >= FEW_ROWS * factor)
    return accesses._replace(rows=np.where(long, accesses.rows // factor, accesses.rows))
