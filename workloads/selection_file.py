"""Recorded selections: reading a file that holds the rows that a real model selected.

What enters: an .npz file in the format of docs/selections.md. What leaves: checked arrays, and the rows
of one layer step by step. A recording belongs to its own context: the query of step s stood at position
query_pos[s], and a request for any other context is refused, because stretching positions would invent
the locality that the recording is there to show. So is a step beyond the last one, and a k other than
the file's (the rows are not ranked, so that a smaller set cannot be taken out of a larger one).
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memsim.errors import UsageError
from workloads.facts import PROVENANCES
from workloads.locality import Int64s

FORMAT = "docs/selections.md describes the file"
INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))

Array = npt.NDArray[Any]  # of a dtype to be checked
Integers = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """A checked recording.

    indices    int[layers, steps, k], each row ascending
    query_pos  int[steps], position of the query; rows 0..query_pos may be selected
    """

    path: Path
    indices: Integers
    query_pos: Integers
    provenance: str
    source: str


class RecordedDraw:
    """The recorded sets of one layer, step by step; UsageError where context or step are not in the file."""

    def __init__(self, recorded: Recorded, layer: int, positions: int, step: int) -> None:
        self.recorded, self.positions, self.step = recorded, positions, step
        self.layer = layer % len(recorded.indices)

    def select(self) -> Int64s:
        """The rows of the present step: int64[k]."""
        path, query_pos = self.recorded.path, self.recorded.query_pos
        if self.step >= len(query_pos):
            raise UsageError(
                f"{path}: found {len(query_pos)} steps, step {self.step} was asked for; record at most "
                f"{len(query_pos)} steps"
            )
        if self.positions - 1 != query_pos[self.step]:
            raise UsageError(
                f"{path}: step {self.step} was recorded with a context of {query_pos[self.step] + 1} rows, "
                f"found a context of {self.positions}; record with --context {query_pos[0] + 1} and one "
                "token a step"
            )
        rows: Int64s = self.recorded.indices[self.layer, self.step].astype(np.int64)
        return rows

    def move(self, positions: int) -> None:
        """One step on."""
        self.positions = positions
        self.step += 1


def read_recorded(path: Path, k: int) -> Recorded:
    """Read and check a recording with sets of `k` rows; UsageError names file, found, expected, remedy."""
    arrays = _load(path)
    missing = [name for name in ("indices", "query_pos") if name not in arrays]
    if missing:
        held = ", ".join(sorted(arrays)[:8]) or "none"
        raise UsageError(f"{path}: found arrays {held}; expected also {' and '.join(missing)}; {FORMAT}")
    indices, query_pos = arrays["indices"], arrays["query_pos"]
    for name, array, shape in ("indices", indices, "layers, steps, k"), ("query_pos", query_pos, "steps"):
        if array.dtype not in INTEGERS or array.ndim != len(shape.split(", ")) or not array.size:
            raise UsageError(
                f"{path}: {name} is {array.dtype} {list(array.shape)}; expected int32 or int64 [{shape}], "
                f"not empty; {FORMAT}"
            )
    if indices.shape[1] != len(query_pos):
        raise UsageError(
            f"{path}: found {indices.shape[1]} steps of indices and {len(query_pos)} of query_pos; expected "
            f"as many; {FORMAT}"
        )
    if indices.shape[2] != k:
        raise UsageError(
            f"{path}: found sets of {indices.shape[2]} rows, expected {k}; choose a file recorded with "
            f"k = {k} (sets are not ranked, so neither a larger nor a smaller one can be made)"
        )
    for layer, sets in enumerate(indices):
        _check_rows(path, layer, sets, query_pos)
    source, provenance = str(arrays.get("source", path)), str(arrays.get("provenance", "assumed"))
    if provenance not in PROVENANCES:
        raise UsageError(f"{path}: provenance is '{provenance}'; expected one of {', '.join(PROVENANCES)}")
    return Recorded(path, indices, query_pos, provenance, source)


def _load(path: Path) -> dict[str, Array]:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file" if not path.exists() else "not a plain file"
        raise UsageError(f"{path}: {found}; expected an .npz file of recorded selections; {FORMAT}")
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {name: np.asarray(archive[name]) for name in archive.files}
    # What damaged, encrypted or foreign zip files are seen to raise.
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        found = " ".join(str(error).split())[:120] or type(error).__name__
        raise UsageError(
            f"{path}: cannot be read as .npz ({found}); expected arrays of numbers saved by "
            f"numpy.savez; {FORMAT}"
        ) from error


def _check_rows(path: Path, layer: int, sets: Integers, query_pos: Integers) -> None:
    order = np.argwhere(sets[:, 1:] <= sets[:, :-1])
    if len(order):
        step, at = (int(index) for index in order[0])
        raise UsageError(
            f"{path}: layer {layer}, step {step}: row {sets[step, at + 1]} follows row {sets[step, at]}; "
            f"expected ascending rows without duplicates; sort each set"
        )
    outside = np.argwhere((sets[:, 0] < 0) | (sets[:, -1] > query_pos))
    if len(outside):
        step = int(outside[0, 0])
        row = sets[step, 0] if sets[step, 0] < 0 else sets[step, -1]
        raise UsageError(
            f"{path}: layer {layer}, step {step}: found row {row}; expected rows from 0 to the query's "
            f"position, {query_pos[step]}; {FORMAT}"
        )
