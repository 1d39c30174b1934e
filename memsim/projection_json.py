"""Points of a projection as a JSON document, units in key names; docs/projection.md lists the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from memsim.projection_point import YEARS, Ask, FamilyPoint, Point
from memsim.report_json import SCHEMA_VERSION

_PS = 10**12


def document(points: Sequence[Point], ask: Ask) -> dict[str, Any]:
    """All points, in the order of the grid, with what they were asked with."""
    asked = asdict(ask)
    slo_ps = asked.pop("slo_ps")
    return {
        "schema_version": SCHEMA_VERSION,
        "asked": {**asked, "slo_s": None if slo_ps is None else slo_ps / _PS},
        "interval_share": [0.05, 0.95],
        "price_years": YEARS,
        "points": [point_document(point) for point in points],
    }


def point_document(point: Point) -> dict[str, Any]:
    """One point; times are null where it does not fit."""
    fits = not point.refused
    return {
        "model": point.model,
        "machine": point.machine,
        "context_tokens": point.context_tokens,
        "batch": point.batch,
        "batch_asked": point.asked,
        "part": point.part,
        "gpus": point.gpus,
        "fits": fits,
        "shortfall": point.refused or None,
        "tpot_s": point.tpot_ps / _PS if fits else None,
        "interval_s": [point.low_ps / _PS, point.high_ps / _PS] if fits else None,
        "trust": point.trust or None,
        "trust_why": list(point.why),
        "tokens_per_step": point.tokens_per_step,
        "tokens_per_s_per_user": point.tokens_per_s_per_user if fits else None,
        "tokens_per_s_per_gpu": point.tokens_per_s_per_gpu if fits else None,
        "binds": point.binds or None,
        "provenance": point.provenance or None,
        "assumed": list(point.assumed),
        "kernels": {family.trust.family: _family(family) for family in point.families},
        "guesses": [asdict(effect) for effect in point.effects],
        "capacity_used": dict(point.used_bytes),
        "capacity_bytes": dict(point.capacity_bytes),
        "energy_j_per_million_tokens": point.energy_j,
        "cost_usd_per_million_tokens": dict(point.cost_usd),
        "notes": list(point.notes),
    }


def _family(family: FamilyPoint) -> dict[str, Any]:
    trust = family.trust
    return {
        "time_s": family.time_ps / _PS,
        "share": trust.share,
        "bound": family.bound,
        "bound_share": family.bound_share,
        "measured_like": list(trust.like),
        "measured_ratio": [trust.low, trust.high],
        "trust": trust.trust,
        "trust_why": trust.why or None,
    }
