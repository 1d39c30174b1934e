"""A machine file from what was measured on this computer (docs/machines.md says what its keys mean).

Enters: numbers by name, as `validation.here` makes them. Leaves: TOML. The CPU's threads are the units, its
memory is the tier `host`, the disk of the folder the tier `storage`, if it was measured. What a program
cannot find out (memory channels, interleave) is written as assumed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

REACHED = 0.98  # share of an unknown peak that a measured rate is taken to be


@dataclass(frozen=True)
class Number:
    """One number about this computer; unit: "B/s", "ns", "B", "FLOP/s" or "" for a count."""

    value: float
    unit: str
    source: str
    provenance: str = "measured"


Numbers = dict[str, Number]
Entry = tuple[str | int | float, Number]


def profile_text(numbers: Numbers, name: str = "this-machine", title: str = "") -> str:
    """A machine file of the measured numbers (docs/machines.md). `name`: letters, digits, '-' and '_'."""
    title = title or f"{int(numbers['cpu.threads'].value)} CPUs and their memory, as measured"
    lines = [
        "# Written from measurements of this computer. The processor is the CPU: its threads are the units.",
        "# What no program can find out is assumed; look it up and change it.",
        "# read_iops is that of 4 KiB reads; a scan reads more at a time: replay it with a larger quantum.",
        "",
        f"name = {_quoted(name)}",
        f"title = {_quoted(title)}",
    ]
    for table, attach, keys in _tables(numbers):
        lines += ["", f"[{table}]", *([f'attach = "{attach}"'] if attach else [])]
        lines += [f"{key} = {_entry(value, number)}" for key, (value, number) in keys.items()]
    return "\n".join(lines) + "\n"


def _entry(value: str | int | float, number: Number) -> str:
    words = f"provenance = {_quoted(number.provenance)}, source = {_quoted(number.source)}"
    return f"{{ value = {_quoted(value)}, {words} }}"


def _quoted(value: str | int | float) -> str:
    """A TOML value: JSON's strings without its surrogate pairs are TOML's."""
    return json.dumps(value, ensure_ascii=False)


def _assumed(value: str | int | float, source: str) -> Entry:
    return value, Number(0, "", source, "assumed")


def _mbps(number: Number) -> Entry:
    return f"{max(1, round(number.value / 1e6))} MB/s", number


def _peak(number: Number) -> Entry:
    """The rate that gives `number` when REACHED of it is sustained."""
    words = f"{number.source}; taken to be {REACHED} of the peak"
    return f"{max(2, round(number.value / REACHED / 1e6))} MB/s", replace(number, source=words)


def _ns(value: float, number: Number) -> Entry:
    return f"{max(0.001, value):.3f} ns", number


def best(numbers: Numbers, prefix: str) -> Number:
    """The highest of the numbers whose names begin so: over threads, or over block sizes and depths."""
    return max((n for name, n in numbers.items() if name.startswith(prefix)), key=lambda n: n.value)


def _tables(numbers: Numbers) -> list[tuple[str, str, dict[str, Entry]]]:
    """(table, attach, keys) of the machine file, in its order."""
    tables = [("initiator.cpu", "", _initiator(numbers)), ("cache.llc", "cpu", _llc(numbers))]
    tables.append(("tier.host", "cpu", _host(numbers)))
    if "storage.capacity" in numbers:
        tables.append(("tier.storage", "cpu", _disk(numbers)))
    return tables


def _outstanding(numbers: Numbers) -> tuple[int, str]:
    """Bytes that a thread has under way, and why: for its own reads of memory, or its share of the disk's."""
    one, latency = numbers["memory.read.threads_1"], numbers["memory.latency"]
    memory = max(64, round(one.value * latency.value / 1e9))
    if "storage.capacity" in numbers:
        fastest, lone = best(numbers, "storage.read."), numbers["storage.read.block_4096.depth_1"]
        disk = round(4 * fastest.value * 4096 / lone.value / numbers["cpu.threads"].value)
        if disk > memory:
            return (
                disk,
                f"four times the highest rate x latency of a lone read, a thread's share: {fastest.source}",
            )
    return memory, f"read rate of one thread x latency of a load (Little's law): {one.source}"


def _initiator(numbers: Numbers) -> dict[str, Entry]:
    outstanding, words = _outstanding(numbers)
    fp32 = numbers["cpu.fp32"]
    rate = f"{max(1, round(fp32.value / 1e6))} MFLOP/s"
    return {
        "units": (int(numbers["cpu.threads"].value), numbers["cpu.threads"]),
        "unit_outstanding": (f"{outstanding} B", Number(0, "", words, "calibrated")),
        "launch_gap": _ns(numbers["cpu.launch_gap"].value, numbers["cpu.launch_gap"]),
        "graph_launch": _assumed("0 ns", "a CPU has no graph to launch"),
        "bf16": _assumed(rate, "not measured; the rate in single precision"),
        "fp8": _assumed(rate, "not measured; the rate in single precision"),
        "fp32": (rate, fp32),
    }


def _llc(numbers: Numbers) -> dict[str, Entry]:
    return {
        "capacity": (f"{int(numbers['cache.capacity'].value)} B", numbers["cache.capacity"]),
        "bandwidth": _mbps(numbers["cache.read"]),
        "latency": _ns(numbers["cache.latency"].value, numbers["cache.latency"]),
    }


def _host(numbers: Numbers) -> dict[str, Entry]:
    """Memory. A load's latency holds the transfer of its line on a channel, which the model adds itself."""
    read, latency = best(numbers, "memory.read."), numbers["memory.latency"]
    channels = 8 if numbers["cpu.threads"].value > 16 else 2
    transfer_ns = 64 * channels / read.value * 1e9
    words = f"{latency.source}, less the transfer of a line on one channel"
    return {
        "capacity": (f"{int(numbers['memory.capacity'].value)} B", numbers["memory.capacity"]),
        "bandwidth": _peak(read),
        "write_bandwidth": _peak(best(numbers, "memory.write.")),
        "efficiency": _assumed(REACHED, "the peak is not known; the product is the measured rate"),
        "channels": _assumed(channels, "no program can find it out; see the board's manual"),
        "interleave": _assumed("256 B", "depends on the firmware's settings"),
        "unit": _assumed("64 B", "a cache line of a common CPU"),
        "latency": _ns(latency.value - transfer_ns, Number(0, "ns", words)),
    }


def _disk(numbers: Numbers) -> dict[str, Entry]:
    """Storage: so many channels that up to half of the time of a lone read of 4 KiB is its service on one."""
    fastest, small = best(numbers, "storage.read."), best(numbers, "storage.read.block_4096.")
    lone = numbers["storage.read.block_4096.depth_1"]
    lone_ns, read_iops = 4096 / lone.value * 1e9, max(1, round(small.value / 4096))
    most = min(lone_ns / 2 * min(fastest.value / 4096, read_iops) / 1e9, fastest.value / 2e6, 4096)
    channels = 1 << max(0, int(most).bit_length() - 1)  # a power of two; at least 2 MB/s each
    service_ns = channels * max(4096 / fastest.value, 1 / read_iops) * 1e9
    words = f"so that up to half of a lone read of 4 KiB is its service on one: {lone.source}"
    return {
        "capacity": (f"{int(numbers['storage.capacity'].value)} B", numbers["storage.capacity"]),
        "bandwidth": _peak(fastest),
        "efficiency": _assumed(REACHED, "the peak is not known; the product is the measured rate"),
        "channels": (channels, Number(0, "", words, "calibrated")),
        "interleave": _assumed("4 KiB", "a page; disks do not say"),
        "unit": _assumed("4 KiB", "a page; disks do not say"),
        "read_iops": (read_iops, small),
        "queue_depth": _assumed(1024, "one queue of an NVMe disk"),
        "latency": _ns(lone_ns - service_ns, Number(0, "ns", f"{lone.source}, less the service")),
    }
