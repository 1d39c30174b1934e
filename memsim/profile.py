"""Machine files: a name or a path enters, a checked `Profile` or a `System` to replay on leaves.

A file may say `extends = "h200"` (a machine that comes with memsim) or `extends = "base.toml"` (relative
to the file); it is laid over that machine key by key, a number only as a whole: a new value never keeps
an old source. Single numbers can be set over all files (`--set`). All errors are one-line `ProfileError`s.
How the tables fit together is for `route`.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hwprofiles import machine_names, machine_path
from memsim.errors import ProfileError, cut, nearest, shown
from memsim.system import PROVENANCES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from memsim.profile_schema import Profile


MAX_FILE_BYTES = 1_000_000
MAX_DOTS = 500  # in a line: parsing a key takes the square of its parts
MAX_EXTENDS = 16  # files that extend one another
_REGULAR = "expected a TOML file of text, at most 1 MB"

_SET = "expected GROUP.NAME.KEY=VALUE, as in link.pcie.bandwidth=128 GB/s"
SET_SOURCE = "set on the command line"

SHARES_OF = {  # of a tier or a link: what of each bandwidth is reached
    "bandwidth": ("efficiency", "write_efficiency", "efficiency_out"),
    "write_bandwidth": ("write_efficiency",),
    "bandwidth_out": ("efficiency_out",),
}

# Faults that pydantic words for programmers, by its name for them: what was expected.
_NUMBER = '{ value = ..., provenance = "...", source = "..." }'
_EXPECTED = {
    "string_type": "text in quotes",
    "string_pattern_mismatch": "a name of at most 40 letters, digits, '-' and '_', such as hbm",
    "tuple_type": 'two nodes, such as ["gpu", "cpu"]',
    "too_long": 'two nodes, such as ["gpu", "cpu"]',
}


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

    from memsim.profile_schema import Profile

    try:
        return Profile.model_validate(table)
    except ValidationError as error:
        return [_worded(detail) for detail in sorted(error.errors(include_url=False), key=_telling)]
    except RecursionError:
        return ["nested too deeply; expected tables of numbers, [GROUP.NAME]"]


def overridden(table: dict[str, Any], text: str) -> dict[str, Any]:
    """A valid `table` with one key set, as `text` (GROUP.NAME.KEY=VALUE) says, or ProfileError."""
    from memsim.profile_schema import GROUPS, LEVELS, is_number

    path, equals, value = text.partition("=")
    parts = _parts(path)
    if not equals or len(parts) not in (3, 5):
        raise ProfileError(f"--set {shown(text)}: {_SET}")
    group, name, key, *level = parts
    where = f"--set {cut(path)}"
    if group not in (*GROUPS, "cost"):
        raise ProfileError(f"{where}: no group '{cut(group)}'; {nearest(group, [*GROUPS, 'cost'])}")
    names = table.get(group, {})
    _check_name(where, group, name, names, f"this machine has no [{group}.NAME]")
    keys = table["tier"] if group == "cost" else GROUPS[group].model_fields
    _check_key(where, key, keys)
    if (group, key) == ("tier", LEVELS):
        _check_level(where, name, level, names[name].get(LEVELS, {}))
    elif level:
        raise ProfileError(f"--set {shown(text)}: {_SET}")
    new = value_of(value)
    if is_number(parts):
        new = {"value": new, "provenance": "assumed", "source": SET_SOURCE}
    return _with_doubt(_replaced(table, parts, new), parts)


def _with_doubt(table: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The table, in which shares of a bandwidth that was set are no longer measured: it was another one."""
    group, name, key = path[:3]
    for share in SHARES_OF.get(key, ()) if group in ("tier", "link") else ():
        number = table[group][name].get(share)
        if number and number["provenance"] in ("measured", "calibrated"):
            source = f"{number['source']}; of another bandwidth"
            doubted = {**number, "provenance": "extrapolated", "source": source}
            table = _replaced(table, [group, name, share], doubted)
    return table


def _check_name(where: str, what: str, name: str, names: Iterable[str], none: str) -> None:
    if name not in (known := list(names)):
        raise ProfileError(f"{where}: no {what} '{cut(name)}'; {nearest(name, known) if known else none}")


def _check_key(where: str, key: str, keys: Iterable[str]) -> None:
    if key not in (known := list(keys)):
        raise ProfileError(f"{where}: unknown key; {nearest(key, known)}")


def _check_level(where: str, tier: str, level: Sequence[str], levels: Iterable[str]) -> None:
    """The two last parts of tier.NAME.translation.NAME.KEY."""
    from memsim.profile_schema import WalkTable

    if not level:
        raise ProfileError(f"{where}: holds tables; expected tier.{tier}.translation.NAME.KEY=VALUE")
    name, key = level
    _check_name(where, "level", name, levels, f"this machine has no [tier.{tier}.translation.NAME]")
    _check_key(where, key, WalkTable.model_fields)


def _replaced(table: dict[str, Any], path: Sequence[str], new: object) -> dict[str, Any]:
    """`table` with what stands at `path` replaced."""
    key, *below = path
    return {**table, key: _replaced(table[key], below, new) if below else new}


def _parts(path: str) -> list[str]:
    """The parts of GROUP.NAME.KEY; each may stand in quotes, as in a file: cost."2024".hbm."""
    parts = [part.strip() for part in path.split(".")]
    quoted = [len(part) > 1 and part[0] == part[-1] and part[0] in "\"'" for part in parts]
    return [part[1:-1] if marks else part for part, marks in zip(parts, quoted, strict=True)]


def value_of(text: str) -> object:
    """A value as a file would hold it: a number, a list, words in quotes or without."""
    if text.count(".") > MAX_DOTS:
        return text.strip()
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text


def _telling(detail: ErrorDetails) -> int:
    """Rank of a fault among those of a file: what explains the others comes first."""
    if detail["type"] == "model_type" and len(detail["loc"]) == 2:
        return 0  # [cache] for [cache.NAME]: its keys look like tables of the group
    return 1 if detail["type"] == "extra_forbidden" else 2  # a misspelt key is missing under its right name


def _worded(detail: ErrorDetails) -> str:
    """One fault of a file in one line: where, what was found, what was expected."""
    loc = detail["loc"]
    where = ".".join(cut(str(part)) for part in loc if part != "[key]")
    match detail["type"]:
        case "extra_forbidden" if loc[-1] == "value":
            group = ".".join(map(str, loc[:-2]))
            return f"{group}: a number stands where a name should; write [{group}.NAME] above its keys"
        case "extra_forbidden":
            return f"{where}: unknown key; {nearest(str(loc[-1]), _keys_beside(loc))}"
        case "missing" if "between" in loc:
            return f"{where}: missing, expected {_EXPECTED['tuple_type']}"
        case "missing":
            return f"{where}: missing; {_remedy(loc)}"
        case "value_error":
            return f"{where}: {detail['ctx']['error']}"
        case "literal_error" if loc[-1] == "provenance":
            word = detail["input"] if isinstance(detail["input"], str) else ""
            return f"{where}: found {shown(detail['input'])}; {nearest(word, PROVENANCES)}"
        case "literal_error":
            return f"{where}: found {shown(detail['input'])}; choose one of: {', '.join(_words_of(loc))}"
        case "string_too_short":
            return f"{where}: is empty; write some words"
        case "too_long" if loc[-1] != "between":
            most = detail["ctx"]["max_length"]
            return f"{where}: holds {len(detail['input'])} tables; expected {most} at most"
        case kind:
            expected = _table_expected(loc) if kind in ("dict_type", "model_type") else _EXPECTED.get(kind)
            return f"{where}: found {shown(detail['input'])}, expected {expected or detail['msg']}"


def _table_expected(loc: tuple[int | str, ...]) -> str:
    """What should stand at `loc`, where something else than a table stands."""
    from memsim.profile_schema import LEVELS

    path = [str(part) for part in loc]
    if len(path) > 2 and LEVELS in path[2:4]:
        name = f"[{'.'.join(path[:3])}.NAME]"
        return f"{'tables' if len(path) == 3 else 'a table'}, {name}" if len(path) < 5 else _NUMBER
    if len(path) > 2:
        return _NUMBER
    return f"a table {'of tables' if len(path) == 1 else 'with a name of its own'}, such as [tier.hbm]"


def _remedy(loc: tuple[int | str, ...]) -> str:
    from memsim.profile_schema import table_at
    from memsim.quantity import Quantity

    path = [str(part) for part in loc]
    if len(path) > 2 and table_at(path[:-1]) is Quantity:
        return "every number needs it next to its value, so that a reader can judge it"
    if len(path) > 2:
        return f"every [{path[0]}.NAME{f'.{path[2]}.NAME' if path[2:-1] else ''}] needs it"
    add = f", add [{loc[0]}.NAME]" if loc[0] in ("initiator", "cache", "tier") else ""
    return f"every machine needs it{add}"


def _words_of(loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """The words that the key at `loc` may hold."""
    from memsim.profile_schema import GROUPS

    return get_args(GROUPS[str(loc[0])].model_fields[str(loc[-1])].annotation)


def _keys_beside(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that are known in the table that the last part of `loc` lies in."""
    from memsim.profile_schema import Profile, table_at

    if len(loc) == 1:
        return [*Profile.model_fields, "extends"]
    return list(table_at([str(part) for part in loc[:-1]]).model_fields)
