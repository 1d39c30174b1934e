"""A second process that compiles into the cache while this one compiles something else.

numba compiles on one core, and what a first replay needs falls into two halves that share next to nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from memsim.jit import cache_is_kept


class Aside:
    """Calls a function without arguments in a process of its own; ends with the `with` that it stands in.

    Nothing rests on it: where there is one core, no cache that is kept, or a process that fails, this one
    finds nothing in the cache and compiles all alone.
    """

    def __init__(self, module: str, function: str, wanted: bool) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        if wanted and cores() > 1 and cache_is_kept():
            self._child = _start(f"from {module} import {function}; {function}()")

    def join(self, meanwhile: Callable[[], None]) -> None:
        """Wait for the process to end; while it runs, there is time for something else that is useful."""
        if self._child is not None and self._child.poll() is None:
            meanwhile()
            self._child.wait()

    def __enter__(self) -> Aside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start(code: str) -> subprocess.Popen[bytes] | None:
    """A silent process of the same interpreter that finds this package where this process did."""
    here = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    try:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
