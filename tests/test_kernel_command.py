"""`memsim kernel`: one kernel recorded and replayed, its answer and its refusals."""

from __future__ import annotations

import dataclasses
import json

import pytest

from memsim import cli, kernel, load_machine, recording, replay, report_json
from memsim.closed_form import Way, path_of, round_trip_ps
from memsim.errors import DoesNotFit, MissingExtra, UsageError
from memsim.route import build_system
from memsim.trace_read import open_trace
from workloads import kernel_options

SMALL = {"bytes": 1 << 22}


def machine(name="h200-host", *overrides):
    return build_system(load_machine(name, overrides))


def asked(name, system, **given):
    options = {key: given.pop(key) for key in ("tier", "place", "run_on", "seed", "engine") if key in given}
    return kernel.run(name, system, given, bound=False, **options)


def recorded(path, name, seed=0, **given):
    """Regions that `--tier` places, and the trace of an attention kernel alone, for 132 units."""
    pytest.importorskip("torch")
    from workloads import single

    return single.write(name, kernel_options.complete(name, given), 132, seed, path), open_trace(path)


def answered(capsys, words):
    """The JSON that a command line prints."""
    assert cli.run(words.split()) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, words):
    """Exit code and the one line of a command line that fails."""
    code = cli.run(words.split())
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("Error: ") == 1
    line = printed.err[printed.err.index("Error: ") :]
    assert line.count("\n") == 1
    return f"{code} {line.removeprefix('Error: ').rstrip()}"


def test_a_plain_stream_reaches_the_bandwidth_of_the_tier(capsys):
    call = answered(capsys, "kernel stream --no-bound --json")["call"]
    """Less what the uneven queues of its channels lose."""
    path_mbps, _ = path_of(Way(machine("h200"), 0, 0))
    assert 0.92 * path_mbps < call["bytes_read_per_s"] / 1e6 < path_mbps
    assert call["bytes_written_per_call"] == 0


def test_a_plain_chase_returns_the_latency_of_the_tier_and_of_the_pages_that_it_misses(capsys):
    """Its loads lie in 1 GiB, all of which the far level covers; the start of its block is shared by all."""
    call = answered(capsys, "kernel chase --machine h200-host --tier host --no-bound --json")["call"]
    idle_ps = round_trip_ps(Way(machine(), 0, 1), 64, 64)
    near, far = machine().tiers[1].translation
    assert near.reach_bytes < 1 << 30 <= far.reach_bytes
    missed = 1 - near.reach_bytes / (1 << 30)
    walks_ps = missed * (near.latency_ps + near.occupancy_ps)
    assert call["load_s"] * 1e12 - idle_ps == pytest.approx(walks_ps, rel=0.03)
    assert call["loads_per_call"] == 4096


def test_the_answer_is_a_replay_with_the_call_beside_it(capsys):
    words = "kernel stream --bytes 4MiB --machine h200-host --tier host --json"
    document = answered(capsys, words)
    answer = kernel.run("stream", machine(), SMALL, tier="host")
    assert document.pop("call") == kernel.document(answer)
    assert document == json.loads(report_json.text(answer.result))
    assert document["trace"] == "kernel stream"
    assert document["kernels"]["stream"]["bound"] == "pcie bandwidth"
    assert document["links"]["pcie"]["bytes_moved_read"] == 1 << 22


def test_the_report_begins_with_what_a_call_takes(capsys, tmp_path):
    out = tmp_path / "out"
    assert cli.run(["kernel", "update", "--bytes", "4MiB", "--calls-per-launch", "2", "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    first = printed.splitlines()[0]
    assert first.startswith("a call of update takes ")
    assert ", mean of 2: 4.19 MB read (" in first
    assert "4.19 MB written (" in first
    assert sorted(path.name for path in out.iterdir()) == ["inputs.json", "report.txt", "result.json"]
    assert (out / "report.txt").read_text().startswith(first)
    inputs = json.loads((out / "inputs.json").read_text())
    assert inputs["trace"]["options"]["bytes"] == 1 << 22


def test_a_call_holds_its_launch_gap_and_not_the_launch_of_the_graph():
    system = machine("h200")
    one, many = (asked("stream", system, bytes=1 << 28, calls_per_launch=n) for n in (1, 5))
    assert one.call_ps == many.call_ps
    assert one.result.total_ps == one.call_ps + one.result.graph_launch_ps
    assert many.result.total_ps == 5 * many.call_ps + many.result.graph_launch_ps
    assert one.call_ps > system.initiators[0].launch_gap_ps


def test_buffers_take_room_and_find_nothing_in_the_cache_that_one_buffer_warms():
    one, three = (asked("gather", machine("h200"), count=1000, buffers=n, calls_per_launch=3) for n in (1, 3))
    assert three.result.tiers[0].used_bytes == 3 * one.result.tiers[0].used_bytes
    cold, warm = (answer.result.cache_hit_bytes for answer in (three, one))
    assert cold == 0
    assert warm == pytest.approx(one.bytes_read * 2, rel=0.01)
    assert three.call_ps > 1.1 * one.call_ps


def test_the_copy_engine_pays_its_setup_for_each_transfer():
    system = machine()
    (engine,) = kernel.copy_engines(system)
    one = asked("stream", system, bytes=1 << 20, block_bytes=1 << 20, tier="host", dma=True)
    many = asked("stream", system, bytes=1 << 20, block_bytes=1 << 14, tier="host", dma=True)
    assert one.result.families[0].initiator == system.initiators[engine].name == "copy"
    assert many.call_ps - one.call_ps > 63 * system.initiators[engine].setup_ps
    assert one.bytes_read == one.bytes_written == 1 << 20
    assert (
        asked("stream", system, **SMALL, tier="host", dma=True, write=True).result.links[0].moved_write_bytes
        == 1 << 22
    )


def test_only_an_initiator_after_the_first_is_a_copy_engine():
    system = machine("h200")
    idle = dataclasses.replace(system.initiators[0], bf16_mflops=0, fp8_mflops=0, fp32_mflops=0)
    without = dataclasses.replace(system, initiators=(idle, *system.initiators[1:]))
    assert kernel.copy_engines(without) == kernel.copy_engines(system) == [1]


def test_one_transfer_sent_elsewhere_leaves_the_others_to_the_copy_engine():
    given = {"bytes": 1 << 20, "dma": True, "calls_per_launch": 2}
    answer = asked("stream", machine("h200"), **given, run_on=["stream1=gpu"])
    assert answer.result.outcome.initiator.tolist() == [1, 0]


def test_a_load_is_timed_without_the_launch_gap_of_what_runs_it():
    system = machine("h200-cxl")
    answer = asked("chase", system, count=50, tier="cxl", run_on=["chase=cxl-unit"])
    names = [[part.name for part in parts] for parts in (system.initiators, system.tiers)]
    runner, tier = names[0].index("cxl-unit"), names[1].index("cxl")
    assert system.initiators[runner].launch_gap_ps != system.initiators[0].launch_gap_ps
    assert answer.load_ps == round_trip_ps(Way(system, runner, tier), 64, 64)


def test_where_data_lie_can_be_said_by_tier_and_overruled_by_place():
    def far_bytes(**options):
        return asked("copy", machine(), **SMALL, **options).result.tiers[1]

    assert far_bytes(tier="host").moved_read_bytes == 1 << 22
    assert far_bytes(tier="host").moved_write_bytes == 0
    assert far_bytes(tier="host", write=True).moved_write_bytes == 1 << 22
    assert far_bytes(tier="host", place=["activation=hbm"]).moved_read_bytes == 0
    both = far_bytes(tier="host", place=["activation=host"])
    assert both.moved_read_bytes == both.moved_write_bytes == 1 << 22


def test_a_machine_can_be_bent(capsys):
    words = "kernel stream --bytes 4MiB --machine h200-host --tier host --no-bound --json"
    plain = answered(capsys, words)["call"]["call_s"]
    code = cli.run([*words.split(), "--set", "link.pcie.bandwidth=630 GB/s", "--set", "link.pcie.tags=7680"])
    assert code == 0
    bent = json.loads(capsys.readouterr().out)["call"]["call_s"]
    assert bent < plain / 3


@pytest.mark.parametrize("name", ["stream", "copy", "update", "gather", "chase", "gemv"])
def test_both_engines_answer_alike(name):
    given = {"stream": {"bytes": 1 << 18}, "gather": {"count": 300}, "chase": {"count": 50}}.get(
        name, {"bytes": 1 << 17}
    )
    fast, slow = (
        asked(name, machine(), **given, tier="host", engine=engine) for engine in ("fast", "reference")
    )
    assert fast.result.digest == slow.result.digest
    assert fast.call_ps == slow.call_ps


ATTENTION = {
    "kda": ({}, ["kda-conv", "kda"], "state", 32 * 128 * 512),
    "gdn": ({}, ["gdn-conv", "gdn"], "state", 32 * 128 * 512),
    "mla": ({"context": "8K"}, ["mla", "mla-combine"], "kv", 8192 * 1152),
    "dsa-index": ({"context": "8K"}, ["dsa-index"], "index", 8192 * 132),
    "dsa-topk": ({"context": "8K"}, ["dsa-topk"], "activation", 8192 * 4),
    "dsa-attend": ({"context": "8K"}, ["dsa-attend", "dsa-combine"], "kv", 2048 * 656),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_an_attention_kernel_alone_reads_what_it_is_about_from_where_it_lies(name):
    pytest.importorskip("torch")
    given, families, kind, least_bytes = ATTENTION[name]
    answer = asked(name, machine(), **given, tier="host")
    assert [family.name for family in answer.result.families] == families
    assert answer.result.bytes_read[kind] >= least_bytes
    host = answer.result.tiers[1]
    assert host.moved_read_bytes >= least_bytes
    assert answer.result.context_tokens == (8192 if given else 1)


@pytest.mark.parametrize(
    ("name", "model", "given"),
    [
        ("mla", "kimi-linear", {"context": 4096, "heads": 32}),
        ("kda", "kimi-linear", {"heads": 32}),
        ("gdn", "qwen3-next", {}),
        ("dsa-index", "deepseek-v3.2", {"context": 4096}),
        ("dsa-topk", "deepseek-v3.2", {"context": 4096}),
    ],
)
def test_an_attention_kernel_alone_takes_what_it_takes_in_its_stack(tmp_path, name, model, given):
    pytest.importorskip("torch")
    system = machine("h200", "cache.l2.capacity=1 kB")  # alone, too, nothing is left by the kernel before
    recording.record(model, 4096, tmp_path / "t.parquet")
    stack = {family.name: family for family in replay(tmp_path / "t.parquet", system, bound=False).families}
    answer = asked(name, system, **given)
    for family in answer.result.families:
        count = stack[family.name].kernels // family.kernels
        assert family.time_ps == stack[family.name].time_ps // count
        assert family.bytes_read == stack[family.name].bytes_read // count


def test_batch_heads_and_topk_change_what_is_read():
    pytest.importorskip("torch")
    system = machine("h200")

    def read(name, kind, **given):
        return asked(name, system, **given).result.bytes_read[kind]

    assert read("mla", "kv", context=4096, batch=3) == 3 * 4096 * 1152
    assert read("dsa-attend", "kv", context=4096, topk=512) == 512 * 656
    assert read("dsa-index", "activation", context=4096, heads=16) == 16 * (128 + 4)  # queries and weights
    assert read("kda", "state", heads=16) < read("kda", "state", heads=32)
    assert read("gdn", "state", heads=32, key_heads=32) > read("gdn", "state", heads=32)  # of the convolution
    selections = [
        asked("dsa-attend", system, context=8192, selection=s).result.digest for s in ("uniform", "dsa_hi")
    ]
    assert selections[0] != selections[1]


def test_calls_of_an_attention_kernel_go_round_its_buffers(tmp_path):
    far, trace = recorded(tmp_path / "t.parquet", "mla", context=64, buffers=2, calls_per_launch=3)
    assert far == ["layer0.kv", "layer1.kv"]
    calls = [launch.layer for launch, _ in trace.kernels() if launch.family == "mla"]
    assert calls == [0, 1, 0]


def test_each_buffer_has_a_selection_of_its_own_and_keeps_it(tmp_path):
    pytest.importorskip("torch")
    from workloads.selection import make_selection
    from workloads.single import FIRST_LAYER

    given = {"context": 4096, "topk": 64, "selection": "uniform", "buffers": 2, "calls_per_launch": 3}
    _, trace = recorded(tmp_path / "t.parquet", "dsa-attend", 5, **given)
    found = [rows.gather_rows.tolist() for launch, rows in trace.kernels() if launch.family == "dsa-attend"]
    drawn = make_selection("uniform", 64, 5)
    first, second = (drawn.rows(FIRST_LAYER + layer, 0, 0, 4096).tolist() for layer in (0, 1))
    assert found == [first, second, first]
    assert first != second


@pytest.mark.parametrize(
    ("name", "given", "regions"),
    [
        ("dsa-topk", {"context": 128, "topk": 64}, ["scores", "indices"]),
        ("mla", {"context": 64}, ["q", "kv", "partial", "out"]),  # of one split: partial is only named
    ],
)
def test_a_kernel_alone_has_the_regions_that_it_touches_or_names(tmp_path, name, given, regions):
    _, trace = recorded(tmp_path / "t.parquet", name, **given)
    assert [region.name for region in trace.regions] == [f"layer0.{region}" for region in regions]


def test_a_scan_beside_its_memory_is_split_over_the_units_there():
    pytest.importorskip("torch")
    answer = asked("dsa-index", machine("h200-cxl"), context=65_536, tier="cxl", run_on=["dsa-index=cxl"])
    (family,) = answer.result.families
    assert family.initiator == "cxl-unit"
    assert answer.meta["inputs"][3]["value"] == "16 units"
    links = {link.name: link for link in answer.result.links}
    assert links["cxl-link"].moved_read_bytes == 65_536 * 4  # the scores, on their way to the first tier


def test_slow_requests_need_a_seed():
    system = machine("h200-nvme")
    given = {"count": 2000, "row_bytes": 4096, "tier": "nvme"}
    usual, seeded, again, other = (asked("chase", system, **given, seed=seed) for seed in (None, 0, 0, 1))
    assert usual.call_ps < seeded.call_ps == again.call_ps != other.call_ps


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("kernel", "2 Missing argument 'NAME'; see 'memsim kernel --help'"),
        ("kernel strem", "2 unknown kernel 'strem'; did you mean 'stream'?"),
        ("kernel stream --heads 4", "2 --heads with 'stream': it has no such option; it takes --bytes"),
        ("kernel gather --seed -1", "2 --seed -1: expected 0 to"),
        ("kernel dsa-topk --topk 999999 --context 128K", "2 --topk 999999 with 'dsa-topk': the context"),
        (
            "kernel dsa-attend --context 1M --batch 4096 --topk 1048576",
            "2 'dsa-attend' with these options has 4,294,967,296 rows or tiles a call",
        ),
        ("kernel gdn --heads 24", "2 --heads 24 with 'gdn': expected a multiple of its 16 key heads"),
        ("kernel gdn --heads 3 --key-heads 1", "2 --heads 3 with 'gdn': expected an even number of heads"),
        ("kernel kda --batch 4096 --heads 1024 --calls-per-launch 65536", "2 'kda' with these options has"),
        ("kernel stream --block-bytes 64B --calls-per-launch 6000", "2 'stream' with these options has"),
        ("kernel gather --span 5", "2 --span: '5' is not a size: it has no unit"),
        ("kernel mla --context 5x", "2 --context: '5x' is not a number of tokens"),
        ("kernel stream --tier hots", "2 --tier 'hots': machine h200 has no tier 'hots'"),
        ("kernel stream --machine h200x", "2 unknown machine 'h200x'; did you mean 'h200'?"),
        ("kernel stream --place kv=hbm", "2 --place 'kv=hbm': the trace has no 'kv' region"),
        ("kernel stream --run-on strem=copy", "2 --run-on 'strem': no kernel and no family of the trace"),
        ("kernel stream --bytes 142GB", "5 h200: tier 'hbm' holds 141.0 GB but 142.0 GB are placed in it"),
        (
            "kernel copy --bytes 2TiB --block-bytes 64B",
            "2 --bytes '2199023255552 B': the kernel has 34,359,73",
        ),
    ],
)
def test_a_wrong_command_line_ends_in_one_line(capsys, words, line):
    assert refused(capsys, words).startswith(line)


def test_without_torch_an_attention_kernel_is_refused_and_a_pattern_is_not(monkeypatch):
    monkeypatch.setattr(recording, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'memsim\[kernels\]'"):
        asked("mla", machine("h200"), context=4096)
    assert asked("stream", machine("h200"), **SMALL).call_ps > 0


def test_a_machine_without_a_copy_engine_says_so():
    system = machine("h200")
    without = type(system)(
        **{**vars(system), "initiators": system.initiators[:1], "routes": system.routes[:1]}
    )
    with pytest.raises(UsageError, match="--dma: machine h200 has no copy engine"):
        asked("stream", without, **SMALL, dma=True)


def test_what_does_not_fit_is_refused_with_the_shortfall():
    with pytest.raises(
        DoesNotFit, match="tier 'host' holds 1000.0 GB but 1006.6 GB are placed in it: 6.6 GB"
    ):
        asked("stream", machine(), bytes=15 << 26, buffers=1000, tier="host")
