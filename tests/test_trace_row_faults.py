"""Every rule that a row of a trace may break: one line that names the row, what was found and what to do."""

import numpy as np
import pytest
from trace_samples import changed, fault

from memsim import trace_batch
from memsim.errors import TraceError
from memsim.trace_check import check_trace
from memsim.trace_read import open_trace

HUGE = 2**63 - 1

# Rows: 0, 1 regions; 2 kernel 0; 3 extent, 4 gather; 5 kernel 1; 6 kernel 2; 7 read by each, 8 strided write

REGION_FAULTS = [
    (0, {"id": 1}, "region id 1 is out of order; expected 0; number them 0, 1, 2, ... in file order"),
    (1, {"id": 0}, "region id 0 is used twice or out of order; expected 1"),
    (1, {"id": -1}, "region id -1 is out of order; expected 1"),
    (
        1,
        {"name": "layer0.kv"},
        "region 1 has the name 'layer0.kv' of region 0; expected another; add the layer",
    ),
    (0, {"name": ""}, "region 0 has an empty name; expected a text"),
    (0, {"dtype": ""}, "region 0 has an empty dtype"),
    (
        0,
        {"kind": "kvv"},
        "region 0 has unknown kind 'kvv'; expected weights, kv, index, state, activation, output, exchange",
    ),
    (0, {"layer": -2}, "region 0 has layer = -2; expected at least -1"),
    (0, {"bytes": 0}, "region 0 has bytes = 0; expected at least 1"),
    (0, {"bytes": -1152}, "region 0 has bytes = -1152; expected at least 1"),
    (0, {"row_bytes": 0}, "region 0 has row_bytes = 0; expected at least 1"),
    (
        0,
        {"bytes": 10**16 + 1152},
        "region 0 has bytes = 10000000000001152; expected at most 10,000,000,000,000,000",
    ),
    (0, {"bytes": HUGE}, f"region 0 has bytes = {HUGE}; expected at most"),
    (0, {"bytes": 1153}, "region 0 has 1153 bytes; expected whole rows of 1152 bytes; round"),
    (0, {"row_bytes": HUGE}, f"region 0 has 1152000 bytes; expected whole rows of {HUGE} bytes"),
    (0, {"page_bytes": 64}, "region 0 has page_bytes = 64 and page_rows = 0; expected 0; set page_rows"),
    (0, {"page_head_bytes": 64}, "region 0 has page_head_bytes = 64 and page_rows = 0; expected 0"),
    (1, {"page_rows": -64}, "region 1 has page_rows = -64; expected at least 0"),
    (1, {"page_head_bytes": 0}, "region 1 has page_head_bytes = 0; expected 1 to 131"),
    (1, {"page_head_bytes": 132}, "region 1 has page_head_bytes = 132; expected 1 to 131"),
    (1, {"page_bytes": 8447}, "region 1 has page_bytes = 8447; expected at least 8448"),
    (1, {"page_bytes": 0}, "region 1 has page_bytes = 0; expected at least 8448"),
    (1, {"page_rows": HUGE}, "region 1 has page_bytes = 8448; expected at least 1217"),
    (1, {"bytes": 84_481}, "region 1 has 84481 bytes; expected whole pages of 8448 bytes; round"),
]

KERNEL_FAULTS = [
    (2, {"id": 1}, "kernel id 1 is out of order; expected 0"),
    (
        5,
        {"id": 0},
        "kernel id 0 is used twice or out of order; expected 1; number them 0, 1, 2, ... in file order",
    ),
    (6, {"id": HUGE}, f"kernel id {HUGE} is out of order; expected 2"),
    (2, {"name": ""}, "kernel 0 has an empty name"),
    (2, {"family": ""}, "kernel 0 has an empty family"),
    (2, {"retire": "inorder"}, "kernel 0 has unknown retire 'inorder'; expected in_order, any; did you mean"),
    (
        2,
        {"flops_unit": "fp6"},
        "kernel 0 has unknown flops_unit 'fp6'; expected none, bf16, fp8, fp32, fp4; did you",
    ),
    (2, {"layer": -2}, "kernel 0 has layer = -2; expected at least -1"),
    (2, {"step": -1}, "kernel 0 has step = -1; expected at least 0"),
    (2, {"stream": -1}, "kernel 0 has stream = -1; expected at least 0"),
    (2, {"blocks": 0}, "kernel 0 has blocks = 0; expected at least 1"),
    (2, {"blocks": -4}, "kernel 0 has blocks = -4; expected at least 1"),
    (2, {"blocks": 2**24 + 1}, "kernel 0 has blocks = 16777217; expected at most 16,777,216"),
    (2, {"blocks_per_unit": 0}, "kernel 0 has blocks_per_unit = 0; expected at least 1"),
    (2, {"blocks_per_unit": 720_721}, "kernel 0 has blocks_per_unit = 720721; expected at most 720,720"),
    (2, {"tile_rows": 0}, "kernel 0 has tile_rows = 0; expected at least 1"),
    (2, {"tile_rows": HUGE}, f"kernel 0 has tile_rows = {HUGE}; expected at most"),
    (2, {"tile_bytes": 0}, "kernel 0 has tile_bytes = 0; expected at least 1"),
    (2, {"tile_bytes": HUGE}, f"kernel 0 has tile_bytes = {HUGE}; expected at most"),
    (2, {"tiles_in_flight": 0}, "kernel 0 has tiles_in_flight = 0; expected at least 1"),
    (2, {"tiles_in_flight": 65_537}, "kernel 0 has tiles_in_flight = 65537; expected at most 65,536; check"),
    (2, {"blocks_sharing": 0}, "kernel 0 has blocks_sharing = 0; expected at least 1"),
    (2, {"startup_ps": -1}, "kernel 0 has startup_ps = -1; expected at least 0"),
    (2, {"tile_ps": -1}, "kernel 0 has tile_ps = -1; expected at least 0"),
    (2, {"tile_ps": 10**15 + 1}, "kernel 0 has tile_ps = 1000000000000001; expected at most"),
    (2, {"drain_ps": -1}, "kernel 0 has drain_ps = -1; expected at least 0"),
    (2, {"startup_ps": 10**15 + 1}, "kernel 0 has startup_ps = 1000000000000001; expected at most"),
    (2, {"drain_ps": HUGE}, f"kernel 0 has drain_ps = {HUGE}; expected at most"),
    (2, {"flops_per_tile": -1}, "kernel 0 has flops_per_tile = -1; expected at least 0"),
    (
        2,
        {"flops_per_tile": 9 * 10**12 + 1, "flops_unit": "fp8"},
        "kernel 0 has flops_per_tile = 9000000000001; expected at most 9,000,000,000,000; check its unit",
    ),
    (2, {"flops_per_tile": 7}, "kernel 0 has flops_per_tile = 7, flops_unit none; expected a unit; name it"),
    (2, {"partial_region": -2}, "kernel 0 has partial_region = -2; expected at least -1"),
    (2, {"partial_region": 2}, "kernel 0 has partial_region = 2; expected -1 to 1"),
    (2, {"partial_bytes": -1}, "kernel 0 has partial_bytes = -1; expected at least 0"),
    (2, {"partial_bytes": 8}, "kernel 0 has partial_bytes = 8, no partial_region; expected one"),
    (5, {"waits_for": [1]}, "kernel 1 waits for kernel 1; expected ids below its own; drop it"),
    (5, {"waits_for": [0, 2]}, "kernel 1 waits for kernel 2; expected ids below its own"),
    (5, {"waits_for": [-1]}, "kernel 1 waits for kernel -1; expected ids below its own"),
    (6, {"step": 2}, "kernel 2 is of step 2; expected 0 to 1 (metadata 'steps'); correct one"),
]

ACCESS_FAULTS = [
    (
        3,
        {"kernel": 1},
        "access of kernel 1 follows kernel 0; expected it right after the kernel that it names",
    ),
    (7, {"kernel": 0}, "access of kernel 0 follows kernel 2; expected it right after the kernel"),
    (
        3,
        {"region": 2},
        "access of kernel 0 names region 2; expected the id of one of the 2 regions; correct it",
    ),
    (3, {"region": -1}, "access of kernel 0 names region -1; expected the id of one"),
    (3, {"region": HUGE}, f"access of kernel 0 names region {HUGE}; expected the id of"),
    (3, {"first_row": -1}, "access of kernel 0 has first_row = -1; expected at least 0"),
    (3, {"first_row": -HUGE}, f"access of kernel 0 has first_row = -{HUGE}; expected at least 0"),
    (3, {"rows": 0}, "access of kernel 0 has rows = 0; expected at least 1; drop an access of nothing"),
    (3, {"rows": -5}, "access of kernel 0 has rows = -5; expected at least 1"),
    (3, {"stride": 0}, "access of kernel 0 has stride = 0; expected at least 1"),
    (3, {"stride": -1}, "access of kernel 0 has stride = -1; expected at least 1"),
    (3, {"grain": 0}, "access of kernel 0 has grain = 0; expected at least 1"),
    (
        3,
        {"block": -1},
        "access of kernel 0 is of blocks -1..1; expected a range inside 0..3, the grid of its",
    ),
    (4, {"block_last": 4}, "access of kernel 0 is of blocks 0..4; expected a range inside 0..3"),
    (4, {"block": 3, "block_last": 2}, "access of kernel 0 is of blocks 3..2; expected a range inside 0..3"),
    (
        3,
        {"block_last": 2},
        "access of kernel 0 has spread one over blocks 1..2; expected one block; write spread",
    ),
    (3, {"spread": "evenly"}, "unknown spread 'evenly'; expected one, even, each; did you mean 'even'?"),
    (7, {"write": True}, "access of kernel 2 writes with spread each; expected a read"),
    (
        3,
        {"rows": 901},
        "access of kernel 0 reaches row 1000 of region 0, which has 1000 rows; expected at most row 999",
    ),
    (3, {"first_row": 1000, "rows": 1}, "access of kernel 0 reaches row 1000 of region 0"),
    (8, {"stride": 11}, "access of kernel 2 reaches row 1098 of region 0, which has 1000 rows"),
    (7, {"first_row": 1}, "access of kernel 2 reaches row 640 of region 1, which has 640 rows"),
    (3, {"rows": HUGE}, f"access of kernel 0 reaches row {100 + HUGE - 1} of region 0"),
    (3, {"first_row": HUGE}, f"access of kernel 0 reaches row {HUGE + 899} of region 0"),
    (8, {"stride": HUGE}, f"access of kernel 2 reaches row {9 + 99 * HUGE} of region 0"),
    (
        3,
        {"rows": HUGE, "stride": HUGE},
        f"access of kernel 0 reaches row {100 + (HUGE - 1) * HUGE} of region 0",
    ),
    (
        8,
        {"rows": 2**62 + 1, "stride": 4, "first_row": 0},
        f"access of kernel 2 reaches row {2**64} of region 0",
    ),
    (
        4,
        {"gather": [999, 1000, 5]},
        "access of kernel 0 gathers row 1000 (element 1) of region 0, which has 1000",
    ),
    (4, {"gather": [0, 1, -5]}, "access of kernel 0 gathers row -5 (element 2) of region 0"),
    (4, {"gather": [0, HUGE, 1]}, f"access of kernel 0 gathers row {HUGE} (element 1) of region 0"),
    (4, {"gather": [0, 1]}, "access of kernel 0 gathers 2 rows and has rows = 3; expected the same number"),
    (4, {"gather": []}, "access of kernel 0 gathers 0 rows and has rows = 3; expected the same number"),
    (4, {"gather": [], "rows": 0}, "access of kernel 0 has rows = 0; expected at least 1"),
    (4, {"first_row": 1}, "access of kernel 0 gathers with first_row = 1, stride = 1; expected 0 and 1"),
    (4, {"stride": 2}, "access of kernel 0 gathers with first_row = 0, stride = 2; expected 0 and 1"),
]

NULL_FAULTS = [
    (
        2,
        {"record": "kernal"},
        "unknown record 'kernal'; expected region, kernel, access; did you mean 'kernel'?",
    ),
    (2, {"record": None}, "record is null; expected region, kernel, access"),
    (0, {"bytes": None}, "region has null in 'bytes'; expected a value; write one"),
    (0, {"kind": None}, "region has null in 'kind'; expected a value"),
    (5, {"waits_for": None}, "kernel has null in 'waits_for'; expected a value"),
    (5, {"waits_for": [None]}, "null among the elements of 'waits_for'; expected integers"),
    (5, {"tile_rule": None}, "kernel has null in 'tile_rule'; expected a value"),
    (3, {"stride": None}, "access has null in 'stride'; expected a value"),
    (3, {"write": None}, "access has null in 'write'; expected a value"),
    (3, {"spread": None}, "access has null in 'spread'; expected a value"),
    (4, {"gather": [1, None, 3]}, "null among the elements of 'gather'; expected integers"),
    (3, {"bytes": 7}, "access has bytes = 7; expected null; leave it null in such a row"),
    (2, {"gather": [1]}, "kernel has gather = [1]; expected null; leave it null in such a row"),
]


@pytest.mark.parametrize(
    ("row", "values", "words"),
    [
        pytest.param(*fault, id=f"{fault[0]}-{'-'.join(fault[1])}")
        for fault in (*REGION_FAULTS, *KERNEL_FAULTS, *ACCESS_FAULTS, *NULL_FAULTS)
    ],
)
@pytest.mark.parametrize("batch", ["one batch", "small batches"])
def test_a_row_that_breaks_a_rule(path, row, values, words, batch, monkeypatch):
    if batch == "small batches":
        monkeypatch.setattr(trace_batch, "BATCH_GATHERED", 2)
    changed(path, edit_rows=lambda rows: rows[row].update(values), edit_meta=restore_counts)
    assert fault(path).startswith(f"row {row}: {words}")


def restore_counts(meta):
    meta["rows"] = {"region": 2, "kernel": 3, "access": 4}


def test_steps_may_not_go_back(path):
    def edit(rows):
        rows[5]["step"] = 1
        rows[6]["step"] = 0

    changed(path, edit)
    assert fault(path).startswith(
        "row 6: kernel 2 is of step 0; expected at least 1, as before it; sort them"
    )


def test_steps_are_free_where_the_metadata_do_not_count_them(path):
    changed(path, lambda rows: rows[6].update(step=70), lambda table: table, lambda meta: meta.pop("steps"))
    assert check_trace(path).steps == 2


def test_a_region_after_a_kernel(path):
    changed(path, lambda rows: rows.insert(4, rows.pop(1)))
    assert fault(path).startswith(
        "row 1: is a kernel; expected the file's 2 regions (as its metadata count) first"
    )


def test_a_region_after_all_counted_regions(path):
    changed(path, lambda rows: rows.append({**rows[1], "id": 2, "name": "late"}), edit_meta=one_region_less)
    assert fault(path).startswith(
        "row 9: is a region; expected the file's 2 regions (as its metadata count) first"
    )


def one_region_less(meta):
    meta["rows"]["region"] -= 1
    meta["rows"]["access"] += 1


def test_an_access_before_any_kernel(path):
    changed(path, lambda rows: rows.insert(2, rows.pop(3)))
    assert fault(path).startswith(
        "row 2: access of kernel 0 comes before any kernel; expected it right after"
    )


def test_an_access_before_any_kernel_that_names_none(path):
    changed(path, lambda rows: rows.insert(2, {**rows.pop(3), "kernel": -1}))
    assert fault(path).startswith("row 2: access of kernel -1 comes before any kernel")


def test_an_access_without_regions(path):
    def edit(rows):
        del rows[:2]
        rows[4]["partial_region"] = -1

    changed(path, edit)
    assert fault(path).startswith(
        "row 1: access of kernel 0 names region 0; expected the id of one of the 0 regions"
    )


def test_all_regions_together_are_too_large(path):
    def edit(rows):
        rows[:2] = [
            {**rows[0], "id": i, "name": f"r{i}", "bytes": 10**16, "row_bytes": 1} for i in range(101)
        ]

    changed(path, edit)
    assert fault(path).startswith(
        f"row 100: the regions take {101 * 10**16} bytes together; expected at most 10^18"
    )


def test_of_several_faults_the_first_row_is_named(path):
    def edit(rows):
        rows[4]["region"] = 7
        rows[3]["rows"] = 5000
        rows[6]["blocks"] = 0
        rows[8]["stride"] = None

    changed(path, edit)
    assert fault(path).startswith("row 3: access of kernel 0 reaches row 5099")


def test_no_row_of_a_bad_batch_is_handed_out(path):
    changed(path, lambda rows: rows[8].update(rows=5000))
    kernels = open_trace(path).kernels()
    with pytest.raises(TraceError, match="row 8: "):
        next(kernels)


def test_a_long_value_is_cut_in_the_message(path):
    changed(path, lambda rows: rows[2].update(gather=list(range(1000))))
    assert len(fault(path)) < 200


def test_every_array_is_small_and_may_be_changed(path):
    for _, accesses in open_trace(path).kernels():
        for name, column in accesses._asdict().items():
            expected = np.bool_ if name in ("write", "dependent", "worked") else np.int64
            assert column.dtype == expected, name
            assert column.flags.writeable, name
            assert column.flags.c_contiguous, name
