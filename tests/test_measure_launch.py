"""Every launch of the micro families against the parameters of its kernel, with memory that is not there."""

from __future__ import annotations

import contextlib
import re
import types

import pytest

torch = pytest.importorskip("torch")

from validation.measure import (  # noqa: E402
    cuda,
    device,
    micro_chase,
    micro_gather,
    micro_launch,
    micro_loaded,
    micro_stream,
    points,
    rows,
    timing,
)
from validation.measure.device import ALIGN_BYTES, POOL_SHARE, Env  # noqa: E402

H200_BYTES, PROCESSORS = 150_754_820_096, 132
USED = (micro_chase, micro_gather, micro_loaded, micro_stream)
MODULES = {module.__name__.rpartition(".")[2]: module for module in USED}
FAMILIES = [family for family in points.read_campaign() if family.module in MODULES]


def kinds_of(listed: str) -> list[str]:
    """ "pointer" or "integer" for each parameter of a list."""
    words = listed.split(",") if listed.strip() else []
    return ["pointer" if "*" in word or "u64 data" in word else "integer" for word in words]


def parameters() -> dict[tuple[str, str], list[str]]:
    """(file, kernel) -> kinds of its parameters, read from the sources."""
    found = {}
    for path in cuda.SOURCES.glob("*.cu"):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        bounds = r"(?:__launch_bounds__\([^)]*\))?"
        head = rf'extern "C" __global__ void\s*{bounds}\s*(\w+)((?:##_)?##U)?\s*\(([^)]*)\)'
        for name, many, listed in re.findall(head, text):
            names = ("read_", "write_", "update_") if name == "NAME" else (name,)
            names = [f"{each}{u}" for each in names for u in (1, 2, 4, 8, 16)] if many else names
            found |= {(path.name, each): kinds_of(listed) for each in names}
    return found


PARAMETERS = parameters()


def answer(file: str, name: str, arguments: tuple) -> None:
    """What the kernels that report something would leave."""
    if name in ("chase_run", "chase_single"):
        arguments[8][:4] = torch.tensor([400_000, 800_000, 1, max(arguments[7], 0)])
    if file == "loaded.cu":
        streamers, warps, (_, result, report) = arguments[8], arguments[9], arguments[11:]
        result[:6] = torch.tensor([4_000_000, 8_000_000, 1, streamers, 10_000, 4_010_000])
        said = report.view(-1, 4)[: streamers * warps]
        said[:, :3] = torch.tensor([1000, 0, 5_000_000])


@pytest.fixture
def launches(monkeypatch):
    """Launches are recorded and compared with their kernels instead of made."""
    seen = []

    def bind(file, name, grid, block, *arguments, shared_bytes=0, defines=()):
        kinds = PARAMETERS[file, name]
        assert len(kinds) == len(arguments), (file, name)
        for kind, argument in zip(kinds, arguments, strict=True):
            assert isinstance(argument, torch.Tensor if kind == "pointer" else int), (file, name, kind)
        assert grid >= 1
        assert 1 <= block <= 1024
        seen.append((file, name, grid, block))
        return lambda: answer(file, name, arguments)

    def slices(env, nbytes, count, round_index, *, seed=0, device=""):
        step = -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
        assert step * count <= H200_BYTES * POOL_SHARE
        whole = torch.empty(step * count, dtype=torch.uint8, device="meta")
        return [whole[i * step : i * step + nbytes] for i in range(count)]

    def time_work(build, env, **options):
        work = build(0)
        for call in [work.renew, *work.calls]:
            if call:
                call()
        return rows.Measured([1.0], work.bytes_read, work.bytes_written, footprint_bytes=work.footprint_bytes)

    monkeypatch.setattr(cuda, "bind", bind)
    monkeypatch.setattr(cuda, "resident_blocks", lambda *a, **k: 8)
    properties = types.SimpleNamespace(multi_processor_count=PROCESSORS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    for module in MODULES.values():
        monkeypatch.setattr(module, "slices", slices)
        monkeypatch.setattr(module, "time_work", time_work, raising=False)
        monkeypatch.setattr(module, "flush_l2", lambda env, avoid: None, raising=False)
    return seen


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_launches_fit_their_kernels_and_rows_their_columns(family, launches):
    for point in family.points[::5]:
        measured = MODULES[family.module].FAMILIES[family.name](point, Env("cpu", rounds=1))
        row = rows.row_of(family, point, measured, "r")
        assert set(row) <= set(rows.columns(family))
        assert measured.footprint_bytes > 0
    assert len(launches) >= len(family.points[::5])


def test_a_stream_moves_what_its_name_says(launches):
    axes = {"bytes": 1 << 20, "blocks": 4, "flight": 8192, "cache": "cold"}
    moved = {}
    for kind in ("read", "write", "copy", "update"):
        measured = micro_stream.stream(kind, points.Point(f"stream.{kind}", axes), Env("cpu"))
        counts = (measured.bytes_read, measured.bytes_written, measured.footprint_bytes)
        moved[kind] = tuple(count >> 20 for count in counts)
    assert moved == {"read": (1, 0, 320), "write": (0, 1, 320), "copy": (1, 1, 640), "update": (1, 1, 320)}


def test_a_chase_goes_round_the_chip_or_stays_where_it_is_told(launches, monkeypatch):
    orders = []
    monkeypatch.setattr(micro_chase, "check", lambda answer, sm: orders.append(sm))
    axes = {"footprint": 1 << 30, "stride": 128}
    measured = micro_chase.latency(points.Point("chase.latency", axes), Env("cpu", rounds=1))
    assert orders == [*range(0, PROCESSORS, 6)] * 3
    assert measured.samples_ns == [400_000 / 4096] * 3
    orders.clear()
    at_one = points.Point("chase.sm", {"footprint": 1 << 30, "sm": 48})
    assert len(micro_chase.latency(at_one, Env("cpu", rounds=2)).samples_ns) == 6
    assert set(orders) == {48}


def test_the_l2_is_flushed_by_writes_and_then_by_reads_of_other_bytes(monkeypatch):
    seen = []
    pool = torch.empty(4 << 30, dtype=torch.uint8, device="meta")

    def bind(file, name, grid, block, data, words, *rest):
        seen.append((name, data.storage_offset(), words * 16))
        return lambda: None

    monkeypatch.setattr(cuda, "bind", bind)
    monkeypatch.setattr(device, "pool", lambda env, need, where: pool)
    monkeypatch.setattr(torch.cuda, "device", lambda where: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "data_ptr", torch.Tensor.storage_offset)
    for begin, flushed in ((0, (4 << 30) - (512 << 20)), (3 << 30, 0)):
        seen.clear()
        device.flush_l2(Env("cuda:0"), pool[begin : begin + (1 << 30)])
        assert seen == [("fill_random", flushed, 512 << 20), ("sweep", flushed, 512 << 20)]


def test_load_and_rate_of_a_loaded_chase(launches):
    axes = {"kind": "update", "blocks": 2, "flight": 8192, "pause": 0}
    measured = micro_loaded.loaded(points.Point("loaded.latency", axes), Env("cpu", rounds=1))
    # 2 blocks of 8 warps, 1000 tiles of 1 KB read and written in 5 ms each
    assert measured.extra["stream_mbps"] == round(2 * 8 * 1000 * 2 * 1024 / 5000)
    assert measured.bytes_read == measured.bytes_written == 2 * 8 * 1000 * 1024 * 4 // 5
    assert measured.samples_ns == [4_000_000 / 4096] * 4  # means of 5 of 20 trials


def test_more_streams_than_multiprocessors_are_refused(launches):
    axes = {"kind": "read", "blocks": 132, "flight": 8192, "pause": 0}
    with pytest.raises(ValueError, match="132 streaming blocks: expected 0 to 131"):
        micro_loaded.loaded(points.Point("loaded.latency", axes), Env("cpu"))


def test_warm_replays_go_right_before_groups_that_are_timed_one_by_one(monkeypatch):
    seen: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0

        def record(self) -> None:
            self.at = len(seen)
            seen.append("event")

        def elapsed_time(self, end: Event) -> float:
            return seen[self.at : end.at].count("replay") * 2e-3  # each takes 2 us

    graph = types.SimpleNamespace(replay=lambda: seen.append("replay"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(cuda, "bind", lambda *a, **k: lambda: seen.append("spin"))
    look, renew = (lambda: seen.append("look")), (lambda: seen.append("new"))
    samples = timing.replay_ns(graph, 2, look, renew, group=3, warm=2)
    timed = ["new", "event", "replay", "replay", "replay", "event"]
    assert seen == ["spin", "new", "replay", "new", "replay", *timed, *timed, "look"]
    assert samples == pytest.approx([2000.0, 2000.0])


def test_windows_slide_by_one_sample_and_hold_all_where_there_are_too_few():
    assert timing.sliding([1.0, 2.0, 6.0, 4.0], 3) == [3.0, 4.0]
    assert timing.sliding([1.0, 2.0], 3) == [1.5]


@pytest.fixture
def no_stream(monkeypatch):
    idle = types.SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(micro_launch, "side_stream", lambda env: idle)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda which: contextlib.nullcontext())


@pytest.mark.parametrize(("once_ns", "count"), [(3000.0, 20), (2_500_000.0, 3)])
def test_a_gap_is_the_mean_over_captures_of_replays_that_nothing_disturbs(
    monkeypatch, no_stream, once_ns, count
):
    asked, captured = [], []

    def capture(calls, nodes):
        captured.append(nodes)
        return len(captured), {"empty": nodes}

    def replay_ns(graph, wanted, look=None):
        asked.append((wanted, look is not None))
        return [9 * once_ns] * micro_launch.LEAD + [once_ns + graph] * (wanted - micro_launch.LEAD)

    monkeypatch.setattr(micro_launch, "kernel", lambda name, env: lambda: None)
    monkeypatch.setattr(micro_launch, "capture", capture)
    monkeypatch.setattr(micro_launch, "replay_ns", replay_ns)
    point = points.Point("launch.gap", {"kernel": "empty", "nodes": 8})
    measured = micro_launch.gap(point, Env("cpu", rounds=2, budget_s=1.5))
    one_capture = [(3, False), *[(3 + count, False)] * 10]
    assert asked == [*one_capture, *one_capture, (20, True)]
    assert measured.samples_ns == [once_ns + 1.5] * 10


def test_a_launch_is_looked_at_from_the_host_often_enough_for_its_mean(monkeypatch, no_stream):
    replayed = []
    graph = types.SimpleNamespace(replay=lambda: replayed.append(1))
    monkeypatch.setattr(micro_launch, "kernel", lambda name, env: lambda: None)
    monkeypatch.setattr(micro_launch, "capture", lambda calls, nodes: (graph, {}))
    monkeypatch.setattr(micro_launch, "replay_ns", lambda graph, count: [1.0])
    point = points.Point("launch.host", {"until": "done", "nodes": 1})
    measured = micro_launch.host(point, Env("cpu", budget_s=0.0))
    assert (len(replayed), len(measured.samples_ns)) == (220, 20)
