"""Number formats smaller than bf16, as caches hold them: e4m3, e2m1 in nibbles, and ue8m0 scales.

What enters and leaves: torch tensors. Packing works on real tensors, unpacking on meta as well. An e2m1
number has a sign, 2 bits of exponent and 1 of mantissa, two to a byte, the first in the low nibble; a
ue8m0 scale is a power of two, its byte the exponent + 127, 255 not a number. Formats: OCP Microscaling
Formats (MX) 1.0.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = E2M1_VALUES[-1]
BIAS, NOT_A_NUMBER = 127, 255
LEAST = 1e-4  # largest magnitude that a group is taken to have at least


def quantise(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 values and fp32 scales [..., 1] such that values x scale is near `values` along the last axis."""
    scale = values.float().abs().amax(-1, keepdim=True).clamp_min(LEAST) / E4M3_MAX
    return (values.float() / scale).to(torch.float8_e4m3fn), scale


def power_scales(values: torch.Tensor, most: float) -> torch.Tensor:
    """ue8m0 bytes [..., 1] of the least powers of two that bring the last axis within `most`."""
    largest = values.abs().amax(-1, keepdim=True).clamp_min(LEAST)
    return ((largest / most).log2().ceil() + BIAS).to(torch.uint8)


def from_ue8m0(scales: torch.Tensor) -> torch.Tensor:
    """Powers of two in fp32 from their bytes."""
    powers = (scales.float() - BIAS).exp2()
    return torch.where(scales == NOT_A_NUMBER, torch.nan, powers)


def to_e2m1(values: torch.Tensor) -> torch.Tensor:
    """The nearest e2m1 numbers of fp32 `values` [..., 2 n], saturated, as bytes [..., n]."""
    known = torch.tensor(E2M1_VALUES, device=values.device)
    between = (known[1:] + known[:-1]) / 2
    codes = torch.bucketize(values.abs().contiguous(), between) + 8 * (values < 0)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)


def from_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [..., n] as fp32 [..., 2 n]."""
    signed = torch.tensor(E2M1_VALUES + tuple(-value for value in E2M1_VALUES), device=packed.device)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return signed[codes.long()]
