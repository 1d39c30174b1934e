"""The invariants of a replay, checked on every run: bytes are conserved, nobody exceeds its peak.

An engine's counts enter together with what the trace says; MemsimError leaves where they disagree.
That would be a fault of memsim, never of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from memsim.errors import MemsimError
from memsim.result import READ, WRITE, Outcome
from memsim.system import System


def check(outcome: Outcome, issued: np.ndarray, system: System) -> None:
    """Check an outcome against the bytes issued by the trace (int64[regions, 2])."""
    _check_bytes(outcome, issued, system)
    _check_cache(outcome, system)
    _check_links(outcome, system)
    _check_rates(outcome, system)
    _check_requests(outcome)


def _broken(what: str, found: int, expected: str) -> MemsimError:
    return MemsimError(
        f"invariant broken: {what}: found {found}, expected {expected}; this is a fault of memsim"
    )


def _check_bytes(outcome: Outcome, issued: np.ndarray, system: System) -> None:
    """Issued by the trace = cache hits or stored + moved by tiers - rounding, for every region and direction.

    What the cache pushes out is of no region; a tier's kernels move it besides.
    """
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
    by_kernel[:tiers, WRITE] -= outcome.written_back
    if (by_kernel != outcome.moved.sum(axis=0)).any():
        raise _broken("bytes moved summed over kernels", int(by_kernel.sum()), str(outcome.moved.sum()))


def _check_cache(outcome: Outcome, system: System) -> None:
    """Only the first initiator has a cache, and only what it reaches without a link is written back to."""
    elsewhere = outcome.kernel_moved[outcome.initiator > 0, len(system.tiers)]
    if elsewhere.any():
        raise _broken("cache hits of an initiator without a cache", int(elsewhere.sum()), "0 B")
    behind = [bool(route) for route in system.routes[0]]
    if outcome.written_back[behind].any():
        raise _broken("bytes written back over a link", int(outcome.written_back[behind].sum()), "0 B")


def _check_links(outcome: Outcome, system: System) -> None:
    """For every kernel a link carries what the tiers behind it move; its wire carries that and more."""
    expected = np.zeros((len(outcome.initiator), len(system.links), 2), np.int64)
    for initiator, routes in enumerate(system.routes):
        here = outcome.initiator == initiator
        for tier, route in enumerate(routes):
            for hop in route:
                inward = int(hop.flipped)  # 0 is the direction towards the link's first node
                expected[here, hop.link, inward] += outcome.kernel_moved[here, tier, READ]
                expected[here, hop.link, 1 - inward] += outcome.kernel_moved[here, tier, WRITE]
    carried = outcome.kernel_moved[:, len(system.tiers) + 1 :]
    for number, link in enumerate(system.links):
        found, right = carried[:, number], expected[:, number]
        if (found != right).any():
            raise _broken(f"bytes over link {link.name}", int(found.sum()), str(right.sum()))
        data, wire = found.sum(axis=0), outcome.wire_bytes[number]
        if (wire < data).any():
            raise _broken(f"bytes on the wire of link {link.name}", int(wire.min()), f"at least {data}")


def _check_rates(outcome: Outcome, system: System) -> None:
    """No tier and no direction of a link is busy for longer than the replay; both of a shared link together.

    A tier's operations fit in too: none moves more than an interleave block. What channels have gathered at
    the end of a kernel, less than their buffers, may never be written in this time.
    """
    total_ps = int(outcome.end_ps.max(initial=0))
    moved, kernels = outcome.kernel_moved.sum(axis=0), len(outcome.end_ps)
    for number, tier in enumerate(system.tiers):
        channels_mbps = [tier.channels * mbps for mbps in tier.channel_mbps]
        read, written = moved[number].tolist()
        gathered = kernels * tier.channels * max(0, tier.write_buffer_bytes - 1)
        served = [read, max(0, written - gathered)]
        _check_busy(f"bytes moved by tier {tier.name}", served, channels_mbps, total_ps)
        operations = sum(served) // tier.interleave_bytes
        if operations * min(tier.occupancy_ps) > total_ps * tier.channels:
            most = total_ps * tier.channels // min(tier.occupancy_ps)
            raise _broken(f"operations of tier {tier.name}", operations, f"at most {most}")
    for number, link in enumerate(system.links):
        wire, what = outcome.wire_bytes[number].tolist(), f"bytes on the wire of link {link.name}"
        if link.shared:
            _check_busy(what, wire, link.mbps, total_ps)
        else:
            for way in (0, 1):
                _check_busy(what, wire[way : way + 1], link.mbps[way : way + 1], total_ps)


def _check_busy(what: str, nbytes: Sequence[int], mbps: Sequence[int], total_ps: int) -> None:
    """Bytes, each at its rate and one after another, must fit into the time. In whole numbers: all times
    are multiplied by the product of the rates."""
    product = prod(mbps)
    busy = sum(moved * 1_000_000 * (product // rate) for moved, rate in zip(nbytes, mbps, strict=True))
    if busy > total_ps * product:
        raise _broken(what, sum(nbytes), f"no more than {total_ps} ps take")


def _check_requests(outcome: Outcome) -> None:
    """Every request completes once, and no sum has left the range of int64."""
    sums = ("waiting_ps", "tags_waiting_ps", "units_waiting_ps", "ports_waiting_ps", "walks_waiting_ps")
    for name in (*sums, "written_back", "issued", "moved", "wire_bytes"):
        if (getattr(outcome, name) < 0).any():
            raise _broken(f"sum {name}", int(getattr(outcome, name).min()), "0 or more")
    completed, issued = int(outcome.latency.sum()), int(outcome.requests.sum())
    if completed != issued:
        raise _broken("requests completed", completed, str(issued))
    if (outcome.end_ps < outcome.start_ps).any() or (outcome.start_ps < outcome.ready_ps).any():
        raise _broken("kernels that end before they start", 1, "0")
