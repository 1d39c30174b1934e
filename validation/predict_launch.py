"""`launch.*`: kernels in a row that do next to nothing. `gap`: a whole replay of a graph of them, nothing
subtracted; `dispatch`: one of many blocks; `cold`: some behind a pass over memory, which is subtracted.

`empty` is one warp, `wide` 1024 threads on every multiprocessor; `tiny` is as wide, and each thread changes a
word of 4 bytes. Left out: what the code of a kernel takes.
"""

from __future__ import annotations

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_script import PS, Bench, Grid, Job, Move, Script, count
from workloads.grid import even

BLOCK_BYTES, ROW_BYTES = 4096, 512  # words of 1024 threads; words of a warp, four times
MOST_NODES = 64  # further ones take as long as the last


def gap(row: Row, system: System) -> Job:
    """The graph's launch and all its nodes."""
    script, units, nodes = Script(), system.initiators[0].units, count(row, "nodes")
    blocks, moves = 1 if row["kernel"] == "empty" else units, []
    if row["kernel"] == "tiny":
        rows = units * BLOCK_BYTES // ROW_BYTES
        data, dealt = script.region(rows, ROW_BYTES), even(0, units - 1, BLOCK_BYTES // ROW_BYTES)
        moves = [Move(data, dealt, rows), Move(data, dealt, rows, write=True, after=True)]
    grid = Grid(blocks, tile_bytes=BLOCK_BYTES, tiles=2, startup_ps=0)
    last = [script.kernel(grid, moves) for _ in range(min(nodes, MOST_NODES))][-1]

    def time_ns(bench: Bench) -> float:
        times, more = bench.run(script), nodes - last - 1
        return times.end_ps[last] / PS + (more * times.between_ns(last - 1, last) if more else 0.0)

    return Job(0, 0, time_ns)


def dispatch(row: Row, system: System) -> Job:
    """A kernel of many blocks after another one."""
    script = Script()
    kernels = [script.kernel(Grid(count(row, "blocks"))) for _ in range(2)]
    return Job(0, 0, lambda bench: bench.run(script).between_ns(*kernels))


def cold(row: Row, system: System) -> Job:
    """Kernels in a row whose words are in no cache."""
    script, units, nodes = Script(), system.initiators[0].units, count(row, "nodes")
    blocks, moves = 1 if row["kernel"] in ("empty", "others") else units, []
    if row["kernel"] == "tiny":
        rows = units * BLOCK_BYTES // ROW_BYTES
        data, dealt = script.region(rows, ROW_BYTES), even(0, units - 1, BLOCK_BYTES // ROW_BYTES)
        moves = [Move(data, dealt, rows), Move(data, dealt, rows, write=True, after=True)]
    grid, first = Grid(blocks, tile_bytes=BLOCK_BYTES, tiles=2, startup_ps=0), script.kernel(Grid(1))
    last = [script.kernel(grid, moves) for _ in range(nodes)][-1]
    return Job(0, 0, lambda bench: bench.run(script).between_ns(first, last))


RECIPES = {"launch.gap": gap, "launch.dispatch": dispatch, "launch.cold": cold}
