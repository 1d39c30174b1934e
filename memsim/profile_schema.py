"""The shape of a machine file: which tables and keys it may have, and what a number must carry.

A dict as TOML gives it enters, a checked `Profile` leaves. Every number is a table of value, provenance
and source, and every key says what more of it does (`Profile.effects`). What the tables mean together
(routes, capacities) is for `route`; nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from memsim.errors import shown
from memsim.quantity import (
    AlignedSize,
    Count,
    Energy,
    Flops,
    Loaded,
    Price,
    Quantity,
    Rate,
    Share,
    Size,
    Table,
    Tail,
    Time,
    Transfers,
    Words,
)

# What more of a number does to a replay: it gets shorter or longer (never the other way round), more data
# fit, its cost or energy grows, `any` of these, or nothing: the number informs the reader alone.
Effect = Literal["faster", "slower", "room", "cost", "energy", "any", "informative"]

MOST_TABLES = 64  # of one group
LEVELS, MOST_LEVELS = "translation", 2  # the key of a tier that holds tables, and how many

Name = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_-]{0,39}$")]  # a word that --place can take apart
MachineName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")]  # also a scenario's


def _within(least: int, most: int, words: str) -> AfterValidator:
    """A number from `least` to `most` in its integer unit, as `words` say it: engines count in int64."""

    def check(quantity: Quantity) -> Quantity:
        if not least <= quantity.number <= most:
            raise ValueError(f"{shown(quantity.value)} is out of range; expected {words}")
        return quantity

    return AfterValidator(check)


def _bearable(tail: Tail) -> Tail:
    if tail.steps[-1][1] > 10**12:
        raise ValueError(f"{tail.text}: a request that takes more than 1 s longer; expected 1 s at most")
    return tail


def _tolerable(loaded: Loaded) -> Loaded:
    if loaded.points[-1][1] > 10**12:
        raise ValueError(f"{loaded.text}: a request that takes more than 1 s longer; expected 1 s at most")
    return loaded


def _fillable(transfers: Transfers) -> Transfers:
    if transfers.points[-1][0] > 2**30 or min(share for _, share in transfers.points) < 10**4:
        raise ValueError(f"{transfers.text}: out of range; expected sizes to 1 GiB and shares from 1%")
    return transfers


Channels = Annotated[Count, _within(1, 4096, "1 to 4,096")]
Devices = Annotated[Count, _within(1, 4096, "1 to 4,096")]
Copies = Annotated[Count, _within(1, 4096, "1 to 4,096")]
Ways = Annotated[Count, _within(1, 256, "1 to 256")]
Units = Annotated[Count, _within(1, 65_536, "1 to 65,536")]
Tags = Annotated[Count, _within(1, 10**9, "1 to 10^9")]
Iops = Annotated[Count, _within(1, 10**15, "1 to 10^15 a second")]
Capacity = Annotated[Size, _within(1, 10**16, "1 B to 10 PB")]
Line = Annotated[Size, _within(1, 2**30, "1 B to 1 GiB")]
Buffer = Annotated[Size, _within(0, 2**30, "0 B to 1 GiB")]
Header = Annotated[Size, _within(0, 2**12, "0 B to 4 KiB")]
AlignedLine = Annotated[AlignedSize, _within(1, 2**30, "1 B to 1 GiB")]
Bandwidth = Annotated[Rate, _within(1, 10**9, "1 MB/s to 1 PB/s")]
Latency = Annotated[Time, _within(1, 10**12, "1 ps to 1 s")]  # every hop takes time
Gap = Annotated[Time, _within(0, 10**12, "0 ps to 1 s")]
Arithmetic = Annotated[Flops, _within(1, 10**15, "1 MFLOP/s to 10^21 FLOP/s")]
BitEnergy = Annotated[Energy, _within(1, 10**9, "1 fJ/bit to 1 uJ/bit")]
SizePrice = Annotated[Price, _within(1, 10**12, "0.001 USD/TB to 10^6 USD/GB")]
SlowSteps = Annotated[Tail, AfterValidator(_bearable)]
LoadedTimes = Annotated[Loaded, AfterValidator(_tolerable)]
TransferShares = Annotated[Transfers, AfterValidator(_fillable)]


def _key(effect: Effect) -> Any:
    """A number that may not be left out, and what more of it does."""
    return Field(json_schema_extra={"effect": effect})


def _option(effect: Effect) -> Any:
    """A number that may be left out, and what more of it does."""
    return Field(None, json_schema_extra={"effect": effect})


class InitiatorTable(Table):
    """[initiator.NAME]: a processor that runs kernels; rates are those of all units together."""

    attach: Name | None = None
    writes: Literal["acknowledged", "posted"] = "acknowledged"
    units: Units = _key("any")  # they share the rates, so more units are slower ones
    unit_outstanding: Capacity = _key("faster")
    outstanding: Capacity | None = _option("faster")  # of all units together
    request: Line | None = _option("faster")
    launch_gap: Gap = _key("slower")
    graph_launch: Gap = _key("slower")
    dispatch: Gap | None = _option("slower")
    tags: Tags | None = _option("faster")
    credits: Tags | None = _option("faster")
    setup: Gap | None = _option("slower")
    work_latency: Gap | None = _option("slower")
    turn: Gap | None = _option("any")
    wake: Gap | None = _option("slower")
    port: Bandwidth | None = _option("faster")  # one unit's, as port_write
    port_write: Bandwidth | None = _option("faster")
    bf16: Arithmetic | None = _option("faster")
    fp8: Arithmetic | None = _option("faster")
    fp4: Arithmetic | None = _option("faster")
    fp32: Arithmetic | None = _option("faster")
    power_bandwidth: Bandwidth | None = _option("faster")


class CacheTable(Table):
    """[cache.NAME]: the last-level cache of the first initiator."""

    attach: Name
    capacity: Capacity = _key("faster")
    bandwidth: Bandwidth = _key("faster")
    write_bandwidth: Bandwidth | None = _option("faster")
    latency: Latency = _key("slower")
    spread: Gap | None = _option("any")
    copies: Copies | None = _option("slower")
    ways: Ways | None = _option("any")


class WalkTable(Table):
    """[tier.NAME.translation.NAME]: a level of address translation on the first initiator's way to a tier."""

    reach: Capacity = _key("faster")
    page: AlignedLine = _key("any")
    latency: Latency = _key("slower")
    rate: Iops = _key("faster")


class TierTable(Table):
    """[tier.NAME]: equal devices at node `attach`; every key but `devices` is one device's."""

    attach: Name
    access: Literal["load", "command"] = "load"
    devices: Devices | None = _option("room")  # and faster, where the devices bind
    capacity: Capacity = _key("room")
    bandwidth: Bandwidth = _key("faster")
    write_bandwidth: Bandwidth | None = _option("faster")
    efficiency: Share = _key("faster")
    write_efficiency: Share | None = _option("faster")
    channels: Channels = _key("any")  # they share the bandwidth
    interleave: AlignedLine = _key("any")
    unit: AlignedLine = _key("slower")
    latency: Latency = _key("slower")
    write_latency: Latency | None = _option("slower")
    read_iops: Iops | None = _option("faster")
    write_iops: Iops | None = _option("faster")
    queue_depth: Tags | None = _option("faster")
    tail: SlowSteps | None = _option("slower")
    turnaround: Gap | None = _option("slower")
    write_buffer: Buffer | None = _option("any")
    spread: Gap | None = _option("any")
    far: Gap | None = _option("slower")
    late: Gap | None = _option("slower")
    loaded_latency: LoadedTimes | None = _option("slower")
    energy: BitEnergy | None = _option("energy")
    translation: dict[Name, WalkTable] = Field({}, max_length=MOST_LEVELS)


class LinkTable(Table):
    """[link.NAME]: a link between two nodes; `bandwidth` is the peak of each direction."""

    between: tuple[Name, Name]
    duplex: Literal["full", "shared"] = "full"
    bandwidth: Bandwidth = _key("faster")
    bandwidth_out: Bandwidth | None = _option("faster")
    efficiency: Share = _key("faster")
    efficiency_out: Share | None = _option("faster")
    latency: Latency = _key("slower")
    tags: Tags | None = _option("faster")
    credits: Tags | None = _option("faster")
    payload: Line | None = _option("faster")
    header: Header | None = _option("slower")
    transfer_efficiency: TransferShares | None = _option("faster")
    energy: BitEnergy | None = _option("energy")


class SwitchTable(Table):
    """[switch.NAME]: the node NAME adds its latency to each hop that leads to it."""

    latency: Latency = _key("slower")


GROUPS: dict[str, type[Table]] = {
    "initiator": InitiatorTable,
    "cache": CacheTable,
    "tier": TierTable,
    "link": LinkTable,
    "switch": SwitchTable,
}


class Profile(Table):
    """A machine file with what it extends merged in.

    The first initiator runs the kernels that are sent nowhere else, the first tier holds what is not
    placed. `cost` holds a price per tier in each dated scenario.
    """

    name: MachineName
    title: Words
    initiator: dict[Name, InitiatorTable] = Field(max_length=MOST_TABLES)
    cache: dict[Name, CacheTable] = Field(max_length=MOST_TABLES)
    tier: dict[Name, TierTable] = Field(max_length=MOST_TABLES)
    link: dict[Name, LinkTable] = Field({}, max_length=MOST_TABLES)
    switch: dict[Name, SwitchTable] = Field({}, max_length=MOST_TABLES)
    cost: dict[MachineName, dict[Name, SizePrice]] = Field({}, max_length=MOST_TABLES)

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Every number with its path ("tier.hbm.bandwidth"), in the order of the tables above."""
        return ((path, value) for path, value in self.entries() if isinstance(value, Quantity))

    def entries(self) -> Iterator[tuple[str, Quantity | str]]:
        """Every number and every word that is given, with its path, in the order of the tables above."""
        for group in GROUPS:
            for name, table in getattr(self, group).items():
                yield from _entries(f"{group}.{name}", table)
        for scenario, prices in self.cost.items():
            for tier, price in prices.items():
                yield f"cost.{scenario}.{tier}", price

    def effects(self) -> dict[str, Effect]:
        """What more of each number does, by its path."""
        return {path: effect_of(path) for path, _ in self.quantities()}


def _entries(path: str, table: Table) -> Iterator[tuple[str, Quantity | str]]:
    for key in type(table).model_fields:
        value = getattr(table, key)
        if isinstance(value, dict):
            for name, level in value.items():
                yield from _entries(f"{path}.{key}.{name}", level)
        elif value is not None:
            yield f"{path}.{key}", ", ".join(value) if isinstance(value, tuple) else value


def table_at(path: Sequence[str]) -> type[Table]:
    """The model of the table at a path: GROUP.NAME, a level (tier.NAME.translation.NAME), or a number."""
    if len(path) == 2:
        return GROUPS[path[0]]
    return WalkTable if len(path) == 4 and path[2] == LEVELS else Quantity


def effect_of(path: str) -> Effect:
    """What more of the number at `path` (GROUP.NAME.KEY) does."""
    group, *names, key = path.split(".")
    if group == "cost":
        return "cost"
    extra: Any = table_at([group, *names]).model_fields[key].json_schema_extra
    effect: Effect = extra["effect"]
    return effect


def is_number(path: Sequence[str]) -> bool:
    """Whether the key at a path, given in parts, holds a number with its source, not a word or tables."""
    *table, key = path
    return path[0] == "cost" or table_at(table).model_fields[key].json_schema_extra is not None
