"""`host.*` and `peer.*`: memory behind a link, by copies of the engine and by kernels (`measure/remote.py`).

Streams are those of `predict_stream`, with one block a multiprocessor, each call going on where the one
before ended. A gather's rows of up to 512 bytes are read by as many neighbouring threads as they have words
of 16 bytes, four rows at once; of longer ones each warp takes one, 2 KiB of it at once. A chase's loads are
sectors of 32 bytes, 1024 of them a launch. Copies are nodes of a graph, or queued behind a waiting kernel,
each by itself or all in one call.

Left out: what the host does to submit, that each copy of a batch takes 0.1 us at least, and (of `load` fresh
or plain) whether lines of a far memory may be found in the GPU's L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from memsim.kernel import copy_engines
from memsim.system import System
from validation.figures_rows import Row
from validation.predict_script import Bench, Grid, Int64s, Job, Lengths, Move, Recipe, Script, count
from validation.predict_stream import ROW_BYTES, Stream
from workloads import patterns
from workloads.grid import Blocks, each, even, one

FLIGHT = {2048: 4, 4096: 8, 8192: 8, 16384: 8, 32768: 16, 65536: 16}  # bytes in flight -> warps of a block
WORD_BYTES, WARP_BYTES, LANES, WARPS = 16, 2048, 32, 8  # of a gather: at once by a warp; warps of a block
ROWS_AT_ONCE, RESIDENT, CALLS = 4, 8, 16
START_BYTES, CELL_BYTES, COLD_BYTES = 8, 8, 256 << 20
LOAD_BYTES, SECTOR_BYTES, LINE_BYTES, HOPS = 8, 32, 128, 1024
COPIES = 3  # nodes, of which the first does not count
LONG_BYTES, MOST_ROWS = 64 << 20, 1 << 17  # longer calls are replayed in shorter lengths


def transfer(script: Script, nbytes: int, inward: bool, tier: str, system: System, stream: int = 0) -> int:
    """A command of the copy engine, which moves `nbytes` between the first tier and a far one."""
    options = patterns.Options(
        units=1,
        seed=0,
        piece_bytes=patterns.PIECE_BYTES,
        bytes=nbytes,
        block_bytes=nbytes,
        dma=True,
        write=not inward,
    )
    call = patterns.PATTERNS["stream"](options)
    regions = [script.region(m.rows, m.row_bytes, tier if m.far else "") for m in call.memories]
    moves = [
        Move(
            regions[access.region],
            Blocks(access.block, access.block_last, access.spread, access.grain),
            access.rows,
            access.first_row,
            write=access.write,
        )
        for access in call.accesses(np.random.default_rng(0))
    ]
    grid = Grid(call.blocks, 1, call.launch["tile_bytes"], call.launch["tiles_in_flight"])
    engine = system.initiators[copy_engines(system)[0]].name
    return script.kernel(grid, moves, stream=stream, initiator=engine)


def far_regions(script: Script) -> list[int]:
    """Regions that lie behind the link: what crosses it is counted there."""
    return [region.id for region in script.regions if region.name in script.place]


def copies(row: Row, system: System, tier: str) -> Job:
    """Copies of `bytes`, nodes of a graph, each between places of its own."""
    script, nbytes, inward = Script(), count(row, "bytes"), row["direction"] == "in"
    kernels = [transfer(script, nbytes, inward, tier, system) for _ in range(COPIES)]
    return Job(
        *script.moved(kernels[-1], far_regions(script)),
        lambda bench: bench.run(script).between_ns(kernels[0], kernels[-1]) / (COPIES - 1),
    )


def queued(row: Row, system: System, tier: str) -> Job:
    """Copies behind a kernel that waits, time of each: a command for each (stream) or one for all (batch)."""
    script, nbytes, copies_queued = Script(), count(row, "bytes"), count(row, "queued")
    inward, together = row["direction"] == "in", copies_queued if row["mode"] == "batch" else 1
    spin = script.kernel(Grid(1))
    kernels = [
        transfer(script, nbytes * together, inward, tier, system) for _ in range(copies_queued // together)
    ]
    read, written = script.moved(kernels[-1], far_regions(script))

    def time_ns(bench: Bench) -> float:
        return bench.run(script).between_ns(spin, kernels[-1]) / copies_queued

    return Job(read // together, written // together, time_ns)


def streams(row: Row, system: System, tier: str) -> Job:
    """Blocks that read or write; a row's bytes say how long they went on."""
    warps, blocks = FLIGHT[count(row, "flight")], count(row, "blocks")
    what = Stream(str(row["op"]), blocks, warps, count(row, "flight") // warps, 1)
    nbytes = count(row, "bytes_read") + count(row, "bytes_written")
    lengths = Lengths.of(nbytes, what.turn_bytes, LONG_BYTES)
    script, begin = Script(), 0
    kernels = [script.kernel(Grid(1))]
    cells = script.region(1, CELL_BYTES)
    data = script.region(count(row, "region_bytes") // ROW_BYTES, ROW_BYTES, tier)
    start = Move(cells, each(0, blocks - 1), 1)
    for size in lengths.calls:
        moves = [replace(move, after=not at) for at, move in enumerate(what.moves([data], size, begin))]
        kernels.append(script.kernel(what.grid(), [start, *moves]))
        begin += size
    return lengths.job(script, kernels, [data])


@dataclass(frozen=True)
class Gather:
    """Rows that `warps` read in turn: `together` at a time each, in `loads` loads of equally many.

    pieces   of a longer row, which a warp reads one after another
    """

    piece_bytes: int
    pieces: int
    warps: int
    together: int
    loads: int

    @classmethod
    def of(cls, row_bytes: int, rows: int, units: int) -> Gather:
        lanes = min(LANES, 1 << (row_bytes // WORD_BYTES - 1).bit_length())
        warps = WARPS * min(units * 8, -(-rows * lanes // (LANES * WARPS)))
        loads = ROWS_AT_ONCE if row_bytes <= LANES * WORD_BYTES else 1
        piece = min(row_bytes, WARP_BYTES)
        return cls(piece, row_bytes // piece, warps, LANES // lanes * loads, loads)

    def moves(self, data: int, lists: int, cells: int, first_entry: int, rows: Int64s) -> Iterator[Move]:
        """Accesses of a call: where it starts, then entries of the list and the rows that they name."""
        blocks = even(0, self.warps - 1, self.together // self.loads)
        yield Move(cells, each(0, self.warps - 1), 1)
        for first in range(0, len(rows), self.warps * self.together):
            mine = rows[first : first + self.warps * self.together]
            yield Move(lists, blocks, len(mine), first_entry + first, after=True)
            for piece in range(self.pieces):
                rows_here = mine * self.pieces + piece
                yield Move(data, blocks, len(mine), after=True, worked=True, gather=rows_here)


def gathers(row: Row, system: System, tier: str) -> Job:
    """`count` rows of `row` bytes at places in `span` bytes; none comes back soon if there are enough."""
    row_bytes, rows, span = count(row, "row"), count(row, "count"), count(row, "span")
    what, script = Gather.of(row_bytes, rows, system.initiators[0].units), Script(WARPS)
    cells = script.region(1, CELL_BYTES)
    listed = max(COLD_BYTES // row_bytes, rows * CALLS) // rows * rows
    lists = script.region(listed, START_BYTES, kind="index")
    data = script.region(span // row_bytes * what.pieces, what.piece_bytes, tier)
    whole = Grid(system.initiators[0].units, 1, 8192, 8)
    kernels = [script.kernel(whole, [Move(lists, even(0, whole.blocks - 1, 1024), listed)])]
    grid = Grid(what.warps, RESIDENT * WARPS, what.together * what.piece_bytes, 2, worked_rows=what.together)
    lengths = Lengths.of(rows, what.warps * what.together, MOST_ROWS)
    random = np.random.default_rng(1)
    for call, size in enumerate(lengths.calls):
        moves = what.moves(data, lists, cells, call * rows, _drawn(size, span // row_bytes, listed, random))
        kernels.append(script.kernel(grid, list(moves)))
    return lengths.job(script, kernels, [data])


def _drawn(size: int, rows: int, listed: int, random: np.random.Generator) -> Int64s:
    """Rows of a call: drawn freely from many, else each once and then again."""
    if rows >= 4 * listed:
        return random.integers(rows, size=size)
    return np.concatenate([random.permutation(rows) for _ in range(-(-size // rows))])[:size]


def chases(row: Row, system: System, tier: str) -> Job:
    """A load of 8 bytes that waits for the one before: a share of a launch, in which the cursor is moved."""
    script = Script()
    rows, cells = count(row, "span") // SECTOR_BYTES, script.region(1, CELL_BYTES)
    data = script.region(rows, SECTOR_BYTES, tier)
    kernels, random = [], np.random.default_rng(1)
    for _ in range(2):
        lines = random.integers(rows * SECTOR_BYTES // LINE_BYTES, size=HOPS) * (LINE_BYTES // SECTOR_BYTES)
        moves = [Move(cells, one(0), 1), Move(data, one(0), HOPS, after=True, gather=lines)]
        moves.append(Move(cells, one(0), 1, write=True, after=True))
        kernels.append(script.kernel(Grid(1, tile_bytes=SECTOR_BYTES), moves))
    return Job(LOAD_BYTES, 0, lambda bench: bench.run(script).between_ns(*kernels) / HOPS)


def _in(tier: str, recipe: Callable[[Row, System, str], Job]) -> Recipe:
    return lambda row, system: recipe(row, system, tier)


KINDS = {"copy": copies, "copy_queue": queued, "stream": streams, "gather": gathers, "chase": chases}
TIERS = {"host": "host", "peer": "peer"}
RECIPES = {f"{name}.{kind}": _in(tier, KINDS[kind]) for name, tier in TIERS.items() for kind in KINDS}
