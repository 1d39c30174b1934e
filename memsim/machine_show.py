"""`memsim machines show` and `diff`: a machine as a datasheet, two machines side by side.

Checked profiles enter; data for JSON leave (`document`, `differences`), or what rich prints (`sheet`,
`table_of_differences`). Rates of paths are closed forms: what links and tiers sustain, or less where what may
be in flight binds (`closed_form`); latencies are those of an idle machine. Large sizes are decimal. Words of
a file are printed as they are, never as markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memsim.closed_form import Way, path_of, reached_copy, reached_stream
from memsim.kernel import copy_engines
from memsim.quantity import Quantity, Size
from memsim.report import plain_table
from memsim.report_json import machine
from memsim.route import build_system, idle_latency_ps
from memsim.system import MILLION, PROVENANCES, System, Tier
from memsim.units import format_bytes, format_rate, format_time

if TYPE_CHECKING:
    from memsim.profile_schema import Profile

_PS = 10**12  # picoseconds of a second
# What takes the place of a key that is left out: another key of the table, a value, a word, or "none".
SAME_AS = {
    "write_bandwidth": "bandwidth",
    "bandwidth_out": "bandwidth",
    "write_efficiency": "efficiency",
    "efficiency_out": "efficiency",
    "write_latency": "latency",
    "port_write": "port",
}
NO_LIMIT = "no limit"
LIMITS = (
    "request",
    "port",
    "power_bandwidth",
    "read_iops",
    "write_iops",
    "queue_depth",
    "tags",
    "credits",
    "payload",
)
DEFAULTS = {
    **{"devices": "1", "copies": "1", "header": "0 B", "write_buffer": "0 B"},
    **dict.fromkeys(("dispatch", "setup", "turnaround", "wake", "work_latency", "turn"), "0 s"),
    **dict.fromkeys(LIMITS, NO_LIMIT),
}
NO_NUMBERS = (NO_LIMIT, "none")
_BINARY = ("GiB", "TiB", "PiB")


def document(profile: Profile) -> dict[str, Any]:
    """A machine as JSON: routes, what each path can do, what each tier costs, every number."""
    system = build_system(profile)
    effects = profile.effects()
    numbers = [{**number, "effect": effects[number["path"]]} for number in machine(system)["numbers"]]
    return {
        "title": profile.title,
        **machine(system),
        "paths": [
            _path(system, initiator, tier)
            for initiator in range(len(system.initiators))
            for tier in range(len(system.tiers))
        ],
        "tiers": {tier.name: _tier(tier) for tier in system.tiers},
        "numbers": numbers,
    }


def _path(system: System, initiator: int, tier: int) -> dict[str, Any]:
    ways = [Way(system, initiator, tier, write) for write in (False, True)]
    reached = reached_copy if initiator in copy_engines(system) else reached_stream
    reads, writes = (reached(way) for way in ways)
    return {
        "initiator": system.initiators[initiator].name,
        "tier": system.tiers[tier].name,
        "links": [system.links[hop.link].name for hop in system.routes[initiator][tier]],
        "read_bytes_per_s": reads[0] * MILLION,
        "read_bound": reads[1],
        "write_bytes_per_s": writes[0] * MILLION,
        "write_bound": writes[1],
        "path_read_bytes_per_s": path_of(ways[0])[0] * MILLION,
        "path_write_bytes_per_s": path_of(ways[1])[0] * MILLION,
        "idle_read_s": idle_latency_ps(system, initiator, tier) / _PS,
        "idle_write_s": idle_latency_ps(system, initiator, tier, write=True) / _PS,
        "energy_pj_per_bit": _energy_pj(system, initiator, tier),
    }


def _energy_pj(system: System, initiator: int, tier: int) -> float | None:
    """Energy of a bit on the way, links and tier; None where a part does not say."""
    links = [system.links[hop.link].energy_fj for hop in system.routes[initiator][tier]]
    parts = [*links, system.tiers[tier].energy_fj]
    return sum(parts) / 1000 if all(parts) else None


def _tier(tier: Tier) -> dict[str, Any]:
    return {
        "devices": tier.devices,
        "capacity_bytes": tier.capacity_bytes,
        "peak_bytes_per_s": tier.peak_mbps * MILLION,
        "usd_per_gb": {scenario: price / MILLION for scenario, price in tier.cost},
        "usd": {scenario: price * tier.capacity_bytes / 10**15 for scenario, price in tier.cost},
    }


def sheet(profile: Profile) -> RenderableType:
    """A machine as people read it: its paths, its memories, then every number with its source."""
    system = build_system(profile)
    return Group(
        Text(f"{profile.name}: {profile.title}", style="bold"),
        Text(),
        _paths(system),
        Text("read, write: what one long stream reaches, headers taken off; of a copy"),
        Text("engine, copies from and to the first tier; by: what binds it"),
        Text("idle: a read there and back, transfers not counted"),
        Text(),
        _memories(system),
        Text(),
        _trust(profile),
        Text(),
        numbers(profile),
    )


def _paths(system: System) -> Table:
    """Every initiator's way to every tier."""
    table = plain_table("path", "over", "read", "by", "write", "by", "idle", left=(0, 1, 3, 5))
    table.columns[0].no_wrap = True
    for initiator, runner in enumerate(system.initiators):
        table.add_row(Text(f"from {runner.name}", style="bold"))
        for tier in range(len(system.tiers)):
            path = _path(system, initiator, tier)
            table.add_row(
                Text(f"  {path['tier']}"),
                Text(", ".join(path["links"]) or "local"),
                format_rate(path["read_bytes_per_s"]),
                Text(path["read_bound"]),
                format_rate(path["write_bytes_per_s"]),
                Text(path["write_bound"]),
                format_time(idle_latency_ps(system, initiator, tier)),
            )
    return table


def _memories(system: System) -> Table:
    """Size, peak and price of every tier, and the energy of the first initiator's way to it."""
    scenarios = list(dict.fromkeys(scenario for tier in system.tiers for scenario, _ in tier.cost))
    prices = [f"USD/GB {scenario}" for scenario in scenarios]
    table = plain_table("tier", "devices", "capacity", "peak", "pJ/bit", *prices)
    for number, tier in enumerate(system.tiers):
        energy_pj, cost = _energy_pj(system, 0, number), dict(tier.cost)
        table.add_row(
            Text(tier.name),
            f"{tier.devices:,}",
            format_bytes(tier.capacity_bytes),
            format_rate(tier.peak_mbps * MILLION),
            "-" if energy_pj is None else f"{energy_pj:g}",
            *(f"{cost[scenario] / MILLION:g}" if scenario in cost else "-" for scenario in scenarios),
        )
    return table


def _trust(profile: Profile) -> Text:
    """How many numbers are how far to be trusted."""
    found: Counter[str] = Counter(quantity.provenance for _, quantity in profile.quantities())
    counted = ", ".join(f"{found[name]} {name}" for name in PROVENANCES if found[name])
    return Text(f"{found.total()} numbers: {counted}")


def numbers(profile: Profile) -> Table:
    """Every number with its provenance and source, under a heading for each table of the file."""
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    for column in ("number", "value", "provenance", "source"):
        table.add_column(column, overflow="fold", no_wrap=column in ("number", "provenance"))
    heading = ""
    for path, quantity in profile.quantities():
        group, _, key = path.rpartition(".")
        if group != heading:
            heading = group
            table.add_row(Text(group, style="bold"), "", "", Text(_words(profile, group)))
        table.add_row(
            Text(f"  {key}"), Text(_printed(quantity)), Text(quantity.provenance), Text(quantity.source)
        )
    return table


def _words(profile: Profile, group: str) -> str:
    """What the words of a table say: where it sits, what it joins."""
    kind, _, name = group.partition(".")
    if kind == "initiator":
        return f"at {profile.initiator[name].attach or name}"
    if kind == "cache":
        return f"of {profile.cache[name].attach}"
    if kind == "tier" and name in profile.tier:
        moves = "; takes commands and moves data by itself" if profile.tier[name].access == "command" else ""
        return f"at {profile.tier[name].attach}{moves}"
    if kind == "link":
        link = profile.link[name]
        both = "both directions at once" if link.duplex == "full" else "directions take turns"
        return f"{link.between[0]} to {link.between[1]}, {both}"
    return ""


def _printed(quantity: Quantity) -> str:
    """A value as written, but for large binary sizes: GB and GiB never stand in one table."""
    if isinstance(quantity, Size) and quantity.text.strip().endswith(_BINARY):
        whole, rest = divmod(quantity.number, 10**9)
        return f"{whole}.{rest:09}".rstrip("0").rstrip(".") + " GB"
    return quantity.text


def differences(first: Profile, second: Profile) -> list[dict[str, Any]]:
    """What two machines do not share: path, and value, provenance and source of each.

    A key that was left out has the default that takes its place, with `default` as its source; None stands
    where the whole table is missing. A number that is only written otherwise ("4800 GB/s") is no difference.
    """
    ours, theirs = dict(first.entries()), dict(second.entries())
    return [
        {"path": path, "first": _entry(first, path, ours), "second": _entry(second, path, theirs)}
        for path in dict.fromkeys([*ours, *theirs])
        if _differ((ours.get(path), theirs.get(path)), [_default(each, path) for each in (first, second)])
    ]


Pair = Sequence[Quantity | str | None]  # an entry of either machine


def _differ(pair: Pair, defaults: Sequence[str | None]) -> bool:
    first, second = _meant(pair, defaults)
    return bool(first != second)


def _meant(pair: Pair, defaults: Sequence[str | None]) -> list[Any]:
    """What both entries of a path stand for, numbers in integer units; those left out by their defaults."""
    kinds = [type(entry) for entry in pair if isinstance(entry, Quantity)]
    meant = []
    for entry, default in zip(pair, defaults, strict=True):
        value = entry.value if isinstance(entry, Quantity) else entry or default
        if kinds and value is not None and value not in NO_NUMBERS:
            value = kinds[0].parse(int(value) if value == "1" else value)
        meant.append(value)
    return meant


def _entry(profile: Profile, path: str, entries: Mapping[str, Quantity | str]) -> dict[str, str] | None:
    entry = entries.get(path)
    if isinstance(entry, Quantity):
        return {"value": entry.text, "provenance": entry.provenance, "source": entry.source}
    if entry is not None:
        return {"value": entry, "provenance": "", "source": ""}
    default = _default(profile, path)
    return None if default is None else {"value": default, "provenance": "", "source": "default"}


def _default(profile: Profile, path: str) -> str | None:
    """What takes the place of a key that a table leaves out; None where there is no such table."""
    group, name, *level, key = path.split(".")
    table = None if group == "cost" else getattr(profile, group).get(name)
    if table is None or (level and level[1] not in getattr(table, level[0])):
        return None
    if key == "attach":
        return name
    same: Quantity | None = getattr(table, SAME_AS[key]) if key in SAME_AS else None
    return same.text if same else DEFAULTS.get(SAME_AS.get(key, key), "none")


def table_of_differences(first: Profile, second: Profile) -> RenderableType:
    """The differences for people, and how many times the second's number is the first's."""
    found = differences(first, second)
    if not found:
        return Text("no difference")
    names = (first.name, second.name if second.name != first.name else f"{second.name} as set")
    table = plain_table("number", *names, "ratio", left=(0, 1, 2))
    ours, theirs = dict(first.entries()), dict(second.entries())
    for path in (difference["path"] for difference in found):
        pair = (ours.get(path), theirs.get(path))
        defaults = [_default(profile, path) for profile in (first, second)]
        cells = [_cell(entry, default) for entry, default in zip(pair, defaults, strict=True)]
        table.add_row(Text(path), Text(cells[0]), Text(cells[1]), _ratio(pair, defaults))
    return table


def _cell(entry: Quantity | str | None, default: str | None) -> str:
    if entry is None:
        return "-" if default is None else f"{default} (default)"
    return _printed(entry) if isinstance(entry, Quantity) else entry


def _ratio(pair: Pair, defaults: Sequence[str | None]) -> str:
    """How many times the first number the second one is; nothing where one of them is none."""
    before, after = _meant(pair, defaults)
    if any(isinstance(each, (str, tuple)) or each is None for each in (before, after)) or not before:
        return ""
    return f"{float(after / before):.3g}"
