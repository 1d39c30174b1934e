"""What the engines know of a machine: initiators, tiers, links and the route from each to each.

`profile` builds a `System` from a machine file. All numbers here are integers in the units that their
names say; `mbps` is 10^6 bytes/s and `mflops` 10^6 FLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass

# How far a number can be trusted, best first.
PROVENANCES = ("measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed")
MILLION = 1_000_000  # parts that shares and tails are counted in
MOST_SPREAD = 150  # per cent of the mean latency of a load: so the nearest channel answers later than at once


@dataclass(frozen=True)
class Initiator:
    """A processor that runs kernels: a GPU, a unit beside a memory, a copy engine.

    units                  processors (SMs; engines of a copy engine)
    unit_outstanding_bytes bytes that the loads and stores of one unit may have outstanding
    outstanding_bytes      what all units that a kernel runs on may have outstanding together; 0: no limit
    request_bytes          largest request that it sends over a link
    launch_gap_ps          from the end of what a kernel waits for to its first block
    graph_launch_ps        launch of a step's graph, paid once a step
    setup_ps               added to the start-up of each block that accesses memory: a copy engine's command
    bf16_mflops, fp8_mflops, fp32_mflops, fp4_mflops   sustained rate of one unit; 0: it cannot, but that fp4
                           is then widened to bf16
    port_mbps              what one unit can take in from memories without a link, and give out; 0: no limit
    work_latency_ps        from the end of a worked tile's service by the arithmetic to the end of the tile
    turn_ps                for how long a block keeps its unit's arithmetic while others wait; 0: for a tile
    power_mbps             what one unit could take in with the power of its matrix arithmetic; 0: not told
    dispatch_ps            from the start of one block to that of the next: they start one after another
    wake_ps                added to the launch of a kernel that waits for one of another initiator
    posts                  its writes over links end when they are served: no acknowledgement is waited for
    tags, credits          packets of reads, of writes that it may have outstanding on a link, where the link
                           allows more; 0: as many as the link allows
    """

    name: str
    units: int
    unit_outstanding_bytes: int
    request_bytes: int
    launch_gap_ps: int
    graph_launch_ps: int
    setup_ps: int
    bf16_mflops: int
    fp8_mflops: int
    fp32_mflops: int
    port_mbps: tuple[int, int] = (0, 0)
    work_latency_ps: int = 0
    turn_ps: int = 0
    power_mbps: int = 0
    wake_ps: int = 0
    dispatch_ps: int = 0
    posts: bool = False
    outstanding_bytes: int = 0
    tags: int = 0
    credits: int = 0
    fp4_mflops: int = 0

    def lent_bytes(self, blocks: int) -> int:
        """Bytes that each unit lends to a kernel of so many blocks: its units share `outstanding_bytes`."""
        if not self.outstanding_bytes:
            return self.unit_outstanding_bytes
        part = self.outstanding_bytes // max(1, min(self.units, blocks))
        return min(self.unit_outstanding_bytes, max(1, part))


@dataclass(frozen=True)
class Cache:
    """The first initiator's last-level cache, in front of the tiers that it reaches without a link.

    capacity_bytes  what it holds in effect, which may be less than the datasheet's figure
    mbps            rate of reads, of writes
    latency_ps      of a hit, the mean of all slices
    spread_ps       what a hit in the farthest slice takes more than one in the nearest
    copies          places that a line takes which several blocks only read (two: each half keeps its own)
    ways            places of a set; 0: one set holds all
    """

    name: str
    capacity_bytes: int
    mbps: tuple[int, int]
    latency_ps: int
    copies: int = 1
    ways: int = 0
    spread_ps: int = 0


@dataclass(frozen=True)
class Walk:
    """A level of address translation: pages beyond its reach are looked up, one walk after another.

    reach_bytes   what it covers at once
    page_bytes    covered by one entry, a power of 2
    latency_ps    what a look-up takes;  occupancy_ps  how long it keeps the walker
    """

    reach_bytes: int
    page_bytes: int
    latency_ps: int
    occupancy_ps: int


@dataclass(frozen=True)
class Tier:
    """One memory, of one or several equal devices striped; reads first, writes second in each pair.

    channels         servers that work in parallel, of all devices
    channel_mbps     sustained rate of one channel
    interleave_bytes consecutive bytes on one channel
    unit_bytes       minimum transaction; every request is rounded out to it
    latency_ps       idle, from arrival to the last byte beyond its transfer; of reads the channels' mean
    peak_mbps        what the datasheet promises for all channels together
    occupancy_ps     least time that a piece keeps its channel (a limit on operations a second); 0: none
    queue_depth      pieces that may be in the tier at once; 0: no limit
    tail             steps (n, extra): of a million requests the slowest n take `extra` ps more, n falling
    turnaround_ps    what a channel takes to change between reads and writes; 0: nothing
    spread_ps        how much later loads of farther channels come: the farthest of a half than the nearest,
                     the far half than the near one, and the latest of the far half (see lanes.away_ps)
    write_buffer_bytes   written bytes that a channel gathers before it writes them, all at once; 0: none
    loaded           of a tier that is one server: points (millionths of its rate, extra ps), loads rising
    translation      levels of address translation, the smaller reach first; two at most
    commanded        a device that takes commands and moves data by itself: no tags or credits of links
    devices          equal devices that the channels, the capacity and the rates belong to
    energy_fj        of one bit moved [fJ]; 0: not known
    cost             (scenario, millionths of a dollar for 10^9 bytes)
    """

    name: str
    capacity_bytes: int
    channels: int
    channel_mbps: tuple[int, int]
    interleave_bytes: int
    unit_bytes: int
    latency_ps: tuple[int, int]
    peak_mbps: int
    occupancy_ps: tuple[int, int] = (0, 0)
    queue_depth: int = 0
    tail: tuple[tuple[int, int], ...] = ()
    turnaround_ps: int = 0
    write_buffer_bytes: int = 0
    loaded: tuple[tuple[int, int], ...] = ()
    translation: tuple[Walk, ...] = ()
    commanded: bool = False
    devices: int = 1
    energy_fj: int = 0
    cost: tuple[tuple[str, int], ...] = ()
    spread_ps: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        """ValueError where the nearest channel would answer before it is asked (see lanes.away_ps)."""
        if 100 * sum(self.spread_ps) > MOST_SPREAD * (self.latency_ps[0] + 1):
            raise ValueError(f"{self.name}: spread_ps {self.spread_ps} of latency_ps {self.latency_ps[0]}")


@dataclass(frozen=True)
class Link:
    """What joins two nodes. Pairs hold the direction towards the first node, then the one away from it.

    mbps           sustained rate of each direction on the wire;  peak_mbps what the datasheet promises
    latency_ps     one way, the same both ways
    shared         both directions take turns on one medium
    payload_bytes  data of one packet at most;  header_bytes  what a packet adds on the wire
    tags           packets of reads that each initiator may have outstanding;  credits  of writes; 0: no limit
    efficiency     points (bytes of a transfer, millionths of the rate that it reaches), sizes rising;
                   none: every transfer reaches the rate
    energy_fj      of one bit moved [fJ]; 0: not known
    """

    name: str
    mbps: tuple[int, int]
    peak_mbps: tuple[int, int]
    latency_ps: int
    tags: int
    credits: int
    payload_bytes: int
    header_bytes: int
    shared: bool = False
    efficiency: tuple[tuple[int, int], ...] = ()
    energy_fj: int = 0


@dataclass(frozen=True)
class Hop:
    """A link as a route crosses it, outward.

    link        index into `System.links`
    flipped     the link's second node is the near one
    latency_ps  one way: the link's, and that of the switch that it leads to
    """

    link: int
    flipped: bool
    latency_ps: int


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

    initiators  kernels run on the first unless they are sent to another
    cache       of the first initiator; the others have none
    routes      routes[initiator][tier]: hops from the initiator outward
    inputs      every number of the machine file
    """

    name: str
    initiators: tuple[Initiator, ...]
    cache: Cache
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...]
    routes: tuple[tuple[tuple[Hop, ...], ...], ...]
    inputs: tuple[Input, ...] = ()

    def cached(self, initiator: int, tier: int) -> bool:
        """Whether the last-level cache stands in front of a tier: the first initiator has no link to it."""
        return initiator == 0 and not self.routes[0][tier]

    def tier_index(self, name: str) -> int:
        """Index of the tier called `name`; KeyError if there is none."""
        for index, tier in enumerate(self.tiers):
            if tier.name == name:
                return index
        raise KeyError(name)

    def largest_request(self, initiator: int, tier: int, write: bool, quantum_bytes: int) -> int:
        """Bytes of the largest request to a tier: the quantum, or what an eighth of a link's tags carries.

        Larger ones would leave up to all but one request's tags of a link unused; smaller ones than a
        transaction of the tier would move it again and again.
        """
        largest = quantum_bytes
        unit_bytes = self.tiers[tier].unit_bytes
        for hop in () if self.tiers[tier].commanded else self.routes[initiator][tier]:
            pool = self.most_packets(initiator, hop.link, write)
            if pool:
                carried = max(1, pool // 8) * self.packet_bytes(initiator, hop.link)
                largest = min(largest, max(unit_bytes, carried // unit_bytes * unit_bytes))
        return largest

    def most_packets(self, initiator: int, link: int, write: bool) -> int:
        """Packets of reads, or of writes, that an initiator may have outstanding on a link; 0: no limit."""
        key = "credits" if write else "tags"
        limits = [getattr(each, key) for each in (self.links[link], self.initiators[initiator])]
        return min(filter(None, limits), default=0)

    def back_ps(self, initiator: int, hop: Hop, write: bool) -> int:
        """What the way back over a hop takes, of data or of the acknowledgement of a write."""
        return 1 if write and self.initiators[initiator].posts else hop.latency_ps

    def packet_bytes(self, initiator: int, link: int) -> int:
        """Data of one packet: what the initiator asks for at once, or the link carries."""
        return min(self.initiators[initiator].request_bytes, self.links[link].payload_bytes)
