"""A batch whose sequences differ in length, from a file: tokens of one a line, or a column of a CSV."""

from __future__ import annotations

from pathlib import Path

from memsim.errors import UsageError, reason
from memsim.units import parse_tokens

COLUMN = "context"


def contexts_of(path: Path) -> list[int]:
    """Tokens of each sequence, in the order of the lines: 131072 or 128K; blank lines are left away.

    UsageError for a file that cannot be read, and for a line that holds no number, by its place.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--contexts {path}: cannot be read: {reason(error)}; name another file") from None
    rows = [(number, line.split(",")) for number, line in enumerate(lines, 1) if line.strip()]
    column = 0
    if rows and not rows[0][1][0].strip()[:1].isdigit():
        names = [name.strip() for name in rows.pop(0)[1]]
        if COLUMN not in names:
            found = ", ".join(names)
            raise UsageError(f"{path}:1: expected tokens, or a column '{COLUMN}'; found: {found}")
        column = names.index(COLUMN)
    if not rows:
        raise UsageError(f"--contexts {path}: no sequence; write the tokens of one a line")
    return [_tokens(path, number, words[column : column + 1]) for number, words in rows]


def _tokens(path: Path, number: int, words: list[str]) -> int:
    try:
        return parse_tokens("".join(words).strip())
    except UsageError as error:
        raise UsageError(f"{path}:{number}: {error}") from None
