"""Every launch of the micro families against the parameters of its kernel, with memory that is not there."""

from __future__ import annotations

import re
import types

import pytest

torch = pytest.importorskip("torch")

from validation.measure import cuda, micro_chase, micro_gather, micro_loaded, micro_stream, points, rows  # noqa: E402
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


def test_load_and_rate_of_a_loaded_chase(launches):
    axes = {"kind": "update", "blocks": 2, "flight": 8192, "pause": 0}
    measured = micro_loaded.loaded(points.Point("loaded.latency", axes), Env("cpu", rounds=1))
    # 2 blocks of 8 warps, 1000 tiles of 1 KB read and written in 5 ms each
    assert measured.extra["stream_mbps"] == round(2 * 8 * 1000 * 2 * 1024 / 5000)
    assert measured.bytes_read == measured.bytes_written == 2 * 8 * 1000 * 1024 * 4 // 5
    assert measured.samples_ns == [4_000_000 / 4096] * 3  # means of 4 trials


def test_more_streams_than_multiprocessors_are_refused(launches):
    axes = {"kind": "read", "blocks": 132, "flight": 8192, "pause": 0}
    with pytest.raises(ValueError, match="132 streaming blocks: expected 0 to 131"):
        micro_loaded.loaded(points.Point("loaded.latency", axes), Env("cpu"))
