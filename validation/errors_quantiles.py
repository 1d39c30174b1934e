"""`quantiles.toml`: how far predictions of each family are off, for intervals of what is projected.

Enters: the error table of held-out points. Leaves: the file with these families renewed and all others as
they are, replaced whole. Errors are predicted / measured - 1; a quantile lies on the line between two points.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memsim import output
from validation.errors import Family
from validation.measure.rows import percentile
from validation.quantiles import QUANTILES

LOW, HIGH = 0.05, 0.95
HEADER = """\
# How far predictions are off: 5 and 95 % quantiles of predicted / measured - 1 over held-out points, by the
# folder of measurements and the family, and the clocks (MHz) that were logged. Written by `memsim validate
# --write`, which renews the families that it predicted; never edited by hand.
"""

Entry = Mapping[str, Any]


def entry(family: Family) -> Entry:
    """What the file says of a family."""
    errors = [point.error for point in family.points]
    found: dict[str, Any] = {
        "points": len(errors),
        "low": round(percentile(errors, LOW), 4),
        "high": round(percentile(errors, HIGH), 4),
    }
    return found if family.sm_mhz is None else {**found, "sm_mhz": [round(mhz) for mhz in family.sm_mhz]}


def text(folders: Mapping[str, Mapping[str, Entry]]) -> str:
    """The file that holds these entries, by folder and family."""
    lines = [HEADER]
    for folder, families in sorted(folders.items()):
        for name, held in sorted(families.items()):
            lines.append(f'[{folder}."{name}"]')
            lines += [f"{key} = {value}" for key, value in held.items()]
            lines.append("")
    return "\n".join(lines)


def write(found: Sequence[Family], folder: str, path: Path = QUANTILES) -> Path:
    """Renew the entries of some families of a folder; OutputError where the file cannot be written."""
    held: dict[str, dict[str, Entry]] = {}
    if path.is_file():
        held = tomllib.loads(path.read_text(encoding="utf-8"))
    held.setdefault(folder, {}).update({family.name: entry(family) for family in found})
    output.write_files(path.parent, {path.name: text(held)})
    return path
