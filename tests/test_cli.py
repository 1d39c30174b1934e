"""The command line: every wrong word ends in one clear line and the right exit code, data stay on stdout."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import memsim
from memsim import cli, progress, simulate, trace_read
from memsim.errors import DoesNotFit, MemsimError

ROOT = Path(__file__).parent.parent
REPLAY = simulate.replay


@pytest.fixture
def replayed(monkeypatch, result):
    """`simulate.replay` gives the hand-made result; the list holds what it was called with."""
    calls = []

    def replay(trace, machine, **options):
        calls.append((trace, machine, options))
        return result

    monkeypatch.setattr(simulate, "replay", replay)
    return calls


def refused(capsys, arguments: str | list[str]) -> str:
    """The one line on stderr of a command that fails; nothing may stand on stdout."""
    words = arguments.split() if isinstance(arguments, str) else arguments
    code = cli.run(words)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert printed.err.count("\n") == 1, printed.err
    assert "?;" not in printed.err
    return f"{code} {printed.err.removeprefix('Error: ').rstrip()}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("replya x", "2 No such command 'replya'. Did you mean 'replay'?"),
        ("trace recrd", "2 No such command 'recrd'. Did you mean 'record'?"),
        ("zzz", "2 No such command 'zzz'; see 'memsim --help'"),
        ("trace", "2 Missing command; see 'memsim trace --help'"),
        ("replay", "2 Missing argument 'FILE'; see 'memsim replay --help'"),
        ("replay a b", "2 Got unexpected extra argument(s) (b); see 'memsim replay --help'"),
        ("replay a --machin h200", "2 No such option: --machin (Possible options: --machine)"),
        ("replay a --engine quick", "2 Invalid value for '--engine': 'quick' is not one of 'fast'"),
        ("replay a --machine h200-hots", "2 unknown machine 'h200-hots'; did you mean 'h200-host'?"),
        ("replay a --machine ./none.toml", "2 none.toml: no such machine file"),
        ("replay a --explain=-1", "2 Invalid value for '--explain'"),
        ("replay a --quantum 5", "2 '5' is not a size: it has no unit"),
        ("machines show tpu", "2 unknown machine 'tpu'; choose one of: 8xb300, 8xh200, b200, cxl3-pool"),
        (
            "trace record kimi-linear -o x",
            "2 expected tokens of all sequences (--context) or of each (--contexts)",
        ),
        ("trace record kimi-linear --context 1M", "2 Missing option '--output' / '-o'"),
        ("trace record kimi-linear --context 0 -o x", "2 '0' is not a number of tokens"),
        ("trace record kimi-linear --context -5 -o x", "2 '-5' is not a number of tokens"),
        ("trace record kimi-linear --context 1e30 -o x", "2 '1e30' is not a number of tokens"),
        ("trace record kimi-linear --context 1M --batch 0 -o x", "2 batch is 0; expected a whole number"),
        ("trace record kimi-linear --context 1M --steps -1 -o x", "2 steps is -1; expected a whole number"),
        ("trace record kimi-linear --context 1M --batch x -o x", "2 Invalid value for '--batch'"),
        ("trace record kimi-linear --context 1M --device tpu -o x", "'tpu' is not one of 'meta'"),
        ("trace record kimi-linear --context 1M -o none/x", "2 none/x: there is no folder none"),
        (
            "trace record kimi-linear --context 128k -o x",
            "2 '128k' is not a number of tokens: unknown unit 'k';",
        ),
        ("trace record kimi-linear --context 1M --output=", "2 the name of the output is empty; expected"),
        ("replay a --output=", "2 the name of the output is empty; expected"),
        (f"replay a --machine {'m' * 500}", f"2 unknown machine '{'m' * 77}...'; choose one of"),
        (f"replay a --engine={'m' * 500}", f"2 Invalid value for '--engine': '{'m' * 77}...' is not one of"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_2(capsys, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["replay", "trace info", "trace head", "trace check"])
@pytest.mark.parametrize("file", ["none.parquet", "/", "/dev/null"])
def test_a_file_that_is_no_trace_is_named(capsys, command, file):
    line = refused(capsys, [*command.split(), file])
    assert re.match(rf"2 {re.escape(file)}: .+; .+", line), line


def test_a_misspelt_model_gets_the_nearest_name(capsys, tmp_path):
    pytest.importorskip("torch")
    path = str(tmp_path / "x")
    line = refused(capsys, ["trace", "record", "deepseek-v3.1", "--context", "1K", "-o", path])
    assert line.startswith("2 unknown model 'deepseek-v3.1'; did you mean 'deepseek-v3")
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_model_to_show_gets_the_nearest_name(capsys):
    line = refused(capsys, "models show kimi-liner")
    assert line == "2 unknown model 'kimi-liner'; did you mean 'kimi-linear'?"


def test_recording_without_torch_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("memsim.recording.find_spec", lambda name: None)
    line = refused(capsys, ["trace", "record", "kimi-linear", "--context", "1K", "-o", str(tmp_path / "x")])
    assert line.startswith("6 ")
    assert line.endswith("pip install 'memsim[kernels]'")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), "130 interrupted"),
        (DoesNotFit("kv needs 737 GB, hbm has 141 GB"), "5 kv needs 737 GB, hbm has 141 GB"),
        (MemsimError("an engine stopped"), "1 an engine stopped"),
        (ZeroDivisionError("two\nlines"), "1 ZeroDivisionError: two lines (this is a fault of memsim"),
        (MemoryError(), "1 out of memory: an allocation failed; use a smaller trace"),
        (MemoryError("Unable to allocate 16.0 GiB"), "1 out of memory: Unable to allocate 16.0 GiB; use"),
    ],
)
def test_every_failure_has_its_exit_code(capsys, monkeypatch, error, expected):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(simulate, "replay", fail)
    assert expected in refused(capsys, "replay a.parquet")


def interrupted_at(part: int):
    """Stands in for `progress.shown`: Ctrl-C once `part` parts of the work are done."""

    @contextlib.contextmanager
    def shown(label):
        def advance(done, total):
            if done >= part:
                raise KeyboardInterrupt

        yield advance

    return shown


def test_ctrl_c_in_mid_record_leaves_nothing(capsys, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setattr(progress, "shown", interrupted_at(3))
    arguments = ["trace", "record", "kimi-linear", "--context", "1K", "-o", str(tmp_path / "x.parquet")]
    assert refused(capsys, arguments) == "130 interrupted"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_mid_replay_leaves_nothing(capsys, monkeypatch, tmp_path):
    def replay(trace, machine, *, progress, **options):
        progress(1, 2)

    monkeypatch.setattr(simulate, "replay", replay)
    monkeypatch.setattr(progress, "shown", interrupted_at(1))
    assert refused(capsys, ["replay", "a.parquet", "-o", str(tmp_path / "out")]) == "130 interrupted"
    assert list(tmp_path.iterdir()) == []


def test_a_traceback_is_shown_when_asked_for(capsys, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(simulate, "replay", fail)
    monkeypatch.setenv("MEMSIM_TRACEBACK", "1")
    assert cli.run(["replay", "a.parquet"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_options_reach_the_replay(replayed, capsys):
    words = "replay a.parquet --machine h200-host --place kv=host --place index=hbm --overflow host"
    more = "--engine reference --no-bound --run-on mla=gpu --seed 7 --explain 2"
    assert cli.run([*words.split(), *more.split(), "--quantum", "2 KiB"]) == 0
    ((trace, system, options),) = replayed
    assert (str(trace), system.name) == ("a.parquet", "h200-host")
    assert callable(options.pop("progress"))
    assert options == {
        "place": ("kv=host", "index=hbm"),
        "overflow": "host",
        "run_on": ("mla=gpu",),
        "engine": "reference",
        "quantum_bytes": 2048,
        "bound": False,
        "explain": 2,
        "seed": 7,
    }
    printed = capsys.readouterr()
    assert "kimi-linear, 128K tokens" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    ("words", "kernels"),
    [
        ("replay a.parquet", 0),
        ("replay a.parquet --explain", 3),
        ("replay --explain a.parquet", 3),
        ("replay a.parquet --explain --json", 3),
        ("replay a.parquet --explain 5 --json", 5),
        ("replay --explain=1 a.parquet", 1),
    ],
)
def test_explain_takes_a_number_or_none(replayed, words, kernels):
    assert cli.run(words.split()) == 0
    assert replayed[0][2]["explain"] == kernels


def test_the_command_has_the_defaults_of_the_function(replayed, capsys):
    assert cli.run(["replay", "a.parquet"]) == 0
    ((_, system, options),) = replayed
    defaults = {name: it.default for name, it in inspect.signature(REPLAY).parameters.items()}
    del defaults["trace"], defaults["progress"], defaults["overrides"]  # the machine is loaded with them
    assert {**options, "machine": system.name} == {**defaults, "progress": options["progress"]}


def test_json_goes_to_stdout_alone(replayed, capsys):
    assert cli.run(["replay", "a.parquet", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["tpot_s"] == 2e-6
    assert printed.err == ""


def test_output_holds_what_was_printed_and_what_it_rests_on(replayed, capsys, monkeypatch, tmp_path):
    class Opened:
        meta = {"model": "kimi-linear"}

    monkeypatch.setattr(trace_read, "open_trace", lambda path: Opened)
    folder = tmp_path / "Grüße 1"
    assert cli.run(["replay", "a.parquet", "--json", "-o", str(folder)]) == 0
    assert (folder / "result.json").read_text(encoding="utf-8") == capsys.readouterr().out
    assert "kimi-linear, 128K tokens" in (folder / "report.txt").read_text(encoding="utf-8")
    inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    assert inputs["trace"] == {"model": "kimi-linear"}
    assert inputs["machine"]["name"] == "h200"
    assert inputs["options"]["overflow"] == "refuse"


def test_an_output_in_the_way_is_refused_before_the_replay(replayed, capsys, tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    line = refused(capsys, ["replay", "a.parquet", "-o", str(path)])
    assert line == f"2 {path}: is a file; give the name of a folder, new or not"
    assert replayed == []
    assert path.read_text() == "mine"


def test_version_and_help(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"memsim {memsim.__version__}\n"
    for arguments in ([], ["--help"], ["-h"]):
        assert cli.run(arguments) == 0
        printed = capsys.readouterr()
        assert "memsim demo" in printed.out
        assert printed.err == ""


@pytest.mark.parametrize("command", ["replay", "demo", "trace record", "trace head", "machines show"])
def test_every_command_has_help(capsys, command):
    assert cli.run([*command.split(), "--help"]) == 0
    assert f"Usage: memsim {command}" in capsys.readouterr().out


def test_machines_can_be_listed_and_shown(capsys):
    assert cli.run(["machines", "list"]) == 0
    assert re.search(r"^h200-cxl +hbm host cxl", capsys.readouterr().out, re.MULTILINE)
    assert cli.run(["machines", "list", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"h200", "h200-cxl", "8xh200", "gh200", "hbf", "rubin"} <= set(names)
    assert cli.run(["machines", "show", "h200-cxl"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"cxl +pcie, +26\.9 GB/s +cxl-link", shown)
    assert re.search(r"bandwidth +4\.8 TB/s +stated +NVIDIA H200 datasheet", shown)
    assert cli.run(["machines", "show", "h200-cxl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["routes"]["gpu"]["cxl"] == ["pcie", "cxl-link"]


def test_models_can_be_listed_and_shown(capsys):
    assert cli.run(["models", "list", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"kimi-linear", "kimi-linear-all-mla", "deepseek-v3", "deepseek-v3.2"} <= set(names)
    assert cli.run(["models", "list"]) == 0
    assert "deepseek-v3.2" in capsys.readouterr().out
    assert cli.run(["models", "show", "deepseek-v3.2", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    assert all(number["provenance"] and number["source"] for number in numbers)
    assert cli.run(["models", "show", "deepseek-v3.2"]) == 0
    assert re.search(r"top_k +2048", capsys.readouterr().out)


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("memsim", f"{sys.executable} -m memsim")
    settings = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=settings, cwd=ROOT)


def test_a_reader_that_has_seen_enough_is_no_error():
    done = shell("memsim machines show h200-cxl --json | true")  # `true` is gone before memsim prints
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["machines list", "machines show h200 --json", "--help", "--version"])
def test_a_full_stdout_is_one_line(arguments, unbuffered):
    done = shell(f"memsim {arguments} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    words = (
        "Error: stdout cannot be written: No space left on device; send it to a file or a pipe with room\n"
    )
    assert (done.returncode, done.stderr) == (2, words)


@pytest.mark.parametrize(
    ("line", "code", "out"),
    [
        ("memsim --version >&-", 0, ""),
        ("memsim --version 2>&- <&-", 0, f"memsim {memsim.__version__}\n"),
        ("memsim machines list >&- 2>&- <&-", 0, ""),
        ("memsim machines show tpu >&- 2>&-", 2, ""),
        ("memsim machines show tpu 2> /dev/full", 2, ""),
    ],
)
def test_a_closed_stream_is_no_fault(line, code, out):
    done = shell(line, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")


SLEEPER = """
import contextlib, sys, tempfile, time
from memsim import cli, recording
def record(*_, **__):
    with tempfile.TemporaryDirectory(dir=sys.argv[-1]):
        print("ready", flush=True)
        time.sleep(60)
recording.record = record
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_cleans_up(tmp_path, number):
    command = [sys.executable, "-c", SLEEPER, "trace", "record", "m", "--context", "1K", "-o", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout.readline() == "ready\n"
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(number)
    process.send_signal(number)
    _, printed = process.communicate(timeout=30)
    assert (process.returncode, printed) == (128 + number, f"Error: ended by {number.name}\n")
    assert list(tmp_path.iterdir()) == []


def test_nohup_is_respected(monkeypatch):
    handled = {}
    monkeypatch.setattr(signal, "getsignal", {signal.SIGTERM: 0, signal.SIGHUP: signal.SIG_IGN}.get)
    monkeypatch.setattr(signal, "signal", handled.__setitem__)
    cli._end_on_signals()
    assert list(handled) == [signal.SIGTERM]
    with pytest.raises(cli.Ended):
        handled[signal.SIGTERM](15, None)
    handled[signal.SIGTERM](15, None)  # the second that `timeout` sends


def test_a_trace_goes_from_record_to_replay(capsys, tmp_path):
    pytest.importorskip("torch")
    trace = str(tmp_path / "Grüße.parquet")
    assert cli.run(["trace", "record", "kimi-linear", "--context", "1K", "-o", trace, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context_tokens"] == 1024
    assert cli.run(["trace", "info", trace, "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert kinds["kv"]["bytes_read"] == 7 * 1152 * 1024
    assert cli.run(["trace", "check", trace]) == 0
    assert re.search(r"^valid +yes$", capsys.readouterr().out, re.MULTILINE)
    assert cli.run(["trace", "head", trace, "-n", "2"]) == 0
    assert re.match(r"region +id=0 name=.*\nregion +id=1 ", capsys.readouterr().out)
    assert cli.run(["trace", "info", trace]) == 0
    assert re.search(r"^kv +7 +8,257,536 +8,257,536 +0$", capsys.readouterr().out, re.MULTILINE)
    words = ["--machine", "h200-host", "--place", "kv=host", "--no-bound"]
    assert cli.run(["replay", trace, *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bytes_read"]["kv"] == 7 * 1152 * 1024
    assert document["tiers"]["host"]["bytes_moved_read"] >= 7 * 1152 * 1024
    assert document["links"]["pcie"]["bytes_moved_read"] == document["tiers"]["host"]["bytes_moved_read"]


def test_an_ascii_pipe_gets_plain_lines_without_colour(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "h200-host"\nname = "mine"\ntitle = "Grüße"\n', encoding="utf-8")
    done = shell(f"memsim machines show {file}", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("mine: Gr\\xfc\\xdfe\n")
    assert "provenance" in done.stdout
