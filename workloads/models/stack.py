"""The order of a model's layers, written as "6 x (3 kda, mla), 2 kda, mla".

A name is one layer, "3 kda" three of them, "6 x (...)" what stands in the brackets six times over. What
enters is such a text, what leaves the names in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MOST_LAYERS = 10_000
_TOKEN = re.compile(r"\s*([0-9]+|[a-z][a-z0-9.-]*|[(),])")


class Wrong(Exception):
    """What a text of layers says that cannot be."""


def layers_of(text: str) -> tuple[str, ...]:
    """Names of all layers in order; `Wrong` where the text is not of the form above."""
    tokens = _tokens(text)
    names = _list(tokens)
    if tokens:
        raise Wrong(f"'{tokens[0]}' stands where the text should end")
    return names


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Wrong(f"'{text[at:].strip()[:20]}' is neither a name nor a number")
        tokens.append(found[1])
        at = found.end()
    return tokens


def _list(tokens: list[str]) -> tuple[str, ...]:
    names = _item(tokens)
    while tokens and tokens[0] == ",":
        del tokens[0]
        names += _item(tokens)
        if len(names) > MOST_LAYERS:
            raise Wrong(f"there are more than {MOST_LAYERS:,} layers")
    return names


def _item(tokens: list[str]) -> tuple[str, ...]:
    count = int(tokens.pop(0)[:9]) if tokens and tokens[0].isdigit() else 1
    if tokens[:2] == ["x", "("]:
        del tokens[:2]
        names = _list(tokens)
        if not tokens or tokens.pop(0) != ")":
            raise Wrong("a bracket is not closed")
    elif tokens and tokens[0] not in ("(", ")", ","):
        names = (tokens.pop(0),)
    else:
        raise Wrong(f"a name is missing before {tokens[0]!r}" if tokens else "a name is missing at the end")
    if not 0 < count * len(names) <= MOST_LAYERS:
        raise Wrong(f"there are {count * len(names):,} layers of one run; expected 1 to {MOST_LAYERS:,}")
    return names * count


def replaced(names: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    """The same with every `old` in the place of a `new`."""
    return tuple(new if name == old else name for name in names)


def in_ratio(names: Sequence[str], parts: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Layers called like one of `parts` dealt anew: so many of the first, then of the second, and again."""
    cycle = [name for name, count in parts for _ in range(count)]
    found, at = [], 0
    for name in names:
        if name in cycle:
            name, at = cycle[at % len(cycle)], at + 1
        found.append(name)
    return tuple(found)
