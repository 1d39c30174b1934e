"""Plain patterns: what their blocks read and write, and that they need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memsim.errors import UsageError
from memsim.profile import load_machine
from memsim.program import build_program
from memsim.route import build_system
from memsim.rules import FIRST_ROW, IS_DEPENDENT, IS_WRITE, REGION, ROWS
from memsim.trace import EACH
from memsim.trace_read import open_trace
from memsim.unique import unique_bytes
from workloads import patterns
from workloads.kernel_options import GIB, KERNELS, PLAIN, complete, parsed

ROOT = Path(__file__).parent.parent
UNITS = 4


def written(tmp_path, name, seed=0, **given):
    """The trace of a pattern with some options, and the regions that `--tier` places."""
    out = tmp_path / f"{name}.parquet"
    far = patterns.write(name, complete(name, given), UNITS, seed, out)
    return open_trace(out), far


def launches(tmp_path, name, **given):
    trace, _ = written(tmp_path, name, **given)
    return trace.regions, list(trace.kernels())


def walks(tmp_path, name, **given):
    """What each block of the first kernel does: rows of (region, first row, rows, write, dependent)."""
    regions, launched = launches(tmp_path, name, **given)
    row_bytes = np.array([region.row_bytes for region in regions], np.int64)
    program = build_program(launched[:1], [()], [True], build_system(load_machine("h200")), row_bytes, {})
    columns = [REGION, FIRST_ROW, ROWS, IS_WRITE, IS_DEPENDENT]
    ends = program.op_at.tolist()
    return [program.ops.table[a:b, columns].tolist() for a, b in zip(ends, ends[1:], strict=False)]


@pytest.mark.parametrize("name", PLAIN)
def test_every_pattern_with_its_defaults_is_a_valid_trace(tmp_path, name):
    trace, far = written(tmp_path, name)
    (launch,) = trace.kernels()
    assert launch[0].family == name
    assert trace.meta["model"] == name
    assert trace.meta["part"] == "kernel"
    assert 0 < len(far) <= len(trace.regions)
    assert {region.name for region in trace.regions} >= set(far)


@pytest.mark.parametrize(
    ("name", "given", "read", "wrote"),
    [
        ("stream", {"bytes": 1 << 20}, 1 << 20, 0),
        ("stream", {"bytes": 1 << 20, "write": True}, 0, 1 << 20),
        ("stream", {"bytes": 1 << 20, "dma": True}, 1 << 20, 1 << 20),
        ("copy", {"bytes": 1 << 20}, 1 << 20, 1 << 20),
        ("copy", {"bytes": 9_999_936, "dma": True, "block_bytes": 2_097_152}, 9_999_936, 9_999_936),
        ("update", {"bytes": 1 << 20}, 1 << 20, 1 << 20),
        ("update", {"bytes": 64 * 1001}, 64 * 1001, 64 * 1001),
        ("gather", {"count": 1000, "row_bytes": 656, "span": 10_000_000}, 656_000, 0),
        ("gather", {"count": 1000, "row_bytes": 656, "span": 10_000_000, "dma": True}, 656_000, 656_000),
        ("chase", {"count": 77, "row_bytes": 32, "span": 3200}, 77 * 32, 0),
        ("gemv", {"bytes": 1 << 20, "row_bytes": 4096}, (1 << 20) + 4096, 2 * 256),
    ],
)
def test_bytes_of_a_call_are_the_bytes_asked_for(tmp_path, name, given, read, wrote):
    regions, ((kernel, accesses),) = launches(tmp_path, name, **given)
    ways = unique_bytes(kernel, accesses, regions)
    assert [sum(way.values()) for way in ways] == [read, wrote]


def test_blocks_of_a_grid_stride_over_the_tiles_together(tmp_path):
    blocks = walks(tmp_path, "copy", bytes=64 * 20, programs=2, block_bytes=256)
    assert blocks == [
        [
            [0, 0, 4, 0, 0],
            [1, 0, 4, 1, 1],
            [0, 8, 4, 0, 0],
            [1, 8, 4, 1, 1],
            [0, 16, 4, 0, 0],
            [1, 16, 4, 1, 1],
        ],
        [[0, 4, 4, 0, 0], [1, 4, 4, 1, 1], [0, 12, 4, 0, 0], [1, 12, 4, 1, 1]],
    ]


def test_an_update_writes_back_what_it_read(tmp_path):
    blocks = walks(tmp_path, "update", bytes=512, programs=1, block_bytes=256)
    assert blocks == [[[0, 0, 4, 0, 0], [0, 0, 4, 1, 1], [0, 4, 4, 0, 0], [0, 4, 4, 1, 1]]]


def test_a_copy_engine_takes_a_block_for_each_transfer_and_works_it_piece_by_piece(tmp_path):
    blocks = walks(tmp_path, "stream", bytes=64 * 7, dma=True, block_bytes=256)
    assert blocks == [[[0, 0, 4, 0, 0], [1, 0, 4, 1, 0]], [[0, 4, 3, 0, 0], [1, 4, 3, 1, 0]]]
    piece = patterns.PIECE_BYTES // 64
    (block,) = walks(tmp_path, "stream", bytes=3 * 64 * piece // 2, dma=True, block_bytes=2 * 64 * piece)
    assert block == [
        [0, 0, piece, 0, 0], [1, 0, piece, 1, 0], [0, piece, piece // 2, 0, 0], [1, piece, piece // 2, 1, 0],
    ]  # fmt: skip


def test_pieces_are_as_long_as_a_link_needs_them(tmp_path):
    out = tmp_path / "t.parquet"
    options = complete("stream", {"bytes": 8 << 20, "dma": True, "block_bytes": 4 << 20})
    patterns.write("stream", options, 1, 0, out, piece_bytes=2 << 20)
    ((kernel, accesses),) = open_trace(out).kernels()
    assert kernel.tile_bytes == 2 << 20
    assert kernel.blocks == 2
    assert kernel.blocks_per_unit == 1
    assert set(accesses.rows.tolist()) == {(2 << 20) // 64}


@pytest.mark.parametrize(
    ("name", "given", "far"),
    [
        ("copy", {}, ["source0"]),
        ("copy", {"write": True}, ["target0"]),
        ("stream", {"dma": True}, ["source0"]),
        ("stream", {"dma": True, "write": True}, ["target0"]),
        ("gather", {"dma": True, "count": 100}, ["rows0"]),
        ("gemv", {"buffers": 2}, ["weights0", "weights1"]),
    ],
)
def test_one_side_lies_far_and_the_other_at_home(tmp_path, name, given, far):
    assert written(tmp_path, name, **given)[1] == far


def test_calls_go_round_the_buffers_and_wait_for_each_other(tmp_path):
    regions, launched = launches(tmp_path, "update", bytes=4096, buffers=3, calls_per_launch=5)
    assert [region.name for region in regions] == ["data0", "data1", "data2"]
    assert [set(accesses.region.tolist()) for _, accesses in launched] == [{0}, {1}, {2}, {0}, {1}]
    assert [kernel.waits_for for kernel, _ in launched] == [(), (0,), (1,), (2,), (3,)]
    assert {kernel.step for kernel, _ in launched} == {0}


@pytest.mark.parametrize("span", [4096 * 64, 300 * 64, 256 * 64])
def test_a_gather_picks_different_rows_the_same_for_the_same_seed(tmp_path, span):
    def drawn(seed):
        trace, _ = written(tmp_path, "gather", count=256, row_bytes=64, span=span, seed=seed)
        return next(iter(trace.kernels()))[1].gather_rows.tolist()

    rows = drawn(3)
    assert len(set(rows)) == 256
    assert max(rows) < span // 64
    assert rows == drawn(3)
    assert rows != drawn(4)
    assert rows != sorted(rows)


def test_buffers_of_a_gather_have_rows_of_their_own(tmp_path):
    _, launched = launches(tmp_path, "gather", count=64, span=1 << 20, buffers=2, calls_per_launch=3)
    first, second, again = (accesses.gather_rows.tolist() for _, accesses in launched)
    assert first == again
    assert first != second


def test_a_chase_is_one_block_with_one_load_at_a_time(tmp_path):
    _, ((kernel, accesses),) = launches(tmp_path, "chase", count=10, span=6400)
    assert kernel.blocks == 1
    assert kernel.tiles_in_flight == 1
    assert kernel.tile_bytes == 64
    assert accesses.rows.tolist() == [10]


def test_a_gemv_multiplies_every_weight_once(tmp_path):
    regions, ((kernel, accesses),) = launches(
        tmp_path, "gemv", bytes=1 << 20, row_bytes=2048, block_bytes=8192
    )
    assert kernel.flops_unit == "fp32"
    assert kernel.flops_per_tile * ((1 << 20) // 8192) == 2 * (1 << 20) // 2
    assert [regions[number].kind for number in accesses.region] == ["activation", "weights", "output"]
    assert accesses.spread.tolist()[0] == EACH
    assert accesses.worked.tolist() == [False, True, False]


def test_a_grid_has_a_wave_of_blocks_by_default_and_never_more_than_tiles(tmp_path):
    def blocks(**given):
        return launches(tmp_path, "stream", **given)[1][0][0].blocks

    assert blocks() == UNITS * 8
    assert blocks(blocks_per_unit=2) == UNITS * 2
    assert blocks(programs=1000) == 1000
    assert blocks(bytes=64 * 1024, block_bytes=64 * 512) == 2


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("strem", {}, "unknown kernel 'strem'; did you mean 'stream'?"),
        ("stream", {"heads": 4}, r"--heads with 'stream': it has no such option; it takes --bytes, --write"),
        ("update", {"dma": True}, "--dma with 'update': it has no such option"),
        ("chase", {"programs": 2}, "--programs with 'chase': it has no such option"),
        ("kda", {"context": 4096}, "--context with 'kda': it has no such option; it takes --batch, --heads"),
        (
            "stream",
            {"bytes": 100},
            "--bytes '100 B' with 'stream': expected a multiple of 64 B, such as '64 B'",
        ),
        ("copy", {"block_bytes": 32}, "--block-bytes '32 B' with 'copy': expected a multiple of 64 B"),
        ("gemv", {"row_bytes": 3, "bytes": 9}, "--row-bytes '3 B' with 'gemv': expected whole bf16 weights"),
        ("gather", {"count": 9, "span": 656}, "holds 1 rows of 656 bytes and 9 different ones are asked for"),
        ("stream", {"programs": 0}, "--programs 0: expected a whole number from 1 to 16,777,216"),
        ("stream", {"tiles_in_flight": 70_000}, "--tiles-in-flight 70000: expected a whole number from 1"),
        ("stream", {"dma": True, "programs": 2}, "--programs with --dma: a copy engine takes one transfer"),
        ("gather", {"dma": True, "block_bytes": 64}, "--block-bytes with gather --dma: a row is a transfer"),
        ("mla", {"kv_dtype": "fp8"}, "--kv-dtype fp8 with 'mla': this kernel reads bf16 rows alone"),
        ("dsa-attend", {"kv_dtype": "bf16"}, "--kv-dtype bf16 with 'dsa-attend': this kernel reads fp8"),
        ("kda", {"heads": 3}, "--heads 3 with 'kda': expected an even number of heads"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_line(name, given, words):
    with pytest.raises(UsageError, match=words) as refused:
        complete(name, given)
    assert "\n" not in str(refused.value)


def test_too_many_tiles_are_refused(tmp_path):
    options = complete("copy", {"bytes": GIB * 2, "block_bytes": 64})
    with pytest.raises(UsageError, match="--bytes '2147483648 B': the kernel has 33,554,432 tiles; expected"):
        patterns.write("copy", options, UNITS, 0, tmp_path / "t.parquet")


def test_words_become_bytes_and_tokens():
    assert parsed({"bytes": "2 MiB", "count": None, "context": "4K"}) == {"bytes": 2 << 20, "context": 4096}
    with pytest.raises(UsageError, match="--span: '5' is not a size: it has no unit"):
        parsed({"span": "5"})


def test_defaults_of_all_kernels_are_complete():
    for name, known in KERNELS.items():
        assert set(complete(name, {})) == set(known)


def test_plain_patterns_start_without_torch():
    code = "import workloads.patterns, memsim.kernel, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"
