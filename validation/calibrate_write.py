"""What was found goes into its files: each number's own line changes, and nothing else.

Enters: `Found`s. Leaves: machine files and that of the kernels' costs, each replaced whole in one step once
all its lines are ready, so that an interrupted run leaves it as it was. What a file says is parsed before
and after: only what was meant to may differ.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memsim import output
from memsim.errors import OutputError, reason
from memsim.profile_schema import table_at
from validation.calibrate import Found
from validation.calibrate_values import toml
from workloads import costs


def check_writable(paths: Sequence[Path]) -> None:
    """OutputError if a file's folder cannot be written: asked before a long run, not after it."""
    for path in paths:
        output.check_writable(path.parent)


def write(found: Sequence[Found]) -> list[Path]:
    """Put all that the points tell into their files; those that changed. OutputError if one cannot be."""
    ready = {}
    for path in dict.fromkeys(each.constant.held_by for each in found):
        old = new = _read(path)
        for each in found:
            if each.told and each.constant.held_by == path:
                new = replaced(new, each, path)
        if new != old:
            ready[path] = new
    for path, new in ready.items():  # none is touched before all are known to go
        output.write_files(path.parent, {path.name: new})
    return list(ready)


def _read(path: Path) -> str:
    """The text with its line ends as they are."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(f"{path}: cannot be read: {reason(error)}; expected a file of constants") from None


def replaced(text: str, found: Found, path: Path) -> str:
    """`text` with the line of one constant anew, or with a line more in its table if it has none."""
    *table, key = found.constant.path.split(".")
    entry = {"value": found.value, "provenance": found.provenance, "source": found.source}
    inline = ", ".join(f"{name} = {toml(value)}" for name, value in entry.items())
    lines = text.splitlines(keepends=True)
    if found.constant.of_kernel and _begin(lines, table) is None:  # a family's first constant
        lines += ["\n", f"[{'.'.join(table)}]\n"]
    new = _put(lines, table, key, f"{key} = {{ {inline} }}")
    if new is None or _parsed(new) != _with(_parsed(text), [*table, key], entry):
        raise OutputError(
            f"{path}: {found.constant.path} has no line of its own; expected {key} = {{ value = ... }} "
            f"in one line under [{'.'.join(table)}]; write it so"
        )
    return new


def _put(lines: list[str], table: Sequence[str], key: str, line: str) -> str | None:
    """The lines with `line` in place of the key's, or after the key before it; None: no such table."""
    begin = _begin(lines, table)
    if begin is None:
        return None
    rest = range(begin + 1, len(lines))
    end = next((at for at in rest if lines[at].lstrip().startswith("[")), len(lines))
    last, keys = begin, costs.KEYS if table[0] == costs.GROUP else tuple(table_at(table).model_fields)
    for at in range(begin + 1, end):
        match = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", lines[at])
        if match is None:
            continue
        if match[1] == key:
            return "".join([*lines[:at], _renewed(lines[at], line), *lines[at + 1 :]])
        if match[1] not in keys or keys.index(match[1]) < keys.index(key):
            last = at
    ending = lines[last][len(lines[last].rstrip("\r\n")) :] or "\n"
    before = [*lines[:last], lines[last].rstrip("\r\n") + ending]
    return "".join([*before, line + ending, *lines[last + 1 :]])


def _begin(lines: Sequence[str], table: Sequence[str]) -> int | None:
    """The line that opens a table, if one does."""
    name = r"\s*\.\s*".join(map(re.escape, table))
    header = re.compile(rf"\s*\[\s*{name}\s*\]\s*(#.*)?")
    return next((at for at, each in enumerate(lines) if header.fullmatch(each.strip("\r\n"))), None)


def _renewed(old: str, line: str) -> str:
    """The new line with the old one's indent, its comment and its end."""
    body = old.rstrip("\r\n")
    indent = body[: len(body) - len(body.lstrip())]
    for close in (at for at, letter in enumerate(body) if letter == "}"):
        if _parses(body[: close + 1]):
            return indent + line + body[close + 1 :] + old[len(body) :]
    return indent + line + old[len(body) :]


def _parses(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"))
    except tomllib.TOMLDecodeError:
        return {}


def _with(table: dict[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    """A table with what stands at a path replaced or added."""
    key, *below = path
    return {**table, key: _with(table.get(key, {}), below, value) if below else value}
