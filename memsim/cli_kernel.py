"""`memsim kernel`: what one attention kernel or plain access pattern takes on a machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memsim.cli_options import (
    AsJson,
    Bound,
    Engine,
    Explain,
    Machine,
    OutputDir,
    Overrides,
    Place,
    Quantum,
    RunOn,
)  # fmt: skip


def kernel(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A plain pattern: stream, copy, update, gather, chase, gemv; or an attention kernel: kda, "
            "gdn, mla, dsa-index, dsa-topk, dsa-attend.",
        ),
    ],
    machine: Machine = "h200",
    tier: Annotated[
        str | None,
        typer.Option(
            metavar="TIER", help="Where its data lie, 'host' is zero-copy; default: the first tier."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="stream, copy, update, gemv: size of its data."),
    ] = None,
    count: Annotated[int | None, typer.Option(help="gather, chase: rows of a call.")] = None,
    row_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="gather, chase: a row; gemv: weights of one value.")
    ] = None,
    span: Annotated[
        str | None, typer.Option(metavar="SIZE", help="gather, chase: what the rows are drawn from.")
    ] = None,
    programs: Annotated[
        int | None,
        typer.Option(help="Blocks of a plain pattern; default: as many as the units hold."),
    ] = None,
    blocks_per_unit: Annotated[int | None, typer.Option(help="Blocks that a unit holds at once.")] = None,
    block_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="A tile of a block; a transfer with --dma.")
    ] = None,
    tiles_in_flight: Annotated[
        int | None, typer.Option(help="Tiles that a block has asked for at most.")
    ] = None,
    write: Annotated[
        bool | None, typer.Option("--write", help="stream: write; copy, --dma: into --tier, not out of it.")
    ] = None,
    dma: Annotated[
        bool | None,
        typer.Option("--dma", help="stream, copy, gather: the copy engine moves the data to the first tier."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="mla, dsa: tokens in the cache: 128K, 1M, 131072.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Attention: sequences that are decoded together.")] = None,
    heads: Annotated[
        int | None, typer.Option(help="Attention: heads (gdn: value heads, dsa-index: index heads).")
    ] = None,
    key_heads: Annotated[int | None, typer.Option(help="gdn: heads of queries and keys.")] = None,
    topk: Annotated[int | None, typer.Option(help="dsa-topk, dsa-attend: selected rows.")] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(metavar="bf16|fp8", help="mla: bf16; dsa-attend: fp8.")
    ] = None,
    selection: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="dsa-attend: the rows, as for 'trace record'.")
    ] = None,
    buffers: Annotated[
        int | None, typer.Option(help="Copies of the data that calls go round: cold or warm follows.")
    ] = None,
    calls_per_launch: Annotated[int | None, typer.Option(help="Calls in one graph.")] = None,
    place: Place = None,
    run_on: RunOn = None,
    overrides: Overrides = None,
    seed: Annotated[
        int | None, typer.Option(help="Draw rows, selections and slow requests; without it none is slow.")
    ] = None,
    engine: Engine = "fast",
    quantum: Quantum = "8 KiB",
    bound: Bound = True,
    explain: Explain = 0,
    as_json: AsJson = False,
    output: OutputDir = None,
) -> None:
    """Print what one kernel or access pattern takes."""
    from memsim import explain_show, progress, report, report_json
    from memsim import kernel as kernels
    from memsim import output as files
    from memsim.profile import load_machine
    from memsim.route import build_system
    from memsim.units import parse_bytes

    given: dict[str, Any] = {
        "bytes": size, "count": count, "row_bytes": row_bytes, "span": span, "programs": programs,
        "blocks_per_unit": blocks_per_unit, "block_bytes": block_bytes, "tiles_in_flight": tiles_in_flight,
        "write": write, "dma": dma, "context": context, "batch": batch, "heads": heads,
        "key_heads": key_heads, "topk": topk, "kv_dtype": kv_dtype, "selection": selection,
        "buffers": buffers, "calls_per_launch": calls_per_launch,
    }  # fmt: skip
    options: dict[str, Any] = {
        "tier": tier,
        "place": tuple(place or ()),
        "run_on": tuple(run_on or ()),
        "engine": engine,
        "quantum_bytes": parse_bytes(quantum),
        "bound": bound,
        "explain": explain,
        "seed": seed,
    }
    system = build_system(load_machine(machine, overrides or ()))
    if output is not None:
        files.check_writable(output)
    with progress.shown(f"kernel {name}") as advance:
        answer = kernels.run(name, system, given, **options, progress=advance)
    document = report_json.dumps({**report_json.document(answer.result), "call": kernels.document(answer)})
    if output is not None:
        texts = {
            "result.json": document,
            "report.txt": f"{kernels.headline(answer)}\n\n{report.text(answer.result)}",
            **explain_show.files(answer.result),
            "inputs.json": report_json.dumps(report_json.inputs(system, options, answer.meta)),
        }
        files.write_files(output, texts)
    if as_json:
        print(document, end="")
    else:
        print(f"{kernels.headline(answer)}\n")
        report.show(report.render(answer.result))
        if answer.result.explained:
            report.show(explain_show.render(answer.result))
