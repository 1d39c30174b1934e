"""Random data that production kernels can read, in one large pool; how many buffers a point rotates among.

Random bits would do for a copy; a softmax over them would see NaN. So a pool holds rows as a cache holds
them: normal numbers in bf16, fp32 or fp8, MLA rows of 656 bytes with their scales, pages of index keys. A
block of at most 256 MB is drawn and repeated through the pool. One pool lives at a time; it goes when another
kind is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import Env, drop_pools
from .kernels_libs import FP8_ROW_BYTES, INDEX_DIMS, INDEX_ROW_BYTES, LATENT, PAGE_TOKENS

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 256 << 20
COLD_BYTES = 320 << 20  # what rotating buffers touch together: five times the L2 of an H200
WEIGHT_DEVIATION = 0.02
UNIT_BYTES = {"bf16": 4096, "f32": 4096, "fp8": 4096, "weights": 4096}
UNIT_BYTES |= {"rows": FP8_ROW_BYTES * PAGE_TOKENS, "index": INDEX_ROW_BYTES * PAGE_TOKENS}


def buffers_for(call_bytes: int, *, warm: bool = False, most: int = 512) -> int:
    """Sets of buffers that make a point cold: `COLD_BYTES` together, 2 at least, `most` at most. Warm: 1."""
    return 1 if warm else max(2, min(most, -(-COLD_BYTES // max(1, call_bytes))))


def hold(env: Env, kind: str, nbytes: int) -> torch.Tensor:
    """`nbytes` bytes or more (uint8, whole units) of valid data of a kind; kept until another is held."""
    import torch

    unit = UNIT_BYTES[kind]
    size = -(-nbytes // unit) * unit
    held = env.facts.get("held")
    if held is None or held[0] != kind or held[1].numel() < size:  # type: ignore[index]
        del held
        env.facts.pop("held", None)
        drop_pools(env)
        data = torch.empty(size, dtype=torch.uint8, device=env.device)
        repeat(data, drawn(kind, min(size, BLOCK_BYTES // unit * unit), env.device))
        env.facts["held"] = (kind, data)
    return env.facts["held"][1][:size]  # type: ignore[index]


def repeat(data: torch.Tensor, block: torch.Tensor) -> None:
    """Fill `data` with copies of `block`, the last one cut; both uint8, flat, and whole words of 8 bytes."""
    import torch

    data, block = data.view(torch.int64), block.view(torch.int64)
    whole = data.numel() // block.numel() * block.numel()
    data[:whole].view(-1, block.numel()).copy_(block)
    data[whole:].copy_(block[: data.numel() - whole])


def drawn(kind: str, nbytes: int, device: str, seed: int = 1) -> torch.Tensor:
    """`nbytes` bytes (whole units) of fresh random data of a kind, uint8 and flat."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, device=device) * 0.5 + 0.25

    units = nbytes // UNIT_BYTES[kind]
    if kind == "f32":
        return normal(units * 1024).view(torch.uint8)
    if kind in ("bf16", "weights"):
        scale = 1.0 if kind == "bf16" else WEIGHT_DEVIATION
        return (normal(units * 2048) * scale).bfloat16().view(torch.uint8)
    if kind == "fp8":
        return normal(units * 4096).to(torch.float8_e4m3fn).view(torch.uint8)
    tokens = units * PAGE_TOKENS
    if kind == "rows":
        values = normal(tokens, LATENT).to(torch.float8_e4m3fn).view(torch.uint8)
        scales = uniform(tokens, 4).view(torch.uint8)
        rope = normal(tokens, 64).bfloat16().view(torch.uint8)
        return torch.cat([values, scales, rope], dim=1).view(-1)
    keys = normal(units, PAGE_TOKENS * INDEX_DIMS).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = uniform(units, PAGE_TOKENS).view(torch.uint8)
    return torch.cat([keys, scales], dim=1).view(-1)


def shuffled_pages(count: int, seed: int, device: str) -> torch.Tensor:
    """Numbers 0 .. count - 1 in a random order (int32): which page of the pool holds which piece of a
    sequence.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randperm(count, generator=generator, device=device).to(torch.int32)


def off_ppm(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """Distance of a result from its reference, relative, in parts per million. ValueError if it is not
    finite.
    """
    error = ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()
    if not error < 1e6:
        raise ValueError(f"the output is not finite or far off: relative distance {error}")
    return round(error * 1e6)
