"""Recipes: they move the bytes that were measured, shorten long calls rightly, and know no warm or cold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from memsim import curve
from memsim.system import System
from validation import (
    figures,
    figures_rows,
    predict,
    predict_chase,
    predict_far,
    predict_gather,
    predict_loaded,
    predict_script,
    predict_stream,
)
from validation.figures_rows import FamilyRows
from validation.measure import micro_stream, remote
from validation.predict_script import Bench, Grid, Lengths, Move, Script, percentile_ps
from validation.predict_stream import Stream
from workloads import costs
from workloads.grid import even, one

FOLDER = figures.MEASURED / "nvidia-h200"
FAMILIES = {family.name: family for family in figures_rows.read_machine(FOLDER)}
MEASURED_TOO = {"loaded.latency"}  # its bytes are what the streams moved meanwhile
WITHOUT = {
    "cpu",
    "storage",
    "matrix",
    "fma",
}  # first words: no kernel in workloads yet
WITHOUT_TOO = {"dsa.torch_topk", "launch.host", "inner.linear", "inner.experts"}


def system_of(family: str) -> System:
    return predict.system_of(predict.machine_of(FOLDER, family))


def bytes_of(family: FamilyRows) -> list[tuple[tuple[int, int], tuple[float, float]]]:
    """Of each point: read and written, by its recipe and as measured."""
    recipe, system = predict.recipes()[family.name], system_of(family.name)
    jobs = [recipe(row, system) for row in family.rows]
    return [
        ((job.bytes_read, job.bytes_written), (row["bytes_read"], row["bytes_written"]))  # type: ignore[misc]
        for job, row in zip(jobs, family.rows, strict=True)
    ]


@pytest.mark.parametrize("family", sorted(set(predict.PLAIN) & set(FAMILIES) - MEASURED_TOO))
def test_a_recipe_moves_the_measured_bytes_at_every_point(family: str) -> None:
    for found, wanted in bytes_of(FAMILIES[family]):
        assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize("word", sorted(set(predict.BY_TORCH) - {"public", "step", "glue", "inner"}))
def test_a_recorded_kernel_moves_the_measured_bytes_within_half_a_percent(word: str) -> None:
    """The kernels of `workloads` leave out log-sums, page tables and the gate's activation."""
    pytest.importorskip("torch")
    families = [name for name in predict.recipes() if name.partition(".")[0] == word]
    for found, wanted in (pair for name in families for pair in bytes_of(FAMILIES[name])):
        assert found == pytest.approx(wanted, rel=0.005 if word != "gemv" else 0.05)  # experts are drawn


@pytest.mark.slow
def test_a_whole_step_reads_the_measured_bytes_within_a_percent() -> None:
    """What it writes is mostly activations, which the measurement does not count."""
    pytest.importorskip("torch")
    for found, wanted in bytes_of(FAMILIES["step.kimi"]):
        assert found[0] == pytest.approx(wanted[0], rel=0.01)


def test_every_measured_family_has_a_recipe_or_a_reason() -> None:
    pytest.importorskip("torch")
    reasons = {name for name in FAMILIES if name.partition(".")[0] in WITHOUT} | WITHOUT_TOO
    assert set(FAMILIES) - set(predict.recipes()) == reasons
    assert all(predict.machine_of(FOLDER, name) for name in FAMILIES)


def test_machines_are_found_by_family_word_or_folder() -> None:
    on = {name: predict.machine_of(FOLDER, name) for name in ("host.copy", "stack.v32", "stack.v32_staged")}
    assert on == {"host.copy": "h200-host", "stack.v32": "h200", "stack.v32_staged": "h200-host"}
    assert predict.machine_of(FOLDER.with_name("another"), "host.copy") == ""


@pytest.mark.parametrize(
    ("whole", "turn", "most", "calls"),
    [
        (100, 10, 100, (100,)),
        (101, 10, 100, (51, 91)),
        (1000, 10, 95, (50, 90)),
        (1000, 400, 100, (200, 600)),  # not below two turns
        (800, 400, 100, (800,)),
    ],
)
def test_shorter_calls_end_in_the_same_part_of_a_turn(
    whole: int, turn: int, most: int, calls: tuple[int, ...]
) -> None:
    lengths = Lengths.of(whole, turn, most)
    assert lengths.calls == calls
    assert {(whole - call) % turn for call in calls} == {0}
    assert lengths.value([5.0 + 2 * call for call in calls]) == pytest.approx(5.0 + 2 * whole)


@pytest.mark.parametrize(
    ("kind", "blocks", "warps", "warp_bytes"),
    [("read", 1056, 8, 1024), ("write", 1056, 8, 1024), ("update", 132, 8, 4096), ("read", 33, 4, 512)],
)
def test_a_long_stream_replayed_in_short_takes_what_it_takes_whole(
    kind: str, blocks: int, warps: int, warp_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 3 %, on 8 times the length that is replayed: channels of a short call are unevenly full."""
    system, nbytes = predict.system_of("h200"), (512 << 20) + 8192 * 5
    what = Stream(kind, blocks, warps, warp_bytes, 8)
    with Bench(system) as bench:
        short = predict_stream.long_calls(what, nbytes, 132)
        monkeypatch.setattr(predict_stream, "LONG_BYTES", nbytes)
        whole = predict_stream.long_calls(what, nbytes, 132)
        assert (short.bytes_read, short.bytes_written) == (whole.bytes_read, whole.bytes_written)
        assert short.time_ns(bench) == pytest.approx(whole.time_ns(bench), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "row_bytes"), [("gather.rows", 16384), ("peer.gather", 2048)])
def test_a_long_gather_replayed_in_short_takes_what_it_takes_whole(
    family: str, row_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, recipe = system_of(family), predict.PLAIN[family]
    row = {"row": float(row_bytes), "count": 131_072.0, "blocks": 1056.0, "calls": 16.0}
    row |= {"region": float(32 << 30), "span": float(32 << 30)}
    with Bench(system) as bench:
        short = recipe(row, system).time_ns(bench)
        monkeypatch.setattr(predict_gather, "LONG_BYTES", 1 << 40)
        monkeypatch.setattr(predict_far, "MOST_ROWS", 1 << 40)
        assert short == pytest.approx(recipe(row, system).time_ns(bench), rel=0.005)


def test_buffers_are_gone_round_and_nothing_else_says_cold_or_warm() -> None:
    """A stream's row says `cache`, and no recipe reads it: the regions follow from the buffers."""
    system = predict.system_of("h200")
    row = {"bytes": float(8 << 20), "blocks": 1056.0, "flight": 8192.0, "resident": 8.0}
    scripts: list[Script] = []

    class Kept(Bench):
        def run(self, script: Script) -> predict_script.Times:
            scripts.append(script)
            return super().run(script)

    with Kept(system) as bench:
        for buffers in (1.0, 2.0, 40.0):
            predict_stream.stream("read", row | {"buffers": buffers}, system).time_ns(bench)
    orders = [[accesses[0].region for accesses in script.accesses] for script in scripts]
    assert orders[0] == [0] * 5
    assert orders[1] == [0, 1, 0, 1, 0, 1]
    assert orders[2] == list(range(20))  # 16 fill what no cache holds, 4 more are others


def test_a_warp_waits_for_its_loads_and_for_no_store() -> None:
    what = Stream("copy", 2, 4, 512, 8)
    assert (what.grid().blocks, what.grid().per_unit, what.grid().tiles) == (8, 32, predict_stream.STORES)
    moves = list(what.moves([3, 7], 3 * 4096))
    assert [(m.region, m.first, m.rows, m.write, m.after) for m in moves] == [
        (region, first, 8, region == 7, region == 7) for first in (0, 8, 16) for region in (3, 7)
    ]


def test_a_script_may_have_some_units_alone() -> None:
    """Eight blocks on two units share their outstanding bytes; on eight they would not."""
    system = predict.system_of("h200")
    runner = replace(system.initiators[0], unit_outstanding_bytes=4096)
    system = replace(system, initiators=(runner, *system.initiators[1:]))

    def time_ns(units: int) -> float:
        script = Script(units=units)
        data = script.region(1 << 13, 512)
        moves = [Move(data, even(0, 7, 8), 1 << 13)]
        kernel = script.kernel(Grid(8, 4, 4096, 1), moves)
        with Bench(system) as bench:
            return bench.run(script).inside_ns(kernel)

    assert time_ns(2) > 3.5 * time_ns(0)


def test_a_chase_visits_places_once_before_and_rests_where_it_ends() -> None:
    system = predict.system_of("h200")
    row = {"footprint": float(64 << 10), "stride": 128.0}
    script, kernel, steps = predict_chase._chased(row, system)
    touch, loads = script.accesses[0][0], script.accesses[kernel][0]
    assert (touch.rows, kernel, steps) == (512, 1, 4096)
    assert np.array_equal(np.sort(loads.gather[:512]), np.arange(512))
    assert np.array_equal(loads.gather[:512], loads.gather[512:1024])
    cold, at, _ = predict_chase._chased({"footprint": float(1 << 40), "stride": float(2 << 16)}, system)
    assert (at, len(cold.kernels)) == (0, 1)  # more than 2^20 places: nothing was read before


def percentiles(system: System) -> list[float]:
    """Of loads of 1 GiB the 5th, 50th and 95th, as parts of the mean."""
    row = {"footprint": float(1 << 30)}
    with Bench(system) as bench:
        mean = predict_chase.latency(row, system).time_ns(bench)
        jobs = [predict_chase.single(row | {"percent": percent}, system) for percent in (5.0, 50.0, 95.0)]
        return [job.time_ns(bench) / mean for job in jobs]


def test_percentiles_of_loads_are_how_far_channels_lie() -> None:
    """And two reads of the clock: of the near half, of the nearest of the far one, and of the latest."""
    system = predict.system_of("h200")
    hbm = system.tiers[0]
    mean_ns, clock = hbm.latency_ps[0] / 1000, predict_chase.CLOCK_NS
    alike = percentiles(replace(system, tiers=(replace(hbm, spread_ps=(0, 0, 0)),)))
    assert alike == pytest.approx([1 + clock / mean_ns] * 3, abs=0.06)  # a bucket is 0.09 wide
    within, far, late = (part / 1000 / mean_ns for part in hbm.spread_ps)
    low, middle, high = (part - clock / mean_ns for part in percentiles(system))
    assert middle - low == pytest.approx(far, abs=0.07)
    assert high - middle == pytest.approx(0.91**4 * late + 0.82 * within, abs=0.07)


def test_a_single_load_takes_the_reading_of_the_clock_too(monkeypatch) -> None:
    system, row = predict.system_of("h200"), {"footprint": 65_536.0, "percent": 50.0}
    with Bench(system) as bench:
        with_clock = predict_chase.single(row, system).time_ns(bench)
        monkeypatch.setattr(predict_chase, "CLOCK_NS", 0.0)
        assert with_clock - predict_chase.single(row, system).time_ns(bench) == pytest.approx(12.0)


def test_percentiles_lie_evenly_in_a_bucket() -> None:
    loads = np.zeros(24, np.int64)
    loads[16], loads[17] = 10, 30  # 16 to 18 ps, 18 to 20 ps
    found = [percentile_ps(loads, percent) for percent in (12.5, 25, 62.5, 85)]
    assert found == pytest.approx([17, 18, 19, 19.6])


def test_streams_beside_a_chase_outlast_it_and_pauses_make_them_slower() -> None:
    system = predict.system_of("h200")
    row = {"kind": "read", "blocks": 64.0, "flight": 16384.0, "sm_mhz": 2000.0}
    with Bench(system) as bench:
        loaded = [
            predict_loaded.loaded(row | {"pause": pause}, system).time_ns(bench) for pause in (0.0, 4000.0)
        ]
    idle = system.tiers[0].latency_ps[0] / 1000
    assert idle < loaded[1] < loaded[0]
    assert curve.measured_load(row | {"pause": 4000.0}).pause_ps == 2_000_000


def test_streams_of_a_row_have_the_warps_of_the_kernel() -> None:
    """`loaded.cu`: first 8 warps a block, then 4 words a thread, then more warps."""
    shapes = {1024: (2, 512), 4096: (8, 512), 8192: (8, 1024), 16384: (8, 2048), 65536: (32, 2048)}
    row = {"kind": "read", "blocks": 8.0, "pause": 0.0, "sm_mhz": 1980.0}
    found = {flight: curve.measured_load(row | {"flight": float(flight)}).shape for flight in shapes}
    assert found == shapes


def test_launches_beyond_the_replayed_ones_go_on_at_their_pace() -> None:
    system, recipe = predict.system_of("h200"), predict.PLAIN["launch.gap"]
    with Bench(system) as bench:
        times = [recipe({"kernel": "tiny", "nodes": n}, system).time_ns(bench) for n in (63.0, 64.0, 128.0)]
    assert times[2] == pytest.approx(times[1] + 64 * (times[1] - times[0]))


def test_equal_scripts_are_replayed_once() -> None:
    calls = []

    class Counted(Bench):
        def _replayed(self, script: Script) -> predict_script.Times:
            calls.append(script)
            return super()._replayed(script)

    def script(rows: list[int]) -> Script:
        made = Script()
        data = made.region(16, 64)
        made.kernel(Grid(1), [Move(data, one(0), 2, gather=np.array(rows, np.int64))])
        return made

    with Counted(predict.system_of("h200")) as bench:
        times = [bench.run(script(rows)).end_ps for rows in ([1, 2], [1, 2], [1, 3])]
    assert len(calls) == 2
    assert times[0] == times[1]


def test_a_stream_of_a_far_memory_goes_on_where_the_call_before_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No place is read twice, and the region is as large as the measured one."""
    monkeypatch.setattr(predict_far, "LONG_BYTES", 1 << 20)
    system = system_of("host.stream")
    row = next(row for row in FAMILIES["host.stream"].rows if row["blocks"] == 2)
    scripts: list[Script] = []

    class Kept(Bench):
        def run(self, script: Script) -> predict_script.Times:
            scripts.append(script)
            return super().run(script)

    with Kept(system) as bench:
        predict.PLAIN["host.stream"](row, system).time_ns(bench)
    (script,) = scripts
    far = [access for accesses in script.accesses for access in accesses if access.region == 1]
    assert len({access.kernel for access in far}) == 2
    assert all(one.first_row + one.rows == two.first_row for one, two in pairwise(far))
    assert script.regions[1].bytes == row["region_bytes"]
    assert script.place == {"r1": "host"}


@pytest.mark.parametrize("flight", [1024, 2048, 4096, 8192, 16384, 32768, 65536])
def test_warps_ask_for_what_the_measured_kernels_threads_do(flight: int) -> None:
    threads, words = micro_stream.shape(flight)
    assert predict_stream.warps_of(flight) == (threads // 32, words * 512)


@pytest.mark.parametrize("flight", sorted(predict_far.FLIGHT))
def test_warps_of_far_streams_are_those_of_the_measured_kernel(flight: int) -> None:
    assert predict_far.FLIGHT[flight] * 32 == remote.FLIGHT[flight][0]


@pytest.mark.parametrize("row", [32, 64, 128, 256, 512, 576, 656, 1152, 4096, 16384])
@pytest.mark.parametrize("count", [64, 2048, 65_536])
def test_far_gathers_have_the_grid_of_the_measured_kernel(row: int, count: int) -> None:
    """As `remote.gathers` launches it: 256 threads a block, 2^lane_bits of them a row."""
    lanes = 1 << remote.lane_bits_for(row)
    blocks = min(132 * 8, -(-(count * lanes) // 256))
    what = predict_far.Gather.of(row, count, 132)
    assert what.warps == blocks * 8
    assert what.together == 32 // lanes * (4 if row <= 512 else 1)
    assert what.piece_bytes * what.pieces == row


def test_a_turns_reads_are_worked_on_and_its_stores_are_not() -> None:
    """An operation a word; the tile that carries it is what a warp asks for at once."""
    system = predict.system_of("h200")
    for kind, reads in (("read", True), ("copy", True), ("update", True), ("write", False)):
        what, script = Stream(kind, 2, 4, 1024, 8), Script()
        regions = [script.region(64, 512), script.region(64, 512)]
        kernel = script.kernels[script.kernel(what.grid(), list(what.moves(regions, 64 * 512)))]
        assert {a.worked for a in script.accesses[0] if not a.write} == ({True} if reads else set())
        assert not any(a.worked for a in script.accesses[0] if a.write)
        work = (kernel.flops_per_tile, kernel.flops_unit, kernel.tile_rows)
        assert work == ((256, "fp32", 2) if reads else (0, "none", 1))
    chase, _, _ = predict_chase._chased({"footprint": float(64 << 10), "stride": 128.0}, system)
    assert not any(access.worked for accesses in chase.accesses for access in accesses)


def test_a_warp_pays_the_latency_of_its_work_once_a_turn() -> None:
    found = predict.system_of("h200")
    row = {"row": 512.0, "count": 4096.0, "blocks": 4.0, "calls": 2.0, "region": float(1 << 30)}
    times = []
    for work_ps in (0, 1_000_000):
        runner = replace(found.initiators[0], work_latency_ps=work_ps)
        system = replace(found, initiators=(runner, *found.initiators[1:]))
        with Bench(system) as bench:
            times.append(predict_gather.gather(row, system).time_ns(bench))
    turns = 4096 / predict_gather.of_row(row).turn_rows
    assert turns == 32
    assert times[1] - times[0] == pytest.approx(turns * 1000, rel=0.02)


def test_loops_of_measuring_kernels_have_a_prologue_and_empty_kernels_have_none() -> None:
    """Nor has a copy engine, nor a kernel of `launch.*`, which gives the GPU's own set-up."""
    system, script, grid = predict.system_of("h200"), Script(), Grid(2, tile_bytes=512)
    data, tiny = script.region(2, 512), {"kernel": "tiny", "nodes": 2.0}
    moves = [Move(data, even(0, 1, 1), 2)]
    times = []
    for startup in ("0 ns", "3 us"):
        with costs.tried({"kernel.measured.startup": startup}), Bench(system) as bench:
            kernels = [script.kernel(grid, moves), script.kernel(grid, moves, initiator="copy")]
            found = [script.kernels[kernel].startup_ps for kernel in [*kernels, script.kernel(grid)]]
            times.append(predict.PLAIN["launch.gap"](tiny, system).time_ns(bench))
    assert found == [3_000_000, 0, 0]
    assert times[0] == times[1]


@pytest.mark.parametrize(("calls", "kept"), [(400, True), (1280, False)])
def test_small_lists_of_a_gather_are_in_the_cache_behind_any_reads(calls: int, kept: bool) -> None:
    """As many as one of the two copies' share of it holds: 20.9 MB."""
    system, moved = predict.system_of("h200"), []
    row = {"row": 2048.0, "count": 4096.0, "blocks": 1024.0, "calls": float(calls), "region": float(1 << 30)}

    class Kept(Bench):
        def run(self, script: Script) -> predict_script.Times:
            times = super().run(script)
            moved.append(times.outcome.issued[1, :, 0].tolist())
            return times

    with Kept(system) as bench:
        predict_gather.gather(row, system).time_ns(bench)
    ((from_hbm, hits),) = moved
    assert (hits > 0.7 * 4096 * 4) == kept
    assert (from_hbm == 4096 * 4) == (not kept)


def public_families() -> dict[str, FamilyRows]:
    pytest.importorskip("torch")
    return {
        family.name: family for family in predict.families_of(FOLDER) if family.name.startswith("public.")
    }


def test_public_tables_are_families_of_the_same_part_alone_and_held_out_whole(tmp_path: Path) -> None:
    found = public_families()
    assert {name: len(family.rows) for name, family in found.items()} == {
        "public.gdn": 57,
        "public.kda": 43,
        "public.v4_index": 27,
        "public.all_reduce": 47,
    }
    assert {row["split"] for family in found.values() for row in family.rows} == {"held_out"}
    assert predict.machine_of(FOLDER, "public.all_reduce") == "8xh200"
    assert all(predict.machine_of(FOLDER, name) == "h200" for name in set(found) - {"public.all_reduce"})
    assert predict.families_of(tmp_path) == []


def test_of_public_shapes_of_equal_programs_one_counts() -> None:
    """Every program of a shape that is left out has its like in one that counts: the same states, the same
    programs to a key head."""
    pytest.importorskip("torch")
    from validation import predict_public, public

    kept = {
        (row["heads"] * row["batch"], row["heads"] / row["key_heads"]): row  # type: ignore[operator]
        for row in public_families()["public.gdn"].rows
    }
    every = [row for row in public.load("gdn-vllm").to_pylist() if predict_public._packed(row)]
    shapes = {(row["key_heads"], row["heads"], row["batch"]) for row in every if not row["outlier"]}
    assert len(shapes) == 197
    assert {(heads * batch, heads / keys) for keys, heads, batch in shapes} == set(kept)
    for keys, heads, batch in shapes:
        assert kept[heads * batch, heads / keys]["batch"] <= batch  # type: ignore[operator]


def test_public_kernels_move_the_bytes_of_the_tables() -> None:
    """States, and beside them what a head's q, k, v and gate take; keys, and each sequence's queries."""
    found, system = public_families(), system_of("public.kda")
    for name, share in (("public.kda", 0.03), ("public.gdn", 0.02)):
        row = next(row for row in found[name].rows if row["batch"] == 4)
        job = predict.recipes()[name](row, system)
        assert 1 < job.bytes_read / predict_script.count(row, "bytes_read") < 1 + share
        assert 1 < job.bytes_written / predict_script.count(row, "bytes_written") < 1 + share
    row = next(r for r in found["public.v4_index"].rows if (r["batch"], r["context_tokens"]) == (4, 10_240))
    job = predict.recipes()["public.v4_index"](row, system)
    assert (job.bytes_read, job.bytes_written) == (row["bytes_read"] + 4 * 64 * 132, row["bytes_written"])


def test_a_public_call_is_a_graph_of_its_own() -> None:
    pytest.importorskip("torch")
    found, row = predict.system_of("h200"), {"batch": 1.0, "context_tokens": 1024.0}
    runner = replace(found.initiators[0], graph_launch_ps=found.initiators[0].graph_launch_ps + 5_000_000)
    times = []
    for system in (found, replace(found, initiators=(runner, *found.initiators[1:]))):
        with Bench(system) as bench:
            times.append(predict.recipes()["public.v4_index"](row, system).time_ns(bench))
    assert times[1] - times[0] == pytest.approx(5000)


def test_many_states_replayed_as_fewer_sequences_take_what_they_take_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from validation import predict_kernels, predict_public

    system, row = predict.system_of("h200"), {"heads": 32.0, "batch": 256.0}
    times = []
    for most in (predict_kernels.MOST_BYTES, 1 << 40):
        monkeypatch.setattr(predict_kernels, "MOST_BYTES", most)
        with Bench(system) as bench:
            times.append(predict_public.recurrence(row, system).time_ns(bench))
    assert times[0] == pytest.approx(times[1], rel=0.03)
    assert times[0] != times[1]
