"""Row formats of caches, with their real page layouts.

A `Format` says how rows of a number of values are kept: back to back, or in pages that hold a part of every
row first and then the rest of every row, padded at the end. What enters: normal numbers, or rows that a
kernel wrote. What leaves: the bytes that kernels load, and fp32 values of them, rounded to what a kernel
multiplies. Packing works on real tensors, unpacking on meta as well. Left out: the one scale of a whole
tensor that plain fp8 rows have (taken as 1).

| bytes | row | where |
|---|---|---|
| 1152, 1024 | 576 or 512 bf16: a latent row of MLA, with a rotary part of 64 or none | FlashMLA README |
| 576, 512 | the same in e4m3 | ROCm/aiter #4541 |
| 656 (528) | 512 e4m3, 4 fp32 scales, 64 (or no) bf16 | FlashMLA README, fp8 KV cache |
| 584 | 448 e4m3 and 64 bf16; then 7 ue8m0 scales and a spare byte | vLLM deepseek_v4/compressor.py |
| 528 | 512 e4m3; then 16 ue8m0 scales | FlashMLA kv_cache_format.h, vLLM deepseek_v41 |
| 288 | 512 e2m1; then 32 e4m3 scales | the same |
| 132 | index key: 128 e4m3; then a fp32 scale | DeepGEMM paged logits |
| 68 | index key: 128 e2m1; then 4 ue8m0 scales | vLLM deepseek_v4/attention.py |
| 256 | index key: 128 bf16 | vLLM blog 2026-04-24, appendix |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from workloads.codes import E2M1_MAX, E4M3_MAX, from_e2m1, from_ue8m0, power_scales, quantise, to_e2m1
from workloads.grid import Blocks, Page
from workloads.record import Int64s, Recorder, RegionHandle
from workloads.shapes import PAGE_UNITS
from workloads.tensors import packed_normal

GROUP = 128  # values that share a scale

LATENT, ROPE = 512, 64
KV_ROW_BYTES = LATENT + LATENT // GROUP * 4 + ROPE * 2
SCALE_BYTES = LATENT // GROUP * 4

INDEX_DIM = 128
INDEX_ROW_BYTES = INDEX_DIM + 4
PAGE_ROWS = 64

V4_ROPE, V4_GROUP = 64, 64
V4_NOPE = LATENT - V4_ROPE
MXFP8_GROUP, NVFP4_GROUP, MXFP4_GROUP = 32, 16, 32
NVFP4_LEAST = 2.0**-9  # the least scale

Parts = tuple[torch.Tensor, ...]  # bytes of rows: heads [rows, head bytes], and tails [rows, tail bytes]


@dataclass(frozen=True)
class Format:
    """How rows of `width` values are kept.

    head_bytes  bytes of a row in the first array of its page; all of them where `tail_bytes` is 0
    tail_bytes  in the second array; 0: rows lie back to back
    dtype       what torch holds rows that lie back to back in
    pack        values [rows, width] as the parts of rows
    unpack      the parts of rows as fp32 [rows, width]
    page_rows   rows of a page
    page_unit   a page takes a whole number of so many bytes
    """

    width: int
    head_bytes: int
    tail_bytes: int
    pack: Callable[[torch.Tensor], Parts]
    unpack: Callable[..., torch.Tensor]
    dtype: str = "bytes"
    page_rows: int = PAGE_ROWS
    page_unit: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, padding left out."""
        return self.head_bytes + self.tail_bytes

    @property
    def page(self) -> Page | None:
        """Layout of a page, None where rows lie back to back."""
        if not self.tail_bytes:
            return None
        units = -(-self.page_rows * self.row_bytes // self.page_unit)
        return Page(self.page_rows, self.head_bytes, units * self.page_unit)

    def padded(self, rows: int) -> int:
        """Rows of the whole pages that `rows` rows, at least 1, take."""
        return max(1, -(-rows // self.page_rows)) * self.page_rows

    def region(self, recorder: Recorder, name: str, kind: str, layer: int, rows: int) -> RegionHandle:
        """Declare a region of rows in this format."""
        return recorder.region(name, kind, layer, rows, self.row_bytes, self.dtype, self.page)

    def fill(self, handle: RegionHandle, generator: torch.Generator) -> None:
        """Random normal rows."""
        rows = handle.region.rows
        dtype = torch.uint8 if self.tail_bytes else handle.dtype
        handle.fill(packed_normal(handle.shape, rows, self.width, self._lay, generator, dtype))

    def load(self, handle: RegionHandle, first: int, rows: int, blocks: Blocks) -> Parts:
        """Read consecutive rows to work on."""
        if self.tail_bytes:
            return handle.load_pages(first, rows, blocks, worked=True)
        return (handle.load(first, rows, blocks, worked=True),)

    def gather(self, handle: RegionHandle, rows: Int64s, blocks: Blocks) -> Parts:
        """Read the rows that are listed to work on."""
        if self.tail_bytes:
            return handle.gather_pages(rows, blocks, worked=True)
        return (handle.gather(rows, blocks, worked=True),)

    def store(self, handle: RegionHandle, first: int, parts: Parts, blocks: Blocks) -> None:
        """Write consecutive rows of one page."""
        if self.tail_bytes:
            handle.store_pages(first, parts[0], parts[1], blocks)
        else:
            handle.store(first, parts[0], blocks)

    def _lay(self, values: torch.Tensor) -> torch.Tensor:
        """Values of whole pages as the region holds them."""
        parts = self.pack(values)
        page = self.page
        if page is None:
            return parts[0]
        laid = torch.zeros(len(values) // page.rows, page.bytes, dtype=torch.uint8, device=values.device)
        split, full = page.rows * page.head_bytes, page.rows * self.row_bytes
        laid[:, :split] = parts[0].reshape(len(laid), -1)
        laid[:, split:full] = parts[1].reshape(len(laid), -1)
        return laid


def plain(width: int, dtype: str) -> Format:
    """Rows of `width` numbers: bf16, or fp8 (e4m3 without a scale)."""
    torch_dtype = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[dtype]
    return Format(
        width,
        width * torch_dtype.itemsize,
        0,
        lambda values: (values.to(torch_dtype),),
        torch.Tensor.float,
        {"bf16": "bf16", "fp8": "fp8_e4m3"}[dtype],
    )


def pack_kv(rows: torch.Tensor) -> torch.Tensor:
    """Latent rows [n, 512 + rotary part] of any float type as bytes [n, 656], [n, 528] without the part."""
    latent, scales = quantise(rows[:, :LATENT].reshape(len(rows), -1, GROUP))
    parts = (latent.reshape(len(rows), LATENT), scales.reshape(len(rows), -1), rows[:, LATENT:].bfloat16())
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def unpack_kv(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [n, 656 or 528] as fp32 [n, 576 or 512], rounded to bf16 as the kernel multiplies them."""
    count = len(packed)
    latent = packed[:, :LATENT].view(torch.float8_e4m3fn).float().reshape(count, -1, GROUP)
    scales = packed[:, LATENT : LATENT + SCALE_BYTES].contiguous().view(torch.float32)
    rope = packed[:, LATENT + SCALE_BYTES :].contiguous().view(torch.bfloat16).float()
    values = (latent * scales[:, :, None]).bfloat16().float().reshape(count, LATENT)
    return torch.cat([values, rope], dim=1)


def latent_fp8(rope: int) -> Format:
    """Latent rows with a rotary part of `rope` values: 656 bytes with 64, 528 with none."""
    return Format(
        LATENT + rope, LATENT + SCALE_BYTES + rope * 2, 0, lambda values: (pack_kv(values),), unpack_kv
    )


def pack_index(keys: torch.Tensor) -> torch.Tensor:
    """Index keys [n, 128], n whole pages, as bytes [n / 64, 8448]."""
    return INDEX_FORMATS["fp8"]._lay(keys)


def unpack_index(heads: torch.Tensor, tails: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes [n, 128] and [n, 4] of index keys as fp32 values [n, 128] and scales [n, 1]."""
    return heads.view(torch.float8_e4m3fn).float(), tails.contiguous().view(torch.float32)


def _pack_index_fp8(keys: torch.Tensor) -> Parts:
    values, scales = quantise(keys)
    return values.view(torch.uint8), scales.view(torch.uint8)


def _unpack_index_fp8(heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    values, scales = unpack_index(heads, tails)
    return values * scales


def _pack_mxfp4(rows: torch.Tensor) -> Parts:
    groups = rows.float().reshape(len(rows), -1, MXFP4_GROUP)
    scales = power_scales(groups, E2M1_MAX)
    return to_e2m1(groups / from_ue8m0(scales)).reshape(len(rows), -1), scales[:, :, 0]


def _unpack_mxfp4(heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    groups = from_e2m1(heads).reshape(len(heads), -1, MXFP4_GROUP)
    return (groups * from_ue8m0(tails)[:, :, None]).flatten(1)


def _pack_v4(rows: torch.Tensor) -> Parts:
    groups = rows[:, :V4_NOPE].float().reshape(len(rows), -1, V4_GROUP)
    scales = power_scales(groups, E4M3_MAX)
    values = (groups / from_ue8m0(scales)).to(torch.float8_e4m3fn).flatten(1)
    rope = rows[:, V4_NOPE:].bfloat16().contiguous()
    spare = torch.zeros(len(rows), 1, dtype=torch.uint8, device=rows.device)
    heads = torch.cat([values.view(torch.uint8), rope.view(torch.uint8)], dim=1)
    return heads, torch.cat([scales[:, :, 0], spare], dim=1)


def _unpack_v4(heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    values = heads[:, :V4_NOPE].view(torch.float8_e4m3fn).float().reshape(len(heads), -1, V4_GROUP)
    scaled = (values * from_ue8m0(tails[:, : V4_NOPE // V4_GROUP])[:, :, None]).flatten(1)
    return torch.cat([scaled, heads[:, V4_NOPE:].contiguous().view(torch.bfloat16).float()], dim=1)


def _pack_mxfp8(rows: torch.Tensor) -> Parts:
    groups = rows.float().reshape(len(rows), -1, MXFP8_GROUP)
    scales = power_scales(groups, E4M3_MAX)
    values = (groups / from_ue8m0(scales)).to(torch.float8_e4m3fn).flatten(1)
    return values.view(torch.uint8), scales[:, :, 0]


def _unpack_mxfp8(heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    values = heads.view(torch.float8_e4m3fn).float().reshape(len(heads), -1, MXFP8_GROUP)
    return (values * from_ue8m0(tails)[:, :, None]).flatten(1)


def _pack_nvfp4(rows: torch.Tensor) -> Parts:
    groups = rows.float().reshape(len(rows), -1, NVFP4_GROUP)
    wanted = groups.abs().amax(-1) / E2M1_MAX
    scales = wanted.clamp(NVFP4_LEAST, E4M3_MAX).to(torch.float8_e4m3fn)
    return to_e2m1(groups / scales.float()[:, :, None]).flatten(1), scales.view(torch.uint8)


def _unpack_nvfp4(heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    groups = from_e2m1(heads).reshape(len(heads), -1, NVFP4_GROUP)
    return (groups * tails.view(torch.float8_e4m3fn).float()[:, :, None]).flatten(1)


INDEX_FORMATS = {
    "fp8": Format(INDEX_DIM, INDEX_DIM, 4, _pack_index_fp8, _unpack_index_fp8),
    "fp4": Format(INDEX_DIM, INDEX_DIM // 2, INDEX_DIM // MXFP4_GROUP, _pack_mxfp4, _unpack_mxfp4),
    "bf16": plain(INDEX_DIM, "bf16"),
}


def _pack_query_fp4(queries: torch.Tensor) -> Parts:
    return (torch.cat(_pack_mxfp4(queries), dim=1),)


def _unpack_query_fp4(packed: torch.Tensor) -> torch.Tensor:
    return _unpack_mxfp4(packed[:, : INDEX_DIM // 2], packed[:, INDEX_DIM // 2 :])


# The queries of an indexer, like its keys; the scales of e4m3 queries are folded into the heads' weights.
QUERY_FORMATS = {
    "fp8": plain(INDEX_DIM, "fp8"),
    "fp4": Format(INDEX_DIM, INDEX_FORMATS["fp4"].row_bytes, 0, _pack_query_fp4, _unpack_query_fp4),
    "bf16": plain(INDEX_DIM, "bf16"),
}

WINDOW_FORMATS = {
    "v4": Format(LATENT, V4_NOPE + V4_ROPE * 2, 8, _pack_v4, _unpack_v4, page_unit=PAGE_UNITS["v4"]),
    "v4.1": Format(
        LATENT, LATENT, LATENT // MXFP8_GROUP, _pack_mxfp8, _unpack_mxfp8, page_unit=PAGE_UNITS["v4.1"]
    ),
}
COMPRESSED_FORMATS = {
    ("v4", "fp8"): WINDOW_FORMATS["v4"],
    ("v4.1", "fp8"): WINDOW_FORMATS["v4.1"],
    ("v4.1", "fp4"): Format(
        LATENT,
        LATENT // 2,
        LATENT // NVFP4_GROUP,
        _pack_nvfp4,
        _unpack_nvfp4,
        page_unit=PAGE_UNITS["v4.1"],
    ),
}


def compressed(style: str, dtype: str, page_rows: int) -> Format:
    """Rows of DeepSeek V4's compressed cache in pages of `page_rows`."""
    return replace(COMPRESSED_FORMATS[style, dtype], page_rows=page_rows)


def compressed_index(style: str, dtype: str) -> Format:
    """Keys of DeepSeek V4's compressed index, in the pages of its pools."""
    return replace(INDEX_FORMATS[dtype], page_unit=PAGE_UNITS[style])
