"""The invariants of a replay, checked on every run: bytes are conserved, nobody exceeds its peak.

An engine's counts enter together with what the trace says; MemsimError leaves where they disagree.
That would be a fault of memsim, never of the user.
"""

from __future__ import annotations

import numpy as np

from memsim.errors import MemsimError
from memsim.result import Outcome
from memsim.system import System


def check(outcome: Outcome, issued: np.ndarray, system: System) -> None:
    """Check an outcome against the bytes issued by the trace (int64[regions, 2])."""
    _check_bytes(outcome, issued, system)
    _check_links(outcome, system)
    _check_peaks(outcome, system)
    _check_requests(outcome)


def _broken(what: str, found: int, expected: str) -> MemsimError:
    return MemsimError(
        f"invariant broken: {what}: found {found}, expected {expected}; this is a fault of memsim"
    )


def _check_bytes(outcome: Outcome, issued: np.ndarray, system: System) -> None:
    """Issued by the trace = cache hits + moved by tiers - rounding, for every region and direction."""
    tiers = len(system.tiers)
    for way, name in enumerate(("read", "written")):
        served = outcome.issued[:, :, way].sum(axis=1)
        wrong = np.flatnonzero(served != issued[:, way])
        if wrong.size:
            region = int(wrong[0])
            raise _broken(f"bytes {name} of region {region}", int(served[region]), str(issued[region, way]))
    rounding = outcome.moved - outcome.issued
    if (rounding < 0).any() or rounding[:, tiers].any():
        raise _broken("rounding of a region at a tier", int(rounding.min()), "0 or more, and 0 at the cache")
    by_kernel = outcome.kernel_moved[:, : tiers + 1].sum(axis=0)
    if (by_kernel != outcome.moved.sum(axis=0)).any():
        raise _broken("bytes moved summed over kernels", int(by_kernel.sum()), str(outcome.moved.sum()))


def _check_links(outcome: Outcome, system: System) -> None:
    """A link moves what the tiers behind it move."""
    moved = outcome.kernel_moved.sum(axis=0)
    for number, link in enumerate(system.links):
        behind = sum(moved[tier] for tier, route in enumerate(system.routes) if number in route)
        found = moved[len(system.tiers) + 1 + number]
        if np.any(found != behind):
            raise _broken(f"bytes over link {link.name}", int(found.sum()), str(int(np.sum(behind))))


def _check_peaks(outcome: Outcome, system: System) -> None:
    """No tier moves more than its channels can in the time."""
    total_ps = int(outcome.end_ps.max(initial=0))
    moved = outcome.kernel_moved.sum(axis=(0, 2))
    for number, tier in enumerate(system.tiers):
        most = total_ps * tier.channels * tier.channel_mbps // 1_000_000
        if moved[number] > most:
            raise _broken(f"bytes moved by tier {tier.name}", int(moved[number]), f"at most {most}")


def _check_requests(outcome: Outcome) -> None:
    """Every request completes once, and no sum has left the range of int64."""
    for name in ("waiting_ps", "tags_waiting_ps", "units_waiting_ps", "issued", "moved"):
        if (getattr(outcome, name) < 0).any():
            raise _broken(f"sum {name}", int(getattr(outcome, name).min()), "0 or more")
    completed, issued = int(outcome.latency.sum()), int(outcome.requests.sum())
    if completed != issued:
        raise _broken("requests completed", completed, str(issued))
    if (outcome.end_ps < outcome.start_ps).any() or (outcome.start_ps < outcome.ready_ps).any():
        raise _broken("kernels that end before they start", 1, "0")
