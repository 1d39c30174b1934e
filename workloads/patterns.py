"""Plain access patterns as traces: stream, copy, update, gather, chase, gemv. They need no torch.

A pattern's name and its options enter (`kernel_options` completes them), a trace file leaves. A call is one
kernel; calls go round the buffers, each a set of regions of its own, so that data come back to a kernel
after as many calls as there are buffers. All calls lie in one step: a graph of kernels, each of which waits
for the one before it.

The blocks of a grid stride over the tiles together, as those of a persistent kernel do. Where they write
what they read, a block writes a tile when it has arrived, and asks for its next one. A copy engine takes a
block for each transfer, which it reads and writes piece by piece: a piece is written as soon as all of it is
asked for. Left out: the index list of a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memsim.errors import UsageError
from memsim.trace import Access, Kernel, Region
from memsim.trace_write import TraceWriter
from workloads.grid import Blocks, each, even, one
from workloads.kernel_options import LINE_BYTES

Int64s = npt.NDArray[np.int64]
Accesses = Callable[[np.random.Generator], Iterator[Access]]

PIECE_BYTES = 131_072  # a copy engine reads these while it writes the ones before
MOST_TILES = 2**24  # of a kernel that names each tile, and pieces of a copy engine's transfers
MOST_IN_FLIGHT = 65_536  # tiles of a block
WEIGHT_BYTES = 2  # bf16


@dataclass(frozen=True)
class Options:
    """All options of a pattern; those that it does not take keep these values.

    units            processors of what runs it
    piece_bytes      of a transfer of a copy engine
    bytes            that a call reads, copies or updates
    count, span      rows of a call, and the bytes of the region that they are drawn from
    programs         blocks of a grid; None: as many as the units hold at once
    block_bytes      a tile of a block, a transfer with `dma`
    buffers          sets of regions;  calls_per_launch  kernels of the graph
    write            to where `--tier` says, not from there
    """

    units: int
    seed: int
    piece_bytes: int
    bytes: int = 0
    count: int = 0
    row_bytes: int = LINE_BYTES
    span: int = 0
    programs: int | None = None
    blocks_per_unit: int = 1
    block_bytes: int = LINE_BYTES
    tiles_in_flight: int = 1
    buffers: int = 1
    calls_per_launch: int = 1
    write: bool = False
    dma: bool = False

    def blocks(self, tiles: int) -> int:
        """Blocks of a grid: no more than it has tiles, by default one wave."""
        return min(tiles, self.programs or self.units * self.blocks_per_unit)


class Memory(NamedTuple):
    """A region of a pattern; `far`: it lies where `--tier` says."""

    name: str
    kind: str
    rows: int
    row_bytes: int
    far: bool = True


@dataclass(frozen=True)
class Call:
    """One kernel: its regions, its blocks, its accesses (whose regions are numbers in `memories`).

    launch  fields of `Kernel` beside those that the options give
    """

    memories: tuple[Memory, ...]
    blocks: int
    accesses: Accesses
    launch: dict[str, Any] = field(default_factory=dict)


def write(
    name: str,
    options: Mapping[str, Any],
    units: int,
    seed: int,
    out: str | Path,
    piece_bytes: int = PIECE_BYTES,
) -> list[str]:
    """Write the trace of a plain pattern to `out`; returns the regions that `--tier` places.

    options      as `kernel_options.complete` gives them
    units        processors of what runs it
    piece_bytes  of a transfer of a copy engine, whole lines; as long as its links need them

    UsageError where a kernel would have too many tiles, OutputError where `out` cannot be written.
    """
    chosen = Options(units=units, seed=seed, piece_bytes=piece_bytes, **options)
    call = PATTERNS[name](chosen)
    meta = {"model": name, "part": "kernel", "batch": 1, "steps": 1, "tokens_per_step": 1, "seed": seed}
    sets = len(call.memories)
    far = []
    with TraceWriter(out, meta | {"options": dict(options)}) as trace:
        for number in range(chosen.buffers * sets):
            region = _region(number, call.memories[number % sets], number // sets)
            if call.memories[number % sets].far:
                far.append(region.name)
            trace.region(region)
        for number in range(chosen.calls_per_launch):
            buffer = number % chosen.buffers
            trace.kernel(_kernel(name, number, call, chosen))
            for access in call.accesses(np.random.default_rng([seed, buffer])):
                trace.access(replace(access, kernel=number, region=access.region + buffer * sets))
    return far


def _region(number: int, memory: Memory, buffer: int) -> Region:
    return Region(
        id=number,
        name=f"{memory.name}{buffer}",
        kind=memory.kind,
        layer=buffer,
        dtype="bytes",
        bytes=memory.rows * memory.row_bytes,
        row_bytes=memory.row_bytes,
    )


def _kernel(name: str, number: int, call: Call, options: Options) -> Kernel:
    shape: dict[str, Any] = {
        "blocks_per_unit": options.blocks_per_unit,
        "tile_rows": 1,
        "tile_bytes": options.block_bytes,
        "tiles_in_flight": options.tiles_in_flight,
        "retire": "any",
        "tile_rule": "plain pattern",
    }
    return Kernel(
        id=number,
        name=f"{name}{number}",
        family=name,
        layer=-1,
        step=0,
        stream=0,
        waits_for=(number - 1,) if number else (),
        blocks=call.blocks,
        **(shape | call.launch),
    )


def _access(region: int, rows: int, blocks: Blocks, *, write: bool = False, **more: Any) -> Access:
    where = {"block": blocks.first, "block_last": blocks.last, "spread": blocks.spread, "grain": blocks.grain}
    fields: dict[str, Any] = {"first_row": 0} | where | more
    return Access(kernel=0, region=region, write=write, rows=rows, **fields)


def _stream(options: Options) -> Call:
    """Read (or write) a region from end to end."""
    rows, grain = options.bytes // LINE_BYTES, options.block_bytes // LINE_BYTES
    if options.dma:
        return _transfers(options, rows, grain)
    memories = (Memory("data", "activation", rows, LINE_BYTES),)
    return _tile_by_tile(options, memories, grain, reads=not options.write, writes=options.write)


def _copy(options: Options) -> Call:
    """Read one region and write another; one of them far, the other in the machine's first tier."""
    rows, grain = options.bytes // LINE_BYTES, options.block_bytes // LINE_BYTES
    if options.dma:
        return _transfers(options, rows, grain)
    return _tile_by_tile(options, _two_sides(options, rows, LINE_BYTES), grain)


def _update(options: Options) -> Call:
    """Read and write back the same region."""
    rows = options.bytes // LINE_BYTES
    memories = (Memory("data", "state", rows, LINE_BYTES),)
    return _tile_by_tile(options, memories, options.block_bytes // LINE_BYTES)


def _two_sides(options: Options, rows: int, row_bytes: int) -> tuple[Memory, ...]:
    return (
        Memory("source", "activation", rows, row_bytes, far=not options.write),
        Memory("target", "activation", rows, row_bytes, far=options.write),
    )


def _tile_by_tile(
    options: Options, memories: tuple[Memory, ...], grain: int, *, reads: bool = True, writes: bool = True
) -> Call:
    """Blocks stride over the tiles together: read a tile of the first region, write it to the last."""
    rows = memories[0].rows
    tiles = -(-rows // grain)
    _check_tiles(tiles, options)
    blocks = options.blocks(tiles)
    shared, step = even(0, blocks - 1, grain), rows if blocks == 1 and reads != writes else grain * blocks

    def accesses(_: np.random.Generator) -> Iterator[Access]:
        for first in range(0, rows, step):
            here = min(step, rows - first)
            if reads:
                yield _access(0, here, shared, first_row=first)
            if writes:
                yield _access(len(memories) - 1, here, shared, first_row=first, write=True, dependent=reads)

    return Call(memories, blocks, accesses)


def _transfers(options: Options, rows: int, grain: int) -> Call:
    """A copy engine moves a region, a block for each transfer of `grain` lines."""
    transfers = -(-rows // grain)
    part = min(grain, options.piece_bytes // LINE_BYTES)
    _check_tiles(transfers * -(-grain // part), options)

    def accesses(_: np.random.Generator) -> Iterator[Access]:
        if part == grain:
            for region, write in ((0, False), (1, True)):
                yield _access(region, rows, even(0, transfers - 1, grain), write=write)
            return
        for first in range(0, rows, grain):
            end, block = min(first + grain, rows), one(first // grain)
            for at in range(first, end, part):
                for region, write in ((0, False), (1, True)):
                    yield _access(region, min(part, end - at), block, first_row=at, write=write)

    return Call(_two_sides(options, rows, LINE_BYTES), transfers, accesses, _engine(part * LINE_BYTES))


def _engine(tile_bytes: int) -> dict[str, Any]:
    """How a copy engine walks a block: one transfer at a time, as far ahead as its bytes in flight let it."""
    return {"blocks_per_unit": 1, "tile_bytes": tile_bytes, "tiles_in_flight": MOST_IN_FLIGHT}


def _gather(options: Options) -> Call:
    """Read rows that are drawn from a region, none twice, in the order of the draw."""
    source = Memory("rows", "kv", options.span // options.row_bytes, options.row_bytes)
    if options.dma:
        return _scattered_transfers(options, source)
    grain = max(1, options.block_bytes // options.row_bytes)
    blocks = options.blocks(-(-options.count // grain))

    def accesses(random: np.random.Generator) -> Iterator[Access]:
        drawn = distinct(options.count, source.rows, random)
        yield _access(0, options.count, even(0, blocks - 1, grain), gather=drawn)

    return Call((source,), blocks, accesses)


def _scattered_transfers(options: Options, source: Memory) -> Call:
    """A copy engine fetches rows, a transfer each."""
    count, shared = options.count, even(0, options.count - 1, 1)
    target = Memory("target", "activation", count, options.row_bytes, far=False)

    def accesses(random: np.random.Generator) -> Iterator[Access]:
        yield _access(0, count, shared, gather=distinct(count, source.rows, random))
        yield _access(1, count, shared, write=True)

    return Call((source, target), count, accesses, _engine(options.row_bytes))


def _chase(options: Options) -> Call:
    """One block follows pointers: each load waits for the one before it."""
    memory = Memory("nodes", "activation", options.span // options.row_bytes, options.row_bytes)

    def accesses(random: np.random.Generator) -> Iterator[Access]:
        yield _access(0, options.count, one(0), gather=distinct(options.count, memory.rows, random))

    return Call((memory,), 1, accesses, {"tile_bytes": options.row_bytes, "tiles_in_flight": 1})


def _gemv(options: Options) -> Call:
    """A matrix of bf16 weights times a vector: `--row-bytes` of weights give one value."""
    rows, grain = options.bytes // options.row_bytes, max(1, options.block_bytes // options.row_bytes)
    blocks = options.blocks(-(-rows // grain))
    shared = even(0, blocks - 1, grain)
    memories = (
        Memory("vector", "activation", 1, options.row_bytes, far=False),
        Memory("weights", "weights", rows, options.row_bytes),
        Memory("out", "output", rows, WEIGHT_BYTES, far=False),
    )
    launch = {
        "tile_rows": grain,
        "flops_per_tile": 2 * grain * (options.row_bytes // WEIGHT_BYTES),
        "flops_unit": "fp32",
    }

    def accesses(_: np.random.Generator) -> Iterator[Access]:
        yield _access(0, 1, each(0, blocks - 1))
        yield _access(1, rows, shared, worked=True)
        yield _access(2, rows, shared, write=True, dependent=True)

    return Call(memories, blocks, accesses, launch)


def distinct(count: int, rows: int, random: np.random.Generator) -> Int64s:
    """`count` different rows of 0..rows-1 in random order, int64[count]."""
    if count * 2 >= rows:
        return random.permutation(rows)[:count].astype(np.int64)
    drawn = np.zeros(0, np.int64)
    while len(drawn) < count:
        drawn = np.concatenate([drawn, random.integers(rows, size=count + 16)])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]  # in the order of the draw
    return drawn[:count]


def _check_tiles(tiles: int, options: Options) -> None:
    if tiles > MOST_TILES:
        raise UsageError(
            f"--bytes '{options.bytes} B': the kernel has {tiles:,} tiles; expected at most {MOST_TILES:,}; "
            "raise --block-bytes or lower --bytes"
        )


PATTERNS: dict[str, Callable[[Options], Call]] = {
    "stream": _stream,
    "copy": _copy,
    "update": _update,
    "gather": _gather,
    "chase": _chase,
    "gemv": _gemv,
}
