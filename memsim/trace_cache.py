"""Recorded traces kept by what they were made from, so that a trace is recorded once.

What to record enters, the path of a trace leaves for as long as a `with` block lasts. A file's name is a
digest of the sources of the kernels and of the trace format, of the model's file and of all options: another
kernel is another name, and nothing here can be stale; a second digest, of its bytes, finds out a damaged one,
which is recorded again. The folder is `traces` beside the compiled engine
(`MEMSIM_CACHE_DIR`, else ~/.cache/memsim); when it holds more than `MOST_BYTES`, the files longest unused go.
Several processes may use it at once: files appear whole, and a reader holds a link of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import memsim
from memsim.jit import cache_root
from memsim.progress import Progress
from memsim.recording import record

MOST_BYTES = 4 * 10**9  # of all traces that are kept
OURS = ("trace*.py", "recording.py", "units.py")  # of memsim: what a trace's bytes depend on
FILES = ("selection", "routing")  # options that may name a file
KINDS = (".py", ".toml", ".csv", ".parquet", ".npz")


@contextlib.contextmanager
def kept(
    model: str, context_tokens: int, options: Mapping[str, Any], progress: Progress | None = None
) -> Iterator[Path]:
    """The trace of a model at a context, recorded now if it is not there; options: those of `memsim.record`.

    UsageError for a wrong word or number, MissingExtra without torch, OutputError without room.
    """
    folder = cache_root() / "traces"
    key = key_of(model, context_tokens, options)
    with TemporaryDirectory(prefix="memsim-trace-") as own:
        mine = Path(own) / "trace.parquet"
        if not _found(folder, key, mine):
            record(model, context_tokens, mine, **options, progress=progress)
            _keep(mine, folder, f"{key}.{_content(mine)}.parquet")
        yield mine


def key_of(model: str, context_tokens: int, options: Mapping[str, Any]) -> str:
    """Name of a trace: equal where model, options and all that computes it are equal."""
    told = {
        "sources": sources_digest(),
        "model": model,
        "files": [_text_digest(str(word or "")) for word in (model, *map(options.get, FILES))],
        "context": context_tokens,
        "options": {name: value for name, value in options.items() if value not in (None, (), [])},
    }
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _text_digest(word: str) -> str:
    """Digest of the file that a word names; "" where it is a plain name."""
    path = Path(word.removeprefix("file:"))
    return hashlib.sha256(path.read_bytes()).hexdigest() if word and path.is_file() else ""


@lru_cache
def sources_digest() -> str:
    """Digest of the kernels, the models that come with memsim, the trace format and torch's version."""
    here = Path(memsim.__file__).parent
    files = [path for pattern in OURS for path in here.glob(pattern)]
    files += [path for path in (here.parent / "workloads").rglob("*") if path.suffix in KINDS]
    digest = hashlib.sha256(f"{memsim.__version__} {_torch_version()}".encode())
    for path in sorted(files):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _torch_version() -> str:
    """Its version, torch not imported; "" where there is none."""
    if find_spec("torch") is None:
        return ""
    from importlib.metadata import version

    return version("torch")


def _found(folder: Path, key: str, mine: Path) -> bool:
    """Whether a kept trace is now `mine` too, whatever becomes of its own name; a damaged one goes."""
    for path in folder.glob(f"{key}.*.parquet"):
        with contextlib.suppress(OSError):  # pushed out by another process, or not ours to read
            _link(path, mine)
            if _content(mine) == path.name.split(".")[1]:
                return True
            path.unlink()
        mine.unlink(missing_ok=True)
    return False


def _link(path: Path, mine: Path) -> None:
    """`mine` has the bytes of a kept trace, which is now the one last used."""
    with contextlib.suppress(PermissionError):  # a folder that is only read
        os.utime(path)
    try:
        os.link(path, mine)
    except OSError:  # another file system
        shutil.copyfile(path, mine)


def _content(path: Path) -> str:
    """Digest of a trace's bytes, which stands in its name."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _keep(mine: Path, folder: Path, name: str) -> None:
    """Put a trace into the folder, whole; a folder without room only costs the next run its time."""
    part = folder / f".{uuid.uuid4().hex}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.link(mine, part)
        except OSError:
            shutil.copyfile(mine, part)
        os.replace(part, folder / name)
        shrink(folder)
    except OSError:
        part.unlink(missing_ok=True)


def shrink(folder: Path, most_bytes: int | None = None) -> None:
    """Delete the traces longest unused until the rest is at most `most_bytes`; None: MOST_BYTES."""
    found = []
    for path in folder.glob("*.parquet"):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size, path))
    over = sum(size for _, size, _ in found) - (MOST_BYTES if most_bytes is None else most_bytes)
    for _, size, path in sorted(found):
        if over <= 0:
            return
        path.unlink(missing_ok=True)
        over -= size
