"""What a recorded stack reads of its caches is what the closed forms say, byte by byte, for every model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from memsim import trace_show
from memsim.trace_read import open_trace
from memsim.unique import unique_bytes
from workloads.decode import record_step
from workloads.models import cache, get_model, model_names
from workloads.models.load import UNCHANGED, changes_of

CACHES = ("kv", "index", "state")
CHANGED = {
    "kimi-k3": {"kv_dtype": "fp8"},
    "kimi-linear": {"ratio": "kda:mla=7:1"},
    "glm-5.2": {"index_dtype": "fp4"},
    "longcat-2.0": {"index_dtype": "bf16"},
    "deepseek-v4-flash": {"index_dtype": "fp4"},
    "deepseek-v4.1-flash": {"kv_dtype": "fp8", "index_dtype": "fp8"},
}


def cache_reads(path: Path) -> int:
    """Bytes that the kernels of a trace read of rows, keys and states; compressors' own states apart."""
    trace = open_trace(path)
    read: Counter[int] = Counter()
    for kernel, accesses in trace.kernels():
        read.update(unique_bytes(kernel, accesses, trace.regions)[0])
    regions = (region for region in trace.regions if region.kind in CACHES)
    return sum(read[region.id] for region in regions if not region.name.endswith("compressor"))


@pytest.mark.parametrize("context_tokens", [1, 130, 3001, 131_072])
@pytest.mark.parametrize("name", model_names())
def test_a_step_reads_what_the_closed_form_says(tmp_path, name, context_tokens):
    record_step(name, context_tokens, out=tmp_path / "a")
    assert cache_reads(tmp_path / "a") == cache.of_model(get_model(name), context_tokens).read


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_model_reads_what_its_closed_form_says(tmp_path, name):
    changes = changes_of(**CHANGED[name])
    record_step(name, 5003, changes=changes, out=tmp_path / "a")
    assert cache_reads(tmp_path / "a") == cache.of_model(get_model(name, changes), 5003).read
    assert changes != UNCHANGED


@pytest.mark.parametrize("name", ["qwen3-next", "glm-5.3-flash", "longcat-2.0", "deepseek-v4-pro"])
def test_sequences_and_steps_add_up(tmp_path, name):
    record_step(name, 2500, batch=2, steps=2, out=tmp_path / "a")
    expected = sum(cache.of_model(get_model(name), 2500 + step).read for step in range(2))
    assert cache_reads(tmp_path / "a") == 2 * expected


@pytest.mark.parametrize("name", [name for name in model_names() if get_model(name).selects])
def test_staging_moves_the_gathers_and_adds_none(tmp_path, name):
    record_step(name, 3001, stage="kv", out=tmp_path / "a")
    assert cache_reads(tmp_path / "a") == cache.of_model(get_model(name), 3001).read
    families = trace_show.info(tmp_path / "a")["families"]
    assert families["kv-stage"]["kernels"] == sum(layer.selects > 0 for layer in get_model(name).layers)
