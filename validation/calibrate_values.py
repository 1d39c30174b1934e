"""Values of a file of constants as numbers that can be searched, and back as a file writes them.

A path (GROUP.NAME.KEY) says what kind of number it is; a number is in the integer unit of its kind (bytes,
ps, 10^6 bytes/s or FLOP/s, a count) or a share. Written values have three digits, shares four places.
"""

from __future__ import annotations

import types
import typing
from typing import Any

from memsim.profile_schema import GROUPS, LEVELS, table_at
from memsim.quantity import Count, Flops, Quantity, Rate, Share, Size, Time
from memsim.units import format_bytes, format_rate, format_time
from workloads import costs

BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
LEAST_STEPS = 16  # of a binary unit: below, the next smaller one gives three digits
PLACES, LEAST_SHARE = 4, 0.0001

Kind = type[Quantity]


def kind_of(path: str) -> Kind | None:
    """The class of the number at a path; None if neither machines nor costs of kernels have such a key."""
    group, *names, key = path.split(".")
    if group == costs.GROUP:
        known = {**dict.fromkeys(costs.TIMES, Time), **dict.fromkeys(costs.SHARES, Share)}
        return known.get(key) if len(names) == 1 else None
    levels = len(names) == 3 and group == "tier" and names[1] == LEVELS
    if group not in GROUPS or not (len(names) == 1 or levels):
        return None
    field = table_at([group, *names]).model_fields.get(key)
    return _quantity(field.annotation) if field else None


def _quantity(annotation: Any) -> Kind | None:
    """The Quantity inside Annotated, Optional and the like."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Quantity) else None
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return next(filter(None, map(_quantity, typing.get_args(annotation))), None)
    return None


def number(kind: Kind, value: object) -> float:
    """A value as a file writes it, as a number."""
    return float(kind.parse(value))


def written(kind: Kind, found: float, like: object = None) -> str | int | float:
    """A number as a file writes it, rounded; `like`: a value of the key, which says if sizes are binary."""
    if issubclass(kind, Count):
        return max(1, int(float(f"{found:.3g}") if found >= 1000 else round(found)))
    if issubclass(kind, Share):
        return min(1.0, max(LEAST_SHARE, round(found, PLACES)))
    if issubclass(kind, Rate):
        return format_rate(max(1, round(found)) * 10**6)
    if issubclass(kind, Flops):
        return f"{float(f'{found / 10**6:.3g}'):g} TFLOP/s"
    if issubclass(kind, Time):
        return format_time(max(1, round(found)))
    if issubclass(kind, Size):
        return format_bytes(max(1, round(found))) if _decimal(like) else _binary(found)
    raise TypeError(f"{kind.__name__} cannot be calibrated")


def _decimal(like: object) -> bool:
    return like is not None and "iB" not in str(like)


def _binary(nbytes: float) -> str:
    """A binary size with about three digits that is a whole number of bytes."""
    step = 0
    while step + 1 < len(BINARY) and nbytes >= LEAST_STEPS * 1024 ** (step + 1):
        step += 1
    amount = nbytes / 1024**step
    digits = float(f"{amount:.3g}")
    eighths = round(digits * 8) / 8 if step else max(1, round(digits))
    return f"{eighths:g} {BINARY[step]}"


def toml(value: object) -> str:
    """A value as TOML."""
    return f'"{value}"' if isinstance(value, str) else repr(value)
