"""`memsim validate show`: rows of a measured family or of a public table, picked by values of columns.

Enters: a name, conditions "COLUMN=VALUE". Leaves: plain rows in the file's order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memsim.errors import UsageError, cut, nearest
from memsim.units import format_time
from validation import figures, figures_rows, public

Rows = list[dict[str, Any]]
HIDDEN = (
    *("region_bytes", "huge_bytes"),
    *("calls", "buffers", "footprint_bytes", "replays", "p10_ns", "p90_ns", "graph_ns", "sm_mhz", "mem_mhz"),
    *("watts", "temperature_c", "kernels", "noisy", "run", "latency_cycles"),
)
LAST = ("outlier", "error")
LEAST_BYTES = 64  # a call that moves no more is a load


def rows(name: str, where: Sequence[str] = (), measured: Path | None = None) -> Rows:
    """Rows of the family or public table `name` that meet all conditions; measured ones say their machine.

    Rows that count bytes get the column `gbps`.
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
    found = [_with_rate(row) for row in found]
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


def _with_rate(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row and, where a call moves bytes, `gbps`: those read and written by its time.

    A chase moves a few; beside a loaded one the bytes are those of other multiprocessors (`stream_mbps`).
    """
    moved = (row.get("bytes_read") or 0) + (row.get("bytes_written") or 0)
    time_ns = row.get("median_ns") or (row.get("latency_ps") or 0) / 1000
    if moved <= LEAST_BYTES or not time_ns or "stream_mbps" in row:
        return dict(row)
    return {**row, "gbps": round(moved / time_ns, 3)}


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
    names = sorted((name for name in filled if name not in HIDDEN), key=lambda name: name in LAST)
    notes = list(dict.fromkeys(row["outlier"] for row in found if row.get("outlier")))
    cells = [[_cell(name, row.get(name), notes) for name in names] for row in found]
    worded = [at for at, name in enumerate(names) if any(isinstance(row.get(name), str) for row in found)]
    return table(names, cells, worded) + "".join(f"({at}) {note}\n" for at, note in enumerate(notes, 1))


def table(names: Sequence[str], cells: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Lines of plain text, a header first; columns `left` begin at the left, others end at the right."""
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (names, *cells)
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


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
