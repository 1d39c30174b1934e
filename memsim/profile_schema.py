"""The shape of a machine file: which tables and keys it may have, and what a number must carry.

A dict as TOML gives it enters, a checked `Profile` leaves. Every number is a table of value, provenance
and source; `Quantity.number` is the value in the project's integer units. What the tables mean together
(routes, capacities) is for `profile`; nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from memsim import units
from memsim.errors import UsageError, shown

Provenance = Literal["measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed"]


class Table(BaseModel):
    """A table that takes no keys but its own and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(Table):
    """One number of the world: its value as written, how far it can be trusted, where it comes from."""

    parse: ClassVar[Callable[[object], int | Fraction]]

    value: Any  # int, float or str: `parse` says which, and refuses the rest
    provenance: Provenance
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _value_has_its_unit(self) -> Quantity:
        try:
            type(self).parse(self.value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def number(self) -> int:
        """The value in integer units: bytes, mbps, ps, mflops or a count."""
        return int(type(self).parse(self.value))


class Count(Quantity):
    """A whole number."""

    parse = units.parse_count


class Size(Quantity):
    """Bytes."""

    parse = units.parse_bytes


class Rate(Quantity):
    """10^6 bytes/s."""

    parse = units.parse_rate


class Time(Quantity):
    """Picoseconds."""

    parse = units.parse_time


class Flops(Quantity):
    """10^6 FLOP/s."""

    parse = units.parse_flops


class Share(Quantity):
    """A share above 0 and up to 1."""

    parse = units.parse_share

    @property
    def share(self) -> Fraction:
        """The share, exact as written."""
        return units.parse_share(self.value)


def _within(least: int, most: int, words: str) -> AfterValidator:
    """A number from `least` to `most` in its integer unit, as `words` say it: engines count in int64."""

    def check(quantity: Quantity) -> Quantity:
        if not least <= quantity.number <= most:
            raise ValueError(f"{shown(quantity.value)} is out of range; expected {words}")
        return quantity

    return AfterValidator(check)


def _is_power_of_two(quantity: Quantity) -> Quantity:
    number = quantity.number
    if number & (number - 1):
        below = 1 << (number.bit_length() - 1)
        expected = f"'{below} B' or '{2 * below} B'"
        raise ValueError(f"{shown(quantity.value)} is no power of two; expected {expected}")
    return quantity


Channels = Annotated[Count, _within(1, 4096, "1 to 4,096")]
Units = Annotated[Count, _within(1, 65_536, "1 to 65,536")]
Tags = Annotated[Count, _within(1, 10**9, "1 to 10^9")]
Capacity = Annotated[Size, _within(1, 10**16, "1 B to 10 PB")]
Line = Annotated[Size, _within(1, 2**30, "1 B to 1 GiB")]
AlignedLine = Annotated[Line, AfterValidator(_is_power_of_two)]  # engines cut with masks
Bandwidth = Annotated[Rate, _within(1, 10**9, "1 MB/s to 1 PB/s")]
Latency = Annotated[Time, _within(1, 10**12, "1 ps to 1 s")]  # every hop takes time
Gap = Annotated[Time, _within(0, 10**12, "0 ps to 1 s")]
Arithmetic = Annotated[Flops, _within(1, 10**15, "1 MFLOP/s to 10^21 FLOP/s")]


class InitiatorTable(Table):
    """[initiator.NAME]: the processor that runs the kernels; rates are those of all units together."""

    units: Units
    unit_outstanding: Capacity
    launch_gap: Gap
    graph_launch: Gap
    bf16: Arithmetic
    fp8: Arithmetic
    fp32: Arithmetic


class CacheTable(Table):
    """[cache.NAME]: the last-level cache of the initiator `attach`."""

    attach: str
    capacity: Capacity
    bandwidth: Bandwidth
    latency: Latency


class TierTable(Table):
    """[tier.NAME]: a memory at node `attach`; `bandwidth` is the peak of all channels together."""

    attach: str
    capacity: Capacity
    bandwidth: Bandwidth
    efficiency: Share
    channels: Channels
    interleave: AlignedLine
    unit: AlignedLine
    latency: Latency


class LinkTable(Table):
    """[link.NAME]: a full-duplex link between two nodes; `bandwidth` is the peak of each direction."""

    between: tuple[str, str]
    bandwidth: Bandwidth
    efficiency: Share
    latency: Latency
    tags: Tags
    tag_bytes: Line


Name = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_-]*$")]  # a word that --place can take apart


class Profile(Table):
    """A machine file with what it extends merged in. The first tier is the default placement."""

    name: Name
    title: str = Field(min_length=1)
    initiator: dict[Name, InitiatorTable]
    cache: dict[Name, CacheTable]
    tier: dict[Name, TierTable]
    link: dict[Name, LinkTable] = {}

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Every number with its path ("tier.hbm.bandwidth"), in the order of the file."""
        for group in ("initiator", "cache", "tier", "link"):
            for name, table in getattr(self, group).items():
                for key in type(table).model_fields:
                    quantity = getattr(table, key)
                    if isinstance(quantity, Quantity):
                        yield f"{group}.{name}.{key}", quantity
