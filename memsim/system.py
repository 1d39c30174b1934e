"""What the engines know of a machine: an initiator, tiers, links and the route to each tier.

`profile` builds a `System` from a machine file. All numbers here are integers in the units that their
names say; `mbps` is 10^6 bytes/s and `mflops` 10^6 FLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass

# How far a number can be trusted, best first.
PROVENANCES = ("measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed")


@dataclass(frozen=True)
class Initiator:
    """The processor that runs the kernels.

    units                  processors (SMs)
    unit_outstanding_bytes bytes that the loads and stores of one unit may have outstanding
    launch_gap_ps          from the end of what a kernel waits for to its first block
    graph_launch_ps        launch of a step's graph, paid once a step
    bf16_mflops, fp8_mflops, fp32_mflops   sustained rate of one unit
    """

    name: str
    units: int
    unit_outstanding_bytes: int
    launch_gap_ps: int
    graph_launch_ps: int
    bf16_mflops: int
    fp8_mflops: int
    fp32_mflops: int


@dataclass(frozen=True)
class Cache:
    """The initiator's last-level cache: it serves rows that another block of the kernel has fetched."""

    name: str
    capacity_bytes: int
    mbps: int
    latency_ps: int


@dataclass(frozen=True)
class Tier:
    """One memory.

    channels         servers that work in parallel
    channel_mbps     sustained rate of one channel
    interleave_bytes consecutive bytes on one channel
    unit_bytes       minimum transaction; every request is rounded out to it
    latency_ps       idle, from arrival to the last byte beyond its transfer
    peak_mbps        what the datasheet promises for all channels together
    """

    name: str
    capacity_bytes: int
    channels: int
    channel_mbps: int
    interleave_bytes: int
    unit_bytes: int
    latency_ps: int
    peak_mbps: int


@dataclass(frozen=True)
class Link:
    """A full-duplex link on the way to a tier.

    mbps        sustained rate of each direction;  peak_mbps what the datasheet promises
    latency_ps  one way
    tags        requests that may be outstanding, each of up to tag_bytes
    """

    name: str
    mbps: int
    peak_mbps: int
    latency_ps: int
    tags: int
    tag_bytes: int


@dataclass(frozen=True)
class Input:
    """One number that a result rests on, and how far it can be trusted."""

    path: str
    value: str
    provenance: str
    source: str


@dataclass(frozen=True)
class System:
    """A machine, ready to replay on.

    routes   for every tier the links from the initiator outward, as indices into `links`
    inputs   every number of the machine file
    """

    name: str
    initiator: Initiator
    cache: Cache
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...]
    routes: tuple[tuple[int, ...], ...]
    inputs: tuple[Input, ...] = ()

    def tier_index(self, name: str) -> int:
        """Index of the tier called `name`; KeyError if there is none."""
        for index, tier in enumerate(self.tiers):
            if tier.name == name:
                return index
        raise KeyError(name)
