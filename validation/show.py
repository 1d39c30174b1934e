"""`memsim validate show`: rows of a measured family or of a public table, picked by values of columns.

Enters: a name, conditions "COLUMN=VALUE". Leaves: plain rows in the file's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memsim.errors import UsageError, cut, nearest
from memsim.units import format_time
from validation import figures, figures_rows, public

Rows = list[dict[str, Any]]
HIDDEN = (
    *("calls", "buffers", "footprint_bytes", "replays", "p10_ns", "p90_ns", "graph_ns", "sm_mhz", "mem_mhz"),
    *("watts", "temperature_c", "kernels", "noisy", "run", "latency_cycles"),
)


def rows(name: str, where: Sequence[str] = (), measured: Path | None = None) -> Rows:
    """Rows of the family or public table `name` that meet all conditions; measured ones say their machine.

    UsageError for an unknown name or column, or a condition that is none.
    """
    conditions = [_condition(text) for text in where]
    found = _measured(name, measured)
    if not found:
        known = {table.name for table in public.tables()}
        if name not in known:
            names = {*known, *_families(measured)}
            raise UsageError(f"unknown family or table '{cut(name)}'; {nearest(name, names)}")
        found = public.load(name).to_pylist()
    for column, _ in conditions:
        if not any(column in row for row in found):
            columns = {each for row in found for each in row}
            raise UsageError(f"{name} has no column '{cut(column)}'; {nearest(column, columns)}")
    return [row for row in found if all(_equal(row.get(column), text) for column, text in conditions)]


def _measured(name: str, measured: Path | None) -> Rows:
    return [
        {"machine": folder.name, **_whole(row)}
        for folder in figures.machines(measured)
        for row in figures_rows.read_rows(folder, name)
    ]


def _families(measured: Path | None) -> Iterable[str]:
    return (path.stem for folder in figures.machines(measured) for path in folder.glob("*.csv"))


def _whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """Whole numbers as integers."""
    return {
        name: int(value) if isinstance(value, float) and value == int(value) else value
        for name, value in row.items()
    }


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise UsageError(f"'{cut(text)}' is no condition; expected COLUMN=VALUE, such as batch=1")
    return column, value


def _equal(value: Any, text: str) -> bool:
    """Numbers by value, so that 131072 and 128K mean the same; words as they are."""
    if isinstance(value, int | float):
        return value == _parsed(text)
    return str(value) == text


def _parsed(text: str) -> float | None:
    factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    try:
        return float(text.rstrip("KMG")) * factor
    except ValueError:
        return None


def text(found: Rows) -> str:
    """A table of plain text as wide as its columns; reasons of outliers stand below it as notes."""
    filled = dict.fromkeys(name for row in found for name, value in row.items() if value not in (None, ""))
    names = [name for name in filled if name not in HIDDEN]
    notes = list(dict.fromkeys(row["outlier"] for row in found if row.get("outlier")))
    cells = [[_cell(name, row.get(name), notes) for name in names] for row in found]
    worded = [any(isinstance(row.get(name), str) for row in found) for name in names]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if words else cell.rjust(width)
            for cell, width, words in zip(row, widths, worded, strict=True)
        ).rstrip()
        for row in (names, *cells)
    ]
    lines += [f"({number}) {note}" for number, note in enumerate(notes, 1)]
    return "".join(f"{line}\n" for line in lines)


def _cell(column: str, value: Any, notes: Sequence[str]) -> str:
    if value is None or value == "":
        return "-"
    if column == "outlier":
        return f"({notes.index(value) + 1})"
    if column.endswith(("_ns", "_ps")):
        return format_time(value * (1000 if column.endswith("_ns") else 1))
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
