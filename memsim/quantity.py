"""Numbers of the world as a machine file writes them: value, provenance, source, nothing less.

A table of TOML enters, a `Quantity` leaves that knows its value in the project's integer units. Each class
is one kind of number; what range a key allows is for `profile_schema`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from memsim import units
from memsim.errors import UsageError, shown

Provenance = Literal["measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed"]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{shown(text)} holds a character that cannot be printed; write plain words")
    return text


Words = Annotated[str, Field(min_length=1), AfterValidator(_printable)]


class Table(BaseModel):
    """A table that takes no keys but its own and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Quantity(Table):
    """One number of the world: its value as written, how far it can be trusted, where it comes from.

    low, high   what it may be at least and at most, where somebody says so: both or none, around the value
    """

    parse: ClassVar[Callable[[object], Any]]

    value: Any  # int, float, str or list: `parse` says which, and refuses the rest
    provenance: Provenance
    source: Words
    low: Any = None
    high: Any = None

    @model_validator(mode="after")
    def _value_has_its_unit(self) -> Quantity:
        try:
            type(self).parse(self.value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _range_holds_the_value(self) -> Quantity:
        if self.low is None and self.high is None:
            return self
        if self.low is None or self.high is None:
            raise ValueError("has one end of a range; expected both low and high, or none")
        try:
            ends = [type(self).parse(end) for end in (self.low, self.value, self.high)]
        except UsageError as error:
            raise ValueError(f"low or high: {error}") from None
        if isinstance(self.value, list):
            raise ValueError("low and high of a list; expected them with a single number")
        if not ends[0] <= ends[1] <= ends[2]:
            found = f"low {shown(self.low)}, value {shown(self.value)}, high {shown(self.high)}"
            raise ValueError(f"{found}; expected them to rise")
        return self

    @property
    def number(self) -> int:
        """The value in integer units: bytes, mbps, ps, mflops, fJ/bit, millionths of USD/GB or a count."""
        return int(type(self).parse(self.value))

    @property
    def text(self) -> str:
        """The value as written, in one line."""
        return " ".join(str(self.value).split())

    def scaled(self, factor: Fraction | int) -> str:
        """About `factor` times the value, as a file or `--set` would write it; one unit more than 0."""
        if self.number == 0:
            return self._written(1 if factor > 1 else 0)
        return self._written(max(1, int(self.number * Fraction(factor))))

    def told(self, factor: Fraction | int) -> str:
        """The same for people: "169 GB/s" where `scaled` writes 168666 MB/s; steps and points as they are."""
        return self._told(self.scaled(factor))

    def _written(self, number: int) -> str:
        raise NotImplementedError

    def _told(self, written: str) -> str:
        """What a file would write, in units that people read."""
        return written


class Count(Quantity):
    """A whole number."""

    parse = units.parse_count

    def _written(self, number: int) -> str:
        return str(number)

    def _told(self, written: str) -> str:
        return f"{int(written):,}"


class Size(Quantity):
    """Bytes."""

    parse = units.parse_bytes

    def _written(self, number: int) -> str:
        return f"{number} B"

    def _told(self, written: str) -> str:
        number = units.parse_bytes(written)
        if "iB" not in str(self.value):
            return units.format_bytes(number)
        step = min(len(_BINARY) - 1, max(0, number.bit_length() - 1) // 10)
        return f"{number / 1024**step:.3g} {_BINARY[step]}"


class AlignedSize(Size):
    """Bytes, a power of two, because engines cut with masks."""

    @model_validator(mode="after")
    def _is_power_of_two(self) -> AlignedSize:
        number = self.number
        if number & (number - 1):
            below = 1 << (number.bit_length() - 1)
            expected = f"'{below} B' or '{2 * below} B'"
            raise ValueError(f"{shown(self.value)} is no power of two; expected {expected}")
        return self

    def _written(self, number: int) -> str:
        return f"{1 << (number.bit_length() - 1)} B"


class Rate(Quantity):
    """10^6 bytes/s."""

    parse = units.parse_rate

    def _written(self, number: int) -> str:
        return f"{number} MB/s"

    def _told(self, written: str) -> str:
        return units.format_rate(units.parse_rate(written) * 10**6)


class Time(Quantity):
    """Picoseconds."""

    parse = units.parse_time

    def _written(self, number: int) -> str:
        return f"{number} ps"

    def _told(self, written: str) -> str:
        return units.format_time(units.parse_time(written))


class Flops(Quantity):
    """10^6 FLOP/s."""

    parse = units.parse_flops

    def _written(self, number: int) -> str:
        return f"{number} MFLOP/s"

    def _told(self, written: str) -> str:
        return f"{units.parse_flops(written) / 10**6:.3g} TFLOP/s"


class Energy(Quantity):
    """fJ a bit moved."""

    parse = units.parse_energy

    def _written(self, number: int) -> str:
        return f"{number} fJ/bit"


class Price(Quantity):
    """Millionths of a dollar for 10^9 bytes."""

    parse = units.parse_price

    def _written(self, number: int) -> str:
        return f"{number // 1000}.{number % 1000:03} USD/TB"


class Share(Quantity):
    """A share above 0 and up to 1."""

    parse = units.parse_share

    @property
    def share(self) -> Fraction:
        """The share, exact as written."""
        return units.parse_share(self.value)

    def scaled(self, factor: Fraction | int) -> str:
        """`factor` times the share, 1 at most."""
        return f"{float(min(Fraction(1), self.share * factor)):.12f}"

    def _told(self, written: str) -> str:
        return f"{float(written):.3g}"


class Tail(Quantity):
    """Steps (slowest of a million requests, extra ps)."""

    parse = units.parse_tail

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """(slowest of a million, extra ps), rarer ones later."""
        return units.parse_tail(self.value)

    @property
    def text(self) -> str:
        """The steps in one line."""
        return ", ".join(f"{share} {extra}" for share, extra in self.value)

    def scaled(self, factor: Fraction | int) -> str:
        """The same shares, with `factor` times the extra time."""
        steps = (f'[{n / 10**6:.6f}, "{int(extra_ps * Fraction(factor))} ps"]' for n, extra_ps in self.steps)
        return f"[{', '.join(steps)}]"


class Loaded(Quantity):
    """Points (millionths of a rate, extra ps)."""

    parse = units.parse_loaded

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """(millionths, extra ps), shares rising."""
        return units.parse_loaded(self.value)

    @property
    def text(self) -> str:
        """The points in one line."""
        return ", ".join(f"{share} {extra}" for share, extra in self.value)

    def scaled(self, factor: Fraction | int) -> str:
        """The same shares, with `factor` times the extra time."""
        points = (
            f'[{n / 10**6:.6f}, "{int(extra_ps * Fraction(factor))} ps"]' for n, extra_ps in self.points
        )
        return f"[{', '.join(points)}]"


class Transfers(Quantity):
    """Points (bytes of a transfer, millionths of the rate that it reaches)."""

    parse = units.parse_transfers

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """(bytes, millionths), sizes rising."""
        return units.parse_transfers(self.value)

    @property
    def text(self) -> str:
        """The points in one line."""
        return ", ".join(f"{size} {share}" for size, share in self.value)

    def scaled(self, factor: Fraction | int) -> str:
        """The same sizes, with `factor` times the share, 1 at most and 1% at least."""
        shares = ((size, min(10**6, max(10**4, int(n * Fraction(factor))))) for size, n in self.points)
        points = (f'["{size} B", {n / 10**6:.6f}]' for size, n in shares)
        return f"[{', '.join(points)}]"
