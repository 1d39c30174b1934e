"""Faults of a machine file's keys and values in one line each: where, what was found, what was expected.

Enters what pydantic says of a table, which words it for programmers; a remedy is named where one is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from memsim.errors import cut, nearest, shown
from memsim.system import PROVENANCES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Faults that pydantic words for programmers, by its name for them: what was expected.
_NUMBER = '{ value = ..., provenance = "...", source = "..." }'
_EXPECTED = {
    "string_type": "text in quotes",
    "string_pattern_mismatch": "a name of at most 40 letters, digits, '-' and '_', such as hbm",
    "tuple_type": 'two nodes, such as ["gpu", "cpu"]',
    "too_long": 'two nodes, such as ["gpu", "cpu"]',
}


def telling(detail: ErrorDetails) -> int:
    """Rank of a fault among those of a file: what explains the others comes first."""
    if detail["type"] == "model_type" and len(detail["loc"]) == 2:
        return 0  # [cache] for [cache.NAME]: its keys look like tables of the group
    return 1 if detail["type"] == "extra_forbidden" else 2  # a misspelt key is missing under its right name


def worded(detail: ErrorDetails) -> str:
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
