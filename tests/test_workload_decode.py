"""Whole decode steps: the same code on real tensors and on shapes alone, errors, and nothing half-written."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from workload_cases import layer_of, rows_of

import memsim
from memsim import trace_show
from memsim.errors import MissingExtra, OutputError, UsageError
from memsim.trace_read import open_trace
from workloads import decode, job
from workloads.decode import record_step
from workloads.grid import Shape as Launch
from workloads.grid import one
from workloads.models import get_model
from workloads.models.load import changes_of
from workloads.models.model import Layer, Model, Projections
from workloads.shapes import DsaShape, KdaShape, MlaShape, Shape

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


def small(name: str, **shapes: Shape) -> Model:
    """The model with one layer of each shape, which is called by its kind."""
    layers = tuple(
        Layer(kind.rstrip("_"), kind.rstrip("_"), shape, Projections()) for kind, shape in shapes.items()
    )
    return dataclasses.replace(get_model(name), layers=layers)


SPARSE = DsaShape(MlaShape(66), 4, 128)
SMALL = {
    "kimi-linear": small("kimi-linear", kda=KdaShape(2), mla=MlaShape(heads=70)),
    "deepseek-v3.2": small("deepseek-v3.2", dsa=SPARSE, dsa_=SPARSE),
}


@pytest.fixture
def small_models(monkeypatch):
    """The models with fewer layers and heads, so that they run on real tensors in a test."""
    monkeypatch.setattr(job, "get_model", lambda name, changes: SMALL[name])


def rows(path):
    return pq.read_table(path).replace_schema_metadata(None)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("kimi-linear", {"steps": 2}),
        ("deepseek-v3.2", {"selection": "uniform", "steps": 2}),
        ("deepseek-v3.2", {"selection": "dsa_mid", "stage": "kv"}),
    ],
)
def test_real_tensors_and_shapes_give_the_same_trace(small_models, tmp_path, device, model, options):
    for name, backing in (("real", device), ("shapes", "meta")):
        record_step(model, 777, batch=2, device=backing, units=16, out=tmp_path / name, **options)
    assert rows(tmp_path / "real").equals(rows(tmp_path / "shapes"))


SPARSE_FILE = """
title = "Small layers that share"
max_context = 1024
stack = "{stack}"
source = "me"
sources = {{ me = "assumed: made up" }}
cache = {{ kv = ["fp8", "fp4"], index = ["fp8"] }}
layer.dsa = {{ heads = 66, nope = 64, value = 64, index_heads = 4, top_k = 128 }}
layer.dsa-shared = {{ like = "dsa", shares = ["index"] }}
layer.forced = {{ like = "dsa", sink = 16, local = 48 }}
layer.pooled = {{ like = "dsa", rope = 0, pool = 4 }}
layer.gdn = {{ key_heads = 2, value_heads = 4 }}
layer.gqa = {{ heads = 8, kv_heads = 2, key_dim = 64, value_dim = 64 }}
layer.swa = {{ like = "gqa", kind = "swa", window = 128, sink = true }}
layer.window = {{ heads = 4, window = 128, q_lora = 8, o_groups = 2, o_lora = 8 }}
layer.csa = {{ like = "window", kind = "csa", ratio = 4, index_heads = 4, top_k = 64 }}
layer.hca = {{ like = "window", kind = "hca", ratio = 128 }}
layer.new = {{ like = "window", style = "v4.1" }}
layer.half = {{ heads = 4, kind = "csa", window = 128, q_lora = 8, o_groups = 2, o_lora = 8, style = "v4.1", ratio = 2, index_heads = 4, top_k = 64 }}
layer.half-shared = {{ like = "half", shares = ["index", "kv"] }}
layer.full = {{ heads = 4, kind = "csa", window = 128, q_lora = 8, o_groups = 2, o_lora = 8, style = "v4.1", ratio = 1, index_heads = 4, top_k = 64, blocks = 16, block_rows = 8 }}
layer.full-scored = {{ like = "full", shares = ["kv", "blocks"] }}
layer.full-shared = {{ like = "full", shares = ["index", "kv", "blocks"] }}
"""  # noqa: E501


@pytest.mark.parametrize("selection", [None, "uniform"])
@pytest.mark.parametrize(
    "stack",
    [
        *("dsa, 2 dsa-shared, dsa", "forced", "pooled", "gdn, gqa, swa", "window, csa, hca"),
        "new, half, 2 half-shared, full, full-shared, 2 x (full-scored, full-shared)",
    ],
)
def test_layers_of_every_kind_touch_the_same_bytes_on_real_tensors(tmp_path, stack, selection):
    path = tmp_path / "mine.toml"
    path.write_text(SPARSE_FILE.format(stack=stack), encoding="utf-8")
    given = selection if any(word in stack for word in ("dsa", "forced", "pooled", "csa", "full")) else None
    for name, device in (("real", "cpu"), ("shapes", "meta")):
        out = tmp_path / name
        record_step(str(path), 411, batch=2, steps=2, device=device, units=16, selection=given, out=out)
    if given:
        assert rows(tmp_path / "real").equals(rows(tmp_path / "shapes"))
    assert trace_show.info(tmp_path / "real")["kinds"] == trace_show.info(tmp_path / "shapes")["kinds"]


def test_a_context_that_is_selected_in_parts_does_too():
    chosen = [np.arange(0, 640, 10), np.arange(64)]
    layers = [layer_of("dsa", [700, 130], device, selected=chosen) for device in ("cpu", "meta")]
    for layer in layers:
        layer.step()
    real, shapes = (
        [
            (dataclasses.replace(access, gather=None), rows_of(access).tolist())
            for access in layer.sink.accesses
        ]
        for layer in layers
    )
    assert "layer0.dsa-topk-merge" in layers[0].kernel_names()
    assert layers[0].sink.kernels == layers[1].sink.kernels
    assert layers[0].sink.regions == layers[1].sink.regions
    assert real == shapes


def test_the_same_seed_gives_the_same_trace_and_another_one_another(small_models, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        record_step("deepseek-v3.2", 900, device="cpu", seed=seed, out=tmp_path / name)
    assert rows(tmp_path / "a").equals(rows(tmp_path / "b"))
    assert not rows(tmp_path / "a").equals(rows(tmp_path / "c"))


def test_real_scores_select_other_rows_in_every_layer_and_step(small_models, tmp_path):
    record_step("deepseek-v3.2", 900, device="cpu", steps=2, out=tmp_path / "a")
    chosen = [
        tuple(found.gather_rows)
        for kernel, found in open_trace(tmp_path / "a").kernels()
        if kernel.family == "dsa-attend"
    ]
    assert len(chosen) == len(set(chosen)) == 4


def test_the_order_of_kernels_is_that_of_layers_and_steps(tmp_path):
    record_step("kimi-linear", 100_000, steps=2, out=tmp_path / "a")
    kernels = [kernel for kernel, _ in open_trace(tmp_path / "a").kernels()]
    families = [kernel.family for kernel in kernels if kernel.step == 0]
    assert families[:14] == [*["kda-conv"] * 3, "kda"] * 3 + ["mla", "mla-combine"]
    assert len(kernels) == 2 * (20 * 4 + 7 * 2)
    assert [kernel.waits_for for kernel in kernels] == [(), *((number,) for number in range(187))]
    assert [kernel.layer for kernel in kernels[-2:]] == [26, 26]


def test_grids_are_those_of_the_production_kernels(tmp_path):
    record_step("kimi-linear", 131_072, out=tmp_path / "kimi")
    record_step("deepseek-v3.2", 1_048_576, out=tmp_path / "sparse", selection="uniform")
    grids = {}
    for name in ("kimi", "sparse"):
        for kernel, _ in open_trace(tmp_path / name).kernels():
            last = kernel.name.split(".")[1]
            grids[last] = kernel.blocks, kernel.blocks_per_unit, kernel.tile_rows, kernel.tiles_in_flight
    assert grids == {
        **{f"kda-conv-{name}": (16, 16, 3, 8) for name in "qkv"},
        "kda": (128, 4, 32, 8),
        "mla": (132, 1, 64, 2),
        "mla-combine": (4, 8, 1, 1),
        "dsa-index": (132, 1, 256, 3),
        "dsa-topk": (124, 2, 8460, 1),
        "dsa-attend": (132, 1, 32, 2),
        "dsa-combine": (16, 8, 1, 1),
    }


def test_metadata_say_what_was_recorded_and_on_what_it_rests(small_models, tmp_path):
    meta = record_step("deepseek-v3.2", 4096, batch=2, steps=3, seed=5, stage="kv", out=tmp_path / "a")
    assert open_trace(tmp_path / "a").meta == meta
    expected = {
        "model": "deepseek-v3.2",
        "part": "attention",
        "context_tokens": 4096,
        "batch": 2,
        "steps": 3,
        "tokens_per_step": 1,
        "seed": 5,
        "device": "meta",
        "selection": "dsa_mid",
        "stage": "kv",
        "units": 132,
        "kv_dtype": "fp8",
        "index_dtype": "fp8",
    }
    assert {key: meta[key] for key in expected} == expected
    assert set(meta["software"]) == {"python", "torch", "memsim"}
    assert meta["software"]["memsim"] == memsim.__version__
    inputs = {entry["path"]: entry for entry in meta["inputs"]}
    assert len(inputs) == len(meta["inputs"])
    assert inputs["kernel.dsa-topk.passes"]["provenance"] == "assumed"
    assert inputs["step.selection"]["provenance"] == "assumed"
    assert all(entry["value"] and entry["source"] for entry in meta["inputs"])
    assert len(json.dumps(meta)) < 100_000


def test_a_changed_model_is_recorded_under_a_name_that_says_so(tmp_path):
    changes = changes_of(["kda=mla"])
    meta = record_step("kimi-linear", 64, changes=changes, out=tmp_path / "a")
    record_step("kimi-linear-all-mla", 64, out=tmp_path / "b")
    assert meta["model"] == "kimi-linear --replace kda=mla"
    assert rows(tmp_path / "a").equals(rows(tmp_path / "b"))
    assert any(entry["path"] == "model.changes" for entry in meta["inputs"])


class Fake:
    """Kernels of every kind that keep what they are told, and a region a layer, filled and looked at."""

    FACTS = ()

    def __init__(self) -> None:
        self.declared, self.stepped = [], []

    def declare(self, recorder, layer, shape, run):
        self.declared.append((layer, run))
        return recorder.region(f"layer{layer}.kv", "kv", layer, 4, 4, "fp32")

    def fill(self, regions, generator):
        regions.fill(torch.zeros(regions.shape))

    def step(self, recorder, layer, shape, regions, lengths, run, selected=None):
        alive = {handle.region.layer for handle in recorder._regions if handle.data is not None}
        self.stepped.append((layer, run, selected, alive))
        with recorder.kernel(f"layer{layer}", "fake", layer, 1, Launch(1, 16, 1)):
            regions.load(0, 4, one(0))


@pytest.fixture
def fake(monkeypatch):
    kernels = Fake()
    monkeypatch.setattr(decode, "kernels_of", lambda kind: kernels)
    return kernels


def test_layers_get_the_regions_of_the_layers_that_they_share_with(fake, tmp_path):
    record_step("deepseek-v4.1-flash", 100_000, steps=2, out=tmp_path / "a")
    sources = {
        layer: tuple(
            None if handle is None else handle.region.layer for handle in (run.index, run.kv, run.blocks)
        )
        for layer, run in fake.declared
    }
    assert sources[0] == sources[2] == sources[8] == sources[20] == (None, None, None)
    assert sources[7] == (2, 2, None)
    assert sources[23] == (20, 20, 20)
    assert sources[24] == (None, 20, 20)
    assert sources[39] == (36, 20, 20)
    for layer, run, _, _ in fake.stepped:
        told = (run.index, run.kv, run.blocks)
        assert tuple(h and h.region.layer for h in told) == sources[layer]
        assert (run.candidates is not None) == (layer >= 20)


def test_layers_that_share_gather_the_same_rows(fake, tmp_path):
    record_step("glm-5.2", 70_000, batch=2, steps=2, out=tmp_path / "a")
    chosen = {}
    for at, (layer, _, selected, _) in enumerate(fake.stepped):
        chosen[at // 78, layer] = [tuple(found) for found in selected]
        assert [len(found) for found in selected] == [2048, 2048]
    assert chosen[0, 3] == chosen[0, 4] == chosen[0, 5] == chosen[0, 2]
    assert chosen[0, 6] != chosen[0, 5]
    assert chosen[1, 3] == chosen[1, 2] != chosen[0, 2]
    assert chosen[0, 2][0] != chosen[0, 2][1]


def test_real_data_stay_for_as_long_as_a_later_layer_needs_them(fake, tmp_path):
    record_step("deepseek-v4.1-flash", 50, device="cpu", steps=2, out=tmp_path / "a")
    alive = {layer: found for layer, _, _, found in fake.stepped}
    assert alive[1] == {1}
    assert alive[2] == {2}
    assert alive[7] == {2, 7}
    assert alive[8] == {8}
    assert alive[24] == {20, 24}
    assert alive[39] == {20, 36, 39}
    assert all(selected is None and run.candidates is None for _, run, selected, _ in fake.stepped)


def test_progress_counts_layers_of_all_steps(tmp_path):
    seen = []
    record_step("kimi-linear-all-mla", 64, steps=2, out=tmp_path / "a", progress=lambda *at: seen.append(at))
    assert seen == [(done, 54) for done in range(1, 55)]


@pytest.fixture
def two_threads():
    """Torch with two threads, as a caller may have set it."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("device", "inside"), [("cpu", 1), ("meta", 2)])
def test_the_cpu_computes_in_one_thread_and_the_callers_come_back(
    small_models, two_threads, tmp_path, device, inside
):
    seen = []

    def look(done: int, total: int) -> None:
        seen.append(torch.get_num_threads())
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_step("deepseek-v3.2", 100, device=device, out=tmp_path / "a", progress=look)
    assert seen == [inside, inside]
    assert torch.get_num_threads() == 2


def test_an_interrupted_recording_leaves_nothing(tmp_path):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_step("kimi-linear-all-mla", 64, out=tmp_path / "a", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "deepseek-v32"}, "unknown model 'deepseek-v32'; did you mean 'deepseek-v3.2'"),
        ({"context_tokens": 0}, "--context 0: expected a whole number from 1 to 134,217,728"),
        ({"context_tokens": 2**27 + 1}, "--context 134217729: expected"),
        ({"batch": 0}, "--batch 0: expected a whole number from 1 to 4,096"),
        ({"batch": 4097}, "--batch 4097: expected"),
        ({"steps": 10_001}, "--steps 10001: expected"),
        ({"units": 0}, "--units 0: expected"),
        ({"seed": -1}, "--seed -1: expected"),
        ({"device": "gpu"}, "--device gpu: unknown device; choose one of: cpu, cuda, meta"),
        ({"stage": "vk"}, "--stage vk: unknown stage; choose one of: kv"),
        ({"selection": "dsa_med"}, "did you mean 'dsa_mid'"),
        ({"selection": "real"}, "--selection real with --device meta: there are no scores"),
        (
            {"model": "deepseek-v3", "selection": "uniform"},
            "--selection uniform with model 'deepseek-v3': it has no",
        ),
        ({"model": "kimi-linear", "stage": "kv"}, "--stage kv with model 'kimi-linear': it has no sparse"),
        ({"device": "cpu", "context_tokens": 2**27, "batch": 4096}, "GB are free; use --device meta"),
    ],
)
def test_wrong_words_and_numbers_are_refused_in_one_line(tmp_path, change, message):
    given = {"model": "deepseek-v3.2", "context_tokens": 100, "out": tmp_path / "a"} | change
    with pytest.raises(UsageError) as refused:
        record_step(**given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_a_missing_gpu_is_named(tmp_path):
    with pytest.raises(MissingExtra, match="torch finds no CUDA device; use --device cpu or --device meta"):
        record_step("kimi-linear", 10, device="cuda", out=tmp_path / "a")


def test_an_output_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(OutputError):
        record_step("kimi-linear", 10, out=tmp_path / "none" / "a")


def test_every_shipped_model_records_on_real_tensors(tmp_path):
    for model in ("kimi-linear", "deepseek-v3.2"):
        record_step(model, 70, device="cpu", out=tmp_path / "real")
        record_step(model, 70, device="meta", out=tmp_path / "shapes")
        assert rows(tmp_path / "real").equals(rows(tmp_path / "shapes"))  # all rows are selected
