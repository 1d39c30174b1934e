"""`memsim validate figures`: a figure per measured family and machine, and figures of the public tables.

Enters: folders of CSV files as `validation.measure` writes them. Leaves: DIR/<machine>/<family>.svg and .png,
DIR/public/<table>.svg and .png. Needs matplotlib (extra `figures`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memsim.errors import OutputError, UsageError, reason
from memsim.output import check_writable
from validation import figures_model, figures_plot, figures_public, figures_rows, figures_views

if TYPE_CHECKING:
    from memsim.progress import Progress

MEASURED = Path(__file__).with_name("measured")
PUBLIC = "public"
AGAIN = "-again"  # after a machine's name: the folder of its repeated run, no machine of its own


def draw_all(out: Path, measured: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Draw everything that was measured, and the public tables; the files written, in order.

    measured   a folder of machines, of which repeated runs (<machine>-again) are left out, or one machine's
               folder; None: the one that comes with memsim

    UsageError for a folder without measurements, OutputError if `out` cannot be written, MissingExtra without
    matplotlib.
    """
    figures_plot.require_matplotlib()
    check_writable(out)
    todo = [*_measured(measured), *((PUBLIC, figure) for figure in figures_public.figures())]
    written = []
    for done, (folder, figure) in enumerate(todo):
        if progress:
            progress(done, len(todo))
        written += _drawn(figure, out / folder)
    return written


def _drawn(figure: figures_model.Figure, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return figures_plot.draw(figure, folder)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {reason(error)}; choose another folder") from None


def _measured(measured: Path | None) -> Iterator[tuple[str, figures_model.Figure]]:
    """(machine, figure) of every measured family."""
    for folder in machines(measured):
        if folder != measured and folder.name.endswith(AGAIN):
            continue
        families = figures_rows.read_machine(folder)
        for family in (*families, *figures_views.combined(families)):
            device = figures_rows.device(folder, family)
            for figure in figures_model.figures(family, device, figures_views.view(family.name)):
                yield folder.name, figure


def machines(measured: Path | None = None) -> list[Path]:
    """Folders of machines that hold CSV files, in name order; UsageError if a named folder has none."""
    root = measured or MEASURED
    if measured is not None and not measured.is_dir():
        raise UsageError(f"{measured}: no such folder; name one that 'validate measure -o' has written")
    found = [folder for folder in (root, *sorted(root.glob("*"))) if any(folder.glob("*.csv"))]
    if measured is not None and not found:
        raise UsageError(
            f"{measured}: holds no CSV files; name a folder that 'validate measure -o' has written"
        )
    return found
