"""Calibrated constants as a table of plain text and as a JSON document; shares in the document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validation import show
from validation.calibrate import Found

NAMES = ("constant", "file", "now", "found", "before", "after", "held out", "method", "by", "")
NOTES = (
    "before, after: mean absolute error of the points: of their times, or (direct) of what each says\n"
    "held out: points of the family that no constant has seen\n"
)


def text(found: Sequence[Found]) -> str:
    """A row per constant."""
    table: str = show.table(NAMES, [_row(each) for each in found], left=(0, 1, 7, 8, 9))
    return table + NOTES


def _row(each: Found) -> list[str]:
    constant = each.constant
    value = _said(each.value) if each.told else "-"
    return [
        *(constant.path, constant.file, _said(each.now), value, _share(each.before), _share(each.after)),
        *(str(constant.held_out), constant.method, f"{constant.family}: {constant.named}", each.note),
    ]


def _said(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def document(found: Sequence[Found], machine: str, written: Sequence[Path] = ()) -> dict[str, Any]:
    """All of it; `found` is null where the points give nothing, and `note` says why."""
    constants = [_entry(each) for each in found]
    return {"machine": machine, "written": [str(path) for path in written], "constants": constants}


def _entry(each: Found) -> dict[str, Any]:
    constant = each.constant
    return {
        "path": constant.path,
        "file": constant.file,
        "family": constant.family,
        "points": constant.named,
        "rows": each.rows,
        "held_out": constant.held_out,
        "method": constant.method,
        "now": each.now,
        "found": each.value if each.told else None,
        "provenance": each.provenance if each.told else None,
        "source": each.source if each.told else None,
        "before": each.before,
        "after": each.after,
        "note": each.note or None,
    }
