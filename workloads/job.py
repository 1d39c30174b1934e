"""What is to be recorded: the words and numbers that somebody gave, checked, and a model cut for one GPU.

What `record_step` is asked for enters, a `Job` leaves; every mistake is a UsageError of one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memsim.errors import UsageError
from memsim.units import MOST_BATCH, MOST_DRAFT, MOST_TOKENS, within
from workloads import step as whole_step
from workloads.gqa import tile_of
from workloads.models import get_model
from workloads.models.load import Changes
from workloads.models.model import Model
from workloads.parallel import ALONE, Parallel, gathered, shard
from workloads.routing import Routing, routing_of
from workloads.run import Run
from workloads.selected import Selected
from workloads.shapes import CsaShape, GqaShape, Shape, SwaShape, drafted

MOST_STEPS, MOST_UNITS = 10_000, 65_536
DEVICES = ("cpu", "cuda", "meta")
PARTS = ("attention", "step")
STAGES = ("kv",)
REAL = "real"  # selections from the kernels' own scores
META_SELECTION = "dsa_mid"


@dataclass(frozen=True)
class Job:
    """What is recorded: checked words and numbers of `record_step`.

    model     as one GPU has it, with the heads whose projections are its own
    contexts  tokens of every sequence at the first step, the new one included, over all groups of GPUs
    draft     new tokens that a step computes of each sequence; accepted: of them, those that it keeps
    """

    model: Model
    contexts: tuple[int, ...]
    steps: int
    device: str
    selected: Selected | None
    staged: bool
    seed: int
    units: int
    part: str = "attention"
    routing: Routing | None = None
    parallel: Parallel = ALONE
    draft: int = 1
    accepted: int = 1

    @property
    def context_tokens(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.contexts)

    @property
    def batch(self) -> int:
        """Sequences on this GPU."""
        return len(self.tokens(0))

    def tokens(self, step: int) -> list[int]:
        """Tokens that each sequence on this GPU has at the end of a step, wherever its rows lie."""
        new = step * self.accepted + self.draft - 1
        return [tokens + new for tokens in self.parallel.sequences(self.contexts)]

    def each_token(self, step: int) -> list[int]:
        """Rows of each sequence on this GPU as each of its new tokens sees them, sequence after sequence."""
        return self.run.each_token(self.rows(step))

    def shape(self, shape: Shape) -> Shape:
        """What an attention kernel sees: heads of all GPUs that share positions, for each new token."""
        return drafted(gathered(shape, self.parallel), self.draft)

    def rows(self, step: int) -> list[int]:
        """Rows of each of them that lie on this GPU."""
        return [self.parallel.rows(tokens) for tokens in self.tokens(step)]

    @property
    def run(self) -> Run:
        """What every layer is told."""
        rows = self.rows(self.steps - 1)
        return Run(len(rows), max(rows), self.units, self.staged, lengths=tuple(rows), draft=self.draft)


def job_of(
    model: str,
    contexts: Sequence[int],
    *,
    steps: int,
    device: str,
    selection: str | None,
    stage: str | None,
    seed: int,
    units: int,
    changes: Changes,
    part: str,
    routing: str | None,
    parallel: Parallel,
    draft: int,
    accepted: int | None,
) -> Job:
    """A job of these words and numbers, as `record_step` explains them."""
    whole = get_model(model, changes)
    for tokens in contexts:
        within("context", tokens, 1, MOST_TOKENS)
    within("batch", len(contexts), 1, MOST_BATCH)
    within("steps", steps, 1, MOST_STEPS)
    within("units", units, 1, MOST_UNITS)
    within("seed", seed, 0, 2**63 - 1)
    known("device", device, DEVICES)
    known("part", part, PARTS)
    if stage is not None:
        known("stage", stage, STAGES)
    _check_parallel(parallel, len(contexts), device)
    _check_draft(whole, draft, accepted, steps, device, parallel)
    drawn = _selected(whole, device, selection, stage, seed)
    experts = None
    if routing is not None and part != "step":
        raise UsageError(f"--routing {routing} with --part {part}: it has no experts; add --part step")
    if part == "step":
        whole_step.check(whole)
        experts = routing_of(whole, device, routing, seed)
    return Job(
        shard(whole, parallel),
        tuple(contexts),
        steps,
        device,
        drawn,
        stage is not None,
        seed,
        units,
        part,
        experts,
        parallel,
        draft,
        draft if accepted is None else accepted,
    )


def _check_draft(
    model: Model, draft: int, accepted: int | None, steps: int, device: str, parallel: Parallel
) -> None:
    """UsageError for what is not recorded of several new tokens a step."""
    within("draft", draft, 1, MOST_DRAFT)
    within("accepted", 1 if accepted is None else accepted, 1, draft)
    if draft == 1:
        return
    if device != "meta":
        raise UsageError(f"--draft {draft} with --device {device}: no mask between new tokens; use meta")
    if parallel.dcp > 1:
        raise UsageError(f"--draft {draft} with --parallel {parallel.words}: positions are shared; use dcp=1")
    if model.selects and steps > 1 and accepted not in (None, draft):
        raise UsageError(
            f"--draft {draft} --accepted {accepted} with model '{model.name}' and --steps {steps}: which "
            "rows a token selects that comes a second time is not known; use --steps 1, or accept all"
        )
    for layer in model.layers:
        if isinstance(layer.shape, CsaShape) and layer.shape.window.style != "v4":
            raise UsageError(
                f"--draft {draft} with model '{model.name}': its candidate blocks are recorded for one token "
                "a step; take another model"
            )
        shape = layer.shape.attention if isinstance(layer.shape, SwaShape) else layer.shape
        if isinstance(shape, GqaShape):
            most = tile_of(shape, local=layer.kind == "swa").queries * shape.kv_heads // shape.heads
            if draft > most:
                raise UsageError(
                    f"--draft {draft} with model '{model.name}': a tile of the attention holds the queries "
                    f"of {most} tokens; use as many at most"
                )


def _check_parallel(parallel: Parallel, batch: int, device: str) -> None:
    """UsageError for what is not recorded of several GPUs."""
    if parallel.gpus > 1 and device != "meta":
        raise UsageError(
            f"--parallel {parallel.words} with --device {device}: what the other GPUs hold is not there; "
            "use --device meta"
        )
    parallel.check_batch(batch)


def _selected(
    model: Model, device: str, selection: str | None, stage: str | None, seed: int
) -> Selected | None:
    """What `selection` names; None for real scores and for models that select nothing."""
    if not model.selects:
        word = f"--selection {selection}" if selection is not None else f"--stage {stage}"
        if selection is not None or stage is not None:
            raise UsageError(
                f"{word} with model '{model.name}': it has no sparse attention, every row is read; "
                "leave the option away or record deepseek-v3.2"
            )
        return None
    if selection == REAL and device == "meta":
        raise UsageError(
            "--selection real with --device meta: there are no scores to select by; "
            f"use --device cpu or a named selection, such as {META_SELECTION}"
        )
    spec = selection or (META_SELECTION if device == "meta" else REAL)
    return None if spec == REAL else Selected(model, spec, seed)


def known(name: str, word: str, words: Sequence[str]) -> None:
    """UsageError for a word that is not there."""
    if word not in words:
        raise UsageError(f"--{name} {word}: unknown {name}; choose one of: {', '.join(words)}")
