"""Runs the measuring in a process of its own and starts it again when it dies or hangs, until all is done.

A fault of a kernel ends a process's GPU context, and a hang ends nothing at all: the point that was being
measured is left in `trying.json`, the next process writes it down as a row with an error and goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

LOST = 75  # exit code of a process whose GPU context is gone
RESTARTS = 12
POINT_LIMIT_S = 180.0  # a point that takes longer hangs
CODES = (0, 1, 2, 3, 6)


def marker(folder: Path) -> Path:
    return folder / "trying.json"


def mark(folder: Path, run: str, key: str, phase: str = "timing") -> None:
    """Note the point that is being measured."""
    marker(folder).write_text(json.dumps({"run": run, "point": key, "phase": phase}), encoding="utf-8")


def unmark(folder: Path) -> None:
    marker(folder).unlink(missing_ok=True)


def left(folder: Path, run: str) -> dict[str, str]:
    """point and phase that an earlier process of this run did not finish; empty if there is none.

    A run that was stopped from outside leaves a point too, which has done nothing wrong.
    """
    try:
        found = json.loads(marker(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if found.get("run") == run else {}


def supervise(
    arguments: list[str], folder: Path, run: str, end: float, *, limit_s: float = POINT_LIMIT_S
) -> int:
    """Exit code of the last process. `end`: time.monotonic seconds; `arguments`: those of the command."""
    for _ in range(RESTARTS):
        words = [*arguments, "--worker", run, "--budget", f"{max(0.0, end - time.monotonic()):.1f}"]
        if left(folder, run).get("phase") == "profiler":
            words += ["--profile", "none"]
        worker = subprocess.Popen([sys.executable, "-m", "validation.measure", *words], env=environment())
        try:
            code = wait(worker, folder, limit_s)
        except KeyboardInterrupt:
            worker.wait()
            raise
        if code in CODES:
            return code
        print(f"the measuring process ended with code {code}; going on in a new one", flush=True)
        if time.monotonic() >= end:
            return 3
    print("started again too often", flush=True)
    return 1


def wait(worker: subprocess.Popen, folder: Path, limit_s: float) -> int:
    """Exit code; the process is killed when one point lasts longer than `limit_s`."""
    while True:
        try:
            return worker.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            pass
        try:
            age = time.time() - marker(folder).stat().st_mtime
        except OSError:
            continue
        if age > limit_s:
            worker.kill()
            return worker.wait()


def environment() -> dict[str, str]:
    """This process's environment, with the folder that holds the package `validation` on the path."""
    root = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
