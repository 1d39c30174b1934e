"""Held-out micro-benchmarks, replayed: every family keeps the bound that `validation/bounds.toml` asserts."""

from __future__ import annotations

import os

import pytest

from validation import errors

MICRO = ("chase", "gather", "host", "launch", "loaded", "peer", "stream")


@pytest.fixture(scope="module")
def found() -> dict[str, errors.Family]:
    """The error table of the micro-benchmarks of an H200, by the name of the family."""
    table = errors.table("nvidia-h200", families=MICRO, workers=os.cpu_count() or 1)
    return {family.name: family for family in table}


def test_every_family_keeps_its_bound(found: dict[str, errors.Family]) -> None:
    assert {name: family.mape for name, family in found.items() if family.mape > (family.bound or 0)} == {}


def test_bounds_are_not_looser_than_what_is_achieved(found: dict[str, errors.Family]) -> None:
    """A family that has become better by a quarter gets a tighter bound, and DEVIATIONS.md says so."""
    tight = {name: 0.75 * (family.bound or 0) - 0.005 for name, family in found.items()}
    assert {name: family.mape for name, family in found.items() if family.mape < tight[name]} == {}
