"""Held-out points, replayed: every family keeps the bound that `validation/bounds.toml` asserts."""

from __future__ import annotations

import os
import tomllib

import pytest

from validation import errors, predict

MICRO = ("chase", "gather", "host", "launch", "loaded", "peer", "stream")
BOUNDED = tuple(tomllib.loads(errors.BOUNDS.read_text(encoding="utf-8"))["mape"])
BY_TORCH = tuple(name for name in BOUNDED if name.split(".")[0] in predict.BY_TORCH)
STACKS = tuple(name for name in BY_TORCH if name.startswith(("stack.", "step.")))
KERNELS = tuple(name for name in BY_TORCH if name not in STACKS)

Table = dict[str, errors.Family]


def table(families: tuple[str, ...]) -> Table:
    """The error table of an H200, by the name of the family."""
    found = errors.table("nvidia-h200", families=families, workers=os.cpu_count() or 1)
    return {family.name: family for family in found}


@pytest.fixture(scope="module")
def micro() -> Table:
    return table(MICRO)


@pytest.fixture(scope="module")
def kernels() -> Table:
    pytest.importorskip("torch")
    return table(KERNELS)


@pytest.fixture(scope="module")
def stacks() -> Table:
    pytest.importorskip("torch")
    return table(STACKS)


def missed(found: Table) -> dict[str, float]:
    """Errors above their bound."""
    return {name: family.mape for name, family in found.items() if family.mape > (family.bound or 0)}


def much_better(found: Table) -> dict[str, float]:
    """Errors that are less than three quarters of their bound, by half a percent."""
    tight = {name: 0.75 * (family.bound or 0) - 0.005 for name, family in found.items()}
    return {name: family.mape for name, family in found.items() if family.mape < tight[name]}


def test_every_family_keeps_its_bound(micro: Table) -> None:
    assert missed(micro) == {}


def test_bounds_are_not_looser_than_what_is_achieved(micro: Table) -> None:
    """A family that has become better by a quarter gets a tighter bound, and DEVIATIONS.md says so."""
    assert much_better(micro) == {}


def test_every_kernel_keeps_its_bound(kernels: Table) -> None:
    assert missed(kernels) == {}


def test_bounds_of_kernels_are_not_looser_than_what_is_achieved(kernels: Table) -> None:
    assert much_better(kernels) == {}


@pytest.mark.slow
def test_every_stack_keeps_its_bound_and_no_looser_one(stacks: Table) -> None:
    assert (missed(stacks), much_better(stacks)) == ({}, {})


def test_every_bound_is_held_against_its_points() -> None:
    """A bound of a family that no test replays would assert nothing."""
    assert [name for name in BOUNDED if name not in BY_TORCH and name.split(".")[0] not in MICRO] == []
