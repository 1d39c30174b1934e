"""What `trace info` and `trace head` say of a small trace, by hand."""

import json

import numpy as np
import pytest
from trace_samples import META, SMALL, changed, small_kernel, write

from memsim.errors import TraceError, UsageError
from memsim.trace import Access
from memsim.trace_show import head, info


@pytest.fixture
def small(tmp_path):
    write(tmp_path / "t.parquet", SMALL, META | {"selection": "uniform", "software": {"torch": "2.13.0"}})
    return tmp_path / "t.parquet"


def test_info(small):
    read = 902 * 1152 + 640 * 132
    assert info(small) == {
        "path": str(small),
        "file_bytes": small.stat().st_size,
        "schema_version": 1,
        **META,
        "selection": "uniform",
        "software": {"torch": "2.13.0"},
        "rows": {"region": 2, "kernel": 3, "access": 4, "gathered": 3},
        "kinds": {
            "kv": {"regions": 1, "bytes": 1_152_000, "bytes_read": 902 * 1152, "bytes_written": 115_200},
            "index": {"regions": 1, "bytes": 84_480, "bytes_read": 640 * 132, "bytes_written": 0},
        },
        "families": {"mla": {"kernels": 3, "accesses": 4, "bytes_read": read, "bytes_written": 115_200}},
    }


def test_info_is_plain_data(small):
    assert json.loads(json.dumps(info(small))) == info(small)


def test_info_names_what_the_recorder_left_out(tmp_path):
    write(tmp_path / "t.parquet", SMALL, {})
    assert info(tmp_path / "t.parquet")["context_tokens"] is None


def test_info_checks_the_rows(small):
    changed(small, lambda rows: rows[8].update(rows=5000))
    with pytest.raises(TraceError, match="row 8: access of kernel 2 reaches row"):
        info(small)


def test_head_leaves_nulls_out(small):
    first = head(small, 5)
    assert [row["record"] for row in first] == ["region", "region", "kernel", "access", "access"]
    assert first[0] == {"record": "region", **vars(SMALL[0])}
    assert first[2] == {"record": "kernel", **vars(SMALL[2]), "waits_for": []}
    assert first[4] == {"record": "access", **vars(SMALL[4]), "gather": [999, 0, 5]}
    assert "gather" not in first[3]


def test_head_shortens_a_long_list(tmp_path):
    gather = np.arange(100)
    write(tmp_path / "t.parquet", [*SMALL[:3], Access(0, 0, 0, 0, False, 0, 100, gather=gather)])
    assert head(tmp_path / "t.parquet", 9)[3]["gather"] == [0, 1, 2, 3, 4, 5, 6, 7, "... 92 more"]


def test_head_shows_rows_that_check_refuses(small):
    changed(small, lambda rows: rows[3].update(rows=-1, stride=None))
    row = head(small, 100)[3]
    assert row["rows"] == -1
    assert "stride" not in row


def test_head_of_more_rows_than_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr("memsim.trace_batch.BATCH_GATHERED", 2)
    write(tmp_path / "t.parquet", [small_kernel(number) for number in range(7)])
    assert [row["id"] for row in head(tmp_path / "t.parquet", 5)] == [0, 1, 2, 3, 4]


def test_head_of_no_rows_is_refused(small):
    with pytest.raises(UsageError, match="0 rows to show; expected at least 1"):
        head(small, 0)


def test_head_of_another_file_is_refused(tmp_path):
    (tmp_path / "t.parquet").write_text("record,id\n")
    with pytest.raises(TraceError, match="is not a Parquet file"):
        head(tmp_path / "t.parquet", 5)


def test_head_of_more_rows_than_there_can_be(small):
    assert len(head(small, 10**20)) == len(SMALL)


def test_a_file_name_need_not_be_text(small):
    name = small.with_name("b\udcff.parquet")
    small.rename(name)
    assert info(name)["path"] == str(name)
