"""`memsim machines` and `memsim models`: what is at hand, and every number of it with its source."""

from __future__ import annotations

from typing import Annotated

import typer

machines = typer.Typer(help="Machines: their memories, links and where each number comes from.")
models = typer.Typer(help="Models: their attention stacks and where each number comes from.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@machines.command("list")
def list_machines(as_json: AsJson = False) -> None:
    """Name the machines that come with memsim."""
    from hwprofiles import machine_names
    from memsim import report, report_json
    from memsim.profile import load_machine

    profiles = [load_machine(name) for name in machine_names()]
    if as_json:
        rows = [
            {"name": each.name, "title": each.title, "tiers": list(each.tier), "links": list(each.link)}
            for each in profiles
        ]
        print(report_json.dumps(rows), end="")
        return
    table = report.plain_table("machine", "tiers", "what it is", left=(0, 1, 2))
    for profile in profiles:
        table.add_row(profile.name, " ".join(profile.tier), profile.title)
    report.show(table)


@machines.command("show")
def show_machine(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A name, or the path of a .toml file.")],
    as_json: AsJson = False,
) -> None:
    """Print every number of a machine with its provenance and source."""
    from memsim import report, report_json
    from memsim.profile import load_machine
    from memsim.route import build_system

    profile = load_machine(machine)
    system = build_system(profile)
    if as_json:
        print(report_json.dumps({"title": profile.title, **report_json.machine(system)}), end="")
        return
    print(f"{profile.name}: {profile.title}")
    routes = report_json.machine(system)["routes"]
    print("; ".join(f"{tier} {_over(links)}" for tier, links in routes.items()) + "\n")
    rows = ((number.path, number.value, number.provenance, number.source) for number in system.inputs)
    report.show(report.numbers(rows, grouped=True))


def _over(links: list[str]) -> str:
    return f"over {' and '.join(links)}" if links else "attached directly"


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
