"""What a trace says of itself while it streams past an engine: families, steps, unique and issued bytes.

`Watched` stands in for a trace and fills a `Tally` on the way, so that one pass over the file serves
both. The sums are made from the accesses alone, never from an engine: they are what an engine's ledger
is checked against.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memsim.ahead import ahead
from memsim.aside import cores
from memsim.result import READ, WRITE
from memsim.trace import EACH, Accesses, Kernel, Region
from memsim.trace_read import TraceFile
from memsim.unique import unique_bytes

MANY_ACCESSES = 1_000_000  # of which reading takes most of a second


@dataclass
class Tally:
    """Sums over the kernels seen so far.

    name, family, step   of each kernel, in file order
    unique     by (family, region kind): [bytes read, bytes written], unique in each kernel
    issued     int64[regions, 2]: bytes that blocks ask for;  issued_by_family: the same by family
    """

    name: list[str] = field(default_factory=list)
    family: list[str] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    unique: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    issued_by_family: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    issued: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))


class Watched:
    """A trace whose kernels are tallied as they are handed out, once."""

    def __init__(self, trace: TraceFile) -> None:
        self.trace = trace
        self.path: str = trace.path
        self.meta: dict[str, Any] = trace.meta
        self.regions: tuple[Region, ...] = trace.regions
        self.kernel_count: int = trace.kernel_count
        self.tally = Tally(issued=np.zeros((len(trace.regions), 2), np.int64))
        self._row_bytes = np.array([region.row_bytes for region in trace.regions], np.int64)

    def kernels(self) -> Iterator[tuple[Kernel, Accesses]]:
        """Every kernel with its accesses, in file order; those of a long trace are read ahead."""
        apart = self.trace.access_count >= MANY_ACCESSES and cores() > 1
        return ahead(self._tallied()) if apart else self._tallied()

    def _tallied(self) -> Iterator[tuple[Kernel, Accesses]]:
        for kernel, accesses in self.trace.kernels():
            self._add(kernel, accesses)
            yield kernel, accesses

    def _add(self, kernel: Kernel, accesses: Accesses) -> None:
        tally = self.tally
        tally.name.append(kernel.name)
        tally.family.append(kernel.family)
        tally.step.append(kernel.step)
        read, written = unique_bytes(kernel, accesses, self.regions)
        for way, by_region in ((READ, read), (WRITE, written)):
            for region, nbytes in by_region.items():
                tally.unique[kernel.family, self.regions[region].kind][way] += nbytes
        readers = np.where(accesses.spread == EACH, accesses.block_last - accesses.block + 1, 1)
        issued = accesses.rows * readers * self._row_bytes[accesses.region]
        np.add.at(tally.issued, (accesses.region, accesses.write.astype(np.int64)), issued)
        tally.issued_by_family[kernel.family] += int(issued.sum())
