"""Which experts the tokens of a step choose, where a router's real scores do not say.

Every token chooses different experts, all alike likely, drawn from a seed for each step and for each of a
few turns that layers take: layers of a turn choose alike, so that a replay of one is that of all. Of E
experts, each token's k, B tokens are expected to choose E (1 - (1 - k / E)^B). A recorded file names them
instead: one line of `step layer token expert,expert,...`. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memsim.errors import UsageError, reason
from workloads.facts import Fact
from workloads.models.model import Model

Int64s = npt.NDArray[np.int64]

REAL = "real"
TURNS = 4  # draws that the layers of a step take turns on

UNIFORM = Fact(
    "step.routing",
    f"uniform, drawn from the seed; layers take turns on {TURNS} draws a step",
    "assumed",
    "balanced routers aim at it",
)


@dataclass(frozen=True)
class Routing:
    """Uniform choices of `active` among `experts`, or those that a file names.

    experts  all that a router scores, those of other GPUs and those that cost nothing included
    """

    experts: int
    active: int
    seed: int = 0
    recorded: dict[tuple[int, int], Int64s] = field(default_factory=dict)

    def chosen(self, layer: int, step: int, tokens: int) -> Int64s:
        """Experts [tokens, active] of each token, ascending."""
        if self.recorded:
            return self._recorded(layer, step, tokens)
        digest = hashlib.sha256(repr((self.seed, step, layer % TURNS, tokens)).encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        keys = random.random((tokens, self.experts))
        return np.sort(np.argpartition(keys, self.active - 1, axis=1)[:, : self.active], axis=1)

    def _recorded(self, layer: int, step: int, tokens: int) -> Int64s:
        found = self.recorded.get((step, layer))
        if found is None or len(found) < tokens:
            raise UsageError(
                f"routing of layer {layer}, step {step}: the file names {0 if found is None else len(found)} "
                f"tokens, the step has {tokens}; record more, or leave --routing away"
            )
        return found[:tokens]


def routing_of(model: Model, device: str, word: str | None, seed: int) -> Routing | None:
    """What `word` names: uniform, real (None) or a file; None: real on real tensors, uniform on meta."""
    w = model.weights
    if w is None or not w.moe_layers:
        if word is not None:
            raise UsageError(f"--routing {word} with model '{model.name}': it has no experts")
        return None
    if word == REAL and device == "meta":
        raise UsageError(
            "--routing real with --device meta: there are no scores; use --device cpu, uniform or a file"
        )
    scored = w.experts + w.zero_experts
    if word == REAL or (word is None and device != "meta"):
        return None
    if word in (None, "uniform"):
        return Routing(scored, w.active, seed)
    return recorded(Path(str(word)), scored, w.active)


def expected_distinct(experts: int, active: int, tokens: int) -> float:
    """Different experts that `tokens` tokens are expected to choose."""
    return experts * (1 - (1 - active / experts) ** tokens)


def recorded(path: Path, experts: int, active: int) -> Routing:
    """Choices of a file: lines of step, layer, token, then the experts, separated by blanks or commas."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--routing {path}: cannot be read: {reason(error)}; name another file") from None
    rows: dict[tuple[int, int], dict[int, list[int]]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            step, layer, token, *chosen = (int(word) for word in line.replace(",", " ").split())
        except ValueError:
            raise UsageError(f"{path}:{number}: expected whole numbers: step layer token experts") from None
        if len(set(chosen)) != active or not all(0 <= expert < experts for expert in chosen):
            raise UsageError(f"{path}:{number}: expected {active} different experts below {experts}")
        rows.setdefault((step, layer), {})[token] = sorted(chosen)
    if not rows:
        raise UsageError(f"--routing {path}: names no token")
    return Routing(
        experts, active, recorded={key: _in_order(path, key, found) for key, found in rows.items()}
    )


def _in_order(path: Path, key: tuple[int, int], found: dict[int, list[int]]) -> Int64s:
    if sorted(found) != list(range(len(found))):
        raise UsageError(f"--routing {path}: tokens of step {key[0]}, layer {key[1]} are not 0, 1, 2, ...")
    return np.array([found[token] for token in range(len(found))], np.int64)
