"""A TOML file whose mistakes are worded: one line that names the file, the place and what is expected."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memsim.errors import UsageError, nearest

MOST_BYTES = 100_000


class File:
    """A parsed file that words its mistakes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UsageError(f"{path}: more than {MOST_BYTES:,} bytes; a model's file has some thousand")
            self.table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: not TOML: {error}") from None

    def wrong(self, place: str, found: str) -> UsageError:
        """What is said of a mistake at a place in the file."""
        more = "" if found.endswith("?") else "; see docs/models.md"
        return UsageError(f"{self.path}: {place} {found}{more}")

    def keys(self, place: str, table: Mapping[str, Any], known: Iterable[str], needed: Iterable[str]) -> None:
        """Refuse unknown and missing keys of a table."""
        known = tuple(known)
        for key in table:
            if key not in known:
                raise self.wrong(place, f"has an unknown key '{key}'; {nearest(key, known)}")
        for key in needed:
            if key not in table:
                raise self.wrong(place, f"lacks '{key}'")

    def typed(self, place: str, value: object, expected: type, least: int = 0) -> Any:
        """`value`, if it is of the type that is expected, and not below `least`."""
        words = {
            int: f"a whole number from {least} on",
            str: "a text",
            bool: "true or false",
            dict: "a table",
            list: "a list of texts",
        }
        right = type(value) is expected and (not isinstance(value, int) or value >= least)
        if isinstance(value, list):
            right = all(type(word) is str for word in value)
        if not right or value == "":
            raise self.wrong(place, f"is {value!r}; expected {words[expected]}")
        return value

    def table_at(self, key: str) -> dict[str, Any]:
        """A top-level table; an empty one where the file has none."""
        return dict(self.typed(f"[{key}]", self.table.get(key, {}), dict))
