"""Fixtures that several test files use, and the settings of all property tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from trace_samples import SMALL, write

from memsim.jit import is_compiled
from memsim.result import FamilyTotals, PlaceTotals, Result

settings.register_profile("memsim", deadline=None)  # a first call compiles; computers differ in speed
settings.load_profile("memsim")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the engine before workers start, which would all compile it at once."""
    if not hasattr(config, "workerinput") and not is_compiled():
        from validation.predict import compile_engine

        compile_engine()


@pytest.fixture
def result() -> Result:
    """A replay of two steps on a machine with two tiers and a link; every figure can be checked by hand."""
    hbm = PlaceTotals(
        name="hbm",
        kind="tier",
        issued_read_bytes=6_000_000,
        issued_write_bytes=1_000_000,
        moved_read_bytes=6_000_064,
        moved_write_bytes=1_000_000,
        busy_ps=1_500_000,
        waiting_ps=250_000,
        sustained_mbps=4_416_000,
        peak_mbps=4_800_000,
        used_bytes=70_500_000_000,
        capacity_bytes=141_000_000_000,
        requests=1710,
        written_back_bytes=30_000,
        p50_ps=600_000,
        p99_ps=900_000,
    )
    host = PlaceTotals("host", "tier", 10_000, 0, 12_000, 0, 45_000, 0, 267_264, 307_200, 0, 10**12, 10, 7, 9)
    pcie = PlaceTotals("pcie", "link", 0, 0, 12_000, 3_000, 216_000, 5_000_000, 55_440, 63_000)
    scan = FamilyTotals("mla", 4, 2_500_000, 6_000_000, 0, 6_500_000, 2_000_000, "hbm", "gpu", "hbm", 0.71)
    state = FamilyTotals("kda", 2, 1_000_000, 10_000, 1_000_000, 1_010_000, 0, "", "gpu")
    return Result(
        trace="a.parquet",
        model="kimi-linear",
        machine="h200-host",
        engine="fast",
        context_tokens=131072,
        batch=1,
        steps=2,
        tokens_per_step=1,
        step_ps=(1_500_000, 2_500_000),
        graph_launch_ps=50_000,
        families=(scan, state),
        tiers=(hbm, host),
        links=(pcie,),
        bytes_read={"kv": 6_000_000, "state": 10_000},
        bytes_written={"state": 1_000_000},
        bytes_issued={"kv": 6_500_000, "state": 1_010_000},
        cache_hit_bytes=500_000,
        cache_stored_bytes=40_000,
        written_back_bytes=30_000,
        rounding_bytes=12_064,
        requests=1720,
        digest="00ff",
        provenance="assumed",
        assumed=("tier.hbm.interleave", "link.pcie.tags"),
    )


@pytest.fixture(scope="session")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small trace without a fault."""
    path = tmp_path_factory.mktemp("valid") / "t.parquet"
    write(path, SMALL)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, valid: bytes) -> Path:
    """A small trace without a fault, to be spoilt."""
    (tmp_path / "t.parquet").write_bytes(valid)
    return tmp_path / "t.parquet"
