"""How the engine's functions are compiled: one decorator, and a file cache that cannot go stale.

numba's file cache does not notice a change in a function called from another file, and code compiled
with bounds checks would be reused without them. So the cache folder's name carries a digest of all
compiled sources and of the mode. `MEMSIM_CACHE_DIR` moves the folder.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.types import unliteral

from memsim.errors import reason

COMPILED_SOURCES = ("rules.py", "lanes.py", "fast_*.py", "plan_*.py")
_MARK = "compiled"


# An index that is not negative: said so, compiled code does not look whether to count it from the end.
at = np.uint64


def _digest() -> str:
    here = Path(__file__).parent
    sources = sorted(path for pattern in COMPILED_SOURCES for path in here.glob(pattern))
    text = b"".join(path.read_bytes() for path in sources)
    versions = f"{numba.__version__} {platform.python_version()} {platform.machine()}"
    return hashlib.sha256(text + versions.encode()).hexdigest()[:16]


def cache_root() -> Path:
    """The folder of all that can be made again: compiled functions, recorded traces."""
    named = os.environ.get("MEMSIM_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "memsim"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _cache_folder() -> Path:
    mode = "checked" if numba.config.BOUNDSCHECK else "plain"  # type: ignore[attr-defined]
    folder = cache_root() / f"{_digest()}-{mode}"
    if _writable(folder):
        return folder
    scratch = tempfile.mkdtemp(prefix="memsim-")  # a read-only home: compile anew each run
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return Path(scratch)


CACHE_FOLDER = _cache_folder()
numba.config.CACHE_DIR = str(CACHE_FOLDER)  # type: ignore[attr-defined]

# No reference counts (the arrays outlive the call, and counting costs more than the work), no check for a
# division by zero (rates are positive).
_OPTIONS: Any = {"nogil": True, "_nrt": False, "error_model": "numpy"}


class _Cache:
    """numba's file cache of one function, for which a damaged file is a missing one, and a full disk none."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled function, or None.

        numba's own way in fetches all of its compiler first, a tenth of a warm start; code that is compiled
        needs none of it, and compiling fetches it by itself.
        """
        try:
            return self._files._load_overload(signature, context)
        except Exception as fault:  # whatever unpickling makes of damaged bytes
            self._tell("damaged", fault)
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a compiled function if that is possible."""
        try:
            self._files.save_overload(signature, compiled)
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as fault:
            self._tell("not written", fault)

    def _tell(self, what: str, fault: Exception) -> None:
        print(f"memsim: kernel cache {what} ({reason(fault)}); delete {CACHE_FOLDER}", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, too; inside compiled code it is as `inner` makes it."""
    compiled = numba.njit(cache=True, **_OPTIONS)(function)
    if hasattr(compiled, "_cache"):  # not where NUMBA_DISABLE_JIT leaves the function as it is
        compiled._cache = _Cache(compiled._cache)
        within = inner(function)
        compiled.get_call_template, compiled.get_overload = within.get_call_template, within.get_overload
    return compiled


_INNER: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled code calls.

    It has no wrapper for Python and nothing of its own in the cache (the caller's entry holds it), and it is
    inlined: a call would pass all tables by value.
    """
    return _compiled_once(numba.njit(**_OPTIONS, **_INNER)(function))


def _compiled_once(compiled: Any) -> Any:
    """Let a call with a constant use the code for any number, where numba compiles anew for each constant.

    A third of all compilations went into such twins; inlined code is made for its constants in any case.
    """
    if hasattr(compiled, "get_call_template"):
        template = compiled.get_call_template
        plain: Callable[[Any], Any] = unliteral
        compiled.get_call_template = lambda args, kws: template(
            [plain(each) for each in args], {name: plain(each) for name, each in kws.items()}
        )
    return compiled


def cache_is_kept() -> bool:
    """Whether other processes find what this one compiles."""
    return CACHE_FOLDER.is_relative_to(cache_root())


def is_compiled() -> bool:
    """Whether a run has filled the cache before, so that nothing is left to compile."""
    return bool(numba.config.DISABLE_JIT) or (CACHE_FOLDER / _MARK).exists()  # type: ignore[attr-defined]


def mark_compiled() -> None:
    """Remember that the cache is filled. A full disk only costs the next run its notice."""
    try:
        (CACHE_FOLDER / _MARK).touch()
    except OSError:
        return
