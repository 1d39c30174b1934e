"""A pointer chase on one unit beside streams on others, as a trace: latency under load.

A `Load` enters, a trace file with two kernels on two streams leaves: the chase, whose block takes the first
unit alone, and the streams, whose blocks fill the units beside it. A streaming block is one warp: it has one
tile that it reads in flight, works on it, pauses, and goes on. What is modelled is the loop of
`validation/measure/cuda/loaded.cu` when it has run for long: stores are not waited for, but a warp has no
more than TILES_A_LOOK stored tiles on their way; units have run apart, so that each begins somewhere else
in the stream; and the cache is full of what was written before. It needs no torch.
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
CHASE, STREAM, FILL = "chase", "stream", "fill"  # names of the kernels, and of their regions
FILL_ROW_BYTES = 4096
WARP_BYTES = 512  # that a warp moves with one instruction, 16 bytes a thread
MOST_WARPS = 32  # of a streaming block
TILES_A_LOOK = 8  # tiles that a warp stores between two looks at the flag, and has on their way at most
STORES = 8  # tiles of a warp that are on their way while it goes on: more than there ever are
NODE_BYTES, STRIDE_NODES = 32, 4  # a sector is loaded; nodes are 128 bytes apart
NODES = (2 << 30) // (NODE_BYTES * STRIDE_NODES)  # of a chase over 2 GiB


@dataclass(frozen=True)
class Load:
    """What streams beside a chase.

    kind      read, update (in place) or write
    units     that stream; 0: the chase is alone
    flight    bytes that each of them asks for at once: 512, 1024, ... 65536
    pause_ps  that a warp waits after each tile
    fill_bytes  written before: what a cache holds that is written by the streams
    flops     operations that a warp makes of a tile that it has read; 0: where none are known
    """

    kind: str
    units: int
    flight: int
    pause_ps: int = 0
    flops: int = 0
    fill_bytes: int = 0

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


def write(load: Load, loads: int, tiles: int, warm_ps: int, seed: int, out: str | Path) -> int:
    """Write the trace of a chase of `loads` beside streams of `tiles` tiles in all; the number of the chase.

    The streams are the kernel after it.

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
        chase = _fill(load, trace) if load.fill_bytes else 0
        trace.kernel(_kernel(chase, CHASE, 1, 1, 1, startup_ps=warm_ps))
        trace.access(_access(chase, 0, Blocks(0, 0), loads, gather=nodes))
        if load.units:
            _write_streams(load, chase + 1, tiles, seed, trace)
    return chase


def _fill(load: Load, trace: TraceWriter) -> int:
    """Fill the cache; the number of the next kernel."""
    blocks, rows = load.units + 1, -(-load.fill_bytes // FILL_ROW_BYTES)
    trace.region(_region(3, FILL, rows, FILL_ROW_BYTES))
    trace.kernel(_kernel(0, FILL, blocks, 1, STORES))
    trace.access(_access(0, 3, even(0, blocks - 1, 1), rows, write=True))
    return 1


def _write_streams(load: Load, kernel: int, tiles: int, seed: int, trace: TraceWriter) -> None:
    in_flight = {"read": 1, "update": STORES, "write": TILES_A_LOOK}[load.kind]
    work = {"flops_per_tile": load.flops, "flops_unit": "fp32" if load.flops else "none"}
    fields = {"tile_ps": load.pause_ps, "waits_for": tuple(range(kernel - 1)), **work}
    trace.kernel(_kernel(kernel, STREAM, load.streams, load.shape[0], in_flight, **fields))
    rounds = tiles // load.streams
    begins = np.random.default_rng(seed).integers(rounds, size=load.units).tolist()
    for number in range(rounds):
        for unit, begin in enumerate(begins):
            for access in _round(load, kernel, unit, (begin + number) % rounds):
                trace.access(access)


def _round(load: Load, kernel: int, unit: int, place: int) -> Iterator[Access]:
    """A round of a unit: a tile for each warp, and its look at the flag if it waits for it or pauses then."""
    warps = load.shape[0]
    mine = unit * warps, (unit + 1) * warps - 1
    moved = {"rows": warps, "first_row": place * load.streams + unit * warps}
    if load.kind == "write":
        yield _access(kernel, 1, even(*mine, 1), **moved, write=True, dependent=True)
        if load.pause_ps:
            yield _access(kernel, 2, each(*mine), 1, worked=True)
        return
    yield _access(kernel, 1, even(*mine, 1), **moved, worked=bool(load.flops or load.pause_ps))
    if load.kind == "update":
        yield _access(kernel, 1, even(*mine, 1), **moved, write=True, dependent=True)


def _region(number: int, name: str, rows: int, row_bytes: int) -> Region:
    return Region(number, name, "activation", number, "bytes", rows * row_bytes, row_bytes)


def _kernel(
    number: int,
    name: str,
    blocks: int,
    blocks_per_unit: int,
    tiles_in_flight: int,
    startup_ps: int = 0,
    **more: Any,
) -> Kernel:
    return Kernel(
        id=number,
        name=name,
        family=name,
        layer=-1,
        step=0,
        stream=int(name == STREAM),
        blocks=blocks,
        blocks_per_unit=blocks_per_unit,
        tile_rows=1,
        tile_bytes=1,  # a row is a tile
        tiles_in_flight=tiles_in_flight,
        retire="any",
        startup_ps=startup_ps,
        tile_rule="chase beside streams",
        **{"waits_for": (), **more},
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
