"""Rows of the CSV files that `validation.measure` writes, ready to be shown.

Enters: the folder of one machine (columns in docs/measurements.md). Leaves: for each family the newest row of
each point without an error; words stay words, numbers are floats, empty cells are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from validation.measure import points
from validation.measure import rows as csv_rows

Value = float | str
Row = Mapping[str, Value]


@dataclass(frozen=True)
class FamilyRows:
    """The good rows of one family on one machine; words stay words, numbers are floats."""

    name: str
    what: str
    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    failed: int = 0
    gpus: int = 1


def read_machine(folder: Path, campaign: Path = points.CAMPAIGN) -> list[FamilyRows]:
    """Every family of a machine's folder, in name order: for each point its newest row without an error."""
    known = _known(campaign)
    paths = sorted(path for path in folder.glob("*.csv") if path.stem != "captured")
    return [_family(path, known.get(path.stem)) for path in paths]


def read_family(folder: Path, name: str, campaign: Path = points.CAMPAIGN) -> FamilyRows | None:
    """One family of a machine's folder as `read_machine` gives it; None where it was not measured."""
    path = folder / f"{name}.csv"
    return _family(path, _known(campaign).get(name)) if path.is_file() else None


def _known(campaign: Path) -> dict[str, points.Family]:
    """The families of a campaign by name."""
    return {family.name: family for family in points.read_campaign(campaign)}


def _family(path: Path, family: points.Family | None) -> FamilyRows:
    found = _newest(path, family)
    good = tuple(_typed(row) for row in found if not row["error"] and row["median_ns"])
    what, gpus = (family.what, family.gpus) if family else ("", 1)
    return FamilyRows(path.stem, what, _axes(found, family), good, len(found) - len(good), gpus)


def read_rows(folder: Path, name: str, campaign: Path = points.CAMPAIGN) -> list[Row]:
    """The newest row of each point of one family, failed ones too; none where it was not measured."""
    newest = _newest(folder / f"{name}.csv", _known(campaign).get(name))
    return [_typed(row) for row in newest]


def _axes(found: Sequence[Mapping[str, str]], family: points.Family | None) -> tuple[str, ...]:
    """The axes of a family; of one that no campaign file has, all columns before the split."""
    if family:
        return tuple(family.axes)
    names = list(found[0]) if found else []
    return tuple(names[: names.index("split")] if "split" in names else ())


def _newest(path: Path, family: points.Family | None) -> list[dict[str, str]]:
    """For each point its newest row without an error, else its first."""
    raw = csv_rows.read(path)
    axes = _axes(raw, family)
    newest: dict[tuple[str, ...], dict[str, str]] = {}
    for row in raw:
        key = tuple(row[axis] for axis in axes)
        if not row["error"] or key not in newest:
            newest[key] = row
    return list(newest.values())


def _typed(row: Mapping[str, str]) -> Row:
    """Numbers as floats; empty cells are left out."""
    words = ("split", "error", "run")
    return {name: text if name in words else _number(text) for name, text in row.items() if text}


def _number(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text


def number(row: Row, name: str) -> float:
    """A column as a number; 0 where it is empty or holds a word."""
    value = row.get(name, 0.0)
    return value if isinstance(value, float) else 0.0


def device(folder: Path, family: FamilyRows) -> str:
    """What run.json calls the GPU of the family's rows, or the CPU where none was needed; else the folder's
    name.
    """
    path = folder / "run.json"
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = [runs[row["run"]] for row in family.rows if row.get("run") in runs]
    run = known[-1] if known else {}
    if not family.gpus and run.get("cpu"):
        return f"{run['cpu']}, {run.get('cpus')} CPUs"
    return str(run.get("device") or folder.name)
