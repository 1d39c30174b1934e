"""Random tensors to run kernels on, the same for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch

CHUNK_ROWS = 65_536


def generator_for(device: torch.device, *key: int) -> torch.Generator:
    """A generator whose numbers depend on `key` alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers of mean 0 and deviation 1."""
    if dtype not in (torch.bfloat16, torch.float32):
        return torch.randn(shape, generator=generator, device=generator.device).to(dtype)
    return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)


def packed_normal(
    shape: tuple[int, int],
    rows: int,
    width: int,
    pack: Callable[[torch.Tensor], torch.Tensor],
    generator: torch.Generator,
    dtype: torch.dtype = torch.uint8,
) -> torch.Tensor:
    """`rows` normal rows of `width` values, packed, as `shape` of `dtype`; made piece by piece."""
    packed = torch.empty(shape, dtype=dtype, device=generator.device)
    done = 0
    for first in range(0, rows, CHUNK_ROWS):
        piece = pack(normal((min(CHUNK_ROWS, rows - first), width), torch.float32, generator))
        packed[done : done + len(piece)] = piece
        done += len(piece)
    return packed
