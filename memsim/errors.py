"""Every error that a user can cause, and the exit code that the command line gives it.

    MemsimError            1  an internal failure, worded
    ├── UsageError         2  a wrong option, name or value
    │   ├── TraceError     2  a trace file that cannot be read or breaks a rule
    │   ├── ProfileError   2  a machine file that cannot be read or makes no sense
    │   └── OutputError    2  an output that cannot be written
    ├── CheckFailed        3  a check that the user asked for failed on valid input
    ├── DoesNotFit         5  the data do not fit the memory that they were given
    └── MissingExtra       6  an optional package or a device is missing

A message names the place, what was found, what was expected and what to do: one line.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MOST_CHARACTERS = 80  # of a user's word in a message
_MOST_NAMES = 12


class MemsimError(Exception):
    """Base of all errors that are worded for the user."""

    exit_code = 1


class UsageError(MemsimError):
    """The user's words, options or files are wrong."""

    exit_code = 2


class TraceError(UsageError):
    """A trace file cannot be read, or a row of it breaks a rule."""


class ProfileError(UsageError):
    """A machine file cannot be read, or what it says makes no sense."""


class OutputError(UsageError):
    """An output file or folder cannot be written."""


class CheckFailed(MemsimError):
    """A check that the user asked for failed on valid input."""

    exit_code = 3


class DoesNotFit(MemsimError):
    """The regions of a trace do not fit the tiers that they were placed in."""

    exit_code = 5


class MissingExtra(MemsimError):
    """An optional package or a device is missing."""

    exit_code = 6


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the likely one, else the first dozen of them."""
    names = sorted(known)
    same = [name for name in names if name.casefold() == word.casefold()]
    close = same or get_close_matches(word[:_MOST_CHARACTERS], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"choose one of: {', '.join(names[:_MOST_NAMES])}{more}"


def reason(error: Exception) -> str:
    """Why a file could not be read or written, in the system's words without its number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def cut(word: str, most: int = _MOST_CHARACTERS) -> str:
    """`word` as a message shows it: its beginning where it is long."""
    return word if len(word) <= most else f"{word[: most - 3]}..."


def shown(value: object, most: int = _MOST_CHARACTERS) -> str:
    """Any value as a message shows it: on one line, not too long. Never fails."""
    try:
        return cut(repr(value), most)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists in lists
        return "a value that is too long to show"
