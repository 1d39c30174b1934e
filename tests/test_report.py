"""What a result looks like to people and to programs, and how `-o` writes it."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from memsim import output, progress, report, report_json
from memsim.errors import OutputError
from memsim.profile import load_machine
from memsim.route import build_system

DOCUMENTED = Path(__file__).parent.parent / "docs" / "result.md"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_stays_inside_its_width_and_cuts_nothing_off(result, width):
    wide = dataclasses.replace(
        result.families[0],
        name="dsa-attention",
        kernels=61_000,
        time_ps=1_230_000_000,
        naive_ps=1_230_000,
        naive_place="cxl-link",
        bound="cxl-link bandwidth",
    )
    text = report.text(dataclasses.replace(result, families=(wide,)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    flat = " ".join(text.split())
    assert all(cell in flat for cell in ("dsa-attention", "61,000", "1.23 us cxl-link", "1000.00"))
    assert re.search(r"\bbandwidth\b", text), "a word is broken over two lines"


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_gets_escape_sequences(result, monkeypatch, terminal):
    stdout = _Terminal() if terminal else io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "stdout", stdout)
    report.show(report.render(result))
    assert ("\x1b[" in stdout.getvalue()) is terminal


def test_the_table_says_what_a_step_costs_and_why(result):
    text = report.text(result, 100)
    assert "kimi-linear, 128K tokens, batch 1, on h200-host (fast engine)" in text
    assert "step 2.00 us, mean of 2 (1.50 us to 2.50 us), 500,000 tokens/s a user" in text
    assert "no interval (uncalibrated)" in text
    assert re.search(r"mla +4 +2\.50 us +62% +hbm \(71%\) +2\.00 us hbm +1\.25", text)
    assert re.search(r"kda +2 +1\.00 us +25% +not asked", text)
    assert "hbm 70.5 GB of 141 GB (50%); host 0 B of 1.00 TB (0%)" in text
    assert "tier.hbm.interleave, link.pcie.tags" in text


def test_the_table_adds_up_the_ledger(result):
    flat = " ".join(report.text(result, 100).split())
    terms = "issued 7,510,000 = cache hits 500,000 + stored 40,000 + moved by tiers 7,012,064"
    assert f"{terms} - written back 30,000 - rounding 12,064 bytes" in flat
    assert 7_510_000 == 500_000 + 40_000 + 7_012_064 - 30_000 - 12_064
    assert "of the bytes stored 10,000 stay; the rest is written back" in flat


def test_achieved_bandwidth_is_bytes_over_time_and_the_fuller_direction_of_a_link(result):
    document = report_json.document(result)
    assert document["tiers"]["hbm"]["achieved_bytes_per_s"] == pytest.approx(7_000_064 / 4e-6)
    assert document["tiers"]["hbm"]["peak_share"] == pytest.approx(7_000_064 / 4e-6 / 4.8e12)
    assert document["links"]["pcie"]["achieved_bytes_per_s"] == pytest.approx(12_000 / 4e-6)
    assert document["links"]["pcie"]["peak_share"] == pytest.approx(12_000 / 4e-6 / 63e9)


def test_the_json_document_holds_every_figure_in_si_units(result):
    document = json.loads(report_json.text(result))
    assert document["schema_version"] == 1
    assert document["tpot_s"] == 2e-6
    assert document["tokens_per_s_per_user"] == 500_000
    assert document["step_s"] == [1.5e-6, 2.5e-6]
    assert document["bytes_read"] == {"kv": 6_000_000, "state": 10_000}
    assert document["bytes_written"] == {"state": 1_000_000}
    assert document["bytes_issued"] == {"kv": 6_500_000, "state": 1_010_000}
    hbm = document["tiers"]["hbm"]
    assert (hbm["bytes_moved_read"], hbm["bytes_moved_written"]) == (6_000_064, 1_000_000)
    assert (hbm["capacity_used"], hbm["busy_s"], hbm["waiting_s"]) == (70_500_000_000, 1.5e-6, 2.5e-7)
    mla = document["kernels"]["mla"]
    assert (mla["time_s"], mla["bound"], mla["naive_s"]) == (2.5e-6, "hbm", 2e-6)
    assert document["provenance"] == "assumed"
    assert document["assumed"] == ["tier.hbm.interleave", "link.pcie.tags"]
    assert document["interval"] == "no interval (uncalibrated)"


def test_every_key_of_the_document_is_documented(result):
    document = report_json.document(result)
    nested = (document["tiers"]["hbm"], document["links"]["pcie"], document["kernels"]["mla"])
    keys = {*document, *(key for part in nested for key in part)}
    manual = DOCUMENTED.read_text(encoding="utf-8")
    assert {key for key in keys if f"`{key}`" not in manual} == set()


def test_a_replay_of_nothing_has_no_nan(result):
    idle = dataclasses.replace(result.tiers[0], moved_read_bytes=0, moved_write_bytes=0, peak_mbps=0)
    empty = dataclasses.replace(result, step_ps=(0, 0), families=(), tiers=(idle,), links=())
    document = json.loads(report_json.text(empty))
    assert document["tokens_per_s_per_user"] is None
    assert document["tiers"]["hbm"]["peak_share"] is None
    assert "step 0 ps" in report.text(empty)


def test_a_nan_is_never_written(result):
    with pytest.raises(ValueError, match="not JSON compliant"):
        report_json.text(
            dataclasses.replace(
                result, families=(dataclasses.replace(result.families[0], bound_share=float("nan")),)
            )
        )


def test_inputs_hold_the_machine_with_its_sources(result):
    system = build_system(load_machine("h200-host"))
    document = report_json.inputs(system, {"place": ("kv=host",), "overflow": "refuse"}, {"model": "m"})
    assert document["machine"]["routes"]["gpu"] == {"hbm": [], "host": ["pcie"]}
    assert document["options"]["place"] == ["kv=host"]
    assert {
        "path": "tier.hbm.bandwidth",
        "value": "4.8 TB/s",
        "provenance": "stated",
        "source": "NVIDIA H200 datasheet",
    } in document["machine"]["numbers"]


def test_output_makes_its_folder_and_leaves_nothing_else(tmp_path):
    folder = tmp_path / "new" / "mit Leerzeichen und ü"
    output.write_files(folder, {"a.json": "{}\n", "b.txt": "ä\n"})
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.txt"]
    assert (folder / "b.txt").read_text(encoding="utf-8") == "ä\n"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_output_replaces_its_files_and_keeps_others(tmp_path):
    (tmp_path / "a.json").write_text("old")
    (tmp_path / "mine").write_text("mine")
    output.write_files(tmp_path, {"a.json": "new"})
    assert ((tmp_path / "a.json").read_text(), (tmp_path / "mine").read_text()) == ("new", "mine")


def test_output_that_fails_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.json").write_text("old")

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputError, match=r"out: cannot be written: No space left on device; choose"):
        output.write_files(folder, {"a.json": "new"})
    assert (folder / "a.json").read_text() == "old"
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a.json"]


def test_output_is_staged_inside_a_folder_that_exists(tmp_path, monkeypatch):
    """It may be a mount point, or the only place where the user may write."""
    moved = []

    def replace(source, target):
        assert source.parent.parent == target.parent == tmp_path
        moved.append(target.name)
        source.rename(target)

    monkeypatch.setattr(os, "replace", replace)
    output.write_files(tmp_path, {"a.json": "new"})
    assert moved == ["a.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_an_output_without_a_name_is_refused():
    assert output.named(".") == Path(".")
    with pytest.raises(OutputError, match="the name of the output is empty; expected a path"):
        output.named("")


def test_output_holds_file_names_that_are_no_text(tmp_path):
    output.write_files(tmp_path / "out", {"a.json": '"b\udcff.parquet"'})
    assert (tmp_path / "out" / "a.json").read_text(encoding="utf-8") == '"b\\udcff.parquet"'


def test_output_refuses_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file: is a file; give the name of a folder"):
        output.check_writable(tmp_path / "file")
    with pytest.raises(OutputError, match="file is a file; give a path of folders"):
        output.check_writable(tmp_path / "file" / "below")
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OutputError, match=r"a\.json: is a folder; it must make way"):
        output.write_files(tmp_path, {"a.json": ""})


def test_output_refuses_a_place_that_takes_no_folders_before_anything_is_written(tmp_path, monkeypatch):
    """As /proc does, whatever its rights say."""

    def refused(*_, **__):
        raise FileNotFoundError(2, "No such thing")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(OutputError, match=r"new: cannot be written: No such thing; choose another folder$"):
        output.check_writable(tmp_path / "new")


def test_the_probe_of_a_folder_leaves_nothing(tmp_path):
    output.check_writable(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_output_refuses_a_folder_without_the_right_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match=r"new: no right to write in .*; choose another folder"):
        output.check_writable(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("elapsed_s", "shown"), [(1.9, ""), (2.0, "work: 25% after 2 s\n")])
def test_progress_speaks_after_two_seconds_only(monkeypatch, elapsed_s, shown):
    times_s = iter([100.0, 100.0 + elapsed_s])
    stderr = io.StringIO()
    monkeypatch.setattr(progress, "monotonic", lambda: next(times_s))
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.shown("work") as advance:
        advance(1, 4)
    assert stderr.getvalue() == shown


def test_progress_is_a_line_every_five_seconds(monkeypatch):
    times_s = iter([0.0, 3.0, 4.0, 7.9, 8.0])
    stderr = io.StringIO()
    monkeypatch.setattr(progress, "monotonic", lambda: next(times_s))
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.shown("work") as advance:
        for done in range(1, 5):
            advance(done, 4)
    assert stderr.getvalue() == "work: 25% after 3 s\nwork: 100% after 8 s\n"


@pytest.mark.parametrize(("elapsed_s", "drawn"), [(1.0, False), (3.0, True)])
def test_progress_draws_a_bar_on_a_terminal(monkeypatch, elapsed_s, drawn):
    times_s = iter([0.0, elapsed_s])
    stderr = _Terminal()
    monkeypatch.setattr(progress, "monotonic", lambda: next(times_s))
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.shown("work") as advance:
        advance(1, 4)
    assert ("work" in stderr.getvalue()) is drawn


def test_bytes_are_said_to_be_unique_in_each_kernel(result):
    """Summed over kernels, a row that two of them read counts twice."""
    (head,) = [line for line in report.text(result, 100).splitlines() if "issued by blocks" in line]
    assert head.split("  ")[0] == "bytes, unique in each kernel"
