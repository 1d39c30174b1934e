"""`host.beside`, `peer.beside`: ns per MiB of one traffic while another runs (`measure/remote_pairs.py`).

far: kernels that read or write the memory behind the link, near: the GPU's own; on so many multiprocessors, a
block of 32 warps on each, 2 KiB under way in each warp (stores are not waited for). copy: the engine, one for
each direction. Both are at work all the time that counts. Here they are kernels side by side: the measured
one moves what takes some hundred microseconds, and the other one outlasts it.

Left out: the set-up of engine copies, which were far longer; that a peer GPU's engine made some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from memsim.errors import MemsimError
from memsim.kernel import copy_engines
from memsim.route import idle_latency_ps
from memsim.system import System
from validation.figures_rows import Row
from validation.predict_far import TIERS, transfer
from validation.predict_script import Bench, Job, Script, count
from validation.predict_stream import ROW_BYTES, Stream

MIB = 1 << 20
WARPS, WARP_BYTES = 32, 2048
MOST_DOUBLED = 8
SPAN_PS = 200_000_000  # that the measured traffic lasts about, where nothing is in its way
INWARD = ("far_read", "near_read", "copy_in")


@dataclass(frozen=True)
class Role:
    """One traffic: {far, near}_{read, write} on `units` multiprocessors, copy_{in, out}, or none."""

    name: str
    units: int
    tier: str

    def rate_mbps(self, system: System) -> int:
        """What it moves at most: at the rates of its memory and links, and with what may be under way."""
        place, way = self.name.split("_")[0], self.name not in INWARD
        home = copy_engines(system)[0] if place == "copy" else 0
        number = 0 if place == "near" else system.tier_index(self.tier)
        tier, runner = system.tiers[number], system.initiators[home]
        links = [system.links[hop.link].mbps[way] for hop in system.routes[home][number]]
        at_once = (self.units or 1) * runner.unit_outstanding_bytes
        in_flight_mbps = at_once * 1_000_000 // idle_latency_ps(system, home, number, way)
        return min(in_flight_mbps, tier.channels * tier.channel_mbps[way], *links)

    def launch(self, script: Script, span_ps: int, system: System, stream: int) -> tuple[int, int]:
        """The kernel that moves what takes so long at that rate; its number, and the bytes."""
        nbytes = self.rate_mbps(system) * span_ps // 1_000_000 // MIB * MIB + MIB
        if self.name.startswith("copy"):
            inward = self.name in INWARD
            return transfer(script, nbytes, inward, self.tier, system, stream), nbytes
        place, kind = self.name.split("_")
        what = Stream(kind, self.units, WARPS, WARP_BYTES, 1)
        nbytes = -(-nbytes // what.turn_bytes) * what.turn_bytes
        region = script.region(nbytes // ROW_BYTES, ROW_BYTES, self.tier if place == "far" else "")
        return script.kernel(what.grid(), list(what.moves([region], nbytes)), stream=stream), nbytes


def beside(row: Row, system: System, tier: str) -> Job:
    """Nanoseconds of one MiB."""
    one = Role(str(row["measured"]), count(row, "blocks"), tier)
    two = Role(str(row["other"]), count(row, "other_blocks"), tier)

    def time_ns(bench: Bench) -> float:
        if one.name.startswith("copy") and two.name.startswith("copy"):
            with Bench(with_two_engines(system)) as both:
                return _time_ns(one, two, both)
        return _time_ns(one, two, bench)

    inward = one.name in INWARD
    return Job(MIB if inward else 0, 0 if inward else MIB, time_ns)


def with_two_engines(system: System) -> System:
    """The machine with a copy engine for each direction; its file has one."""
    engine = copy_engines(system)[0]
    initiators = [
        replace(runner, units=2) if number == engine else runner
        for number, runner in enumerate(system.initiators)
    ]
    return replace(system, initiators=tuple(initiators))


def _time_ns(one: Role, two: Role, bench: Bench) -> float:
    """ns per MiB of `one` while `two`, which is made longer until it outlasts it, runs."""
    for doubled in range(MOST_DOUBLED):
        script, other = Script(), -1
        if two.name != "none":
            other, _ = two.launch(script, 2 * SPAN_PS << doubled, bench.system, stream=1)
        measured, nbytes = one.launch(script, SPAN_PS, bench.system, stream=2)
        times = bench.run(script)
        if other < 0 or times.end_ps[other] >= times.end_ps[measured]:
            return times.inside_ns(measured) * MIB / nbytes
    raise MemsimError(f"{two.name} does not outlast {one.name} on {bench.system.name}: they take turns")


def _in(tier: str) -> Callable[[Row, System], Job]:
    return lambda row, system: beside(row, system, tier)


RECIPES = {f"{name}.beside": _in(tier) for name, tier in TIERS.items()}
