"""A pointer chase on one unit beside streams on others, as a trace: latency under load.

A `Load` enters, a trace file with two kernels on two streams leaves: the chase, whose block takes the first
unit alone, and the streams, whose blocks fill the units beside it. A streaming block is one warp: it has one
tile in flight, waits where it must, and goes on. What is modelled is the loop of
`validation/measure/cuda/loaded.cu`: stores are not waited for, but between two looks at its flag a warp
stores no more than TILES_A_LOOK tiles, and a look is a load that hits the cache. It needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memsim.errors import UsageError
from memsim.trace import Access, Kernel, Region
from memsim.trace_write import TraceWriter
from workloads.grid import Blocks, each, even
from workloads.patterns import MOST_TILES, distinct

KINDS = ("read", "update", "write")
CHASE, STREAM = "chase", "stream"  # names of the kernels, and of their regions
WARP_BYTES = 512  # that a warp moves with one instruction, 16 bytes a thread
MOST_WARPS = 32  # of a streaming block
TILES_A_LOOK = 8  # tiles that a warp stores between two looks at the flag
NODE_BYTES, STRIDE_NODES = 32, 4  # a sector is loaded; nodes are 128 bytes apart
NODES = (2 << 30) // (NODE_BYTES * STRIDE_NODES)  # of a chase over 2 GiB


@dataclass(frozen=True)
class Load:
    """What streams beside a chase.

    kind      read, update (in place) or write
    units     that stream; 0: the chase is alone
    flight    bytes that each of them asks for at once: 512, 1024, ... 65536
    pause_ps  that a warp waits before each tile
    """

    kind: str
    units: int
    flight: int
    pause_ps: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Warps of a streaming unit, bytes of a warp's tile: first 8 warps, then 4 words, then more warps."""
        tiles = self.flight // WARP_BYTES
        warps = min(8, tiles)
        words = min(4, tiles // max(1, warps))
        warps = tiles // max(1, words)
        if not 1 <= warps <= MOST_WARPS or warps * words * WARP_BYTES != self.flight:
            raise UsageError(
                f"{self.flight} bytes in flight: expected a power of 2 from {WARP_BYTES} to "
                f"{MOST_WARPS * 4 * WARP_BYTES}"
            )
        return warps, words * WARP_BYTES

    @property
    def tile_bytes(self) -> int:
        """Bytes of a warp's tile."""
        return self.shape[1]

    @property
    def streams(self) -> int:
        """Warps that stream, on all units."""
        return self.units * self.shape[0]


def write(load: Load, loads: int, tiles: int, warm_ps: int, seed: int, out: str | Path) -> None:
    """Write the trace of a chase of `loads` beside streams of `tiles` tiles in all.

    warm_ps  from the chase's start to its first load: the streams find their pace

    UsageError for a load that is none or too many tiles, OutputError where `out` cannot be written.
    """
    if load.kind not in KINDS:
        raise UsageError(f"kind '{load.kind}': expected one of {', '.join(KINDS)}")
    if not 1 <= loads <= NODES or tiles > MOST_TILES:
        raise UsageError(
            f"a chase of {loads} loads beside {tiles} tiles: expected 1 to {NODES} and {MOST_TILES}"
        )
    meta = {"model": "chase beside streams", "part": "kernel", "batch": 1, "steps": 1, "tokens_per_step": 1}
    with TraceWriter(out, meta | {"seed": seed}) as trace:
        trace.region(_region(0, CHASE, NODES * STRIDE_NODES, NODE_BYTES))
        if load.units:
            trace.region(_region(1, STREAM, tiles, load.tile_bytes))
            trace.region(_region(2, "flag", 1, NODE_BYTES))
        nodes = distinct(loads, NODES, np.random.default_rng(seed)) * STRIDE_NODES
        trace.kernel(_kernel(0, CHASE, 1, 1, 1, startup_ps=warm_ps))
        trace.access(_access(0, 0, Blocks(0, 0), loads, gather=nodes))
        if load.units:
            _write_streams(load, tiles, trace)


def _write_streams(load: Load, tiles: int, trace: TraceWriter) -> None:
    if load.pause_ps:
        trace.kernel(_kernel(1, STREAM, tiles, load.shape[0], 1, startup_ps=load.pause_ps))
        accesses = _paused(load.kind, tiles)
    else:
        in_flight = {"read": 1, "update": 2, "write": TILES_A_LOOK + 1}[load.kind]
        trace.kernel(_kernel(1, STREAM, load.streams, load.shape[0], in_flight))
        accesses = _unpaused(load, tiles)
    for access in accesses:
        trace.access(access)


def _paused(kind: str, tiles: int) -> Iterator[Access]:
    """A block for each tile, which begins with its pause: a warp's next tile is the next one that is left."""
    everyone = even(0, tiles - 1, 1)
    if kind != "write":
        yield _access(1, 1, everyone, tiles)
    if kind != "read":
        yield _access(1, 1, everyone, tiles, write=True, dependent=kind == "update")


def _unpaused(load: Load, tiles: int) -> Iterator[Access]:
    """A block for each warp; the warps stride over the tiles together, a tile each in a round."""
    everyone = even(0, load.streams - 1, 1)
    for round_, first in enumerate(range(0, tiles, load.streams)):
        here = {"first_row": first, "rows": min(load.streams, tiles - first)}
        if load.kind == "write" and round_ % TILES_A_LOOK == 0:
            yield _access(1, 2, each(0, load.streams - 1), 1, dependent=round_ > 0)
        if load.kind != "write":
            yield _access(1, 1, everyone, **here)
        if load.kind != "read":
            yield _access(1, 1, everyone, **here, write=True, dependent=load.kind == "update")


def _region(number: int, name: str, rows: int, row_bytes: int) -> Region:
    return Region(number, name, "activation", number, "bytes", rows * row_bytes, row_bytes)


def _kernel(
    number: int, name: str, blocks: int, blocks_per_unit: int, tiles_in_flight: int, startup_ps: int = 0
) -> Kernel:
    return Kernel(
        id=number,
        name=name,
        family=name,
        layer=-1,
        step=0,
        stream=number,
        waits_for=(),
        blocks=blocks,
        blocks_per_unit=blocks_per_unit,
        tile_rows=1,
        tile_bytes=1,  # a row is a tile
        tiles_in_flight=tiles_in_flight,
        retire="any",
        startup_ps=startup_ps,
        tile_rule="chase beside streams",
    )


def _access(kernel: int, region: int, blocks: Blocks, rows: int, **more: Any) -> Access:
    fields: dict[str, Any] = {"write": False, "first_row": 0} | more
    return Access(
        kernel=kernel,
        block=blocks.first,
        block_last=blocks.last,
        region=region,
        rows=rows,
        spread=blocks.spread,
        grain=blocks.grain,
        **fields,
    )
