"""Which rows the steps of a sparse-attention kernel select, where no real scores decide it.

What enters: a name (a law of `locality`, `uniform`, `overlap=0.5`, or a recorded file), k and a seed.
What leaves: for every layer, sequence and step the selected rows, and a few words for the metadata of a
trace. The same name, k and seed give the same rows in every run. What is left out: layers and sequences
are drawn independently; see docs/selections.md for what the laws keep and miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from memsim.errors import UsageError, nearest
from workloads.locality import LAWS, ExactDraw, Int64s, law_of
from workloads.locality_sampler import ThresholdDraw
from workloads.selection_file import RecordedDraw, read_recorded

EXACT_POSITIONS = 65_536  # longest context at which a law's first step is drawn for every position
SHIPPED = Path(__file__).parent / "selections"

# How far the laws can be trusted, and where they come from: (provenance, source).
SMOL = "extrapolated", "fitted to selections of SmolLM2-135M at 8K context, k = 256"
DSA = (
    "assumed",
    "form fitted to SmolLM2-135M; level set to the overlap published for DeepSeek-V3.2 (arXiv 2604.22312: "
    "35 to 50 % at 68,665 tokens, layers 20 to 60); recency assumed",
)


class Draw(Protocol):
    """The selections of one layer and sequence, step after step."""

    def select(self) -> Int64s:
        """The rows of the present step, ascending; called once a step."""

    def move(self, positions: int) -> None:
        """One step on, to a context of `positions` rows."""


Begin = Callable[[int, np.random.Generator, int, int], Draw]  # layer, random numbers, positions, step


@dataclass
class _State:
    step: int
    positions: int
    draw: Draw | None


class Selection:
    """Selected rows by layer, sequence and step. Made by `make_selection`."""

    def __init__(self, k: int, seed: int, begin: Begin, about: dict[str, object]) -> None:
        self.k, self.seed = k, seed
        self._begin = begin
        self._about = about
        self._states: dict[tuple[int, int], _State] = {}

    def rows(self, layer: int, sequence: int, step: int, positions: int) -> Int64s:
        """Rows that the query at position `positions` - 1 selects: int64[min(k, positions)].

        Ascending, without duplicates, in 0..positions-1. Steps of a layer and sequence come one by one
        from 0, and `positions` never shrinks (ValueError if not); step 0 begins anew.
        """
        key = layer, sequence
        before = self._states.get(key, _State(-1, 0, None)) if step else _State(-1, 0, None)
        if step != before.step + 1 or positions < max(before.positions, 1):
            raise ValueError(
                f"layer {layer}, sequence {sequence}: step {step} with {positions} rows after step "
                f"{before.step} with {before.positions}; steps come one by one, rows are only added"
            )
        draw = before.draw
        if draw is not None:
            draw.move(positions)
        elif positions > self.k:
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, layer, sequence])))
            draw = self._begin(layer, rng, positions, step)
        self._states[key] = _State(step, positions, draw)
        return draw.select() if draw is not None else np.arange(positions, dtype=np.int64)

    def describe(self) -> dict[str, object]:
        """Name, parameters, how made, provenance and source: small, for the metadata of a trace."""
        return {**self._about, "k": self.k, "seed": self.seed}


class UniformDraw:
    """Rows drawn uniformly, anew each step: O(k)."""

    def __init__(self, k: int, rng: np.random.Generator, positions: int) -> None:
        self.k, self.rng, self.positions = k, rng, positions

    def select(self) -> Int64s:
        """The rows of the present step."""
        return np.sort(self.rng.choice(self.positions, self.k, replace=False, shuffle=False))

    def move(self, positions: int) -> None:
        """One step on."""
        self.positions = positions


class OverlapDraw:
    """A fixed share of the set stays, the rest is drawn uniformly from the rows not in it: O(k log k)."""

    def __init__(self, k: int, share: float, rng: np.random.Generator, positions: int) -> None:
        self.k, self.share, self.rng, self.positions = k, share, rng, positions
        self.set: Int64s | None = None

    def select(self) -> Int64s:
        """The rows of the present step."""
        if self.set is None:
            self.set = np.sort(self.rng.choice(self.positions, self.k, replace=False, shuffle=False))
            return self.set
        others = self.positions - self.k
        stay = max(int(self.share * self.k + 0.5), self.k - others)
        kept = self.rng.choice(self.set, stay, replace=False, shuffle=False)
        ranks = self.rng.choice(others, self.k - stay, replace=False, shuffle=False)
        # The r-th row outside the set is r + the number of rows of the set below it.
        joined = ranks + np.searchsorted(self.set - np.arange(self.k), ranks, side="right")
        self.set = np.sort(np.concatenate((kept, joined)))
        return self.set

    def move(self, positions: int) -> None:
        """One step on."""
        self.positions = positions


def make_selection(spec: str, k: int, seed: int) -> Selection:
    """The selection called `spec`, of `k` rows a step.

    spec  a law (`dsa_lo dsa_mid dsa_hi smol_k256`), `uniform`, `overlap=0.5`, `file:PATH`, a path that
          ends in .npz, or the name of a recorded file that ships with the package
    UsageError where it is none of these, or the file is not a recording with sets of k rows.
    """
    if k < 1 or seed < 0:
        raise UsageError(f"selection '{spec}': found k = {k}, seed {seed}; expected k >= 1 and a seed >= 0")
    if spec in LAWS:
        return _from_law(spec, k, seed)
    if spec == "uniform":
        return _uniform(k, seed)
    if spec.startswith("overlap="):
        return _from_overlap(spec, k, seed)
    return _from_file(spec, k, seed)


def _uniform(k: int, seed: int) -> Selection:
    def begin(layer: int, rng: np.random.Generator, positions: int, step: int) -> Draw:
        return UniformDraw(k, rng, positions)

    how = "uniform without replacement, each step anew"
    return Selection(
        k,
        seed,
        begin,
        {"name": "uniform", "how": how, "provenance": "assumed", "source": "plain random draw"},
    )


def _from_law(name: str, k: int, seed: int) -> Selection:
    def begin(layer: int, rng: np.random.Generator, positions: int, step: int) -> Draw:
        kind = ExactDraw if positions <= EXACT_POSITIONS else ThresholdDraw
        return kind(law_of(name, layer), k, rng, positions)

    law = LAWS[name]
    provenance, source = DSA if name.startswith("dsa_") else SMOL
    about: dict[str, object] = {
        "name": name,
        "how": f"score field; exact up to {EXACT_POSITIONS} positions, threshold sampler beyond",
        "parameters": {
            "recency": law.recency,
            "static": law.static,
            "fast": law.fast,
            "slow": law.slow,
            "noise": round(law.noise, 4),
            "length_tokens": law.length_tokens,
        },
        "provenance": provenance,
        "source": source,
    }
    if name.startswith("dsa_"):
        about["layers_0_1"] = "no recency, all noise: chance overlap, as published for DeepSeek-V3.2"
    return Selection(k, seed, begin, about)


def _from_overlap(spec: str, k: int, seed: int) -> Selection:
    text = spec.removeprefix("overlap=")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"selection '{spec}': found '{text}', expected a share from 0 to 1: overlap=0.5")

    def begin(layer: int, rng: np.random.Generator, positions: int, step: int) -> Draw:
        return OverlapDraw(k, share, rng, positions)

    about: dict[str, object] = {
        "name": spec,
        "how": "this share of the set stays, drawn uniformly; the rest is drawn uniformly from other rows",
        "parameters": {"overlap": share},
        "provenance": "assumed",
        "source": "the share was given",
    }
    return Selection(k, seed, begin, about)


def _from_file(spec: str, k: int, seed: int) -> Selection:
    shipped = {path.stem: path for path in SHIPPED.glob("*.npz")}
    if spec.startswith("file:"):
        path = Path(spec.removeprefix("file:"))
    elif spec in shipped:
        path = shipped[spec]
    elif spec.endswith(".npz"):
        path = Path(spec)
    else:
        known = [*LAWS, "uniform", "overlap=0.5", "file:PATH.npz", *shipped]
        raise UsageError(f"selection '{spec}': no such law or recorded file; {nearest(spec, known)}")
    recorded = read_recorded(path, k)

    def begin(layer: int, rng: np.random.Generator, positions: int, step: int) -> Draw:
        return RecordedDraw(recorded, layer, positions, step)

    is_shipped = path.parent == SHIPPED
    layers, steps, _ = recorded.indices.shape
    about: dict[str, object] = {
        "name": path.stem,
        "how": f"recorded: {steps} steps of {layers} layers (layer l takes l mod {layers}), sequences alike",
        "provenance": "measured" if is_shipped else recorded.provenance,
        "source": "SmolLM2-135M-Instruct, see selections/README.md" if is_shipped else recorded.source,
    }
    return Selection(k, seed, begin, about)
