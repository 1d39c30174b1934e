"""Collectives: sums and rows on real tensors, bytes in closed form, and times beside a published table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import memsim
from memsim.trace_write import TraceWriter
from workloads import collective
from workloads.record import ListSink, Recorder
from workloads.tensors import generator_for

TABLE = Path(__file__).parents[1] / "validation/tables/aiconfigurator-h200/comm/vllm/0.24.0"
ROW = 256
KIB = 1024


def recorder_of(device="cpu"):
    sink = ListSink()
    return Recorder(sink, device), sink


def filled(recorder, gpus, rows, mine_rows=0):
    """This GPU's rows and those of the others, random."""
    mine = recorder.region("x", "activation", -1, mine_rows or rows, ROW, "bf16")
    peers = collective.declare(recorder, "x", gpus - 1, rows, ROW, "bf16")
    generator = generator_for(torch.device("cpu"), 0)
    mine.fill(torch.randn(mine.shape, generator=generator))
    collective.fill(peers, generator)
    return mine, peers


def issued(sink):
    """Bytes of every region that is read, and that is written."""
    found = Counter()
    for access in sink.accesses:
        region = sink.regions[access.region]
        found[region.kind, access.write] += access.rows * region.row_bytes
    return found


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("rows", [1, 40, 1000])
def test_all_reduce_in_one_shot_adds_what_all_have(gpus, rows):
    recorder, sink = recorder_of()
    mine, peers = filled(recorder, gpus, rows)
    parts = [mine.data.float(), *peers.handle.data.float().reshape(gpus - 1, rows, -1)]
    collective.all_reduce(recorder, 3, peers, mine, 0, rows)
    assert torch.allclose(mine.data.float(), sum(parts), atol=0.05, rtol=0.01)
    assert issued(sink) == {
        ("activation", False): rows * ROW,
        ("activation", True): rows * ROW,
        ("exchange", False): (gpus - 1) * rows * ROW,
    }
    (kernel,) = sink.kernels
    assert (kernel.name, kernel.family) == ("layer3.all-reduce", "all-reduce")
    assert kernel.blocks == min(36, -(-rows * ROW // 8192))
    assert kernel.startup_ps == kernel.drain_ps == 1_270_000


@pytest.mark.parametrize(
    ("gpus", "nbytes", "whole"),
    [
        (2, 10**9, True),
        (4, 512 * KIB - 1, True),
        (4, 512 * KIB, False),
        (8, 256 * KIB - 1, True),
        (8, 256 * KIB, False),
        (6, 300 * KIB, False),
    ],
)
def test_large_sums_are_made_in_two_shots(gpus, nbytes, whole):
    assert collective.in_one_shot(gpus, nbytes) == whole


@pytest.mark.parametrize(("gpus", "rows"), [(8, 1024), (4, 2051), (8, 1030)])
def test_all_reduce_in_two_shots_reads_a_share_and_then_the_others_sums(gpus, rows):
    recorder, sink = recorder_of()
    mine, peers = filled(recorder, gpus, rows)
    before, others = mine.data.clone(), peers.handle.data.clone()
    collective.all_reduce(recorder, 0, peers, mine, 0, rows)
    share = -(-rows // gpus)
    expected = before[:share].float() + sum(
        others[at * rows : at * rows + share].float() for at in range(gpus - 1)
    )
    assert torch.allclose(mine.data[:share].float(), expected, atol=0.05, rtol=0.01)
    assert torch.equal(mine.data[share:], others[share:rows])  # sums, as the others left them
    found = issued(sink)
    assert found["exchange", False] == ((gpus - 1) * share + rows - share) * ROW
    assert found["activation", True] == rows * ROW
    assert sink.kernels[0].family == "all-reduce-two-shot"


def test_all_gather_brings_the_rows_of_every_other_gpu():
    recorder, sink = recorder_of()
    mine, peers = filled(recorder, 4, 50, mine_rows=200)
    own = mine.data[:50].clone()
    collective.all_gather(recorder, 0, peers, mine, 50, 50, "query-")
    assert torch.equal(mine.data, torch.cat([own, peers.handle.data]))
    assert sink.kernels[0].name == "layer0.query-all-gather"
    assert issued(sink)["exchange", False] == issued(sink)["activation", True] == 150 * ROW


def test_reduce_scatter_adds_the_rows_that_are_this_gpus():
    recorder, sink = recorder_of()
    mine, peers = filled(recorder, 4, 30, mine_rows=120)
    before = mine.data.clone()
    expected = before[30:60].float() + peers.handle.data.float().reshape(3, 30, -1).sum(0)
    collective.reduce_scatter(recorder, 0, peers, mine, 30, 30)
    assert torch.equal(mine.data[30:60], expected.bfloat16())
    assert torch.equal(mine.data[:30], before[:30])
    assert issued(sink)["activation", True] == 30 * ROW


def test_rows_can_be_gathered_from_and_added_up_to_another_region():
    recorder, _ = recorder_of()
    mine, peers = filled(recorder, 4, 30, mine_rows=30)
    whole = recorder.region("all", "activation", -1, 120, ROW, "bf16")
    whole.zero()
    collective.all_gather(recorder, 0, peers, whole, 30, 30, "dispatch-", (mine, 0))
    assert torch.equal(whole.data, torch.cat([mine.data, peers.handle.data]))
    before = mine.data.clone()
    collective.reduce_scatter(recorder, 0, peers, whole, 0, 30, "combine-", (mine, 0))
    expected = before.float() + peers.handle.data.float().reshape(3, 30, -1).sum(0)
    assert torch.equal(mine.data, expected.bfloat16())


def test_a_result_depends_on_every_row_that_is_read():
    recorder, _ = recorder_of()
    mine, peers = filled(recorder, 8, 40)
    before = mine.data.clone()
    peers.handle.data[7 * 40 - 1] = float("nan")
    collective.all_reduce(recorder, 0, peers, mine, 0, 40)
    assert mine.data[39].isnan().all()
    assert not mine.data[:39].isnan().any()
    assert not torch.equal(mine.data[0], before[0])


@pytest.fixture(scope="module")
def published():
    """(GPUs, bytes) -> us of vLLM's all-reduce in a graph on H200; the table counts elements of bf16."""
    rows = pq.read_table(TABLE / "custom_allreduce_perf.parquet").to_pylist()
    graphs = (row for row in rows if row["backend"] == "vllm_graph")
    return {(row["num_gpus"], 2 * row["message_size"]): row["latency"] * 1000 for row in graphs}


def replayed_us(folder, gpus, nbytes, calls=3):
    with TraceWriter(folder / "a", {"model": "sums", "gpus": gpus}) as trace:
        recorder = Recorder(trace, "meta")
        row = min(ROW, nbytes)
        mine = recorder.region("x", "activation", -1, nbytes // row, row, "bf16")
        peers = collective.declare(recorder, "x", gpus - 1, nbytes // row, row, "bf16")
        for _ in range(calls):
            collective.all_reduce(recorder, -1, peers, mine, 0, nbytes // row)
    result = memsim.replay(folder / "a", "8xh200", bound=False)
    return (result.total_ps - result.graph_launch_ps) / calls / 1e6


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize(
    ("nbytes", "least", "most"),
    [
        (4 * KIB, -0.01, 0.13),
        (64 * KIB, -0.03, 0.08),
        (256 * KIB, -0.03, 0.15),
        (2048 * KIB, -0.16, 0.02),
    ],
)
def test_times_of_sums_beside_what_vllm_takes(tmp_path, published, gpus, nbytes, least, most):
    off = replayed_us(tmp_path, gpus, nbytes) / published[gpus, nbytes] - 1
    assert least <= off <= most
