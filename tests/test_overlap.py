"""Staged rows that are there from the step before are not fetched again; all else stays as it was."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from memsim.errors import UsageError
from memsim.overlap import FAMILY, thin
from memsim.projection import project
from memsim.recording import record
from memsim.trace_check import check_trace
from memsim.trace_read import open_trace


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """GLM-5's attention at 4K with staging, and with a quarter of the rows there already."""
    folder = tmp_path_factory.mktemp("overlap")
    record("glm-5", 4096, folder / "whole.parquet", stage="kv")
    thin(folder / "whole.parquet", Fraction(1, 4), folder / "thin.parquet")
    return folder / "whole.parquet", folder / "thin.parquet"


def test_a_quarter_less_is_gathered_and_written(traces):
    whole, thinner = (open_trace(path) for path in traces)
    kv = {region.id for region in whole.regions if region.kind == "kv"}
    seen = 0
    for (kernel, before), (same, after) in zip(whole.kernels(), thinner.kernels(), strict=True):
        assert kernel == same
        if kernel.family != FAMILY:
            assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
            continue
        gathers = np.isin(before.region, list(kv))
        moved = gathers | before.write
        assert after.rows[gathers].sum() * 4 == before.rows[gathers].sum() * 3
        assert after.rows[before.write].sum() * 4 == before.rows[before.write].sum() * 3
        assert np.array_equal(after.rows[~moved], before.rows[~moved])
        seen += 1
    assert seen
    check_trace(traces[1])


def test_the_trace_says_what_was_asked_for(traces):
    facts = {fact["path"]: fact for fact in open_trace(traces[1]).meta["inputs"]}
    assert (facts["step.overlap"]["value"], facts["step.overlap"]["provenance"]) == ("0.25", "assumed")


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UsageError, match="expected a share from 0 to below 1"):
        project("glm-5", "h200", overlap=share)
