"""Single numbers of a machine set over its files: `--set GROUP.NAME.KEY=VALUE`.

Enters the valid table of a machine and the text; a new table leaves, in which the number is assumed, or a
one-line `ProfileError`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from memsim.errors import ProfileError, cut, nearest, shown

MAX_DOTS = 500  # in a line: parsing a key takes the square of its parts
_SET = "expected GROUP.NAME.KEY=VALUE, as in link.pcie.bandwidth=128 GB/s"
SET_SOURCE = "set on the command line"

SHARES_OF = {  # of a tier or a link: what of each bandwidth is reached
    "bandwidth": ("efficiency", "write_efficiency", "efficiency_out"),
    "write_bandwidth": ("write_efficiency",),
    "bandwidth_out": ("efficiency_out",),
}


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
