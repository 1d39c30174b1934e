"""Each invariant is broken on purpose, and must be seen."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from engine_cases import (
    HOST,
    TWO_TIERS,
    MemoryTrace,
    columns,
    drawn_case,
    flat_region,
    kernel,
    placed,
    run_both,
    transfer_ps,
)  # fmt: skip

from memsim import fast, ledger
from memsim.errors import MemsimError
from memsim.result import Outcome
from memsim.tally import Watched
from memsim.trace import Access


@pytest.fixture
def outcome() -> tuple[Outcome, np.ndarray]:
    region = flat_region(0, 100, 100)
    accesses = [Access(0, 0, 1, 0, False, 0, 90, spread="each"), Access(0, 1, 1, 0, True, 3, 7)]
    watched = Watched(MemoryTrace((region,), [(kernel(blocks=2), columns(accesses))]))  # type: ignore[arg-type]
    found = fast.run(watched, TWO_TIERS, placed([region], 1), 512)  # type: ignore[arg-type]
    return found, watched.tally.issued


def test_a_sound_outcome_passes(outcome: tuple[Outcome, np.ndarray]) -> None:
    ledger.check(*outcome, TWO_TIERS)
    found, issued = outcome
    assert issued.tolist() == [[2 * 90 * 100, 700]]
    rounding = int((found.moved - found.issued).sum())
    hits = int(found.issued[0, 2].sum())
    assert issued.sum() == hits + found.moved[0, :2].sum() - rounding


@pytest.mark.parametrize(
    ("field", "place", "change", "message"),
    [
        ("issued", (0, 1, 0), 1, "bytes read of region 0"),
        ("issued", (0, 1, 1), -1, "bytes written of region 0"),
        ("moved", (0, 1, 0), 1, "bytes moved summed over kernels"),
        ("moved", (0, 1, 0), -(10**6), "rounding of a region"),
        ("kernel_moved", (0, 3, 0), 64, "bytes over link pcie"),
        ("end_ps", (0,), -(10**9), "bytes moved by tier|kernels that end"),
        ("latency", (1, 3), 1, "requests completed"),
        ("ready_ps", (0,), 10**12, "kernels that end before they start"),
    ],
)
def test_a_broken_outcome_is_seen(
    outcome: tuple[Outcome, np.ndarray], field: str, place: tuple[int, ...], change: int, message: str
) -> None:
    found, issued = outcome
    getattr(found, field)[place] += change
    with pytest.raises(MemsimError, match=message):
        ledger.check(found, issued, TWO_TIERS)


def test_the_peak_of_a_tier_is_checked_to_the_picosecond(outcome: tuple[Outcome, np.ndarray]) -> None:
    found, issued = outcome
    least_ps = transfer_ps(int(found.moved[:, 1].sum()), HOST.channels * HOST.channel_mbps)
    found.ready_ps[0] = found.start_ps[0] = 0
    found.end_ps[0] = least_ps
    ledger.check(found, issued, TWO_TIERS)
    found.end_ps[0] = least_ps - 1
    with pytest.raises(MemsimError, match="bytes moved by tier host"):
        ledger.check(found, issued, TWO_TIERS)


def test_unique_and_issued_bytes_are_tallied_by_kind() -> None:
    region = flat_region(0, 100, 100)
    accesses = [Access(0, 0, 2, 0, False, 0, 50, spread="each"), Access(0, 0, 0, 0, False, 40, 20)]
    watched = Watched(MemoryTrace((region,), [(kernel(blocks=3), columns(accesses))]))  # type: ignore[arg-type]
    assert len(list(watched.kernels())) == 1
    assert watched.tally.unique["f", "kv"] == [60 * 100, 0]
    assert watched.tally.issued_by_family["f"] == (150 + 20) * 100


@pytest.mark.parametrize("seed", [3, 4])
def test_bytes_are_conserved_on_drawn_cases(seed: int) -> None:
    trace, system, memory, quantum_bytes = drawn_case(Random(seed))
    outcome = run_both(trace, system, memory, quantum_bytes)
    watched = Watched(trace)  # type: ignore[arg-type]
    assert list(watched.kernels())
    ledger.check(outcome, watched.tally.issued, system)
