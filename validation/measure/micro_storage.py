"""Storage as found: random reads that bypass the page cache (O_DIRECT), by block size and queue depth.

Enters: points of `storage.random`, or the same question from `validation.here`. Leaves: nanoseconds per
read, one sample a window of time; at depth d a read takes d times as long (Little's law). A thread holds
one read outstanding, so `depth` threads read at once. The file is written first, of random bytes, and has
no name while it is read. A virtual disk answers from caches of its host that nothing here can see or empty.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .device import Env, Skipped
from .micro_cpu import loops
from .points import Point
from .rows import Measured

if TYPE_CHECKING:
    import numpy as np

FILE_BYTES = 4 << 30
WRITE_BYTES = 64 << 20
WINDOWS = 9
WARM_S = 0.06
MOST_SECONDS = 3.0  # a disk that completes hardly anything is not waited for longer
FOLDERS = ("/var/tmp", tempfile.gettempdir(), ".", str(Path.home()))


@dataclass(frozen=True)
class DirectFile:
    """An open file of random bytes: descriptor opened with O_DIRECT, its size, where it lies and on what."""

    fd: int
    nbytes: int
    folder: str
    filesystem: str

    def close(self) -> None:
        os.close(self.fd)


def write_file(folder: str | Path, nbytes: int) -> DirectFile:
    """Write nbytes of random data in a folder, open it for direct reads and take its name away.

    OSError if the folder cannot be written, has too little room (ENOSPC) or takes no direct reads (EINVAL).
    """
    import numpy as np

    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < nbytes + (1 << 30):
        raise OSError(errno.ENOSPC, f"{folder}: {nbytes >> 20} MiB do not fit, with 1 GiB to spare")
    fd, name = tempfile.mkstemp(prefix="memsim-storage-", dir=folder)
    try:
        rng = np.random.default_rng()
        for begin in range(0, nbytes, WRITE_BYTES):
            words = min(WRITE_BYTES, nbytes - begin) // 8
            _write_all(fd, rng.integers(0, 1 << 64, words, dtype=np.uint64).data.cast("B"))
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        direct = os.open(name, os.O_RDONLY | os.O_DIRECT)
    finally:
        os.close(fd)
        os.unlink(name)
    file = DirectFile(direct, nbytes, str(folder), filesystem(folder))
    try:
        try_block(file, 4096)
    except OSError:
        file.close()
        raise
    return file


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def filesystem(folder: str | Path) -> str:
    """Kind of file system that a folder lies on ("ext4"), as /proc/mounts says; "unknown" if it does not."""
    where, best, kind = os.path.realpath(folder), "", "unknown"
    with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, point, name = line.split()[:3]
            point = point.replace("\\040", " ")
            inside = where == point or where.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, name
    return kind


def try_block(file: DirectFile, block_bytes: int) -> None:
    """Read the first block. OSError in the system's words if this file takes no reads of that size."""
    with mmap.mmap(-1, max(block_bytes, mmap.PAGESIZE)) as buffer, memoryview(buffer) as view:
        got = os.preadv(file.fd, [view[:block_bytes]], 0)
    if got != block_bytes:
        raise OSError(errno.EIO, f"a read of {block_bytes} bytes gave {got}")


def random_reads(file: DirectFile, block_bytes: int, depth: int, budget_s: float, seed: int = 1) -> Measured:
    """Nanoseconds per read with `depth` reads outstanding. OSError if the file takes no such block."""
    import numpy as np

    code = loops()
    try_block(file, block_bytes)
    room = max(block_bytes, mmap.PAGESIZE)
    buffers = mmap.mmap(-1, room * depth)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffers))
    done = np.zeros((depth, 16), np.int64)  # a counter on two cache lines of its own for each thread
    stop = np.zeros(1, np.int64)
    failed: list[int] = []
    code.read_blocks(
        file.fd, address, block_bytes, 1, 0, done[0], np.ones(1, np.int64)
    )  # compiled before the clock

    def reader(index: int) -> None:
        at = address + index * room
        blocks = file.nbytes // block_bytes
        if code.read_blocks(file.fd, at, block_bytes, blocks, seed * 1000 + index, done[index], stop):
            failed.append(index)

    threads = [threading.Thread(target=reader, args=(index,), daemon=True) for index in range(depth)]
    for thread in threads:
        thread.start()
    try:
        samples = _windows(done, budget_s / WINDOWS)
    finally:
        stop[0] = 1
        for thread in threads:
            thread.join()
    if failed:
        raise OSError(errno.EIO, f"{len(failed)} of {depth} readers failed")
    return Measured(
        samples_ns=samples,
        bytes_read=block_bytes,
        calls=int(done[:, 0].sum()),
        buffers=depth,
        footprint_bytes=file.nbytes,
    )


def _windows(done: np.ndarray, window_s: float) -> list[float]:
    """Nanoseconds per read in WINDOWS windows; done: int64[depth, 16]. One with few reads is made longer."""
    time.sleep(WARM_S)
    samples: list[float] = []
    begin, before = time.perf_counter_ns(), int(done[:, 0].sum())
    end = begin + MOST_SECONDS * 1e9
    while len(samples) < WINDOWS:
        time.sleep(window_s)
        now, after = time.perf_counter_ns(), int(done[:, 0].sum())
        if after - before >= 8:
            samples.append((now - begin) / (after - before))
            begin, before = now, after
        elif now > end:
            if samples:
                break
            raise OSError(errno.EIO, f"only {after - before} reads were done in {MOST_SECONDS} s")
    return samples


def _file(env: Env) -> DirectFile:
    """The campaign's file, in the first folder that takes it. Skipped with the last reason if none does."""
    if "storage file" not in env.facts:
        reason = "no folder"
        for folder in dict.fromkeys((os.environ.get("MEMSIM_SCRATCH", FOLDERS[0]), *FOLDERS)):
            try:
                env.facts["storage file"] = write_file(folder, 64 << 20 if env.smoke else FILE_BYTES)
                break
            except OSError as error:
                reason = f"{folder}: {error.strerror}"
        else:
            raise Skipped(f"no file for direct reads: {reason}")
    return env.facts["storage file"]  # type: ignore[return-value]


def _random(point: Point, env: Env) -> Measured:
    if env.profile:
        raise Skipped("")
    file = _file(env)
    measured = random_reads(file, int(point["block"]), int(point["depth"]), env.budget_s, point.seed)
    measured.extra = {"filesystem": file.filesystem}
    return measured


FAMILIES = {"storage.random": _random}
