"""The kernels and stacks suites without a GPU: grids and split, data, packing, bytes, families on a CPU.

The production kernels are replaced by plain torch here, so that what surrounds them is run: shapes, page
tables, order of layers, bytes counted.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from validation.measure import (  # noqa: E402
    __main__ as command,
)
from validation.measure import (  # noqa: E402
    cuda,
    families,
    host_memory,
    kernels_after,
    kernels_data,
    kernels_dsa,
    kernels_fla,
    kernels_gemv,
    kernels_glue,
    kernels_libs,
    kernels_mla,
    kernels_pack,
    kernels_stage,
    points,
    stacks,
    stacks_step,
    timing,
)
from validation.measure.device import Env, Skipped  # noqa: E402
from validation.measure.points import CALIBRATE, HELD_OUT, Family, Point  # noqa: E402

ALL = points.read_campaign()
KERNELS = [family for family in ALL if family.suite == "kernels"]
STACKS = [family for family in ALL if family.suite == "stacks"]


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Env:
    """A CPU, one short round, little data."""
    monkeypatch.setattr(kernels_data, "COLD_BYTES", 1 << 18)
    monkeypatch.setattr(kernels_data, "BLOCK_BYTES", 1 << 18)
    monkeypatch.setattr(kernels_libs, "load", lambda library: None)
    for name in ("MIN_REPLAYS", "MIN_CALLS", "GRAPH_NS"):
        monkeypatch.setattr(timing, name, 1)
    return Env("cpu", rounds=1, budget_s=0.0)


def ids(family: Family) -> str:
    return family.name


@pytest.mark.parametrize("family", KERNELS + STACKS, ids=ids)
def test_every_family_has_a_function(family: Family) -> None:
    bare = dataclasses.replace(family, requires=(), gpus=0)
    assert callable(families.function_of(bare, Env("cpu")))


@pytest.mark.parametrize("family", KERNELS, ids=ids)
def test_few_points_of_a_kernel_calibrate(family: Family) -> None:
    assert family.count(CALIBRATE) in (4, 5)
    assert family.count(HELD_OUT) >= family.count(CALIBRATE)


def test_most_kernel_families_hold_out_thirty_points() -> None:
    assert sum(family.count(HELD_OUT) >= 28 for family in KERNELS) >= 9


def test_no_point_of_a_stack_calibrates() -> None:
    assert {point.split for family in STACKS for point in family.points} == {HELD_OUT}
    assert max(point["context"] for family in STACKS for point in family.points) == 10_485_760


def test_the_two_suites_ask_for_less_than_25_minutes_points_of_tables_among_them() -> None:
    assert sum(family.seconds for family in KERNELS + STACKS) < 1500


def test_a_family_asked_for_by_name_without_its_library_ends_with_6(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--suite", "kernels", "--device", "cpu", "--only", "mla", "-o", str(tmp_path)]
    assert command.main(words) == 6
    assert "mla.dense: skipped" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ data


def test_rows_and_pages_hold_finite_numbers() -> None:
    rows = kernels_data.drawn("rows", kernels_data.UNIT_BYTES["rows"] * 2, "cpu").view(-1, 656)
    numbers = kernels_mla.decoded_rows(rows)
    assert numbers.shape == (128, 576)
    assert numbers.isfinite().all()
    assert numbers[:, :512].std() > 0.2
    pages = kernels_data.drawn("index", kernels_data.UNIT_BYTES["index"], "cpu").view(1, -1)
    scales = pages[:, 64 * 128 :].contiguous().view(torch.float32)
    assert ((scales >= 0.25) & (scales <= 0.75)).all()


def test_each_scale_of_a_row_holds_for_128_values() -> None:
    row = torch.zeros(1, 656, dtype=torch.uint8)
    row[0, :512].view(torch.float8_e4m3fn).fill_(2.0)
    row[0, 512:528].view(torch.float32).copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    row[0, 528:].view(torch.bfloat16).fill_(7.0)
    numbers = kernels_mla.decoded_rows(row)[0]
    assert numbers[[0, 127, 128, 300, 511]].tolist() == [2.0, 2.0, 4.0, 6.0, 8.0]
    assert (numbers[512:] == 7.0).all()


@pytest.mark.parametrize(("nbytes", "count"), [(1, 512), (1 << 20, 320), (1 << 30, 2)])
def test_buffers_reach_past_the_cache_and_stay_few(nbytes: int, count: int) -> None:
    assert kernels_data.buffers_for(nbytes) == count
    assert kernels_data.buffers_for(nbytes, warm=True) == 1


def test_a_pool_is_kept_while_it_is_large_enough(env: Env) -> None:
    first = kernels_data.hold(env, "bf16", 8192)
    assert kernels_data.hold(env, "bf16", 4096).data_ptr() == first.data_ptr()
    assert kernels_data.hold(env, "bf16", 1 << 20).numel() == 1 << 20
    kernels_data.hold(env, "rows", 656 * 64)
    assert env.facts["held"][0] == "rows"


def test_a_block_repeats_and_its_last_copy_is_cut() -> None:
    data = torch.zeros(56, dtype=torch.uint8)
    kernels_data.repeat(data, torch.arange(24, dtype=torch.uint8))
    assert data.tolist() == [i % 24 for i in range(56)]


def test_a_result_that_is_not_finite_is_an_error() -> None:
    wanted = torch.ones(4)
    assert kernels_data.off_ppm(wanted * 1.001, wanted) == pytest.approx(1000, rel=0.01)
    with pytest.raises(ValueError, match="not finite"):
        kernels_data.off_ppm(torch.tensor([1, 1, 1, float("nan")]), wanted)


# ------------------------------------------------------------------------------------------- libraries


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vllm folder and a triton that does nothing."""
    monkeypatch.setattr(kernels_libs, "wheel_folder", lambda: tmp_path)
    fake = types.ModuleType("triton")
    fake.jit = lambda function: ("kernel", function)  # type: ignore[attr-defined]
    fake.language = types.ModuleType("triton.language")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", fake)
    monkeypatch.setitem(sys.modules, "triton.language", fake.language)  # type: ignore[attr-defined]
    kernels_libs.lifted.cache_clear()
    return tmp_path


def test_a_kernel_is_lifted_with_its_decorator_and_without_its_module(wheel: Path) -> None:
    one = "@triton.jit\ndef one(\n    a,\n):\n    return a + LIMIT\n"
    source = f"import not_there\n\n{one}\ndef two():\n    return 2\n"
    (wheel / "k.py").write_text(source)
    module = kernels_libs.lifted("k.py", ("one",), "LIMIT = 40")
    assert module.one[0] == "kernel"
    assert module.one[1](2) == 42
    assert not hasattr(module, "two")


def test_what_the_wheel_lacks_is_skipped(wheel: Path) -> None:
    (wheel / "k.py").write_text("x = 1\n")
    with pytest.raises(Skipped, match="no function three"):
        kernels_libs.lifted("k.py", ("three",))
    with pytest.raises(Skipped, match=r"_C\.abi3\.so is missing"):
        kernels_libs.load.__wrapped__("_C")


def fat_binary(*payloads: tuple[int, int, bytes]) -> bytes:
    """A fat binary with entries of (kind, architecture, payload)."""
    body = b""
    for kind, architecture, payload in payloads:
        head = struct.pack("<HHIQIIHHI", kind, 1, 64, len(payload), 0, 0, 0, 0, architecture)
        body += head.ljust(64, b"\0") + payload
    return struct.pack("<4sHHQ", kernels_pack.FAT_MAGIC, 1, 16, len(body)) + body


def test_code_for_other_gpus_is_zeroed_and_nothing_else() -> None:
    host = b"host code"
    fat = fat_binary((2, 80, b"a" * 8), (2, 90, b"b" * 8), (1, 90, b"c" * 8))
    data = host + fat + host
    out = kernels_pack.for_one_gpu(data, 90)
    assert len(out) == len(data)
    assert b"b" * 8 in out
    assert b"a" * 8 not in out
    assert b"c" * 8 not in out
    assert out.count(host) == 2
    with pytest.raises(ValueError, match="architecture 100"):
        kernels_pack.for_one_gpu(data, 100)


def test_an_archive_holds_what_the_suites_use(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="vllm"):
        kernels_pack.pack(tmp_path, tmp_path / "a.tar.gz")
    with zipfile.ZipFile(tmp_path / "vllm-0.22.0-cp38.whl", "w") as wheel:
        for library in kernels_pack.LIBRARIES:
            wheel.writestr(f"vllm/{library}.abi3.so", fat_binary((2, 90, b"b" * 8)))
        for name in (*kernels_pack.SOURCES, "vllm/other.py", "vllm/third_party/deep_gemm/__init__.py"):
            wheel.writestr(name, "x = 1\n")
        for python in ("311", "312"):
            wheel.writestr(f"vllm/third_party/deep_gemm/_C.cpython-{python}-x86_64-linux-gnu.so", "")
    with zipfile.ZipFile(tmp_path / "fla_core-0.6.0-py3.whl", "w") as wheel:
        wheel.writestr("fla/__init__.py", "")
    kernels_pack.pack(tmp_path, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"vllm/__init__.py", "vllm/_C.abi3.so", "fla/__init__.py", *kernels_pack.SOURCES} <= names
    assert "vllm/other.py" not in names
    assert [n for n in names if "cpython" in n] == [
        "vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so"
    ]


# --------------------------------------------------------------------------- kernels, in plain torch


def dense(q, cache, lengths, table, plan, out):  # noqa: ANN001, ANN201 - stands in for libs.dense_attend
    out = q.new_empty(*q.shape[:3], 512) if out is None else out
    for b in range(len(q)):
        rows = cache[table[b].long()].reshape(-1, 576)[: lengths[b]]
        out[b, 0] = kernels_mla.attention(q[b, 0], rows).bfloat16()
    return out, (lengths, lengths)


def sparse(q, cache, slots, plan, out):  # noqa: ANN001, ANN201
    flat = cache.reshape(-1, 656)
    for b in range(len(q)):
        rows = kernels_mla.decoded_rows(flat[slots[b, 0].long()])
        out[b, 0] = kernels_mla.attention(q[b, 0], rows).bfloat16()
    return out, (slots, slots)


def logits(q, cache, weights, lengths, table, plan, context):  # noqa: ANN001, ANN201
    pages = cache.reshape(len(cache), -1)
    rows = [kernels_dsa.index_scores(q[b, 0], weights[b], pages[table[b].long()]) for b in range(len(q))]
    return torch.stack(rows)[:, :context]


def top_k(scores, lengths, chosen, workspace, context):  # noqa: ANN001, ANN201
    chosen.copy_(scores.topk(chosen.shape[1]).indices)


def slots_of(owner, table, chosen, slots):  # noqa: ANN001, ANN201
    slots.copy_(torch.gather(table, 1, (chosen // 64).long()) * 64 + chosen % 64)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_libs, "dense_attend", dense)
    monkeypatch.setattr(kernels_libs, "sparse_attend", sparse)
    monkeypatch.setattr(kernels_libs, "index_logits", logits)
    monkeypatch.setattr(kernels_libs, "index_plan", lambda lengths: lengths)
    monkeypatch.setattr(kernels_libs, "top_k", top_k)
    monkeypatch.setattr(kernels_libs, "slots_of", slots_of)


@pytest.mark.usefixtures("plain")
def test_dense_attention_reads_its_context_and_agrees(env: Env) -> None:
    done = kernels_mla.dense(Point("mla.dense", {"context": 100, "batch": 2, "heads": 8}), env)
    assert done.bytes_read == 2 * 100 * 1152 + 2 * 8 * 1152
    assert done.bytes_written == 2 * 8 * (1024 + 4)
    assert done.footprint_bytes == done.buffers * 2 * 2 * 64 * 1152
    assert 0 < done.extra["off_ppm"] < 5000


@pytest.mark.usefixtures("plain")
def test_sparse_attention_reads_k_rows_and_agrees(env: Env) -> None:
    done = kernels_mla.sparse(Point("mla.sparse", {"batch": 2, "heads": 8, "k": 64, "span": 512}), env)
    assert done.bytes_read == 2 * 64 * (656 + 4) + 2 * 8 * 1152
    assert 0 < done.extra["off_ppm"] < 5000


@pytest.mark.usefixtures("plain")
def test_index_scores_read_132_bytes_a_token(env: Env) -> None:
    done = kernels_dsa.scores(Point("dsa.logits", {"context": 256, "batch": 2, "heads": 32}), env)
    assert done.bytes_read == 2 * (256 * 132 + 4 * 4 + 32 * 132)
    assert done.bytes_written == 2 * 256 * 4
    assert done.extra["off_ppm"] == 0


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("kind", ["flat", "peaked"])
def test_top_k_is_checked_against_the_scores(env: Env, kind: str) -> None:
    point = Point("dsa.topk", {"scores": kind, "length": 4096, "batch": 2, "k": 512})
    done = kernels_dsa.top_k(point, env)
    assert (done.bytes_read, done.bytes_written) == (2 * 4096 * 4, 2 * 512 * 4)
    assert done.extra["misplaced"] == 0


def test_positions_that_are_wrong_missing_or_doubled_are_counted() -> None:
    scores = torch.arange(100.0).view(1, 100)
    assert kernels_dsa.misplaced(scores, torch.tensor([[99, 98, 97]]), 3) == 0
    assert kernels_dsa.misplaced(scores, torch.tensor([[99, 3, 97]]), 3) == 1
    assert kernels_dsa.misplaced(scores, torch.tensor([[99, 99, 97]]), 3) == 1
    assert kernels_dsa.misplaced(scores, torch.tensor([[99, -1, 97]]), 3) == 2


def test_flat_scores_are_close_and_peaked_ones_are_not(env: Env) -> None:
    flat = kernels_dsa.drawn_scores(env, "flat", 2, 1, 4096, 1)
    peaked = kernels_dsa.drawn_scores(env, "peaked", 2, 1, 4096, 1)
    assert flat.max() / flat.min() < 1.002
    assert peaked.max() / peaked.median() > 100


def test_bf16_products_agree(env: Env) -> None:
    done = kernels_gemv.bf16(Point("gemv.bf16", {"shape": "a", "n": 128, "k": 256, "tokens": 3}), env)
    assert done.bytes_read == 128 * 256 * 2 + 3 * 256 * 2
    assert done.extra["off_ppm"] < 5000


def test_fp8_products_use_a_scale_a_block(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    def gemm(a, b, out, disable_ue8m0_cast):  # noqa: ANN001, ANN202
        assert a[1].stride(0) == 1
        wide = b[1].repeat_interleave(128, 0)[: len(b[0])].repeat_interleave(128, 1)
        out.copy_((a[0].float() * a[1].repeat_interleave(128, 1)) @ (b[0].float() * wide).T)

    monkeypatch.setattr(kernels_libs, "deep_gemm", lambda: types.SimpleNamespace(fp8_gemm_nt=gemm))
    done = kernels_gemv.fp8(Point("gemv.fp8", {"shape": "a", "n": 192, "k": 256, "tokens": 3}), env)
    assert done.bytes_read == 192 * 256 + 2 * 2 * 4 + 3 * (256 + 8)
    assert done.extra["off_ppm"] < 5000


def test_few_tokens_have_a_block_of_rows_each() -> None:
    ids = torch.arange(16, dtype=torch.int32).view(2, 8)
    order, experts, padded = kernels_gemv.assigned(ids, 16)
    assert order is None
    assert experts.tolist() == list(range(16))
    assert padded.tolist() == [256]


def test_a_token_asks_for_different_experts() -> None:
    ids = kernels_gemv.drawn_ids(3, 5, 1, "cpu")
    assert ids.shape == (3, 5, 8)
    assert all(len(set(row.tolist())) == 8 for row in ids.view(-1, 8))


def test_states_lie_elsewhere_in_each_round(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_fla, "SLACK_BYTES", 1 << 17)
    first = kernels_fla.states(env, 2, 1, 0, 5)
    assert first.shape == (2, 1, 128, 128)
    assert kernels_fla.states(env, 2, 1, 1, 5).data_ptr() != first.data_ptr()


def test_staging_goes_round_all_slots(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = []
    monkeypatch.setattr(cuda, "bind", lambda *a, **k: bound.append(a) or (lambda: None))
    far = host_memory.Far(4096, 656 * 1024, 1 << 30, 50.0, 1300.0, {"region_bytes": 1})
    monkeypatch.setattr(kernels_stage, "region", lambda env: far)
    point = Point("stage.gather", {"row": 656, "rows": 64, "span": 656 * 1024})
    done = kernels_stage.gather(point, env)
    assert done.bytes_read == 64 * 660
    assert len(bound) == 16
    address, slots, out, count, words, cells, call, calls, turn = bound[3][4:]
    assert (address.value, count, words, call, calls, turn) == (4096, 64, 41, 3, 16, slots.numel())
    assert turn % count == 0
    assert turn * 656 >= kernels_data.COLD_BYTES
    assert int(slots.max()) < 1024
    assert out.numel() == 64 * 656
    assert cells.numel() == 16
    with pytest.raises(ValueError, match="larger than"):
        kernels_stage.gather(Point("stage.gather", {"row": 656, "rows": 64, "span": 1 << 40}), env)


# ---------------------------------------------------------------------------------------------- stacks


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sparse layers with few heads, and k of 64."""
    for name, value in {"DEEPSEEK_LAYERS": 3, "DEEPSEEK_HEADS": 2, "INDEX_HEADS": 4, "TOP_K": 64}.items():
        monkeypatch.setattr(stacks, name, value)


@pytest.mark.usefixtures("plain", "small")
def test_a_dense_stack_reads_every_layer(env: Env) -> None:
    done = stacks.v3(Point("stack.v3", {"context": 128, "batch": 1}), env)
    assert done.bytes_read == 3 * (128 * 1152 + 2 * 1152)
    assert done.footprint_bytes == 3 * 128 * 1152
    assert done.extra["own_layers"] == 3


@pytest.mark.usefixtures("plain")
def test_kimi_has_mla_in_every_fourth_layer_and_the_last(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def counted(*arguments):  # noqa: ANN002, ANN202
        order.append("mla")
        return dense(*arguments)

    monkeypatch.setattr(kernels_libs, "dense_attend", counted)
    monkeypatch.setattr(stacks, "kda_step", lambda *a: lambda: order.append("kda"))
    monkeypatch.setattr(stacks, "KIMI_HEADS", 1)
    done = stacks.kimi(Point("stack.kimi", {"context": 64, "batch": 1}), env)
    assert "".join(name[0] for name in order[1:28]) == "kkkm" * 6 + "kkm"
    assert done.bytes_written > 20 * 65536


@pytest.mark.usefixtures("plain", "small")
def test_staged_rows_give_what_rows_in_hbm_give(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: dict[str, torch.Tensor] = {}

    def run(name: str) -> None:
        def noted(q, cache, slots, plan, out):  # noqa: ANN001, ANN202
            outputs[name] = out
            return sparse(q, cache, slots, plan, out)

        monkeypatch.setattr(kernels_libs, "sparse_attend", noted)
        getattr(stacks, name)(Point("same seed", {"context": 256, "batch": 2}), env)

    run("v32")
    host = env.facts["held"][1].clone()

    def staged(base, slots, out, row, calls):  # noqa: ANN001, ANN202
        rows = host[base:].view(-1, row)
        return [lambda: out.view(-1, row).copy_(rows[slots.long()])]

    monkeypatch.setattr(stacks, "stage_calls", staged)
    far = host_memory.Far(0, host.numel(), 1 << 30, 50.0, 1300.0)
    monkeypatch.setattr(stacks, "host_rows", lambda env: far)
    run("v32_staged")
    assert torch.equal(outputs["v32"], outputs["v32_staged"])


def test_layers_take_turns_when_their_caches_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.SimpleNamespace(total_memory=stacks.SPARE_BYTES + 100)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    assert stacks.own_layers(Env("cuda:0"), 61, 10) == 10
    assert stacks.own_layers(Env("cuda:0"), 7, 10) == 7
    assert stacks.own_layers(Env("cuda:0"), 61, 10, beside_bytes=45) == 5
    with pytest.raises(ValueError, match="one layer needs 101 B"):
        stacks.own_layers(Env("cuda:0"), 61, 101)


def test_copies_repeat_a_block_and_end_at_chunks() -> None:
    parts = list(stacks.pieces(100, 30, 40))
    assert parts[0] == (0, 0, 30)
    assert sum(size for *_, size in parts) == 100
    for begin, offset, size in parts:
        assert begin % 30 == offset
        assert begin // 40 == (begin + size - 1) // 40


# ---------------------------------------------------------------------------------------- a whole step


def test_the_model_has_the_published_size() -> None:
    """48B parameters in all, 3B of them used by a token; bf16."""
    assert stacks_step.weight_bytes() == pytest.approx(98.2e9, rel=0.002)
    read, written = stacks_step.step_bytes(1, 4096, experts=26 * 8)
    caches = 7 * 4096 * 1152
    states = 20 * 32 * 65536
    assert read - caches - states == pytest.approx(2 * 3.11e9, rel=0.01)
    assert written == pytest.approx(states, rel=0.1)


def test_a_longer_context_adds_8064_bytes_a_token() -> None:
    short, long = (stacks_step.step_bytes(1, context, 208)[0] for context in (4096, 5120))
    assert long - short == 1024 * 8064


# ------------------------------------------------------------------------------ small kernels of a step


GLUE = [family for family in KERNELS if family.file == "glue.toml"]


def stand_ins(calls: list[str]) -> types.SimpleNamespace:
    """Operators of vLLM in plain torch: those whose results are checked compute, the others count."""

    def fused_add_rms_norm(x, residual, weight, eps):  # noqa: ANN001, ANN202
        residual += x
        x.copy_(kernels_glue.rms(residual) * weight)

    def silu_and_mul(out, x):  # noqa: ANN001, ANN202
        gate, up = x.float().chunk(2, dim=1)
        out.copy_(torch.nn.functional.silu(gate) * up)

    def rotary_embedding(positions, q, k, dim, table, neox):  # noqa: ANN001, ANN202
        cos, sin = table[positions].float()[:, None].chunk(2, dim=-1)
        for x in (q, k):
            first, second = x.float().view(len(positions), -1, dim).chunk(2, dim=-1)
            x.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(1))

    def top_k(scale, ids, rows, logits, renormalize, bias):  # noqa: ANN001, ANN202
        ids.copy_(logits.float().topk(ids.shape[1], dim=-1).indices)

    def quantise(x, coded, scales, group, *rest):  # noqa: ANN001, ANN002, ANN202
        parts = x.float().view(len(x), -1, group)
        scales.copy_(parts.abs().amax(2) / 448)
        coded.copy_((parts / scales[:, :, None]).flatten(1))

    def named(name: str):  # noqa: ANN202
        return lambda *arguments: calls.append(name)

    counted = ("concat_and_cache_mla", "reshape_and_cache_flash", "indexer_k_quant_and_cache")
    plain = {"rms_norm": lambda out, x, weight, eps: out.copy_(kernels_glue.rms(x) * weight)}
    plain |= {"fused_add_rms_norm": fused_add_rms_norm, "silu_and_mul": silu_and_mul}
    plain |= {"rotary_embedding": rotary_embedding, "per_token_group_fp8_quant": quantise}
    experts = {"topk_sigmoid": top_k, "topk_softmax": top_k, "grouped_topk": named("grouped_topk")}
    experts |= {"moe_sum": lambda x, out: out.copy_(x.float().sum(1)), "moe_align_block_size": named("align")}
    return types.SimpleNamespace(
        _C=types.SimpleNamespace(**plain),
        _moe_C=types.SimpleNamespace(**experts),
        _C_cache_ops=types.SimpleNamespace(**{name: named(name) for name in counted}),
    )


@pytest.mark.parametrize("family", GLUE, ids=ids)
@pytest.mark.usefixtures("plain")
def test_small_kernels_agree_with_plain_torch(
    family: Family, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family.name in ("glue.conv", "glue.gated_norm", "inner.experts"):
        pytest.skip("Triton kernels have no stand-in")
    calls: list[str] = []
    monkeypatch.setattr(torch, "ops", stand_ins(calls))
    measure = families.function_of(dataclasses.replace(family, requires=(), gpus=0), env)
    smallest = min(family.points, key=lambda point: sum(v for v in point.axes.values() if isinstance(v, int)))
    done = measure(smallest, env)
    assert done.extra.get("off_ppm", 0) < 40_000
    assert ("off_ppm" in done.extra) == ("off_ppm" in family.extra and smallest.axes.get("kind") != "fill")
    assert done.bytes_written > 0
    assert min(done.samples_ns) > 0


def test_a_call_comes_behind_another_kernel(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def make(point: Point, arena: kernels_after.Arena) -> kernels_after.Made:
        arena.normal(4, 100)
        return kernels_after.Made(lambda: order.append("call"), 1, 2)

    def others(env: Env, kept: int) -> list[timing.Call]:
        return [lambda: order.append(f"other {kept}")]

    monkeypatch.setattr(kernels_after, "other_kernels", others)
    kernels_after.timed(Point("x", {"state": "after"}), env, make)
    assert order[:2] == ["other 1024", "call"]
    assert kernels_after.timed(Point("x", {"state": "again"}), env, make).samples_ns[0] > 0
    assert order[-1] == order[-2] == "call"


def test_stamps_tell_a_mean_for_each_whole_replay() -> None:
    stamps = kernels_after.Stamps(Env("cpu"))
    for nanoseconds, calls in ((300, 2), (1000, 4), (1200, 4)):
        stamps.begin()
        stamps._total += torch.tensor([nanoseconds, calls])
    assert stamps.samples_ns(4) == [250, 300]


def test_an_arena_ends() -> None:
    arena = kernels_after.Arena(Env("cpu", facts={"arena": torch.zeros(1024, dtype=torch.uint8)}), 1)
    assert arena.room(100).numel() == 100
    assert arena.used == 256
    with pytest.raises(ValueError, match="more than 1024 B"):
        arena.room(400)
