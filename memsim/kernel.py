"""`memsim kernel`: one attention kernel or plain access pattern, recorded and replayed in one go.

A kernel's name, its options and a machine enter, an `Answer` leaves: the result of the replay, and what one
call takes. The trace lies in a temporary folder for as long as that lasts. The kernels are in `workloads`;
attention kernels need torch (extra `kernels`), plain patterns do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memsim.errors import TraceError, UsageError
from memsim.options import DEFAULT_QUANTUM_BYTES
from memsim.placement import tier_number
from memsim.progress import Progress
from memsim.recording import require_torch
from memsim.result import Result
from memsim.simulate import check_seed, parse_run_on, replay
from memsim.system import System
from memsim.trace_read import open_trace
from memsim.units import format_bytes, format_rate, format_time

_PS = 10**12  # picoseconds of a second


@dataclass(frozen=True)
class Answer:
    """What a kernel takes.

    result   the replay of its trace;  meta  what the trace says of itself
    calls    launches of the kernel, with all that belongs to it
    call_ps  mean time of a call, launch gaps included and the graph's launch not
    bytes_read, bytes_written   unique bytes of regions that a call touches
    loads    of a chase: loads of a call, one after another; else 0
    load_ps  time of each, launch gap not included
    """

    result: Result
    meta: dict[str, Any]
    calls: int
    call_ps: int
    bytes_read: int
    bytes_written: int
    loads: int
    load_ps: int

    def per_s(self, count: int) -> float:
        """`count` bytes of a call over its time [bytes/s]."""
        return count * _PS / self.call_ps if self.call_ps else 0.0


def run(
    name: str,
    system: System,
    given: Mapping[str, Any],
    *,
    tier: str | None = None,
    place: Sequence[str] = (),
    run_on: Sequence[str] = (),
    engine: str = "fast",
    quantum_bytes: int = DEFAULT_QUANTUM_BYTES,
    bound: bool = True,
    explain: int = 0,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Record the kernel `name` with the options `given` and replay it on a machine.

    given    options by name, sizes in bytes or as text; docs/kernel.md lists them
    tier     where the data lie that the kernel is about; None: in the machine's first tier
    place    rules that come after this one;  run_on, explain  as for a replay
    seed     of drawn rows (None: 0), and of the slow requests of tiers with a tail (None: none are)

    UsageError for an unknown name, option, tier, DoesNotFit, MissingExtra without torch.
    """
    check_seed(seed)
    from workloads import kernel_options

    options = kernel_options.complete(name, kernel_options.parsed(given))
    run_on = _with_copy_engine(name, system, run_on) if options.get("dma") else run_on
    home = parse_run_on(run_on, system).get(name, 0)
    if tier is not None:
        tier_number(tier, system, f"--tier '{tier}'")
    with TemporaryDirectory(prefix="memsim-kernel-") as folder:
        trace = Path(folder) / f"{name}.parquet"
        try:
            far = _write(name, options, system, system.initiators[home].units, seed or 0, trace)
            rules = [f"{region}={tier}" for region in far] if tier is not None else []
            result = replay(
                trace,
                system,
                place=[*rules, *place],
                run_on=run_on,
                engine=engine,
                quantum_bytes=quantum_bytes,
                bound=bound,
                explain=explain,
                seed=seed,
                progress=progress,
            )
        except TraceError as error:
            raise UsageError(f"kernel {name}: {str(error).removeprefix(f'{trace}: ')}") from None
        meta = open_trace(trace).meta
    return _answer(replace(result, trace=f"kernel {name}"), meta, options, system)


def _write(
    name: str, options: Mapping[str, Any], system: System, units: int, seed: int, out: Path
) -> list[str]:
    """Write the kernel's trace; the regions that `--tier` places."""
    check_seed(seed)
    from workloads import kernel_options

    if name in kernel_options.PLAIN:
        from workloads import patterns

        longest = max((link.efficiency[-1][0] for link in system.links if link.efficiency), default=0)
        line = kernel_options.LINE_BYTES
        piece_bytes = max(patterns.PIECE_BYTES, -(-longest // line) * line)
        far: list[str] = patterns.write(name, options, units, seed, out, piece_bytes)
    else:
        require_torch()
        from workloads import single

        far = single.write(name, options, units, seed, out)
    return far


def _with_copy_engine(name: str, system: System, run_on: Sequence[str]) -> Sequence[str]:
    """`run_on` with the machine's copy engine for the kernel, where it names no other place."""
    if any(text.startswith(f"{name}=") for text in run_on):
        return run_on
    engines = copy_engines(system)
    if not engines:
        raise UsageError(
            f"--dma: machine {system.name} has no copy engine (an initiator that cannot compute); add one, "
            f"or name what runs it with --run-on {name}=INITIATOR"
        )
    return [f"{name}={system.initiators[engines[0]].name}", *run_on]


def copy_engines(system: System) -> list[int]:
    """Initiators that compute nothing: they are there to copy."""
    return [
        number
        for number, runner in enumerate(system.initiators)
        if number and not runner.bf16_mflops and not runner.fp8_mflops and not runner.fp32_mflops
    ]


def _answer(result: Result, meta: dict[str, Any], options: Mapping[str, Any], system: System) -> Answer:
    calls = options["calls_per_launch"]
    call_ps = (result.total_ps - result.graph_launch_ps) // calls
    loads = options["count"] if result.model == "chase" else 0
    assert result.outcome is not None
    gap_ps = system.initiators[int(result.outcome.initiator[0])].launch_gap_ps
    return Answer(
        result=result,
        meta=meta,
        calls=calls,
        call_ps=call_ps,
        bytes_read=sum(result.bytes_read.values()) // calls,
        bytes_written=sum(result.bytes_written.values()) // calls,
        loads=loads,
        load_ps=(call_ps - gap_ps) // loads if loads else 0,
    )


def document(answer: Answer) -> dict[str, Any]:
    """What the JSON document of the replay gets beside its own keys."""
    return {
        "calls": answer.calls,
        "call_s": answer.call_ps / _PS,
        "bytes_read_per_call": answer.bytes_read,
        "bytes_written_per_call": answer.bytes_written,
        "bytes_read_per_s": answer.per_s(answer.bytes_read),
        "bytes_written_per_s": answer.per_s(answer.bytes_written),
        "loads_per_call": answer.loads or None,
        "load_s": answer.load_ps / _PS if answer.loads else None,
    }


def headline(answer: Answer) -> str:
    """One line: what a call takes."""
    several = f", mean of {answer.calls:,}" if answer.calls > 1 else ""
    moved = ((answer.bytes_read, "read"), (answer.bytes_written, "written"))
    words = f"a call of {answer.result.model} takes {format_time(answer.call_ps)}{several}: " + ", ".join(
        f"{format_bytes(count)} {way} ({format_rate(answer.per_s(count))})" for count, way in moved if count
    )
    if answer.loads:
        words += f"; {answer.loads:,} loads of {format_time(answer.load_ps)}, one after another"
    return words
