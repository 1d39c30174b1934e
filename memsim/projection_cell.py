"""Cells of a projection: a model on a machine at a context and a batch; which there are, and what one takes.

Names and options enter, checked cells leave. A machine is loaded once a process, with its guessed numbers
free to be others (`ranges`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from memsim.errors import UsageError
from memsim.overlap import thin
from memsim.placement import check_gpus
from memsim.profile import load_machine
from memsim.projection_point import MAX, PARTS, Ask, Cell, about
from memsim.ranges import Varied
from memsim.route import build_system
from memsim.simulate import replayed
from memsim.trace_cache import kept
from memsim.units import MOST_BATCH, MOST_DRAFT, MOST_TOKENS, is_whole, within

if TYPE_CHECKING:
    from memsim.profile_schema import Profile


@lru_cache
def machine_of(name: str, overrides: tuple[str, ...]) -> tuple[Profile, Varied]:
    """A machine, and the same with its guessed numbers free."""
    profile = load_machine(name, overrides)
    return profile, Varied(profile)


def units_of(cell: Cell, ask: Ask) -> int:
    """Processors that the kernels of a cell split their work over."""
    profile, _ = machine_of(cell.machine, ask.overrides)
    return next(iter(profile.initiator.values())).units.number


def grid(
    models: Sequence[str], machines: Sequence[str], contexts: Sequence[int], batches: Sequence[int | str]
) -> list[Cell]:
    """All cells, in the order in which they are shown."""
    return [
        Cell(model, machine, context, batch)
        for model in models
        for machine in machines
        for context in contexts
        for batch in batches
    ]


def check(cells: Sequence[Cell], ask: Ask) -> None:
    """UsageError for an unknown model, machine, part or rule, before anything is recorded."""
    if not 0 <= ask.overlap < 1:
        raise UsageError(f"--overlap {ask.overlap:g}: expected a share from 0 to below 1, such as 0.5")
    if ask.part not in PARTS:
        raise UsageError(f"--part {ask.part}: expected one of: {', '.join(PARTS)}")
    within("draft", ask.draft, 1, MOST_DRAFT)
    within("accepted", ask.draft if ask.accepted is None else ask.accepted, 1, ask.draft)
    for cell in cells:
        units_of(cell, ask)
        _check_parallel(cell, ask)
        within("context", cell.context_tokens, 1, MOST_TOKENS)
        if cell.batch != MAX:
            if not isinstance(cell.batch, int) or cell.batch < 1:
                raise UsageError(f"--batch {cell.batch}: expected a whole number from 1 on, or {MAX}")
            within("batch", cell.batch, 1, MOST_BATCH)
    _check_used(cells, ask)


def _check_used(cells: Sequence[Cell], ask: Ask) -> None:
    """UsageError for an option that nothing in the grid would heed."""
    if ask.routing is not None and ask.part != "step":
        raise UsageError(
            f"--routing {ask.routing} with --part {ask.part}: it has no experts; add --part step"
        )
    if not any(about(cell.model, ask).selects for cell in cells):
        for name, value in (("selection", ask.selection), ("stage", ask.stage), ("overlap", ask.overlap)):
            if value:
                raise UsageError(f"--{name} {value}: no model here selects rows; leave it away, or add one")
    if ask.slo_ps is not None and not any(cell.batch == MAX for cell in cells):
        raise UsageError(f"--slo: expected a batch that it can bound; add --batch {MAX}, or leave it away")


def _check_parallel(cell: Cell, ask: Ask) -> None:
    """UsageError for a model that cannot be cut so, a machine of fewer GPUs, groups without a sequence."""
    from workloads.parallel import parse_parallel, shard

    model = about(cell.model, ask)
    if ask.parallel is None:
        return
    parallel = parse_parallel(ask.parallel)
    shard(model, parallel)
    check_gpus(parallel.gpus, build_system(machine_of(cell.machine, ask.overrides)[0]))
    if isinstance(cell.batch, int):
        parallel.check_batch(cell.batch)


@contextmanager
def trace_of(cell: Cell, ask: Ask, batch: int) -> Iterator[Path]:
    """The trace of a cell at a batch, for as long as a `with` block lasts."""
    options = ask.recording(cell.model, batch, units_of(cell, ask))
    with kept(cell.model, cell.context_tokens, options) as trace:
        if ask.overlap and about(cell.model, ask).selects:
            thinner = trace.with_name("thinner.parquet")
            thin(trace, Fraction(str(ask.overlap)), thinner)
            trace = thinner
        yield trace


def time_ps(cell: Cell, ask: Ask, batch: int) -> int:
    """Time of a token at a batch [ps]; DoesNotFit."""
    profile, _ = machine_of(cell.machine, ask.overrides)
    with trace_of(cell, ask, batch) as trace:
        return replayed(trace, profile, **ask.replaying(), bound=False).result.tpot_ps


def batch_of(text: str | int) -> int | str:
    """A batch as a cell has it; UsageError for neither a number nor MAX."""
    if isinstance(text, int) or text == MAX:
        return text
    if not is_whole(text):
        raise UsageError(f"--batch '{text}': expected a whole number from 1 on, or {MAX}")
    return int(text)
