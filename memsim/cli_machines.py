"""`memsim machines`: the machines at hand, one as a datasheet, its faults, its pictures, its self-check.

Parse, call one function, print. `lint` ends in exit code 2 where it finds an error, `check` in 3 where a
check fails; warnings end in 0.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from memsim.cli_options import AsJson, Overrides
from memsim.errors import CheckFailed, OutputError, UsageError
from memsim.output import named

app = typer.Typer(help="Machines: their memories, links and where each number comes from.")

Named = Annotated[str, typer.Argument(metavar="MACHINE", help="A name, or the path of a .toml file.")]


@app.command("list")
def list_machines(as_json: AsJson = False) -> None:
    """Name the machines that come with memsim."""
    from hwprofiles import machine_names
    from memsim import report, report_json
    from memsim.profile import load_machine

    profiles = [load_machine(name) for name in machine_names()]
    if as_json:
        rows = [
            {
                "name": each.name,
                "title": each.title,
                "initiators": list(each.initiator),
                "tiers": list(each.tier),
                "links": list(each.link),
            }
            for each in profiles
        ]
        print(report_json.dumps(rows), end="")
        return
    table = report.plain_table("machine", "tiers", "what it is", left=(0, 1, 2))
    for profile in profiles:
        table.add_row(profile.name, " ".join(profile.tier), profile.title)
    report.show(table)


@app.command("show")
def show_machine(machine: Named, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Print a machine as a datasheet.

    What each path sustains and what binds it, energy and price, then every number with its source.
    """
    from memsim import machine_show, report, report_json
    from memsim.profile import load_machine

    profile = load_machine(machine, overrides or ())
    if as_json:
        print(report_json.dumps(machine_show.document(profile)), end="")
    else:
        report.show(machine_show.sheet(profile))


@app.command("diff")
def diff_machines(
    first: Named,
    second: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Another machine; default: the same one with --set.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Print the numbers in which two machines differ.

    --set changes the second one; without a second one it is compared with itself as set.
    """
    from memsim import machine_show, report, report_json
    from memsim.profile import load_machine

    if second is None and not overrides:
        found = f"machines diff {first}: nothing to compare it with"
        raise UsageError(f"{found}; name a second machine or change a number with --set")
    profiles = load_machine(first), load_machine(first if second is None else second, overrides or ())
    if as_json:
        print(report_json.dumps(machine_show.differences(*profiles)), end="")
    else:
        report.show(machine_show.table_of_differences(*profiles))


@app.command("lint")
def lint_machine(machine: Named, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Say what is wrong with a machine and what is doubtful.

    Ends in exit code 2 where something is wrong, in 0 with warnings alone.
    """
    from memsim import lint, report_json

    findings = lint.lint_machine(machine, overrides or ())
    if as_json:
        print(report_json.dumps([asdict(finding) for finding in findings]), end="")
    else:
        for finding in findings:
            print(f"{finding.level}: {finding.where}: {finding.message}")
        errors = sum(finding.level == "error" for finding in findings)
        print(f"{machine}: {_counted(errors, 'error')}, {_counted(len(findings) - errors, 'warning')}")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(2)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


@app.command("graph")
def graph_machine(
    machine: Named,
    output: Annotated[
        Path, typer.Option("--output", "-o", parser=named, metavar="FILE.svg", help="Where the picture goes.")
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Draw a machine's nodes, memories and links as an SVG."""
    from memsim import machine_graph, report_json
    from memsim.profile import load_machine

    if output.suffix.lower() != ".svg":
        raise OutputError(f"{output}: a picture is an SVG; give a name that ends in .svg")
    machine_graph.draw(load_machine(machine, overrides or ()), output)
    print(report_json.dumps({"picture": str(output)}) if as_json else f"{output}\n", end="")


@app.command("curve")
def curve_machine(
    machine: Named,
    tier: Annotated[str, typer.Argument(metavar="TIER", help="The memory that is chased and streamed.")],
    measured: Annotated[
        bool, typer.Option("--measured", help="Replay what was measured of this GPU, point by point.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", parser=named, metavar="FILE", help="Also draw it, as .svg or .png (matplotlib)."
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Print latency under load: a chase beside streams.

    A pointer chase on one unit is replayed beside more and more units that read, update and write.
    """
    from memsim import curve, curve_plot, curve_show, progress, report, report_json
    from memsim.profile import load_machine
    from memsim.route import build_system

    system = build_system(load_machine(machine, overrides or ()))
    if output is not None:
        curve_plot.check(output)
    folder = curve.measured_folder(system.name) if measured else None
    with progress.shown(f"curve of {tier}") as advance:
        found = curve.draw_curve(system, tier, folder, advance)
    if output is not None:
        curve_plot.draw(found, output)
    if as_json:
        print(report_json.dumps(curve_show.document(found)), end="")
    else:
        report.show(curve_show.table(found))


@app.command("check")
def check_machine(machine: Named, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Replay plain patterns: does it behave as its file says?

    Ends in exit code 3 if it does not.
    """
    from memsim import machine_check, report, report_json

    checks = machine_check.run(machine, overrides or ())
    if as_json:
        print(report_json.dumps(machine_check.document(checks)), end="")
    else:
        report.show(machine_check.table(checks))
    failed = sum(not check.passed for check in checks)
    if failed:
        raise CheckFailed(f"{machine}: {failed} of {len(checks)} checks failed")
