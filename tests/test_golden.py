"""A committed trace and what its replay gives: every figure, exactly, on every computer.

`golden/v32_128k.parquet` is the attention of one decode step of DeepSeek-V3.2 at 128K tokens, recorded
on shapes alone. A change that moves a golden file is named in the changelog of README.md. To make them anew:

    cd tests/golden
    memsim trace record deepseek-v3.2 --context 128K --seed 0 -o v32_128k.parquet
    memsim replay v32_128k.parquet --machine h200-host --place kv=host --json > v32_128k.json
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from engine_cases import MemoryTrace, run_both

from memsim import load_machine, open_trace, replay, report_json
from memsim.options import DEFAULT_QUANTUM_BYTES
from memsim.placement import build_memory, parse_rules, place_regions
from memsim.result import Result
from memsim.route import build_system
from memsim.trace_check import check_trace

GOLDEN = Path(__file__).parent / "golden"
TRACE = GOLDEN / "v32_128k.parquet"
TOKENS, LAYERS = 131_072, 61


@pytest.fixture(scope="module")
def replayed() -> Result:
    return replay(TRACE, "h200-host", place=["kv=host"])


def test_a_replay_of_the_committed_trace_gives_the_committed_result(replayed):
    expected = json.loads((GOLDEN / "v32_128k.json").read_text(encoding="utf-8"))
    found = json.loads(report_json.text(replayed))
    assert expected.pop("trace") == TRACE.name
    assert found.pop("trace") == str(TRACE)
    assert expected.pop("interval")  # follows validation/quantiles.toml, which `validate --write` renews
    assert found.pop("interval").endswith("by errors of measured kernels (5 to 95%)")
    assert list(found) == list(expected)
    for key in expected:
        assert found[key] == expected[key], key


def test_its_bytes_are_those_of_the_models_formula(replayed):
    assert replayed.bytes_read["index"] == LAYERS * 132 * TOKENS
    assert replayed.bytes_read["kv"] == LAYERS * 2048 * 656


def test_both_engines_agree_on_its_first_two_layers():
    trace = open_trace(TRACE)
    system = build_system(load_machine("h200-host"))
    rules = parse_rules(["kv=host"], trace.regions, system)
    memory = build_memory(trace.regions, place_regions(trace.regions, rules, "refuse", system))
    launches = [launch for launch in trace.kernels() if launch[0].layer < 2]
    outcome = run_both(MemoryTrace(trace.regions, launches), system, memory, DEFAULT_QUANTUM_BYTES)
    assert len(outcome.end_ps) == 2 * 4
    assert outcome.requests.sum() > 10_000


def test_the_committed_trace_is_small_valid_and_what_the_recorder_still_writes(tmp_path):
    """All but the drawn rows, which other releases of numpy may draw otherwise."""
    pytest.importorskip("torch")
    from memsim import record

    assert TRACE.stat().st_size < 200_000
    assert check_trace(TRACE).gathered_rows == LAYERS * 2048
    record("deepseek-v3.2", TOKENS, tmp_path / "again.parquet", selection="uniform")
    again, committed = (pq.read_table(path) for path in (tmp_path / "again.parquet", TRACE))
    assert again.drop_columns("gather").equals(committed.drop_columns("gather"))
