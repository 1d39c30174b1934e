"""Pinned host memory that kernels and copy engines reach: taken once a process, filled with random bytes.

Two kinds. "registered": anonymous pages (of 2 MB if the kernel grants them) that are filled in pieces, then
pinned with cuMemHostRegister; large, because translation reach is one of the questions. "hostalloc":
cuMemHostAlloc, as torch's pin_memory does it; smaller. A machine whose memory grows as it is used is given
time to grow; what is not there after PIN_SECONDS is left out, and the points that need more of it say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from . import cuda
from .device import Env, fill_random, pool
from .micro_cpu import available_bytes

GIB = 1 << 30
SCRATCH_BYTES = GIB // 2  # at the end of each region: written to push something else out of caches
REGISTERED_BYTES = 48 * GIB + SCRATCH_BYTES
HOSTALLOC_BYTES = 8 * GIB
PIN_SECONDS = 32.0  # for the registered region; it ends where it is then
CHUNK_BYTES = 4 * GIB  # pinned in one call; no copy crosses its end
PIECE_BYTES = GIB
SMALL_PIECE_BYTES = 128 << 20
PLENTY_BYTES, LEAST_BYTES = 6 * GIB, GIB  # free memory: above, pieces are large; below, growth is waited for
WAIT_SECONDS = 10.0
MAP_NORESERVE = 0x4000  # more address space than the memory that is there yet
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
PORTABLE, DEVICEMAP = 1, 2  # flags of cuMemHostRegister and cuMemHostAlloc
CAN_USE_HOST_POINTER = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM


@dataclass(frozen=True)
class Far:
    """A memory that the GPU reaches over a link.

    base         address that kernels use; nbytes of it are there, and SCRATCH_BYTES at `scratch` behind them
    chunk_bytes  copies stay inside pieces of this size
    gbps, latency_ns  what one may expect; they only size the calls
    extra        further columns of its rows
    device       the GPU whose memory it is ("cuda:1"); empty: the host's
    """

    base: int
    nbytes: int
    chunk_bytes: int
    gbps: float
    latency_ns: float
    extra: dict[str, int | float | str] = field(default_factory=dict)
    device: str = ""

    @property
    def scratch(self) -> int:
        return self.base + self.nbytes


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    library.memset.restype = ctypes.c_void_p
    return library


def populate(address: int, nbytes: int, threads: int = 4) -> None:
    """Give every page of a fresh mapping its memory, by `threads` threads."""

    def part(index: int) -> None:
        share = nbytes // threads
        begin = address + index * share
        if _libc().madvise(begin, share, POPULATE_WRITE):
            _libc().memset(begin, 1, share)

    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(part, range(threads)))


def grow(address: int, nbytes: int, end: float) -> int:
    """Populate a mapping piece by piece until `end` (time.monotonic); bytes that have their memory."""
    done, waited = 0, 0.0
    while done < nbytes and time.monotonic() < end:
        free = available_bytes()
        if free < LEAST_BYTES:
            if waited >= WAIT_SECONDS:
                break
            time.sleep(0.05)
            waited += 0.05
            continue
        piece, threads = (PIECE_BYTES, 4) if free > PLENTY_BYTES else (SMALL_PIECE_BYTES, 1)
        piece = min(piece, nbytes - done)
        populate(address + done, piece, threads)
        done += piece
    return done


def _huge_bytes() -> int:
    """Anonymous memory of the whole machine that lies in 2 MB pages."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("AnonHugePages:")), 0)


def pinned(want_bytes: int, seconds: float, pin: Callable[[int, int], None]) -> tuple[int, int, mmap.mmap]:
    """Address and bytes of anonymous memory, populated and pinned in chunks by `pin(address, bytes)`.

    The mapping is longer than needed, in address space alone, so that chunks start on a 2 MB page. A chunk
    that cannot be pinned ends the region; CudaError if it is the first.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    pages = mmap.mmap(-1, want_bytes + CHUNK_BYTES, flags=flags)
    with contextlib.suppress(OSError):  # a kernel without large pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    base = -(-start // (2 << 20)) * (2 << 20)
    end, done = time.monotonic() + seconds, 0
    while done < want_bytes and time.monotonic() < end:
        got = grow(base + done, min(CHUNK_BYTES, want_bytes - done), end)
        whole = got // SMALL_PIECE_BYTES * SMALL_PIECE_BYTES
        if not whole:
            break
        try:
            pin(base + done, whole)
        except cuda.CudaError:
            if not done:
                raise
            break
        done += whole
        if whole < CHUNK_BYTES:
            break
    return base, done, pages


def _register(address: int, nbytes: int) -> None:
    code = cuda.driver().cuMemHostRegister_v2(
        ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_uint(PORTABLE | DEVICEMAP)
    )
    cuda.check(code, f"cuMemHostRegister({nbytes} B)")


_held: dict[str, Far] = {}  # outlives env.facts: pinning takes half a minute
_pages: list[mmap.mmap] = []


def is_held() -> bool:
    """True if this process has pinned the large region already."""
    return "registered" in _held


def registered(env: Env) -> Far:
    """The large region. CudaError if nothing can be pinned or the GPU sees it at other addresses."""
    if "registered" not in _held:
        pool(env, GIB)  # also makes the context current on this thread
        _need_same_address()
        want = GIB if env.smoke else REGISTERED_BYTES
        before, started = _huge_bytes(), time.monotonic()
        base, nbytes, pages = pinned(want, PIN_SECONDS, _register)
        _pages.append(pages)
        if nbytes <= SCRATCH_BYTES:
            raise cuda.CudaError(f"only {nbytes} bytes of host memory could be populated and pinned")
        print(f"host memory: {nbytes / GIB:.2f} GiB pinned in {time.monotonic() - started:.1f} s", flush=True)
        huge = max(0, min(nbytes, _huge_bytes() - before))
        _held["registered"] = _far(env, base, nbytes, CHUNK_BYTES, huge)
    return _held["registered"]


def hostalloc(env: Env) -> Far:
    """The smaller region, pinned by the driver itself."""
    if "hostalloc" not in _held:
        want = GIB if env.smoke else HOSTALLOC_BYTES
        pages = mmap.mmap(-1, want, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        nbytes = grow(address, want, time.monotonic() + PIN_SECONDS / 4) // PIECE_BYTES * PIECE_BYTES
        del (
            pages
        )  # a machine that grows with use has grown now; the driver takes the pages that this gives back
        if not nbytes:
            raise cuda.CudaError("not even 1 GiB of host memory could be populated")
        pointer = ctypes.c_void_p()
        code = cuda.driver().cuMemHostAlloc(
            ctypes.byref(pointer), ctypes.c_size_t(nbytes), ctypes.c_uint(PORTABLE | DEVICEMAP)
        )
        cuda.check(code, f"cuMemHostAlloc({nbytes} B)")
        _held["hostalloc"] = _far(env, pointer.value or 0, nbytes, nbytes, 0)
    return _held["hostalloc"]


def _far(env: Env, base: int, nbytes: int, chunk_bytes: int, huge_bytes: int) -> Far:
    """A pinned region, filled; the rates are what PCIe 5 x16 is said to give."""
    extra: dict[str, int | float | str] = {"region_bytes": nbytes - SCRATCH_BYTES, "huge_bytes": huge_bytes}
    far = Far(base, nbytes - SCRATCH_BYTES, chunk_bytes, gbps=52.0, latency_ns=1300.0, extra=extra)
    randomize(env, far)
    return far


def _need_same_address() -> None:
    value = ctypes.c_int()
    cuda.check(
        cuda.driver().cuDeviceGetAttribute(ctypes.byref(value), CAN_USE_HOST_POINTER, 0),
        "cuDeviceGetAttribute",
    )
    if not value.value:
        raise cuda.CudaError("this GPU does not reach registered host memory at the host's own addresses")


def randomize(env: Env, far: Far) -> None:
    """Random bytes into the whole region: made on the GPU, copied over, another seed for every piece."""
    import torch

    size = min(GIB, far.nbytes)
    piece = pool(env, size)[:size]
    for index, begin in enumerate(range(0, far.nbytes, size)):
        fill_random(piece, 1000 + index)
        copy_async(far.base + begin, piece.data_ptr(), min(size, far.nbytes - begin))
        torch.cuda.synchronize(env.device)


def copy_async(target: int, source: int, nbytes: int, stream: int | None = None) -> None:
    """One copy by a copy engine on a stream (torch's current one if None); addresses say the direction."""
    import torch

    handle = torch.cuda.current_stream().cuda_stream if stream is None else stream
    code = cuda.driver().cuMemcpyAsync(
        ctypes.c_ulonglong(target),
        ctypes.c_ulonglong(source),
        ctypes.c_size_t(nbytes),
        ctypes.c_void_p(handle),
    )
    cuda.check(code, f"cuMemcpyAsync({nbytes} B)")
