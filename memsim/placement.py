"""Which tier holds which rows of which region, and whether they fit.

Rules come as text, `KIND|NAME|layer:A-B=TIER[:SHARE,TIER:SHARE]`, the last that matches a region wins;
regions that none matches go to the machine's first tier, what other GPUs hold for this one (`exchange`) to
the tier `peer`. With shares, chunks of rows (64, or a page) are dealt to the tiers in proportion. What leaves
is a `Memory` for the engines and the bytes used. Nothing moves after that: policies are not here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm

import numpy as np

from memsim.errors import DoesNotFit, UsageError, nearest
from memsim.rules import Memory
from memsim.system import System
from memsim.trace import REGION_KINDS, Region

# Small regions that every step uses keep their tier; what grows with the context spills first.
SPILL_LAST = ("exchange", "activation", "output", "state", "weights", "index", "kv")
EXCHANGE, PEER = "exchange", "peer"  # regions that other GPUs hold, the tier that is their memory
CHUNK_ROWS = 64  # rows dealt at once where they are not paged: a page of a paged KV cache

Shares = tuple[tuple[int, int], ...]  # (tier, weight)


@dataclass(frozen=True)
class Rule:
    """One `--place`: regions that `matches`, and the tiers that share their rows."""

    text: str
    kind: str | None
    name: str | None
    layers: range | None
    shares: Shares

    def matches(self, region: Region) -> bool:
        """Whether the rule speaks of a region."""
        if self.layers is not None:
            return region.layer in self.layers
        return region.kind == self.kind or region.name == self.name


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a region, up to end_row, dealt to tiers by one rule."""

    end_row: int
    shares: Shares


@dataclass(frozen=True)
class Placement:
    """Pieces of every region, and the bytes that they take of every tier."""

    pieces: tuple[tuple[Piece, ...], ...]
    used_bytes: tuple[int, ...]


def parse_rules(texts: Sequence[str], regions: Sequence[Region], system: System) -> list[Rule]:
    """The rules that `--place` options state; UsageError where one makes no sense."""
    return [_parse_rule(text, regions, system) for text in texts]


def _parse_rule(text: str, regions: Sequence[Region], system: System) -> Rule:
    selector, equals, target = text.partition("=")
    if not equals or not selector or not target:
        raise UsageError(
            f"--place '{text}': expected KIND=TIER, NAME=TIER or layer:A-B=TIER, "
            "as in kv=host or kv=hbm:3,host:1"
        )
    shares = _parse_shares(text, target, system)
    layers = _parse_layers(text, selector, regions)
    if layers is not None:
        return Rule(text, None, None, layers, shares)
    kinds = {region.kind for region in regions}
    if selector in kinds:
        return Rule(text, selector, None, None, shares)
    if selector in REGION_KINDS:
        raise UsageError(
            f"--place '{text}': the trace has no '{selector}' region; its kinds: {', '.join(sorted(kinds))}"
        )
    names = [region.name for region in regions]
    if selector in names:
        return Rule(text, None, selector, None, shares)
    raise UsageError(
        f"--place '{text}': '{selector}' is no kind and no region of the trace; "
        + nearest(selector, [*kinds, *names])
    )


def _parse_layers(text: str, selector: str, regions: Sequence[Region]) -> range | None:
    if not selector.startswith("layer:"):
        return None
    match = re.fullmatch(r"layer:(\d+)(?:-(\d+))?", selector)
    last = max((region.layer for region in regions), default=-1)
    if not match or not int(match[1]) <= int(match[2] or match[1]) <= last:
        raise UsageError(f"--place '{text}': expected layer:A-B with A <= B and layers from 0 to {last}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _parse_shares(text: str, target: str, system: System) -> Shares:
    parts = [part.partition(":") for part in target.split(",")]
    tiers = [tier_number(name, system, f"--place '{text}'") for name, _, _ in parts]
    if len(set(tiers)) < len(tiers):
        raise UsageError(f"--place '{text}': a tier is named twice; name each once, with its share")
    if len(parts) > 1 and not all(colon for _, colon, _ in parts):
        raise UsageError(f"--place '{text}': several tiers need a share each, as in hbm:3,host:1")
    shares = [_parse_share(text, share) if colon else Fraction(1) for _, colon, share in parts]
    scale = lcm(*(share.denominator for share in shares))
    weights = [int(share * scale) for share in shares]
    return tuple((tier, weight // gcd(*weights)) for tier, weight in zip(tiers, weights, strict=True))


def _parse_share(text: str, share: str) -> Fraction:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", share) or Fraction(share) == 0:
        raise UsageError(
            f"--place '{text}': share '{share}' is not a positive number such as 3 or 0.25 (up to six digits)"
        )
    return Fraction(share)


def tier_number(name: str, system: System, where: str) -> int:
    """Index of a tier by name; UsageError that begins with `where` if the machine has none such."""
    try:
        return system.tier_index(name)
    except KeyError:
        names = [tier.name for tier in system.tiers]
        raise UsageError(
            f"{where}: machine {system.name} has no tier '{name}'; {nearest(name, names)}"
        ) from None


def place_regions(
    regions: Sequence[Region], rules: Sequence[Rule], overflow: str, system: System
) -> Placement:
    """Give every region its tiers; DoesNotFit names the shortfall.

    overflow   `refuse`, or the tier that takes the rows that do not fit where they were placed. Room is
               given to kinds in SPILL_LAST order, each in file order, so that a KV cache spills first.
    """
    spill = None if overflow == "refuse" else tier_number(overflow, system, f"--overflow '{overflow}'")
    free = [tier.capacity_bytes for tier in system.tiers]
    wanted = [_shares_of(region, rules, system) for region in regions]
    for region, shares in zip(regions, wanted, strict=True):
        _check_fine(region, shares)
    if spill is None:
        _refuse_if_short(regions, wanted, system)
    pieces: list[tuple[Piece, ...]] = [()] * len(regions)
    for number in sorted(range(len(regions)), key=lambda i: SPILL_LAST.index(regions[i].kind)):
        pieces[number] = _place(regions[number], wanted[number], spill, free, system)
    used = tuple(tier.capacity_bytes - left for tier, left in zip(system.tiers, free, strict=True))
    return Placement(tuple(pieces), used)


def check_gpus(gpus: int, system: System) -> None:
    """UsageError if a trace of one of `gpus` GPUs is to run on a machine that has fewer."""
    there = 1 + sum(tier.devices for tier in system.tiers if tier.name == PEER)
    if gpus > there:
        raise UsageError(
            f"the trace is of one of {gpus} GPUs that work together; machine {system.name} has {there} "
            f"(one, and those of a tier '{PEER}'); take 8xh200, or record with a smaller --parallel"
        )


def _shares_of(region: Region, rules: Sequence[Rule], system: System) -> Shares:
    for rule in reversed(rules):
        if rule.matches(region):
            return rule.shares
    if region.kind != EXCHANGE:
        return ((0, 1),)
    return ((tier_number(PEER, system, f"region '{region.name}', which other GPUs hold"), 1),)


def _check_fine(region: Region, shares: Shares) -> None:
    """rules.locate multiplies chunks by weights in int64."""
    total = sum(weight for _, weight in shares)
    if len(shares) > 1 and (region.rows // chunk_rows(region) + 2) * total >= 1 << 62:
        raise UsageError(
            f"--place: shares that add up to {total} are too fine for the {region.rows} rows of region "
            f"'{region.name}'; use fewer digits, as in 0.75 and 0.25"
        )


def _refuse_if_short(regions: Sequence[Region], wanted: Sequence[Shares], system: System) -> None:
    need = [0] * len(system.tiers)
    for region, shares in zip(regions, wanted, strict=True):
        for (tier, _), rows in zip(shares, dealt_rows(region, shares, region.rows), strict=True):
            need[tier] += _bytes(region, rows)
    for holder, bytes_needed in zip(system.tiers, need, strict=True):
        if bytes_needed > holder.capacity_bytes:
            raise _shortfall(holder.name, bytes_needed, holder.capacity_bytes, system)


def _shortfall(tier: str, need_bytes: int, capacity_bytes: int, system: System) -> DoesNotFit:
    others = [t.name for t in system.tiers if t.name != tier]
    remedy = f"or spill with --overflow {others[0]}" if others else "or take a machine with more tiers"
    return DoesNotFit(
        f"{system.name}: tier '{tier}' holds {_gb(capacity_bytes)} but {_gb(need_bytes)} are "
        f"placed in it: {_gb(need_bytes - capacity_bytes)} too many; place regions elsewhere with "
        f"--place, {remedy}"
    )


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 10**8 else f"{nbytes:,} B"


def _place(
    region: Region, shares: Shares, spill: int | None, free: list[int], system: System
) -> tuple[Piece, ...]:
    """Pieces of one region; takes their bytes from `free`."""
    fitting = _rows_that_fit(region, shares, free)
    _take(region, shares, fitting, free)
    if fitting == region.rows:
        return (Piece(region.rows, shares),)
    assert spill is not None, "a shortfall without --overflow is refused before"
    rest = _bytes(region, region.rows - fitting)
    if rest > free[spill]:
        tier = system.tiers[spill]
        raise DoesNotFit(
            f"{system.name}: tier '{tier.name}' has room for {_gb(free[spill])} of the {_gb(rest)} of region "
            f"'{region.name}' that spill to it: {_gb(rest - free[spill])} too many; place less, or take a "
            "machine with more room"
        )
    free[spill] -= rest
    spilled = Piece(region.rows, ((spill, 1),))
    return (Piece(fitting, shares), spilled) if fitting else (spilled,)


def _take(region: Region, shares: Shares, rows: int, free: list[int]) -> None:
    for (tier, _), part in zip(shares, dealt_rows(region, shares, rows), strict=True):
        free[tier] -= _bytes(region, part)


def _rows_that_fit(region: Region, shares: Shares, free: Sequence[int]) -> int:
    """Most rows, from the first on, that the tiers have room for; whole pages, whole chunks if dealt."""
    grain = chunk_rows(region) if len(shares) > 1 else max(1, region.page_rows)

    def fits(rows: int) -> bool:
        parts = dealt_rows(region, shares, rows)
        return all(_bytes(region, part) <= free[tier] for (tier, _), part in zip(shares, parts, strict=True))

    if fits(region.rows):
        return region.rows
    low, high = 0, region.rows // grain  # fits(low * grain), and the whole region does not
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle * grain):
            low = middle
        else:
            high = middle - 1
    return low * grain


def chunk_rows(region: Region) -> int:
    """Rows that are dealt to one tier at once."""
    return region.page_rows or CHUNK_ROWS


def dealt_rows(region: Region, shares: Shares, rows: int) -> list[int]:
    """Rows that each share gets of the first `rows` of a region (the same deal as rules.locate)."""
    if len(shares) == 1:
        return [rows]
    size = chunk_rows(region)
    chunks, partial = divmod(rows, size)
    whole, more = _dealt_chunks(shares, chunks), _dealt_chunks(shares, chunks + 1)
    return [w * size + (partial if m > w else 0) for w, m in zip(whole, more, strict=True)]


def _dealt_chunks(shares: Shares, chunks: int) -> list[int]:
    weight_left = sum(weight for _, weight in shares)
    dealt = []
    for _, weight in shares[:-1]:
        dealt.append(chunks * weight // weight_left)
        chunks -= dealt[-1]
        weight_left -= weight
    return [*dealt, chunks]


def _bytes(region: Region, rows: int) -> int:
    if region.page_rows:
        return -(-rows // region.page_rows) * region.page_bytes
    return rows * region.row_bytes


def build_memory(regions: Sequence[Region], placement: Placement) -> Memory:
    """Arrays of the layout and placement of all regions, for the engines."""
    pieces = [(region, piece) for region, ps in zip(regions, placement.pieces, strict=True) for piece in ps]
    shares = [share for _, piece in pieces for share in piece.shares]
    piece_at = accumulate((len(ps) for ps in placement.pieces), initial=0)
    share_at = accumulate((len(piece.shares) for _, piece in pieces), initial=0)
    layouts = [(r.row_bytes, r.page_rows, r.page_head_bytes, r.page_bytes) for r in regions]
    rules = [(piece.end_row, chunk_rows(region)) for region, piece in pieces]
    return Memory(
        regions=np.array(
            [(*layout, at) for layout, at in zip([*layouts, (0,) * 4], piece_at, strict=True)], np.int64
        ),
        pieces=np.array([(*rule, at) for rule, at in zip([*rules, (0, 0)], share_at, strict=True)], np.int64),
        shares=np.array(shares, np.int64).reshape(-1, 2),
    )
