"""What keeps the engines safe: pauses for Ctrl-C, ranges of int64, and a kernel cache that may be damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from engine_cases import ONE_TIER, TWO_TIERS, columns, flat_region, kernel, one_kernel, placed, with_gpu

from memsim import fast, fast_loop, fast_ring, jit, reference
from memsim.errors import UsageError
from memsim.limits import MAX_PS, longest_time_ps
from memsim.options import ReplayOptions
from memsim.placement import parse_rules, place_regions
from memsim.program import build_program
from memsim.trace import Access


@pytest.mark.parametrize("loop", [fast_loop, fast_ring])
def test_a_long_segment_pauses_so_that_an_interrupt_is_heard(
    loop: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two blocks at once in the event loop, of one in the ring."""
    rows = loop.REQUESTS_A_RUN + 100_000
    region = flat_region(0, rows, 64)
    blocks = 2 if loop is fast_loop else 1
    access = Access(0, 0, blocks - 1, 0, False, 0, rows, spread="even", worked=True)
    trace = one_kernel(kernel(tiles_in_flight=1, blocks=blocks), region, access)
    statuses = []
    run = loop.run

    def counted(*arguments: object) -> int:
        statuses.append(run(*arguments))
        return int(statuses[-1])

    monkeypatch.setattr(loop, "run", counted)
    outcome = fast.run(trace, ONE_TIER, placed([region]), ReplayOptions(64))
    assert statuses[0] == loop.PAUSED
    assert statuses[-1] == loop.DONE
    assert outcome.requests[0] == rows


@pytest.mark.parametrize("engine", [fast, reference])
@pytest.mark.parametrize(
    "changes",
    [
        {"flops_per_tile": 9 * 10**12, "flops_unit": "fp32"},
        {"startup_ps": 10**15, "blocks": 5000},
        {"tile_ps": 10**15},
    ],
)
def test_a_replay_that_might_leave_int64_is_refused(engine: object, changes: dict[str, object]) -> None:
    rows = 5000
    region = flat_region(0, rows, 64)
    launch = kernel(**changes)
    access = Access(0, 0, launch.blocks - 1, 0, False, 0, rows, spread="even", worked=True)
    system = with_gpu(ONE_TIER, fp32_mflops=1000)
    trace = one_kernel(launch, region, access)
    with pytest.raises(UsageError, match="a clock of picoseconds holds"):
        engine.run(trace, system, placed([region]), ReplayOptions(64))  # type: ignore[attr-defined]


def test_ten_million_tokens_are_far_from_that_limit() -> None:
    region = flat_region(0, 10 * 2**20, 1152)
    launch = kernel(blocks=132, tile_rows=64, tiles_in_flight=2, flops_per_tile=8_912_896, flops_unit="bf16")
    access = Access(0, 0, 131, 0, False, 0, region.rows, spread="even", grain=64, worked=True)
    memory = placed([region], 1)
    launches = [(launch, columns([access]))]
    program = build_program(launches, [[]], [True], TWO_TIERS, memory.regions[:, 0], {})
    assert longest_time_ps(program, memory, TWO_TIERS, 64) < MAX_PS / 1000


def test_shares_too_fine_for_a_region_are_refused() -> None:
    region = flat_region(0, 2 * 10**9, 100)
    rules = parse_rules(["kv=hbm:999999.999997,host:1.000001"], [region], TWO_TIERS)
    with pytest.raises(UsageError, match="use fewer digits"):
        place_regions([region], rules, "refuse", TWO_TIERS)


class Damaged:
    """Cache files of which nothing can be read or written."""

    path = "somewhere"

    def load_overload(self, *_: object) -> None:
        raise EOFError("ran out of input")

    def save_overload(self, *_: object) -> None:
        raise OSError(28, "No space left on device")


def test_a_damaged_kernel_cache_is_an_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    cache = jit._Cache(Damaged())
    assert cache.load_overload("signature", "context") is None
    assert "delete " in capsys.readouterr().err


def test_a_full_disk_costs_the_cache_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    cache = jit._Cache(Damaged())
    cache.save_overload("signature", "compiled")
    assert "No space left" in capsys.readouterr().err
    assert cache.path == "somewhere"


def test_without_a_place_for_the_cache_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-c", "from memsim.jit import CACHE_FOLDER as c; print(c, c.is_dir())"],
        env=os.environ | {"MEMSIM_CACHE_DIR": str(tmp_path / "file" / "below")},
        capture_output=True,
        text=True,
        check=True,
    )
    folder, existed = done.stdout.split()
    assert existed == "True"
    assert not Path(folder).exists()
