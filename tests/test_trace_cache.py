"""Traces are recorded once, under names that say all that they were made from; old ones make room."""

from __future__ import annotations

import os

import pytest

from memsim import trace_cache
from memsim.trace_cache import kept, key_of, shrink

OPTIONS = {"batch": 1, "units": 132}


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """A cache of its own, and the list of what was recorded: a text instead of a trace."""
    calls = []

    def record(model, context, out, *, progress, **options):
        calls.append((model, context, options))
        out.write_text(f"{model} {context} {options}")

    monkeypatch.setattr(trace_cache, "record", record)
    monkeypatch.setattr(trace_cache, "cache_root", lambda: tmp_path)
    return calls


def test_a_trace_is_recorded_once(recorded):
    texts = []
    for _ in range(3):
        with kept("kimi-linear", 4096, OPTIONS) as path:
            texts.append(path.read_text())
    assert len(recorded) == 1
    assert set(texts) == {f"kimi-linear 4096 {OPTIONS}"}


def test_another_model_context_or_option_is_another_trace(recorded):
    for model, context, options in (
        ("kimi-linear", 4096, OPTIONS),
        ("deepseek-v3", 4096, OPTIONS),
        ("kimi-linear", 8192, OPTIONS),
        ("kimi-linear", 4096, {**OPTIONS, "batch": 2}),
    ):
        with kept(model, context, options) as path:
            assert path.read_text() == f"{model} {context} {options}"
    assert len(recorded) == 4


def test_the_key_holds_the_sources_and_the_text_of_files(monkeypatch, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("a")
    keys = [key_of(str(mine), 4096, OPTIONS)]
    mine.write_text("b")
    keys.append(key_of(str(mine), 4096, OPTIONS))
    monkeypatch.setattr(trace_cache, "sources_digest", lambda: "other kernels")
    keys.append(key_of(str(mine), 4096, OPTIONS))
    assert len(set(keys)) == 3
    assert key_of(str(mine), 4096, {**OPTIONS, "ratio": None, "replace": ()}) == keys[2]


@pytest.mark.parametrize(("option", "word"), [("selection", "file:"), ("selection", ""), ("routing", "")])
def test_a_file_that_an_option_names_counts_by_its_text(tmp_path, option, word):
    mine = tmp_path / "mine"
    keys = set()
    for text in ("0 1 0 1,2", "0 1 0 3,4"):
        mine.write_text(text)
        keys.add(key_of("kimi-linear", 4096, {**OPTIONS, option: f"{word}{mine}"}))
    assert len(keys) == 2


@pytest.mark.parametrize("damage", [b"", b"kimi", b"?" * 99])
def test_a_damaged_trace_is_recorded_again(recorded, tmp_path, damage):
    with kept("kimi-linear", 4096, OPTIONS) as path:
        whole = path.read_bytes()
    (kept_one,) = (tmp_path / "traces").glob("*.parquet")
    kept_one.write_bytes(damage)
    for _ in range(2):
        with kept("kimi-linear", 4096, OPTIONS) as path:
            assert path.read_bytes() == whole
    assert len(recorded) == 2


def test_an_entry_that_cannot_be_read_costs_time_alone(recorded, tmp_path):
    key = key_of("kimi-linear", 4096, OPTIONS)
    (tmp_path / "traces" / f"{key}.0123456789abcdef.parquet").mkdir(parents=True)
    with kept("kimi-linear", 4096, OPTIONS) as path:
        assert path.read_text() == f"kimi-linear 4096 {OPTIONS}"


def test_a_reader_keeps_its_trace_when_it_is_pushed_out(recorded, tmp_path):
    with kept("kimi-linear", 4096, OPTIONS) as path:
        shrink(tmp_path / "traces", 0)
        assert list((tmp_path / "traces").glob("*.parquet")) == []
        assert path.read_text().startswith("kimi-linear")


def test_the_longest_unused_traces_make_room(tmp_path):
    for at, name in enumerate(("old", "middle", "new")):
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(b"x" * 100)
        os.utime(path, (at, at))
    shrink(tmp_path, 250)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["middle", "new"]
    shrink(tmp_path, 250)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_recording_leaves_nothing(recorded, monkeypatch, tmp_path):
    def record(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_cache, "record", record)
    with pytest.raises(KeyboardInterrupt), kept("kimi-linear", 4096, OPTIONS):
        pass
    assert list(tmp_path.rglob("*.parquet")) == []
