"""What a family function gets beside its point: the device, the time it may use, a pool of random bytes.

`slices` hands out views of one pool that is allocated and filled once, at another place each round: a fresh
allocation as far as pages and channels go, without its cost. Facts about machine and versions for run.json.
"""

from __future__ import annotations

import functools
import os
import platform
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from . import nvml

if TYPE_CHECKING:
    import torch

ALIGN_BYTES = 2 << 20  # one GPU page
POOL_SHARE = 0.62  # of the device's memory, when somebody first asks
CPU_POOL_BYTES = 64 << 20


class Skipped(Exception):
    """The machine lacks what the family needs; the message says what."""


@dataclass
class Env:
    """device "cuda:0" or "cpu"; rounds = fresh buffers per point; budget_s = timed seconds per point, all
    rounds together; warm_s = before the first sample of a round; sample_s = that a sample lasts at least;
    window_s = that samples in a row are averaged over (0: they are not).

    since: rows of runs before it do not count as done.
    profile: the pass that only lists kernels; `captured` then receives name -> (count, ns) of one pass.
    """

    device: str
    run: str = ""
    rounds: int = 2
    budget_s: float = 0.15
    warm_s: float = 0.02
    sample_s: float = 0.008
    window_s: float = 0.0
    since: str = ""
    smoke: bool = False
    profile: bool = False
    captured: dict[str, tuple[int, int]] = field(default_factory=dict)
    pools: dict[str, torch.Tensor] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)  # what a family wants to keep between its points

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    def clocks(self, device: str = "") -> dict[str, int | float]:
        """Clocks, watts and temperature now; empty on a machine without NVML."""
        device = device or self.device
        return nvml.read(bus_id(device)) if device.startswith("cuda") else {}


def bus_id(device: str) -> str:
    """PCI address of "cuda:N" as NVML takes it."""
    import ctypes

    from . import cuda

    index = int(device.partition(":")[2] or 0)
    text = ctypes.create_string_buffer(32)
    cuda.check(cuda.driver().cuDeviceGetPCIBusId(text, 32, index), "cuDeviceGetPCIBusId")
    return text.value.decode()


def need_gpus(count: int) -> None:
    """Skipped if torch sees fewer GPUs."""
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < count:
        raise Skipped(f"needs {count} GPU{'s' if count > 1 else ''}, found {found}")


def pool(env: Env, need_bytes: int, device: str = "") -> torch.Tensor:
    """At least `need_bytes` random bytes (uint8) on a device; grows by being allocated anew."""
    device = device or env.device
    held = env.pools.get(device)
    if held is not None and held.numel() >= need_bytes:
        return held
    size = max(need_bytes, _first_pool_bytes(device))
    drop_pools(env, device)
    env.pools[device] = _random_bytes(size, device)
    return env.pools[device]


def _first_pool_bytes(device: str) -> int:
    import torch

    if not device.startswith("cuda"):
        return CPU_POOL_BYTES
    share = int(torch.cuda.get_device_properties(device).total_memory * POOL_SHARE)
    return share // ALIGN_BYTES * ALIGN_BYTES


def _random_bytes(size: int, device: str) -> torch.Tensor:
    import torch

    if not device.startswith("cuda"):
        generator = torch.Generator().manual_seed(1)
        return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    data = torch.empty(size, dtype=torch.uint8, device=device)
    fill_random(data, 1)
    return data


def fill_random(data: torch.Tensor, seed: int) -> None:
    """Random bits into a CUDA tensor whose bytes are a multiple of 16, at memory speed."""
    import torch

    from . import cuda

    words = data.numel() * data.element_size() // 16
    with torch.cuda.device(data.device):
        cuda.bind("common.cu", "fill_random", 132 * 8, 256, data, words, seed)()


def drop_pools(env: Env, device: str = "") -> None:
    """Give the pool's memory back, before a family that allocates by itself."""
    import torch

    for name in [device] if device else list(env.pools):
        env.pools.pop(name, None)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def slices(
    env: Env, nbytes: int, count: int, round_index: int, *, seed: int = 0, device: str = ""
) -> list[torch.Tensor]:
    """`count` views (uint8, `nbytes` each) of the pool that do not overlap, each on a 2 MB page of its own.

    Where in the pool they begin differs from round to round and from seed to seed.
    """
    step = -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
    whole = pool(env, step * count, device)
    room = (whole.numel() - step * count) // ALIGN_BYTES
    base = random.Random(seed * 64 + round_index).randint(0, room) * ALIGN_BYTES
    return [whole[base + i * step : base + i * step + nbytes] for i in range(count)]


def flush_l2(env: Env, avoid: torch.Tensor, flush_bytes: int = 512 << 20) -> None:
    """Fill the L2 with other bytes than those of `avoid`, a view of the pool: written, then read.

    Reading alone is not enough: lines that were written stay. On an H200 every fourth load of a chase over
    64 GiB was served by the L2 although 512 MB had been read since its links were written.
    """
    import torch

    from . import cuda

    whole = pool(env, flush_bytes, str(avoid.device))
    first = avoid.data_ptr() - whole.data_ptr()
    after = whole.numel() - first - avoid.numel() * avoid.element_size()
    start = 0 if first >= after else (whole.numel() - flush_bytes) // 16 * 16
    with torch.cuda.device(avoid.device):
        area = whole[start : start + flush_bytes]
        fill_random(area, 2)
        cuda.bind("common.cu", "sweep", 132 * 8, 256, area, flush_bytes // 16, whole)()


def machine_facts(device: str) -> dict[str, object]:
    """Device, driver, versions, commit, command and time for run.json. What cannot be read is left out."""
    facts: dict[str, object] = {
        "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "commit": os.environ.get("MEMSIM_COMMIT") or _said(["git", "rev-parse", "HEAD"]),
        "cpu": _said(["sh", "-c", "grep -m1 'model name' /proc/cpuinfo | cut -d: -f2"]),
    }
    try:
        import torch
    except ImportError:
        return facts
    facts |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("triton", "fla", "flash_mla", "deep_gemm", "flashinfer", "sgl_kernel", "vllm"):
        facts |= _version(name)
    if device.startswith("cuda"):
        found = torch.cuda.get_device_properties(device)
        facts |= {
            "device": found.name,
            "gpus": torch.cuda.device_count(),
            "driver": nvml.driver_version(),
            "multiprocessors": found.multi_processor_count,
            "memory_bytes": found.total_memory,
            "l2_bytes": getattr(found, "L2_cache_size", 0),
            "idle": nvml.read(bus_id(device)),
            "limits": nvml.limits(bus_id(device)),
        }
    return facts


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


def _version(module: str) -> dict[str, object]:
    if util.find_spec(module) is None:
        return {}
    names = _distributions().get(module, [module])
    try:
        return {module: metadata.version(names[0])}
    except metadata.PackageNotFoundError:
        return {module: "present"}


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def busy(env: Env, seconds: float) -> None:
    """Keep the GPU's memory busy, so that clocks are up before the first point."""
    if not env.cuda:
        return
    import torch

    data = torch.empty(1 << 30, dtype=torch.uint8, device=env.device)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for seed in range(8):
            fill_random(data, seed)
        torch.cuda.synchronize(env.device)
