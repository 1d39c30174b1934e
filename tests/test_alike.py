"""Segments are replayed once where, and only where, nothing that a replay rests on differs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from engine_cases import QUANTUM, TWO_TIERS, MemoryTrace, columns, flat_region, kernel

from memsim import fast
from memsim.cache_plan import CachePlan
from memsim.options import ReplayOptions
from memsim.placement import Piece, Placement, build_memory
from memsim.rules import Memory
from memsim.trace import Access, Accesses, Kernel

ROWS = 1 << 12
REGIONS = (flat_region(0, ROWS, 512), flat_region(1, ROWS, 512), flat_region(2, ROWS, 256))
FIRST = kernel(0, blocks=4, tiles_in_flight=2, flops_per_tile=1000, flops_unit="bf16")
READ = Access(0, 0, 3, 0, False, 0, 512, spread="even", grain=4, worked=True)
STORE = Access(0, 1, 1, 0, True, 512, 8)
GATHER = Access(0, 2, 2, 0, False, 0, 3, gather=np.array([700, 900, 800]))
OTHER = {
    "blocks": 5, "blocks_per_unit": 2, "tile_rows": 2, "tile_bytes": 512, "tiles_in_flight": 3,
    "retire": "in_order", "flops_per_tile": 2000, "flops_unit": "fp8", "startup_ps": 1, "drain_ps": 1,
    "tile_ps": 1, "blocks_sharing": 2, "partial_bytes": 8, "partial_serial": True,
}  # fmt: skip
ONLY_NAMES = {
    "name": "other", "family": "other", "layer": 1, "stream": 1, "partial_region": 1, "tile_rule": "other",
}  # fmt: skip


def accesses_of(region: int, *listed: Access) -> Accesses:
    return columns([replace(access, region=region) for access in listed])


def placed(tier: int = 0) -> Memory:
    """All regions in the first tier, the second one in `tier`."""
    pieces = [(Piece(region.rows, ((tier if region.id == 1 else 0, 1),)),) for region in REGIONS]
    return build_memory(REGIONS, Placement(tuple(pieces), (0, 0)))


def replays(
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any] | None = None,
    second: Accesses | None = None,
    memory: Memory | None = None,
    planned: bool = False,
    listed: tuple[Access, ...] = (READ, STORE, GATHER),
) -> int:
    """How many kernels are replayed, of one behind another, which are alike, and a changed one behind them.

    The first kernel of a step, which pays for its launch, comes before all and is taken off the count.
    """
    count = -1
    once = fast.replay_segment

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return once(*given)

    launches: list[tuple[Kernel, Accesses]] = [
        (FIRST, accesses_of(2, *listed)),
        (replace(FIRST, id=1, waits_for=(0,)), accesses_of(0, *listed)),
        (
            replace(FIRST, id=2, waits_for=(1,), **(changes or {})),
            accesses_of(1, *listed) if second is None else second,
        ),
    ]
    where = placed() if memory is None else memory
    plan = CachePlan(TWO_TIERS, where, QUANTUM) if planned else None
    monkeypatch.setattr(fast, "replay_segment", counted)
    fast.run(MemoryTrace(REGIONS, launches), TWO_TIERS, where, ReplayOptions(QUANTUM), plan=plan)
    monkeypatch.undo()
    return count


def test_every_column_of_a_kernel_is_tried() -> None:
    assert {*OTHER, *ONLY_NAMES, "id", "step", "waits_for"} == {field.name for field in fields(Kernel)}


def test_kernels_that_differ_in_names_numbers_and_regions_are_replayed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert replays(monkeypatch, ONLY_NAMES) == 1


@pytest.mark.parametrize("name", OTHER)
def test_a_kernel_that_works_otherwise_is_replayed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert replays(monkeypatch, {name: OTHER[name]}) == 2


def test_the_first_kernel_of_a_step_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replays(monkeypatch, {"step": 1}) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 508}, {"first_row": 4}, {"grain": 8}, {"stride": 2}, {"write": True}, {"worked": False},
        {"dependent": True}, {"block_last": 2}, {"block": 1}, {"spread": "each", "grain": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_kernel_that_asks_for_other_rows_is_replayed(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    second = accesses_of(1, replace(READ, **changes), STORE, GATHER)
    assert replays(monkeypatch, second=second) == 2


def test_other_rows_of_a_list_are_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    second = accesses_of(1, READ, STORE, replace(GATHER, gather=np.array([700, 901, 800])))
    assert replays(monkeypatch, second=second) == 2


def test_one_access_in_the_middle_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of a single value are told by it: that the first and the last are equal does not make one."""
    second = accesses_of(1, READ, replace(READ, rows=508), READ)
    assert replays(monkeypatch, second=second, listed=(READ, READ, READ)) == 2


def test_rows_in_another_tier_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replays(monkeypatch, memory=placed(1)) == 2


def test_rows_of_another_size_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replays(monkeypatch, second=accesses_of(2, READ, STORE, GATHER)) == 2


def test_rows_that_the_cache_holds_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (READ, STORE, GATHER)
    assert replays(monkeypatch, second=accesses_of(1, *listed), planned=True) == 1
    assert replays(monkeypatch, second=accesses_of(0, *listed), planned=True) == 2
