"""The demo's grid: every cell has a number or a stated shortfall, and the table says what binds it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from memsim import cli, demo
from memsim.errors import CheckFailed, DoesNotFit


@pytest.fixture
def grid(monkeypatch, result):
    """The demo with stubs for recording and replaying; deepseek-v3 at 10M does not fit. Lists the calls."""
    calls = []

    def record(model, context, out, *, progress, **options):
        progress(1, 2)
        calls.append(("record", model, context, options))
        out.write_text(f"{model} {context}")

    def replay(trace, machine, *, progress, place=(), overflow="refuse"):
        text = trace.read_text()
        calls.append(("replay", text, place, overflow))
        if text == "deepseek-v3 10M" and overflow == "refuse":
            raise DoesNotFit("kv needs 737 GB, hbm has 141 GB: 596 GB too much")
        return dataclasses.replace(result, model=text)

    monkeypatch.setattr(demo, "record", record)
    monkeypatch.setattr(demo, "replay", replay)
    monkeypatch.setattr(
        demo, "info", lambda path: {"kinds": {"kv": {"bytes_read": 4718592, "bytes_written": 0}}}
    )
    return calls


def test_every_trace_is_recorded_once_and_every_cell_replayed(grid, capsys):
    assert cli.run(["demo"]) == 0
    traces = [call[1:3] for call in grid if call[0] == "record" and not call[3]]
    assert len(traces) == len(set(traces)) == 4 * 3
    replays = [call for call in grid if call[0] == "replay"]
    assert len(replays) == 5 * 3 + 1
    assert ("replay", "deepseek-v3 10M", (), "host") in replays
    assert ("replay", "deepseek-v3.2 1M", ("kv=host",), "refuse") in replays


def test_the_table_is_readable_and_states_the_shortfall(grid, capsys):
    assert cli.run(["demo"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert max(map(len, printed.out.splitlines())) <= 80
    flat = " ".join(printed.out.split())
    assert "Ran the kernels of kimi-linear on real tensors at 4K tokens: 4,718,592 B read" in flat
    assert flat.count("mla (hbm)") == 15
    assert "2.00 us *" in flat
    assert "* deepseek-v3 at 10M: kv needs 737 GB, hbm has 141 GB: 596 GB too much." in flat
    assert "Timed with --overflow host." in flat
    assert "'memsim project' gives each time its interval" in flat
    assert "memsim replay v32.parquet --machine h200-host --place kv=host" in flat


def test_json_holds_every_cell(grid, capsys):
    assert cli.run(["demo", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["cells"]) == 15
    (unfit,) = [cell for cell in document["cells"] if not cell["fits"]]
    assert (unfit["label"], unfit["context"]) == ("deepseek-v3", "10M")
    assert unfit["shortfall"].startswith("kv needs 737 GB")
    assert all(cell["result"]["tpot_s"] > 0 for cell in document["cells"])
    assert [proof["model"] for proof in document["kernels_run"]] == ["kimi-linear", "deepseek-v3.2"]


def test_kernels_that_move_other_bytes_than_their_shapes_say_are_a_failure(grid, monkeypatch, capsys):
    monkeypatch.setattr(
        demo, "info", lambda path: {"kinds": {"kv": {"bytes_read": len(path.stem), "bytes_written": 0}}}
    )
    assert cli.run(["demo"]) == CheckFailed.exit_code == 3
    assert "real tensors moved" in capsys.readouterr().err


def test_progress_runs_from_nothing_to_all():
    seen = []
    parts = list(demo._parts(lambda done, total: seen.append(done / total), 3))
    parts[0](0, 5)
    parts[1](1, 2)
    parts[2](7, 7)
    parts[2](0, 0)
    assert seen == [0, 0.5, 1, 2 / 3]
