"""`memsim validate calibrate`: constants of machines and kernels, tables of costs, from measured points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from memsim.cli_errors import AsJson, Machine


def calibrate(
    machine: Machine = "nvidia-h200",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Only this constant, such as tier.hbm.latency. Repeatable."),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Instead the tables of costs that follow a kernel's shape.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Put what was found into its files, line by line.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the constants of machines and kernels from the measured points that may calibrate."""
    from memsim import progress
    from validation import calibrate as calibrating
    from validation import calibrate_show, calibrate_write

    if tables:
        _tables(machine, only or (), write, as_json)
        return
    if write:
        calibrate_write.check_writable(calibrating.files(only or ()))
    with progress.shown("calibrating") as advance:
        found = calibrating.calibrated(machine, only or (), advance)
    written = calibrate_write.write(found) if write else []
    _say(calibrate_show.document(found, machine, written), calibrate_show.text(found), written, as_json)


def _tables(machine: str, only: tuple[str, ...] | list[str], write: bool, as_json: bool) -> None:
    from memsim import progress
    from validation import calibrate_write, cost_tables

    if write:
        calibrate_write.check_writable([cost_tables.FILE])
    with progress.shown("filling tables") as advance:
        found = cost_tables.solved(machine, only, advance)
    if write:
        cost_tables.write(found)
    written = [cost_tables.FILE] if write else []
    _say(cost_tables.document(found, machine), cost_tables.text(found), written, as_json)


def _say(document: dict[str, Any], text: str, written: Sequence[Path], as_json: bool) -> None:
    """Print what was found, and what was written of it."""
    from memsim import report_json

    if as_json:
        print(report_json.dumps(document), end="")
        return
    print(text, end="")
    for path in written:
        print(f"written: {path}")
