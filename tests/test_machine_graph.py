"""The picture of a machine: every part is in it, nothing overlaps, more bandwidth is drawn wider."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from hwprofiles import machine_names
from memsim import load_machine
from memsim.errors import OutputError
from memsim.machine_graph import draw, svg

RING = """
extends = "h200-cxl"
name = "ring"
title = "A <ring> of links & their ends"
[link.direct]
between = ["gpu", "expander"]
duplex = "shared"
bandwidth = { value = "640 GB/s", provenance = "assumed", source = "a test" }
efficiency = { value = 1.0, provenance = "assumed", source = "a test" }
latency = { value = "2 us", provenance = "assumed", source = "a test" }
tags = { value = 1000, provenance = "assumed", source = "a test" }
credits = { value = 1000, provenance = "assumed", source = "a test" }
payload = { value = "64 B", provenance = "assumed", source = "a test" }
header = { value = "0 B", provenance = "assumed", source = "a test" }
"""


class Picture:
    """What an SVG draws: boxes and texts as (left, top, right, bottom), words, wires and their widths."""

    def __init__(self, text: str) -> None:
        root = ElementTree.fromstring(text)
        self.size = float(root.get("width")), float(root.get("height"))
        parts = [(part.tag.rpartition("}")[2], part) for part in root.iter()]
        self.words = [part.text for tag, part in parts if tag == "text"]
        self.texts = [self.place(part) for tag, part in parts if tag == "text"]
        rects = [part for tag, part in parts if tag == "rect" and part.get("x")]
        self.boxes = [self.rect(part) for part in rects if part.get("rx") == "8"]
        self.cards = [self.rect(part) for part in rects if part.get("rx") == "4"]
        self.wires = [
            (part.get("d"), float(part.get("stroke-width"))) for tag, part in parts if tag == "path"
        ]

    @staticmethod
    def place(part):
        size = float(part.get("font-size"))
        x, y, letter = float(part.get("x")), float(part.get("y")), 0.6 * size
        return x, y - 0.8 * size, x + letter * len(part.text), y + 0.2 * size

    @staticmethod
    def rect(part):
        x, y, width, height = (float(part.get(key)) for key in ("x", "y", "width", "height"))
        return x, y, x + width, y + height


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def inside(a, b):
    return b[0] <= a[0] and a[2] <= b[2] and b[1] <= a[1] and a[3] <= b[3]


@pytest.fixture(scope="module", params=[*machine_names(), "ring"])
def drawn(request, tmp_path_factory):
    if request.param == "ring":
        path = tmp_path_factory.mktemp("ring") / "ring.toml"
        path.write_text(RING)
        profile = load_machine(path)
    else:
        profile = load_machine(request.param)
    return profile, Picture(svg(profile))


def test_every_part_of_a_machine_is_in_its_picture(drawn):
    profile, picture = drawn
    names = [word.split(":")[0] for word in picture.words]
    for group in ("initiator", "cache", "tier", "link", "switch"):
        assert set(getattr(profile, group)) <= set(names), group
    assert profile.title in picture.words
    assert len(picture.wires) == len(profile.link)
    assert len(picture.cards) == len(profile.initiator) + len(profile.cache) + len(profile.tier)


def test_nothing_overlaps_and_nothing_is_cut_off(drawn):
    _, picture = drawn
    for one, other in combinations(picture.boxes, 2):
        assert not overlap(one, other)
    for one, other in combinations(picture.cards, 2):
        assert not overlap(one, other)
    for card in picture.cards:
        assert sum(inside(card, box) for box in picture.boxes) == 1
    for (one, first), (other, second) in combinations(zip(picture.texts, picture.words, strict=True), 2):
        assert not overlap(one, other), (first, second)
    for text, words in zip(picture.texts, picture.words, strict=True):
        whole = any(inside(text, box) for box in picture.boxes)
        assert whole or not any(overlap(text, box) for box in picture.boxes), words
        assert inside(text, (0, 0, *picture.size)), words


def test_numbers_are_those_of_the_file():
    machine = load_machine("h200-cxl")
    hbm = machine.tier["hbm"]
    levels = [level for tier in machine.tier.values() for level in tier.translation.values()]
    words = Picture(svg(machine)).words
    assert "hbm: 141 GB" in words
    assert f"4.52 TB/s of 4.80 TB/s, {hbm.latency.text}" in words
    assert "gpu: 132 units" in words
    assert f"{machine.initiator['gpu'].unit_outstanding.text} in flight a unit" in words
    assert f"fp8 {machine.initiator['gpu'].fp8.text}" in words
    assert "a unit 253 GB/s in, 56 GB/s out" in words
    assert f"writes {machine.cache['l2'].write_bandwidth.text}" in words
    assert "2 copies of what is read" in words
    assert f"turns round in {hbm.turnaround.text}" in words
    beyond = [f"beyond {w.reach.text}: {w.latency.number / 1e6:.2f} us more" for w in levels]
    assert [word for word in words if word.startswith("beyond")] == beyond
    assert f"set-up {machine.initiator['copy'].setup.text}" in words
    assert "30.2 GB/s of 32.0 GB/s each way" in words
    assert "in 59.6 GB/s of 63.0 GB/s" in words
    assert "65 ns, 1,024 tags" in words


def test_what_only_some_machines_have_is_shown():
    words = Picture(svg(load_machine("h200-nvme"))).words
    assert "3.3 M reads/s" in words
    assert "writes 9.65 GB/s, 15 us" in words
    words = Picture(svg(load_machine("h200-nvme", ["tier.nvme.devices=4"]))).words
    assert "nvme: 4 x 7680 GB" in words
    assert "4 x 3.3 M reads/s" in words
    one_way = Picture(svg(load_machine("h200", ["initiator.copy.port_write=5 GB/s"]))).words
    assert "a unit 5 GB/s out" in one_way
    assert "switch, 100 ns" in Picture(svg(load_machine("8xh200"))).words
    shared = Picture(
        svg(load_machine("h200-host", ["link.pcie.duplex=shared", "link.pcie.efficiency_out=0.9453"]))
    )
    assert "59.6 GB/s of 63.0 GB/s both ways together" in shared.words


def test_a_link_of_more_bandwidth_is_drawn_wider():
    def width(rate):
        change = [f"link.pcie.bandwidth={rate}"]
        return Picture(svg(load_machine("h200-host", change))).wires[0][1]

    assert width("6.3 GB/s") < width("63 GB/s") < width("630 GB/s")
    assert width("630 GB/s") - width("63 GB/s") == pytest.approx(3, abs=0.11)


def test_the_initiator_stands_left_and_farther_nodes_right():
    picture = Picture(svg(load_machine("cxl3-pool")))
    lefts = {word: place[0] for word, place in zip(picture.words, picture.texts, strict=True)}
    assert lefts["gpu"] < lefts["cxl-switch"] < lefts["pool-box"]
    assert lefts["gpu"] < lefts["cpu"]


def test_it_is_written_where_it_is_asked_for_or_refused_in_a_line(tmp_path):
    profile = load_machine("h200")
    draw(profile, tmp_path / "m.svg")
    text = (tmp_path / "m.svg").read_text()
    assert re.match(r'<svg xmlns="http://www.w3.org/2000/svg" width="\d+"', text)
    with pytest.raises(
        OutputError, match="cannot be written: No such file or directory; choose another path"
    ):
        draw(profile, tmp_path / "none" / "m.svg")
