"""What `memsim trace` prints for people: the plain data of `trace_show` as tables and lines.

Dicts and lists enter, what rich prints or plain lines leave. What is nested too deep for a table (the
sources of a trace's own numbers) is named with its size; `--json` prints it whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memsim.report import plain_table


def facts(values: Mapping[str, Any]) -> Table:
    """Names and values in two columns."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name, Text(_words(value)))
    return table


def info(values: Mapping[str, Any]) -> RenderableType:
    """What a trace holds: its facts, then a table of region kinds and one of kernel families."""
    tables = {"kinds": "region kind", "families": "kernel family"}
    parts: list[RenderableType] = [facts({name: values[name] for name in values if name not in tables})]
    for name, heading in tables.items():
        if values.get(name):
            parts += [Text(), _counts(heading, values[name])]
    return Group(*parts)


def rows(values: Sequence[Mapping[str, Any]]) -> str:
    """Rows of a trace, one a line: what it is, then its columns as name=value."""
    return "".join(f"{' '.join(_cells(row))}\n" for row in values)


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{row.get('record', '?'):<8}"
    for name, value in row.items():
        if name != "record":
            listed = isinstance(value, list)
            yield f"{name}={'[' + ' '.join(map(str, value)) + ']' if listed else value}"


def _counts(heading: str, groups: Mapping[str, Mapping[str, int]]) -> Table:
    columns = list(next(iter(groups.values())))
    table = plain_table(heading, *(column.replace("_", " ") for column in columns))
    for name, counts in groups.items():
        table.add_row(name, *(f"{counts[column]:,}" for column in columns))
    return table


def _words(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(part, (Mapping, list, tuple)) for part in value)
        return f"{len(value)} (see --json)" if nested else ", ".join(_words(part) for part in value) or "-"
    return str(value)
