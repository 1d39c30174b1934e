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
from memsim.errors import UsageError

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


def _positive(quantity: Quantity) -> Quantity:
    if quantity.number <= 0:
        raise ValueError(f"{quantity.value!r} must be above zero")
    return quantity


PositiveSize = Annotated[Size, AfterValidator(_positive)]
PositiveRate = Annotated[Rate, AfterValidator(_positive)]
PositiveFlops = Annotated[Flops, AfterValidator(_positive)]


class InitiatorTable(Table):
    """[initiator.NAME]: the processor that runs the kernels; rates are those of all units together."""

    units: Count
    unit_outstanding: PositiveSize
    launch_gap: Time
    graph_launch: Time
    bf16: PositiveFlops
    fp8: PositiveFlops
    fp32: PositiveFlops


class CacheTable(Table):
    """[cache.NAME]: the last-level cache of the initiator `attach`."""

    attach: str
    capacity: PositiveSize
    bandwidth: PositiveRate
    latency: Time


class TierTable(Table):
    """[tier.NAME]: a memory at node `attach`; `bandwidth` is the peak of all channels together."""

    attach: str
    capacity: PositiveSize
    bandwidth: PositiveRate
    efficiency: Share
    channels: Count
    interleave: PositiveSize
    unit: PositiveSize
    latency: Time


class LinkTable(Table):
    """[link.NAME]: a full-duplex link between two nodes; `bandwidth` is the peak of each direction."""

    between: tuple[str, str]
    bandwidth: PositiveRate
    efficiency: Share
    latency: Time
    tags: Count
    tag_bytes: PositiveSize


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
