"""Limits of machine files that the last of several values, or of several keys, breaks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from machine_samples import SMALL, changed, profile

from memsim.errors import ProfileError
from memsim.profile import load_machine


@pytest.mark.parametrize(
    ("old", "keys", "words"),
    [
        ("= 8\n", 'tail = [[0.1, "1 us"], [0.01, "2 s"]]', "a request that takes more than 1 s longer"),
        (
            'header = "20 B"\n',
            'transfer_efficiency = [["4 KiB", 0.5], ["2 GiB", 0.9]]',
            "out of range; expected sizes to 1 GiB",
        ),
    ],
)
def test_the_last_of_several_values_counts(tmp_path: Path, old: str, keys: str, words: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(words)):
        profile(tmp_path, changed(SMALL, (old, f"{old}{keys}\n")))


@pytest.mark.parametrize("key", ["name", "title"])
def test_a_machine_that_extends_another_needs_a_name_and_a_title_of_its_own(tmp_path: Path, key: str) -> None:
    lines = {"extends": '"h200"', "name": '"mine"', "title": '"t"'}
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(f"{name} = {value}" for name, value in lines.items()))
    assert load_machine(path).title == "t"
    path.write_text("\n".join(f"{name} = {value}" for name, value in lines.items() if name != key))
    with pytest.raises(ProfileError, match=rf"mine\.toml: no {key}; a machine that extends another"):
        load_machine(path)
