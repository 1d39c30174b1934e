"""What is installed, and that the project's own files agree with each other."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import memsim

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
)


def requirements() -> set[str]:
    """Every requirement of the project, extras included, but for the extras that name other extras."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    found = {line for extra in (PROJECT["project"]["dependencies"], *extras) for line in extra}
    return {line for line in found if not line.startswith("memsim")}


def test_every_folder_of_code_is_installed():
    tops = ("memsim", "workloads", "hwprofiles", "validation")
    folders = {path.parent for top in tops for path in (ROOT / top).rglob("*.py")}
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert {".".join(folder.relative_to(ROOT).parts) for folder in folders} <= listed
    assert all((ROOT / name.replace(".", "/")).is_dir() for name in listed)


def test_every_folder_of_data_is_installed():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    assert data["hwprofiles"] == ["*.toml"]
    for name, patterns in data.items():
        assert all(list((ROOT / name.replace(".", "/")).glob(pattern)) for pattern in patterns), name


def test_every_file_of_settings_is_in_the_wheel():
    """Machines, models, campaigns, constants and bounds: what the code reads beside itself."""
    data = PROJECT["tool"]["setuptools"]["package-data"]
    installed = {
        path
        for name, patterns in data.items()
        for pattern in patterns
        for path in (ROOT / name.replace(".", "/")).glob(pattern)
    }
    tops = ("memsim", "workloads", "hwprofiles", "validation")
    read = {path for top in tops for path in (ROOT / top).rglob("*.toml")}
    assert {ROOT / "validation" / f"{name}.toml" for name in ("constants", "bounds")} <= read
    assert read - installed == set()


def test_versions_agree():
    assert PROJECT["project"]["version"] == memsim.__version__


def test_requirements_have_lower_bounds_and_no_upper_ones():
    for line in requirements():
        assert re.fullmatch(r"[a-z-]+>=[0-9.]+", line), line


@pytest.mark.parametrize("line", sorted(requirements()))
def test_the_constraints_pin_what_is_required_and_allowed(line):
    name, least = line.split(">=")
    pinned = CONSTRAINTS[name]
    assert [int(part) for part in pinned.split(".")] >= [int(part) for part in least.split(".")]


def test_torch_is_an_extra():
    assert not any(line.startswith("torch") for line in PROJECT["project"]["dependencies"])
    assert CONSTRAINTS["torch"] == "2.13.0"


def test_the_command_is_the_one_that_is_installed():
    assert PROJECT["project"]["scripts"] == {"memsim": "memsim.cli:main"}
    try:
        scripts = importlib.metadata.distribution("memsim").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("memsim is run from its folder, not installed")
    assert {script.name: script.value for script in scripts} == PROJECT["project"]["scripts"]


def test_ci_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (command,) = re.findall(r'^test_command="(.*)"$', script, re.MULTILINE)
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "constraints.txt" in command
    assert command.endswith("pytest")
    assert "http" not in script


def test_the_readme_sets_up_the_demo_as_it_sets_up_the_tests():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setups = [line for line in readme.splitlines() if line.startswith("python3 -m venv")]
    demo, tests = (line.replace("[kernels,dev]", "[kernels]") for line in setups)
    assert demo.endswith("/memsim demo")
    assert demo == tests.replace("/pytest", "/memsim demo")


def test_the_changelog_names_the_version():
    _, changelog = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Changelog\n")
    assert re.findall(r"^\*\*(.+)\*\*$", changelog, re.MULTILINE)[0] == memsim.__version__


def test_the_readme_links_to_pages_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", readme)
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(targets)
    assert all((ROOT / target).exists() for target in targets)


def test_the_licence_is_the_apache_one_in_full():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
