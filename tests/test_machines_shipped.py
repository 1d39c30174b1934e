"""The machines that come with memsim: what their sources say comes out of them; doubts are explained."""

from __future__ import annotations

import re
import tomllib
from itertools import product

import pytest

from hwprofiles import machine_names, machine_path
from memsim import kernel
from memsim.closed_form import Way, limits
from memsim.lint import lint
from memsim.profile import load_machine
from memsim.route import build_system, idle_latency_ps, path_bandwidth
from memsim.system import System, Walk

TIERS = {
    "8xb300": "hbm host peer",
    "8xh200": "hbm host peer",
    "b200": "hbm host",
    "cxl3-pool": "hbm host pool",
    "gh200": "hbm host",
    "h100": "hbm host",
    "h200": "hbm",
    "h200-cxl": "hbm host cxl",
    "h200-host": "hbm host",
    "h200-nvme": "hbm host nvme",
    "h200-peer": "hbm host peer",
    "hbf": "hbm host hbf",
    "mi300x": "hbm host",
    "rdma-pool": "hbm host pool",
    "rubin": "hbm host",
}
WHAT_IFS = ("cxl3-pool", "hbf", "rubin")


def built(name: str, *overrides: str) -> System:
    return build_system(load_machine(name, overrides))


def rate(system: System, initiator: str, tier: str, write: bool = False) -> tuple[float, str]:
    """GB/s of a path and what binds it."""
    number = [runner.name for runner in system.initiators].index(initiator)
    mbps, bound = path_bandwidth(system, number, system.tier_index(tier), write)
    return mbps / 1000, bound


def files_of(name: str) -> list[str]:
    """The texts of a machine's file and of all that it extends."""
    text = machine_path(name).read_text(encoding="utf-8")
    base = tomllib.loads(text).get("extends")
    return [text, *(files_of(base) if base else [])]


def test_the_machines_and_their_tiers_in_order():
    assert machine_names() == sorted(TIERS)
    for name, tiers in TIERS.items():
        assert [tier.name for tier in built(name).tiers] == tiers.split()


@pytest.mark.parametrize("name", machine_names())
def test_every_number_says_where_it_comes_from(name):
    system = built(name)
    assert len({number.path for number in system.inputs}) == len(system.inputs) >= 24
    for number in system.inputs:
        assert number.source
        assert not re.search(r"hardware\.md|reference page|shared/", number.source)


@pytest.mark.parametrize("name", machine_names())
def test_what_was_measured_on_another_part_is_extrapolated(name):
    """Sources of what was measured or calibrated begin with the part; a machine has only those of its own."""
    part = {"8xh200": "H200", "rdma-pool": "H200", "gh200": "GH200", "mi300x": "MI300X"}.get(
        name, name[:4].upper()
    )
    if name in WHAT_IFS:
        part = "H200"  # what they take over from h200-host
    own = (
        part,
        "multiprocessors that",
        "Grace",
        "AWS p5en",
        "at least the 380",
        "one way: a GPU",
        "inside the",
        "51.2",
    )
    for number in built(name).inputs:
        assert number.provenance not in ("measured", "calibrated") or number.source.startswith(own), number


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_has_a_copy_engine_that_computes_nothing(name):
    system = built(name)
    copy = next(runner for runner in system.initiators if runner.name == "copy")
    assert system.initiators[0].name == "gpu"
    assert copy.request_bytes >= 256
    assert copy.setup_ps > 0
    assert (copy.bf16_mflops, copy.fp8_mflops, copy.fp32_mflops) == (0, 0, 0)
    assert all(rate > 0 for rate in (system.initiators[0].bf16_mflops, system.initiators[0].fp8_mflops))


@pytest.mark.parametrize("name", machine_names())
def test_every_tier_has_a_price_in_both_scenarios_and_an_energy(name):
    for tier in built(name).tiers:
        assert [scenario for scenario, _ in tier.cost] == ["2024", "mid-2026"]
        assert tier.energy_fj > 0
    assert all(link.energy_fj > 0 for link in built(name).links if link.name != "rdma")


@pytest.mark.parametrize("name", machine_names())
def test_a_warning_of_the_lint_is_explained_in_the_file(name):
    said = set(re.findall(r"^# lint: (\S+): .{10}", "\n".join(files_of(name)), re.MULTILINE))
    findings = lint(load_machine(name))
    assert {finding.level for finding in findings} <= {"warning"}
    assert {finding.where for finding in findings} <= said


@pytest.mark.parametrize("name", machine_names())
def test_what_is_not_sold_says_what_if(name):
    profile = load_machine(name)
    assert profile.title.startswith("What-if: ") == (name in WHAT_IFS)
    if name in WHAT_IFS:
        tier = profile.tier[TIERS[name].split()[-1]]
        assert {tier.capacity.provenance, tier.bandwidth.provenance, tier.latency.provenance} <= {
            "assumed", "extrapolated"
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "capacity_gb", "peak_gb_s"),
    [
        ("h200", 141, 4800), ("h100", 80, 3350), ("b200", 180, 8000), ("8xb300", 288, 8000),
        ("gh200", 96, 4023), ("mi300x", 192, 5300), ("rubin", 288, 22_000),
    ],
)  # fmt: skip
def test_hbm_is_what_the_datasheet_says(name, capacity_gb, peak_gb_s):
    hbm = built(name).tiers[0]
    assert (hbm.capacity_bytes, hbm.peak_mbps) == (capacity_gb * 10**9, peak_gb_s * 1000)


@pytest.mark.parametrize(
    ("name", "initiator", "tier", "write", "gb_s", "bound"),
    [
        ("h200-host", "copy", "host", False, 55.24, "pcie"),  # measured copies, both ways
        ("h200-host", "copy", "host", True, 55.31, "pcie"),
        ("h200-host", "gpu", "host", False, 51.51, "pcie"),  # 47.8 of 51.2 on an H100
        ("h100", "copy", "host", False, 51.2, "pcie"),
        ("h100", "gpu", "host", False, 47.7, "pcie"),
        ("h200-cxl", "gpu", "cxl", False, 26.88, "cxl-link"),
        ("h200-cxl", "cxl-unit", "cxl", False, 39.94, "cxl"),
        ("h200-peer", "copy", "peer", False, 397.4, "nvlink"),
        ("8xh200", "copy", "peer", True, 396.4, "nvlink"),
        ("h200-nvme", "copy", "nvme", False, 13.51, "nvme"),
        ("h200", "gpu", "hbm", False, 4518, "hbm"),
        ("h200", "gpu", "hbm", True, 4256, "hbm"),
        ("gh200", "gpu", "hbm", False, 3782, "hbm"),
        ("gh200", "gpu", "hbm", True, 3942, "hbm"),
        ("gh200", "gpu", "host", False, 420, "c2c"),
        ("gh200", "gpu", "host", True, 380, "c2c"),
        ("mi300x", "gpu", "hbm", False, 4187, "hbm"),
        ("rdma-pool", "copy", "pool", False, 37.75, "rdma"),  # an eighth of a node's 302
        ("rdma-pool", "copy", "pool", True, 45.9, "rdma"),
        ("hbf", "gpu", "hbf", False, 2880, "hbf"),
        ("cxl3-pool", "cxl-unit", "pool", False, 639, "pool"),
    ],
)
def test_a_path_sustains_what_was_measured_or_is_said(name, initiator, tier, write, gb_s, bound):
    found = rate(built(name), initiator, tier, write)
    assert found[0] == pytest.approx(gb_s, rel=0.002)
    assert found[1] == bound


@pytest.mark.parametrize(
    ("name", "tier", "ns"),
    [
        ("h200", "hbm", 331), ("h200-host", "host", 1201), ("gh200", "host", 818), ("gh200", "hbm", 345),
        ("h200-peer", "peer", 1017), ("8xh200", "peer", 1217), ("cxl3-pool", "pool", 697),
        ("h200-cxl", "cxl", 1327), ("h200-nvme", "nvme", 61_090),
    ],
)  # fmt: skip
def test_an_idle_path_takes_what_was_measured_or_is_said(name, tier, ns):
    system = built(name)
    assert idle_latency_ps(system, 0, system.tier_index(tier)) == ns * 1000


def test_a_block_of_a_copy_costs_what_was_measured():
    """3.0 to 3.7 us beyond its bytes on an H100: the set-up, and the way to host memory and back."""
    system = built("h100")
    assert 3_000_000 <= system.initiators[1].setup_ps + idle_latency_ps(system, 1, 1) <= 3_700_000


@pytest.mark.parametrize(("kib", "out_ps", "in_ps"), [(4, 2_370_000, 2_750_000), (16, 2_550_000, 3_020_000)])
def test_a_copy_of_a_graph_takes_what_was_measured(kib, out_ps, in_ps):
    """Those of an H200 into its memory wait for the way back; one set-up stands for both."""
    system = built("h200-host")
    engine = system.initiators[1]
    wire_ps = kib * 1024 * 10**6 // path_bandwidth(system, 1, 1)[0]
    for write, measured_ps in ((True, out_ps), (False, in_ps)):
        way_ps = idle_latency_ps(system, 1, 1, write) + wire_ps
        assert engine.launch_gap_ps + engine.setup_ps + way_ps == pytest.approx(measured_ps, rel=0.07)


def test_the_host_holds_what_hbm_cannot():
    deepseek_v3_at_10m_bytes = 61 * 1152 * 10 * 2**20
    assert sum(tier.capacity_bytes for tier in built("h200-host").tiers) > deepseek_v3_at_10m_bytes


def test_blocks_of_rdma_reach_the_measured_rates():
    (link,) = (link for link in built("rdma-pool").links if link.name == "rdma")
    node_gb_s = [97, 204, 296, 289, 301, 302]
    for (_, share), measured in zip(link.efficiency, node_gb_s, strict=True):
        assert share * link.mbps[0] / 10**6 * 8 / 1000 == pytest.approx(measured, rel=0.003)


def test_drives_striped_multiply():
    one, four = built("h200-nvme"), built("h200-nvme", "tier.nvme.devices=4")
    assert rate(four, "copy", "nvme")[0] == pytest.approx(4 * rate(one, "copy", "nvme")[0])
    assert four.tiers[2].capacity_bytes == 4 * one.tiers[2].capacity_bytes
    assert rate(built("h200-nvme", "tier.nvme.devices=5"), "copy", "nvme")[1] == "pcie"


def test_a_drive_has_its_operations_a_second():
    nvme = built("h200-nvme").tiers[2]
    for occupancy_ps, iops in zip(nvme.occupancy_ps, (3_300_000, 400_000), strict=True):
        assert nvme.channels * 10**12 / occupancy_ps == pytest.approx(iops, rel=1e-5)  # whole ps


@pytest.mark.parametrize(("name", "mixed_gb_s"), [("h200", 3675), ("gh200", 3178), ("mi300x", 3975)])
def test_a_channel_that_turns_round_loses_what_was_measured(name, mixed_gb_s):
    """Reads and writes at random, one to one: a channel turns twice for all that it gathers, and as many
    reads. Its uneven queues lose some more, which this form leaves out."""
    hbm = built(name).tiers[0]
    together = max(1, -(-hbm.write_buffer_bytes // hbm.interleave_bytes))
    turns = 1 / 2 if together == 1 else 1 / together  # a piece, if it comes at random or in its turn
    alone_ps = sum(hbm.interleave_bytes * 10**6 / mbps for mbps in hbm.channel_mbps) / 2
    found = hbm.channels * hbm.interleave_bytes * 1000 / (alone_ps + turns * hbm.turnaround_ps)
    assert 0.99 * mixed_gb_s < found < 1.08 * mixed_gb_s


def test_walks_to_host_memory_take_what_was_measured():
    """A load out of 4 and of 32 GiB; 64 K rows out of 1 GiB and of 32 GiB, bound by the walkers."""
    system = built("h200-host")
    near, far = system.tiers[1].translation

    def missing(walk: Walk, span: int) -> float:
        return 1 - walk.reach_bytes / span

    for gib, ns in ((4, 1665), (32, 1830)):
        walks = (missing(near, gib << 30) * near.latency_ps, missing(far, gib << 30) * far.latency_ps)
        assert (idle_latency_ps(system, 0, 1) + sum(walks)) / 1000 == pytest.approx(ns, rel=0.08)
    assert 65_536 * missing(near, 1 << 30) * near.occupancy_ps / 1e9 == pytest.approx(0.60, rel=0.05)
    assert 65_536 * missing(far, 32 << 30) * far.occupancy_ps / 1e9 == pytest.approx(1.86, rel=0.10)


@pytest.mark.parametrize(("name", "tier"), [("h200-cxl", "cxl"), ("cxl3-pool", "pool"), ("gh200", "host")])
def test_rows_scattered_over_a_wide_span_behind_a_link_wait_for_walks(name, tier):
    """2,048 rows out of 64 MiB are found at once; out of 32 GiB each asks the walker of the far level."""
    system = built(name)
    far = system.tiers[system.tier_index(tier)].translation[-1]
    rows = {"count": 2048, "row_bytes": 128}
    near_ps, wide_ps = (
        kernel.run("gather", system, rows | {"span": span}, tier=tier, bound=False).call_ps
        for span in (64 << 20, 32 << 30)
    )
    walks_ps = 2048 * (1 - far.reach_bytes / (32 << 30)) * far.occupancy_ps
    assert wide_ps > 2 * near_ps
    assert wide_ps == pytest.approx(walks_ps, rel=0.10)


@pytest.mark.parametrize("name", machine_names())
def test_tags_and_credits_of_a_copy_engine_carry_what_its_links_do(name):
    """An engine that takes over those of another machine's link would be slow on a link that is further."""
    system = built(name)
    for engine in kernel.copy_engines(system):
        for tier, write in product(range(1, len(system.tiers)), (False, True)):
            way = Way(system, engine, tier, write)
            needed = path_bandwidth(system, engine, tier, write)[0]
            for limit in limits(way):
                if limit.name.endswith(("tags", "credits")):
                    carried = limit.requests * limit.request_bytes * 10**6 / limit.trip_ps
                    assert carried > needed, (name, limit.name)


def test_both_directions_of_c2c_take_turns():
    for name in ("gh200", "rubin"):
        assert [link.shared for link in built(name).links] == [True]
    assert not any(link.shared for link in built("h200-cxl").links)
