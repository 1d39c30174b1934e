"""`memsim models`: the models at hand, and every number of one with its source."""

from __future__ import annotations

from typing import Annotated

import typer

from memsim.cli_options import AsJson

models = typer.Typer(help="Models: their attention stacks and where each number comes from.")


@models.command("list")
def list_models(as_json: AsJson = False) -> None:
    """Name the models whose attention stacks can be recorded."""
    from memsim import report, report_json
    from workloads.models import get_model, model_names

    rows = [(name, get_model(name).title) for name in model_names()]
    if as_json:
        print(report_json.dumps([{"name": name, "title": title} for name, title in rows]), end="")
        return
    table = report.plain_table("model", "what it is", left=(0, 1))
    for row in rows:
        table.add_row(*row)
    report.show(table)


@models.command("show")
def show_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A name that 'models list' prints.")],
    as_json: AsJson = False,
) -> None:
    """Print every number of a model with its provenance and source."""
    from memsim import report, report_json
    from workloads.models import describe, get_model

    rows = [tuple(str(cell) for cell in row) for row in describe(get_model(model))]
    if as_json:
        keys = ("path", "value", "provenance", "source")
        numbers = [dict(zip(keys, row, strict=True)) for row in rows]
        print(report_json.dumps({"name": model, "numbers": numbers}), end="")
        return
    report.show(report.numbers(rows))
