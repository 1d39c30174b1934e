"""Streams over the GPU's own memory: read, write, copy, update in place.

Axes: bytes of one call (read, written, or both for copy and update), blocks, flight (bytes that one block
asks for at once), cache: cold (the buffers in turn are several times the L2) or warm (one buffer, again and
again).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import cuda
from .device import Env, slices
from .points import Point
from .rows import Measured
from .timing import Work, time_work

if TYPE_CHECKING:
    import torch

FOOTPRINT_BYTES = 320 << 20  # of the buffers in turn, where they are cold
CHECK_BYTES = 1 << 30  # larger buffers are not summed up again
KEY = 0x5DEECE66


def shape(flight: int) -> tuple[int, int]:
    """Threads of a block and 16-byte words per thread that make `flight` bytes. ValueError if none do."""
    threads = min(256, flight // 16)
    words = flight // (16 * threads)
    if threads % 32 or words not in (1, 2, 4, 8, 16) or threads * words * 16 != flight:
        raise ValueError(f"flight {flight}: expected 512, 1024, ... 65536")
    return threads, words


def buffers_for(nbytes: int, cache: str) -> int:
    return 1 if cache == "warm" else max(1, -(-FOOTPRINT_BYTES // nbytes))


def stream(kind: str, point: Point, env: Env) -> Measured:
    """Measure one kind at a point. A buffer is read, written, or both; a copy has two."""
    nbytes, blocks = point["bytes"], point["blocks"]
    threads, words = shape(point["flight"])
    count = buffers_for(nbytes, point["cache"])
    tiles, rest = divmod(nbytes, point["flight"])
    if rest:
        raise ValueError(f"{nbytes} bytes are not whole tiles of {point['flight']}")
    resident = cuda.resident_blocks("stream.cu", f"{kind}_{words}", threads)

    def build(round_index: int) -> Work:
        halves = 2 if kind == "copy" else 1
        buffers = slices(env, nbytes, count * halves, round_index, seed=point.seed)
        total = env_sum(env)
        calls = []
        for i in range(count):
            pair = buffers[i * halves : (i + 1) * halves]
            arguments = {
                "read": (pair[0], tiles, total, 0),
                "write": (pair[0], tiles, KEY + i),
                "copy": (pair[-1], pair[0], tiles),
                "update": (pair[0], tiles, KEY + i),
            }[kind]
            calls.append(cuda.bind("stream.cu", f"{kind}_{words}", blocks, threads, *arguments))
        again = (blocks, threads, words, tiles)
        return Work(
            calls,
            bytes_read=0 if kind == "write" else nbytes,
            bytes_written=0 if kind == "read" else nbytes,
            footprint_bytes=nbytes * count * halves,
            check=lambda: CHECKS[kind](buffers, calls[0], total, again),
        )

    measured = time_work(build, env)
    measured.extra = {"resident": resident}
    return measured


def env_sum(env: Env) -> torch.Tensor:
    """One 64-bit word that read kernels may add to."""
    import torch

    if "sum" not in env.facts:
        env.facts["sum"] = torch.zeros(1, dtype=torch.int64, device=env.device)
    return env.facts["sum"]  # type: ignore[return-value]


def ends(data: torch.Tensor) -> torch.Tensor:
    """A copy of the first and the last 64 KB."""
    import torch

    return torch.cat([data[:65536], data[-65536:]])


def check_read(buffers: list, call: Callable[[], None], total: torch.Tensor, again: tuple) -> None:
    """The sum of all 64-bit words must be what torch finds."""
    import torch

    blocks, threads, words, tiles = again
    if buffers[0].numel() > CHECK_BYTES:
        return
    total.zero_()
    cuda.bind("stream.cu", f"read_{words}", blocks, threads, buffers[0], tiles, total, 1)()
    expected = buffers[0].view(torch.int64).sum()
    if int(total.item()) != int(expected.item()):
        raise ValueError(f"read: sum {int(total.item())}, expected {int(expected.item())}")


def check_write(buffers: list, call: Callable[[], None], total: torch.Tensor, again: tuple) -> None:
    """Written words must be the ones the kernel computes, and replace whatever was there."""
    data = buffers[0]
    last = data.numel() // 16 - 1
    data[:16] = 0
    data[-16:] = 0
    call()
    for place in (0, last):
        found = bytes(data[place * 16 : place * 16 + 16].tolist())
        if found != scrambled(place, KEY):
            raise ValueError(f"write: word {place} is {found.hex()}, expected {scrambled(place, KEY).hex()}")


def scrambled(place: int, key: int) -> bytes:
    """`scramble` of parts.cuh."""
    mask = 0xFFFFFFFF
    a = ((place ^ key) & mask) * 0x9E3779B1 & mask
    a ^= a >> 15
    b = a * 0x85EBCA77 & mask
    words = (a, b ^ (b >> 13), a * 0xC2B2AE3D & mask, b * 0x27D4EB2F & mask)
    return b"".join(word.to_bytes(4, "little") for word in words)


def check_copy(buffers: list, call: Callable[[], None], total: torch.Tensor, again: tuple) -> None:
    import torch

    source, target = buffers[0], buffers[1]
    target[:65536] = 0
    target[-65536:] = 0
    call()
    if not torch.equal(ends(source), ends(target)):
        raise ValueError("copy: the ends differ")


def check_update(buffers: list, call: Callable[[], None], total: torch.Tensor, again: tuple) -> None:
    import torch

    before = ends(buffers[0]).view(torch.int32)
    call()
    if not torch.equal(ends(buffers[0]).view(torch.int32), before ^ KEY):
        raise ValueError("update: the ends are not what one pass makes of them")


CHECKS = {"read": check_read, "write": check_write, "copy": check_copy, "update": check_update}

FAMILIES = {
    "stream.read": lambda point, env: stream("read", point, env),
    "stream.write": lambda point, env: stream("write", point, env),
    "stream.copy": lambda point, env: stream("copy", point, env),
    "stream.update": lambda point, env: stream("update", point, env),
}
