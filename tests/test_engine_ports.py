"""The port of a unit: what it takes in and gives out, beside what the memory does."""

from __future__ import annotations

import pytest
from engine_cases import (
    HBM_MBPS,
    HBM_PS,
    L2,
    NO_CACHE,
    ONE_TIER,
    PCIE_MBPS,
    TWO_TIERS,
    MemoryTrace,
    elapsed_ps,
    flat_region,
    kernel,
    one_access_ps,
    one_kernel,
    replayed,
    transfer_ps,
    uncached,
    with_gpu,
)  # fmt: skip

from memsim.system import System
from memsim.trace import Access

READ_MBPS, WRITE_MBPS = 10_007, 7_001  # far below what eight channels of the memory give
ROW = 64


def ported(
    system: System = ONE_TIER, ports: tuple[int, int] = (READ_MBPS, WRITE_MBPS), **changes: int
) -> System:
    return uncached(with_gpu(system, port_mbps=ports, **changes))


def rows(count: int, write: bool = False, blocks: int = 1, **changes: object) -> MemoryTrace:
    """Rows on as many lanes, all at once."""
    launch = kernel(blocks=blocks, tiles_in_flight=count, **changes)
    access = Access(0, 0, blocks - 1, 0, write, 0, count, stride=8, spread="even", worked=True)
    return one_kernel(launch, flat_region(0, 8 * count, ROW), access)


def took_ps(trace: MemoryTrace, system: System) -> int:
    return elapsed_ps(replayed(trace, system, run_on=NO_CACHE))


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_reads_come_back_one_after_another(count: int) -> None:
    assert took_ps(rows(count), ported()) == transfer_ps(count * ROW, READ_MBPS) + HBM_PS


@pytest.mark.parametrize("count", [1, 100])
def test_writes_go_out_one_after_another_and_the_memory_takes_its_time(count: int) -> None:
    out_ps = transfer_ps(count * ROW, WRITE_MBPS)
    alone_ps = transfer_ps(ROW, HBM_MBPS) + HBM_PS
    found_ps = took_ps(rows(count, True), ported())
    assert found_ps == (alone_ps if count == 1 else out_ps)
    assert (out_ps < alone_ps) == (count == 1)


def test_a_port_works_beside_the_memory_the_slower_of_the_two_counts() -> None:
    wide = took_ps(rows(100), ported(ports=(10**8, 10**8)))
    assert wide == took_ps(rows(100), uncached(ONE_TIER))


def test_each_unit_has_its_own() -> None:
    """Two blocks on two units, then on one."""
    alone_ps = took_ps(rows(50), ported())
    assert took_ps(rows(100, blocks=2), ported()) == alone_ps
    together_ps = transfer_ps(100 * ROW, READ_MBPS) + HBM_PS
    assert took_ps(rows(100, blocks=2, blocks_per_unit=2), ported(units=1)) == together_ps


def test_reads_and_writes_pass_each_other() -> None:
    launch = kernel(tiles_in_flight=200)
    reads = Access(0, 0, 0, 0, False, 0, 100, stride=8, worked=True)
    writes = Access(0, 0, 0, 0, True, 4, 10, stride=8, worked=True)
    trace = one_kernel(launch, flat_region(0, 900, ROW), writes, reads)
    assert took_ps(trace, ported()) == took_ps(rows(100), ported())


def test_what_a_link_leads_to_does_not_pass_it() -> None:
    found = one_access_ps(with_gpu(TWO_TIERS, port_mbps=(1, 1)), 1, ROW)
    assert found == one_access_ps(TWO_TIERS, 1, ROW)
    assert PCIE_MBPS > 1


def test_hits_of_the_cache_pass_it_too() -> None:
    """Two blocks on one unit read one row: of 64 B, and 64 B more."""
    trace = one_kernel(
        kernel(blocks=2, blocks_per_unit=2),
        flat_region(0, 2, ROW),
        Access(0, 0, 1, 0, False, 0, 1, spread="each"),
    )
    found = elapsed_ps(replayed(trace, with_gpu(ONE_TIER, units=1, port_mbps=(500, 0))))
    assert found == transfer_ps(2 * ROW, 500) + L2.latency_ps


def test_what_was_waited_is_the_services_before() -> None:
    outcome = replayed(rows(3), ported(), run_on=NO_CACHE)
    assert outcome.ports_waiting_ps[0] == transfer_ps(ROW, READ_MBPS) + transfer_ps(2 * ROW, READ_MBPS)
    assert replayed(rows(3), uncached(ONE_TIER), run_on=NO_CACHE).ports_waiting_ps[0] == 0


def test_whole_transactions_pass_it() -> None:
    """A row of 4 B moves 32 B."""
    launch = kernel(tiles_in_flight=8, tile_bytes=4)
    access = Access(0, 0, 0, 0, False, 0, 8, stride=1024)
    trace = one_kernel(launch, flat_region(0, 8192, 4), access)
    assert took_ps(trace, ported()) == transfer_ps(8 * 32, READ_MBPS) + HBM_PS
