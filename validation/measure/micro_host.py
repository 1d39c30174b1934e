"""The host link: copies, zero-copy streams and gathers, dependent loads, both directions, beside HBM traffic.

Enters: points of `host.*`. Leaves: what `remote` measures, on pinned host memory. A first point takes the
memory, which lasts about half a minute; it is held until the process ends.
"""

from __future__ import annotations

from . import host_memory, remote, remote_pairs
from .device import Env, Skipped
from .host_memory import Far
from .points import Point
from .rows import Measured

HOST = (2, 0)  # a CUmemLocation: host memory
COPY_BYTES = 256 << 20


def memory(point: Point, env: Env) -> Far:
    """The region that a point asks for by its axis `memory`; "registered" where it has none."""
    if env.profile and not host_memory.is_held():
        raise Skipped("")  # not worth half a minute of pinning for a list of kernels
    kind = point.axes.get("memory", "registered")
    return host_memory.hostalloc(env) if kind == "hostalloc" else host_memory.registered(env)


def _noted(measured: Measured, far: Far) -> Measured:
    measured.extra |= far.extra
    return measured


def _copy(point: Point, env: Env) -> Measured:
    return _noted(remote.copies(point, env, far := memory(point, env)), far)


def _queue(point: Point, env: Env) -> Measured:
    return _noted(remote.queued(point, env, far := memory(point, env), HOST), far)


def _stream(point: Point, env: Env) -> Measured:
    return _noted(remote.streams(point, env, far := memory(point, env)), far)


def _gather(point: Point, env: Env) -> Measured:
    return _noted(remote.gathers(point, env, far := memory(point, env)), far)


def _chase(point: Point, env: Env) -> Measured:
    return _noted(remote.chases(point, env, far := memory(point, env)), far)


def _beside(point: Point, env: Env) -> Measured:
    return _noted(remote_pairs.beside(point, env, far := memory(point, env), COPY_BYTES), far)


FAMILIES = {
    "host.copy": _copy,
    "host.copy_queue": _queue,
    "host.stream": _stream,
    "host.gather": _gather,
    "host.chase": _chase,
    "host.beside": _beside,
}
