"""What a measured kernel did, as a trace: regions, kernels, what each block moves; and its replay.

Recipes (`predict_stream` and its like) fill a `Script`; a `Bench` replays it on one machine and tells when
each kernel started and ended. Nothing is fitted here: every number of time comes from the machine file, and
from `workloads/costs.toml` what the prologue of a loop takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memsim import simulate
from memsim.result import Outcome
from memsim.rules import bucket_floor_ps
from memsim.system import System
from memsim.trace import Access, Kernel, Region
from memsim.trace_write import TraceWriter
from validation.figures_rows import Row, number
from workloads import costs
from workloads.grid import Blocks

Int64s = npt.NDArray[np.int64]

PS = 1000  # picoseconds of a nanosecond
MANY = 65_536  # tiles in flight: as many as the unit and its memories let
WORD_BYTES = 4  # a thread's unit of arithmetic
FAMILY = "measured"  # of kernels that measure


class Grid(NamedTuple):
    """Blocks of a kernel and how they work; the fields are those of `memsim.trace.Kernel`.

    startup_ps   None: of kernels that measure (`kernel.measured`), where it moves anything and a GPU runs it
    worked_rows  rows of a tile of a worked access; each takes an operation of the fp32 unit a word of it
    """

    blocks: int
    per_unit: int = 1
    tile_bytes: int = 1 << 20
    tiles: int = 1
    startup_ps: int | None = None
    drain_ps: int = 0
    worked_rows: int = 0


@dataclass(frozen=True)
class Move:
    """Rows of a region that blocks read or write; `gather` lists them, else they are a run (or a stride)."""

    region: int
    blocks: Blocks
    rows: int
    first: int = 0
    stride: int = 1
    write: bool = False
    after: bool = False  # waits until all that its block asked for before has arrived
    worked: bool = False  # its tiles are worked on when they have arrived: added up, changed, or passed on
    gather: Int64s | None = None


@dataclass
class Script:
    """A trace in the making.

    warps    of a block of the GPU, where a block of the trace stands for one of them: they begin together
    units    of the GPU that blocks may be on, as those of a small grid are; 0: all
    place    region names -> tier;  runs  kernel names -> initiator; what is not there lies, or runs, first
    """

    warps: int = 1

    regions: list[Region] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    accesses: list[list[Access]] = field(default_factory=list)
    place: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    units: int = 0

    def region(self, rows: int, row_bytes: int, tier: str = "", kind: str = "activation") -> int:
        """Add a region of whole rows; its number."""
        return self.add(Region(-1, "", kind, -1, "bytes", rows * row_bytes, row_bytes), tier)

    def add(self, region: Region, tier: str = "") -> int:
        """Add a region under a new name; its number."""
        number = len(self.regions)
        self.regions.append(replace(region, id=number, name=f"r{number}", layer=-1))
        if tier:
            self.place[self.regions[-1].name] = tier
        return number

    def kernel(self, grid: Grid, moves: Sequence[Move] = (), *, stream: int = 0, initiator: str = "") -> int:
        """Add a launch after the one before it in the same stream; its number."""
        startup_ps = grid.startup_ps
        if startup_ps is None:
            startup_ps = costs.of(FAMILY)["startup_ps"] if moves and not initiator else 0
        row = Kernel(
            id=-1,
            name="",
            family=FAMILY,
            layer=-1,
            step=0,
            stream=stream,
            waits_for=(),
            blocks=grid.blocks,
            blocks_per_unit=grid.per_unit,
            tile_rows=max(1, grid.worked_rows),
            tile_bytes=grid.tile_bytes,
            tiles_in_flight=grid.tiles,
            retire="any",
            flops_per_tile=grid.tile_bytes // WORD_BYTES if grid.worked_rows else 0,
            flops_unit="fp32" if grid.worked_rows else "none",
            startup_ps=startup_ps,
            drain_ps=grid.drain_ps,
        )
        number = self.launch(row, [_access(move) for move in moves])
        if initiator:
            self.runs[self.kernels[number].name] = initiator
        return number

    def launch(
        self, kernel: Kernel, accesses: Sequence[Access], regions: Mapping[int, int] | None = None
    ) -> int:
        """Add a kernel after the one before it in its stream; its number. regions: their numbers here."""
        number, known = len(self.kernels), regions or {}
        partial = known.get(kernel.partial_region, kernel.partial_region)
        row = replace(kernel, id=number, name=f"k{number}", step=0, waits_for=(), partial_region=partial)
        self.kernels.append(row)
        self.accesses.append(
            [replace(a, kernel=number, region=known.get(a.region, a.region)) for a in accesses]
        )
        return number

    def moved(self, kernel: int, among: Collection[int] = ()) -> tuple[int, int]:
        """Bytes that the blocks of a kernel read and write, each access once; `among` some regions only.

        What every block reads is counted once.
        """
        ways = [0, 0]
        for access in self.accesses[kernel]:
            if not among or access.region in among:
                ways[access.write] += access.rows * self.regions[access.region].row_bytes
        return ways[0], ways[1]

    def write(self, path: Path) -> None:
        with TraceWriter(path, {"model": "measured", "steps": 1}) as trace:
            for region in self.regions:
                trace.region(region)
            for kernel, accesses in zip(self.kernels, self.accesses, strict=True):
                trace.kernel(kernel)
                for access in accesses:
                    trace.access(access)

    def key(self) -> bytes:
        """Equal for scripts that are."""
        plain = (self.warps, self.units, self.regions, self.kernels, self.place, self.runs)
        digest = hashlib.blake2b(repr(plain).encode())
        for access in (access for accesses in self.accesses for access in accesses):
            digest.update(repr(replace(access, gather=None)).encode())
            if access.gather is not None:
                digest.update(access.gather.tobytes())
        return digest.digest()


def _access(move: Move) -> Access:
    return Access(
        kernel=-1,
        block=move.blocks.first,
        block_last=move.blocks.last,
        region=move.region,
        write=move.write,
        first_row=move.first,
        rows=move.rows,
        stride=move.stride,
        spread=move.blocks.spread,
        grain=move.blocks.grain,
        gather=move.gather,
        dependent=move.after,
        worked=move.worked,
    )


@dataclass(frozen=True)
class Times:
    """When the kernels of a script started and ended [ps], and all that the engine counted."""

    start_ps: Sequence[int]
    end_ps: Sequence[int]
    outcome: Outcome

    def between_ns(self, before: int, last: int) -> float:
        """From the end of one kernel to the end of another."""
        return (self.end_ps[last] - self.end_ps[before]) / PS

    def inside_ns(self, kernel: int) -> float:
        """From a kernel's start to its end."""
        return (self.end_ps[kernel] - self.start_ps[kernel]) / PS


class Bench:
    """Replays scripts on one machine: `with Bench(system) as bench: bench.run(script)`.

    Equal scripts are replayed once.
    """

    def __init__(self, system: System) -> None:
        self.system = simulate.without_tails(system)
        self._known: dict[bytes, Times] = {}

    def __enter__(self) -> Bench:
        self._folder = TemporaryDirectory(prefix="memsim-predict-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def run(self, script: Script) -> Times:
        key = script.key()
        if key not in self._known:
            self._known[key] = self._replayed(script)
        return self._known[key]

    def _replayed(self, script: Script) -> Times:
        path = Path(self._folder.name) / "script.parquet"
        script.write(path)
        result = simulate.replay(
            path,
            begun_together(self.system, script.warps, script.units),
            place=[f"{region}={tier}" for region, tier in script.place.items()],
            run_on=[f"{kernel}={runner}" for kernel, runner in script.runs.items()],
            bound=False,
        )
        assert result.outcome is not None
        return Times(result.outcome.start_ps.tolist(), result.outcome.end_ps.tolist(), result.outcome)


def begun_together(system: System, blocks: int, units: int = 0) -> System:
    """The machine, so many blocks of whose first initiator begin in the time of one, on so many units."""
    first, *others = system.initiators
    first = replace(first, dispatch_ps=first.dispatch_ps // blocks, units=units or first.units)
    return replace(system, initiators=(first, *others))


@dataclass(frozen=True)
class Job:
    """The prediction of one measured point: bytes of a call, and how its time is found."""

    bytes_read: int
    bytes_written: int
    time_ns: Callable[[Bench], float]


Recipe = Callable[[Row, System], Job]


def count(row: Row, name: str) -> int:
    """A column that holds a whole number."""
    return int(number(row, name))


@dataclass(frozen=True)
class Lengths:
    """Calls that stand for one of `whole` (bytes or rows): itself, or two shorter ones.

    A long call is replayed in two shorter lengths that end in the same part of a turn of the kernel's loop as
    it does: what it has more, it has at a steady pace.
    """

    whole: int
    calls: tuple[int, ...]

    @classmethod
    def of(cls, whole: int, turn: int, most: int) -> Lengths:
        """One call of `whole` if that is at most `most`, else two, of about half of `most` and all of it."""
        if whole <= max(most, 2 * turn):
            return cls(whole, (whole,))
        longer = whole - -(-(whole - max(most, 2 * turn)) // turn) * turn
        short = longer - max(1, longer // 2 // turn) * turn
        return cls(whole, (short, longer))

    def value(self, values: Sequence[float]) -> float:
        """Of the whole call, from those of the calls: on the straight line through them."""
        if len(values) == 1:
            return values[0]
        (short, longer), (least, most) = self.calls, values
        return most + (self.whole - longer) / (longer - short) * (most - least)

    def job(self, script: Script, kernels: Sequence[int], among: Collection[int] = ()) -> Job:
        """The prediction from `kernels`: one before the calls, then theirs; bytes `among` regions count."""

        def time_ns(bench: Bench) -> float:
            times, pairs = bench.run(script), zip(kernels, kernels[1:], strict=False)
            return self.value([times.between_ns(before, last) for before, last in pairs])

        ways = zip(*(script.moved(kernel, among) for kernel in kernels[1:]), strict=True)
        read, written = (round(self.value(way)) for way in ways)
        return Job(read, written, time_ns)


def percentile_ps(loads: Int64s, percent: float) -> float:
    """A percentile of a latency histogram, whose loads lie evenly in each bucket [ps]."""
    before = np.concatenate(([0], np.cumsum(loads)))
    return float(np.interp(percent / 100 * before[-1], before, _bucket_ends_ps(len(loads))))


def bucket_middles_ps(buckets: int) -> npt.NDArray[np.float64]:
    """Middle of each bucket of a latency histogram [ps]."""
    ends = _bucket_ends_ps(buckets)
    return (ends[1:] + ends[:-1]) / 2


def _bucket_ends_ps(buckets: int) -> npt.NDArray[np.float64]:
    """Where buckets of a latency histogram begin, and where the last one ends [ps]."""
    return np.array([bucket_floor_ps(bucket) for bucket in range(buckets + 1)], np.float64)
