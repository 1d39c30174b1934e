"""Shapes of attention layers, as models give them to kernels. Nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

DIM = 128  # of a KDA key and of a value
CHANNELS = 256  # channels of a convolution program


@dataclass(frozen=True)
class MlaShape:
    """Shapes of an MLA layer.

    heads   query heads, all on one latent row a position
    qk_dim  dimensions of an unabsorbed query head; the softmax scale is its square root's inverse
    """

    heads: int
    qk_dim: int = 192

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return 1 / math.sqrt(self.qk_dim)


@dataclass(frozen=True)
class KdaShape:
    """Shapes of a KDA layer: `heads` heads of 128 key and 128 value dimensions; an even number of heads."""

    heads: int

    @property
    def segments(self) -> int:
        """Convolution programs of a sequence: its q, k and v channels in pieces of 256."""
        return 3 * self.heads * DIM // CHANNELS


@dataclass(frozen=True)
class DsaShape:
    """Shapes of a DSA layer: the attention's own, and those of its indexer of 128 dimensions a head."""

    attention: MlaShape
    index_heads: int
    top_k: int
