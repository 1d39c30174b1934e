"""A published decode curve beside ours: figure 7b of Kimi Linear's report, full MLA against the hybrid.

Enters: the published times, batch 1 (`tables/quoted/kimi_linear_fig7b.csv`), and what `memsim.project` says
of the attention of both models on an H100. Leaves: both ratios at nine contexts, as a table and a figure. A
step has more than attention (weights, experts, launches): one constant stands for it, the hybrid's published
time at the shortest context less the attention that we replay there. Nothing else is fitted to the figure.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memsim.projection import project
from validation import show
from validation.figures_model import Figure, Line, Panel

if TYPE_CHECKING:
    from memsim.progress import Progress

TABLE = Path(__file__).with_name("tables") / "quoted" / "kimi_linear_fig7b.csv"
HYBRID, FULL, MACHINE = "kimi-linear", "kimi-linear-all-mla", "h100"
NAME = "kimi_linear_fig7b"
_PS_PER_MS = 10**9


@dataclass(frozen=True)
class Row:
    """One context: published times of the whole step and replayed ones of its attention [ms]."""

    context_tokens: int
    full_ms: float
    hybrid_ms: float
    our_full_ms: float
    our_hybrid_ms: float


@dataclass(frozen=True)
class Compared:
    """All contexts, and the constant that stands for the rest of a step [ms]."""

    rows: tuple[Row, ...]
    rest_ms: float

    def ratio(self, row: Row) -> float:
        """Full MLA over the hybrid, as we have it."""
        return (row.our_full_ms + self.rest_ms) / (row.our_hybrid_ms + self.rest_ms)

    def difference(self, row: Row) -> float:
        """Our ratio over the published one, less 1."""
        return self.ratio(row) / (row.full_ms / row.hybrid_ms) - 1


def published() -> list[tuple[int, float, float]]:
    """Context, full MLA and hybrid [ms], contexts rising."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [(int(row["context_tokens"]), float(row["mla_ms"]), float(row["kimi_ms"])) for row in rows]


def compared(workers: int | None = None, progress: Progress | None = None) -> Compared:
    """Replay both models at all contexts. MissingExtra without torch."""
    rows = published()
    points = project(
        [FULL, HYBRID],
        MACHINE,
        context=[row[0] for row in rows],
        part="attention",
        workers=workers,
        progress=progress,
    )
    times = [point.tpot_ps / _PS_PER_MS for point in points]
    return beside(rows, times[: len(rows)], times[len(rows) :])


def beside(
    rows: Sequence[tuple[int, float, float]], full_ms: Sequence[float], hybrid_ms: Sequence[float]
) -> Compared:
    """Published rows with our times of the attention of both."""
    joined = tuple(Row(*row, a, b) for row, a, b in zip(rows, full_ms, hybrid_ms, strict=True))
    return Compared(joined, joined[0].hybrid_ms - joined[0].our_hybrid_ms)


def text(found: Compared) -> str:
    """A row a context, then how to read it."""
    cells = [
        [
            f"{row.context_tokens // 1024}K",
            *(f"{row.full_ms:.2f}", f"{row.hybrid_ms:.2f}", f"{row.full_ms / row.hybrid_ms:.2f}"),
            *(f"{row.our_full_ms:.2f}", f"{row.our_hybrid_ms:.2f}", f"{found.ratio(row):.2f}"),
            f"{found.difference(row):+.1%}",
        ]
        for row in found.rows
    ]
    names = ("context", "full ms", "hybrid ms", "ratio", "our full", "our hybrid", "ratio", "differs")
    return show.table(names, cells, left=(0,)) + (
        f"published: whole steps, batch 1; ours: attention alone, on {MACHINE}; its ratio counts\n"
        f"{found.rest_ms:.2f} ms for the rest of a step: the hybrid's at the shortest context less ours\n"
    )


def figure(found: Compared) -> Figure:
    """Times and ratios, published and ours, along the context."""
    xs = tuple(float(row.context_tokens) for row in found.rows)
    times = (
        Line("full MLA, published", xs, tuple(row.full_ms * 1e6 for row in found.rows)),
        Line("full MLA, ours", xs, tuple((row.our_full_ms + found.rest_ms) * 1e6 for row in found.rows)),
        Line("hybrid, published", xs, tuple(row.hybrid_ms * 1e6 for row in found.rows)),
        Line("hybrid, ours", xs, tuple((row.our_hybrid_ms + found.rest_ms) * 1e6 for row in found.rows)),
    )
    ratios = (
        Line("published", xs, tuple(row.full_ms / row.hybrid_ms for row in found.rows)),
        Line("ours", xs, tuple(found.ratio(row) for row in found.rows)),
    )
    panels = (
        (Panel("", "Tokens in the cache", "Time of a token", times, "tokens", "ns", x_log=True),),
        (Panel("", "Tokens in the cache", "Full MLA / hybrid", ratios, "tokens", x_log=True),),
    )
    worst = max(abs(found.difference(row)) for row in found.rows)
    return Figure(
        NAME,
        "Kimi Linear against full MLA, batch 1: published and replayed",
        f"Published: figure 7b of arXiv 2510.26692, no GPU named. Ours: attention replayed on {MACHINE} and "
        f"{found.rest_ms:.2f} ms for the rest of a step, which closes the hybrid's shortest context and "
        f"nothing else. The ratios differ by {worst:.1%} at most.",
        panels,
    )
