"""Row formats, read back byte by byte."""

from __future__ import annotations

import struct

import pytest
import torch

from workloads.codes import E2M1_VALUES, from_e2m1, from_ue8m0, power_scales, to_e2m1
from workloads.formats import (
    COMPRESSED_FORMATS,
    INDEX_FORMATS,
    KV_ROW_BYTES,
    WINDOW_FORMATS,
    Format,
    compressed,
    compressed_index,
    latent_fp8,
    pack_index,
    pack_kv,
    plain,
    unpack_index,
    unpack_kv,
)
from workloads.grid import Shape, one
from workloads.record import ListSink, Recorder
from workloads.tensors import generator_for


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


# Format, bytes of a row and of a page (0: rows back to back), and the most that a value may be off, as a
# share of the largest of its group. A number of m bits of mantissa is off by 2^-(m + 1) of itself at most; a
# scale that is a power of two wastes up to half of the largest magnitude, so that e2m1 may saturate at 6/8.
FORMATS = {
    "mla bf16": (plain(576, "bf16"), 1152, 0, 2**-8),
    "mla fp8": (plain(576, "fp8"), 576, 0, 2**-4),
    "fp8_ds_mla": (latent_fp8(64), 656, 0, 2**-4),
    "fp8 without a rotary part": (latent_fp8(0), 528, 0, 2**-4),
    "v4": (WINDOW_FORMATS["v4"], 584, 37_440, 2**-4),
    "v4, two rows a page": (compressed("v4", "fp8", 2), 584, 1728, 2**-4),
    "v4.1 fp8": (COMPRESSED_FORMATS["v4.1", "fp8"], 528, 33_792, 2**-4),
    "v4.1 fp4": (COMPRESSED_FORMATS["v4.1", "fp4"], 288, 18_432, 0.2),
    "index fp8": (INDEX_FORMATS["fp8"], 132, 8448, 2**-4),
    "index fp4": (INDEX_FORMATS["fp4"], 68, 4352, 1 / 4),
    "index bf16": (INDEX_FORMATS["bf16"], 256, 0, 2**-8),
    "v4 index fp8": (compressed_index("v4", "fp8"), 132, 8640, 2**-4),
    "v4 index fp4": (compressed_index("v4", "fp4"), 68, 4608, 1 / 4),
    "v4.1 index fp4": (compressed_index("v4.1", "fp4"), 68, 4608, 1 / 4),
    "v4.1 index fp8": (compressed_index("v4.1", "fp8"), 132, 8704, 2**-4),
}


def region_of(row_format: Format, rows: int):
    recorder = Recorder(ListSink(), "cpu")
    handle = row_format.region(recorder, "rows", "kv", 0, rows)
    row_format.fill(handle, generator_for(recorder.device, 3))
    return recorder, handle


@pytest.mark.parametrize("name", FORMATS)
def test_rows_and_pages_have_the_bytes_of_their_format(name):
    row_format, row_bytes, page_bytes, _ = FORMATS[name]
    _, handle = region_of(row_format, 128)
    region = handle.region
    assert (row_format.row_bytes, region.row_bytes, region.page_bytes) == (row_bytes, row_bytes, page_bytes)
    pages = 128 // row_format.page_rows
    assert region.bytes == (pages * page_bytes if page_bytes else 128 * row_bytes)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_packed_comes_back_near_what_it_was(name):
    row_format, _, _, error = FORMATS[name]
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(64, row_format.width, generator=generator) * torch.logspace(-1, 1, 64)[:, None]
    found = row_format.unpack(*row_format.pack(rows))
    assert found.dtype == torch.float32
    assert found.shape == rows.shape
    assert ((found - rows).abs() <= error * rows.abs().amax(1, keepdim=True)).all()
    meta = row_format.unpack(*(part.to("meta") for part in row_format.pack(rows)))
    assert (meta.shape, meta.dtype) == (found.shape, found.dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_the_same_whether_scanned_or_gathered_and_where_the_page_says(name):
    row_format, row_bytes, page_bytes, _ = FORMATS[name]
    recorder, handle = region_of(row_format, 128)
    with recorder.kernel("k", "mla", 0, 1, Shape(tile_rows=1, tile_bytes=1, tiles_in_flight=1)):
        scanned = row_format.load(handle, 1, 126, one(0))
        wanted = torch.tensor([100, 3, 64])
        gathered = row_format.gather(handle, wanted.numpy(), one(0))
        for whole, part in zip(scanned, gathered, strict=True):
            assert torch.equal(whole.view(torch.uint8)[wanted - 1], part.view(torch.uint8))
        row_format.store(handle, 5, tuple(part[:1] for part in gathered), one(0))
        moved = row_format.load(handle, 5, 1, one(0))
        assert all(torch.equal(a, b[:1]) for a, b in zip(moved, gathered, strict=True))
    if page_bytes:
        page, at = divmod(100, row_format.page_rows)
        head, tail = row_format.head_bytes, row_format.tail_bytes
        begin = row_format.page_rows * head + at * tail
        assert torch.equal(handle.data[page, at * head : (at + 1) * head], gathered[0][0])
        assert torch.equal(handle.data[page, begin : begin + tail], gathered[1][0])
        assert handle.data[:, row_format.page_rows * row_bytes :].eq(0).all()  # the padding


def test_e2m1_numbers_are_a_sign_two_bits_of_exponent_and_one_of_mantissa():
    for code in range(8):
        exponent, mantissa = code >> 1, code & 1
        value = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
        assert E2M1_VALUES[code] == value
        packed = torch.tensor([code | (8 | code) << 4], dtype=torch.uint8)
        assert from_e2m1(packed).tolist() == [value, -value]
    near = torch.tensor([0.2, 0.3, -1.6, 2.6, 100.0, -4.9])
    assert from_e2m1(to_e2m1(near)).tolist() == [0, 0.5, -1.5, 3, 6, -4]


def test_a_power_scale_is_the_least_that_brings_its_group_in_range():
    groups = torch.tensor([[447.0, 1.0], [449.0, -2.0], [-7.0, 0.0], [0.0, 0.0]])
    scales = from_ue8m0(power_scales(groups, 448.0))[:, 0]
    assert scales.tolist() == [1, 2, 2**-6, 2**-22]
    assert from_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan().all()


def test_rows_of_v4_keep_their_rotary_part_in_bf16_behind_448_values_and_their_spare_byte_zero():
    rows = torch.randn(2, 512, generator=torch.Generator().manual_seed(5))
    heads, tails = WINDOW_FORMATS["v4"].pack(rows)
    assert (heads.shape, tails.shape) == ((2, 576), (2, 8))
    assert tails[:, 7].eq(0).all()
    unpacked = WINDOW_FORMATS["v4"].unpack(heads, tails)
    for at in (0, 63, 64, 447):
        assert unpacked[1, at].item() == e4m3(int(heads[1, at])) * 2.0 ** (int(tails[1, at // 64]) - 127)
    for at in (0, 63):
        assert unpacked[1, 448 + at].item() == bf16(*heads[1, 448 + 2 * at : 450 + 2 * at].tolist())
