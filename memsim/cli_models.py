"""`memsim models`: the models at hand, one as a datasheet, the check of their bytes and parameters.

Parse, call one function of `workloads`, print. `check` ends in exit code 3 where a figure is off.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memsim.cli_options import AsJson, Overrides, comma_words
from memsim.errors import CheckFailed, UsageError

app = typer.Typer(help="Models: their attention stacks, what they cost, where each number comes from.")

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name that 'models list' prints, or a .toml file.")
]
Replace = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NAME", help="Every layer of the first name becomes one of the second: kda=mla."
    ),
]
Ratio = Annotated[
    str | None,
    typer.Option(metavar="NAMES=COUNTS", help="Deal the layers of these names anew in turns: kda:mla=7:1."),
]
KvDtype = Annotated[
    str | None, typer.Option(metavar="bf16|fp8|fp4", help="Format of cached rows. Default: the model's.")
]
IndexDtype = Annotated[
    str | None,
    typer.Option(metavar="bf16|fp8|fp4", help="Format of an indexer's keys. Default: the model's."),
]
WeightsDtype = Annotated[
    str | None,
    typer.Option(metavar="bf16|fp8|fp4", help="Format of the weights. Default: the model's."),
]
Parallel = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS",
        help="GPUs that share the model: tp=8,ep=8,dp=1,dcp=8; what is left out is 1. Default: one GPU.",
    ),
]

Draft = Annotated[int, typer.Option(metavar="N", help="New tokens that a step computes of each sequence.")]
Accepted = Annotated[
    int | None, typer.Option(metavar="N", help="Of them, tokens that a step keeps. Default: all.")
]


@app.command("list")
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


@app.command("show")
def show_model(
    model: Model,
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKENS", help="Tokens in the cache: 128K,1M; repeatable. Default: 128K,1M,10M (binary)."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that are decoded together.")] = 1,
    parallel: Parallel = None,
    machine: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Also say whether what one GPU holds fits its memory."),
    ] = None,
    overrides: Overrides = None,
    replace: Replace = None,
    ratio: Ratio = None,
    kv_dtype: KvDtype = None,
    index_dtype: IndexDtype = None,
    weights_dtype: WeightsDtype = None,
    as_json: AsJson = False,
) -> None:
    """Print a model as a datasheet.

    Its layers, what its caches hold and a token reads, what one GPU holds of a batch (with --machine: whether
    it fits), its parameters, then every number with its source.
    """
    from memsim import report, report_json, report_models
    from memsim.units import MOST_BATCH, parse_tokens, within
    from workloads.models import get_model
    from workloads.models.document import MODEL_CONTEXTS, document, fitting
    from workloads.models.load import changes_of
    from workloads.parallel import ALONE, parse_parallel

    changes = changes_of(replace or (), ratio, kv_dtype, index_dtype, weights_dtype)
    words = [word for text in context or () for word in comma_words(text)]
    contexts = [parse_tokens(word) for word in words] or MODEL_CONTEXTS
    shared = ALONE if parallel is None else parse_parallel(parallel)
    within("batch", batch, 1, MOST_BATCH)
    found: dict[str, Any] = document(get_model(model, changes), contexts, batch, shared)
    if machine is not None:
        from memsim.profile import load_machine
        from memsim.route import build_system

        first = build_system(load_machine(machine, overrides or ())).tiers[0]
        found["held"] |= fitting(found["held"], machine, first.name, first.capacity_bytes)
    elif overrides:
        raise UsageError("--set changes a machine, and none is named; add --machine NAME")
    if as_json:
        print(report_json.dumps(found), end="")
    else:
        report.show(report_models.sheet(found))


@app.command("check")
def check_models(as_json: AsJson = False) -> None:
    """Compare bytes and parameters of all models with figures worked out apart from them.

    Ends in exit code 3 if one is off.
    """
    from dataclasses import asdict

    from memsim import report, report_json, report_models
    from workloads.models import checks

    found = [asdict(check) for check in checks.run()]
    if as_json:
        print(report_json.dumps(found), end="")
    else:
        report.show(report_models.checks(found))
    failed = sum(not check["passed"] for check in found)
    if failed:
        raise CheckFailed(f"{failed} of {len(found)} figures of the models are off")
