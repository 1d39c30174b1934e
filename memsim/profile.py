"""Machine files: a name or a path enters, a checked `Profile` or a `System` to replay on leaves.

A file may say `extends = "h200"` (a machine that comes with memsim) or `extends = "base.toml"` (relative
to the file); it is laid over that machine key by key, a number only as a whole: a new value never keeps
an old source. Single numbers can be set over all files (`profile_set`). Errors are one-line `ProfileError`s.
How the tables fit together is for `route`.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwprofiles import machine_names, machine_path
from memsim.errors import ProfileError, cut, nearest, shown
from memsim.profile_set import MAX_DOTS, overridden
from memsim.system import PROVENANCES

if TYPE_CHECKING:
    from memsim.profile_schema import Profile


MAX_FILE_BYTES = 1_000_000
MAX_EXTENDS = 16  # files that extend one another
_REGULAR = "expected a TOML file of text, at most 1 MB"


def load_machine(machine: str | Path, overrides: Sequence[str] = ()) -> Profile:
    """The machine called `machine`, or the machine file at that path (a word with '/' or '.toml').

    overrides   numbers and words set over the file, each GROUP.NAME.KEY=VALUE; `assumed`, all of them

    ProfileError: unknown name, unreadable file, unknown key, missing key, wrong value or unit.
    """
    path = locate(machine)
    table = read_table(path)
    profile = _passed(table, f"{path}: ")
    if not overrides:
        return profile
    for text in overrides:
        table = overridden(table, text)
    return _passed(table, "--set ")


def _passed(table: dict[str, Any], place: str) -> Profile:
    found = check(table)
    if isinstance(found, list):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ProfileError(f"{place}{found[0]}{more}")
    return found


def read_table(path: Path) -> dict[str, Any]:
    """What a machine file says, laid over all that it extends; ProfileError if it cannot be read."""
    try:
        return _merged(path, ())
    except RecursionError:
        raise ProfileError(f"{path}: nested too deeply; expected tables of numbers, [GROUP.NAME]") from None


def lineage(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """A machine file and all that it extends, nearest first, each with what it says by itself."""
    found = []
    base: str | None = ""
    while base is not None:
        path = _base_path(path, base) if base else path
        table = _read(path)
        found.append((path.resolve(), table))
        base = table.get("extends")
    return found


def locate(machine: str | Path) -> Path:
    """The file of a machine given by name or path; ProfileError for a name that is not known."""
    if isinstance(machine, Path) or "/" in machine or os.sep in machine or machine.endswith(".toml"):
        return Path(machine)
    try:
        return machine_path(machine)
    except KeyError:
        remedy = f"{nearest(machine, machine_names())} (or give the path of a .toml file)"
        raise ProfileError(f"unknown machine '{cut(machine)}'; {remedy}") from None


def worst(provenances: list[str]) -> str:
    """The least trusted of `provenances`; `measured` if there are none."""
    return max(provenances, key=PROVENANCES.index, default=PROVENANCES[0])


def _merged(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    """The file at `path` laid over what it extends."""
    table = _read(path)
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise ProfileError(f"{path}: extends is {shown(base)}; expected the name of a machine or a path")
    if "\0" in base:
        raise ProfileError(f"{path}: extends is {shown(base)}; expected the name of a machine or a path")
    base_path = _base_path(path, base)
    chain = (*extended_by, path.resolve())
    if base_path.resolve() in chain:
        raise ProfileError(f"{path}: extends '{base}', which extends this file again; remove one of the two")
    if len(chain) >= MAX_EXTENDS:
        found = f"is file {MAX_EXTENDS} of a chain of 'extends' and extends '{cut(base)}'"
        raise ProfileError(f"{path}: {found}; expected at most {MAX_EXTENDS} files; merge some of them")
    for key in ("name", "title"):
        if key not in table:
            remedy = f'a machine that extends another needs its own, add {key} = "..."'
            raise ProfileError(f"{path}: no {key}; {remedy}")
    return _overlay(_merged(base_path, chain), table)


def _base_path(path: Path, base: str) -> Path:
    if "/" in base or base.endswith(".toml"):
        return path.parent / base
    try:
        return locate(base)
    except ProfileError as error:
        raise ProfileError(f"{path}: extends: {error}") from None


def _overlay(base: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """`table` over `base`; numbers (tables with a value) and lists are replaced as a whole."""
    merged = dict(base)
    for key, value in table.items():
        below = base.get(key)
        if _is_table(value) and _is_table(below):
            merged[key] = _overlay(base[key], value)
        else:
            merged[key] = value
    return merged


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and "value" not in value


def _read(path: Path) -> dict[str, Any]:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise ProfileError(f"{path}: is a device, pipe or socket; {_REGULAR}")
        if found.st_size > MAX_FILE_BYTES:
            raise ProfileError(f"{path}: has {found.st_size:,} bytes; {_REGULAR}")
        text = path.read_text(encoding="utf-8-sig")  # editors may begin it with a mark
        if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
            raise ProfileError(f"{path}: more than {MAX_DOTS} dots in a line; expected keys like tier.hbm")
        return tomllib.loads(text)
    except FileNotFoundError:
        remedy = "'memsim machines list' names the machines at hand"
        raise ProfileError(f"{path}: no such machine file; {remedy}") from None
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path}: not valid TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not a text file in UTF-8: byte {error.start} is wrong") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ProfileError(f"{path}: cannot be read: {cut(str(error))}; correct it") from None
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}; {_REGULAR}") from None


def check(table: dict[str, Any]) -> Profile | list[str]:
    """The machine of a table as TOML gives it, or all faults of its keys and values, telling ones first."""
    from pydantic import ValidationError

    from memsim.profile_faults import telling, worded
    from memsim.profile_schema import Profile

    try:
        return Profile.model_validate(table)
    except ValidationError as error:
        return [worded(detail) for detail in sorted(error.errors(include_url=False), key=telling)]
    except RecursionError:
        return ["nested too deeply; expected tables of numbers, [GROUP.NAME]"]
