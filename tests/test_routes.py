"""From a machine file to a `System`: exact numbers, routes, what a path sustains, what is refused."""

from __future__ import annotations

import re

import pytest
from machine_samples import LEVELS, SMALL, changed, system

from memsim.errors import ProfileError
from memsim.route import idle_latency_ps, path_bandwidth
from memsim.system import Cache, Hop, Initiator, Link, Tier, Walk

LINK = SMALL[SMALL.index("[link.pcie]") : SMALL.index("[cost")]
UNIT = """
[initiator.unit]
attach = cpu
units = 4
unit_outstanding = "4 KiB"
launch_gap = "1 us"
graph_launch = "1 us"
"""


def link(name: str, near: str, far: str, latency: str) -> str:
    """Another link like the sample's."""
    return changed(LINK, ("pcie", name), ("gpu cpu", f"{near} {far}"), ("500 ns", latency))


def names(found, initiator: int, tier: int) -> list[tuple[str, bool]]:
    return [(found.links[hop.link].name, hop.flipped) for hop in found.routes[initiator][tier]]


def test_numbers_become_integers_of_one_unit(tmp_path):
    small = system(tmp_path, SMALL)
    assert small.initiators == (
        Initiator("gpu", 100, 65_536, 128, 10**6, 10**7, 0, 10_000_000, 0, 0),
        Initiator("copy", 1, 2**20, 256, 10**6, 10**7, 2 * 10**6, 0, 0, 0),
    )
    assert small.tiers[1] == Tier(
        "host", 10**12, 8, (20_000, 20_000), 256, 64, (100_000, 100_000), 200_000,
        energy_fj=15_000, cost=(("2024", 4_000_000),),
    )  # fmt: skip
    assert small.links == (
        Link("pcie", (60_800, 60_800), (64_000, 64_000), 500_000, 800, 800, 256, 20, energy_fj=5_000),
    )
    way = (Hop(0, False, 500_000),)
    assert small.routes == (((), way), ((), way))


def test_keys_of_a_device_count_for_all_devices(tmp_path):
    keys = "devices = 3\nread_iops = 2000000\nwrite_iops = 300000\nqueue_depth = 50\n"
    host = system(tmp_path, changed(SMALL, ("= 8\n", f"= 8\n{keys}"))).tiers[1]
    assert (host.devices, host.channels, host.capacity_bytes) == (3, 24, 3 * 10**12)
    assert (host.peak_mbps, host.channel_mbps, host.queue_depth) == (600_000, (20_000, 20_000), 150)
    assert host.occupancy_ps == (4_000_000, 26_666_667)  # 8 channels share a device's operations a second


def test_reads_and_writes_have_numbers_of_their_own(tmp_path):
    keys = 'write_bandwidth = "100 GB/s"\nwrite_efficiency = 0.4\nwrite_latency = "9 ns"\n'
    host = system(tmp_path, changed(SMALL, ("= 8\n", f"= 8\n{keys}"))).tiers[1]
    assert (host.channel_mbps, host.latency_ps) == ((20_000, 5_000), (100_000, 9_000))
    out = 'bandwidth_out = "32 GB/s"\nefficiency_out = 0.5\n'
    (pcie,) = system(tmp_path, changed(SMALL, ("tags =", f"{out}tags ="))).links
    assert (pcie.mbps, pcie.peak_mbps) == ((60_800, 16_000), (64_000, 32_000))


def test_a_unit_has_a_port_each_way(tmp_path):
    both = system(tmp_path, changed(SMALL, ("setup =", 'port = "50 GB/s"\nsetup ='))).initiators[1]
    one = system(tmp_path, changed(SMALL, ("setup =", 'port_write = "20 GB/s"\nsetup ='))).initiators[1]
    each = 'port = "50 GB/s"\nport_write = "20 GB/s"\nsetup ='
    assert both.port_mbps == (50_000, 50_000)
    assert one.port_mbps == (0, 20_000)
    assert system(tmp_path, changed(SMALL, ("setup =", each))).initiators[1].port_mbps == (50_000, 20_000)
    assert system(tmp_path, SMALL).initiators[1].port_mbps == (0, 0)


def test_a_cache_may_write_slower_hold_copies_and_have_sets(tmp_path):
    keys = '"200 ns"\nwrite_bandwidth = "6 TB/s"\ncopies = 2\nways = 16\n'
    full = system(tmp_path, changed(SMALL, ('"200 ns"\n', keys))).cache
    assert full == Cache("l2", 50 * 10**6, (10**7, 6 * 10**6), 200_000, copies=2, ways=16)
    assert system(tmp_path, SMALL).cache == Cache("l2", 50 * 10**6, (10**7, 10**7), 200_000)


def test_a_channel_turns_round_and_takes_writes_in(tmp_path):
    keys = 'devices = 3\nturnaround = "4.5 ns"\nwrite_buffer = "32 KiB"\n'
    host = system(tmp_path, changed(SMALL, ("= 8\n", f"= 8\n{keys}"))).tiers[1]
    assert (host.turnaround_ps, host.write_buffer_bytes) == (4_500, 32_768)  # a channel's, not all devices'
    bare = system(tmp_path, SMALL).tiers[1]
    assert (bare.turnaround_ps, bare.write_buffer_bytes, bare.loaded, bare.translation) == (0, 0, (), ())


def test_a_tier_of_one_server_may_say_what_load_costs(tmp_path):
    points = '= 1\nloaded_latency = [[0.5, "20 ns"], [0.95, "300 ns"]]\n'
    assert system(tmp_path, changed(SMALL, ("= 8\n", points))).tiers[1].loaded == (
        (500_000, 20_000),
        (950_000, 300_000),
    )


def test_levels_of_translation_are_sorted_by_reach(tmp_path):
    assert system(tmp_path, SMALL + LEVELS).tiers[1].translation == (
        Walk(256 << 20, 64 << 10, 300_000, 9_091),  # 110 million a second, rounded up
        Walk(4 << 30, 2 << 20, 400_000, 25_000),
    )
    striped = system(tmp_path, changed(SMALL, ("= 8\n", "= 8\ndevices = 3\n")) + LEVELS)
    assert striped.tiers[1].translation[0].reach_bytes == 256 << 20  # the reader's, not a device's


def test_what_is_left_out_has_no_limit(tmp_path):
    bare = system(tmp_path, changed(SMALL, ('request = "128 B"\n', "")))
    assert bare.packet_bytes(0, 0) == 256  # what the link carries
    assert (bare.tiers[0].queue_depth, bare.tiers[0].occupancy_ps, bare.tiers[0].tail) == (0, (0, 0), ())


def test_a_route_is_the_one_of_least_latency(tmp_path):
    slow = link("slow", "gpu", "box", "900 ns")
    moved = changed(SMALL, ("attach = cpu", "attach = box"))
    assert names(system(tmp_path, moved + slow + link("fast", "cpu", "box", "300 ns")), 0, 1) == [
        ("pcie", False),
        ("fast", False),
    ]
    assert names(system(tmp_path, moved + slow + link("fast", "cpu", "box", "500 ns")), 0, 1) == [
        ("slow", False)
    ]


def test_a_switch_adds_its_latency_to_hops_that_lead_to_it(tmp_path):
    text = changed(SMALL, ("attach = cpu", "attach = box")) + link("far", "cpu", "box", "300 ns")
    switch = '[switch.cpu]\nlatency = "70 ns"\n'
    found = system(tmp_path, text + UNIT.replace("cpu", "box") + switch)
    assert found.routes[0][1] == (Hop(0, False, 570_000), Hop(1, False, 300_000))
    assert found.routes[2][0] == (Hop(1, True, 370_000), Hop(0, True, 500_000))
    assert idle_latency_ps(found, 0, 1) == 100_000 + 2 * 870_000


def test_a_switch_can_turn_a_route_aside(tmp_path):
    text = changed(SMALL, ("attach = cpu", "attach = box")) + link("slow", "gpu", "box", "900 ns")
    text += link("fast", "cpu", "box", "300 ns")
    assert names(system(tmp_path, text + '[switch.cpu]\nlatency = "101 ns"\n'), 0, 1) == [("slow", False)]


def test_each_initiator_has_routes_from_where_it_sits(tmp_path):
    found = system(tmp_path, SMALL + UNIT)
    assert names(found, 2, 0) == [("pcie", True)]
    assert names(found, 2, 1) == []
    turned = system(tmp_path, changed(SMALL, ("= gpu cpu", "= cpu gpu")) + UNIT)
    assert names(turned, 0, 1) == [("pcie", True)]
    assert names(turned, 2, 0) == [("pcie", False)]


def test_the_least_of_links_and_tier_binds_a_path(tmp_path):
    small = system(tmp_path, SMALL)
    assert path_bandwidth(small, 0, 0) == (3_600_000, "hbm")
    assert path_bandwidth(small, 0, 1) == (60_800 * 128 // 148, "pcie")
    assert path_bandwidth(small, 1, 1, write=True) == (60_800 * 256 // 276, "pcie")
    slow = system(tmp_path, changed(SMALL, ('"200 GB/s"', '"50 GB/s"')))
    assert path_bandwidth(slow, 0, 1) == (40_000, "host")
    assert idle_latency_ps(small, 0, 1) == 1_100_000


def test_each_direction_of_a_link_carries_its_own(tmp_path):
    out = changed(SMALL, ("tags =", 'bandwidth_out = "32 GB/s"\ntags ='))
    found = system(tmp_path, out + UNIT)
    assert path_bandwidth(found, 1, 1)[0] == 60_800 * 256 // 276
    assert path_bandwidth(found, 1, 1, write=True)[0] == 30_400 * 256 // 276
    assert path_bandwidth(found, 2, 0)[0] == 30_400 * 256 // 276  # what it reads goes to the second node
    assert path_bandwidth(found, 2, 0, write=True)[0] == 60_800 * 256 // 276


def test_the_headers_of_reads_may_bind_a_thin_way_out(tmp_path):
    thin = system(tmp_path, changed(SMALL, ("tags =", 'bandwidth_out = "1 GB/s"\ntags =')))
    assert path_bandwidth(thin, 0, 1) == (950 * 128 // 20, "pcie")


def test_a_shared_link_carries_the_headers_of_reads_too(tmp_path):
    shared = system(tmp_path, changed(SMALL, ("tags =", "duplex = shared\ntags =")))
    assert shared.links[0].shared
    assert path_bandwidth(shared, 0, 1)[0] == 60_800 * 128 // (148 + 20)
    assert path_bandwidth(shared, 0, 1, write=True)[0] == 60_800 * 128 // 148


def test_operations_a_second_bind_what_moves_little(tmp_path):
    """A million operations a second of a 4 KiB block each, or of one of 16 KiB."""
    for block, mbps in (("4 KiB", 4_096), ("16 KiB", 16_000)):
        disk = changed(SMALL, ("= 8\n", "= 8\nread_iops = 1000000\n"), ('"256 B"\nunit', f'"{block}"\nunit'))
        found = system(tmp_path, changed(disk, ('"200 GB/s"', '"20 GB/s"')))
        assert path_bandwidth(found, 0, 1) == (mbps, "host")
        assert path_bandwidth(found, 0, 1, write=True) == (16_000, "host")


def test_large_transfers_are_meant_where_a_link_needs_them(tmp_path):
    points = 'transfer_efficiency = [["64 KiB", 0.25], ["1 MiB", 0.5]]\n'
    found = system(tmp_path, changed(SMALL, ("tags =", f"{points}tags =")))
    assert found.links[0].efficiency == ((65_536, 250_000), (2**20, 500_000))
    assert path_bandwidth(found, 1, 1)[0] == 60_800 * 256 // 276 // 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("attach = cpu", "attach = cup", "tier.host.attach: no node 'cup'; did you mean 'cpu'?"),
        ("= gpu cpu", "= cpu box", "tier.host: no route from 'gpu' to 'cpu'; add a [link.NAME]"),
        ("= gpu cpu", "= cpu cpu", "link.pcie.between: joins 'cpu' to itself"),
        ("[link.pcie]", "[link.host]", "link.host: a tier has this name; rename the link to 'host-link'"),
        ("[link.pcie]", "[link.l2]", "link.l2: a cache has this name; rename the link to 'l2-link'"),
        ("l2]\nattach = gpu", "l2]\nattach = cpu", "l2.attach: found 'cpu', expected the initiator 'gpu'"),
        ("copy]\nattach = gpu\n", "copy]\n", "copy.attach: no node 'copy'; choose one of: cpu, gpu"),
        ("copy]\nattach = gpu", "copy]\nattach = cqu", "initiator.copy.attach: no node 'cqu'; did you mean"),
        ('interleave = "256 B"', 'interleave = "32 B"', "32 B is no multiple of the tier's unit, 64 B"),
        ('"200 GB/s"', '"2 MB/s"', "tier.host.bandwidth: less than 1 MB/s a channel"),
        ("= 8\n", '= 8\nwrite_bandwidth = "7 MB/s"\n', "tier.host.bandwidth: less than 1 MB/s a channel"),
        ("= 8\n", "= 17\ndevices = 4096\n", "4096 devices of 17 channels have more than 65,536"),
        (
            'capacity = "1000 GB"',
            'devices = 9\ncapacity = "9 PB"',
            "host.devices: 9 devices hold more than 10 PB",
        ),
        ("= 8\n", "= 8\nread_iops = 7\n", "tier.host.read_iops: fewer than one a second a channel"),
        ('bf16 = "1000 T', 'bf16 = "0.09 T', "gpu.bf16: 90000 MFLOP/s over 100 units is less than 1 GFLOP/s"),
        ('header = "20 B"', 'header = "1921 B"', "1921 B on packets of 128 B from 'gpu'; expected at"),
        ("0.95", "0.00001", "link.pcie.bandwidth: less than 1 MB/s sustained"),
        (
            "= 8\n",
            '= 8\nloaded_latency = [[0.5, "20 ns"]]\n',
            "host.loaded_latency: 8 channels, whose queues make it; expected one; leave it out, or set",
        ),
        (
            "= 8\n",
            '= 1\ndevices = 2\nloaded_latency = [[0.5, "20 ns"]]\n',
            "tier.host.loaded_latency: 2 channels, whose queues make it",
        ),
        (
            "[link",
            changed(LEVELS, ("256 MiB", "63 KiB")) + "[link",
            "tier.host.translation.near.reach: 63 KiB is less than a page, 64 KiB; raise it",
        ),
        (
            "[link",
            changed(LEVELS, ("256 MiB", "4096 MiB")) + "[link",
            "tier.host.translation: both levels reach 4,294,967,296 B; leave one out or raise its reach",
        ),
        ("[cost.2024]", '[switch.box]\nlatency = "1 ns"\n[cost.2024]', "switch.box: no link leads to it"),
        ('host = "4', 'hots = "4', "cost.2024.hots: no tier 'hots'; did you mean 'host'?"),
    ],
)
def test_a_machine_that_does_not_fit_together_is_refused(tmp_path, old, new, words):
    text = changed(SMALL, (old, new))
    with pytest.raises(ProfileError, match=re.escape(words)) as caught:
        system(tmp_path, text)
    assert str(caught.value).startswith("machine 'small': ")


def test_a_second_cache_and_a_second_link_are_refused(tmp_path):
    cache = SMALL[SMALL.index("[cache.l2]") : SMALL.index("[tier.hbm]")]
    with pytest.raises(ProfileError, match="cache: found l2 and l3, expected exactly one"):
        system(tmp_path, SMALL + cache.replace("l2", "l3"))
    with pytest.raises(ProfileError, match="link.other.between: joins 'gpu' and 'cpu' as link.pcie does"):
        system(tmp_path, SMALL + link("other", "cpu", "gpu", "500 ns").replace("cpu gpu", "gpu cpu"))
    with pytest.raises(ProfileError, match="link.other.between: joins 'cpu' and 'gpu' as link.pcie does"):
        system(tmp_path, SMALL + link("other", "cpu", "gpu", "500 ns"))


def test_a_switch_at_a_node_without_a_link_is_refused(tmp_path):
    host = SMALL[SMALL.index("[tier.host]") : SMALL.index("[cost")]
    alone = changed(SMALL, (host, ""), ('host = "4 USD/GB"\n', ""))
    assert system(tmp_path, alone).routes == (((),), ((),))
    with pytest.raises(ProfileError, match=r"switch\.gpu: no link leads to it"):
        system(tmp_path, alone + '[switch.gpu]\nlatency = "70 ns"\n')


def test_every_initiator_has_to_reach_every_tier(tmp_path):
    island = UNIT.replace("attach = cpu", "attach = isle") + link("bridge", "isle", "sea", "1 us")
    with pytest.raises(ProfileError, match="tier.hbm: no route from 'isle' to 'gpu'"):
        system(tmp_path, SMALL + island)


def test_routes_that_could_wait_for_each_other_in_a_ring_are_refused(tmp_path):
    """Five nodes in a ring, each with a tier and a unit: routes of two hops lead all the way round."""
    nodes = ("a", "b", "c", "d", "e")
    host = SMALL[SMALL.index("[tier.host]") : SMALL.index("[link")]
    text = SMALL[: SMALL.index("[tier.host]")].replace("attach = gpu", "attach = a")
    text = text.replace("[cache.l2]\nattach = a", "[cache.l2]\nattach = gpu")
    text = text.replace("[initiator.gpu]", "[initiator.gpu]\nattach = a")
    for near, far in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        text += changed(host, ("host", f"tier-{near}"), ("= cpu", f"= {near}"))
        text += UNIT.replace("unit]", f"unit-{near}]").replace("= cpu", f"= {near}")
        text += link(f"l{near}", near, far, "1 us")
    words = (
        r"link: requests wait in a ring over link\.la, link\.lb, link\.lc, link\.ld, link\.le and could lock"
    )
    with pytest.raises(ProfileError, match=words):
        system(tmp_path, text)
    assert system(tmp_path, changed(text, (link("le", "e", "a", "1 us"), "")))  # a chain
