"""Recorded kernels compute what float64 attention computes."""

from __future__ import annotations

import naive_attention as naive
import pytest
import torch
from workload_cases import Spec, dsa_shape, layer_of, row_bytes, stack_of, v41_shape

from workloads import compressor, latent_compressor, topk_grid
from workloads.compressor import Plan
from workloads.formats import Format, compressed, compressed_index, unpack_kv
from workloads.record import ListSink, Recorder
from workloads.shapes import (
    CsaShape,
    GdnShape,
    GqaShape,
    HcaShape,
    KdaShape,
    MlaShape,
    SwaShape,
    WindowShape,
)
from workloads.splits import Cut
from workloads.tensors import generator_for

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
    ),
]


def host(handle):
    return handle.data.cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("heads", "lengths", "units"),
    [(2, [1], 4), (2, [64, 130, 7], 4), (12, [1000], 8), (128, [700, 650], 10), (96, [90, 300], 6)],
)
def test_mla_attends_to_every_row(device, heads, lengths, units):
    layer = layer_of("mla", lengths, device, heads=heads, units=units)
    layer.step()
    regions = layer.regions
    stride = regions.kv.region.rows // len(lengths)
    for number, rows in enumerate(lengths):
        q = host(regions.q)[number * heads : (number + 1) * heads]
        kv = host(regions.kv)[number * stride : number * stride + rows]
        found = host(regions.out)[number * heads : (number + 1) * heads]
        assert naive.relative_error(found, naive.attention(q, kv, 192**-0.5)) < 1e-2


def test_a_split_sequence_is_combined_and_a_whole_one_is_not():
    layer = layer_of("mla", [700, 20], units=4)
    layer.step()
    assert layer.kernel_names() == ["layer0.mla", "layer0.mla-combine"]
    combined = {access.first_row for access in layer.accesses("layer0.mla-combine") if access.write}
    assert combined == {0}  # two heads of the first sequence; the second is written by the kernel itself


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "lengths", "units"),
    [
        (GqaShape(4, 2, 128, 128), [1], 4),
        (GqaShape(12, 2, 64, 64), [300, 17], 6),
        (GqaShape(16, 2, 192, 128), [900, 40, 500], 30),
        (GqaShape(6, 1, 256, 256), [1000], 9),
    ],
)
def test_gqa_attends_to_every_row_of_its_key_head(device, shape, lengths, units):
    layer = layer_of("gqa", lengths, device, shape=shape, units=units)
    layer.step()
    batch = len(lengths)
    q, k, v, out = (
        host(handle).reshape(batch, heads, -1, width)
        for handle, heads, width in (
            (layer.regions.q, shape.heads, shape.key_dim),
            (layer.regions.k, shape.kv_heads, shape.key_dim),
            (layer.regions.v, shape.kv_heads, shape.value_dim),
            (layer.regions.out, shape.heads, shape.value_dim),
        )
    )
    for number, rows in enumerate(lengths):
        expected = naive.grouped_attention(
            q[number, :, 0], k[number, :, :rows], v[number, :, :rows], shape.key_dim**-0.5
        )
        assert naive.relative_error(out[number, :, 0], expected) < 1e-2


def test_gqa_combines_the_sequences_that_are_split():
    layer = layer_of("gqa", [1000, 20], shape=GqaShape(4, 2, 64, 64), units=16)
    layer.step()
    assert layer.kernel_names() == ["layer0.gqa", "layer0.gqa-combine"]
    written = {access.first_row for access in layer.accesses("layer0.gqa-combine") if access.write}
    assert written == {0}  # the heads of the first sequence; those of the second are written by their blocks
    whole = layer_of("gqa", [100, 20], shape=GqaShape(4, 2, 64, 64), units=16)
    whole.step()
    assert whole.kernel_names() == ["layer0.gqa"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("window", [128, 500])
def test_swa_attends_to_its_window_and_its_sinks(device, sink, window):
    shape, lengths = SwaShape(GqaShape(8, 4, 192, 128), window, sink), [700, 128, 3]
    layer = layer_of("swa", lengths, device, shape=shape, units=20)
    layer.step()
    regions = layer.regions
    assert (regions.sink is not None) == sink
    sinks = host(regions.sink)[:, 0] if sink else None
    for number, tokens in enumerate(lengths):
        rows = min(tokens, window)
        q = host(regions.q)[number * 8 : number * 8 + 8]
        k = host(regions.k).reshape(3, 4, window, 192)[number, :, :rows]
        v = host(regions.v).reshape(3, 4, window, 128)[number, :, :rows]
        expected = naive.grouped_attention(q, k, v, 192**-0.5, sinks)
        assert naive.relative_error(host(regions.out)[number * 8 : number * 8 + 8], expected) < 1e-2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "shape", "keys", "heads", "batch"),
    [
        ("kda", KdaShape(2), 2, 2, 1),
        ("kda", KdaShape(4), 4, 4, 3),
        ("gdn", GdnShape(2, 2), 2, 2, 1),
        ("gdn", GdnShape(2, 6), 2, 6, 3),
    ],
)
def test_kda_and_gdn_step_the_gated_delta_rule(device, kind, shape, keys, heads, batch):
    layer = layer_of(kind, [1] * batch, device, shape=shape)
    regions = layer.regions
    before = {name: host(getattr(regions, name)).clone() for name in ("x", "conv", "conv_weight", "state")}
    layer.step()
    channels = (2 * keys + heads) * 128
    # pieces of 256 channels, each with its 4 taps
    weight = before["conv_weight"].reshape(-1, 4, 256).transpose(0, 1).reshape(4, channels)
    for number in range(batch):
        taps = before["conv"].reshape(batch, 3, channels)[number]
        x = before["x"].reshape(batch, channels)[number]
        mixed = host(regions.qkv).reshape(batch, channels)[number]
        assert naive.relative_error(mixed, naive.short_convolution(taps, x, weight)) < 1e-2
        shifted = host(regions.conv).reshape(batch, 3, channels)[number]
        assert torch.equal(shifted, torch.stack([taps[1], taps[2], x]))

        q, k, v = (part.reshape(-1, 128) for part in mixed.split([keys * 128, keys * 128, heads * 128]))
        gate = host(regions.gate).reshape(batch, heads, -1)[number]
        assert gate.shape[1] == (129 if kind == "kda" else 2)
        states = before["state"].reshape(batch, heads, 128, 128)[number]
        for head in range(heads):
            key = head * keys // heads
            decay, beta = gate[head, :-1], float(gate[head, -1])
            state, out = naive.gated_delta(q[key], k[key], v[head], decay, beta, states[head])
            found = host(regions.state).reshape(batch, heads, 128, 128)[number, head]
            assert naive.relative_error(found, state) < 1e-5
            assert (
                naive.relative_error(host(regions.out).reshape(batch, heads, 128)[number, head], out) < 1e-2
            )


def rows_of_pages(handle, kept: Format) -> torch.Tensor:
    """All rows of a region in the format `kept`, as fp32 [rows, width]."""
    raw = row_bytes(handle).cpu()
    return kept.unpack(
        *((raw[:, : kept.head_bytes], raw[:, kept.head_bytes :]) if kept.tail_bytes else (raw,))
    )


COMPRESSORS = {
    "CSA rows": Plan("", 512, 4, True, compressed("v4", "fp8", 64)),
    "CSA keys": Plan("index-", 128, 4, True, compressed_index("v4", "fp8")),
    "CSA fp4 keys": Plan("index-", 128, 4, True, compressed_index("v4", "fp4")),
    "HCA rows": Plan("", 512, 16, False, compressed("v4", "fp8", 2), split=True),
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressed_rows_are_made_of_the_tokens_that_they_stand_for(name):
    """Token after token: with overlap entry j of 4:1 is made of tokens 4 j - 4 to 4 j + 3."""
    plan, batch, tokens = COMPRESSORS[name], 2, 50
    recorder = Recorder(ListSink(), "cpu")
    rows = plan.kept.region(recorder, "rows", "kv", 0, batch * 64)
    regions = compressor.declare(recorder, 0, plan, rows, batch)
    plan.kept.fill(rows, generator_for(recorder.device, 1))
    compressor.fill(regions, generator_for(recorder.device, 2))
    news = torch.randn(tokens, batch, 2 * plan.width, generator=torch.Generator().manual_seed(3))
    before = row_bytes(rows).clone()
    for token in range(tokens):
        regions.new.fill(news[token])
        compressor.step(recorder, 0, regions, [token + 1] * batch)
    found = rows_of_pages(rows, plan.kept)
    for sequence in range(batch):
        for entry in range(tokens // plan.ratio):
            values, scores = [], []
            for token in range((entry + 1) * plan.ratio - plan.slots, (entry + 1) * plan.ratio):
                if token < 0:
                    continue
                half = (
                    slice(0, plan.dim)
                    if plan.halves == 1 or token < entry * plan.ratio
                    else slice(plan.dim, None)
                )
                value, score = news[token, sequence].chunk(2)
                values.append(value[half])
                scores.append((score + regions.bias.data[token % plan.ratio])[half])
            row = naive.compressed_row(torch.stack(values), torch.stack(scores), regions.norm.data[0])
            kept = plan.kept.unpack(*plan.kept.pack(row.float()[None]))[0]
            assert naive.relative_error(found[sequence * 64 + entry], kept.double()) < 0.1
            assert float((found[sequence * 64 + entry] - kept).abs().mean()) < 1e-3
        rest = slice(sequence * 64 + tokens // plan.ratio, sequence * 64 + 64)
        assert torch.equal(row_bytes(rows)[rest], before[rest])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("heads", "units"), [(3, 5), (3, 60), (128, 60)])
@pytest.mark.parametrize(
    ("kind", "ratio", "options"),
    [
        ("window", 0, {}),
        ("hca", 4, {}),
        ("csa", 4, {}),
        ("csa", 4, {"index_dtype": "fp4"}),
        ("csa", 4, {"index_dtype": "bf16"}),
    ],
)
def test_v4_attends_to_its_window_and_to_compressed_rows(device, heads, units, kind, ratio, options):
    window, lengths, top_k = WindowShape(heads), [1000, 128, 250, 3], 160
    shape = {"window": window, "hca": HcaShape(window, 4), "csa": CsaShape(window, 4, top_k, **options)}[kind]
    layer = layer_of(kind, lengths, device, shape=shape, units=units)
    layer.step()
    combined = [access for access in layer.accesses(f"layer0.{kind}-combine") if access.write]
    assert bool(combined) == (units == 60)  # the first sequence is split where there are parts enough
    regions = layer.regions
    attention = regions if kind == "window" else regions.attention
    q, out = (host(handle).reshape(4, heads, 512) for handle in (attention.q, attention.out))
    near = rows_of_pages(attention.window, attention.kept).reshape(4, 128, 512)
    for number, tokens in enumerate(lengths):
        rows = near[number, : min(tokens, 128)]
        if kind != "window":
            entries = tokens // ratio
            far = rows_of_pages(regions.kv, regions.kept).reshape(4, -1, 512)[number, :entries]
            if kind == "csa":
                count = min(entries, top_k)
                chosen = host(regions.indices)[number * top_k : (number + 1) * top_k, 0].long()
                expected = expected_scores(layer, number, entries)
                best = torch.topk(expected, count).indices.sort().values
                assert chosen[count:].eq(-1).all()
                assert len(set(best.tolist()) & set(chosen[:count].tolist())) >= 0.95 * count
                far = far[chosen[:count]]
            rows = torch.cat([rows, far])
        expected = naive.shared_attention(q[number], rows, host(attention.sink)[:, 0])
        assert naive.relative_error(out[number], expected) < 1e-2


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("dtype", ["fp8", "fp4"])
def test_latents_are_made_of_one_token_or_two(ratio, dtype):
    batch, tokens = 2, 21
    kept, of_keys = compressed("v4.1", dtype, 64), compressed_index("v4.1", "fp4")
    recorder = Recorder(ListSink(), "cpu")
    places = [
        (one_kept.region(recorder, name, "kv", 0, batch * 64), one_kept)
        for name, one_kept in (("rows", kept), ("keys", of_keys))
    ]
    regions = latent_compressor.declare(recorder, 0, ratio, *places, batch)
    for handle, one_kept in places:
        one_kept.fill(handle, generator_for(recorder.device, 1))
    latent_compressor.fill(regions, generator_for(recorder.device, 2))
    assert (regions.state is None) == (ratio == 1)
    news = torch.randn(tokens, batch, ratio * 512, generator=torch.Generator().manual_seed(3))
    keys = torch.randn(tokens, batch, 128, generator=torch.Generator().manual_seed(4))
    for token in range(tokens):
        regions.new.fill(news[token])
        regions.key.fill(keys[token])
        latent_compressor.step(recorder, 0, regions, [token + 1] * batch)
    found, found_keys = (rows_of_pages(*place) for place in places)
    for sequence in range(batch):
        for entry in range(tokens // ratio):
            mine = news[entry * ratio : (entry + 1) * ratio, sequence]
            scores = mine[:, 512:] if ratio == 2 else torch.zeros(1, 512)
            row = naive.compressed_row(mine[:, :512], scores, regions.norm.data[0])
            expected = kept.unpack(*kept.pack(row.bfloat16().float()[None]))[0]
            assert naive.relative_error(found[sequence * 64 + entry], expected.double()) < 0.3
            assert float((found[sequence * 64 + entry] - expected).abs().mean()) < 1e-2
            key = keys[entry * ratio + ratio - 1, sequence].bfloat16()[None]
            row = naive.compressed_row(key, torch.zeros(1, 128), regions.key_norm.data[0])
            expected = of_keys.unpack(*of_keys.pack(row.float()[None]))[0]
            assert float((found_keys[sequence * 64 + entry] - expected).abs().mean()) < 1e-2


@pytest.mark.parametrize("ratio", [1, 2])
def test_v41_layers_share_rows_and_selections_but_not_windows(ratio):
    lengths, shape = [300, 41], v41_shape(ratio)
    layer = stack_of([Spec("csa", shape), Spec("csa", shape, index=0, kv=0)], lengths, units=10)
    layer.step()
    source, user = layer.stack
    assert user.indexer is None
    assert user.kv is source.kv
    assert [name for name in layer.kernel_names() if name.startswith("layer1")] == [
        "layer1.csa-attend",
        "layer1.csa-combine",
    ]
    for number, tokens in enumerate(lengths):
        entries = tokens // ratio
        chosen = source.indices.data.reshape(2, 16)[number, :].long()
        expected = expected_scores(layer, number, entries, source)
        assert chosen.tolist() == torch.topk(expected, 16).indices.sort().values.tolist()
        far = rows_of_pages(source.kv, source.kept).reshape(2, -1, 512)[number, chosen]
        near = rows_of_pages(user.attention.window, user.attention.kept).reshape(2, 128, 512)[number]
        q, out = (h.data.reshape(2, 3, 512)[number] for h in (user.attention.q, user.attention.out))
        rows = torch.cat([near[: min(tokens, 128)], far])
        found = naive.shared_attention(q, rows, user.attention.sink.data[:, 0])
        assert naive.relative_error(out, found) < 1e-2


def test_v41_selects_within_the_blocks_that_another_layer_kept():
    lengths, blocks, top_k = [1005, 150, 30, 3], 5, 16
    shape = v41_shape(1, blocks=blocks)
    layer = stack_of([Spec("csa", shape), Spec("csa", shape, kv=0, blocks=0)], lengths, units=10)
    layer.step()
    source, user = layer.stack
    kept = source.blocks.numbers.data.reshape(4, blocks).long()
    for number, tokens in enumerate(lengths):
        scores = expected_scores(layer, number, tokens, source)
        newest = (tokens - 1) // 8
        best = [(float(scores[8 * block : 8 * block + 8].max()), block) for block in range(newest)]
        wanted = sorted([block for _, block in sorted(best)[-(blocks - 1) :]] + [newest])
        assert [block for block in kept[number].tolist() if block >= 0] == wanted

        mine = expected_scores(layer, number, tokens, user)
        allowed = torch.tensor([entry for entry in range(tokens) if entry // 8 in wanted])
        picked = allowed[torch.topk(mine[allowed], min(top_k, len(allowed))).indices].sort().values
        chosen = user.indices.data.reshape(4, top_k)[number].long()
        assert chosen[chosen >= 0].tolist() == picked.tolist()


def expected_scores(layer, number, entries, regions=None):
    """Scores of the first entries of a sequence, in float64 from the packed queries and keys."""
    own = (regions or layer.regions).indexer
    kept, batch = own.kept, own.index_weights.region.rows
    each, heads = own.index.region.rows // batch, kept.heads
    parts = [host(own.index)]
    if kept.keys.tail_bytes:
        page = kept.keys.page
        pages = parts[0].reshape(batch, -1, page.bytes)[number]
        split, full = page.rows * page.head_bytes, page.rows * kept.keys.row_bytes
        parts = [pages[:, :split].reshape(each, -1), pages[:, split:full].reshape(each, -1)]
    else:
        parts = [parts[0][number * each : (number + 1) * each]]
    keys = kept.keys.unpack(*parts)[:entries]
    queries = kept.queries.unpack(host(own.index_q)[number * heads : (number + 1) * heads])
    return naive.index_scores(queries, host(own.index_weights)[number], keys, torch.ones(entries))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        (dsa_shape(2, 128), [900]),
        (dsa_shape(128, 96), [333, 40]),
        (dsa_shape(64, 64), [50]),
        (dsa_shape(2, 64, index_dtype="fp4"), [300, 20]),
        (dsa_shape(2, 64, index_dtype="bf16"), [300, 20]),
        (dsa_shape(2, 64, rope=0, pool=4), [262, 65, 259, 9]),
        (dsa_shape(2, 100, sink=7, local=50), [250, 101, 100, 30]),
        (dsa_shape(2, 100, sink=7, local=50), [500, 251]),
    ],
)
def test_dsa_selects_by_score_and_attends_to_what_it_selected(device, staged, shape, lengths):
    layer = layer_of("dsa", lengths, device, shape=shape, units=6, staged=staged)
    layer.step()
    own, attention, batch = layer.regions.indexer, layer.regions.attention, len(lengths)
    heads, k = shape.attention.heads, own.indices.region.rows // batch
    assert k == shape.top_k + shape.pool - 1
    for number, tokens in enumerate(lengths):
        entries = tokens // shape.pool
        expected = expected_scores(layer, number, entries)
        first = number * own.scores.region.rows // batch
        if entries:
            assert naive.relative_error(host(own.scores)[first : first + entries, 0], expected) < 1e-2

        chosen = host(own.indices)[number * k : (number + 1) * k, 0].long()
        best = set(naive.selected_rows(expected, tokens, shape).tolist())
        count = len(best)
        assert count == min(tokens, shape.top_k + tokens % shape.pool)
        assert chosen[count:].eq(-1).all()
        assert len(best & set(chosen[:count].tolist())) >= 0.99 * count - shape.pool
        assert chosen[:count].diff().gt(0).all()

        start = number * attention.kv.region.rows // batch
        kv = unpack_kv(host(attention.kv)[start + chosen[:count]])
        queries = host(attention.q)[number * heads : (number + 1) * heads]
        found = host(attention.out)[number * heads : (number + 1) * heads]
        assert naive.relative_error(found, naive.attention(queries, kv, 192**-0.5)) < 1e-2


def test_a_layer_attends_to_the_rows_that_another_selected():
    specs = [Spec("dsa", dsa_shape()), Spec("dsa", dsa_shape(4), index=0), Spec("dsa", dsa_shape(), index=1)]
    layer = stack_of(specs, [290, 20])
    layer.step()
    assert layer.kernel_names()[4:] == [
        "layer1.dsa-attend",
        "layer1.dsa-combine",
        "layer2.dsa-attend",
        "layer2.dsa-combine",
    ]
    source, user = layer.stack[0], layer.stack[1].attention
    for number, count in enumerate((64, 20)):
        chosen = source.indices.data[number * 64 : number * 64 + count, 0].long()
        kv = unpack_kv(user.kv.data[number * 320 + chosen])
        expected = naive.attention(user.q.data[number * 4 : number * 4 + 4], kv, 192**-0.5)
        assert naive.relative_error(user.out.data[number * 4 : number * 4 + 4], expected) < 1e-2


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("rope", [64, 0])
def test_mla_rows_may_be_fp8_and_without_a_rotary_part(dtype, rope):
    shape = MlaShape(5, rope=rope, dtype=dtype)
    layer = layer_of("mla", [200, 70], shape=shape)
    layer.step()
    regions = layer.regions
    assert regions.kv.region.row_bytes == (512 + rope) * (2 if dtype == "bf16" else 1)
    for number, rows in enumerate((200, 70)):
        kv = regions.kv.data[number * 256 : number * 256 + rows].float()
        expected = naive.attention(regions.q.data[number * 5 : number * 5 + 5], kv, 192**-0.5)
        assert naive.relative_error(regions.out.data[number * 5 : number * 5 + 5], expected) < 1e-2


def test_a_long_context_is_selected_in_parts_with_the_same_outcome():
    whole = layer_of("dsa", [900, 777], top_k=100, cut=Cut())
    parts = layer_of("dsa", [900, 777], top_k=100, cut=Cut(split_from=900, blocks=7))
    whole.step()
    parts.step()
    assert "layer0.dsa-topk-merge" in parts.kernel_names()
    assert torch.equal(whole.regions.indices.data, parts.regions.indices.data)
    assert torch.equal(whole.regions.attention.out.data, parts.regions.attention.out.data)


def test_blocks_that_share_a_sequence_select_the_same_rows(monkeypatch):
    whole = layer_of("dsa", [900, 777, 60], top_k=100, cut=Cut(), units=16)
    whole.step()
    monkeypatch.setattr(topk_grid, "ONE_BLOCK", 300)
    monkeypatch.setattr(topk_grid, "FEW_BYTES", topk_grid.STATE_BYTES + 100 * 4)
    parts = layer_of("dsa", [900, 777, 60], top_k=100, cut=Cut(), units=16)
    parts.step()
    (kernel,) = (each for each in parts.sink.kernels if each.family == "dsa-topk")
    assert (kernel.blocks, kernel.tile_rows) == (9, 100)  # a group at a time, since two would fill all units
    assert kernel.tile_ps > 0 == kernel.startup_ps
    reads = [a for a in parts.accesses(kernel.name) if not a.write]
    assert [(a.block, a.block_last, a.rows, a.grain) for a in reads] == [(0, 8, 900, 100), (0, 8, 777, 100)]
    assert torch.equal(whole.regions.indices.data, parts.regions.indices.data)
    assert torch.equal(whole.regions.attention.out.data, parts.regions.attention.out.data)


def test_a_given_selection_takes_the_place_of_the_scores():
    import numpy as np

    given = [np.arange(5, 5 + 64 * 3, 3, dtype=np.int64)]
    layer = layer_of("dsa", [400], selected=given)
    layer.step()
    gathered = [a.gather for a in layer.accesses("layer0.dsa-attend") if a.gather is not None]
    assert np.array_equal(np.concatenate(gathered), given[0])
    kv = unpack_kv(layer.regions.attention.kv.data[torch.from_numpy(given[0])])
    expected = naive.attention(layer.regions.attention.q.data, kv, 192**-0.5)
    assert naive.relative_error(layer.regions.attention.out.data, expected) < 1e-2
