"""`Result` to the JSON document of `replay --json`: schema version 1, units in key names.

A `Result` enters, a dict of plain numbers, strings, lists and dicts leaves; docs/result.md describes it.
Times become seconds here and nowhere earlier. There is never a NaN or an infinity: a figure that has no
value (a ratio to nothing) is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import memsim
from memsim.result import Explained, FamilyTotals, PlaceTotals, Result
from memsim.system import System

SCHEMA_VERSION = 1

_PS = 10**12  # picoseconds of a second


def document(result: Result) -> dict[str, Any]:
    """The result as a JSON document; its keys are listed in docs/result.md."""
    total_ps = result.total_ps
    return {
        "schema_version": SCHEMA_VERSION,
        "trace": result.trace,
        "model": result.model,
        "machine": result.machine,
        "engine": result.engine,
        "context_tokens": result.context_tokens,
        "batch": result.batch,
        "gpus": result.gpus,
        "steps": result.steps,
        "tokens_per_step": result.tokens_per_step,
        "tpot_s": result.tpot_ps / _PS,
        "tokens_per_s_per_user": ratio(_PS, result.tpot_ps),
        "tokens_per_s_per_gpu": ratio(_PS * result.batch, result.tpot_ps * result.gpus),
        "graph_launch_s": result.graph_launch_ps / _PS,
        "step_s": [step_ps / _PS for step_ps in result.step_ps],
        "interval": result.interval,
        "provenance": result.provenance,
        "assumed": list(result.assumed),
        "notes": list(result.notes),
        "bytes_read": dict(result.bytes_read),
        "bytes_written": dict(result.bytes_written),
        "bytes_issued": dict(result.bytes_issued),
        "bytes_cache_hit": result.cache_hit_bytes,
        "bytes_cache_stored": result.cache_stored_bytes,
        "bytes_written_back": result.written_back_bytes,
        "bytes_kept": result.kept_bytes,
        "bytes_rounding": result.rounding_bytes,
        "requests": result.requests,
        "tiers": {tier.name: _tier(tier, total_ps) for tier in result.tiers},
        "links": {link.name: _link(link, total_ps) for link in result.links},
        "kernels": {family.name: _family(family, total_ps) for family in result.families},
        "digest": result.digest,
        **({"explained": [_explained(each) for each in result.explained]} if result.explained else {}),
    }


def text(result: Result) -> str:
    """The document as text, one key a line; ValueError if it holds a NaN or an infinity."""
    return dumps(document(result))


def dumps(value: Any) -> str:
    """`value` as readable JSON with a line end; ValueError if it holds a NaN or an infinity."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def machine(system: System) -> dict[str, Any]:
    """A machine with the routes from every initiator and every number as its file says it."""
    links = [link.name for link in system.links]
    return {
        "name": system.name,
        "routes": {
            runner.name: {
                tier.name: [links[hop.link] for hop in route]
                for tier, route in zip(system.tiers, routes, strict=True)
            }
            for runner, routes in zip(system.initiators, system.routes, strict=True)
        },
        "numbers": [asdict(number) for number in system.inputs],
    }


def inputs(system: System, options: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, Any]:
    """What a replay rested on: the machine, the options of the replay, what the trace says of itself."""
    return {
        "schema_version": SCHEMA_VERSION,
        "memsim": memsim.__version__,
        "machine": machine(system),
        "options": {name: list(o) if isinstance(o, tuple) else o for name, o in options.items()},
        "trace": dict(trace),
    }


def ratio(part: float, whole: float) -> float | None:
    """part / whole, None where whole is 0."""
    return part / whole if whole else None


def achieved_bytes_per_s(place: PlaceTotals, total_ps: int) -> float:
    """What a place moved over the whole replay [bytes/s]: reads and writes of a tier or a shared link, the
    fuller direction of another link, so that it compares with the peak in all cases."""
    read, written = place.moved_read_bytes, place.moved_write_bytes
    moved = max(read, written) if place.kind == "link" and not place.shared else read + written
    return moved * _PS / total_ps if total_ps else 0.0


def _place(place: PlaceTotals, total_ps: int) -> dict[str, Any]:
    achieved = achieved_bytes_per_s(place, total_ps)
    return {
        "bytes_moved_read": place.moved_read_bytes,
        "bytes_moved_written": place.moved_write_bytes,
        "achieved_bytes_per_s": achieved,
        "sustained_bytes_per_s": place.sustained_mbps * 10**6,
        "peak_bytes_per_s": place.peak_mbps * 10**6,
        "peak_share": ratio(achieved, place.peak_mbps * 10**6),
        "busy_s": place.busy_ps / _PS,
        "busy_share": ratio(place.busy_ps, total_ps),
        "waiting_s": place.waiting_ps / _PS,
        "capacity_used": place.used_bytes,
        "capacity_bytes": place.capacity_bytes,
        "energy_j": None if place.energy_pj is None else place.energy_pj / _PS,
    }


def _tier(tier: PlaceTotals, total_ps: int) -> dict[str, Any]:
    return {
        "bytes_issued_read": tier.issued_read_bytes,
        "bytes_issued_written": tier.issued_write_bytes,
        **_place(tier, total_ps),
        "bytes_written_back": tier.written_back_bytes,
        "cost_usd": dict(tier.cost_usd),
        "requests": tier.requests,
        "latency_p50_s": tier.p50_ps / _PS,
        "latency_p99_s": tier.p99_ps / _PS,
    }


def _link(link: PlaceTotals, total_ps: int) -> dict[str, Any]:
    return {**_place(link, total_ps), "bytes_on_wire": link.wire_bytes, "shared": link.shared}


def _family(family: FamilyTotals, total_ps: int) -> dict[str, Any]:
    return {
        "kernels": family.kernels,
        "initiator": family.initiator,
        "time_s": family.time_ps / _PS,
        "share": ratio(family.time_ps, total_ps),
        "bytes_read": family.bytes_read,
        "bytes_written": family.bytes_written,
        "bytes_issued": family.bytes_issued,
        "bound": family.bound,
        "bound_share": family.bound_share,
        "bound_shares": dict(family.bound_shares),
        "naive_s": family.naive_ps / _PS,
        "naive_place": family.naive_place,
    }


def _explained(kernel: Explained) -> dict[str, Any]:
    return {
        "kernel": kernel.kernel,
        "number": kernel.number,
        "family": kernel.family,
        "initiator": kernel.initiator,
        "time_s": kernel.time_ps / _PS,
        "parts": {
            part.resource: {
                "time_s": part.time_ps / _PS,
                "share": ratio(part.time_ps, kernel.time_ps),
                "alone_s": None if part.alone_ps is None else part.alone_ps / _PS,
                "saved_by_a_tenth_more_s": part.saved_ps / _PS,
            }
            for part in kernel.parts
        },
        "rest_s": kernel.rest_ps / _PS,
        "tiles_in_flight": kernel.tiles[0],
        "tiles_in_flight_with_a_tenth_more": kernel.tiles[1],
    }
