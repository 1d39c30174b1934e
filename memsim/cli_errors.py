"""`memsim validate` itself and `validate compare`: how far predictions are from what was measured.

Measurements and recipes live in `validation`; they are fetched inside the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from memsim.cli_models import KvDtype, WeightsDtype
from memsim.cli_options import Place
from memsim.output import named

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Machine = Annotated[
    str, typer.Option(metavar="NAME|DIR", help="Measurements that come with memsim, or a folder of yours.")
]


def errors(
    context: typer.Context,
    split: Annotated[
        Literal["held_out", "calibrate", "all"],
        typer.Option(help="Points: those that no constant has seen, those that may calibrate, or all."),
    ] = "held_out",
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILY", help="Only this family, or all that begin so. Repeatable."),
    ] = None,
    points: Annotated[bool, typer.Option("--points", help="List every point.")] = False,
    reach: Annotated[
        bool, typer.Option("--reach", help="Also list how far it holds where nothing was fitted.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Put the families' quantiles where projections read them.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", parser=named, metavar="DIR", help="Also draw every family there, SVG and PNG."
        ),
    ] = None,
    machine: Machine = "nvidia-h200",
    as_json: AsJson = False,
) -> None:
    """How far predictions are from measurements, a row per family; exit code 3 if one misses its bound.

    The commands below make measurements on your machine, draw them, compare them with public ones.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from memsim import progress
    from memsim.aside import cores
    from memsim.errors import CheckFailed
    from memsim.output import check_writable
    from validation import errors as predicted
    from validation import errors_quantiles, errors_show
    from validation.repeat import folder_of

    if output is not None:
        from validation import figures_errors, figures_plot

        figures_plot.require_matplotlib()
        check_writable(output)
    if write and split != predicted.HELD_OUT:
        raise typer.BadParameter("goes with held-out points alone", param_hint="'--write'")
    with progress.shown("predicting") as advance:
        found = predicted.table(machine, split, family or (), advance, cores())
    written = errors_quantiles.write(found, folder_of(machine).name) if write else None
    if output is not None:
        figures_errors.draw_all(found, output)
    if as_json:
        from memsim import report_json

        print(report_json.dumps(errors_show.document(found, machine, split, points, reach)), end="")
    else:
        print(errors_show.text(found, points, reach), end="")
        if written:
            print(f"written: {written}")
    missed = [each for each in found if each.missed] if split == predicted.HELD_OUT else []
    if missed:
        names = ", ".join(f"{each.name} ({each.mape:.1%}, at most {each.bound:.1%})" for each in missed)
        raise CheckFailed(f"mean error above what is asserted: {names}")


def _refuse_options(context: typer.Context) -> None:
    """BadParameter where an option of the error table stands before another command."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = {"as_json": "json"}.get(name, name)
            remedy = f"write it behind '{context.invoked_subcommand}' if it takes it"
            raise typer.BadParameter(f"is an option of the error table; {remedy}", param_hint=f"'--{option}'")


def compare(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS.csv", help="Your runs: model, machine, parallel, context, batch, tpot_ms."
        ),
    ],
    part: Annotated[
        Literal["step", "attention"], typer.Option(help="What the times are of: whole steps, or attention.")
    ] = "step",
    place: Place = None,
    kv_dtype: KvDtype = None,
    weights_dtype: WeightsDtype = None,
    as_json: AsJson = False,
) -> None:
    """Compare your own decode runs with what memsim projects: measured, predicted, error, interval."""
    from memsim import progress, report_json
    from memsim.projection_point import Ask
    from validation import compare as comparing

    ask = Ask(part=part, place=tuple(place or ()), kv_dtype=kv_dtype, weights_dtype=weights_dtype)
    with progress.shown("projecting") as advance:
        found = comparing.compared(runs, ask, advance)
    if as_json:
        print(report_json.dumps(comparing.document(found)), end="")
    else:
        print(comparing.text(found), end="")
