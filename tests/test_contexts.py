"""Batches of several lengths: from a file, from Python and from the command line, and what is refused."""

from __future__ import annotations

import pytest

import memsim
from memsim import cli
from memsim.errors import UsageError
from memsim.trace_read import open_trace
from workloads.contexts import contexts_of
from workloads.decode import record_step


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("131072\n4096\n", [131_072, 4096]),
        ("128K\n\n  1M \n1.5K", [131_072, 1_048_576, 1536]),
        ("user, context ,x\na,10,1\nb,20,2\n", [10, 20]),
        ("context\n7\n", [7]),
        ("\ufeff4K\r\n7\r\n", [4096, 7]),  # as spreadsheets save it
    ],
)
def test_a_number_a_line_or_a_column(tmp_path, text, expected):
    path = tmp_path / "batch"
    path.write_text(text)
    assert contexts_of(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no sequence; write the tokens of one a line"),
        ("10\n-3\n", "batch:2: '-3' is not a number of tokens: expected a whole number from 1 on"),
        ("10\n0\n", "batch:2: '0' is not a number of tokens"),
        ("a,b\n1,2\n", "batch:1: expected tokens, or a column 'context'; found: a, b"),
        ("a,context\n1\n", "batch:2: '' is not a number of tokens"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "batch"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        contexts_of(path)
    assert message in str(error.value)


def test_a_file_that_is_not_there():
    with pytest.raises(UsageError, match="nowhere: cannot be read: No such file or directory; name"):
        memsim.record("kimi-linear", None, "a.parquet", contexts="nowhere")


def kv_rows(path):
    """Rows of the first layer's cache that a step reads."""
    trace = open_trace(path)
    names = {region.id: region.name for region in trace.regions}
    for kernel, accesses in trace.kernels():
        if kernel.family == "mla":
            mine = [number for number, region in enumerate(accesses.region) if names[region].endswith(".kv")]
            return int(accesses.rows[mine].sum())
    raise AssertionError


def test_a_batch_reads_and_holds_the_rows_that_its_sequences_have(tmp_path):
    contexts = [5000, 130, 64]
    meta = record_step("kimi-linear", contexts=contexts, out=tmp_path / "a")
    assert (meta["context_tokens"], meta["batch"], meta["contexts"]) == (5000, 3, contexts)
    assert kv_rows(tmp_path / "a") == sum(contexts)
    (kv,) = [region for region in open_trace(tmp_path / "a").regions if region.name == "layer3.kv"]
    assert kv.rows == 5056 + 192 + 64  # whole pages


def test_many_contexts_leave_a_digest_and_equal_ones_nothing(tmp_path):
    many = record_step("kimi-linear", contexts=list(range(1, 70)), out=tmp_path / "a")
    assert many["contexts"].startswith("sha256:")
    assert record_step("kimi-linear", contexts=[7, 7], out=tmp_path / "a")["contexts"] is None
    alike = record_step("kimi-linear", 7, batch=2, out=tmp_path / "b")
    assert alike == record_step("kimi-linear", contexts=[7, 7], out=tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_steps_go_on_from_every_context(tmp_path):
    record_step("kimi-linear", contexts=[100, 50], steps=3, out=tmp_path / "a")
    trace = open_trace(tmp_path / "a")
    rows = [int(found.rows.max()) for kernel, found in trace.kernels() if kernel.name == "layer3.mla"]
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "1K", "contexts": [5]}, "one of both"),
        ({"context": None}, "one of both"),
        ({"context": None, "contexts": [5, 6], "batch": 3}, "--batch 3 with 2 contexts; leave --batch away"),
        ({"context": None, "contexts": [0]}, "--context 0: expected a whole number from 1"),
        ({"context": None, "contexts": []}, "--batch 0: expected a whole number from 1"),
        ({"context": 5, "routing": "uniform"}, "--routing uniform with --part attention: it has no experts"),
        ({"context": 5, "batch": 10**20}, f"--batch {10**20}: expected a whole number from 1 to 4,096"),
        ({"context": 5, "parallel": "tp=8,up=2"}, "unknown word 'up'"),
    ],
)
def test_python_says_what_is_wrong(tmp_path, options, message):
    context = options.pop("context")
    with pytest.raises(UsageError, match=message):
        memsim.record("kimi-linear", context, tmp_path / "a.parquet", **options)


def test_the_command_takes_both(tmp_path, capsys):
    lengths, out = tmp_path / "batch", str(tmp_path / "a.parquet")
    lengths.write_text("context\n300\n64\n")
    words = ["--contexts", str(lengths), "--parallel", "tp=4,dp=2", "-o", out]
    assert cli.run(["trace", "record", "kimi-linear", *words]) == 0
    assert "tp=4,ep=1,dp=2,dcp=1" in capsys.readouterr().out
    meta = open_trace(out).meta
    assert (meta["batch"], meta["gpus"], meta["contexts"]) == (2, 8, [300, 64])
    assert cli.run(["replay", out, "--machine", "8xh200", "--no-bound"]) == 0
    assert "one of 8 GPUs" in capsys.readouterr().out
    assert cli.run(["replay", out, "--machine", "h200-host", "--no-bound"]) == 2
    assert "machine h200-host has 1" in capsys.readouterr().err
    assert (
        cli.run(["trace", "record", "kimi-linear", "--parallel", "tp=5", "--context", "1K", "-o", out]) == 2
    )
