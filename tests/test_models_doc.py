"""docs/models.md: its example is a model, and its tables name every key, kind and format."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from workloads.kinds import KINDS
from workloads.models import get_model
from workloads.models.build import KEYS
from workloads.models.load import SHARES, TOP
from workloads.models.model import Weights
from workloads.shapes import INDEX_ROW_BYTES

PAGE = Path(__file__).parents[1].joinpath("docs", "models.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_is_a_model_in_ten_lines(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(EXAMPLE, encoding="utf-8")
    assert get_model(str(path)).layer_counts == {"swa": 32, "gqa": 4}
    assert len(EXAMPLE.strip().splitlines()) <= 10
    assert set(tomllib.loads(EXAMPLE)) <= set(TOP)


def test_every_key_of_a_file_is_explained():
    named = set(re.findall(r"`\[?(\w+)", section("Keys")))
    assert set(TOP) | set(SHARES) | {"like", "kind", "shares"} <= named
    assert {field.name for field in fields(Weights)} <= set(re.findall(r"\w+", section("Weights")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_its_keys(kind):
    rows = dict(
        re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \| .*? \|$", section("Kinds of layers"), re.MULTILINE)
    )
    assert set(rows) == set(KINDS)
    words = set(re.findall(r"\w+", rows[kind]))
    for base in re.findall(r"those of `(\w+)`", rows[kind]):
        words |= set(KEYS[base][0])
    assert set(KEYS[kind][0]) <= words


def test_every_format_of_an_index_key_is_there():
    for dtype, row_bytes in INDEX_ROW_BYTES.items():
        assert f"{row_bytes} B ({dtype})" in section("Kinds of layers")
