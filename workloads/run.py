"""What a recording asks of every layer, whatever its kind: the last argument of `declare` and `step`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workloads.splits import AS_PRODUCTION, Cut

if TYPE_CHECKING:
    from workloads.indexer import IndexerRegions

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """How a layer is recorded.

    batch      sequences
    most_rows  tokens that a sequence has at the last step, the new one included
    units      processors that the kernels split their work over
    staged     selected rows are gathered into a staging buffer before the attention
    cut        how the top-k of a long context is cut into blocks
    index      regions of the layer whose selection this layer uses; None: it selects for itself
    kv         regions of the layer whose compressed rows and index keys it reads; None: it has its own
    blocks     regions of the layer whose candidate blocks bound its selection; None: all entries compete
    merge      makes the rows of all GPUs' candidates, where they share positions and the given rows are
               those of this GPU; None: it has all positions
    lengths    tokens of each sequence at the last step where they differ; else all have `most_rows`
    candidates numbers of the candidate blocks of each sequence, ascending, where scores do not choose them
    draft      new tokens of each sequence, the ones that a draft proposes included
    project    launches the product that makes an index key of a latent, between kernels (V4.1); None: none
    """

    batch: int
    most_rows: int
    units: int
    staged: bool = False
    cut: Cut = AS_PRODUCTION
    index: Any = None
    kv: Any = None
    blocks: Any = None
    candidates: Sequence[Int64s] | None = None
    draft: int = 1
    project: Callable[[], None] | None = None
    lengths: Sequence[int] | None = None
    merge: Callable[[IndexerRegions], None] | None = None

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return self.batch * self.draft

    def each_token(self, lengths: Sequence[int]) -> list[int]:
        """Rows as each new token sees them, sequence after sequence; `lengths` are those of the last ones."""
        return [rows + more for rows in lengths for more in range(1 - self.draft, 1)]

    @property
    def rows(self) -> list[int]:
        """Tokens that each sequence has at most."""
        return [self.most_rows] * self.batch if self.lengths is None else list(self.lengths)
