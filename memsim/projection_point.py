"""A point of a projection: what a token costs in one cell of a grid, and what the grid was asked with.

A replay's result and its interval enter (`priced`), a `Point` of plain data leaves, which survives a way
through JSON. Here are also the options that all points share (`Ask`) and what memory and energy cost a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from memsim.interval import Effect, FamilyTrust, Interval
from memsim.result import PlaceTotals, Result

MAX = "max"  # the largest batch that fits
PARTS = ("step", "attention")
YEARS = 4  # over which the price of a memory is spread
MILLION = 10**6
_YEAR_S, _PS = 365.25 * 86400, 10**12


@dataclass(frozen=True)
class Ask:
    """What all points of a grid share: how they are recorded and replayed.

    slo_ps   with the batch `max`: the longest time of a token; None: no bound
    overlap  share of the selected rows that lie in the staging buffer from the step before
    the rest as `memsim.record` and `memsim.replay` have them
    """

    part: str = "step"
    place: tuple[str, ...] = ()
    overflow: str = "refuse"
    run_on: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    selection: str | None = None
    stage: str | None = None
    seed: int = 0
    replace: tuple[str, ...] = ()
    ratio: str | None = None
    kv_dtype: str | None = None
    index_dtype: str | None = None
    weights_dtype: str | None = None
    routing: str | None = None
    parallel: str | None = None
    overlap: float = 0.0
    draft: int = 1
    accepted: int | None = None
    slo_ps: int | None = None

    def recording(self, model: str, batch: int, units: int) -> dict[str, Any]:
        """Options of `memsim.record`; a selection only where the model selects."""
        told: dict[str, Any] = {
            "batch": batch,
            "units": units,
            "seed": self.seed,
            "replace": self.replace,
            "ratio": self.ratio,
            "kv_dtype": self.kv_dtype,
            "index_dtype": self.index_dtype,
            "weights_dtype": self.weights_dtype,
            "part": self.part,
            "parallel": self.parallel,
            "draft": self.draft,
            "accepted": self.accepted,
        }
        if self.part == "step":
            told["routing"] = self.routing
        if about(model, self).selects:
            told |= {"selection": self.selection, "stage": "kv" if self.overlap else self.stage}
        return told

    def replaying(self) -> dict[str, Any]:
        """Options of `memsim.replay`."""
        return {"place": self.place, "overflow": self.overflow, "run_on": self.run_on}


@dataclass(frozen=True)
class Cell:
    """One point of a grid. batch: a number of sequences, or MAX."""

    model: str
    machine: str
    context_tokens: int
    batch: int | str


@dataclass(frozen=True)
class FamilyPoint:
    """A family of kernels: its time, what binds its longest kernel, and what is known of its errors."""

    time_ps: int
    bound: str
    bound_share: float
    trust: FamilyTrust


@dataclass(frozen=True)
class Point:
    """What a token costs in one cell; without a number (`refused` says why) where it does not fit.

    tpot_ps, low_ps, high_ps   time of a token, and its interval
    trust, why     how far the interval is backed by measurements (see `interval`)
    binds          the family that takes most of the time, and the resource that binds it
    used_bytes     by tier, what one GPU places there
    energy_j, cost_usd   of 10^6 tokens, by what memories and links move, and by scenario the price of the
                   memory that is used, spread over YEARS; None and empty where the machine does not say
    """

    model: str
    machine: str
    context_tokens: int
    batch: int
    part: str
    asked: int | str
    refused: str = ""
    tpot_ps: int = 0
    low_ps: int = 0
    high_ps: int = 0
    gpus: int = 1
    tokens_per_step: int = 1
    trust: str = ""
    why: tuple[str, ...] = ()
    binds: str = ""
    provenance: str = ""
    assumed: tuple[str, ...] = ()
    families: tuple[FamilyPoint, ...] = ()
    effects: tuple[Effect, ...] = ()
    used_bytes: Mapping[str, int] = field(default_factory=dict)
    capacity_bytes: Mapping[str, int] = field(default_factory=dict)
    energy_j: float | None = None
    cost_usd: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens a second that one sequence gets; 0 without a number."""
        return _PS / self.tpot_ps if self.tpot_ps else 0.0

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens a second of all sequences, by GPU; 0 without a number."""
        return self.batch * self.tokens_per_s_per_user / self.gpus

    def document(self) -> dict[str, Any]:
        """Plain data that `from_document` takes."""
        return asdict(self)


def from_document(document: Mapping[str, Any]) -> Point:
    """The point that `Point.document` gave, also after a way through JSON."""
    told: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in document.items()}
    told["families"] = tuple(
        FamilyPoint(**{**family, "trust": _tupled(FamilyTrust, family["trust"])})
        for family in document["families"]
    )
    told["effects"] = tuple(Effect(**effect) for effect in document["effects"])
    return Point(**told)


def _tupled(cls: Any, document: Mapping[str, Any]) -> Any:
    return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in document.items()})


@lru_cache
def about(name: str, ask: Ask) -> Any:
    """The model of a name or a file, changed as asked; UsageError for none."""
    from workloads.models import get_model
    from workloads.models.load import changes_of

    return get_model(
        name, changes_of(ask.replace, ask.ratio, ask.kv_dtype, ask.index_dtype, ask.weights_dtype)
    )


def refused(cell: Cell, ask: Ask, batch: int, why: str, notes: Sequence[str]) -> Point:
    """A point without a number."""
    name = about(cell.model, ask).name
    return Point(
        name, cell.machine, cell.context_tokens, batch, ask.part, cell.batch, why, notes=tuple(notes)
    )


def priced(
    cell: Cell,
    ask: Ask,
    result: Result,
    trusted: Interval,
    notes: Sequence[str],
) -> Point:
    """A point with its number."""
    slowest = max(result.families, key=lambda family: family.time_ps)
    return Point(
        model=result.model,
        machine=cell.machine,
        context_tokens=cell.context_tokens,
        batch=result.batch,
        part=ask.part,
        asked=cell.batch,
        tpot_ps=result.tpot_ps,
        low_ps=trusted.low_ps,
        high_ps=trusted.high_ps,
        gpus=result.gpus,
        tokens_per_step=result.tokens_per_step,
        trust=trusted.trust,
        why=trusted.why,
        binds=f"{slowest.name} ({slowest.bound})",
        provenance=result.provenance,
        assumed=result.assumed,
        families=tuple(
            FamilyPoint(family.time_ps, family.bound, family.bound_share, trust)
            for family, trust in zip(result.families, trusted.families, strict=True)
        ),
        effects=trusted.effects,
        used_bytes={tier.name: tier.used_bytes for tier in result.tiers if tier.used_bytes},
        capacity_bytes={tier.name: tier.capacity_bytes for tier in result.tiers if tier.used_bytes},
        energy_j=_energy_j(result),
        cost_usd=_cost_usd(result),
        notes=(*notes, *result.notes),
    )


def _tokens(result: Result) -> int:
    return result.batch * result.steps * result.tokens_per_step


def _energy_j(result: Result) -> float | None:
    """Joules that 10^6 tokens take in memories and links; None where one of those used does not say."""
    used = [place for place in (*result.tiers, *result.links) if _moved(place)]
    if any(place.energy_pj is None for place in used):
        return None
    return result.gpus * sum(place.energy_pj or 0 for place in used) / _PS / _tokens(result) * MILLION


def _moved(place: PlaceTotals) -> int:
    return place.moved_read_bytes + place.moved_write_bytes


def _cost_usd(result: Result) -> dict[str, float]:
    """By scenario, dollars of 10^6 tokens: the price of the memory that is used for their time."""
    used = [tier for tier in result.tiers if tier.used_bytes]
    scenarios = {name for tier in used for name, _ in tier.cost_usd}
    known = {name for name in scenarios if all(name in dict(tier.cost_usd) for tier in used)}
    share = result.gpus * result.total_ps / _PS / (YEARS * _YEAR_S) / _tokens(result) * MILLION
    return {name: share * sum(dict(tier.cost_usd)[name] for tier in used) for name in sorted(known)}
