"""What the files of constants say: machine files, each read once, and that of kernels' costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memsim.profile import lineage, load_machine, locate, read_table
from validation.calibrate_constants import Constant, Place
from validation.calibrate_fit import Value
from workloads import costs


class Files:
    """Machine files that were read so far."""

    def __init__(self) -> None:
        self._tables: dict[str, Mapping[str, Any]] = {}
        self._lineages: dict[str, list[tuple[Path, dict[str, Any]]]] = {}

    def has(self, machine: str, path: str) -> bool:
        """Whether a machine has the table that a path lies in."""
        return isinstance(_found(self._table(machine), path.split(".")[:-1]), dict)

    def _table(self, machine: str) -> Mapping[str, Any]:
        if machine not in self._tables:
            self._tables[machine] = read_table(locate(machine))
        return self._tables[machine]

    def ruling(self, machine: str, path: str, values: Mapping[Place, Value]) -> Value | None:
        """What was found for a path in the nearest of a machine's files that has such a number."""
        if path.startswith(f"{costs.GROUP}.") or not self.has(machine, path):
            return None
        if machine not in self._lineages:
            self._lineages[machine] = lineage(locate(machine))
        for file, table in self._lineages[machine]:
            if (file, path) in values or _found(table, path.split(".")) is not None:
                return values.get((file, path))
        return None


def held(constant: Constant) -> Value | None:
    """What a constant's file says, None if nothing."""
    if constant.of_kernel:
        fact = costs.known().get(constant.path)
        if fact is None:
            return None
        return float(fact.value) if constant.path.endswith(costs.SHARES) else fact.value
    found = dict(load_machine(constant.file).quantities()).get(constant.path)
    return found.value if found else None


def _found(table: Mapping[str, Any], path: Sequence[str]) -> Any:
    """What a file by itself holds at a path, None if nothing."""
    found: Any = table
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found
