"""The largest batch that fits a machine, and meets a bound on the time of a token.

A cell enters, a number of sequences leaves. Whether a batch fits is asked of the footprint of one GPU, placed
by the rules as regions of a trace would be. Only a bound on the time is found by replays, few of them:
between a batch that meets it and one that does not. Short contexts fit in thousands; MOST a group of GPUs is
where engines stop to launch a step as one graph, which every replay takes it to be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from memsim.errors import DoesNotFit, UsageError
from memsim.placement import parse_rules, place_regions
from memsim.projection_cell import machine_of, time_ps, units_of
from memsim.projection_point import Ask, Cell, about
from memsim.route import build_system
from memsim.trace import REGION_KINDS, Region
from memsim.units import format_time

MOST = 512  # sequences: vLLM captures graphs of decode steps up to so many by default (recalled)


def largest(cell: Cell, ask: Ask) -> tuple[int, str]:
    """The largest batch of a cell and a few words about it; 0 and why, where not even one sequence does."""
    lacks = shortfall(cell, ask, 1)
    if lacks:
        return 0, lacks
    most = _most(cell, ask)
    words = f"the largest batch that fits is {most:,}"
    if most == MOST * _least(ask):
        words = f"a batch of {most:,} fits, where max ends (docs/projection.md); give a number for more"
    if ask.slo_ps is None:
        return most, words
    found = within(cell, ask, most, ask.slo_ps)
    bound = format_time(ask.slo_ps)
    if not found:
        return 0, f"a token of one sequence takes more than {bound}; expected at most that; give it more time"
    return found, f"{words}, with {bound} a token {found:,}" if found < most else words


def shortfall(cell: Cell, ask: Ask, batch: int) -> str:
    """Why a batch does not fit the tiers that the rules place it in; "" if it does."""
    rule = _not_by_kind(ask)
    if rule:
        raise UsageError(
            f"--batch max with --place '{rule}': expected rules by kind, such as kv=host; give a number"
        )
    system = build_system(machine_of(cell.machine, ask.overrides)[0])
    regions = _regions(cell, ask, batch)
    try:
        place_regions(regions, parse_rules(ask.place, regions, system), ask.overflow, system)
    except DoesNotFit as error:
        return str(error)
    return ""


def known_shortfall(cell: Cell, ask: Ask, batch: int) -> str:
    """As `shortfall`, before anything is recorded; "" also where only a recording can tell."""
    return "" if _not_by_kind(ask) else shortfall(cell, ask, batch)


def _not_by_kind(ask: Ask) -> str:
    """The first rule that names no kind of region, or ""."""
    return next((rule for rule in ask.place if rule.partition("=")[0] not in REGION_KINDS), "")


def _regions(cell: Cell, ask: Ask, batch: int) -> list[Region]:
    """What one GPU holds, as one region of each kind, in rows of a byte."""
    from workloads.models import footprint
    from workloads.parallel import ALONE, parse_parallel
    from workloads.step_scratch import activations

    model, units = about(cell.model, ask), units_of(cell, ask)
    parallel = ALONE if ask.parallel is None else parse_parallel(ask.parallel)
    held = footprint.of_model(
        model,
        [cell.context_tokens] * batch,
        parallel,
        part=ask.part,
        units=units,
        staged=ask.stage is not None or ask.overlap > 0,
        draft=ask.draft,
    )
    sizes = Counter({kind: nbytes for kind, nbytes in asdict(held).items() if nbytes})
    if ask.part == "step":
        sizes["activation"] += activations(model, batch, units, parallel, ask.draft)
    return [
        Region(number, f"all {kind}", kind, -1, "", nbytes, 1)
        for number, (kind, nbytes) in enumerate(sizes.items())
    ]


def _most(cell: Cell, ask: Ask) -> int:
    """The largest batch that fits; one does."""
    low, high, end = 1, 2, MOST * _least(ask)
    while high <= end and not shortfall(cell, ask, high):
        low, high = high, 2 * high
    high = min(high, end + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shortfall(cell, ask, middle) else (middle, high)
    return low


def _least(ask: Ask) -> int:
    """A sequence for each group of GPUs."""
    from workloads.parallel import parse_parallel

    return 1 if ask.parallel is None else parse_parallel(ask.parallel).dp


def within(cell: Cell, ask: Ask, most: int, slo_ps: int) -> int:
    """The largest batch up to `most` whose token takes `slo_ps` at most; 0: not even one sequence does."""
    most_ps = time_ps(cell, ask, most)
    if most_ps <= slo_ps:
        return most
    least = _least(ask)
    least_ps = time_ps(cell, ask, least)
    if least_ps > slo_ps:
        return 0
    low, high = (least, least_ps), (most, most_ps)
    guess_by_line = True
    while high[0] - low[0] > 1:
        middle = (low[0] + high[0]) // 2
        if guess_by_line:
            share = (slo_ps - low[1]) / max(1, high[1] - low[1])
            middle = min(high[0] - 1, max(low[0] + 1, low[0] + int(share * (high[0] - low[0]))))
        guess_by_line = not guess_by_line
        took_ps = time_ps(cell, ask, middle)
        low, high = (low, (middle, took_ps)) if took_ps > slo_ps else ((middle, took_ps), high)
    return low[0]
