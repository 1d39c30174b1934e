"""`memsim validate ...`: measure real machines, draw and look. The error table is in `cli_errors`,
calibration in `cli_calibrate`.

Measuring code and measurements live in `validation`; they are fetched inside the commands. Measuring on a GPU
needs torch, figures need matplotlib: what is missing ends in exit code 6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from memsim import cli_calibrate, cli_errors
from memsim.cli_errors import AsJson, Machine
from memsim.output import named

app = typer.Typer()

Measured = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="One machine's measurements, or a folder of machines. Default: the shipped ones."
    ),
]


app.callback(invoke_without_command=True)(cli_errors.errors)
app.command()(cli_errors.compare)
app.command()(cli_calibrate.calibrate)


@app.command()
def measure(
    suite: Annotated[
        Literal["micro", "kernels", "stacks", "all"],
        typer.Option(help="micro needs torch alone; kernels and stacks need the production libraries."),
    ] = "micro",
    device: Annotated[str, typer.Option(metavar="cuda|cuda:N|cpu", help="The device to measure.")] = "cuda",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", parser=named, metavar="DIR", help="A CSV file per family; what is there stays."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILY", help="Only this family, or all that begin so. Repeatable."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List points and their split; measure nothing.")
    ] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="One short point per family, into DIR/smoke.")
    ] = False,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="Stop after this; call again to go on.")
    ] = 900.0,
    since: Annotated[
        str, typer.Option(metavar="RUN", help="Measure again what is older, such as 20261201.")
    ] = "",
) -> None:
    """Time kernels on a GPU and write what came out; resumes where it stopped."""
    import contextlib
    import sys

    from validation.measure import __main__ as script

    words = ["--suite", suite, "--device", device, "--budget", str(budget)]
    words += [word for family in only or () for word in ("--only", family)]
    words += ["--smoke"] if smoke else []
    words += ["--since", since] if since else []
    if list_:
        raise typer.Exit(script.main([*words, "--list"]))
    if output is None:
        raise typer.BadParameter(
            "missing: the folder that the CSV files go to", param_hint="'--output' / '-o'"
        )
    _require_device(device)
    with contextlib.redirect_stdout(sys.stderr):  # a line per point is progress; the data go to files
        code = script.main([*words, "--output", str(output)])
    raise typer.Exit(code)


def _require_device(device: str) -> None:
    """MissingExtra if torch is missing, or has no such device."""
    from memsim.errors import MissingExtra, UsageError
    from memsim.recording import require_torch

    kind, _, index = device.partition(":")
    if kind not in ("cuda", "cpu") or (index and not index.isdecimal()):
        raise UsageError(f"unknown device '{device}'; choose one of: cuda, cuda:N, cpu")
    require_torch()
    if kind == "cpu":
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        remedy = "run it on a machine with an NVIDIA GPU, or 'validate here' for CPU memory and storage"
        raise MissingExtra(f"torch finds {count} CUDA devices, {device} is not one of them; {remedy}")


@app.command()
def here(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", parser=named, metavar="FILE.toml", help="The machine file to write."),
    ],
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="On the disk to measure: holds a file of 2 GiB for a while.")
    ] = Path(),
    name: Annotated[
        str, typer.Option(help="The machine's name: letters, digits, '-' and '_'.")
    ] = "this-machine",
    as_json: AsJson = False,
) -> None:
    """Measure this computer's memory and storage and write a machine file from it; needs no GPU."""
    import re
    import sys
    from dataclasses import asdict

    from memsim import output as files
    from memsim import report, report_json
    from memsim.errors import OutputError, UsageError

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name):
        raise UsageError(f"'{name}' is no name of a machine; expected letters, digits, '-' and '_'")
    if output.is_dir():
        raise OutputError(f"{output}: is a folder; give the name of a file")
    files.check_writable(output.parent)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name one on the disk to measure")
    from validation import here as script
    from validation.here_profile import profile_text

    numbers = script.measure(folder, say=lambda line: print(line, file=sys.stderr, flush=True))
    files.write_files(output.parent, {output.name: profile_text(numbers, name)})
    if as_json:
        print(report_json.dumps({name: asdict(number) for name, number in numbers.items()}), end="")
        return
    table = report.plain_table("number", "value", "provenance", left=(0, 2))
    for key, number in numbers.items():
        table.add_row(key, script.shown(number), number.provenance)
    report.show(table)
    print(f"written: {output}; 'memsim machines show {output}' shows it")


@app.command()
def figures(
    output: Annotated[
        Path, typer.Option("--output", "-o", parser=named, metavar="DIR", help="Where the figures go.")
    ] = Path("figures"),
    measured: Measured = None,
) -> None:
    """Draw every measured family and the public tables, as SVG and PNG."""
    from memsim import progress
    from validation.figures import draw_all

    with progress.shown("drawing") as advance:
        written = draw_all(output, measured, progress=advance)
    folders = sorted({str(path.parent) for path in written})
    print(f"{len(written) // 2} figures, as SVG and PNG, in {', '.join(folders)}")


@app.command()
def published(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", parser=named, metavar="DIR", help="Also draw it, as SVG and PNG."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold a published decode curve, Kimi Linear against full MLA, beside ours."""
    from dataclasses import asdict

    from memsim import output as files
    from memsim import progress, report_json
    from validation import figures_plot
    from validation import published as curve

    if output is not None:
        figures_plot.require_matplotlib()
        files.check_writable(output)
    with progress.shown("replaying") as advance:
        found = curve.compared(progress=advance)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        figures_plot.draw(curve.figure(found), output)
    if as_json:
        rows = [{**asdict(row), "ratio": found.ratio(row)} for row in found.rows]
        print(report_json.dumps({"rest_ms": found.rest_ms, "rows": rows}), end="")
    else:
        print(curve.text(found), end="")


@app.command()
def tables(as_json: AsJson = False) -> None:
    """List the public measurements that come with memsim."""
    from rich.text import Text

    from memsim import report, report_json
    from validation import public

    if as_json:
        print(report_json.dumps([public.facts(table) for table in public.tables()]), end="")
        return
    listed = report.plain_table("table", "kind", "what it is", left=(0, 1, 2))
    machine = ""
    for table in public.tables():
        if table.machine != machine:
            machine = table.machine
            listed.add_row(Text(machine, style="bold"))
        listed.add_row(f"  {table.name}", table.kind, Text(table.what))
    report.show(listed)


@app.command("show")
def show_rows(
    name: Annotated[str, typer.Argument(metavar="FAMILY|TABLE", help="A measured family or a public table.")],
    where: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Only rows with this value. Repeatable.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="Rows to print; 0: all.")] = 40,
    measured: Measured = None,
    as_json: AsJson = False,
) -> None:
    """Print measured rows: a family of ours or a public table."""
    from memsim import report_json
    from validation import show as look

    found = look.rows(name, where or (), measured)
    printed = found[:rows] if rows else found
    if as_json:
        print(report_json.dumps(printed), end="")
        return
    print(look.text(printed), end="")
    print(f"{len(printed):,} of {len(found):,} rows; --json prints every column")


@app.command()
def repeat(
    machine: Machine = "nvidia-h200", against: Machine = "nvidia-h200-earlier", as_json: AsJson = False
) -> None:
    """Compare two runs point by point: how far do measurements repeat?"""
    from dataclasses import asdict

    from memsim import report_json
    from validation import repeat as repeating
    from validation import show

    found = repeating.repeats(machine, against)
    if as_json:
        print(report_json.dumps([asdict(each) for each in found]), end="")
        return
    cells = [
        [
            each.family,
            str(each.points),
            *(f"{share:.1%}" for share in (each.middle, each.most)),
            *(f"{each.bias:+.1%}", str(each.over), f"{each.worst:+.1%}", each.worst_point),
        ]
        for each in found
    ]
    names = ("family", "points", "median", "95 %", "bias", "over 3 %", "worst", "at")
    print(show.table(names, cells, left=(0, 7)), end="")
    compared, over = sum(each.points for each in found), sum(each.over for each in found)
    print(f"{machine} against {against}: {over:,} of {compared:,} points differ by more than 3 %")


@app.command()
def spread(machine: Machine = "nvidia-h200", as_json: AsJson = False) -> None:
    """Count the points of each family whose samples lie within 3 % of each other."""
    from dataclasses import asdict

    from memsim import report_json
    from validation import repeat as repeating
    from validation import show

    found = repeating.spreads(machine)
    if as_json:
        print(report_json.dumps([asdict(each) for each in found]), end="")
        return
    cells = [
        [
            each.family,
            *(str(each.points), str(each.steady), f"{each.steady / each.points:.0%}"),
            *(str(each.failed or "-"), f"{each.worst:.1%}", each.worst_point),
        ]
        for each in found
    ]
    names = ("family", "points", "steady", "share", "failed", "worst", "at")
    print(show.table(names, cells, left=(0, 6)), end="")
    for name, gpu in (("GPU", True), ("CPU and storage", False)):
        steady, points = repeating.share(found, gpu)
        if points:
            wanted = f", wanted {repeating.WANTED:.0%}" if gpu else ""
            print(f"{name}: {steady:,} of {points:,} points are steady, {steady / points:.1%}{wanted}")


@app.command()
def sanity(machine: Machine = "nvidia-h200", as_json: AsJson = False) -> None:
    """Hold a machine's measurements against published ones of the same chip."""
    from dataclasses import asdict

    from memsim import report_json
    from validation import sanity as checks
    from validation import show

    found = list(checks.lines(machine))
    if as_json:
        print(report_json.dumps([{**asdict(line), "close": line.close} for line in found]), end="")
        return
    reasons = list(dict.fromkeys(line.why for line in found if line.why and not line.close))
    cells = []
    for line in found:
        note = f"({reasons.index(line.why) + 1})" if line.why and not line.close else ""
        numbers = (f"{line.ours:,.4g}", f"{line.theirs:,.4g}", f"{line.difference:+.1%}")
        cells.append([line.what, line.unit, *numbers, note, line.source])
    names = ("what", "", "ours", "published", "differs", "", "by")
    print(show.table(names, cells, left=(0, 1, 5, 6)), end="")
    for number, reason in enumerate(reasons, 1):
        print(f"({number}) {reason}")
    for name, what in checks.SOURCES.items():
        print(f"{name}: {what}")
