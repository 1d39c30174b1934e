"""Row formats of fp8 caches: the 656-byte latent row and the paged 132-byte index key.

A latent row of 576 values is kept as 512 e4m3 values, 4 fp32 scales (one for each 128 values) and 64
bf16 values, one after another. An index key of 128 values is kept as 128 e4m3 values and one fp32
scale, 64 keys to a page: all values first, then all scales. Packing works on real tensors, unpacking
on meta as well. Formats: FlashMLA README (fp8 KV cache), DeepGEMM paged logits.
"""

from __future__ import annotations

import torch

from workloads.grid import Page

E4M3_MAX = 448.0
GROUP = 128  # values that share a scale

LATENT, ROPE = 512, 64
KV_ROW_BYTES = LATENT + LATENT // GROUP * 4 + ROPE * 2
BF16_ROW_BYTES = (LATENT + ROPE) * 2

INDEX_DIM = 128
INDEX_ROW_BYTES = INDEX_DIM + 4
PAGE_ROWS = 64
INDEX_PAGE = Page(PAGE_ROWS, INDEX_DIM, PAGE_ROWS * INDEX_ROW_BYTES)


def quantise(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 values and fp32 scales [..., 1] such that values x scale is near `values` along the last axis."""
    scale = values.float().abs().amax(-1, keepdim=True).clamp_min(1e-4) / E4M3_MAX
    return (values.float() / scale).to(torch.float8_e4m3fn), scale


def pack_kv(rows: torch.Tensor) -> torch.Tensor:
    """Latent rows [n, 576] of any float type as bytes [n, 656]."""
    latent, scales = quantise(rows[:, :LATENT].reshape(len(rows), -1, GROUP))
    parts = (latent.reshape(len(rows), LATENT), scales.reshape(len(rows), -1), rows[:, LATENT:].bfloat16())
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def unpack_kv(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [n, 656] as fp32 [n, 576], rounded to bf16 as the kernel multiplies them."""
    count = len(packed)
    latent = packed[:, :LATENT].view(torch.float8_e4m3fn).float().reshape(count, -1, GROUP)
    scales = packed[:, LATENT : LATENT + 16].contiguous().view(torch.float32)
    rope = packed[:, LATENT + 16 :].contiguous().view(torch.bfloat16).float()
    values = (latent * scales[:, :, None]).bfloat16().float().reshape(count, LATENT)
    return torch.cat([values, rope], dim=1)


def pack_index(keys: torch.Tensor) -> torch.Tensor:
    """Index keys [n, 128], n whole pages, as bytes [n / 64, 8448]."""
    values, scales = quantise(keys)
    heads = values.view(torch.uint8).reshape(-1, PAGE_ROWS * INDEX_DIM)
    tails = scales.view(torch.uint8).reshape(-1, PAGE_ROWS * 4)
    return torch.cat([heads, tails], dim=1)


def unpack_index(heads: torch.Tensor, tails: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes [n, 128] and [n, 4] of index keys as fp32 values [n, 128] and scales [n, 1]."""
    return heads.view(torch.float8_e4m3fn).float(), tails.contiguous().view(torch.float32)
