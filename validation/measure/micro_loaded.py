"""Latency under load: a pointer chase on one multiprocessor beside 0 to all others streaming, in one launch.

Axes: kind of stream (read, write, update in place), blocks (multiprocessors that stream), flight (bytes
that each of them asks for at once), pause (cycles that a warp waits after a tile). Leaves nanoseconds per
dependent load and, in `stream_mbps`, what the streams read and wrote meanwhile. The chase covers 2 GB, the
streams 16 GB.
"""

from __future__ import annotations

import statistics

from . import cuda
from .device import Env, flush_l2, slices
from .micro_chase import ALONE_BYTES, build, processors
from .points import Point
from .rows import Measured
from .timing import Work, means, profiled

STEPS = 4096
TRIALS = 20  # a round; a sample is the mean of MEAN_OF
MEAN_OF = 5
CHASE_BYTES, STREAM_BYTES, STRIDE = 2 << 30, 16 << 30, 128
RESULT, REPORT, CONTROL = 8, 4, 64  # words of a trial's answer, of a warp's report, of the flags
SKEW_NS = 2000  # that two multiprocessors' clocks may differ by
WARPS = 32


def shape(flight: int) -> tuple[int, int]:
    """Warps of a streaming block, 16-byte words of a thread: first 8 warps, then 4 words, then more warps."""
    tiles = flight // 512
    warps = min(8, tiles)
    words = min(4, tiles // warps)
    warps = tiles // words
    if warps > WARPS or warps * words * 512 != flight:
        raise ValueError(f"flight {flight}: expected 512, 1024, ... 65536")
    return warps, words


def stream_rate(reports: list[list[int]], tile_bytes: int, begin: int, end: int) -> float:
    """Bytes per ns of all warps together. ValueError if one was not running from begin to end."""
    total = 0.0
    for done, first, last, *_ in reports:
        if done <= 0 or first > begin + SKEW_NS or last < end - SKEW_NS:
            raise ValueError("a stream did not run as long as the chase")
        total += done * tile_bytes / (last - first)
    return total


def loaded(point: Point, env: Env) -> Measured:
    import torch

    kind, streamers = point["kind"], point["blocks"]
    warps, words = shape(point["flight"])
    grid = processors(env)
    if not 0 <= streamers < grid:
        raise ValueError(f"{streamers} streaming blocks: expected 0 to {grid - 1}")
    per_round = 1 if env.smoke else TRIALS
    tiles = STREAM_BYTES // (512 * words)
    samples: list[float] = []
    rates: list[float] = []
    windows: list[int] = []
    cycles: list[float] = []
    clocks: dict = {}
    for round_index in range(env.rounds):
        whole = slices(env, CHASE_BYTES + STREAM_BYTES, 1, round_index, seed=point.seed)[0]
        data, region = whole[:CHASE_BYTES], whole[CHASE_BYTES:]
        seed, places = point.seed + round_index, CHASE_BYTES // STRIDE
        build(data, places, STRIDE, seed, STEPS * per_round)
        control = torch.zeros(per_round, CONTROL, dtype=torch.int32, device=env.device)
        result = torch.zeros(per_round, RESULT, dtype=torch.int64, device=env.device)
        report = torch.zeros(per_round, grid * WARPS * REPORT, dtype=torch.int64, device=env.device)
        for trial in range(per_round):
            flush_l2(env, whole)
            arguments = [data, places, STRIDE, seed, trial * STEPS, STEPS, region, tiles, streamers, warps]
            arguments += [point["pause"], control[trial], result[trial], report[trial]]
            call = cuda.bind("loaded.cu", f"{kind}_{words}", grid, 1024, *arguments, shared_bytes=ALONE_BYTES)
            if env.profile:
                return profiled(Work([call], 0, 0, CHASE_BYTES + STREAM_BYTES), env)
            call()
        clocks = clocks or env.clocks()
        reports = report.view(per_round, -1, REPORT)[:, : streamers * warps].tolist()
        for (ns, took, right, arrived, begin, end, *_), said in zip(result.tolist(), reports, strict=True):
            if right != 1 or arrived != streamers:
                raise ValueError(f"chase right={right}, {arrived} of {streamers} streams had arrived")
            samples.append(ns / STEPS)
            cycles.append(took / STEPS)
            windows.append(ns)
            tile_bytes = 512 * words * (2 if kind == "update" else 1)
            rates.append(stream_rate(said, tile_bytes, begin, end))
    rate, window = statistics.median(rates), statistics.median(windows)
    moved = round(rate * window)
    return Measured(
        means(samples, MEAN_OF),
        bytes_read={"read": moved, "write": 0, "update": moved // 2}[kind],
        bytes_written={"read": 0, "write": moved, "update": moved // 2}[kind],
        calls=STEPS,
        footprint_bytes=CHASE_BYTES + STREAM_BYTES,
        clocks=clocks,
        extra={
            "stream_mbps": round(rate * 1000),
            "window_ns": round(window),
            "cycles": round(statistics.median(cycles), 2),
        },
    )


FAMILIES = {"loaded.latency": loaded}
