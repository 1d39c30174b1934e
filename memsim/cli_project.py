"""`memsim project` and `memsim crossover`: parse, call one function, print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from memsim.cli_models import Accepted, Draft, IndexDtype, KvDtype, Parallel, Ratio, Replace, WeightsDtype
from memsim.cli_options import AsJson, Overrides, Place, RunOn, comma_words
from memsim.errors import DoesNotFit, MissingExtra
from memsim.output import named

if TYPE_CHECKING:
    from memsim.projection_point import Point

Models = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="Names that 'models list' prints, or .toml files.")
]
Machines = Annotated[
    str, typer.Option("--machine", metavar="NAME[,NAME]", help="Machines' names, or paths of .toml files.")
]
Part = Annotated[
    Literal["step", "attention"],
    typer.Option(help="What is timed and takes room: the whole step, or the attention of all layers."),
]
Routing = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Experts of a whole step, as for 'trace record'."),
]
Overflow = Annotated[
    str, typer.Option(metavar="refuse|TIER", help="What to do with what does not fit its tier.")
]
Selection = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Rows that sparse attention picks, as for 'trace record'."),
]
Stage = Annotated[
    Literal["kv"] | None,
    typer.Option(help="kv: gather the selected rows into a staging buffer before the attention."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes. Default: as many as there are cores.")]


def project(
    models: Models,
    machine: Machines = "h200-host",
    context: Annotated[
        str, typer.Option(metavar="TOKENS[,TOKENS]", help="Tokens in the cache: 128K,1M,10M (1K = 1,024).")
    ] = "128K,1M,10M",
    batch: Annotated[
        str, typer.Option(metavar="N[,N|max]", help="Sequences decoded together; max: as many as fit.")
    ] = "1",
    slo: Annotated[
        str | None,
        typer.Option(metavar="tpot=TIME", help="With max: as many as also meet this: tpot=20ms."),
    ] = None,
    part: Part = "step",
    place: Place = None,
    overflow: Overflow = "refuse",
    run_on: RunOn = None,
    overrides: Overrides = None,
    selection: Selection = None,
    stage: Stage = None,
    overlap: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Stage the selected rows, of which so many are there from the step before: 0.5.",
        ),
    ] = 0.0,
    replace: Replace = None,
    ratio: Ratio = None,
    kv_dtype: KvDtype = None,
    index_dtype: IndexDtype = None,
    weights_dtype: WeightsDtype = None,
    routing: Routing = None,
    parallel: Parallel = None,
    draft: Draft = 1,
    accepted: Accepted = None,
    workers: Workers = None,
    as_json: AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", parser=named, metavar="DIR",
            help="Also write JSON, table and figure here; finished points stay, a rerun goes on.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Print what a token costs for every model, machine, context and batch, each with its interval.

    What does not fit is a row that says by how much; exit code 5 if nothing fits.
    """
    from memsim import output as files
    from memsim import progress, projection_json, projection_show, report, report_json
    from memsim.projection_cell import batch_of, check, grid
    from memsim.projection_point import Ask
    from memsim.projection_run import run
    from memsim.units import parse_tokens

    ask = Ask(
        part=part,
        place=tuple(place or ()),
        overflow=overflow,
        run_on=tuple(run_on or ()),
        overrides=tuple(overrides or ()),
        selection=selection,
        stage=stage,
        overlap=overlap,
        replace=tuple(replace or ()),
        ratio=ratio,
        kv_dtype=kv_dtype,
        index_dtype=index_dtype,
        weights_dtype=weights_dtype,
        routing=routing,
        parallel=parallel,
        draft=draft,
        accepted=accepted,
        slo_ps=_slo_ps(slo),
    )
    cells = grid(
        models,
        comma_words(machine),
        [parse_tokens(each) for each in comma_words(context)],
        [batch_of(each) for each in comma_words(batch)],
    )
    check(cells, ask)
    if output is not None:
        files.check_writable(output)
    with progress.shown("projecting") as advance:
        points = run(cells, ask, output, workers, advance)
    text = report_json.dumps(projection_json.document(points, ask))
    if output is not None:
        table = report.plain_text(projection_show.render(points))
        files.write_files(output, {"projection.json": text, "projection.txt": table})
        _draw(points, output)
    if as_json:
        print(text, end="")
    else:
        report.show(projection_show.render(points))
    if all(point.refused for point in points):
        raise DoesNotFit(f"none of {len(points)} points fits; {points[0].refused}")


def _draw(points: Sequence[Point], folder: Path) -> None:
    """The figure; without matplotlib a word on what it lacks, for all else of a projection is there."""
    from memsim import projection_plot

    try:
        projection_plot.draw(points, folder)
    except MissingExtra as error:
        typer.echo(f"memsim: {folder} has no figure: {error}", err=True)


def _slo_ps(text: str | None) -> int | None:
    """Picoseconds of "tpot=20ms"."""
    from memsim.errors import UsageError
    from memsim.units import parse_time

    if text is None:
        return None
    what, equals, time = text.partition("=")
    if what != "tpot" or not equals:
        raise UsageError(f"--slo '{text}': expected tpot=TIME, as in tpot=20ms")
    return parse_time(time)


def crossover(
    a: Annotated[str, typer.Argument(metavar="A", help="A model's name, or a .toml file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The model that it is compared with.")],
    machine: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="A machine for both, or one for each.")
    ] = "h200-host",
    context: Annotated[
        str,
        typer.Option(metavar="LO,HI", help="Range of tokens in the cache; one number with a --batch range."),
    ] = "",
    batch: Annotated[str, typer.Option(metavar="N|LO,HI", help="Sequences, or a range of them.")] = "1",
    part: Part = "step",
    place: Place = None,
    place_a: Annotated[
        list[str] | None, typer.Option(metavar="WHAT=TIER", help="A rule for A alone. May be repeated.")
    ] = None,
    place_b: Annotated[
        list[str] | None, typer.Option(metavar="WHAT=TIER", help="A rule for B alone. May be repeated.")
    ] = None,
    overflow: Overflow = "refuse",
    run_on: RunOn = None,
    overrides: Overrides = None,
    selection: Selection = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Find the context, or the batch, at which two models or two placements swap, with its interval.

    Each side is as 'project' has it. That they never swap in the range is an answer.
    """
    from memsim import crossing, crossing_show, progress, report, report_json

    batches, contexts = comma_words(batch), comma_words(context) if context else []
    ranged = len(batches) > 1
    if not contexts:
        contexts = ["1M"] if ranged else list(crossing.CONTEXTS)
    with progress.shown("comparing") as advance:
        found = crossing.crossover(
            a,
            b,
            comma_words(machine),
            context=tuple(contexts) if len(contexts) > 1 else contexts[0],
            batch=tuple(map(_number, batches)) if ranged else _number(batches[0]),
            place=place or (),
            place_a=place_a or (),
            place_b=place_b or (),
            workers=workers,
            progress=advance,
            part=part,
            overflow=overflow,
            run_on=run_on or (),
            overrides=overrides or (),
            selection=selection,
        )
    if as_json:
        print(report_json.dumps(crossing_show.document(found)), end="")
    else:
        report.show(crossing_show.render(found))


def _number(text: str) -> int:
    """A batch that is a number."""
    from memsim.errors import UsageError
    from memsim.units import is_whole

    if not is_whole(text) or int(text) < 1:
        raise UsageError(f"--batch '{text}': expected a whole number from 1 on")
    return int(text)
