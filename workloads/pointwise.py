"""The arithmetic of kernels between products: norms, gates, rotary turns. Pure functions of tensors.

Rows of tokens enter, [tokens, width]; rows leave. Everything is computed in fp32.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid, silu

from workloads.arithmetic import arithmetic

EPSILON = 1e-6
BASE = 10_000.0  # of rotary angles


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.float()


@arithmetic
def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm with weights [1, width]."""
    return _normed(x.float(), weight)


@arithmetic
def add_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and that sum."""
    total = x.float() + residual.float()
    return _normed(total, weight), total


@arithmetic
def keep_norm(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x, and x."""
    return _normed(x.float(), weight), x.float()


@arithmetic
def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half times the second half."""
    gate, up = x.float().chunk(2, dim=1)
    return silu(gate) * up


@arithmetic
def plus(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """x + other."""
    return x.float() + other.float()


@arithmetic
def gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x times the sigmoid of a gate."""
    return x.float() * gate.float().sigmoid()


@arithmetic
def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each head's RMS norm with weights [1, head], times the sigmoid of a gate."""
    heads = x.float().unflatten(1, (-1, weight.shape[1]))
    return _normed(heads, weight).flatten(1) * gate.float().sigmoid()


@arithmetic
def decays(raw: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Logarithms of decays [tokens, heads x n] and beta [tokens, heads] as rows of n + 1 a head."""
    heads = raw.float().unflatten(1, (beta.shape[1], -1))
    rows = torch.cat([logsigmoid(heads), beta.float().sigmoid()[:, :, None]], dim=2)
    return rows.flatten(1)


@arithmetic
def decay_beta(raw: torch.Tensor) -> torch.Tensor:
    """Decays, then betas of all heads: rows of both a head."""
    decay, beta = raw.float().chunk(2, dim=1)
    return torch.stack([logsigmoid(decay), beta.sigmoid()], dim=2).flatten(1)


@arithmetic
def turn(x: torch.Tensor, positions: tuple[int, ...], dim: int) -> torch.Tensor:
    """The rotary turn of the last `dim` values of each head of `dim` values."""
    heads = x.float().unflatten(1, (-1, dim))
    angles = torch.tensor(positions, device=x.device, dtype=torch.float64)[:, None, None]
    half = torch.arange(dim // 2, device=x.device, dtype=torch.float64)
    angles = angles * BASE ** (-half / (dim // 2))
    cos, sin = angles.cos().float(), angles.sin().float()
    first, second = heads.chunk(2, dim=2)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=2).flatten(1)


@arithmetic
def turn_both(
    q: torch.Tensor, k: torch.Tensor, positions: tuple[int, ...], dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotary turn of queries' and keys' heads."""
    return turn(q, positions, dim), turn(k, positions, dim)


@arithmetic
def beside(parts: torch.Tensor, others: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head's values of both, side by side."""
    pair = [rows.float().unflatten(1, (heads, -1)) for rows in (parts, others)]
    return torch.cat(pair, dim=2).flatten(1)
