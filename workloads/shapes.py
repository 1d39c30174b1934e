"""Shapes of attention layers, as models give them to kernels. Nothing here needs torch.

`dtype` is the format of the cached rows, `index_dtype` that of index keys; `row_bytes` and
`index_row_bytes` say what a row of each takes, scales included and the padding of pages left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

DIM = 128  # of a KDA or GDN key and of a value, and of an index key
CHANNELS = 256  # channels of a convolution program
LATENT = 512  # values of a latent row beside its rotary part; values of a shared row of DeepSeek V4

INDEX_ROW_BYTES = {"bf16": 2 * DIM, "fp8": DIM + 4, "fp4": DIM // 2 + DIM // 32}
WINDOW_ROW_BYTES = {"v4": 448 + 64 * 2 + 8, "v4.1": LATENT + LATENT // 32}
PAGE_UNITS = {"v4": 576, "v4.1": 512}  # pages of DeepSeek V4 share pools, V4.1's are read by TMA
COMPRESSED_ROW_BYTES = {
    ("v4", "fp8"): WINDOW_ROW_BYTES["v4"],
    ("v4.1", "fp8"): WINDOW_ROW_BYTES["v4.1"],
    ("v4.1", "fp4"): LATENT // 2 + LATENT // 16,
}


@dataclass(frozen=True)
class MlaShape:
    """Shapes of an MLA layer.

    heads   query heads, all on one latent row a position
    qk_dim  dimensions of an unabsorbed query head; the softmax scale is its square root's inverse
    rope    values of a row beside the 512 latent ones
    dtype   bf16, or fp8 with one scale for the whole tensor
    """

    heads: int
    qk_dim: int = 192
    rope: int = 64
    dtype: str = "bf16"

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return 1 / math.sqrt(self.qk_dim)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: 1152 or 576 with a rotary part of 64."""
        return (LATENT + self.rope) * {"bf16": 2, "fp8": 1}[self.dtype]


@dataclass(frozen=True)
class KdaShape:
    """Shapes of a KDA layer: `heads` heads of 128 key and 128 value dimensions; an even number of heads."""

    heads: int

    @property
    def segments(self) -> int:
        """Convolution programs of a sequence: its q, k and v channels in pieces of 256."""
        return 3 * self.heads * DIM // CHANNELS


@dataclass(frozen=True)
class GdnShape:
    """Shapes of a GDN layer: heads of 128 dimensions; the state is one matrix a value head."""

    key_heads: int
    value_heads: int

    @property
    def segments(self) -> int:
        """Convolution programs of a sequence: its q, k and v channels in pieces of 256."""
        return (2 * self.key_heads + self.value_heads) * DIM // CHANNELS


@dataclass(frozen=True)
class GqaShape:
    """Shapes of a full-attention layer, keys and values apart, bf16.

    heads     query heads; kv_heads of them share nothing, heads / kv_heads share a key and a value
    key_dim, value_dim   of a head
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return 1 / math.sqrt(self.key_dim)

    @property
    def row_bytes(self) -> int:
        """Bytes of a position's keys and values."""
        return self.kv_heads * (self.key_dim + self.value_dim) * 2


@dataclass(frozen=True)
class SwaShape:
    """Shapes of a sliding-window layer: attention over the last `window` rows, in a ring of as many.

    sink   a learnt logit a query head joins the softmax's sum
    """

    attention: GqaShape
    window: int
    sink: bool


@dataclass(frozen=True)
class DsaShape:
    """Shapes of a DSA layer: the attention's own, and those of its indexer of 128 dimensions a head.

    top_k        rows that the attention reads, the forced ones included
    dtype        fp8: 512 e4m3, a fp32 scale for each 128, and the rotary part in bf16
    index_dtype  fp8 (132 B a key), fp4 (68 B) or bf16 (256 B)
    pool         positions that share an index key; the top-k then picks whole pools, top_k / pool of them
    sink, local  rows read in any case: the first `sink`, and the last `local` (the new one is of these)
    """

    attention: MlaShape
    index_heads: int
    top_k: int
    dtype: str = "fp8"
    index_dtype: str = "fp8"
    pool: int = 1
    sink: int = 0
    local: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a cached row: 656, or 528 without a rotary part."""
        assert self.dtype == "fp8", f"{self.dtype} rows of sparse attention"
        return LATENT + LATENT // DIM * 4 + self.attention.rope * 2

    @property
    def index_row_bytes(self) -> int:
        """Bytes of an index key."""
        return INDEX_ROW_BYTES[self.index_dtype]

    @property
    def scored(self) -> int:
        """Rows that the scores pick."""
        return self.top_k - self.sink - self.local


@dataclass(frozen=True)
class WindowShape:
    """Shapes of DeepSeek V4's attention over the last `window` rows alone; every row is key and value.

    heads   query heads, all on one row of 512 values a position
    style   v4: 584 B (448 e4m3, 64 bf16, 8 B of scales); v4.1: 528 B (512 e4m3, 16 ue8m0)
    """

    heads: int
    window: int = 128
    style: str = "v4"

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return 1 / math.sqrt(LATENT)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the window."""
        return WINDOW_ROW_BYTES[self.style]


@dataclass(frozen=True)
class HcaShape:
    """Shapes of an HCA layer: the window, and every row that `ratio` positions were compressed into."""

    window: WindowShape
    ratio: int = 128
    dtype: str = "fp8"

    @property
    def row_bytes(self) -> int:
        """Bytes of a compressed row."""
        return COMPRESSED_ROW_BYTES[self.window.style, self.dtype]


@dataclass(frozen=True)
class CsaShape:
    """Shapes of a CSA layer: the window, and the top_k of the rows made of `ratio` positions each.

    index_heads   of the indexer, 128 dimensions each, over one compressed key an entry
    blocks        candidate blocks of `block_rows` entries: a layer with candidates of its own picks that
                  many, and a layer that uses another's (`Run.blocks`) scores their entries alone; 0: none
    """

    window: WindowShape
    index_heads: int
    top_k: int
    ratio: int = 4
    dtype: str = "fp8"
    index_dtype: str = "fp8"
    blocks: int = 0
    block_rows: int = 8

    @property
    def row_bytes(self) -> int:
        """Bytes of a compressed row: 584, or of V4.1 288 (fp4) or 528 (fp8)."""
        return COMPRESSED_ROW_BYTES[self.window.style, self.dtype]

    @property
    def index_row_bytes(self) -> int:
        """Bytes of an index key."""
        return INDEX_ROW_BYTES[self.index_dtype]


Shape = KdaShape | GdnShape | MlaShape | GqaShape | SwaShape | DsaShape | WindowShape | HcaShape | CsaShape


def drafted(shape: Shape, draft: int) -> Shape:
    """The shape for `draft` new tokens of a sequence: where all read the same rows, so many times the heads.

    Elsewhere (selected rows, windows of V4, states) each new token is one of its own to the kernels.
    """
    if isinstance(shape, MlaShape | GqaShape):
        return replace(shape, heads=shape.heads * draft)
    if isinstance(shape, SwaShape):
        return replace(shape, attention=replace(shape.attention, heads=shape.attention.heads * draft))
    return shape
