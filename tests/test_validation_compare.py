"""`validate compare`: runs of one's own against projections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memsim import cli
from memsim.errors import UsageError
from memsim.projection_point import Point
from validation import compare

HEAD = "model,machine,parallel,context,batch,tpot_ms\n"


def runs(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "runs.csv"
    path.write_text(head + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def projected(monkeypatch: pytest.MonkeyPatch) -> list:
    """What was asked for; every point takes 1 ms a sequence, 0.5 to 2 ms, and 100 sequences do not fit."""
    asked = []

    def run(cells, ask, folder, workers, progress):
        asked.extend((cell, ask.part, ask.parallel) for cell in cells)
        if progress:
            progress(len(cells), len(cells))
        return [
            Point(c.model, c.machine, c.context_tokens, c.batch, ask.part, c.batch, refused="too much")
            if c.batch == 100
            else Point(
                *(c.model, c.machine, c.context_tokens, c.batch, ask.part, c.batch),
                tpot_ps=c.batch * 10**9,
                low_ps=c.batch * 10**9 // 2,
                high_ps=c.batch * 2 * 10**9,
                trust="validated",
            )
            for c in cells
        ]

    monkeypatch.setattr(compare, "run", run)
    return asked


def test_each_run_is_held_against_its_projection(tmp_path: Path, projected: list) -> None:
    path = runs(
        tmp_path,
        "kimi-linear,h200,,128K,1,1.25",
        "kimi-linear,h200,,131072,1,0.4",
        "kimi-linear,h200,,128K,100,7",
    )
    inside, outside, refused = compare.compared(path)
    assert len(projected) == 2  # the first two rows ask for the same
    assert (inside.error, inside.inside) == (pytest.approx(-0.2), True)
    assert (outside.error, outside.inside) == (pytest.approx(1.5), False)
    assert (refused.error, refused.point.refused) == (None, "too much")
    text = compare.text([inside, outside, refused])
    assert "-20.0%" in text
    assert "mean error 85.0%; 1 of 2 lie in their interval" in text
    assert "too much" in text


def test_runs_on_several_gpus_are_asked_for_as_such(tmp_path: Path, projected: list) -> None:
    path = runs(tmp_path, "kimi-linear,8xh200,tp=8,1M,8,8", "kimi-linear,8xh200,,1M,8,8")
    seen = []
    assert len(compare.compared(path, progress=lambda done, total: seen.append((done, total)))) == 2
    assert [parallel for _, _, parallel in projected] == ["tp=8", None]
    assert seen == [(1, 2), (2, 2)]


def test_the_command_prints_json_and_takes_the_part(tmp_path: Path, projected: list, capsys) -> None:
    path = runs(tmp_path, "kimi-linear,h200,,1M,2,2")
    assert cli.run(["validate", "compare", str(path), "--part", "attention", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["measured_ps"], found["predicted_ps"], found["error"]) == (2 * 10**9, 2 * 10**9, 0.0)
    assert projected[0][1] == "attention"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("kimi-linear,h200,,12Q,1,1", "row 1: context: '12Q'"),
        ("kimi-linear,h200,,1M,0,1", "row 1: batch is '0'; expected a whole number of 1 at least"),
        ("kimi-linear,h200,,1M,٣,1", "row 1: batch is '٣'"),
        ("kimi-linear,h200,tp=8,1M,1,1", "row 1: the trace is of one of 8 GPUs that work together"),
        (
            "kimi-linear,8xh200,dp=8,1M,1,1",
            "row 1: --parallel tp=1,ep=1,dp=8,dcp=1: 1 sequences for 8 groups",
        ),
        ("kimi-linear,8xh200,tp=3,1M,1,1", "row 1: --parallel tp=3,ep=1,dp=1,dcp=1 with 'kimi-linear'"),
        ("kimi-linear,h200,,1M,5000,1", "row 1: --batch 5000: expected a whole number from 1 to 4,096"),
        ("kimi-linear,h200,,1M,1,fast", "row 1: tpot_ms is 'fast'; expected milliseconds above 0"),
        ("kimi-linear,h200,,1M,1,1e300", "row 1: tpot_ms is '1e300'; expected milliseconds above 0"),
        ("kimi-linear,h200,,1M,1,1e-300", "row 1: tpot_ms is '1e-300'"),
        ("kimi-linear,h200,,1M,1,nan", "row 1: tpot_ms is 'nan'"),
        ("kimi-linear,h200,,1M,1,-3", "row 1: tpot_ms is '-3'"),
        ("kimi-linear,h200,pp=8,1M,1,1", "row 1: --parallel pp=8"),
        ("kimi-lineal,h200,,1M,1,1", "row 1: unknown model 'kimi-lineal'"),
        ("kimi-linear,h20,,1M,1,1", "row 1: "),
    ],
)
def test_a_bad_row_is_one_line_that_names_it(tmp_path: Path, row: str, words: str) -> None:
    path = runs(tmp_path, row)
    with pytest.raises(UsageError) as caught:
        compare.compared(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("model,machine\n", "no column 'parallel'"), (HEAD, "no rows"), (None, "cannot be read")],
)
def test_a_file_without_runs_is_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "none.csv" if text is None else runs(tmp_path, head=text)
    with pytest.raises(UsageError, match=words):
        compare.compared(path)


def test_placement_and_formats_are_those_of_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def run(cells, ask, *_):
        asked.append((ask.place, ask.kv_dtype, ask.weights_dtype, ask.parallel))
        return [
            Point(c.model, c.machine, c.context_tokens, c.batch, ask.part, c.batch, refused="no")
            for c in cells
        ]

    monkeypatch.setattr(compare, "run", run)
    path = runs(tmp_path, "kimi-linear,h200-host,,128K,1,5", "kimi-linear,8xh200,tp=8,128K,1,9")
    words = ["--place", "kv=host", "--kv-dtype", "bf16", "--weights-dtype", "fp8"]
    assert cli.run(["validate", "compare", str(path), *words]) == 0
    capsys.readouterr()
    assert asked == [(("kv=host",), "bf16", "fp8", None), (("kv=host",), "bf16", "fp8", "tp=8")]
    assert cli.run(["validate", "compare", str(path), "--kv-dtype", "fp7"]) == 2
    assert "row 1: " in capsys.readouterr().err
