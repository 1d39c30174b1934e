"""docs/trace.md: its example runs without memsim and its tables name every column."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memsim.trace_check import check_trace
from memsim.trace_schema import COLUMNS, FIELDS, RECORDS, SCHEMA
from memsim.trace_show import head

PAGE = Path(__file__).parents[1].joinpath("docs", "trace.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_writes_a_valid_trace_with_pyarrow_alone(tmp_path):
    assert re.findall(r"^(?:import|from) (\w+)", EXAMPLE, re.MULTILINE) == ["json", "pyarrow", "pyarrow"]
    subprocess.run([sys.executable, "-c", EXAMPLE], cwd=tmp_path, check=True)
    summary = check_trace(tmp_path / "tiny.parquet")
    assert (summary.regions, summary.kernels, summary.accesses, summary.gathered_rows) == (1, 1, 2, 3)
    assert head(tmp_path / "tiny.parquet", 4)[3]["gather"] == [900, 5, 17]


def test_the_page_counts_the_columns():
    assert f"one set of {len(COLUMNS)} columns" in PAGE


@pytest.mark.parametrize("code", range(3), ids=RECORDS)
def test_the_tables_name_every_column_with_its_type(code):
    title = ("Regions", "Kernels", "Accesses")[code]
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    found = {}
    for names, kind in re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind.replace("&lt;", "<").replace("&gt;", ">"))
    assert list(found) == list(FIELDS[code])
    arrow = {"int64": "int64", "bool": "bool", "string": "string", "list<int64>": "list<item: int64>"}
    expected = {name: str(SCHEMA.field(name).type).replace("element:", "item:") for name in FIELDS[code]}
    assert {name: arrow[kind] for name, kind in found.items()} == expected
