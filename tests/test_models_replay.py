"""Every named stack at 128K, 1M and 10M: recorded, and replayed or refused with the shortfall."""

from __future__ import annotations

import pytest

from memsim import record, replay
from memsim.errors import DoesNotFit
from workloads.models import cache, get_model

NAMED = (
    *("kimi-linear", "kimi-k3", "qwen3-next", "qwen3.5", "mimo-v2-flash", "llama-3.1-70b", "qwen3-235b"),
    *("deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash"),
    *("glm-5", "glm-5.2", "glm-5.3-flash", "longcat-2.0"),
)
HBM_BYTES = 141 * 10**9
PEAK_BYTES_PER_PS = 4.8


@pytest.mark.slow
@pytest.mark.parametrize("context", [131_072, 1_048_576, 10_485_760])
@pytest.mark.parametrize("name", NAMED)
def test_a_stack_is_replayed_or_does_not_fit(tmp_path, name, context):
    path = tmp_path / "a.parquet"
    record(name, context, path)
    expected = cache.of_model(get_model(name), context)
    result, shortfall = None, ""
    try:
        result = replay(path, "h200-host", bound=False)
    except DoesNotFit as refused:
        shortfall = str(refused)
    if result is None:
        assert "GB too many" in shortfall
        assert expected.resident > 0.7 * HBM_BYTES  # scores, scratch and whole pages come on top
        return
    assert expected.resident <= HBM_BYTES
    assert result.bytes_read["kv"] + result.bytes_read.get("index", 0) <= expected.read
    assert result.tpot_ps > expected.read / PEAK_BYTES_PER_PS
