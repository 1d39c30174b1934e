"""What the kernels around a layer's attention work with: its weights, its norms, shared activations.

`declare` makes the regions of one layer. Activations are shared by all layers, one region for each name and
width, as an engine's allocator hands the same memory out again. The methods launch one kernel each, named
after the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from workloads import activations, linear
from workloads.activations import Rows, rowwise
from workloads.linear import CODED_ROW, Linear, product, quantised
from workloads.models.matrices import SCALED, Matrix
from workloads.record import Recorder, RegionHandle
from workloads.tensors import normal

SUM_ROW = 8  # fp32 values of a row of partial sums


@dataclass
class Shared:
    """Activations that layers share: declared when first asked for, before any kernel.

    tokens   of a step; draft: of them, those of each sequence, one after another
    coded    fp8 inputs, as many rows of 128 values as the widest need; partial: sums of splits
    prefix   of the regions' names
    """

    recorder: Recorder
    tokens: int
    draft: int = 1
    known: dict[tuple[str, int, str], Rows] = field(default_factory=dict)
    coded_rows: int = 0
    sums: int = 0
    coded: RegionHandle | None = None
    partial: RegionHandle | None = None
    prefix: str = ""

    def rows(self, name: str, width: int, dtype: str = "bf16", each: int = 1) -> Rows:
        """Rows of `width` values, `each` times a token."""
        key = name, width, dtype
        if key not in self.known:
            called, count = f"{self.prefix}{name}-{width}", self.tokens * each
            self.known[key] = activations.declare(self.recorder, called, count, width, dtype)
        return self.known[key]

    def cells(self, name: str, each: int, dtype: str) -> RegionHandle:
        """`each` numbers of 4 bytes a token, a row each."""
        key = name, each, dtype
        if key not in self.known:
            rows = self.tokens * each
            made = self.recorder.region(f"{self.prefix}{name}-{each}", "activation", -1, rows, 4, dtype)
            self.known[key] = Rows(made, each)
        return self.known[key].handle

    def need(self, matrix: Linear, each: int = 1) -> None:
        """Room for what products with a matrix leave: coded inputs, `each` times a token, and sums."""
        if matrix.takes_coded:
            width = matrix.matrix.k * (matrix.matrix.count if each == 1 else 1)
            self.coded_rows = max(self.coded_rows, self.tokens * each * width // SCALED)
        self.sums = max(self.sums, self.tokens * matrix.partials)

    def close(self) -> None:
        """Declare what the widest need."""
        if self.coded_rows:
            self.coded = self._scratch("coded", self.coded_rows, CODED_ROW, "bytes")
        if self.sums:
            rows = self.sums // SUM_ROW
            self.partial = self._scratch("sums.partial", rows, SUM_ROW * 4, "fp32")

    def _scratch(self, name: str, rows: int, row_bytes: int, dtype: str) -> RegionHandle:
        return self.recorder.region(f"{self.prefix}{name}", "activation", -1, rows, row_bytes, dtype)

    def zero(self) -> None:
        """Zeros behind all of them."""
        for handle in (*(rows.handle for rows in self.known.values()), self.coded, self.partial):
            if handle is not None:
                handle.zero()


@dataclass(frozen=True)
class Kit:
    """One layer's weights and norms, and the activations that its kernels use, by name."""

    shared: Shared
    layer: int
    units: int
    w: Mapping[str, Linear]
    norms: Mapping[str, RegionHandle]
    act: Mapping[str, Rows]

    @property
    def recorder(self) -> Recorder:
        """Where kernels are launched."""
        return self.shared.recorder

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.shared.tokens

    def product(
        self,
        name: str,
        x: Rows,
        *outs: Rows,
        finish: Callable[..., Any] | None = None,
        beside: Sequence[Rows] = (),
    ) -> None:
        """Outputs of matrix `name`; inputs of fp8 weights are quantised first."""
        matrix = self.w[name]
        if matrix.scales is not None:
            x = self.quantised(name, x, self.tokens)
        partial = self.shared.partial
        product(self.recorder, self.layer, matrix, x, outs, self.tokens, partial, finish, beside)

    def quantised(self, name: str, x: Rows, rows: int) -> Rows:
        """`rows` rows of `x` in fp8."""
        assert self.shared.coded is not None
        return quantised(self.recorder, self.layer, name, x, Rows(self.shared.coded, 1), rows)

    def rows(
        self,
        name: str,
        family: str,
        reads: Sequence[Rows],
        writes: Sequence[Rows],
        work: Callable[..., Any],
        *given: Any,
        norm: str = "",
        rows: int = 0,
        blocks: int = 0,
    ) -> None:
        """A row-wise kernel; `norm` names weights that it reads, `rows` how many, if not tokens."""
        found = [self.norms[norm]] if norm else []
        parts = (self.recorder, self.layer, name, family, rows or self.tokens, reads, writes, work)
        rowwise(*parts, *given, weights=found, blocks=blocks)


def declare(
    shared: Shared,
    layer: int,
    units: int,
    weights_dtype: str,
    matrices: Iterable[Matrix],
    norms: Mapping[str, int],
    acts: Mapping[str, int],
) -> Kit:
    """Regions of a layer: matrices, norms of these widths, activations of these widths."""
    recorder = shared.recorder
    w = {m.name: linear.declare(recorder, layer, m, weights_dtype, units, shared.tokens) for m in matrices}
    for matrix in w.values():
        shared.need(matrix)
    made = {
        name: recorder.region(
            activations.kernel_name(layer, f"{name}-norm"), "weights", layer, 1, width * 2, "bf16"
        )
        for name, width in norms.items()
    }
    return Kit(
        shared, layer, units, w, made, {name: shared.rows(name, width) for name, width in acts.items()}
    )


def fill(kit: Kit, generator: torch.Generator) -> None:
    """Random normal weights, norms near one."""
    for matrix in kit.w.values():
        linear.fill(matrix, generator)
    for handle in kit.norms.values():
        handle.fill(1 + 0.1 * normal(handle.shape, torch.float32, generator))
