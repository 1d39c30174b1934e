"""Replay a trace on a machine: place, run an engine, check the invariants, sum up.

Enters a trace file, a machine and options; leaves a `Result`. The engine is imported inside the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memsim import interval, ledger
from memsim.cache_plan import CachePlan
from memsim.errors import TraceError, UsageError, nearest
from memsim.interval import Replayed
from memsim.longest import Longest
from memsim.options import DEFAULT_QUANTUM_BYTES, ReplayOptions
from memsim.placement import build_memory, check_gpus, parse_rules, place_regions
from memsim.profile import load_machine
from memsim.program import Plan
from memsim.progress import Progress
from memsim.result import Outcome, Result
from memsim.route import build_system
from memsim.rules import Memory
from memsim.segments import Segment
from memsim.summary import kernel_times_ps, summarize
from memsim.system import Initiator, System
from memsim.tally import Watched
from memsim.trace_read import open_trace

if TYPE_CHECKING:
    from memsim.profile_schema import Profile

ENGINES = ("fast", "reference")
_LARGEST_QUANTUM_BYTES = 1 << 30
_LARGEST_SEED = (1 << 62) - 1


def replay(
    trace: str | Path,
    machine: str | Path | Profile | System = "h200",
    *,
    place: str | Sequence[str] = (),
    overflow: str = "refuse",
    run_on: str | Sequence[str] = (),
    overrides: str | Sequence[str] = (),
    engine: str = "fast",
    quantum_bytes: int = DEFAULT_QUANTUM_BYTES,
    bound: bool = True,
    explain: int = 0,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Replay a trace file on a machine.

    machine        a shipped name, a TOML file, a loaded machine, or a `System`
    place          rules `KIND|NAME|layer:A-B=TIER[:SHARE,TIER:SHARE]`, one or several; the last that
                   matches wins
    overflow       `refuse`, or the tier that takes rows that do not fit
    run_on         `FAMILY|KERNEL=INITIATOR|TIER`, one or several: kernels that another initiator runs than
                   the first; a tier names the one that sits beside it
    overrides      `GROUP.NAME.KEY=VALUE`, one or several: numbers of a machine given by name or file
    engine         `fast` or `reference`; their results are equal
    quantum_bytes  largest request [bytes]
    bound          also find what binds each kernel family, by replaying its longest kernel again
    explain        also divide the times of so many kernels: the longest of each family, the slowest of these
    seed           draw the slow requests of tiers that have a tail from it; None: no request is slow
    progress       called with (done, all), in kernels if there is nothing to explain

    Raises UsageError (trace, machine, names), DoesNotFit, or MemsimError if an invariant breaks.
    """
    found = replayed(
        trace, machine, place=place, overflow=overflow, run_on=run_on, overrides=overrides, engine=engine,
        quantum_bytes=quantum_bytes, bound=bound, explain=explain, seed=seed, progress=progress,
    )  # fmt: skip
    return found.result


def replayed(
    trace: str | Path,
    machine: str | Path | Profile | System = "h200",
    *,
    place: str | Sequence[str] = (),
    overflow: str = "refuse",
    run_on: str | Sequence[str] = (),
    overrides: str | Sequence[str] = (),
    engine: str = "fast",
    quantum_bytes: int = DEFAULT_QUANTUM_BYTES,
    bound: bool = True,
    explain: int = 0,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Replayed:
    """`replay`, with all that it takes to replay the kernels again."""
    _check_options(engine, quantum_bytes, seed)
    system = _system(machine, _several(overrides))
    machine_tails = [tier.name for tier in system.tiers if tier.tail]
    if seed is None:
        system = without_tails(system)
    watched = Watched(open_trace(trace))
    if not watched.kernel_count:
        raise TraceError(f"{watched.path}: no kernel to replay; record at least one")
    options = ReplayOptions(quantum_bytes, parse_run_on(_several(run_on), system), seed or 0)
    check_gpus(int(watched.meta.get("gpus", 1)), system)
    rules = parse_rules(_several(place), watched.regions, system)
    placement = place_regions(watched.regions, rules, overflow, system)
    memory = build_memory(watched.regions, placement)
    if explain < 0:
        raise UsageError(f"--explain {explain}: expected a number of kernels, such as 3")
    first, second = _halves(progress) if explain else (progress, None)
    kept = Longest(CachePlan(system, memory, options.quantum_bytes))
    outcome = _run(engine, watched, system, memory, options, first, kept)
    _check_run_on(options, watched)
    ledger.check(outcome, watched.tally.issued, system)
    result = summarize(watched, system, placement, outcome, engine)
    notes = (*_notes_of_tails(result, machine_tails, seed), *_notes_of_grids(watched, system, options))
    result = replace(result, notes=notes)
    found = Replayed(result, watched, system, memory, options, _longest(result, watched, system))
    if bound:
        found = _with_bounds(found, kept)
    if explain:
        found = _with_explained(found, explain, second, kept)
    return replace(found, result=replace(found.result, interval=interval.by_measurements(found)))


def _halves(progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """Progress of two pieces of work, each half of the whole."""
    if progress is None:
        return None, None
    return (
        lambda done, total: progress(done, 2 * total),
        lambda done, total: progress(total + done, 2 * total),
    )


def _notes_of_tails(result: Result, machine_tails: Sequence[str], seed: int | None) -> Iterator[str]:
    """Whether slow requests were drawn."""
    used = [tier.name for tier in result.tiers if tier.requests and tier.name in machine_tails]
    if used and seed is None:
        yield f"slow requests of {' and '.join(used)} are left out; --seed N draws them"
    elif used:
        yield f"slow requests of {' and '.join(used)} are drawn with seed {seed}"


def _notes_of_grids(trace: Watched, system: System, options: ReplayOptions) -> Iterator[str]:
    """Kernels that run on another number of units than they were recorded for."""
    units = int(trace.meta.get("units", 0))
    for kernel, home in options.run_on.items():
        runner = system.initiators[home]
        if units and runner.units != units:
            yield (
                f"{kernel} was recorded for {units} units and runs on the {runner.units} of {runner.name}: "
                f"a kernel written for those would be cut otherwise (trace record --units {runner.units})"
            )


def _several(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts


def _system(machine: str | Path | Profile | System, overrides: Sequence[str]) -> System:
    if isinstance(machine, (str, Path)):
        return build_system(load_machine(machine, overrides))
    if overrides:
        raise UsageError("overrides: expected a machine's name or file; this one is loaded already")
    return machine if isinstance(machine, System) else build_system(machine)


def without_tails(system: System) -> System:
    """The machine with no request slower than usual."""
    return replace(system, tiers=tuple(replace(tier, tail=()) for tier in system.tiers))


def parse_run_on(texts: Sequence[str], system: System) -> dict[str, int]:
    """Initiators by kernel or family, as `--run-on` options state them; UsageError where one makes none."""
    homes: dict[str, int] = {}
    for text in texts:
        kernel, equals, runner = text.partition("=")
        if not equals or not kernel or not runner:
            raise UsageError(
                f"--run-on '{text}': expected FAMILY=INITIATOR or FAMILY=TIER, as in dsa-index=cxl"
            )
        homes[kernel] = _initiator(text, runner, system)
    return homes


def _initiator(text: str, name: str, system: System) -> int:
    """Number of the initiator called `name`, or of the only one that computes beside the tier `name`."""
    names = [runner.name for runner in system.initiators]
    if name in names:
        return names.index(name)
    tiers = [tier.name for tier in system.tiers]
    if name not in tiers:
        raise UsageError(
            f"--run-on '{text}': machine {system.name} has no initiator and no tier '{name}'; "
            + nearest(name, [*names, *tiers])
        )
    tier = tiers.index(name)
    beside = [
        number
        for number, runner in enumerate(system.initiators)
        if computes(runner) and not system.routes[number][tier]
    ]
    if len(beside) != 1:
        found = " and ".join(names[i] for i in beside) or "no initiator that computes"
        raise UsageError(
            f"--run-on '{text}': {found} beside tier '{name}' of {system.name}; name one of its "
            f"initiators: {', '.join(names)}"
        )
    return beside[0]


def computes(runner: Initiator) -> bool:
    """Whether an initiator has arithmetic; a copy engine has none."""
    return any((runner.bf16_mflops, runner.fp8_mflops, runner.fp32_mflops))


def _check_run_on(options: ReplayOptions, trace: Watched) -> None:
    """UsageError for a kernel that the trace does not have."""
    known = {*trace.tally.family, *trace.tally.name} if options.run_on else set()
    for kernel in options.run_on:
        if kernel not in known:
            families = sorted(set(trace.tally.family))
            raise UsageError(
                f"--run-on '{kernel}': no kernel and no family of the trace; {nearest(kernel, families)}"
            )


def _check_options(engine: str, quantum_bytes: int, seed: int | None) -> None:
    if engine not in ENGINES:
        raise UsageError(f"--engine '{engine}': no such engine; {nearest(engine, ENGINES)}")
    if not 1 <= quantum_bytes <= _LARGEST_QUANTUM_BYTES:
        raise UsageError(
            f"--quantum {quantum_bytes} B: expected 1 B to 1 GiB; the default is {DEFAULT_QUANTUM_BYTES} B"
        )
    check_seed(seed)


def check_seed(seed: int | None) -> None:
    """UsageError for a seed that no draw takes."""
    if seed is not None and not 0 <= seed <= _LARGEST_SEED:
        raise UsageError(f"--seed {seed}: expected 0 to {_LARGEST_SEED}; leave it out for no tails")


def _run(
    engine: str,
    trace: Watched,
    system: System,
    memory: Memory,
    options: ReplayOptions,
    progress: Progress | None,
    kept: Longest,
) -> Outcome:
    if engine == "fast":
        from memsim import fast

        return fast.run(trace, system, memory, options, progress, kept, kept.ended)
    from memsim import reference

    return reference.run(trace, system, memory, options, progress, kept)


def _again(wanted: Mapping[str, int], found: Replayed, kept: Longest) -> tuple[Iterable[Segment], Plan]:
    """Segments with some kernels, and their plan: those that were kept, else all from the trace again."""
    from memsim.bound import segments_of

    return kept.of(wanted) or (
        segments_of(found.trace.trace, found.options),
        CachePlan(found.system, found.memory, found.options.quantum_bytes),
    )


def _with_bounds(found: Replayed, kept: Longest) -> Replayed:
    """What was found with what binds each family."""
    from memsim.bound import find_bounds

    segments, plan = _again(found.longest, found, kept)
    bounds = find_bounds(segments, found.system, found.memory, found.options, found.longest, plan)
    families = tuple(
        replace(family, bound=b.resource, bound_share=b.share, bound_shares=b.shares)
        for family, b in ((family, bounds[family.name]) for family in found.result.families)
    )
    return replace(found, result=replace(found.result, families=families))


def _longest(result: Result, trace: Watched, system: System) -> dict[str, int]:
    """Id of each family's longest kernel, the families in order, the slowest first."""
    assert result.outcome is not None
    times_ps = kernel_times_ps(system, result.outcome)
    longest: dict[str, int] = {}
    for number, family in enumerate(trace.tally.family):  # the last of equals: the first may launch a graph
        if family not in longest or times_ps[number] >= times_ps[longest[family]]:
            longest[family] = number
    return dict(sorted(longest.items(), key=lambda item: -times_ps[item[1]]))


def _with_explained(found: Replayed, count: int, progress: Progress | None, kept: Longest) -> Replayed:
    """What was found with the times of the slowest kernels divided."""
    from memsim.explain import explain

    slowest = dict(list(found.longest.items())[:count])
    segments, plan = _again(slowest, found, kept)
    divided = explain(segments, found.system, found.memory, found.options, slowest, progress, plan)
    return replace(found, result=replace(found.result, explained=divided))
