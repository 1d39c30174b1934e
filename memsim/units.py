"""Quantities with units, in and out: "4.8 TB/s" to an integer of 10^6 bytes/s, and back for people.

Text enters, exact integers leave: picoseconds, bytes, 10^6 bytes/s (`mbps`), 10^6 FLOP/s (`mflops`),
tokens. A bare number is refused where its unit is not obvious, and so is a value that is no whole number
of the integer unit (half a byte). Decimal prefixes are decimal, `Ki Mi Gi Ti` binary; only token counts
read `K M G` as binary, as model cards do. No unit library: those cost more than the rest of the start-up.
"""

from __future__ import annotations

import re
from fractions import Fraction

from memsim.errors import UsageError, nearest, shown

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_RATES = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
_TIMES_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}
_FLOPS = {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items() if prefix != "K"}
_TOKENS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

_QUANTITY = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-zµ/]*)\s*")
_LARGEST = 2**63 - 1


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


def parse_count(text: object) -> int:
    """A whole number >= 1 without a unit; UsageError for anything else."""
    if isinstance(text, bool) or not isinstance(text, int) or not 1 <= text <= _LARGEST:
        raise UsageError(f"{shown(text)} is not a count: expected a whole number from 1 on, such as 96")
    return text


def parse_share(text: object) -> Fraction:
    """A share above 0 and up to 1, exact as written: 0.92 or "92%"; UsageError for anything else."""
    percent = isinstance(text, str) and text.strip().endswith("%")
    digits = (text if isinstance(text, str) else shown(text)).strip().removesuffix("%").strip()
    plain = re.fullmatch(r"[0-9]{1,30}(\.[0-9]{1,30})?", digits) and not isinstance(text, bool)
    share = Fraction(digits) / (100 if percent else 1) if plain else Fraction(0)
    if not 0 < share <= 1:
        raise UsageError(f"{shown(text)} is not a share: expected a number above 0 and up to 1, such as 0.92")
    return share


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
