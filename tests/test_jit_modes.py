"""The engines agree compiled, interpreted and bounds-checked, each mode with a cache of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memsim.fast_loop import DONE, MORE_REQUESTS, PAUSED

HERE = Path(__file__).parent


def run(cache: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / "jit_modes.py"), *arguments],
        env=os.environ | {"MEMSIM_CACHE_DIR": str(cache)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_interpreted(tmp_path: Path) -> None:
    assert run(tmp_path, "100", NUMBA_DISABLE_JIT="1") == "agree 100\n"


def test_a_loop_that_pauses_and_begins_again_with_a_larger_table_gives_the_same(tmp_path: Path) -> None:
    out = run(tmp_path, "100", "small", NUMBA_DISABLE_JIT="1")
    assert out == f"agree 100\nreturned {DONE} {PAUSED} {MORE_REQUESTS}\n"


@pytest.fixture(scope="module")
def checked_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checked")


def test_bounds_checked_and_a_planted_read_outside_is_caught(checked_cache: Path) -> None:
    out = run(checked_cache, "40", "planted", NUMBA_BOUNDSCHECK="1")
    assert out == "agree 40\nplanted caught\n"
    (folder,) = checked_cache.iterdir()
    assert folder.name.endswith("-checked")


def test_a_change_of_a_compiled_source_changes_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from memsim import jit

    before = jit._digest()
    monkeypatch.setattr(jit, "COMPILED_SOURCES", ("rules.py",))
    assert jit._digest() != before


def test_every_compiled_function_is_in_a_source_that_the_cache_folder_knows() -> None:
    from memsim import jit

    package = HERE.parent / "memsim"
    known = {path for pattern in jit.COMPILED_SOURCES for path in package.glob(pattern)}
    compiled = {path for path in package.glob("*.py") if re.search(r"^@(jit|inner)$", path.read_text(), re.M)}
    assert compiled <= known
    assert len(compiled) >= 6
