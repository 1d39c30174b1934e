"""`memsim.record` and `memsim trace record`: run a model's kernels and write their trace.

A model's name and a context enter, a trace file and a small summary leave. The kernels live in
`workloads` and need torch (extra `kernels`), which are imported only here and inside the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.errors import MissingExtra, OutputError, UsageError
from memsim.output import named
from memsim.units import MOST_BATCH, parse_tokens, within

if TYPE_CHECKING:
    from memsim.progress import Progress

DEFAULT_UNITS = 132  # of an H200; the split of the work into blocks depends on it


def record(
    model: str,
    context: str | int | None,
    out: str | Path,
    *,
    batch: int = 1,
    contexts: str | Path | Sequence[int] | None = None,
    parallel: str | None = None,
    steps: int = 1,
    device: str = "meta",
    selection: str | None = None,
    stage: str | None = None,
    seed: int = 0,
    units: int = DEFAULT_UNITS,
    replace: Sequence[str] = (),
    ratio: str | None = None,
    kv_dtype: str | None = None,
    index_dtype: str | None = None,
    weights_dtype: str | None = None,
    part: str = "attention",
    routing: str | None = None,
    draft: int = 1,
    accepted: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Record one decode step (or `steps` of them) of all layers of `model`: attention, or all.

    context    tokens in the cache with the new one: 131072, "128K" (binary); None with `contexts`
    contexts   a batch of other lengths: tokens of each sequence, or a file with a number a line
    parallel   GPUs that share the model, as "tp=8,ep=8"; the trace is of one of them
    out        the trace file; it appears whole or not at all
    device     `cpu` and `cuda` compute on real tensors, `meta` records shapes alone
    selection  where the rows of sparse attention come from; None: real scores, on meta `dsa_mid`
    stage      `kv` gathers the selected rows into a staging buffer before the attention
    units      processors that the kernels split their work over
    replace, ratio   other layers than the model's own: ["kda=mla"], "kda:mla=7:1"
    kv_dtype, index_dtype, weights_dtype   formats of rows, index keys, weights; None: the model's
    part       `attention`, or `step`: projections, norms, experts, appended rows, tables and sampling too
    routing    experts of a whole step: `uniform` (drawn), `real` (by the router's scores) or a recorded file;
               None: real on real tensors, uniform on meta
    draft, accepted   new tokens that a step computes of each sequence, and of them those that it keeps (None:
               all): times are then per token kept

    Returns what was written: bytes, kernels, rows. UsageError for a wrong word or number, OutputError
    for a file that cannot be written, MissingExtra without torch or without the device.
    """
    for name, value in (("batch", batch), ("steps", steps), ("units", units), ("seed", seed)):
        least = 0 if name == "seed" else 1
        if value < least:
            raise UsageError(f"{name} is {value}; expected a whole number from {least} on")
    within("batch", batch, 1, MOST_BATCH)
    tokens = _contexts(context, contexts, batch)
    out = named(str(out))
    if not out.parent.is_dir():
        raise OutputError(f"{out}: there is no folder {out.parent}; make it first")
    require_torch()
    from workloads.decode import record_step
    from workloads.models.load import changes_of
    from workloads.parallel import ALONE, parse_parallel

    summary: dict[str, Any] = record_step(
        model,
        contexts=tokens,
        parallel=ALONE if parallel is None else parse_parallel(parallel),
        steps=steps,
        device=device,
        selection=selection,
        stage=stage,
        seed=seed,
        units=units,
        changes=changes_of(replace, ratio, kv_dtype, index_dtype, weights_dtype),
        part=part,
        routing=routing,
        draft=draft,
        accepted=accepted,
        out=out,
        progress=progress,
    )
    return summary


def _contexts(
    context: str | int | None, contexts: str | Path | Sequence[int] | None, batch: int
) -> list[int]:
    """Tokens of every sequence: `batch` alike, or those that are listed."""
    if (context is None) == (contexts is None):
        raise UsageError("expected tokens of all sequences (--context) or of each (--contexts), one of both")
    if context is not None:
        return [parse_tokens(context)] * batch
    from workloads.contexts import contexts_of

    assert contexts is not None
    listed = contexts_of(Path(contexts)) if isinstance(contexts, str | Path) else list(contexts)
    if batch not in (1, len(listed)):
        raise UsageError(f"--batch {batch} with {len(listed)} contexts; leave --batch away")
    return listed


def require_torch() -> None:
    """MissingExtra if torch is not installed; it is not imported."""
    if find_spec("torch") is None:
        raise MissingExtra("recording runs kernels in torch, which is missing: pip install 'memsim[kernels]'")
