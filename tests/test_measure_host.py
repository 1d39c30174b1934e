"""Memories behind links, storage and CPU memory: what can be checked without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from memsim.profile import load_machine
from validation import here
from validation.here_profile import Number, profile_text
from validation.measure import (
    cpu_loops,
    cuda,
    host_memory,
    micro_cpu,
    micro_storage,
    points,
    remote,
    remote_pairs,
)
from validation.measure.device import Env
from validation.measure.families import function_of
from validation.measure.host_memory import Far
from validation.measure.points import Point

MIB = 1 << 20
GIB = 1 << 30
FAMILIES = points.read_file(points.CAMPAIGN / "micro_host.toml")
FAR = Far(base=1 << 40, nbytes=9 * GIB, chunk_bytes=4 * GIB, gbps=52.0, latency_ns=1300.0)


def points_of(name: str) -> list[Point]:
    return [point for family in FAMILIES if family.name.endswith(name) for point in family.points]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_cpu, "SAMPLE_NS", 200_000)
    monkeypatch.setattr(micro_storage, "WARM_S", 0.005)


# The campaign


def test_every_family_has_its_function_and_enough_points_of_both_splits() -> None:
    for family in FAMILIES:
        module = __import__(f"validation.measure.{family.module}", fromlist=["FAMILIES"])
        assert family.name in module.FAMILIES
        assert family.count(points.CALIBRATE) >= 4
        assert family.count(points.HELD_OUT) >= 10


def test_points_ask_for_what_the_kernels_can_do() -> None:
    for point in points_of(".stream"):
        if "flight" in point.axes:
            threads, depth = remote.FLIGHT[point["flight"]]
            assert threads * depth * 16 == point["flight"]
            assert point["bytes"] % (point["blocks"] * point["flight"]) == 0
    for point in points_of("host.gather") + points_of("peer.gather"):
        assert point["row"] % 16 == 0
        assert point["load"] in ("plain", "fresh")
    for point in points_of(".beside"):
        one, two = remote_pairs.roles(point, units=132)
        assert one.name != "none"
        assert (two.name == "none") == (two.blocks == 0 and not two.is_copy)


def test_roles_that_cannot_run_together_are_refused() -> None:
    axes = {"measured": "far_read", "blocks": 100, "other": "near_read", "other_blocks": 100}
    with pytest.raises(RuntimeError, match="100 \\+ 100 blocks on 132 units"):
        remote_pairs.roles(Point("host.beside", axes), 132)
    with pytest.raises(RuntimeError, match="role copy_in with 3 blocks"):
        remote_pairs.roles(Point("host.beside", axes | {"measured": "copy_in", "blocks": 3}), 132)


def test_the_other_traffic_is_made_longer_until_the_measured_one_fits_in() -> None:
    bench = remote_pairs.Bench.__new__(remote_pairs.Bench)
    bench.long_windows = 4
    one, two = remote_pairs.Role("copy_out", 0), remote_pairs.Role("far_write", 8)

    def trial(one: remote_pairs.Role, two: remote_pairs.Role) -> float:
        if bench.long_windows < 16:
            raise remote_pairs.EndedFirst("far_write ended before the copies did")
        return 5.0

    assert bench.lasting(trial, one, two) == 5.0
    assert bench.long_windows == 16  # kept for the next trial

    def never(one: remote_pairs.Role, two: remote_pairs.Role) -> float:
        raise remote_pairs.EndedFirst("far_write ended before the copies did")

    with pytest.raises(RuntimeError, match="ended before the copies did"):
        bench.lasting(never, one, two)


# What the calls touch


@pytest.mark.parametrize(("nbytes", "most"), [(4096, 64), (3 * MIB, 64), (GIB, 9), (1536 * MIB, 4)])
def test_copies_lie_apart_inside_the_region_and_cross_no_chunk(nbytes: int, most: int) -> None:
    found = remote.places(FAR, nbytes, 64, random.Random(1))
    assert len(found) == most
    starts = sorted(address - FAR.base for address in found)
    assert starts[0] >= 0
    assert starts[-1] + nbytes <= FAR.nbytes
    assert all(b - a >= nbytes for a, b in zip(starts, starts[1:], strict=False))
    assert all(a // FAR.chunk_bytes == (a + nbytes - 1) // FAR.chunk_bytes for a in starts)


def test_calls_start_at_whole_steps_and_none_starts_past_the_end() -> None:
    starts, end = remote._cells(16, 3, 10, random.Random(1))
    assert end == 9
    assert sorted(set(starts)) == [0, 3, 6]
    assert [(b - a) % 9 for a, b in zip(starts, starts[1:], strict=False)] == [3] * 15


def test_a_copy_larger_than_a_chunk_is_refused() -> None:
    with pytest.raises(RuntimeError, match="does not fit"):
        remote.places(FAR, 5 * GIB, 1, random.Random(1))


def test_rows_come_once_each_before_any_comes_again() -> None:
    pytest.importorskip("torch")
    starts = remote.row_starts(MIB, 656, 4000, 7, "cpu")
    rows = MIB // 656
    assert len(set(starts[:rows].tolist())) == rows
    assert (starts % 41 == 0).all()
    assert int(starts.max()) * 16 + 656 <= MIB


def test_the_chase_visits_one_line_of_each_share() -> None:
    pytest.importorskip("torch")
    slots = remote.chase_slots(16 * MIB, 1024, 3, "cpu").numpy()
    assert sorted(slots // (16 * MIB // 1024)) == list(range(1024))
    assert (slots % 128 == 0).all()


@pytest.mark.parametrize(("row", "threads"), [(32, 2), (64, 4), (576, 32), (656, 32), (128, 8), (16384, 32)])
def test_neighbouring_threads_cover_a_row_with_a_power_of_two(row: int, threads: int) -> None:
    assert 1 << remote.lane_bits_for(row) == threads


class Launch:
    """Stands for cuda.bind: keeps the arguments."""

    def __init__(self, file: str, name: str, grid: int, block: int, *arguments: object) -> None:
        self.name, self.grid, self.block, self.arguments = name, grid, block, arguments

    def __call__(self) -> None:
        pass


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """time_work gives the Work of the first round instead of timing it."""
    pytest.importorskip("torch")
    monkeypatch.setattr(remote.cuda, "bind", Launch)
    monkeypatch.setattr(remote, "time_work", lambda build, env: build(0))
    monkeypatch.setattr(remote, "flush", lambda env, far: None)
    monkeypatch.setattr(remote, "COLD_BYTES", MIB)


def starts_after(launches: list[Launch], turns: int, cells: list[int], step: int, around: int) -> list[int]:
    """Where `turns` calls in turn start, by the kernels' rule."""
    seen = []
    for index in range(turns):
        call = index % len(launches)
        seen.append(cells[call])
        cells[(call + 1) % len(launches)] = (cells[call] + step) % around
    return seen


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("point", points_of("host.stream") + points_of("peer.stream"), ids=lambda p: p.key)
def test_streams_go_round_the_region_and_stay_inside(point: Point) -> None:
    work = remote.streams(point, Env("cpu"), FAR)
    _, turns, cells, _, calls, around, _ = work.calls[0].arguments
    moved = work.bytes_read + work.bytes_written
    assert moved == turns * point["blocks"] * point["flight"]
    assert calls == len(work.calls) >= 2  # one call alone would write the cell that its blocks read
    assert around % (moved // 16) == 0
    assert around * 16 <= FAR.nbytes
    steps = around // (moved // 16)
    seen = starts_after(work.calls, steps, cells.tolist(), moved // 16, around)
    assert sorted(seen) == [step * (moved // 16) for step in range(steps)]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("count", [64, 2048])
@pytest.mark.parametrize("row", [32, 656, 16384])
def test_gathers_read_rows_of_the_span_from_a_list_longer_than_the_calls(row: int, count: int) -> None:
    axes = {"row": row, "count": count, "span": 4 * MIB, "load": "plain"}
    work = remote.gathers(Point("peer.gather", axes), Env("cpu"), FAR)
    base, starts, rows, words, bits, _, _, calls, around, _ = work.calls[0].arguments
    assert (rows, words, 1 << bits) == (count, row // 16, min(32, 1 << (row // 16 - 1).bit_length()))
    assert len(starts) == around >= count * calls
    assert around % count == 0
    assert work.calls[0].grid * 256 << 0 >= min(count << bits, 132 * 8 * 256)
    assert FAR.base <= base.value <= FAR.base + FAR.nbytes - 4 * MIB
    assert int(starts.max()) * 16 + row <= 4 * MIB


@pytest.mark.usefixtures("built")
def test_a_span_larger_than_the_region_is_an_error_of_the_point() -> None:
    with pytest.raises(RuntimeError, match="the region has"):
        remote.chases(Point("host.chase", {"span": 64 * GIB, "load": "plain"}), Env("cpu"), FAR)


class Clock:
    """Stands for the host's clock: a trial takes 0.4 ms of it, or 5 ms where `slow` says so."""

    def __init__(self) -> None:
        self.now_s, self.trials = 0.0, 0

    def queue(self, slow: set[int]):
        def once(targets, sources, nbytes, whole, wait_ns: int) -> tuple[int, int, float]:
            self.trials += 1
            self.now_s += 0.0004
            host_ns = 5_000_000 if self.trials in slow else 50_000
            return 20_000, host_ns, 1e9 if host_ns > wait_ns else 8000.0 + self.trials % 2 * 200

        return once


@pytest.mark.parametrize(("queued", "trials"), [(1, 2525), (64, 275), (256, 105)])
def test_queued_copies_are_tried_for_a_time_or_until_enough_and_first_and_late_ones_do_not_count(
    monkeypatch: pytest.MonkeyPatch, queued: int, trials: int
) -> None:
    torch = pytest.importorskip("torch")
    clock = Clock()
    monkeypatch.setattr(remote.time, "monotonic", lambda: clock.now_s)
    monkeypatch.setattr(remote, "_queue", clock.queue({1, 30, 31}))
    monkeypatch.setattr(remote, "side_stream", lambda env: None)
    monkeypatch.setattr(remote, "slices", lambda env, nbytes, count, *a, **k: [torch.empty(1)] * count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda which: contextlib.nullcontext())
    axes = {"direction": "in", "mode": "stream", "bytes": 4096, "queued": queued}
    measured = remote.queued(
        Point("host.copy_queue", axes), Env("cpu", warm_s=0.0099, budget_s=0.9999), FAR, (2, 0)
    )
    assert clock.trials == trials
    assert 8 <= len(measured.samples_ns) <= 9
    assert all(8000 <= sample * queued <= 8200 for sample in measured.samples_ns)


def test_copy_attributes_have_the_size_that_the_driver_reads() -> None:
    assert ctypes.sizeof(remote.CopyAttributes) == 24
    assert remote.CopyAttributes.flags.offset == 20


# Pinned memory


def test_memory_is_pinned_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("CHUNK_BYTES", 8), ("PIECE_BYTES", 4), ("SMALL_PIECE_BYTES", 2)):
        monkeypatch.setattr(host_memory, name, size * MIB)
    pins: list[tuple[int, int]] = []
    base, nbytes, pages = host_memory.pinned(
        18 * MIB, 60.0, lambda address, size: pins.append((address, size))
    )
    assert nbytes == 18 * MIB
    assert pins == [(base, 8 * MIB), (base + 8 * MIB, 8 * MIB), (base + 16 * MIB, 2 * MIB)]
    assert base % (2 * MIB) == 0
    assert len(pages) >= 18 * MIB


def test_what_does_not_come_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 0)
    assert host_memory.pinned(MIB, 60.0, lambda address, size: None)[1] == 0


# CPU memory


def test_loops_compute_what_they_say() -> None:
    words = np.empty(4096, np.uint64)
    cpu_loops.fill(words, 3)
    assert len(set(words.tolist())) == 4096
    assert cpu_loops.read(words, 1) == words.sum()
    assert cpu_loops.gather(words, np.array([0, 8, 4088]), 8) == words[:16].sum() + words[4088:].sum()
    target = np.zeros_like(words)
    cpu_loops.copy(words, target, 1)
    assert (target == words).all()
    cpu_loops.write(words, 1)
    assert words[1] == 0x9E3779B97F4A7C15


@pytest.mark.parametrize("nodes", [256, 1 << 20])
def test_the_cycle_of_lines_is_one_cycle(nodes: int) -> None:
    words = micro_cpu.array(64 << 10)
    start = micro_cpu.link_cycle(words, 5, nodes)
    count = min(nodes, 1024)
    assert cpu_loops.chase(words, start, count) == start
    at, seen = start, set()
    for _ in range(count):
        seen.add(at // 8)
        at = int(words[at])
    assert len(seen) == count


def test_what_a_thread_raises_is_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        micro_cpu.side_by_side([int, fail], 3)
    assert len(micro_cpu.side_by_side([int, int], 3)) == 3


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("family", [f for f in FAMILIES if not f.gpus], ids=lambda f: f.name)
def test_families_without_a_gpu_measure(family: points.Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_cpu, "evict", lambda words: None)
    monkeypatch.setattr(micro_cpu, "_scratch", lambda: None)
    env = Env("cpu", smoke=True, budget_s=0.01)
    point = family.points[0]
    if family.name == "storage.random":
        direct_or_skip(Path("/var/tmp"))
    measured = function_of(family, env)(point, env)
    assert len(measured.samples_ns) >= 9
    assert min(measured.samples_ns) > 0
    assert measured.bytes_read + measured.bytes_written > 0
    assert measured.extra.keys() == set(family.extra)


def test_more_threads_than_cpus_is_an_error_of_the_point() -> None:
    with pytest.raises(RuntimeError, match="need as many CPUs"):
        micro_cpu.FAMILIES["cpu.stream"](Point("cpu.stream", {"op": "read", "threads": 10_000}), Env("cpu"))


# Storage


def direct_or_skip(folder: Path) -> micro_storage.DirectFile:
    try:
        return micro_storage.write_file(folder, 4 * MIB)
    except OSError as error:
        pytest.skip(f"{folder} takes no direct reads: {error}")


@pytest.mark.usefixtures("quick")
def test_random_reads_count_and_leave_no_file(tmp_path: Path) -> None:
    file = direct_or_skip(tmp_path)
    assert list(tmp_path.iterdir()) == []
    measured = micro_storage.random_reads(file, 4096, 3, 0.02)
    assert measured.bytes_read == 4096
    assert measured.calls >= 8 * len(measured.samples_ns)
    with pytest.raises(OSError, match="Invalid argument"):
        micro_storage.random_reads(file, 100, 1, 0.01)
    file.close()


def test_a_folder_that_is_not_there_and_one_too_small_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        micro_storage.write_file(tmp_path / "none", MIB)
    with pytest.raises(OSError, match="do not fit") as error:
        micro_storage.write_file(tmp_path, 1 << 60)
    assert error.value.errno == errno.ENOSPC
    assert "more" in here.why(error.value)


def test_the_file_system_is_the_one_of_the_longest_mount_point() -> None:
    assert micro_storage.filesystem("/proc/self") == "proc"


# This computer


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch, quick: None, tmp_path: Path) -> dict[str, Number]:
    monkeypatch.setattr(here, "SPANS", (1 << 16,))
    monkeypatch.setattr(here, "BLOCKS", (4096, 65536))
    monkeypatch.setattr(here, "DEPTHS", (1, 2))
    monkeypatch.setattr(here, "MATRIX", 64)
    monkeypatch.setattr(micro_cpu, "llc_bytes", lambda: 1 << 20)
    monkeypatch.setattr(micro_cpu, "evict", lambda words: None)
    monkeypatch.setattr(micro_cpu, "_scratch", lambda: None)
    return here.measure(tmp_path, point_s=0.005, memory_bytes=4 * MIB, file_bytes=4 * MIB, command="test")


def test_a_measured_computer_is_a_machine(numbers: dict[str, Number], tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(profile_text(numbers, "here", 'A "quoted" title'), encoding="utf-8")
    profile = load_machine(path)
    assert next(iter(profile.tier)) == "host"
    assert profile.title == 'A "quoted" title'
    read = max(n.value for name, n in numbers.items() if name.startswith("memory.read."))
    host = profile.tier["host"]
    assert float(host.bandwidth.number * host.efficiency.share) == pytest.approx(read / 1e6, rel=1e-3)
    assert profile.initiator["cpu"].units.number == len(micro_cpu.cpus())
    assert host.bandwidth.source.startswith("test, 20")
    assert ("storage" in profile.tier) == ("storage.capacity" in numbers)


def test_a_folder_that_cannot_be_measured_leaves_the_disk_out(
    numbers: dict[str, Number], tmp_path: Path
) -> None:
    said: list[str] = []
    assert here._storage(tmp_path / "none", MIB, "test", 0.01, said.append) == {}
    assert "not measured" in said[0]
    memory = {name: number for name, number in numbers.items() if not name.startswith("storage")}
    path = tmp_path / "memory.toml"
    path.write_text(profile_text(memory), encoding="utf-8")
    assert list(load_machine(path).tier) == ["host"]


def fixed(**rates: float) -> dict[str, Number]:
    """A computer of 64 threads with a disk that does 500,000 reads of 4 KiB a second, each in 80 us."""
    values = {
        "cpu.threads": 64,
        "cpu.fp32": 3e12,
        "cpu.launch_gap": 2e4,
        "memory.capacity": 5e11,
        "memory.read.threads_1": 12e9,
        "memory.read.threads_64": 196e9,
        "memory.write.threads_64": 98e9,
        "memory.latency": 110,
        "cache.capacity": 1e8,
        "cache.read": 1e12,
        "cache.latency": 30,
        "storage.capacity": 1e12,
        "storage.read.block_4096.depth_1": 4096 / 80e-6,
        "storage.read.block_4096.depth_64": 4096 * 500_000,
        "storage.read.block_1048576.depth_4": 5.88e9,
    }
    return {name: Number(value, "", "test") for name, value in (values | rates).items()}


def test_a_machine_file_gives_the_measured_rates_and_latencies_back(tmp_path: Path) -> None:
    path = tmp_path / "fixed.toml"
    path.write_text(profile_text(fixed()), encoding="utf-8")
    profile = load_machine(path)
    host, disk = profile.tier["host"], profile.tier["storage"]
    assert host.bandwidth.number == 200_000
    line_ps = 64 * host.channels.number * 10**6 / 196_000
    assert host.latency.number + line_ps == pytest.approx(110_000, rel=1e-3)
    assert disk.read_iops.number == 500_000
    assert disk.channels.number == 16
    assert disk.latency.number + 16 * 2_000_000 == 80_000_000  # 16 channels: a service is 16 / 500,000 s
    outstanding = profile.initiator["cpu"].unit_outstanding.number
    assert outstanding == round(4 * 5.88e9 * 80e-6 / 64)


def test_without_a_disk_a_thread_has_under_way_what_memory_shows(tmp_path: Path) -> None:
    numbers = {name: number for name, number in fixed().items() if not name.startswith("storage")}
    path = tmp_path / "fixed.toml"
    path.write_text(profile_text(numbers), encoding="utf-8")
    assert load_machine(path).initiator["cpu"].unit_outstanding.number == 1320  # 12 GB/s x 110 ns


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's compiler")
def test_the_kernels_compile() -> None:
    source = (cuda.SOURCES / remote.SOURCE).read_text(encoding="utf-8")
    assert len(cuda._compile_nvcc(source, remote.SOURCE, "sm_90", ())) > 10_000
