"""`loaded.latency`: a chase on one multiprocessor beside others that stream (`measure/cuda/loaded.cu`).

One launch, one block a multiprocessor. Each warp of a streaming block takes tiles of 512 bytes x its words,
one under way at a time (stores are not waited for), works on what it has read, and may pause after each. The
chase begins when the streams have found their pace. Here they are kernels side by side, and the streams take
as many tiles as outlast the chase.

Left out: the flag that streams look at after every eighth tile, and that a pause begins before a store ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memsim.system import System
from validation.figures_rows import Row
from validation.predict_script import MANY, PS, Bench, Grid, Job, Move, Script, count, keep_busy
from workloads.grid import Blocks, even, one
from workloads.patterns import distinct

STEPS = 256
PACE_PS = 20_000_000
CHASE_BYTES, LINE_BYTES, ROW_BYTES = 2 << 30, 128, 512
STORED_BYTES = 4096  # of a tile of stores, where they follow one another: nobody waits for one


@dataclass(frozen=True)
class Streams:
    """What runs beside the chase: `kind` read, update or write, on `units` multiprocessors."""

    kind: str
    units: int
    warps: int
    warp_bytes: int
    pause_ps: int

    @property
    def turn_bytes(self) -> int:
        """What all the warps take in one turn of their loop."""
        return self.units * self.warps * self.warp_bytes

    @property
    def by_warp(self) -> bool:
        """Whether a block of the trace stands for a warp, or a turn of one."""
        return bool(self.pause_ps) or self.kind == "update"

    def turns(self, span_ps: int, system: System) -> int:
        """Turns that last so long at least: at the memory's rate, or a load and a pause each."""
        tier = system.tiers[0]
        at_rate_ps = self.turn_bytes * 1_000_000 // (tier.channels * max(tier.channel_mbps))
        alone_ps = self.pause_ps + (0 if self.kind == "write" else min(tier.latency_ps))
        return span_ps // max(1, at_rate_ps, alone_ps) + 1

    def load_ps(self, system: System) -> int:
        """A guess of what a load takes: at the memory's rate, with all under way that can be, or idle."""
        runner, tier = system.initiators[0], system.tiers[0]
        outstanding = runner.unit_outstanding_bytes
        each = outstanding if self.kind == "write" else min(outstanding, self.warps * self.warp_bytes)
        at_rate_ps = self.units * each * 1_000_000 // (tier.channels * min(tier.channel_mbps))
        return (at_rate_ps + min(tier.latency_ps)) * 9 // 8

    def launch(self, script: Script, turns: int) -> int:
        """The kernel. Its blocks in the trace: a tile each where warps pause, a warp each where they wait for
        their loads before they store, else a block each.
        """
        workers = self.units * (self.warps if self.by_warp else 1)
        tiles = 2 if self.by_warp else MANY if self.kind == "write" else self.warps
        rows, share = self.turn_bytes // ROW_BYTES, self.turn_bytes // ROW_BYTES // workers
        region = script.region(turns * rows, ROW_BYTES)
        if self.pause_ps:
            blocks, pieces = workers * turns, [(0, rows * turns)]
        else:
            blocks, pieces = workers, [(turn * rows, rows) for turn in range(turns)]
        worked = 0 if self.kind == "write" else self.warp_bytes // ROW_BYTES
        grid = Grid(blocks, workers // self.units, self.warp_bytes, tiles, 0, self.pause_ps, worked)
        dealt, stream = even(0, blocks - 1, share), len(script.kernels) + 1
        return script.kernel(grid, list(self._moves(region, dealt, pieces)), stream=stream)

    def _moves(self, region: int, blocks: Blocks, pieces: list[tuple[int, int]]) -> Iterator[Move]:
        for first, rows in pieces:
            if self.kind != "write":
                yield Move(region, blocks, rows, first, worked=True)
            if self.kind != "read":
                yield Move(region, blocks, rows, first, write=True, after=self.kind == "update")


def streams(row: Row) -> Streams:
    """Of a point: first 8 warps a block, then 4 words a thread, then more warps."""
    tiles = count(row, "flight") // ROW_BYTES
    words = min(4, tiles // min(8, tiles))
    kind, pause_ps = str(row["kind"]), round(count(row, "pause") * 1_000_000 / count(row, "sm_mhz"))
    tile_bytes = STORED_BYTES if kind == "write" and not pause_ps else words * ROW_BYTES
    return Streams(kind, count(row, "blocks"), tiles // words, tile_bytes, pause_ps)


def loaded(row: Row, system: System) -> Job:
    """Nanoseconds of one dependent load. A row's bytes are what the streams moved meanwhile, a result too."""
    beside = streams(row)

    def time_ns(bench: Bench) -> float:
        load_ps = beside.load_ps(system)
        while True:  # until the streams outlast the chase
            script, chase, other = _script(beside, load_ps, system)
            times = bench.run(script)
            if times.end_ps[other] >= times.end_ps[chase]:
                return (times.inside_ns(chase) - PACE_PS / PS) / STEPS
            load_ps *= 2

    return Job(0, 0, time_ns)


def _script(beside: Streams, load_ps: int, system: System) -> tuple[Script, int, int]:
    """The script, its chase, and what must not end before it."""
    script = Script(beside.warps if beside.by_warp else 1)
    places = CHASE_BYTES // LINE_BYTES
    data = script.region(places, LINE_BYTES)
    order = distinct(STEPS, places, np.random.default_rng(1))
    grid = Grid(1, tile_bytes=LINE_BYTES, startup_ps=PACE_PS)
    chase = script.kernel(grid, [Move(data, one(0), STEPS, gather=order)])
    if not beside.units:
        return script, chase, chase
    keep_busy(script, system.initiators[0].units - 1 - beside.units)
    return script, chase, beside.launch(script, beside.turns(PACE_PS + STEPS * load_ps, system))


RECIPES = {"loaded.latency": loaded}
