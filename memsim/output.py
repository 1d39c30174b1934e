"""`replay -o DIR`: the result, the printed table and what it rests on, written whole or not at all.

Texts enter, files leave. They are written to a hidden folder first and moved when all are complete, so an
interrupted run leaves DIR as it was. The hidden folder lies inside DIR where that exists (it may be a mount
point, or the only place where writing is allowed), else beside it. Files of other names in DIR are left
alone.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from memsim.errors import OutputError, reason


def named(text: str) -> Path:
    """The path that `text` names; OutputError for an empty one, which would mean the current folder."""
    if not text:
        raise OutputError("the name of the output is empty; expected a path; write one ('.' for this folder)")
    return Path(text)


def check_writable(directory: Path) -> None:
    """OutputError if `directory` cannot be made or written: asked before a long run, not after it."""
    with _worded(directory):
        if directory.exists() or directory.is_symlink():
            if not directory.is_dir():
                raise OutputError(f"{directory}: is a file; give the name of a folder, new or not")
            folder = directory
        else:
            folder = next(parent for parent in directory.absolute().parents if parent.exists())
            if not folder.is_dir():
                raise OutputError(f"{directory}: {folder} is a file; give a path of folders")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"{directory}: no right to write in {folder}; choose another folder")
        probe = folder / f".memsim-{uuid.uuid4().hex}.part"  # rights are not all: /proc takes no folders
        probe.mkdir()
        probe.rmdir()


def write_files(directory: Path, texts: Mapping[str, str]) -> None:
    """Write each text to its name in `directory`, which is made if needed; OutputError if that fails."""
    check_writable(directory)
    with _worded(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        place = directory if directory.exists() else directory.parent
        staging = place / f".memsim-{uuid.uuid4().hex}.part"
        try:
            staging.mkdir()
            for name, text in texts.items():  # a file name in a text may hold bytes that are no UTF-8
                (staging / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            _move(staging, directory, texts)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _move(staging: Path, directory: Path, names: Mapping[str, str]) -> None:
    if not directory.exists():
        staging.rename(directory)
        return
    for name in names:
        if (directory / name).is_dir():
            raise OutputError(f"{directory / name}: is a folder; it must make way for the file of this name")
    for name in names:
        os.replace(staging / name, directory / name)


@contextmanager
def _worded(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{directory}: cannot be written: {reason(error)}; choose another folder") from None
