"""`memsim trace`: record a model's kernels, and look into a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from memsim.cli_models import (
    Accepted,
    Draft,
    IndexDtype,
    KvDtype,
    Model,
    Parallel,
    Ratio,
    Replace,
    WeightsDtype,
)
from memsim.output import named

app = typer.Typer(help="Traces: record a model's attention kernels, look into a trace, check it.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def record(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", parser=named, metavar="FILE", help="The trace to write.")
    ],
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Tokens in the cache: 128K, 1.5K, 1M, 131072 (1K = 1,024)."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences that are decoded together.")] = 1,
    contexts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Sequences of other lengths: a number of tokens a line, or a column 'context' of a CSV.",
        ),
    ] = None,
    parallel: Parallel = None,
    steps: Annotated[int, typer.Option(help="Decode steps, one after another.")] = 1,
    device: Annotated[
        Literal["meta", "cpu", "cuda"],
        typer.Option(help="cpu and cuda compute on real tensors; meta records shapes alone."),
    ] = "meta",
    selection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Rows that sparse attention picks: real, dsa_lo, dsa_mid, dsa_hi, uniform, overlap=0.5 or "
            "a recorded file. Default: real scores; on meta dsa_mid.",
        ),
    ] = None,
    stage: Annotated[
        Literal["kv"] | None,
        typer.Option(help="kv: gather the selected rows into a staging buffer before the attention."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of tensors and selections.")] = 0,
    units: Annotated[int, typer.Option(help="Processors that kernels split their work over.")] = 132,
    replace: Replace = None,
    ratio: Ratio = None,
    kv_dtype: KvDtype = None,
    index_dtype: IndexDtype = None,
    weights_dtype: WeightsDtype = None,
    part: Annotated[
        Literal["attention", "step"],
        typer.Option(
            help="attention of all layers, or the whole step: weights, experts, appended rows, too."
        ),
    ] = "attention",
    routing: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Experts that tokens of a whole step choose: uniform (drawn), real (by the router's "
            "scores) or a recorded file. Default: real; on meta uniform.",
        ),
    ] = None,
    draft: Draft = 1,
    accepted: Accepted = None,
    as_json: AsJson = False,
) -> None:
    """Run the kernels of one decode step of MODEL and write their trace."""
    from memsim import progress, report, report_json, report_trace
    from memsim.recording import record as record_trace

    with progress.shown(f"recording {model}") as advance:
        summary = record_trace(
            model,
            context,
            output,
            batch=batch,
            contexts=contexts,
            parallel=parallel,
            steps=steps,
            device=device,
            selection=selection,
            stage=stage,
            seed=seed,
            units=units,
            replace=replace or (),
            ratio=ratio,
            kv_dtype=kv_dtype,
            index_dtype=index_dtype,
            weights_dtype=weights_dtype,
            part=part,
            routing=routing,
            draft=draft,
            accepted=accepted,
            progress=advance,
        )
    if as_json:
        print(report_json.dumps(summary), end="")
    else:
        report.show(report_trace.facts(summary))


@app.command()
def info(trace: File, as_json: AsJson = False) -> None:
    """Say what a trace holds: model, shapes, regions, kernels, bytes."""
    from memsim import report, report_json, report_trace, trace_show

    facts = trace_show.info(trace)
    if as_json:
        print(report_json.dumps(facts), end="")
    else:
        report.show(report_trace.info(facts))


@app.command()
def head(
    trace: File,
    rows: Annotated[int, typer.Option("--rows", "-n", help="Rows to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print the first rows of a trace."""
    from memsim import report_json, report_trace, trace_show

    first = trace_show.head(trace, rows)
    if as_json:
        print(report_json.dumps(first), end="")
    else:
        print(report_trace.rows(first), end="")


@app.command()
def check(trace: File, as_json: AsJson = False) -> None:
    """Read a whole trace and test every rule; the first fault ends it with exit code 2."""
    from dataclasses import asdict

    from memsim import report, report_json, report_trace, trace_check

    summary = {**asdict(trace_check.check_trace(trace)), "valid": True}
    if as_json:
        print(report_json.dumps(summary), end="")
    else:
        report.show(report_trace.facts(summary))
