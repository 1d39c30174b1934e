"""Where two sides swap: found to a fiftieth, with the range that the intervals of both leave, or never."""

from __future__ import annotations

import json

import pytest

from memsim import cli, crossing
from memsim.crossing import crossover
from memsim.errors import DoesNotFit, UsageError
from memsim.projection_point import Point

# A takes 100 us and 1 ns a token, B 400 us and 0.1 ns: equal at 333,333 tokens.
TIMES = {"a": lambda x: 100_000_000 + 1000 * x, "b": lambda x: 400_000_000 + 100 * x}
EQUAL = 300_000_000 / 900


@pytest.fixture
def replays(monkeypatch):
    """Points of TIMES with intervals 10% each way; contexts of `a` beyond `room` do not fit."""
    told = {"room": 1 << 40, "runs": 0}

    def point(cell, ask):
        told["runs"] += 1
        x = cell.context_tokens if told.get("axis") != "batch" else cell.batch * 1000
        if cell.model == "a" and x > told["room"]:
            return Point("a", "h200", x, 1, ask.part, 1, "hbm: 1 GB too many")
        took = int(TIMES[cell.model](x))
        return Point(
            cell.model, "h200", x, 1, ask.part, 1,
            tpot_ps=took, low_ps=int(0.9 * took), high_ps=int(1.1 * took), trust="validated",
        )  # fmt: skip

    def run(cells, ask, folder, workers, progress):
        return [point(cell, ask) for cell in cells]

    monkeypatch.setattr(crossing, "run", run)
    monkeypatch.setattr(crossing, "check", lambda cells, ask: None)
    monkeypatch.setattr(crossing, "time_ps", lambda cell, ask, batch: point(cell, ask).tpot_ps)
    return told


def test_the_swap_is_found_with_its_interval(replays):
    found = crossover("a", "b", "h200", context=("4K", "16M"))
    (swap,) = found.swaps
    assert EQUAL <= swap.x <= 1.02 * EQUAL
    assert swap.faster == "B"
    assert [sample.x for sample in found.samples] == sorted(sample.x for sample in found.samples)
    # A's high meets B's low: 1.1 (1e8 + 1000 x) = 0.9 (4e8 + 100 x), and the other way round
    surely_a = (0.9 * 4e8 - 1.1 * 1e8) / (1100 - 90)
    surely_b = (1.1 * 4e8 - 0.9 * 1e8) / (900 - 110)
    assert surely_a / 2 <= swap.low <= surely_a  # samples are an octave apart
    assert surely_b <= swap.high <= 2 * surely_b


def test_that_they_never_swap_is_an_answer(replays, capsys):
    found = crossover("a", "b", "h200", context=("1M", "16M"))
    assert found.swaps == ()
    assert {sample.faster for sample in found.samples} == {"B"}
    assert cli.run(["crossover", "a", "b", "--machine", "h200", "--context", "1M,16M"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Never from 1M to 16M: b on h200 is faster throughout (A / B 2.28 to 8.12)." in printed


def test_that_they_are_equal_is_an_answer(replays, capsys):
    words = ["crossover", "a", "a", "--machine", "h200", "--context", "1M,16M"]
    assert cli.run(words) == 0
    assert "Equal from 1M to 16M: neither is ever faster." in capsys.readouterr().out
    assert cli.run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["swaps"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machine", "h200,nosuch"], "unknown machine 'nosuch'"),
        (["--machine", "h200", "--context", "4K,8G"], "--context 8589934592: expected a whole number from 1"),
        (["--machine", "h200", "--context", "4K", "--batch", f"1,{10**20}"], f"--batch {10**20}: expected"),
        (["--machine", "h200", "--batch", "٣"], "--batch '٣': expected a whole number from 1 on"),
    ],
)
def test_wrong_words_are_told_before_anything_runs(monkeypatch, capsys, words, message):
    monkeypatch.setattr(crossing, "run", None)
    assert cli.run(["crossover", "kimi-linear", "kimi-linear-all-mla", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_selection_may_concern_one_side_alone(monkeypatch):
    class Reached(Exception): ...

    def run(*_):
        raise Reached

    monkeypatch.setattr(crossing, "run", run)
    with pytest.raises(Reached):
        crossover("kimi-linear", "deepseek-v3.2", "h200", context=("4K", "8K"), selection="dsa_hi")
    with pytest.raises(UsageError, match="--selection dsa_hi: no model here selects rows"):
        crossover("kimi-linear", "kimi-k2", "h200", context=("4K", "8K"), selection="dsa_hi")


def test_a_range_that_ends_too_soon_says_so(replays):
    (swap,) = crossover("a", "b", "h200", context=("320K", "352K")).swaps
    assert (swap.low, swap.high) == (None, None)


def test_what_does_not_fit_is_left_out(replays):
    replays["room"] = 1 << 20
    found = crossover("a", "b", "h200", context=("4K", "16M"))
    assert len(found.swaps) == 1
    assert {sample.x for sample in found.samples if sample.a.refused} == {1 << n for n in range(21, 25)}
    replays["room"] = 1
    with pytest.raises(DoesNotFit, match="no context in the range has both times; hbm: 1 GB too many"):
        crossover("a", "b", "h200", context=("4K", "16M"))


def test_a_batch_may_be_the_range(replays):
    replays["axis"] = "batch"
    found = crossover("a", "b", "h200", context="1M", batch=(1, 4096))
    assert found.axis == "batch"
    assert [swap.x for swap in found.swaps] == [pytest.approx(334, abs=7)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": ("4K", "16M"), "batch": (1, 8)}, "one value of the other"),
        ({"context": "4K"}, "one value of the other"),
        ({"context": ("16M", "4K")}, "--context 16M,4K: expected the lowest and the highest"),
    ],
)
def test_a_range_must_be_one(replays, options, message):
    with pytest.raises(UsageError, match=message):
        crossover("a", "b", "h200", **options)


def test_the_document_holds_both_sides(replays, capsys):
    words = ["crossover", "a", "b", "--machine", "h200,gh200", "--place-b", "kv=host", "--json"]
    assert cli.run(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sides"] == [
        {"model": "a", "machine": "h200", "place": []},
        {"model": "b", "machine": "gh200", "place": ["kv=host"]},
    ]
    (swap,) = document["swaps"]
    assert swap["faster"] == 1
    assert swap["low"] < swap["at"] < swap["high"]
