"""Machine files: a name or a path enters, a checked `Profile` or a `System` to replay on leaves.

A file may say `extends = "h200"` (a machine that comes with memsim) or `extends = "base.toml"` (relative
to the file); it is laid over that machine key by key, a number only as a whole: a new value never keeps
an old source. All errors are one-line `ProfileError`s. The route to a tier is for `route`.
"""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwprofiles import machine_names, machine_path
from memsim.errors import ProfileError, cut, nearest, shown
from memsim.system import PROVENANCES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from memsim.profile_schema import Profile


MAX_FILE_BYTES = 1_000_000
MAX_EXTENDS = 16  # files that extend one another
_REGULAR = "expected a TOML file of text, at most 1 MB"

# Faults that pydantic words for programmers, by its name for them: what was expected.
_EXPECTED = {
    "dict_type": "a table of tables, such as [tier.hbm]",
    "model_type": "a table with a name of its own, such as [tier.hbm]",
    "string_type": "text in quotes",
    "string_pattern_mismatch": "a name of letters, digits, '-' and '_', such as hbm",
    "tuple_type": 'two nodes, such as ["gpu", "cpu"]',
    "too_long": 'two nodes, such as ["gpu", "cpu"]',
}


def load_machine(machine: str | Path) -> Profile:
    """The machine called `machine`, or the machine file at that path (a word with '/' or '.toml').

    ProfileError: unknown name, unreadable file, unknown key, missing key, wrong value or unit.
    """
    path = locate(machine)
    try:
        return _checked(_merged(path, ()), path)
    except RecursionError:
        raise ProfileError(f"{path}: nested too deeply; expected tables of numbers, [GROUP.NAME]") from None


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
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors may begin it with a mark
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


def _checked(table: dict[str, Any], path: Path) -> Profile:
    from pydantic import ValidationError

    from memsim.profile_schema import Profile

    try:
        return Profile.model_validate(table)
    except ValidationError as error:
        details = sorted(error.errors(include_url=False), key=_telling)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise ProfileError(f"{path}: {_worded(details[0])}{more}") from None


def _telling(detail: ErrorDetails) -> int:
    """Rank of a fault among those of a file: what explains the others comes first."""
    if detail["type"] == "model_type" and len(detail["loc"]) == 2:
        return 0  # [cache] for [cache.NAME]: its keys look like tables of the group
    return 1 if detail["type"] == "extra_forbidden" else 2  # a misspelt key is missing under its right name


def _worded(detail: ErrorDetails) -> str:
    """One fault of a file in one line: where, what was found, what was expected."""
    where = ".".join(cut(str(part)) for part in detail["loc"] if part != "[key]")
    match detail["type"]:
        case "extra_forbidden" if len(detail["loc"]) == 3 and detail["loc"][-1] == "value":
            group = detail["loc"][0]
            return f"{group}: a number stands where a name should; write [{group}.NAME] above its keys"
        case "extra_forbidden":
            return f"{where}: unknown key; {nearest(str(detail['loc'][-1]), _keys_beside(detail['loc']))}"
        case "missing":
            return f"{where}: missing; every machine needs it{_remedy(detail['loc'])}"
        case "value_error":
            return f"{where}: {detail['ctx']['error']}"
        case "literal_error":
            word = detail["input"] if isinstance(detail["input"], str) else ""
            return f"{where}: found {shown(detail['input'])}; {nearest(word, PROVENANCES)}"
        case "string_too_short":
            return f"{where}: is empty; write some words"
        case kind:
            expected = _EXPECTED.get(kind, "")
            if kind == "model_type" and len(detail["loc"]) > 2:
                expected = '{ value = ..., provenance = "...", source = "..." }'
            return f"{where}: found {shown(detail['input'])}, expected {expected or detail['msg']}"


def _remedy(loc: tuple[int | str, ...]) -> str:
    if len(loc) >= 4:
        return " next to its value, so that a reader can judge the number"
    return f", add [{loc[0]}.NAME]" if len(loc) == 1 and loc[0] in ("initiator", "cache", "tier") else ""


def _keys_beside(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that are known in the table that the last part of `loc` lies in."""
    from memsim import profile_schema as schema

    if len(loc) == 1:
        return [*schema.Profile.model_fields, "extends"]
    if len(loc) >= 4:
        return list(schema.Quantity.model_fields)
    groups: dict[str, type[schema.Table]] = {
        "initiator": schema.InitiatorTable,
        "cache": schema.CacheTable,
        "tier": schema.TierTable,
        "link": schema.LinkTable,
    }
    return list(groups[str(loc[0])].model_fields)
