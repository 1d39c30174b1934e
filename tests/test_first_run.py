"""The first run after an install compiles in two processes: what the second does, and when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_cases import ONE_TIER, MemoryTrace, flat_region, kernel, one_kernel, placed

from memsim import aside, fast, fast_loop, fast_ring, jit
from memsim.aside import Aside
from memsim.cache_plan import CachePlan
from memsim.fast_first import compile_loop, compile_ring
from memsim.options import ReplayOptions
from memsim.rules import Memory
from memsim.trace import Access

compiles = pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="nothing is compiled")


def scan(blocks: int) -> tuple[MemoryTrace, Memory]:
    region = flat_region(0, 64 * blocks, 512)
    access = Access(0, 0, blocks - 1, 0, False, 0, region.rows, spread="even")
    return one_kernel(kernel(blocks=blocks), region, access), placed([region])


@compiles
def test_what_is_compiled_beforehand_is_what_replays_call() -> None:
    compile_loop()
    compile_ring()
    for blocks in (1, 2):
        trace, memory = scan(blocks)
        fast.run(trace, ONE_TIER, memory, ReplayOptions())
    assert len(fast_loop.run.signatures) == len(fast_ring.run.signatures) == 1


@compiles
def test_what_is_compiled_is_loaded_without_the_compiler() -> None:
    """Its implementations of numpy take a tenth of a warm start."""
    code = "import sys; from memsim.fast_first import compile_ring; compile_ring()"
    code += "; sys.exit('numba.np.linalg' in sys.modules)"
    compile_ring()  # into the cache that both use
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_cold_cache_has_the_loop_compiled_aside_while_the_plan_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(fast, "is_compiled", lambda: False)
    monkeypatch.setattr(aside, "cores", lambda: 2)
    monkeypatch.setattr(aside, "_start", asked.append)
    trace, memory = scan(2)
    warm = fast.run(trace, ONE_TIER, memory, ReplayOptions())
    assert asked == []  # no plan: nothing else to compile
    cold = fast.run(trace, ONE_TIER, memory, ReplayOptions(), None, CachePlan(ONE_TIER, memory, 8192))
    assert asked == ["from memsim.fast_first import compile_loop; compile_loop()"]
    assert cold.digest.tolist() == warm.digest.tolist()
    assert "compiling the engine" in capsys.readouterr().err


def run_aside(code: str, monkeypatch: pytest.MonkeyPatch) -> Aside:
    start = aside._start
    monkeypatch.setattr(aside, "cores", lambda: 2)
    monkeypatch.setattr(aside, "_start", lambda _: start(code))
    return Aside("memsim.fast_first", "compile_loop", wanted=True)


def test_it_runs_beside_this_process_until_it_is_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done, go = tmp_path / "done", tmp_path / "go"
    os.mkfifo(go)
    code = f"import pathlib, memsim.jit as jit; pathlib.Path({str(go)!r}).read_text()\n"
    code += f"pathlib.Path({str(done)!r}).write_text(str(jit.CACHE_FOLDER))"
    with run_aside(code, monkeypatch) as process:
        process.join(lambda: print(go.write_text("go")))
        assert done.read_text() == str(jit.CACHE_FOLDER)


def test_it_ends_with_the_run_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        run_aside("import signal; signal.pause()", monkeypatch) as process,
    ):
        raise KeyboardInterrupt
    assert process._child is not None
    assert process._child.returncode == -9


def test_a_failure_of_it_is_silent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with run_aside("raise SystemExit('no')", monkeypatch) as process:
        process.join(lambda: None)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("cores", "kept", "wanted"), [(1, True, True), (2, False, True), (2, True, False)])
def test_there_is_none_where_it_would_be_of_no_use(
    cores: int, kept: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "cores", lambda: cores)
    monkeypatch.setattr(aside, "cache_is_kept", lambda: kept)
    monkeypatch.setattr(aside, "_start", lambda code: pytest.fail(code))
    with Aside("memsim.fast_first", "compile_loop", wanted) as process:
        process.join(lambda: pytest.fail("nothing to wait for"))


def test_it_is_found_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside.sys, "executable", "/nowhere/python")
    assert aside._start("pass") is None
