"""Attention in float64, written to be read: what the recorded kernels must compute.

Inputs are the values that a kernel reads, turned back from their formats (dequantised, so the
rounding of a cache format is not counted against the kernel), one sequence at a time.
"""

from __future__ import annotations

import torch

from workloads.shapes import DsaShape


def attention(q: torch.Tensor, rows: torch.Tensor, scale: float) -> torch.Tensor:
    """q [heads, width] over latent rows [rows, width]: [heads, 512]."""
    q, rows = q.double(), rows.double()
    return torch.softmax(scale * q @ rows.T, dim=-1) @ rows[:, :512]


def grouped_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, sink: torch.Tensor | None = None
) -> torch.Tensor:
    """q [heads, dim] over k [key heads, rows, dim] and v [key heads, rows, value dim]: [heads, value dim].

    A sink [heads] adds exp(sink) to the sum of its head's weights.
    """
    group = len(q) // len(k)
    outputs = []
    for head in range(len(q)):
        weights = torch.exp(scale * k[head // group].double() @ q[head].double())
        total = weights.sum() + (0 if sink is None else torch.exp(sink[head].double()))
        outputs.append(weights @ v[head // group].double() / total)
    return torch.stack(outputs)


def shared_attention(q: torch.Tensor, rows: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """q [heads, 512] over rows [rows, 512] that are keys and values, with sinks [heads]: [heads, 512]."""
    return grouped_attention(q, rows[None], rows[None], 512**-0.5, sink)


def compressed_row(values: torch.Tensor, scores: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Values and scores [tokens, dim], a softmax over the tokens for each column, normed: [dim]."""
    values, scores = values.double(), scores.double()
    weights = torch.exp(scores) / torch.exp(scores).sum(0)
    row = (weights * values).sum(0)
    return row / torch.sqrt((row * row).mean() + 1e-6) * norm.double()


def index_scores(
    q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """q [heads, 128], weights [heads], keys [rows, 128], scales [rows]: scores [rows]."""
    scores = torch.zeros(len(keys), dtype=torch.float64)
    for head in range(len(q)):
        similar = keys.double() * scales.double()[:, None] @ q[head].double()
        scores += weights[head].double() * similar.clamp_min(0)
    return scores


def selected_rows(scores: torch.Tensor, tokens: int, shape: DsaShape) -> torch.Tensor:
    """Rows that a DSA layer reads of `tokens`, from the scores of all entries."""
    if tokens <= shape.top_k:
        return torch.arange(tokens)
    if shape.pool > 1:
        pools = torch.topk(scores, shape.top_k // shape.pool).indices.tolist()
        whole = tokens // shape.pool * shape.pool
        rows = [pool * shape.pool + at for pool in pools for at in range(shape.pool)]
        return torch.tensor(sorted(rows) + list(range(whole, tokens)))
    last = tokens - shape.local
    between = torch.topk(scores[shape.sink : last], shape.top_k - shape.sink - shape.local).indices
    forced = [*range(shape.sink), *range(last, tokens)]
    return torch.tensor(sorted([*forced, *(between + shape.sink).tolist()]))


def short_convolution(taps: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """taps [3, channels] oldest first, x [channels], weight [4, channels]: SiLU of the sum."""
    total = (taps.double() * weight[:3].double()).sum(0) + x.double() * weight[3].double()
    return total / (1 + torch.exp(-total))


def gated_delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: float, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One head: q, k, v [128], g [128] or [1], state [value, key]; the new state and the output [128]."""
    q, k, v, g, state = (tensor.double() for tensor in (q, k, v, g, state))
    q = q / torch.sqrt(q @ q + 1e-6)
    k = k / torch.sqrt(k @ k + 1e-6)
    state = state * torch.exp(g)[None, :]
    state = state + beta * torch.outer(v - state @ k, k)
    return state, state @ q * 128**-0.5


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute error over the largest absolute value expected."""
    return float((found.double() - expected).abs().max() / expected.abs().max())
