"""The command `memsim`: parse, call one function, print.

Data go to stdout, progress and warnings to stderr. Errors end in `run`, the one place that turns them
into a line and an exit code: 0 done, 1 internal failure, 2 usage or input, 3 a failed check, 5 does not
fit, 6 a missing package or device, 130 interrupted, 128 + N ended by signal N. Heavy imports stand inside
the commands, so that `memsim --help` is quick.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Annotated, Any, TextIO

import typer

import memsim
from memsim import cli_kernel, cli_machines, cli_models, cli_project, cli_trace, cli_validate
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
    Seed,
    with_counts,
)  # fmt: skip
from memsim.errors import MemsimError, OutputError, cut

INTERRUPTED = 130
REPEATED_S = 1.0  # `timeout` sends its signal twice: the second must not end the cleaning up

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_trace.app, name="trace", short_help="Record a trace, look into it, check it.")
app.add_typer(cli_machines.app, name="machines", short_help="Memories, links, their sources.")
app.add_typer(cli_models.app, name="models", short_help="Attention stacks, their bytes, sources.")
app.add_typer(cli_validate.app, name="validate", short_help="Measure machines, show measurements.")
app.command("kernel")(cli_kernel.kernel)
app.command("project", short_help="Times of a grid, with intervals.")(cli_project.project)
app.command("crossover", short_help="Where two models swap.")(cli_project.crossover)


class Output(io.TextIOWrapper):
    """stdout, with OutputError where the system takes no more, and an escape for what it cannot encode."""

    def write(self, text: str, /) -> int:
        with _worded():
            return super().write(text)

    def flush(self) -> None:
        with _worded():
            super().flush()


@contextlib.contextmanager
def _worded() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        found = f"stdout cannot be written: {error.strerror}"
        raise OutputError(f"{found}; send it to a file or a pipe with room") from None


class Ended(BaseException):
    """The process was asked to end; raised wherever it stands, so that every `with` block cleans up."""


def main() -> None:
    """The console script."""
    gc.set_threshold(100_000, 50, 50)  # a command is short: collecting while it imports costs a tenth of it
    _prepare_streams()
    _end_on_signals()
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a library may pass the signal on once more
    sys.exit(code)


def _prepare_streams() -> None:
    """What a stream that the caller closed (`>&-`) would get goes nowhere; failures of stdout are worded."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "w"))
    old = sys.stdout
    if isinstance(old, io.TextIOWrapper):
        encoding, by_line, at_once = old.encoding, old.line_buffering, old.write_through
        sys.stdout = Output(
            old.detach(), encoding, "backslashreplace", line_buffering=by_line, write_through=at_once
        )


def _end_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise `Ended`, where the caller (`nohup`) does not have them ignored."""
    ended_s = -REPEATED_S

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal ended_s
        now_s = monotonic()
        if now_s - ended_s >= REPEATED_S:
            ended_s = now_s
            raise Ended(number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # not every system has both
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; every failure becomes one line on stderr. Returns the exit code."""
    try:
        return _invoked(arguments)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted", INTERRUPTED)
    except Ended as ended:
        number = signal.Signals(ended.args[0])
        return _failed(f"ended by {number.name}", 128 + number)
    except BrokenPipeError:
        _drop(sys.stdout)  # the reader has seen enough
        return 0
    except MemsimError as error:
        return _failed(_shortened(str(error), arguments), error.exit_code, error)
    except typer.TyperException as error:
        return _failed(_shortened(_usage(error), arguments), error.exit_code, error)
    except MemoryError as error:
        what = str(error) or "an allocation failed"
        return _failed(f"out of memory: {what}; use a smaller trace", 1, error)
    except Exception as error:
        hint = "this is a fault of memsim; MEMSIM_TRACEBACK=1 shows where"
        return _failed(f"{type(error).__name__}: {error} ({hint})", 1, error)


def _invoked(arguments: Sequence[str]) -> int:
    """Run the command and hand all that it printed to the system."""
    code = 0
    try:
        with typer.main.get_command(app).make_context("memsim", with_counts(arguments)) as context:
            context.command.invoke(context)
    except typer.Exit as ended:
        code = ended.exit_code
    sys.stdout.flush()
    return code


def _drop(stream: TextIO) -> None:
    """Let what is still buffered for `stream` go nowhere, or Python complains of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _shortened(message: str, arguments: Sequence[str]) -> str:
    """`message` with the long words of the command line cut, but for paths."""
    for argument in arguments:
        word = argument.partition("=")[2] if argument.startswith("--") else argument
        if len(cut(word)) < len(word) and "/" not in word:
            message = message.replace(word, cut(word))
    return message


def _usage(error: typer.TyperException) -> str:
    """A usage error in one line that ends in where to read on."""
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    context: typer.Context | None = getattr(error, "ctx", None)
    if context is None or message.endswith("?"):
        return message
    return f"{message}; see '{context.command_path} --help'"


def _failed(message: str, code: int, error: BaseException | None = None) -> int:
    if error is not None and os.environ.get("MEMSIM_TRACEBACK", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    try:
        sys.stdout.flush()
    except (OSError, OutputError):
        _drop(sys.stdout)
    try:
        print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    except OSError:
        _drop(sys.stderr)  # the code still tells
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(f"memsim {memsim.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What one decoded token costs when its bytes live somewhere else.

    Start with: memsim demo
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(metavar="FILE", help="A trace, as 'trace record' writes it.")],
    machine: Machine = "h200",
    place: Place = None,
    overflow: Annotated[
        str, typer.Option(metavar="refuse|TIER", help="What to do with what does not fit its tier.")
    ] = "refuse",
    run_on: RunOn = None,
    overrides: Overrides = None,
    seed: Seed = None,
    engine: Engine = "fast",
    quantum: Quantum = "8 KiB",
    bound: Bound = True,
    explain: Explain = 0,
    as_json: AsJson = False,
    output: OutputDir = None,
) -> None:
    """Print the time and traffic of a trace on a machine."""
    from memsim import explain_show, progress, report, report_json, simulate
    from memsim import output as files
    from memsim.profile import load_machine
    from memsim.route import build_system
    from memsim.units import parse_bytes

    options: dict[str, Any] = {
        "place": tuple(place or ()),
        "overflow": overflow,
        "run_on": tuple(run_on or ()),
        "seed": seed,
        "engine": engine,
        "quantum_bytes": parse_bytes(quantum),
        "bound": bound,
        "explain": explain,
    }
    system = build_system(load_machine(machine, overrides or ()))
    if output is not None:
        files.check_writable(output)
    with progress.shown("replaying") as advance:
        result = simulate.replay(trace, system, **options, progress=advance)
    if output is not None:
        from memsim.trace_read import open_trace

        texts = {
            "result.json": report_json.text(result),
            "report.txt": report.text(result),
            **explain_show.files(result),
            "inputs.json": report_json.dumps(report_json.inputs(system, options, open_trace(trace).meta)),
        }
        files.write_files(output, texts)
    if as_json:
        print(report_json.text(result), end="")
    else:
        report.show(report.render(result))
        if result.explained:
            report.show(explain_show.render(result))


@app.command()
def demo(
    as_json: AsJson = False,
) -> None:
    """Print what a token costs: 5 stacks, 128K to 10M."""
    from memsim import demo as grid

    grid.run(as_json)
