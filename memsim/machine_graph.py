"""A picture of a machine: nodes, what sits at them, and the links between them, as one SVG text.

A checked `Profile` enters, SVG leaves. The first initiator's node stands on the left, what is further away
by hops further right. Nodes are boxes with a card for each initiator, cache and tier; the bar of a card and
the line of a link are the wider the more bandwidth they sustain (by its logarithm). Left out: provenance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from memsim.errors import OutputError
from memsim.route import build_system
from memsim.system import Link, System, Tier
from memsim.units import format_rate, format_time

if TYPE_CHECKING:
    from memsim.profile_schema import CacheTable, InitiatorTable, Profile, TierTable

FONT, LETTER, LINE = 13, 7.3, 18  # size, width of a letter on average, line height [px]
PAD, GAP, MARGIN = 10, 26, 24
WIRE, LANE = 40, 56  # of a link on both sides of its label; of a link below the boxes
COLORS = {"initiator": "#3b6fb5", "cache": "#8a8f98", "tier": "#2f8f6b", "link": "#5c6470"}


@dataclass
class Card:
    """Lines of text with a bar of `width` px; the first line is a name."""

    kind: str
    lines: list[str]
    width: float


@dataclass
class Node:
    """A box: its cards, the links to its children and where it stands [px]."""

    name: str
    note: str = ""
    cards: list[Card] = field(default_factory=list)
    children: list[tuple[int, Node]] = field(default_factory=list)
    depth: int = 0
    x: float = 0
    y: float = 0

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        texts = [f"{self.name}  {self.note}", *(line for card in self.cards for line in card.lines)]
        height = LINE + 2 * PAD + sum(len(card.lines) * LINE + 2 * PAD for card in self.cards)
        return max(map(len, texts)) * LETTER + 4 * PAD + 12, height


def draw(profile: Profile, path: Path) -> None:
    """Write the picture of a machine to `path`; OutputError if that fails."""
    try:
        path.write_text(svg(profile), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}; choose another path") from None


def svg(profile: Profile) -> str:
    """The picture of a machine as SVG text; ProfileError for a machine that cannot be built."""
    system = build_system(profile)
    root, extra = _tree(profile, system)
    nodes = list(_walk(root))
    _place(root, MARGIN + 2 * LINE + PAD, _columns(nodes, system))
    right = max(node.x + node.size[0] for node in nodes)
    lanes = [len(_lane_label(system, number)[1]) * LETTER + right for number, *_ in extra]
    width = max(right, len(profile.title) * LETTER + MARGIN, *lanes) + MARGIN
    low = max(node.y + node.size[1] for node in nodes) + LANE / 2
    height = low + LANE * len(extra) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{FONT}">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(MARGIN, MARGIN + PAD, profile.name, "#111", bold=True, size=18),
        _text(MARGIN, MARGIN + PAD + LINE + 4, profile.title, "#444"),
        *(line for at, each in enumerate(extra) for line in _chord(nodes, low + at * LANE, each, system)),
        *(line for node in nodes for line in _links_of(node, system)),
        *(line for node in nodes for line in _box(node)),
        _text(MARGIN, height - PAD, "lines and bars: the wider the more bandwidth", "#777", size=11),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _tree(profile: Profile, system: System) -> tuple[Node, list[tuple[int, str, str]]]:
    """Nodes by hops from the first initiator's, and the links that close a ring as (number, near, far)."""
    nodes: dict[str, Node] = {}
    first = next(iter(profile.initiator))
    for name, runner in profile.initiator.items():
        _node(nodes, runner.attach or name).cards.append(_initiator_card(name, runner))
    root = nodes[profile.initiator[first].attach or first]
    for name, cache in profile.cache.items():
        root.cards.append(_cache_card(name, cache))
    for tier in system.tiers:
        table = profile.tier[tier.name]
        _node(nodes, table.attach).cards.append(_tier_card(tier, table))
    for name, switch in profile.switch.items():
        _node(nodes, name).note = f"switch, {switch.latency.text}"
    ends = [link.between for link in profile.link.values()]
    seen, queue, used = {root.name}, [root], set()
    for node in queue:  # grows while it is walked: nearest first
        for number, pair in enumerate(ends):
            other = pair[1] if pair[0] == node.name else pair[0]
            if node.name in pair and other not in seen:
                child = _node(nodes, other)
                child.depth = node.depth + 1
                node.children.append((number, child))
                seen.add(other)
                queue.append(child)
                used.add(number)
    return root, [(n, *pair) for n, pair in enumerate(ends) if n not in used and {*pair} <= seen]


def _node(nodes: dict[str, Node], name: str) -> Node:
    return nodes.setdefault(name, Node(name))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for _, child in node.children:
        yield from _walk(child)


def _columns(nodes: Sequence[Node], system: System) -> list[float]:
    """Left edge of each column: boxes, then room for the labels of the links to the next."""
    lefts, x = [], float(MARGIN)
    for depth in range(1 + max(node.depth for node in nodes)):
        mine = [node for node in nodes if node.depth == depth]
        lefts.append(x)
        labels = [
            len(line) for node in mine for number, _ in node.children for line in _label(system, number)
        ]
        x += max(node.size[0] for node in mine) + max(labels, default=0) * LETTER + 2 * WIRE
    return lefts


def _place(node: Node, top: float, lefts: Sequence[float]) -> float:
    """Give a node and all behind it their places from `top` down; returns where they end."""
    node.x = lefts[node.depth]
    height = node.size[1]
    if not node.children:
        node.y = top
        return top + max(height, 4 * LINE)
    at = top
    for _, child in node.children:
        at = _place(child, at, lefts) + GAP
    bottom = at - GAP
    middles = [child.y + child.size[1] / 2 for _, child in (node.children[0], node.children[-1])]
    node.y = max(top, sum(middles) / 2 - height / 2)
    if len(node.children) == 1 and height > bottom - top:  # a tall box before a short one
        _shift(node.children[0][1], (height - (bottom - top)) / 2)
    return max(bottom, node.y + height)


def _shift(node: Node, by: float) -> None:
    for each in _walk(node):
        each.y += by


def _links_of(node: Node, system: System) -> Iterator[str]:
    """Lines from a node to those behind it, each with its label before its far end."""
    width, height = node.size
    for place, (number, child) in enumerate(node.children):
        label = _label(system, number)
        begin_y = node.y + height * (place + 1) / (len(node.children) + 1)
        end_x, end_y = child.x, child.y + child.size[1] / 2
        flat_x = end_x - max(map(len, label)) * LETTER - WIRE
        begin_x = node.x + width
        bend_x = (begin_x + flat_x) / 2
        yield _wire(
            f"M {begin_x:.0f} {begin_y:.0f} C {bend_x:.0f} {begin_y:.0f} {bend_x:.0f} {end_y:.0f} "
            f"{flat_x:.0f} {end_y:.0f} L {end_x:.0f} {end_y:.0f}",
            system.links[number],
        )
        yield from _label_texts(flat_x + PAD, end_y, label, system.links[number])


def _chord(
    nodes: Sequence[Node], lane_y: float, extra: tuple[int, str, str], system: System
) -> Iterator[str]:
    """A link that closes a ring: below all boxes, and behind those in its way."""
    number, *ends = extra
    (x1, y1), (x2, y2) = (
        (node.x + node.size[0] * (0.4 if node.name == ends[0] else 0.6), node.y + node.size[1])
        for node in nodes
        if node.name in ends
    )
    yield _wire(f"M {x1:.0f} {y1:.0f} V {lane_y:.0f} H {x2:.0f} V {y2:.0f}", system.links[number])
    left, under = min(x1, x2), lane_y + _bar(max(system.links[number].mbps)) / 2 + LINE - 3
    name, rest = _lane_label(system, number)
    yield _text(left, under, name, "#111", bold=True)
    yield _text(left, under + LINE - 3, rest, "#333", size=12)


def _lane_label(system: System, number: int) -> tuple[str, str]:
    name, *rest = _label(system, number)
    return name, ", ".join(rest)


def _wire(path: str, link: Link) -> str:
    width = _bar(max(link.mbps))
    return f'<path d="{path}" fill="none" stroke="{COLORS["link"]}" stroke-width="{width:.1f}"/>'


def _label(system: System, number: int) -> list[str]:
    """Name, rates each way, latency and limits of a link."""
    link = system.links[number]
    (inward, outward), (peak_in, peak_out) = link.mbps, link.peak_mbps
    if link.mbps[0] == link.mbps[1] and peak_in == peak_out:
        rates = [f"{_of(inward, peak_in)} {'both ways together' if link.shared else 'each way'}"]
    else:
        rates = [f"out {_of(outward, peak_out)}", f"in {_of(inward, peak_in)}"]
    tags = f", {link.tags:,} tags" if link.tags else ""
    return [link.name, *rates, _plain(link.latency_ps) + tags]


def _label_texts(x: float, y: float, lines: Sequence[str], link: Link) -> Iterator[str]:
    """The name above the line, the rest below it."""
    half = _bar(max(link.mbps)) / 2
    yield _text(x, y - half - 5, lines[0], "#111", bold=True)
    for number, line in enumerate(lines[1:], 1):
        yield _text(x, y + half + number * (LINE - 3), line, "#333", size=12)


def _box(node: Node) -> Iterator[str]:
    width, height = node.size
    dash = ' stroke-dasharray="5 3"' if node.note else ""
    yield (
        f'<rect x="{node.x:.0f}" y="{node.y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="8" '
        f'fill="#f6f7f9" stroke="#9aa1ab"{dash}/>'
    )
    yield _text(node.x + PAD, node.y + PAD + FONT, node.name, "#111", bold=True)
    if node.note:
        yield _text(node.x + PAD + (len(node.name) + 2) * LETTER, node.y + PAD + FONT, node.note, "#444")
    y = node.y + LINE + PAD + 4
    for card in node.cards:
        tall = len(card.lines) * LINE + PAD
        yield (
            f'<rect x="{node.x + PAD:.0f}" y="{y:.0f}" width="{width - 2 * PAD:.0f}" height="{tall}" rx="4" '
            f'fill="white" stroke="{COLORS[card.kind]}"/>'
        )
        yield (
            f'<rect x="{node.x + PAD:.0f}" y="{y:.0f}" width="{card.width:.1f}" height="{tall}" rx="2" '
            f'fill="{COLORS[card.kind]}"/>'
        )
        for number, line in enumerate(card.lines):
            at = y + PAD / 2 + FONT + number * LINE
            color = "#111" if number else COLORS[card.kind]
            yield _text(node.x + 2 * PAD + 12, at, line, color, bold=not number)
        y += tall + PAD


def _text(x: float, y: float, words: str, color: str, *, bold: bool = False, size: int = FONT) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}" font-size="{size}"{weight}>{escape(words)}</text>'


def _initiator_card(name: str, table: InitiatorTable) -> Card:
    """Units, what each may have in flight, rates and set-up, as the file says them."""
    units = table.units.number
    rates = {"bf16": table.bf16, "fp8": table.fp8, "fp4": table.fp4, "fp32": table.fp32}
    lines = [
        f"{name}: {units} {'units' if units > 1 else 'unit'}",
        f"{table.unit_outstanding.text} in flight a unit",
        *_port(table),
        *(f"{kind} {rate.text}" for kind, rate in rates.items() if rate),
    ]
    if table.setup:
        lines.append(f"set-up {table.setup.text}")
    return Card("initiator", lines, 4)


def _port(table: InitiatorTable) -> Iterator[str]:
    """What one unit takes in and gives out, where that is limited."""
    if table.port or table.port_write:
        ways = (table.port, table.port_write or table.port)
        words = (
            f"{quantity.text} {way}" for quantity, way in zip(ways, ("in", "out"), strict=True) if quantity
        )
        yield f"a unit {', '.join(words)}"


def _cache_card(name: str, table: CacheTable) -> Card:
    lines = [f"{name}: {table.capacity.text}", f"{table.bandwidth.text}, {table.latency.text}"]
    if table.write_bandwidth:
        lines.append(f"writes {table.write_bandwidth.text}")
    if table.copies and table.copies.number > 1:
        lines.append(f"{table.copies.number} copies of what is read")
    return Card("cache", lines, _bar(table.bandwidth.number))


def _tier_card(tier: Tier, table: TierTable) -> Card:
    """Size, sustained rates and latencies of a tier, and its operations a second."""
    many = f"{tier.devices} x " if tier.devices > 1 else ""
    read, write = (tier.channels * mbps for mbps in tier.channel_mbps)
    rate = _of(read, tier.peak_mbps)
    lines = [f"{tier.name}: {many}{table.capacity.text}", f"{rate}, {table.latency.text}"]
    if read != write or table.write_latency:
        written = table.write_latency or table.latency
        lines.append(f"writes {format_rate(write * 10**6)}, {written.text}")
    for kind, iops in (("reads", table.read_iops), ("writes", table.write_iops)):
        if iops:
            lines.append(f"{many}{iops.number / 10**6:.3g} M {kind}/s")
    if table.turnaround:
        lines.append(f"turns round in {table.turnaround.text}")
    for level in sorted(table.translation.values(), key=lambda level: level.reach.number):
        lines.append(f"beyond {level.reach.text}: {level.latency.text} more")
    return Card("tier", lines, _bar(max(read, write)))


def _of(mbps: int, peak_mbps: int) -> str:
    """Sustained and peak rate."""
    return f"{format_rate(mbps * 10**6)} of {format_rate(peak_mbps * 10**6)}"


def _plain(time_ps: int) -> str:
    """A time without zeros that say nothing: "65 ns"."""
    number, unit = format_time(time_ps).split()
    return f"{float(number):g} {unit}"


def _bar(mbps: int) -> float:
    """Width of a line or bar [px]: 1.5 at 1 GB/s and below, 3 px more for each tenfold."""
    return 1.5 + 3 * max(0.0, math.log10(mbps / 1000))
