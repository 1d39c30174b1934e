"""Machine files: one TOML a machine, every number with its provenance and source.

This package holds data and says where it lies; `memsim.profile` reads it.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def machine_names() -> list[str]:
    """Names of the machines that come with memsim, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def machine_path(name: str) -> Path:
    """The file of machine `name`; KeyError if there is none."""
    if name not in machine_names():
        raise KeyError(name)
    return _FOLDER / f"{name}.toml"
