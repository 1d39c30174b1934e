"""`memsim validate`: thin commands, one-line errors, the right exit codes, progress on stderr."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from test_validation_figures import measured, write

from memsim import cli, progress
from validation import figures, here, here_profile, public
from validation.measure import __main__ as script

ROOT = Path(__file__).parent.parent


def ran(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.run(["validate", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("tabels", 2, "No such command 'tabels'. Did you mean 'tables'?"),
        ("show", 2, "Missing argument 'FAMILY|TABLE'; see 'memsim validate show --help'"),
        ("show kda-vlm", 2, "unknown family or table 'kda-vlm'; did you mean 'kda-vllm'?"),
        ("show kda-vllm --where hads=1", 2, "kda-vllm has no column 'hads'; did you mean 'heads'?"),
        ("show kda-vllm --where heads", 2, "'heads' is no condition; expected COLUMN=VALUE, such as batch=1"),
        ("show kda-vllm -n -1", 2, "Invalid value for '--rows' / '-n'"),
        ("show kda-vllm --measured none", 2, "none: no such folder; name one that 'validate measure -o' has"),
        ("figures --measured none", 2, "none: no such folder; name one that 'validate measure -o' has"),
        ("figures -o", 2, "Option '-o' requires an argument"),
        ("repeat --machine nvidia-h20", 2, "unknown machine 'nvidia-h20'; did you mean 'nvidia-h200'?"),
        ("spread --machine .", 2, ".: holds no CSV files; name a folder that 'validate measure -o' has"),
        ("sanity --machine none", 2, "unknown machine 'none'; choose one of: nvidia-h200"),
        ("measure", 2, "missing: the folder that the CSV files go to; see 'memsim validate measure --help'"),
        ("measure -o x --suite macro", 2, "'macro' is not one of 'micro'"),
        ("measure -o x --device tpu", 2, "unknown device 'tpu'; choose one of: cuda, cuda:N, cpu"),
        ("measure -o x --device cuda:x", 2, "unknown device 'cuda:x'; choose one of: cuda, cuda:N, cpu"),
        ("here", 2, "Missing option '--output' / '-o'"),
        ("here -o none/x.toml --name a/b", 2, "'a/b' is no name of a machine; expected letters, digits"),
        ("here -o x.toml --folder none", 2, "none: no such folder; name one on the disk to measure"),
    ],
)
def test_a_wrong_word_ends_in_one_line(capsys, monkeypatch, tmp_path, words, code, line):
    monkeypatch.chdir(tmp_path)
    found, out, err = ran(capsys, *words.split())
    assert (found, out) == (code, "")
    assert line in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_tables_lists_every_public_table_under_its_machine(capsys):
    code, out, err = ran(capsys, "tables")
    assert (code, err) == (0, "")
    assert all(f"  {table.name} " in out for table in public.tables())
    assert out.count("NVIDIA H200") == 1
    assert "[m, k] x [k, n]" in " ".join(out.split())


def test_tables_as_json_say_kind_source_licence_and_whether_projections_are_in(capsys):
    code, out, _ = ran(capsys, "tables", "--json")
    listed = {table["name"]: table for table in json.loads(out)}
    assert code == 0
    assert listed["mla-module-vllm"]["projections"] is True
    assert listed["mla-module-vllm"]["flushed"] is False
    assert listed["mla-sglang"]["context_rule"] == "2^k - 1"
    assert listed["mess-spr-ddr5"]["licence"] == "BSD-3-Clause"
    assert listed["nccl"]["path"] == "aiconfigurator-h200/comm/nccl/2.29.2/nccl_perf.parquet"


def test_show_picks_rows_of_a_public_table_and_notes_its_outliers(capsys):
    words = ("show", "mla-sglang", "--where", "heads=128", "--where", "context_tokens=131071")
    code, out, err = ran(capsys, *words, "--where", "batch=1")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == [
        *("kv_dtype", "heads", "tp", "batch", "context_tokens"),
        *("latency_ps", "bytes_read", "bytes_written", "gbps", "outlier"),
    ]
    shown = ["bfloat16", "128", "1", "1", "131,071", "84.4", "us", "150,994,944", "0", "1789", "-"]
    assert lines[1].split() == shown
    assert lines[2].split()[-1] == "(1)"
    assert lines[3].startswith("(1) not an 8-bit kernel")
    assert lines[4] == "2 of 2 rows; --json prints every column"


def test_show_reads_tokens_as_people_write_them_and_cuts_long_tables(capsys):
    code, out, _ = ran(capsys, "show", "topk-csa-sglang", "--where", "context_tokens=128K", "-n", "3")
    assert code == 0
    assert out.splitlines()[-1] == "3 of 180 rows; --json prints every column"
    code, out, _ = ran(
        capsys, "show", "topk-csa-sglang", "--where", "context_tokens=131072", "-n", "0", "--json"
    )
    rows = json.loads(out)
    assert len(rows) == 180
    assert {row["context_tokens"] for row in rows} == {131072}


def test_show_prints_measured_rows_with_their_machine(capsys, tmp_path):
    write(tmp_path / "h200", "toy", [measured(2500, read=10**7, blocks=132), measured(900, blocks=1)])
    code, out, _ = ran(capsys, "show", "toy", "--measured", str(tmp_path))
    assert code == 0
    shown = ["h200", "132", "held_out", "10,000,000", "0", "2.50", "us", "0.01", "4000"]
    assert out.splitlines()[1].split() == shown
    code, out, _ = ran(capsys, "show", "toy", "--measured", str(tmp_path), "--where", "blocks=1", "--json")
    (row,) = json.loads(out)
    assert (row["machine"], row["blocks"], row["median_ns"], row["noisy"]) == ("h200", 1, 900, 0)
    code, _, err = ran(capsys, "show", "tyo", "--measured", str(tmp_path))
    assert (code, err) == (2, "Error: unknown family or table 'tyo'; did you mean 'toy'?\n")


def test_repeat_prints_a_line_for_each_family_that_both_measured(capsys, tmp_path):
    for name, factor in (("one", 1.0), ("two", 1.05)):
        rows = [measured(100 * factor, blocks=1) | {"run": name}, measured(200, blocks=2) | {"run": name}]
        write(tmp_path / name, "toy", rows)
    write(tmp_path / "one", "alone", [measured(5, blocks=1)])
    folders = ("--machine", str(tmp_path / "one"), "--against", str(tmp_path / "two"))
    code, out, _ = ran(capsys, "repeat", *folders)
    lines = out.splitlines()
    assert code == 0
    assert lines[1].split() == ["toy", "2", "2.4%", "4.5%", "-2.4%", "1", "-4.8%", "blocks", "1"]
    assert lines[2].endswith("1 of 2 points differ by more than 3 %")
    (found,) = json.loads(ran(capsys, "repeat", *folders, "--json")[1])
    assert (found["family"], found["points"], found["over"]) == ("toy", 2, 1)


def test_spread_counts_steady_points_of_gpu_families_apart(capsys, tmp_path):
    spreads = ((1, 0.01), (2, 0.03), (4, 0.04))
    rows = [measured(100, blocks=blocks, spread=spread) for blocks, spread in spreads]
    failed = measured(0, blocks=8) | {"error": "out of memory", "median_ns": ""}
    write(tmp_path, "toy", [*rows, failed])
    write(tmp_path, "cpu.stream", [measured(9, op="read", threads=1, spread=0.2)])
    code, out, _ = ran(capsys, "spread", "--machine", str(tmp_path))
    lines = out.splitlines()
    assert code == 0
    assert lines[1].split() == ["cpu.stream", "1", "0", "0%", "-", "20.0%", "read,", "threads", "1"]
    assert lines[2].split() == ["toy", "3", "2", "67%", "1", "4.0%", "blocks", "4"]
    assert lines[3] == "GPU: 2 of 3 points are steady, 66.7%, wanted 95%"
    assert lines[4] == "CPU and storage: 0 of 1 points are steady, 0.0%"
    assert json.loads(ran(capsys, "spread", "--machine", str(tmp_path), "--json")[1])[1]["steady"] == 2


def test_sanity_explains_what_is_not_close(capsys):
    code, out, _ = ran(capsys, "sanity")
    assert code == 0
    lines = [line for line in out.splitlines()[1:] if line.split()[0] in ("kda", "gdn", "stream.read")]
    assert len(lines) == 11
    for line in lines:
        assert ("(" in line) == line.startswith("kda")
    assert "(1) " in out
    assert "gpu-benches: GH200" in out
    found = json.loads(ran(capsys, "sanity", "--json")[1])
    assert all(line["close"] or line["why"] for line in found)


def test_figures_says_how_many_it_drew_and_where(capsys, monkeypatch, tmp_path):
    def draw_all(out, measured, progress):
        progress(0, 1)
        assert measured is None
        return [out / "h200" / "a.svg", out / "h200" / "a.png"]

    monkeypatch.setattr(figures, "draw_all", draw_all)
    code, out, _ = ran(capsys, "figures", "-o", str(tmp_path))
    assert (code, out) == (0, f"1 figures, as SVG and PNG, in {tmp_path / 'h200'}\n")


def test_figures_without_matplotlib_say_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = ran(capsys, "figures", "-o", str(tmp_path / "out"))
    assert (code, out) == (6, "")
    assert err == (
        "Error: figures are drawn by matplotlib, which is missing: pip install 'memsim[figures]'\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def measuring(monkeypatch):
    """The harness is not run: the words that it was given, and the exit code that it shall end with."""
    calls = []

    def main(words):
        calls.append(words)
        print("stream.read bytes=1: 3 ns")
        return 3 if "--budget" in words and "1.0" in words else 0

    monkeypatch.setattr(script, "main", main)
    return calls


def test_measure_hands_its_words_to_the_harness_whose_lines_are_progress(capsys, measuring, tmp_path):
    pytest.importorskip("torch")
    only = ("--only", "stream", "--only", "cpu.chase")
    words = ("--smoke", *only, "--since", "20261201")
    code, out, err = ran(capsys, "measure", "--device", "cpu", "-o", str(tmp_path), *words)
    assert (code, out) == (0, "")
    assert err == "stream.read bytes=1: 3 ns\n"
    assert measuring == [
        [
            "--suite",
            "micro",
            "--device",
            "cpu",
            "--budget",
            "900.0",
            *only,
            "--smoke",
            "--since",
            "20261201",
            "--output",
            str(tmp_path),
        ]
    ]


def test_measure_ends_with_the_harness_code(capsys, measuring, tmp_path):
    pytest.importorskip("torch")
    assert ran(capsys, "measure", "--device", "cpu", "-o", str(tmp_path), "--budget", "1")[0] == 3


def test_measure_lists_points_on_stdout_without_a_device(capsys, measuring, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = ran(capsys, "measure", "--list", "--suite", "all")
    assert (code, out, err) == (0, "stream.read bytes=1: 3 ns\n", "")
    assert measuring == [["--suite", "all", "--device", "cuda", "--budget", "900.0", "--list"]]


def test_the_harness_understands_what_measure_says(capsys):
    code, out, _ = ran(capsys, "measure", "--list", "--suite", "micro", "--only", "cpu.chase", "--smoke")
    assert code == 0
    assert "cpu.chase" in out
    assert "total" in out


def test_measure_without_a_gpu_or_torch_ends_with_code_6(capsys, measuring, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = ran(capsys, "measure", "-o", str(tmp_path))
    assert (code, out) == (6, "")
    assert err.startswith("Error: torch finds 0 CUDA devices, cuda is not one of them; run it on a machine")
    monkeypatch.setattr("memsim.recording.find_spec", lambda name: None)
    code, _, err = ran(capsys, "measure", "-o", str(tmp_path))
    assert code == 6
    assert "torch" in err
    assert "pip install 'memsim[kernels]'" in err
    assert measuring == []


@pytest.fixture
def computer(monkeypatch):
    """A computer that is measured at once: two numbers, a machine file of one line."""
    numbers = {
        "memory.latency": here_profile.Number(91.5, "ns", "a chase"),
        "memory.capacity": here_profile.Number(2**34, "B", "the kernel", "stated"),
    }

    def measure(folder, say):
        say(f"memory.latency of {folder}")
        return numbers

    monkeypatch.setattr(here, "measure", measure)
    monkeypatch.setattr(here_profile, "profile_text", lambda numbers, name: f'name = "{name}"\n')


def test_here_writes_a_machine_file_and_prints_the_numbers(capsys, computer, tmp_path):
    path = tmp_path / "mine.toml"
    code, out, err = ran(capsys, "here", "-o", str(path), "--name", "my-box", "--folder", str(tmp_path))
    assert code == 0
    assert err == f"memory.latency of {tmp_path}\n"
    assert "memory.latency" in out
    assert "91.5 ns" in out
    assert f"written: {path}" in out.replace("\n", "")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == {"name": "my-box"}
    assert list(tmp_path.iterdir()) == [path]


def test_here_as_json_prints_numbers_alone(capsys, computer, tmp_path):
    code, out, _ = ran(capsys, "here", "-o", str(tmp_path / "mine.toml"), "--json")
    assert code == 0
    assert json.loads(out)["memory.latency"] == {
        "value": 91.5,
        "unit": "ns",
        "source": "a chase",
        "provenance": "measured",
    }


def test_here_refuses_a_bad_output_before_it_measures(capsys, computer, tmp_path):
    code, _, err = ran(capsys, "here", "-o", str(tmp_path))
    assert (code, err) == (2, f"Error: {tmp_path}: is a folder; give the name of a file\n")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    code, _, err = ran(capsys, "here", "-o", str(tmp_path / "file" / "x.toml"))
    assert code == 2
    assert "is a file; give the name of a folder" in err


def test_the_commands_start_without_anything_heavy():
    code = "import sys, memsim.cli_validate; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    heavy = {"torch", "numba", "numpy", "pyarrow", "matplotlib", "rich", "validation"}
    assert loaded & heavy == set()


def test_progress_of_figures_goes_to_stderr(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(figures, "draw_all", lambda out, measured, progress: progress(1, 2) or [])
    code, out, err = ran(capsys, "figures", "-o", str(tmp_path))
    assert code == 0
    assert "drawing: 50% after 0 s" in err
    assert "drawing" not in out
