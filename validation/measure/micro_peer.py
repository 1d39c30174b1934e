"""A peer GPU over NVLink: what `micro_host` asks of the host, asked of GPU 1's memory by GPU 0.

Enters: points of `peer.*`. Leaves: what `remote` measures. "far" in the axes is the peer's memory, "near"
one's own.
"""

from __future__ import annotations

import ctypes

from . import cuda, remote, remote_pairs
from .device import Env, Skipped, pool
from .host_memory import SCRATCH_BYTES, Far
from .points import Point
from .rows import Measured

PEER = "cuda:1"
PLACE = (1, 1)  # a CUmemLocation: device 1
NEED_BYTES = 8 << 30
COPY_BYTES = 2 << 30
CHASE_NODES = 1 << 22  # their sectors are twice the peer's L2
ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


def enable(env: Env) -> None:
    """Let GPU 0 reach GPU 1's memory and the other way round, once. Skipped if the machine does not allow it.

    GPU 1's engine makes the copies that run beside those of GPU 0.
    """
    if "peer" in env.facts:
        return
    import torch

    for device in (PEER, env.device):
        torch.zeros(1, device=device)  # both contexts exist
    can = ctypes.c_int()
    cuda.check(cuda.driver().cuDeviceCanAccessPeer(ctypes.byref(can), 0, 1), "cuDeviceCanAccessPeer")
    if not can.value:
        raise Skipped("GPU 0 cannot reach the memory of GPU 1")
    for device, other in ((PEER, 0), (env.device, 1)):
        torch.cuda.set_device(device)  # makes its context current
        context = ctypes.c_void_p()
        cuda.check(
            cuda.driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), other), "cuDevicePrimaryCtxRetain"
        )
        code = cuda.driver().cuCtxEnablePeerAccess(context, ctypes.c_uint(0))
        if code != ALREADY_ENABLED:
            cuda.check(code, "cuCtxEnablePeerAccess")
    env.facts["peer"] = True


def memory(env: Env) -> Far:
    """GPU 1's pool of random bytes as a far memory. The rates are what NVLink 4 is said to give."""
    enable(env)
    data = pool(env, NEED_BYTES, PEER)
    nbytes = (data.numel() - SCRATCH_BYTES) // remote.PAGE_BYTES * remote.PAGE_BYTES
    extra: dict[str, int | float | str] = {"region_bytes": nbytes}
    return Far(data.data_ptr(), nbytes, nbytes, gbps=390.0, latency_ns=1000.0, extra=extra, device=PEER)


def _noted(measured: Measured, far: Far) -> Measured:
    measured.extra |= far.extra
    return measured


def _copy(point: Point, env: Env) -> Measured:
    return _noted(remote.copies(point, env, far := memory(env)), far)


def _queue(point: Point, env: Env) -> Measured:
    return _noted(remote.queued(point, env, far := memory(env), PLACE), far)


def _stream(point: Point, env: Env) -> Measured:
    return _noted(remote.streams(point, env, far := memory(env)), far)


def _gather(point: Point, env: Env) -> Measured:
    return _noted(remote.gathers(point, env, far := memory(env)), far)


def _chase(point: Point, env: Env) -> Measured:
    return _noted(remote.chases(point, env, far := memory(env), CHASE_NODES), far)


def _beside(point: Point, env: Env) -> Measured:
    return _noted(remote_pairs.beside(point, env, far := memory(env), COPY_BYTES), far)


FAMILIES = {
    "peer.copy": _copy,
    "peer.copy_queue": _queue,
    "peer.stream": _stream,
    "peer.gather": _gather,
    "peer.chase": _chase,
    "peer.beside": _beside,
}
