"""docs/anatomy.md says what its commands say, in numbers, pictures and which parts there are."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

anatomy = pytest.importorskip("anatomy")


@pytest.fixture(scope="module")
def redone():
    pytest.importorskip("torch")
    return anatomy.redone(anatomy.PAGE.read_text(encoding="utf-8"))


def test_the_numbers_are_those_of_the_commands(redone):
    page, pictures, _ = redone
    assert page == anatomy.PAGE.read_text(encoding="utf-8"), "python tests/anatomy.py redoes the page"
    assert len(pictures) == 3


def test_every_part_of_a_percent_has_a_row_in_its_turn(redone):
    assert redone[2] == []


def test_the_pictures_are_those_of_the_commands_and_small(redone):
    for path, picture in redone[1].items():
        committed = (anatomy.PAGE.parent / path).read_text(encoding="utf-8")
        assert committed == picture, "python tests/anatomy.py redoes the pictures"
        assert len(committed) < 60_000
        ElementTree.fromstring(committed)


def test_numbers_stand_in_tables_alone():
    """A number in the words would grow old: none of a time or a rate stands there."""
    text = anatomy.PAGE.read_text(encoding="utf-8")
    words = re.sub(r"(?s)```.*?```", "", "\n".join(line for line in text.splitlines() if line[:1] != "|"))
    assert re.findall(r"\d+(?:\.\d+)? (?:ns|us|ms|[GT]B/s)", words) == []


def test_a_row_too_few_or_out_of_turn_is_found():
    kernels = {
        "f": {"parts": {"launch": {"share": 0.5}, "latency": {"share": 0.3}, "units": {"share": 0.001}}}
    }
    rows = [
        "| `f` | all | 1 us | | | | |",
        "| `f` | `launch` | | | | | why |",
        "| `f` | `latency` | | | | | why |",
    ]
    assert anatomy.faults("\n".join(rows), kernels) == []
    assert anatomy.faults("\n".join(rows[:2]), kernels) == ["f: latency is 30.0% of the time and has no row"]
    (fault,) = anatomy.faults("\n".join([rows[0], rows[2], rows[1]]), kernels)
    assert "expected the order ['launch', 'latency']" in fault
