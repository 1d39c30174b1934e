"""Row formats, read back byte by byte."""

from __future__ import annotations

import struct

import torch

from workloads.formats import KV_ROW_BYTES, pack_index, pack_kv, unpack_index, unpack_kv


def e4m3(byte: int) -> float:
    """Value of an e4m3 number: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities."""
    sign, exponent, mantissa = -1 if byte & 128 else 1, byte >> 3 & 15, byte & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def bf16(low: int, high: int) -> float:
    return struct.unpack("<f", bytes([0, 0, low, high]))[0]


def test_a_latent_row_has_its_parts_where_the_format_says():
    rows = torch.randn(3, 576, generator=torch.Generator().manual_seed(0))
    packed = pack_kv(rows)
    assert packed.shape == (3, KV_ROW_BYTES) == (3, 656)
    unpacked = unpack_kv(packed)
    for row, values in zip(packed.tolist(), unpacked.tolist(), strict=True):
        scales = struct.unpack("<4f", bytes(row[512:528]))
        for at in range(0, 512, 37):
            assert abs(values[at] - e4m3(row[at]) * scales[at // 128]) <= 2**-8 * abs(values[at])  # to bf16
        for at in range(64):
            assert values[512 + at] == bf16(row[528 + 2 * at], row[529 + 2 * at])


def test_unpacked_rows_are_near_the_values_that_were_packed():
    rows = (
        torch.randn(50, 576, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 50)[:, None]
    )
    unpacked = unpack_kv(pack_kv(rows))
    largest = rows[:, :512].reshape(50, 4, 128).abs().amax(-1).repeat_interleave(128, dim=1)
    error = (unpacked - rows).abs()
    assert (error[:, :512] <= largest / 16).all()  # 3 bits of mantissa
    assert torch.equal(unpacked[:, 512:], rows[:, 512:].bfloat16().float())


def test_an_index_page_holds_64_keys_and_then_64_scales():
    keys = torch.randn(128, 128, generator=torch.Generator().manual_seed(2))
    pages = pack_index(keys)
    assert pages.shape == (2, 8448)
    page = pages[1].tolist()
    heads, tails = pages[1, :8192].reshape(64, 128), pages[1, 8192:].reshape(64, 4)
    values, scales = unpack_index(heads, tails)
    for key in (0, 1, 63):
        assert scales[key].item() == struct.unpack("<f", bytes(page[8192 + 4 * key : 8196 + 4 * key]))[0]
        for at in (0, 5, 127):
            assert values[key, at].item() == e4m3(page[128 * key + at])
    assert ((values * scales - keys[64:]).abs() <= keys[64:].abs().amax(-1, keepdim=True) / 16).all()


def test_rows_of_zeros_stay_zeros():
    assert unpack_kv(pack_kv(torch.zeros(2, 576))).eq(0).all()
