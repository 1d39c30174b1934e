"""Quantities with units, in and out: "4.8 TB/s" to an integer of 10^6 bytes/s, and back for people.

Text enters, exact integers leave: picoseconds, bytes, 10^6 bytes/s (`mbps`), 10^6 FLOP/s (`mflops`),
fJ a bit, millionths of a dollar for 10^9 bytes, tokens. A bare number is refused where its unit is not
obvious, and so is a value that is no whole number of the integer unit (half a byte). Decimal prefixes are
decimal, `Ki Mi Gi Ti` binary; only token counts read `K M G` as binary, as model cards do. No unit library:
those cost more than the rest of the start-up.
"""

from __future__ import annotations

import re
from fractions import Fraction

from memsim.errors import UsageError, nearest, shown

MOST_TOKENS, MOST_BATCH = 2**27, 4096  # in a sequence, and sequences that a step is recorded for
MOST_DRAFT = 64  # new tokens of a sequence

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_BITS = {"Mbit/s": 10**6 // 8, "Gbit/s": 10**9 // 8, "Tbit/s": 10**12 // 8}  # as networks are sold
_RATES = {**{f"{unit}/s": factor for unit, factor in _BYTES.items()}, **_BITS}
_EXACT_ENOUGH = 1000  # from here on a rate is rounded to whole MB/s: less than 0.05%
_TIMES_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}
_FLOPS = {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items() if prefix != "K"}
_ENERGIES_FJ = {"fJ/bit": 1, "pJ/bit": 10**3}
_PRICES = {"USD/GB": 10**6, "USD/TB": 10**3}  # of 10^9 and 10^12 bytes
_TOKENS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

_QUANTITY = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-zµ/]*)\s*")
_LARGEST = 2**63 - 1
_MILLION = 1_000_000
_MOST_STEPS = 64  # of a list of pairs


def within(name: str, value: int, least: int, most: int) -> None:
    """UsageError for an option whose value lies outside `least` to `most`."""
    if not least <= value <= most:
        raise UsageError(f"--{name} {value}: expected a whole number from {least:,} to {most:,}")


def parse_bytes(text: object) -> int:
    """Bytes of "141 GB", "64 KiB" or "512 B"; UsageError for anything else."""
    return _whole(text, _BYTES, 1, "a size", "bytes", "a number and a unit, such as '141 GB' or '64 KiB'")


def parse_rate(text: object) -> int:
    """Rate in 10^6 bytes/s (mbps) of "4.8 TB/s"; UsageError for anything else."""
    return _whole(text, _RATES, 10**6, "a bandwidth", "MB/s", "a number and a unit, such as '4.8 TB/s'")


def parse_time(text: object) -> int:
    """Picoseconds of "345 ns"; UsageError for anything else."""
    return _whole(text, _TIMES_PS, 1, "a time", "ps", "a number and a unit, such as '345 ns'")


def parse_flops(text: object) -> int:
    """Rate in 10^6 FLOP/s (mflops) of "989 TFLOP/s"; UsageError for anything else."""
    expected = "a number and a unit, such as '989 TFLOP/s'"
    return _whole(text, _FLOPS, 10**6, "an arithmetic rate", "MFLOP/s", expected)


def parse_energy(text: object) -> int:
    """Energy in fJ a bit of "6 pJ/bit"; UsageError for anything else."""
    expected = "a number and a unit, such as '6 pJ/bit'"
    return _whole(text, _ENERGIES_FJ, 1, "an energy", "fJ/bit", expected)


def parse_price(text: object) -> int:
    """Price in millionths of a dollar for 10^9 bytes of "10 USD/GB"; UsageError for anything else."""
    expected = "a number and a unit, such as '10 USD/GB'"
    return _whole(text, _PRICES, 1, "a price", "millionths of a dollar a GB", expected)


def parse_tokens(text: object) -> int:
    """Tokens of "128K", "1M" or "131072", one at least (binary: 1M = 1,048,576, 1.5K = 1,536).

    UsageError for anything else, and for a fraction that is no whole number of tokens.
    """
    expected = "a whole number from 1 on, such as '128K', '1M' or '131072'"
    what = "a number of tokens"
    small = type(text) is int and text <= _LARGEST
    tokens = _whole(str(text) if small else text, _TOKENS, 1, what, "tokens", expected)
    if tokens == 0:
        raise UsageError(f"{shown(text)} is not {what}: expected {expected}")
    return tokens


def is_whole(text: str) -> bool:
    """Whether a text is a whole number of 0 or more: digits of ASCII alone, as in quantities."""
    return re.fullmatch(r"[0-9]{1,30}", text) is not None


def parse_count(text: object) -> int:
    """A whole number >= 1 without a unit; UsageError for anything else."""
    if isinstance(text, bool) or not isinstance(text, int) or not 1 <= text <= _LARGEST:
        raise UsageError(f"{shown(text)} is not a count: expected a whole number from 1 on, such as 96")
    return text


def parse_share(text: object) -> Fraction:
    """A share above 0 and up to 1, exact as written: 0.92 or "92%"; UsageError for anything else."""
    share = _fraction(text)
    if share is None or not 0 < share <= 1:
        raise UsageError(f"{shown(text)} is not a share: expected a number above 0 and up to 1, such as 0.92")
    return share


def _fraction(text: object) -> Fraction | None:
    """A number of 0 or more, exact as written, or a percentage; None for anything else."""
    percent = isinstance(text, str) and text.strip().endswith("%")
    digits = (text if isinstance(text, str) else shown(text)).strip().removesuffix("%").strip()
    exponent = r"(e-[0-9]{1,3})?" if isinstance(text, float) else ""  # how Python writes 0.00001
    plain = re.fullmatch(rf"[0-9]{{1,30}}(\.[0-9]{{1,30}})?{exponent}", digits) and not isinstance(text, bool)
    return Fraction(digits) / (100 if percent else 1) if plain else None


def parse_tail(steps: object) -> tuple[tuple[int, int], ...]:
    """Steps (slowest of a million, extra ps) of [[0.01, "30 us"], [0.0001, "2 ms"]].

    UsageError unless shares, whole millionths, fall and times rise.
    """
    expected = 'shares of requests that fall and times that rise, such as [[0.01, "30 us"], [0.0001, "2 ms"]]'
    pairs = _pairs(steps, "a tail", expected)
    parsed = tuple((_millionths(share, "a tail"), parse_time(extra)) for share, extra in pairs)
    for (share, extra_ps), (rarer, longer_ps) in zip(parsed, parsed[1:], strict=False):
        if rarer >= share or longer_ps <= extra_ps:
            raise UsageError(f"{shown(steps)} is not a tail: expected {expected}")
    return parsed


def parse_transfers(points: object) -> tuple[tuple[int, int], ...]:
    """Points (bytes, millionths of the rate) of [["64 KB", 0.24], ["128 KB", 0.48]].

    UsageError unless sizes, of a byte at least, rise and shares are whole millionths.
    """
    expected = 'sizes that rise, each with a share of the rate, such as [["64 KB", 0.24], ["1 MB", 0.9]]'
    what = "an efficiency of transfers"
    pairs = _pairs(points, what, expected)
    parsed = tuple((parse_bytes(size), _millionths(share, what)) for size, share in pairs)
    sizes = [0, *(size for size, _ in parsed)]
    if any(after <= before for before, after in zip(sizes, sizes[1:], strict=False)):
        raise UsageError(f"{shown(points)} is not {what}: expected {expected}")
    return parsed


def parse_loaded(points: object) -> tuple[tuple[int, int], ...]:
    """Points (millionths of a rate, extra ps) of [[0.5, "50 ns"], [0.9, "600 ns"]].

    UsageError unless shares, whole millionths, rise and times do not fall.
    """
    example = 'such as [[0.5, "50 ns"], [0.9, "600 ns"]]'
    expected = f"shares of the rate that rise and times that do not fall, {example}"
    what = "a loaded latency"
    parsed = tuple(
        (_millionths(share, what), parse_time(extra)) for share, extra in _pairs(points, what, expected)
    )
    for (share, extra_ps), (busier, longer_ps) in zip(parsed, parsed[1:], strict=False):
        if busier <= share or longer_ps < extra_ps:
            raise UsageError(f"{shown(points)} is not {what}: expected {expected}")
    return parsed


def _pairs(value: object, what: str, expected: str) -> list[list[object]]:
    """`value` as a list of pairs, one at least; UsageError for anything else."""
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_STEPS:
        raise UsageError(f"{shown(value)} is not {what}: expected {expected}")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise UsageError(f"{shown(value)} is not {what}: expected pairs, {expected}")
    return value


def _millionths(share: object, what: str) -> int:
    parts = parse_share(share) * _MILLION
    if parts.denominator != 1:
        raise UsageError(f"{shown(share)} in {what}: expected at most six digits behind the point")
    return int(parts)


def _whole(
    text: object, units: dict[str, int], divisor: int, what: str, whole_unit: str, expected: str
) -> int:
    """`text` in units of `divisor`, exactly; UsageError if it is none, negative, too large or not whole."""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    refusal = f"{shown(text)} is not {what}"
    if match is None:
        raise UsageError(f"{refusal}: expected {expected}")
    digits, unit = match.groups()
    if not unit and "" not in units:
        raise UsageError(f"{refusal}: it has no unit; expected {expected}")
    if unit not in units:
        raise UsageError(f"{refusal}: unknown unit {shown(unit)}; {nearest(unit, filter(None, units))}")
    value = Fraction(digits) * units[unit] / divisor
    if units is _RATES and value >= _EXACT_ENOUGH:
        value = Fraction(round(value))
    if value.denominator != 1:
        raise UsageError(f"{refusal}: it is no whole number of {whole_unit}; expected {expected}")
    if value > _LARGEST:
        raise UsageError(f"{refusal}: it is above 2^63 {whole_unit}; expected {expected}")
    return int(value)


def format_bytes(count: int) -> str:
    """Decimal bytes with three digits: "141 GB"."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_rate(bytes_per_s: float) -> str:
    """Decimal rate with three digits: "4.42 TB/s"."""
    return _scaled(bytes_per_s, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"))


def format_time(time_ps: float) -> str:
    """Time with three digits: "1.84 ms"."""
    return _scaled(time_ps, ("ps", "ns", "us", "ms", "s"))


def format_tokens(tokens: int) -> str:
    """Tokens as people write them: "128K", "10M", else the plain number with separators."""
    for suffix, size in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{suffix}"
    return f"{tokens:,}"


def format_share(share: float) -> str:
    """A share as a percentage with about two digits: "92%", "0.4%"."""
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 9.95 or percent == 0 else f"{percent:.1f}%"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """`value` of units[0] in the largest unit that leaves it at 1 or above, with three digits."""
    size, step = abs(value), 0
    while step + 1 < len(units) and float(f"{size:.3g}") >= 1000:
        size, step = size / 1000, step + 1
    whole = size >= 1000 or (step == 0 and size == int(size))
    digits = f"{size:.0f}" if whole else f"{size:#.3g}".rstrip(".")
    return f"{'-' if value < 0 else ''}{digits} {units[step]}"
