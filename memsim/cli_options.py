"""Options that several commands share, each spelt once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

import typer

from memsim.errors import UsageError
from memsim.output import named

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Machine = Annotated[str, typer.Option("--machine", help="A machine's name, or the path of a .toml file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="GROUP.NAME.KEY=VALUE",
        help='Change a number of the machine: --set link.pcie.bandwidth="128 GB/s". May be repeated.',
    ),
]
RunOn = Annotated[
    list[str] | None,
    typer.Option(
        "--run-on",
        metavar="FAMILY=WHERE",
        help="Run a kernel family on another initiator of the machine, or on the one beside a tier: "
        "dsa-index=cxl. May be repeated.",
    ),
]
Place = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        metavar="WHAT=TIER",
        help="Put a region kind, a region or layer:A-B into a tier: kv=host, or kv=hbm:3,host:1. "
        "May be repeated; what is not named goes to the machine's first tier.",
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Draw slow requests of tiers that have a tail; without it none is slow.")
]
Engine = Annotated[
    Literal["fast", "reference"], typer.Option(help="The two give equal results; reference is slow.")
]
Quantum = Annotated[str, typer.Option(metavar="SIZE", help="Largest size of a request.")]
Bound = Annotated[
    bool, typer.Option("--bound/--no-bound", help="Find what binds each kernel family (extra runs).")
]
EXPLAIN = "--explain"
EXPLAINED = 3  # kernels, where no number follows
Explain = Annotated[
    int,
    typer.Option(
        EXPLAIN,
        min=0,
        metavar="[N]",
        help="Divide the times of the N slowest kernels, 3 if no number follows, and say what 10% more of "
        "each resource would save (some dozen replays each).",
    ),
]
OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", parser=named, metavar="DIR", help="Also write result, table and inputs here."
    ),
]


def comma_words(text: str) -> list[str]:
    """Words between commas; UsageError for none."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"'{text}': an empty word; expected words with commas between them")
    return words


def with_counts(words: Sequence[str]) -> list[str]:
    """A command line whose `--explain` without a number has one."""
    return [
        f"{EXPLAIN}={EXPLAINED}" if word == EXPLAIN and not after.isdecimal() else word
        for word, after in zip_longest(words, words[1:], fillvalue="")
    ]
