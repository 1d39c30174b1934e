"""What is special about the figures of some families: everything that their rows do not say by themselves.

Leaves: `view(name)`, the `figures_model.View` of a family, or None. Keys are families, or the first or the
last part of a name ("chase"), which then holds for all families of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from validation.figures_model import BANDWIDTH, TIME, Quantity, View
from validation.figures_rows import FamilyRows, Row, Value, number


def _tflops(row: Row, time_ns: float) -> float | None:
    flops = number(row, "flops")
    return flops / time_ns / 1000 if flops and time_ns > 0 else None


def _per_node(row: Row, time_ns: float) -> float | None:
    nodes = number(row, "nodes")
    return time_ns / nodes if nodes and time_ns > 0 else None


HOP = Quantity("Latency of a dependent load", lambda row, time_ns: time_ns, "ns")
SINGLE = Quantity("Time of a single load", lambda row, time_ns: time_ns, "ns")
RATE = Quantity("Arithmetic [TFLOP/s]", _tflops)
REPLAY = Quantity("Time of a replay", lambda row, time_ns: time_ns, "ns")
NODE = Quantity("Time of a replay / nodes", _per_node, "ns")
HOST = Quantity("Time on the host's clock", lambda row, time_ns: time_ns, "ns")
LINK = Quantity("Bandwidth of the link [GB/s]", lambda row, time_ns: number(row, "bytes_read") / time_ns)


def _beside(row: Row) -> str:
    """ "far read x 8 beside copy in": what is measured, on so many multiprocessors, and what runs with it."""
    roles = (("measured", "blocks"), ("other", "other_blocks"))
    words = [
        str(row[role]).replace("_", " ") + (f" x {number(row, blocks):.0f}" if number(row, blocks) else "")
        for role, blocks in roles
    ]
    return words[0] if words[1] == "none" else " beside ".join(words)


def _side(row: Row) -> str:
    """Links and the GPU's own memory are decades apart: a figure for each."""
    return "near" if str(row["measured"]).startswith("near") else "far"


VIEWS = {
    "chase": View(quantities=(HOP,)),
    "chase.sm": View(quantities=(HOP,), x="sm", x_label="Multiprocessor", linear=True, joined=False),
    "chase.single": View(quantities=(SINGLE,), x="footprint", lines=("percent",)),
    "beside": View(quantities=(BANDWIDTH,), bars=True, part=_side, bar=_beside),
    "host.stream": View(quantities=(BANDWIDTH,)),  # calls of one line move different bytes
    "peer.stream": View(quantities=(BANDWIDTH,)),
    "stage.gather": View(quantities=(LINK, TIME)),
    "mla.sparse": View(facet="heads"),
    "loaded.latency": View(
        quantities=(HOP,),
        x="stream_mbps",
        x_label="Traffic of the other multiprocessors [GB/s]",
        x_factor=1e-3,
        lines=("kind",),
        joined=False,
        linear=True,
    ),
    "launch.gap": View(quantities=(REPLAY, NODE)),
    "launch.host": View(quantities=(HOST,)),
    "matrix.rate": View(quantities=(RATE, TIME)),
    "fma.rate": View(quantities=(RATE,)),
}


@dataclass(frozen=True)
class Group:
    """Families whose names begin alike, as far as `where` picks their rows, in one figure along `x`."""

    prefix: str
    what: str
    x: str
    where: Mapping[str, Value] = field(default_factory=dict)


GROUPS = (
    Group("stack.", "attention of all layers of one decode step, batch 1", "context", {"batch": 1.0}),
    Group(
        "stream.",
        "streams over the GPU's own memory by size, all in flight, cold",
        "bytes",
        {"cache": "cold", "blocks": 1056.0, "flight": 8192.0},
    ),
)


def combined(families: Sequence[FamilyRows]) -> Iterator[FamilyRows]:
    """One family for each group with several members on a machine; its axes: x and the member's name."""
    for group in GROUPS:
        rows = [
            {**row, "of": family.name.removeprefix(group.prefix)}
            for family in families
            if family.name.startswith(group.prefix)
            for row in family.rows
            if group.where.items() <= row.items()
        ]
        if len({row["of"] for row in rows}) > 1:
            yield FamilyRows(f"{group.prefix}all", group.what, (group.x, "of"), tuple(rows))


def view(name: str) -> View | None:
    """The view of a family: its own, else that of its kind, the first or last part of its name."""
    names = (name, name.partition(".")[0], name.rpartition(".")[2])
    return next((VIEWS[each] for each in names if each in VIEWS), None)
