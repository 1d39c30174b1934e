"""Words and numbers on a figure: axis names with their units, values as labels and ticks show them."""

from __future__ import annotations

import re

TIMES = ((9, "s"), (6, "ms"), (3, "us"))  # powers of ten of a nanosecond
POWERS = ((40, "T"), (30, "G"), (20, "M"), (10, "K"))
BINARY = {"bytes": " {}iB", "tokens": "{}"}
IMPLIED = {  # units of axes whose names do not end in one
    **dict.fromkeys(("context", "length"), "tokens"),
    **dict.fromkeys(("block", "flight", "footprint", "region", "row", "size", "span", "stride"), "bytes"),
}


def unit(axis: str, what: str = "") -> str:
    """bytes or tokens where an axis counts them: by the family's words ("`span` tokens") or its name."""
    described = re.search(rf"`{re.escape(axis)}` (bytes|tokens)", what)
    if described:
        return described[1]
    last = axis.rpartition("_")[2]
    return last if last in ("bytes", "tokens") else IMPLIED.get(axis, "")


def words(axis: str, what: str = "") -> str:
    """An axis name for people: "row_bytes" is "Row [bytes]"."""
    if axis in ("bytes", "tokens"):
        return "Size [bytes]" if axis == "bytes" else "Tokens"
    counted = unit(axis, what)
    name = axis.removesuffix(f"_{counted}").replace("_", " ").capitalize()
    return f"{name} [{counted}]" if counted else name


def said(axis: str, value: float | str, what: str = "") -> str:
    """A value with its axis: "blocks 132", "row 656 B", "context 128K"; a word alone stands for itself."""
    if isinstance(value, str):
        return value.replace("_", " ")
    name = axis.replace("_", " ").removesuffix(" bytes").removesuffix(" tokens")
    text = amount(value, unit(axis, what))
    return text if name == "bytes" else f"{name} {text}"


def amount(value: float, of: str) -> str:
    """A number as ticks and labels show it: binary for bytes and tokens, times in ns in the fitting unit."""
    if of == "ns":
        size, name = next(((10**power, name) for power, name in TIMES if value >= 10**power), (1, "ns"))
        return f"{value / size:g} {name}" if value else "0"
    if of in BINARY and value >= 1024 and (value % 1024 == 0 or value >= 10**6):
        size, letter = next((2**power, letter) for power, letter in POWERS if value >= 2**power)
        return f"{float(f'{value / size:.3g}'):g}{BINARY[of].format(letter)}"
    plain = f"{value:,.0f}" if value == int(value) and value < 10**7 else f"{value:g}"
    return f"{plain} B" if of == "bytes" else plain
