"""`memsim models` and the options of `trace record` that change a model."""

from __future__ import annotations

import json
import re

import pytest

from memsim import cli
from memsim.trace_read import open_trace
from workloads.models import checks, model_names


def shown(capsys, *arguments: str) -> str:
    assert cli.run(["models", *arguments]) == 0
    return capsys.readouterr().out


def test_models_are_listed(capsys):
    assert [row["name"] for row in json.loads(shown(capsys, "list", "--json"))] == model_names()
    assert re.search(r"^kimi-k3 +Kimi K3 .*69 KDA \+ 24 MLA", shown(capsys, "list"), re.MULTILINE)


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_shown(capsys, name):
    assert shown(capsys, "show", name).startswith(f"{name}: ")


def test_a_sheet_says_layers_bytes_shares_parameters_and_sources(capsys):
    sheet = shown(capsys, "show", "glm-5.2")
    assert re.search(r"dsa +21 +dsa +788 B +0 B +0-2, 6, 10, 14, \.\.\., 74", sheet)
    assert re.search(r"dsa-shared +57 +dsa +656 B +0 B +3-5, 7-9", sheet)
    assert "index of a layer" in re.sub(r"\s+", " ", sheet)
    assert re.search(r"at 128K +at 1M +at 10M", sheet)
    assert re.search(r"held in caches +7\.07 GB +56\.6 GB +566 GB", sheet)
    assert re.search(r"read for a token +468 MB +3\.01 GB +29\.2 GB", sheet)
    assert re.search(r"only gathered +95% +95% +95%", sheet)
    assert "53,940 B held, 2,772 B scanned at every step" in sheet
    assert re.search(r"of a token +40\.30 x 10\^9 +40\.00 x 10\^9 +\+0\.7%", sheet)
    assert "stated: configuration of zai-org/GLM-5.2" in sheet
    assert re.search(r"layer\.dsa\.top_k +2048", sheet)


def test_a_sheet_of_changed_layers_and_other_contexts(capsys):
    words = ["show", "kimi-linear", "--replace", "kda=mla", "--kv-dtype", "fp8", "--context", "64K", "--json"]
    found = json.loads(shown(capsys, *words))
    assert found["name"] == "kimi-linear --replace kda=mla --kv-dtype fp8"
    assert [at["context_tokens"] for at in found["contexts"]] == [65_536]
    assert found["contexts"][0]["read_bytes"] == 27 * 576 * 65_536
    assert found["parameters"]["published_total"] is None
    assert all(row["provenance"] and row["source"] for row in found["numbers"])


def test_the_check_counts_its_figures_and_fails_with_3(capsys, monkeypatch):
    assert re.fullmatch(r"(\d+) of \1 figures are met\n", shown(capsys, "check"))
    assert all(check["passed"] for check in json.loads(shown(capsys, "check", "--json")))
    monkeypatch.setattr(checks, "H200_BYTES_PER_S", checks.H200_BYTES_PER_S // 2)
    assert cli.run(["models", "check"]) == 3
    printed = capsys.readouterr()
    assert "deepseek-v3: floor 1M" in printed.out
    assert re.fullmatch(r"Error: 58 of \d+ figures of the models are off\n", printed.err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "kimi-4"], "unknown model 'kimi-4'"),
        (["show", "kimi-linear", "--replace", "kda=gqa"], "--replace kda=gqa: no layers 'gqa'"),
        (["show", "kimi-linear", "--context", "0"], "'0' is not a number of tokens"),
        (["show", "./none.toml"], "none.toml: cannot be read"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert cli.run(["models", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_changed_model_is_recorded(tmp_path, capsys):
    trace = tmp_path / "t.parquet"
    words = ["--context", "4K", "--ratio", "kda:mla=7:1", "-o", str(trace)]
    assert cli.run(["trace", "record", "kimi-linear", *words]) == 0
    meta = open_trace(trace).meta
    assert meta["model"] == "kimi-linear --ratio kda:mla=7:1"
    assert [r.layer for r in open_trace(trace).regions if r.name.endswith(".kv")] == [7, 15, 23]


def test_a_file_of_ones_own_is_recorded(tmp_path, capsys):
    model = tmp_path / "mine.toml"
    model.write_text(
        'title = "Mine"\nmax_context = 1024\nstack = "2 mla"\nsource = "me"\n'
        'sources = { me = "assumed: made up" }\ncache = { kv = ["bf16"] }\n'
        "layer.mla = { heads = 8, nope = 128, value = 128 }\n",
        encoding="utf-8",
    )
    words = ["trace", "record", str(model), "--context", "512", "-o", str(tmp_path / "t.parquet"), "--json"]
    assert cli.run(words) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "mine"


def test_show_says_what_one_gpu_holds_of_a_batch(capsys):
    words = ["--context", "1M", "--batch", "8", "--parallel", "tp=8,ep=8,dcp=8", "--json"]
    assert cli.run(["models", "show", "deepseek-v3.2", *words]) == 0
    held = json.loads(capsys.readouterr().out)["held"]
    assert (held["gpus"], held["batch"], held["part"]) == (8, 8, "step")
    (at,) = held["contexts"]
    assert at["kv_bytes"] == 61 * 656 * 1_048_576
    assert at["index_bytes"] == 61 * 132 * 1_048_576
    assert at["weights_bytes"] == pytest.approx(86.1e9, rel=0.002)
    parts = ("weights", "kv", "index", "state", "scratch")
    assert at["total_bytes"] == sum(at[f"{part}_bytes"] for part in parts) < 141e9
    assert cli.run(["models", "show", "deepseek-v3.2", *words[:-1]]) == 0
    assert "one of 8 GPUs (tp=8,ep=8,dp=1,dcp=8) holds, batch 8" in capsys.readouterr().out


def test_show_says_whether_it_fits_a_machine(capsys):
    """86.1 GB of weights and 61 x 788 B a token: 1M fits an H200's 141 GB, 2M does not."""
    words = ["models", "show", "deepseek-v3.2", "--parallel", "tp=8,ep=8"]
    words += ["--machine", "h200", "--context", "1M,2M"]
    assert cli.run([*words, "--json"]) == 0
    held = json.loads(capsys.readouterr().out)["held"]
    assert (held["machine"], held["tier"], held["capacity_bytes"]) == ("h200", "hbm", 141 * 10**9)
    one, two = held["contexts"]
    assert one["short_bytes"] == 0
    assert two["short_bytes"] == two["total_bytes"] - 141 * 10**9 > 0
    assert cli.run(words) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fits")]
    assert line.split()[:6] == ["fits", "141", "GB", "of", "hbm", "(h200)"]
    assert line.endswith(" GB too much")
    assert cli.run([*words, "--set", "tier.hbm.capacity=1000 GB"]) == 0
    assert "too much" not in capsys.readouterr().out
    assert cli.run([*words[:3], "--set", "tier.hbm.capacity=1GB"]) == 2
    assert capsys.readouterr().err == (
        "Error: --set changes a machine, and none is named; add --machine NAME\n"
    )


def test_show_refuses_gpus_that_cannot_share_it(capsys):
    assert cli.run(["models", "show", "deepseek-v3.2", "--parallel", "tp=3"]) == 2
    assert "128 query heads cannot be cut by tp=3" in capsys.readouterr().err
    assert cli.run(["models", "show", "deepseek-v3.2", "--batch", "0"]) == 2
    capsys.readouterr()
    assert cli.run(["models", "show", "deepseek-v3.2", "--batch", str(10**20)]) == 2
    assert f"--batch {10**20}: expected a whole number from 1 to 4,096" in capsys.readouterr().err
