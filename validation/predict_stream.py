"""`stream.*`: blocks that read, write, copy or update the GPU's own memory (`measure/cuda/stream.cu`).

A block of the kernel strides over tiles of `flight` bytes. Each of its warps asks for its part of a tile, all
at once, and takes its part of the next tile when that has come: warps do not wait for each other, and stores
are not waited for. What a warp has read it adds up, changes or passes on: an operation a word of 4 bytes, and
what the machine takes besides (`work_latency`) before its turn is over. Cold or warm follows from the number
of buffers that the calls go round.

Left out: that a warp's words lie 16 bytes x threads apart inside its block's tile (here they lie together),
and the launch of the graph, which the measurement subtracts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_script import MANY, Bench, Grid, Job, Lengths, Move, Script, count
from workloads.grid import even

ROW_BYTES = 512  # what a warp's 32 threads ask for in one load
LONG_BYTES = 64 << 20  # a larger call is replayed in shorter lengths
PLENTY_BYTES = 128 << 20
CALLS = 4  # counted
STORES = 8  # tiles of a warp that are on their way while it goes on: more than there ever are


@dataclass(frozen=True)
class Stream:
    """One kernel: `kind` read, write, copy or update; sizes in bytes.

    warps, warp_bytes   of a block, and what each asks for at once
    resident            blocks that a unit holds
    """

    kind: str
    blocks: int
    warps: int
    warp_bytes: int
    resident: int

    @property
    def turn_bytes(self) -> int:
        """What all the blocks take in one turn of their loop."""
        return self.blocks * self.warps * self.warp_bytes

    @property
    def by_warp(self) -> bool:
        """Whether a block of the trace stands for a warp: where a store waits for its own load."""
        return self.kind in ("copy", "update")

    def grid(self) -> Grid:
        if self.kind == "write":
            return Grid(self.blocks, self.resident, self.warp_bytes, MANY)
        rows = self.warp_bytes // ROW_BYTES
        if self.by_warp:
            return Grid(
                self.blocks * self.warps,
                self.resident * self.warps,
                self.warp_bytes,
                STORES,
                worked_rows=rows,
            )
        return Grid(self.blocks, self.resident, self.warp_bytes, self.warps, worked_rows=rows)

    def moves(self, regions: Sequence[int], nbytes: int, begin: int = 0) -> Iterator[Move]:
        """Accesses of a call of `nbytes` from byte `begin` on of a buffer: one region, or two of a copy."""
        grid = self.grid()
        mine = self.turn_bytes // grid.blocks // ROW_BYTES
        blocks = even(0, grid.blocks - 1, mine)
        end, step = (begin + nbytes) // ROW_BYTES, self.turn_bytes // ROW_BYTES
        for first in range(begin // ROW_BYTES, end, step):
            here = min(step, end - first)
            if self.kind != "write":
                yield Move(regions[0], blocks, here, first, worked=True)
            if self.kind != "read":
                yield Move(regions[-1], blocks, here, first, write=True, after=self.by_warp)


def warps_of(flight: int) -> tuple[int, int]:
    """Warps of a block with so many bytes in flight, and the bytes that each asks for at once."""
    threads = min(256, flight // 16)
    return threads // 32, flight // (threads // 32)


def stream(kind: str, row: Row, system: System) -> Job:
    """A call of `bytes`; copies and updates read and write as many."""
    nbytes, blocks = count(row, "bytes"), count(row, "blocks")
    what = Stream(kind, blocks, *warps_of(count(row, "flight")), count(row, "resident"))
    if nbytes > LONG_BYTES:
        return long_calls(what, nbytes, system.initiators[0].units)
    return rotating_calls(what, nbytes, count(row, "buffers"), system.initiators[0].units)


def rotating_calls(what: Stream, nbytes: int, buffers: int, units: int) -> Job:
    """Calls that go round the buffers once, and CALLS more: their mean.

    Of many buffers, as many as no cache holds (PLENTY_BYTES) and then others: none of them comes back soon.
    """
    first = min(buffers, -(-PLENTY_BYTES // nbytes))
    script, calls = _with_buffers(what, [nbytes] * min(buffers, first + CALLS), units)
    order = [call % len(calls) for call in range(first + CALLS)]
    kernels = [script.kernel(what.grid(), list(what.moves(calls[buffer], nbytes))) for buffer in order]

    def time_ns(bench: Bench) -> float:
        return bench.run(script).between_ns(kernels[-CALLS - 1], kernels[-1]) / CALLS

    return Job(*script.moved(kernels[-1]), time_ns)


def long_calls(what: Stream, nbytes: int, units: int) -> Job:
    """Shorter calls, each on buffers of its own, after one that is not counted."""
    lengths = Lengths.of(nbytes, what.turn_bytes, LONG_BYTES)
    sizes = (lengths.calls[-1], *lengths.calls)
    script, buffers = _with_buffers(what, sizes, units)
    pairs = zip(buffers, sizes, strict=True)
    kernels = [script.kernel(what.grid(), list(what.moves(buffer, size))) for buffer, size in pairs]
    return lengths.job(script, kernels)


def _with_buffers(what: Stream, sizes: Sequence[int], units: int) -> tuple[Script, list[list[int]]]:
    """A script with the regions of each buffer; a small grid has a unit for each block."""
    script = Script(what.warps, units=min(what.blocks, units)) if what.by_warp else Script()
    halves = 2 if what.kind == "copy" else 1
    regions = [[script.region(size // ROW_BYTES, ROW_BYTES) for _ in range(halves)] for size in sizes]
    return script, regions


RECIPES = {
    "stream.read": lambda row, system: stream("read", row, system),
    "stream.write": lambda row, system: stream("write", row, system),
    "stream.copy": lambda row, system: stream("copy", row, system),
    "stream.update": lambda row, system: stream("update", row, system),
}
