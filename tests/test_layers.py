"""Who may import whom. The table is the architecture: a module imports only from layers below its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("memsim", "workloads", "validation", "hwprofiles")

LAYERS = (  # bottom first
    {"errors", "system", "options", "result"},
    {"jit"},
    {"units", "trace", "rules", "output", "progress", "aside", "ahead"},
    {
        "cli_options", "trace_schema", "unique", "placement", "program", "segments", "quantity", "plan_parts",
        "lanes",
    },
    {"longest", "alike", "profile_schema", "fast_state", "limits", "resources", "plan_stack"},
    {
        "trace_batch", "fast_queue", "fast_pack", "fast_lone", "reference_parts", "profile_set",
        "profile_faults", "nodes", "plan_find", "plan_runs",
    },
    {"trace_rules", "fast_pool", "fast_serve", "fast_lot", "profile", "route", "plan_keep"},
    {
        "trace_read", "trace_write", "fast_route", "fast_depart", "lint", "closed_form", "machine_graph",
        "plan_touch",
    },
    {"trace_check", "trace_show", "fast_tile", "fast_ring", "reference", "recording", "translation_plan"},
    {"fast_loop", "cache_plan"},
    {"fast_first"},
    {"fast"},
    {"tally", "bound", "ledger", "resimulate"},
    {"summary", "explain", "ranges", "trace_cache", "overlap"},
    {"interval"},
    {"simulate", "projection_point"},
    {"kernel", "projection_cell", "projection_plot"},
    {"projection_batch"},
    {"projection_run"},
    {"projection"},
    {"crossing"},
    {"report_json"},
    {"report"},
    {
        "report_trace", "report_models", "explain_show", "demo", "machine_show", "machine_check",
        "projection_json", "projection_show",
    },
    {"crossing_show"},
    {"curve"},
    {"curve_show"},
    {"curve_plot"},
    {"cli_models"},
    {"cli_trace", "cli_machines", "cli_kernel", "cli_project", "cli_errors"},
    {"cli_calibrate"},
    {"cli_validate"},
    {"cli"},
    {"__main__"},
)  # fmt: skip
LEVEL = {f"memsim.{name}": level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in (ROOT / "memsim").glob("*.py") if path.stem != "__init__")

# What needs torch is fetched by these, inside a function that says what is missing.
MAY_CALL_WORKLOADS = {
    *("recording", "cli_models", "cli_calibrate", "cli_errors", "cli_validate"),
    *("kernel", "curve", "curve_plot"),
    *("interval", "projection_point", "projection_cell", "projection_batch", "projection_plot"),
}
WORKLOADS_MAY_IMPORT = {
    "memsim.__version__",
    "memsim.errors",
    "memsim.trace",
    "memsim.trace_write",
    "memsim.units",
}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether at the top of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = "." in node.module or node.module not in OURS
            names = [node.module] if whole else [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name, id(node) in top) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)


def test_every_module_stands_in_the_table():
    assert {path.stem for path in MODULES} - {name for names in LAYERS for name in names} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_from_below_only(path):
    mine = LEVEL[f"memsim.{path.stem}"]
    upward = {name for name, _ in imports(path) if LEVEL.get(name, -1) >= mine}
    assert not upward, f"{path.name} may not import {sorted(upward)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_simulator_needs_neither_torch_nor_the_workloads(path):
    outside = {name for name, _ in imports(path) if name.startswith(("torch", "workloads", "validation"))}
    if path.stem in MAY_CALL_WORKLOADS:
        outside = {name for name, top in imports(path) if top and name in outside}
    assert not outside, f"{path.name} may not import {sorted(outside)}"


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").rglob("*.py")), ids=lambda path: path.stem)
def test_the_workloads_know_the_trace_and_nothing_else_of_the_simulator(path):
    ours = {name for name, _ in imports(path) if name.startswith(("memsim", "validation", "hwprofiles"))}
    extra = ours - WORKLOADS_MAY_IMPORT
    assert not extra, f"{path.name} may not import {sorted(extra)}"


def loaded_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_import_memsim_loads_nothing_else():
    assert {name for name in loaded_by("import memsim") if name.startswith(OURS)} == {"memsim"}


def test_the_command_line_starts_without_anything_heavy():
    heavy = {"torch", "numba", "numpy", "pyarrow", "networkx", "pydantic", "rich", "simpy"}
    assert loaded_by("import memsim.cli") & heavy == set()


def test_reading_a_trace_needs_no_engine():
    assert loaded_by("import memsim.trace_read") & {"torch", "numba", "simpy"} == set()


def test_no_module_bears_the_name_of_a_public_function():
    import memsim

    public = set(memsim.__all__) - {"__version__"}
    assert public == {"crossover", "load_machine", "open_trace", "project", "record", "replay"}
    assert public & {path.stem for path in MODULES} == set()
    assert all(callable(getattr(memsim, name)) for name in public)
    assert set(memsim.__all__) <= set(dir(memsim))
    with pytest.raises(AttributeError, match="module 'memsim' has no attribute 'reply'"):
        _ = memsim.reply
