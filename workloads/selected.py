"""The rows that the sparse layers of a model gather, step by step, where no real scores decide it.

What enters: a model, the name of a selection and a seed. What leaves, for a layer and a step: the gathered
rows of each sequence, ascending. The selection draws among what a layer's indexer ranks (tokens between
the forced ones, pools, compressed entries, entries of candidate blocks); here this becomes rows. Layers
that share an index gather the same rows. Left out: how the blocks that one layer keeps depend on the
entries that it picks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workloads.models.model import Layer, Model
from workloads.selection import Selection, make_selection
from workloads.shapes import CsaShape, DsaShape

Int64s = npt.NDArray[np.int64]


def ranked(shape: DsaShape | CsaShape) -> int:
    """How many of the things that an indexer ranks it picks: rows, pools or entries."""
    return shape.scored // shape.pool if isinstance(shape, DsaShape) else shape.top_k


class Selected:
    """Gathered rows by layer, for one step after the other."""

    def __init__(self, model: Model, spec: str, seed: int) -> None:
        self.layers = model.layers
        self._selections: dict[int, Selection] = {}
        self._spec, self._seed = spec, seed
        self._candidates: dict[int, list[Int64s]] = {}
        self._rows: dict[int, list[Int64s]] = {}
        first = next(layer for layer in model.layers if isinstance(layer.shape, DsaShape | CsaShape))
        assert isinstance(first.shape, DsaShape | CsaShape)
        self.details = self._selection(ranked(first.shape)).describe()

    def candidates(self, layer: int) -> list[Int64s] | None:
        """Candidate blocks of each sequence for a layer whose rows were asked for; None where it has none."""
        source = self.layers[layer].blocks_from
        return self._candidates.get(layer if source is None else source)

    def rows(self, number: int, step: int, lengths: Sequence[int], draft: int = 1) -> list[Int64s] | None:
        """Gathered rows of each of `draft` tokens of each sequence, which select as if in steps of their own.

        `lengths` are those that each token sees. None for a layer that reads all. Asked for in order.
        """
        layer = self.layers[number]
        if not layer.selects:
            return None
        if layer.index_from is None:
            if isinstance(layer.shape, CsaShape) and layer.shape.blocks and layer.blocks_from is None:
                self._candidates[number] = [
                    self._blocks(layer.shape, number, sequence, step, tokens)
                    for sequence, tokens in enumerate(lengths)
                ]
            self._rows[number] = [
                self._drawn(layer, number, token // draft, step * draft + token % draft, tokens)
                for token, tokens in enumerate(lengths)
            ]
        return self._rows[number if layer.index_from is None else layer.index_from]

    def _selection(self, k: int) -> Selection:
        if k not in self._selections:
            self._selections[k] = make_selection(self._spec, k, self._seed)
        return self._selections[k]

    def _pick(self, k: int, number: int, sequence: int, step: int, positions: int) -> Int64s:
        """min(k, positions) of 0..positions-1; a selection cannot begin with none."""
        return self._selection(k).rows(number, sequence, step, max(positions, 1))[: max(positions, 0)]

    def _drawn(self, layer: Layer, number: int, sequence: int, step: int, tokens: int) -> Int64s:
        shape = layer.shape
        assert isinstance(shape, DsaShape | CsaShape)
        k = ranked(shape)
        if isinstance(shape, CsaShape):
            blocks = self.candidates(number)
            entries = tokens // shape.ratio
            if blocks is None:
                return self._pick(k, number, sequence, step, entries)
            among = _spread(blocks[sequence][:-1], shape.block_rows)
            chosen = among[self._pick(k - 1, number, sequence, step, len(among))]
            if entries <= k:
                return np.arange(entries, dtype=np.int64)
            return np.append(chosen, entries - 1)  # the newest, whose block is filling up
        first, last = shape.sink, tokens - shape.local
        chosen = self._pick(k, number, sequence, step, (last - first) // shape.pool)
        if tokens <= shape.top_k:
            return np.arange(tokens, dtype=np.int64)
        tail = last - tokens % shape.pool  # the open pool has no key yet and is read in any case
        return np.concatenate(
            (np.arange(first), first + _spread(chosen, shape.pool), np.arange(tail, tokens))
        )

    def _blocks(self, shape: CsaShape, number: int, sequence: int, step: int, tokens: int) -> Int64s:
        """The newest block, and others picked among those before it."""
        count = -(-(tokens // shape.ratio) // shape.block_rows)
        before = self._pick(shape.blocks - 1, number, sequence, step, count - 1)
        return np.append(before, count - 1) if count else before


def _spread(numbers: Int64s, width: int) -> Int64s:
    """All rows of the pools or blocks of `width` rows that are numbered so."""
    return (numbers[:, None] * width + np.arange(width)).ravel()
