"""Recorded bytes of one layer equal its kind's closed form, for any batch and lengths."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_cases import Layer, Spec, dsa_shape, layer_of, stack_of, touched, v41_shape

from workloads.shapes import CsaShape, GdnShape, GqaShape, HcaShape, MlaShape, SwaShape, WindowShape

LENGTHS = st.lists(st.one_of(st.integers(1, 300), st.integers(1, 9000)), min_size=1, max_size=4)
EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def unique_bytes(layer: Layer) -> dict[tuple[str, str, bool], int]:
    """(kernel without its layer, region without its layer, written) -> bytes of the rows touched."""
    total: dict[tuple[str, str, bool], int] = defaultdict(int)
    for name in layer.kernel_names():
        for write in (False, True):
            for region_id, mask in touched(layer, name, write=write).items():
                region = layer.handles[region_id].region
                key = name.split(".", 1)[1], region.name.split(".", 1)[1], write
                total[key] += int(mask.sum()) * region.row_bytes
    return total


def bytes_of(kind: str, shape, lengths: list[int], **options) -> dict[tuple[str, str, bool], int]:
    layer = layer_of(kind, lengths, "meta", shape=shape, units=12, **options)
    layer.step()
    return unique_bytes(layer)


@EXAMPLES
@given(batch=st.integers(1, 5), keys=st.sampled_from([2, 16]), times=st.integers(1, 4))
def test_gdn(batch, keys, times):
    heads = keys * times
    found = bytes_of("gdn", GdnShape(keys, heads), [1] * batch)
    for write in (False, True):
        assert found["gdn", "state", write] == batch * heads * 128 * 128 * 4
        assert found["gdn-conv", "conv", write] == batch * 3 * (2 * keys + heads) * 128 * 2
    assert found["gdn-conv", "conv-weight", False] == 4 * (2 * keys + heads) * 128 * 2


@EXAMPLES
@given(lengths=LENGTHS)
@pytest.mark.parametrize(
    "shape", [GqaShape(16, 2, 256, 256), GqaShape(64, 4, 192, 128), GqaShape(8, 8, 128, 128)]
)
def test_gqa(shape, lengths):
    found = bytes_of("gqa", shape, lengths)
    assert found["gqa", "k", False] == sum(lengths) * shape.kv_heads * shape.key_dim * 2
    assert found["gqa", "v", False] == sum(lengths) * shape.kv_heads * shape.value_dim * 2
    assert found["gqa", "k", False] + found["gqa", "v", False] == sum(lengths) * shape.row_bytes
    written = found["gqa", "out", True] + found["gqa-combine", "out", True]
    assert written == len(lengths) * shape.heads * shape.value_dim * 2
    for part in ("partial", "partial-lse"):
        assert found["gqa", part, True] == found["gqa-combine", part, False]


@EXAMPLES
@given(lengths=LENGTHS)
def test_swa(lengths):
    attention = GqaShape(64, 8, 192, 128)
    found = bytes_of("swa", SwaShape(attention, 128, sink=True), lengths)
    rows = sum(min(tokens, 128) for tokens in lengths)
    assert found["swa", "window-k", False] + found["swa", "window-v", False] == rows * attention.row_bytes
    assert found["swa", "sink", False] == 64 * 4


@pytest.mark.parametrize(("dtype", "rope", "row"), [("bf16", 64, 1152), ("fp8", 64, 576), ("bf16", 0, 1024)])
@EXAMPLES
@given(lengths=LENGTHS)
def test_mla(dtype, rope, row, lengths):
    found = bytes_of("mla", MlaShape(8, rope=rope, dtype=dtype), lengths)
    assert found["mla", "kv", False] == sum(lengths) * row


def a_selection(shape, tokens: int) -> np.ndarray:
    """Some rows that a layer of this shape may gather of `tokens`, as many as it does."""
    if tokens <= shape.top_k:
        return np.arange(tokens)
    rest, last = tokens % shape.pool, tokens - tokens % shape.pool
    return np.concatenate([np.arange(shape.top_k), np.arange(last, last + rest)])


@pytest.mark.parametrize(
    ("options", "row", "key", "scored"),
    [
        ({}, 656, 132, 64),
        ({"index_dtype": "fp4"}, 656, 68, 64),
        ({"index_dtype": "bf16"}, 656, 256, 64),
        ({"rope": 0, "pool": 4}, 528, 132, 16),
        ({"sink": 4, "local": 30}, 656, 132, 30),
    ],
)
@EXAMPLES
@given(lengths=LENGTHS)
def test_dsa(options, row, key, scored, lengths):
    shape = dsa_shape(**options)
    assert (shape.row_bytes, shape.index_row_bytes) == (row, key)
    selected = [a_selection(shape, tokens) for tokens in lengths]
    found = bytes_of("dsa", shape, lengths, selected=selected)
    entries = [tokens // shape.pool for tokens in lengths]
    assert found["dsa-index", "index", False] == sum(entries) * key
    assert found["dsa-index", "scores", True] == sum(entries) * 4
    gathered = [min(tokens, 64 + tokens % shape.pool) for tokens in lengths]
    assert found["dsa-attend", "kv", False] == sum(gathered) * row
    competing = [
        count - shape.sink - shape.local
        for count, tokens in zip(entries, lengths, strict=True)
        if tokens > 64 and count > scored
    ]
    assert found["dsa-topk", "scores", False] == 4 * sum(competing)


@EXAMPLES
@given(lengths=LENGTHS)
def test_window(lengths):
    found = bytes_of("window", WindowShape(64), lengths)
    assert found["window-attend", "window", False] == 584 * sum(min(tokens, 128) for tokens in lengths)


def compressed_bytes(found, lengths: list[int], ratio: int, slots: int, token_bytes: int, names: list[str]):
    """States of a compressor: a token's is written; a row reads half of each of `slots`, or all where no
    tokens overlap."""
    complete = [min(tokens, slots) for tokens in lengths if tokens % ratio == 0]
    assert found[names[0], names[1], True] == len(lengths) * token_bytes
    read = sum(complete) * token_bytes * ratio // slots
    assert found[names[2], names[1], False] == read


@EXAMPLES
@given(lengths=LENGTHS)
def test_hca(lengths):
    found = bytes_of("hca", HcaShape(WindowShape(64)), lengths)
    assert found["hca-attend", "kv", False] == 584 * sum(tokens // 128 for tokens in lengths)
    assert found["hca-attend", "window", False] == 584 * sum(min(tokens, 128) for tokens in lengths)
    names = ["compress-save", "compressor", "compress-pool"]
    compressed_bytes(found, lengths, 128, 128, 4096, names)
    assert found["compress-store", "kv", True] == 584 * sum(tokens % 128 == 0 for tokens in lengths)


@pytest.mark.parametrize(("dtype", "key"), [("fp8", 132), ("fp4", 68), ("bf16", 256)])
@EXAMPLES
@given(lengths=LENGTHS)
def test_csa(dtype, key, lengths):
    entries = [tokens // 4 for tokens in lengths]
    shape = CsaShape(WindowShape(64), 64, 32, index_dtype=dtype)
    selected = [np.arange(min(32, count)) for count in entries]
    found = bytes_of("csa", shape, lengths, selected=selected)
    assert found["dsa-index", "index", False] == key * sum(entries)
    assert found["csa-attend", "kv", False] == 584 * sum(min(count, 32) for count in entries)
    assert found["csa-attend", "window", False] == 584 * sum(min(tokens, 128) for tokens in lengths)
    complete = sum(tokens % 4 == 0 for tokens in lengths)
    assert found["compress", "kv", True] == 584 * complete
    assert found["index-compress", "index", True] == key * complete
    compressed_bytes(found, lengths, 4, 8, 8192, ["compress-save", "compressor", "compress"])
    names = ["index-compress-save", "index-compressor", "index-compress"]
    compressed_bytes(found, lengths, 4, 8, 2048, names)


def test_a_token_that_completes_a_row_reads_32_kb_in_csa_and_524_kb_in_hca():
    csa = CsaShape(WindowShape(64), 64, 512)
    found = bytes_of("csa", csa, [1024], selected=[np.arange(256)])
    assert found["compress", "compressor", False] == 32_768
    assert bytes_of("hca", HcaShape(WindowShape(64)), [1024])["compress-pool", "compressor", False] == 524_288
    assert ("compress", "compressor", False) not in bytes_of("csa", csa, [1023], selected=[np.arange(255)])


@pytest.mark.parametrize(("dtype", "row"), [("fp4", 288), ("fp8", 528)])
@pytest.mark.parametrize("ratio", [1, 2])
@EXAMPLES
@given(lengths=LENGTHS)
def test_v41(ratio, dtype, row, lengths):
    entries = [tokens // ratio for tokens in lengths]
    shape = v41_shape(ratio, dtype=dtype)
    selected = [np.arange(min(16, count)) for count in entries]
    specs = [Spec("csa", shape), Spec("csa", shape, index=0, kv=0)]
    layer = stack_of(specs, lengths, "meta", units=12, selected=selected)
    layer.step()
    found = unique_bytes(layer)
    complete = sum(tokens % ratio == 0 for tokens in lengths)
    assert found["dsa-index", "index", False] == 68 * sum(entries)
    assert found["csa-attend", "kv", False] == 2 * row * sum(min(count, 16) for count in entries)
    windows = sum(min(tokens, 128) for tokens in lengths)
    assert found["csa-attend", "window", False] == 2 * 528 * windows
    assert found["latent-insert", "kv", True] == row * complete
    assert found["index-insert", "index", True] == 68 * complete
    assert found["latent", "compressor", True] == (4096 * len(lengths) if ratio == 2 else 0)
    assert found["latent", "compressor", False] == (4096 * complete if ratio == 2 else 0)


@EXAMPLES
@given(lengths=LENGTHS)
def test_v41_candidate_blocks(lengths):
    shape = v41_shape(1, blocks=64)
    kept = [np.arange(-(-tokens // 8))[-64:] for tokens in lengths]
    selected = [np.arange(tokens)[-min(tokens, 16) :] for tokens in lengths]
    specs = [Spec("csa", shape), Spec("csa", shape, kv=0, blocks=0)]
    layer = stack_of(specs, lengths, "meta", units=12, selected=selected, candidates=kept)
    layer.step()
    found = unique_bytes(layer)
    assert found["dsa-index", "index", False] == 68 * sum(lengths)
    listed = [tokens if tokens <= 512 else 504 + (tokens - 1) % 8 + 1 for tokens in lengths]
    assert found["block-index", "index", False] == 68 * sum(listed)
    assert found["block-index", "scores", True] == 4 * sum(listed)
    assert found["block-list", "block-entries", True] == 4 * sum(listed)
    selects = found["dsa-topk", "block-entries", False] + found["dsa-topk-merge", "block-entries", False]
    assert selects == 4 * sum(min(count, 16) for count in listed)
    assert found["block-best", "scores", False] == 4 * sum(lengths)
    written = found["block-topk", "blocks", True] + found["block-topk-merge", "blocks", True]
    assert written == 4 * 64 * len(lengths)
