"""`memsim machines curve`: latency under load, a pointer chase replayed beside streams.

A machine, a tier and the streams beside the chase enter, a point for each leaves: what the streams moved,
and what a load of the chase took meanwhile. `workloads.beside` writes the traces. Each is replayed twice,
with few and with many loads: the difference knows nothing of how the streams begin and end. With measured
points (`validation/measured`), each is replayed with the streams that were run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from memsim.closed_form import Way, path_of
from memsim.errors import UsageError
from memsim.placement import tier_number
from memsim.progress import Progress
from memsim.route import idle_latency_ps
from memsim.simulate import replay
from memsim.system import System

if TYPE_CHECKING:
    from workloads.beside import Load

FEW, MANY = 32, 192  # loads of the two chases: from seed to seed 0.3% apart, 10% beside updates
WARM_PS = 10_000_000  # at least, before the first load; and so many times what the streams have in flight:
WARM_ROUNDS = 4
LONGER = 1.06  # streams must outlast the chase: so much more than it is expected to take
TRIES = 12
FULL = 2  # times what the cache holds is written before
# The sweep, in what the path's bandwidth needs in flight by Little's law.
SHARES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.15, 1.4, 2.0, 3.0)
LEAST_UNITS = 4  # that stream, before each has less in flight
FLIGHTS = tuple(2**power for power in range(9, 17))  # bytes in flight of a unit
USUAL_FLIGHT = 32_768
FAMILY = "loaded.latency"  # of measurements
WORD_BYTES = 4  # a thread's unit of arithmetic


@dataclass(frozen=True)
class Found:
    """What a point's streams moved [10^6 bytes/s], reads and writes, and what a load took."""

    mbps: float
    latency_ps: float


@dataclass(frozen=True)
class Point:
    """A chase beside streams.

    pause_ps   that a warp waits before a tile
    replayed   what a replay found;  measured  what was measured of the same, None: nothing
    noisy      whether the measured samples lie far apart
    split      of the measured point: `calibrate` or `held_out`
    """

    kind: str
    units: int
    flight: int
    pause_ps: int
    replayed: Found
    measured: Found | None = None
    noisy: bool = False
    split: str = ""


@dataclass(frozen=True)
class Curve:
    """Points of one tier.

    peak_mbps  what the narrowest datasheet on the way to it promises;  each_way  in each direction
    """

    machine: str
    tier: str
    peak_mbps: int
    each_way: bool
    points: tuple[Point, ...]


def draw_curve(
    system: System, tier: str, measured: Path | None = None, progress: Progress | None = None
) -> Curve:
    """Replay the curve of a tier, as the machine's first initiator sees it.

    measured  folder of a machine's measurements, whose points are replayed; None: a sweep of our own

    UsageError for an unknown tier or a folder that has no such points of it.
    """
    from workloads.beside import KINDS, Load

    todo: list[tuple[Load, Any]]
    number = tier_number(tier, system, f"tier '{tier}'")
    if measured is None:
        todo = [(Load("read", 0, USUAL_FLIGHT), None)]
        todo += [(Load(kind, *each), None) for kind in KINDS for each in _sweep(system, number)]
    else:
        todo = list(_measured(measured, system, number))
    points = []
    for done, (load, row) in enumerate(todo):
        if progress is not None:
            progress(done, len(todo))
        points.append(_point(system, number, load, row))
    return Curve(system.name, tier, *_peak(system, number), tuple(points))


def _sweep(system: System, tier: int) -> list[tuple[int, int]]:
    """Units and bytes in flight of each: first more and more units, then all of them with more and more."""
    streaming = system.initiators[0].units - 1
    if not streaming:
        return []
    needed = path_of(Way(system, 0, tier))[0] * idle_latency_ps(system, 0, tier) // 1_000_000
    flight = max(
        [each for each in FLIGHTS if each <= USUAL_FLIGHT and each * LEAST_UNITS <= SHARES[1] * needed],
        default=FLIGHTS[0],
    )
    units = sorted({min(streaming, max(1, round(share * needed / flight))) for share in SHARES})
    most = 1.5 * SHARES[-1] * needed
    flights = [each for each in FLIGHTS if each != flight and SHARES[0] * needed <= streaming * each <= most]
    return [*((each, flight) for each in units), *((streaming, each) for each in flights)]


def _point(system: System, tier: int, load: Load, row: dict[str, Any] | None) -> Point:
    point = Point(load.kind, load.units, load.flight, load.pause_ps, replayed(system, tier, load))
    if row is None:
        return point
    measured = Found(row.get("stream_mbps", 0.0), row["median_ns"] * 1000)
    return replace(point, measured=measured, noisy=row["noisy"] > 0, split=row["split"])


def replayed(system: System, tier: int, load: Load, seed: int = 0) -> Found:
    """What a load beside these streams takes, and what they move; UsageError for too many units."""
    runner = system.initiators[0]
    if not 0 <= load.units < runner.units:
        raise UsageError(
            f"{load.units} streaming units: {runner.name} of {system.name} has {runner.units}, one of which "
            "chases; expected fewer"
        )
    # So that the streams fill the units that they have; a warp that goes on after its pause starts no block.
    alone = replace(runner, units=load.units + 1, setup_ps=0)
    experiment = _Experiment(
        replace(system, initiators=(alone, *system.initiators[1:])), tier, _worked(system, tier, load), seed
    )
    return experiment.found()


def _worked(system: System, tier: int, load: Load) -> Load:
    """An operation a word, where the machine has any; a look at the flag is not waited for before a pause."""
    runner, pause_ps = system.initiators[0], load.pause_ps
    if pause_ps and load.kind == "write":
        pause_ps = max(1, pause_ps - system.cache.latency_ps)
    fills = load.units and load.kind != "read" and system.cached(0, tier)
    return replace(
        load,
        pause_ps=pause_ps,
        fill_bytes=FULL * system.cache.capacity_bytes * fills,
        flops=load.tile_bytes // WORD_BYTES if runner.fp32_mflops else 0,
    )


@dataclass(frozen=True)
class _Run:
    """Loads of a chase and what they took, tiles of the streams and when their last one ended."""

    loads: int
    chase_ps: int
    tiles: int
    stream_ps: int


class _Experiment:
    """A chase beside streams, replayed with few and with many loads."""

    def __init__(self, system: System, tier: int, load: Load, seed: int):
        from workloads import beside

        self.system, self.tier, self.load, self.seed = system, tier, load, seed
        path_mbps = path_of(Way(system, 0, tier, load.kind == "write"))[0]
        tiles = beside.TILES_A_LOOK if load.kind == "write" else 1
        held = min(load.flight * tiles, system.initiators[0].unit_outstanding_bytes)
        self.in_flight = load.units * held
        self.warm_ps = max(WARM_PS, WARM_ROUNDS * self.in_flight * 1_000_000 // path_mbps)
        idle_ps = idle_latency_ps(system, 0, tier)
        self.latency_ps = float(max(idle_ps, self.in_flight * 1_000_000 // path_mbps))
        self.mbps = min(path_mbps, self.in_flight * 1_000_000 / (idle_ps + load.pause_ps))

    def found(self) -> Found:
        """The difference between a long chase and a short one."""
        few = self.beside_all(FEW, 0)
        self.latency_ps = few.chase_ps / few.loads
        if few.stream_ps:
            self.mbps = few.tiles * self.load.tile_bytes * 1_000_000 / few.stream_ps
        many = self.beside_all(MANY, 2 * few.tiles)
        latency_ps = (many.chase_ps - few.chase_ps) / (many.loads - few.loads)
        if not self.load.units:
            return Found(0.0, latency_ps)
        ways = 2 if self.load.kind == "update" else 1
        moved = (many.tiles - few.tiles) * self.load.tile_bytes * ways
        return Found(moved * 1_000_000 / (many.stream_ps - few.stream_ps), latency_ps)

    def beside_all(self, loads: int, least: int) -> _Run:
        """A chase whose loads all have the streams beside them, of `least` tiles at least."""
        for _ in range(TRIES):
            wanted = self.mbps * (self.warm_ps + loads * self.latency_ps) / 1_000_000 / self.load.tile_bytes
            rounds = -(-max(least, int(LONGER * wanted)) // max(1, self.load.streams))
            tiles = max(2, rounds) * self.load.streams
            run = self.run(loads, tiles)
            if not self.load.units or run.stream_ps >= self.warm_ps + run.chase_ps:
                return run
            self.latency_ps = max(self.latency_ps, run.chase_ps / loads)
            self.mbps *= max(1.2, min(4.0, (self.warm_ps + run.chase_ps) / run.stream_ps))
        raise UsageError(
            f"{self.load.units} units with {self.load.flight} bytes in flight: no streams outlast the chase; "
            "ask for fewer"
        )

    def run(self, loads: int, tiles: int) -> _Run:
        """Replay a chase of so many loads beside streams of so many tiles."""
        from workloads import beside

        tier = self.system.tiers[self.tier].name
        with TemporaryDirectory(prefix="memsim-curve-") as folder:
            trace = Path(folder) / "beside.parquet"
            chase = beside.write(self.load, loads, tiles, self.warm_ps, self.seed, trace)
            names = [beside.CHASE, beside.STREAM] if self.load.units else [beside.CHASE]
            names += [beside.FILL] if chase else []
            result = replay(trace, self.system, place=[f"{name}={tier}" for name in names], bound=False)
        outcome = result.outcome
        assert outcome is not None
        begin_ps, end_ps = int(outcome.start_ps[chase]), outcome.end_ps.tolist()
        stream_ps = end_ps[chase + 1] - begin_ps if self.load.units else 0
        return _Run(loads, end_ps[chase] - begin_ps - self.warm_ps, tiles, stream_ps)


def _peak(system: System, tier: int) -> tuple[int, bool]:
    """Curve.peak_mbps, each_way."""
    links = [system.links[hop.link] for hop in system.routes[0][tier]]
    each_way = [(max(link.peak_mbps), not link.shared) for link in links]
    return min([(system.tiers[tier].peak_mbps, False), *each_way])


def measured_folder(machine: str) -> Path:
    """The folder of measurements of a machine's GPU; UsageError if there is none."""
    from validation import figures

    chip = machine.partition("-")[0]
    found = [folder for folder in figures.machines() if folder.name.endswith(f"-{chip}")]
    if len(found) != 1:
        names = ", ".join(folder.name for folder in figures.machines())
        raise UsageError(f"--measured: no measurements of '{chip}'; there are some of: {names}")
    folder: Path = found[0]
    return folder


def _measured(folder: Path, system: System, tier: int) -> Iterator[tuple[Load, dict[str, Any]]]:
    """What was run at each measured point, and its row."""
    from validation import figures_rows

    rows = [row for row in figures_rows.read_rows(folder, FAMILY) if not row.get("error")]
    if system.routes[0][tier] or not rows:
        raise UsageError(
            f"--measured: {folder.name} has no latency under load of '{system.tiers[tier].name}', only of "
            "the GPU's own memory; leave --measured out"
        )
    for row in rows:
        yield measured_load(row), row


def measured_load(row: Mapping[str, Any]) -> Load:
    """What was run at a measured point."""
    from workloads.beside import Load

    pause_ps = round(row["pause"] * 1_000_000 / row["sm_mhz"])
    return Load(str(row["kind"]), int(row["blocks"]), int(row["flight"]) or USUAL_FLIGHT, pause_ps)


def off(point: Point) -> tuple[float | None, float]:
    """How far load and latency are from the measured ones, as shares; None where nothing streamed."""
    assert point.measured is not None
    load = point.replayed.mbps / point.measured.mbps - 1 if point.measured.mbps else None
    return load, point.replayed.latency_ps / point.measured.latency_ps - 1


@dataclass(frozen=True)
class Errors:
    """Mean and largest of the errors of one kind of stream, as shares, signs dropped."""

    kind: str
    points: int
    load_mean: float
    load_worst: float
    latency_mean: float
    latency_worst: float


def errors(curve: Curve) -> list[Errors]:
    """Errors of each kind against what was measured; none where nothing was."""
    found = []
    for kind in dict.fromkeys(point.kind for point in curve.points):
        offs = [off(point) for point in curve.points if point.kind == kind and point.measured is not None]
        loads = [abs(load) for load, _ in offs if load is not None]
        latencies = [abs(latency) for _, latency in offs]
        if loads:
            means = [sum(each) / len(each) for each in (loads, latencies)]
            found.append(Errors(kind, len(offs), means[0], max(loads), means[1], max(latencies)))
    return found
