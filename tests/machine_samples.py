"""A small machine file that tests take apart: a GPU, its HBM, and a host behind one link."""

from __future__ import annotations

import re
from pathlib import Path

from memsim.profile import load_machine
from memsim.profile_schema import Profile
from memsim.route import build_system
from memsim.system import System

SMALL = """
name = "small"
title = "A machine for tests"
[initiator.gpu]
units = 100
unit_outstanding = "64 KiB"
request = "128 B"
launch_gap = "1 us"
graph_launch = "10 us"
bf16 = "1000 TFLOP/s"
[initiator.copy]
attach = gpu
units = 1
unit_outstanding = "1 MiB"
request = "256 B"
launch_gap = "1 us"
graph_launch = "10 us"
setup = "2 us"
[cache.l2]
attach = gpu
capacity = "50 MB"
bandwidth = "10 TB/s"
latency = "200 ns"
[tier.hbm]
attach = gpu
capacity = "100 GB"
bandwidth = "4 TB/s"
efficiency = 0.9
channels = 64
interleave = "512 B"
unit = "32 B"
latency = "300 ns"
energy = "6 pJ/bit"
[tier.host]
attach = cpu
capacity = "1000 GB"
bandwidth = "200 GB/s"
efficiency = 0.8
channels = 8
interleave = "256 B"
unit = "64 B"
latency = "100 ns"
energy = "15 pJ/bit"
[link.pcie]
between = gpu cpu
bandwidth = "64 GB/s"
efficiency = 0.95
latency = "500 ns"
tags = 800
credits = 800
payload = "256 B"
header = "20 B"
energy = "5 pJ/bit"
[cost.2024]
hbm = "10 USD/GB"
host = "4 USD/GB"
"""
LEVELS = """
[tier.host.translation.far]
reach = "4 GiB"
page = "2 MiB"
latency = "400 ns"
rate = 40000000
[tier.host.translation.near]
reach = "256 MiB"
page = "64 KiB"
latency = "300 ns"
rate = 110000000
"""  # of address translation, to stand behind SMALL


def toml(text: str) -> str:
    """A short form of a machine file in full: numbers get provenance and source, words their quotes."""
    lines = []
    for short in text.strip().splitlines():
        key, equals, value = (part.strip() for part in short.partition("="))
        if key == "between":
            value = str(value.split()).replace("'", '"')
        elif key in ("attach", "duplex"):
            value = f'"{value}"'
        elif equals and key not in ("name", "title", "extends"):
            value = f'{{ value = {value}, provenance = "assumed", source = "a test" }}'
        line = f"{key} = {value}" if equals else re.sub(r"^\[cost\.(.*)\]$", r'[cost."\1"]', key)
        lines.append(line)
    return "\n".join(lines) + "\n"


def changed(text: str, *changes: tuple[str, str]) -> str:
    """`text` with each of `changes` made; what is changed has to be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def profile(folder: Path, text: str) -> Profile:
    """A machine in the short form, loaded from a file."""
    path = folder / "small.toml"
    path.write_text(toml(text))
    return load_machine(path)


def system(folder: Path, text: str) -> System:
    """A machine in the short form, built."""
    return build_system(profile(folder, text))
