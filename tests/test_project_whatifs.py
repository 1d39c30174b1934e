"""What-ifs that are one command each, held against what can be worked out by hand."""

from __future__ import annotations

import re

import pytest

from memsim import trace_cache
from memsim.crossing import crossover
from memsim.errors import DoesNotFit
from memsim.projection_batch import largest
from memsim.projection_cell import machine_of, time_ps, trace_of
from memsim.projection_point import MAX, Ask, Cell
from memsim.simulate import replay

K, M = 1024, 1024**2
PEAK = 4.8e12  # of an H200's HBM [bytes/s]
LAYERS, LATENT, INDEX = 61, 656, 132  # of DeepSeek-V3.2: layers, bytes of a row, of an index key
TWIN, KIMI, ROW = 27, 7, 1152  # layers with MLA of the twin and of Kimi Linear, bytes of a row


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Traces of these tests alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_cache, "cache_root", lambda: folder)
        yield


def took_ms(model, machine, context, **options):
    """What `project` gives as the time of a token of the attention, batch 1."""
    ask = Ask(part="attention", **options)
    return time_ps(Cell(model, machine, context, 1), ask, 1) / 1e9


def replayed(model, machine, context, **options):
    """The replay behind it."""
    ask = Ask(part="attention", **options)
    with trace_of(Cell(model, machine, context, 1), ask, 1) as path:
        return replay(path, machine_of(machine, ask.overrides)[0], **ask.replaying(), bound=False)


@pytest.mark.parametrize(
    ("model", "per_token", "floor_ms"),
    [
        ("deepseek-v3.2", LAYERS * INDEX, 1.78),
        ("kimi-linear", KIMI * ROW, 1.78),
        ("kimi-linear-all-mla", TWIN * ROW, 6.79),
    ],
)
def test_no_stack_is_faster_than_the_scan_of_what_it_must_read(model, per_token, floor_ms):
    """At 1M tokens, 4.8 TB/s: index keys of V3.2 and the rows that it picks, MLA rows of the others."""
    picked = LAYERS * 2048 * LATENT if model == "deepseek-v3.2" else 0
    assert 1e3 * (M * per_token + picked) / PEAK == pytest.approx(floor_ms, rel=0.02)
    assert floor_ms < took_ms(model, "h200", M) < 3 * floor_ms


@pytest.mark.parametrize(("model", "held_gb"), [("deepseek-v3.2", 504), ("kimi-linear-all-mla", 326)])
def test_what_10m_tokens_need_is_refused_with_its_size(model, held_gb):
    with pytest.raises(DoesNotFit) as refused:
        took_ms(model, "h200", 10 * M)
    (placed,) = re.findall(r"but ([0-9.]+) GB are placed", str(refused.value))
    assert float(placed) == pytest.approx(held_gb, rel=0.01)


def test_selected_rows_on_the_host_take_their_time_on_the_link_whatever_law_picks_them():
    """61 layers x 2,048 rows x 656 B are 82 MB: 1.5 ms at the 55.4 GB/s that PCIe 5 x16 gives."""
    here = took_ms("deepseek-v3.2", "h200-host", 128 * K)
    there = [
        took_ms("deepseek-v3.2", "h200-host", 128 * K, place=("kv=host",), selection=law)
        for law in ("dsa_lo", "dsa_mid", "dsa_hi")
    ]
    link_ms = 1e3 * LAYERS * 2048 * LATENT / 55.4e9
    assert min(there) > here + 0.5 * link_ms
    assert max(there) < here + 4 * link_ms
    assert max(there) < 1.02 * min(there)


def test_cached_rows_spread_over_gpus_make_room_for_a_larger_batch():
    """V3.2 in fp8 on eight H200: 1M tokens of one sequence beside the weights; eight with dcp=8."""
    cell = Cell("deepseek-v3.2", "8xh200", M, MAX)
    batches = [largest(cell, Ask(parallel=f"tp=8,ep=8{more}"))[0] for more in ("", ",dcp=8")]
    assert batches[0] == 1
    assert batches[1] >= 5


@pytest.mark.parametrize("rate", [55, 110, 423, 900])
def test_rows_streamed_from_the_host_take_bytes_over_bandwidth(rate):
    """Kimi Linear reads 7 x 1,152 B a token: 20 ms at 1M need 423 GB/s, and an eighth of both at 128K."""
    free = ("link.pcie.efficiency=1", "link.pcie.header=0 B", "link.pcie.tags=1000000")
    wide = ("tier.host.bandwidth=4000 GB/s", "tier.host.channels=64", f"link.pcie.bandwidth={rate} GB/s")
    looked_up = (
        "tier.host.translation.near.rate=1000000000000",
        "tier.host.translation.far.rate=1000000000000",
    )
    options = {"place": ("kv=host",), "overrides": (*free, *wide, *looked_up)}
    link_ms = 1e3 * 128 * K * KIMI * ROW / (rate * 1e9)
    if rate == 423:
        assert 8 * link_ms == pytest.approx(20, rel=0.01)
    here_ms = took_ms("kimi-linear", "h200-host", 128 * K)
    found_ms = took_ms("kimi-linear", "h200-host", 128 * K, **options)
    assert link_ms < found_ms < 1.1 * link_ms + here_ms


def test_a_smaller_index_key_halves_the_slope():
    """61 layers x 132 B = 8,052 B a token in fp8, x 68 B = 4,148 in fp4."""
    for dtype, slope in ((None, 8052), ("fp4", 4148)):
        read = [
            replayed("deepseek-v3.2", "h200", context, index_dtype=dtype).bytes_read["index"]
            for context in (64 * K, 128 * K)
        ]
        assert (read[1] - read[0]) / (64 * K) == slope
    assert took_ms("deepseek-v3.2", "h200", 128 * K, index_dtype="fp4") < took_ms(
        "deepseek-v3.2", "h200", 128 * K
    )


def test_an_index_scanned_beside_its_memory_takes_what_that_memory_gives():
    """61 x 132 B a token at the 39.9 GB/s of the expander: 26 ms at 128K, 2.1 s at 10M; KV stays in HBM."""
    options = {"place": ("index=cxl",), "run_on": ("dsa-index=cxl",)}
    scan_ms = 1e3 * 128 * K * LAYERS * INDEX / (76.8e9 * 0.52)
    assert scan_ms == pytest.approx(26.4, rel=0.01)
    assert 80 * scan_ms == pytest.approx(2110, rel=0.01)
    found_ms = took_ms("deepseek-v3.2", "h200-cxl", 128 * K, **options)
    rest_ms = took_ms("deepseek-v3.2", "h200", 128 * K)
    assert scan_ms < found_ms < 1.15 * scan_ms + rest_ms


def staged(law, *overrides):
    """Time of all staging kernels with half the rows there from the step before [ms], reads, bytes moved."""
    options = {"place": ("kv=nvme",), "overlap": 0.5, "selection": law}
    result = replayed("deepseek-v3.2", "h200-nvme", 64 * K, overrides=overrides, **options)
    (drive,) = (tier for tier in result.tiers if tier.name == "nvme")
    (stage,) = (family for family in result.families if family.name == "kv-stage")
    return stage.time_ps / 1e9, drive.requests, drive.moved_read_bytes


@pytest.mark.parametrize("law", ["uniform", "dsa_mid"])
def test_rows_on_a_drive_take_its_operations_wherever_they_lie(law):
    """Of 61 x 2,048 rows half are there: 62,464 reads, 18.9 ms at 3.3 M a second, and a wait in each layer.

    In blocks of 4 KiB some 655 of 4,096 rows lie in two of them, which the drive moves both.
    """
    reads, waits_ms = LAYERS * 2048 // 2, LAYERS * 0.0626  # a read's 60 us, and its way
    assert 1e3 * reads / 3.3e6 == pytest.approx(18.9, rel=0.01)
    took, requests, _ = staged(law, "tier.nvme.unit=512 B")
    assert requests == reads == 62_464
    assert took - waits_ms == pytest.approx(18.9, rel=0.01)
    took, _, moved = staged(law)
    blocks = moved / 4096
    assert blocks / reads == pytest.approx(1 + 655 / 4096, rel=0.01)
    assert took - waits_ms == pytest.approx(1e3 * blocks / 3.3e6, rel=0.01)


def test_four_drives_take_a_quarter_and_what_runs_of_rows_meet_in_one_of_them():
    """In stripes of 4 KiB a seventh more than a quarter, in stripes of 64 KiB a half more."""
    waits_ms = LAYERS * 0.0626
    one = staged("dsa_mid")[0] - waits_ms
    coarse, fine = (
        staged("dsa_mid", "tier.nvme.devices=4", f"tier.nvme.interleave={stripe}")[0] - waits_ms
        for stripe in ("64 KiB", "4 KiB")
    )
    assert 1 < fine / (one / 4) < 1.2
    assert fine < coarse < 1.6 * one / 4


def test_two_models_with_sparse_attention_are_compared_in_one_call():
    """GLM-5.3-Flash has sparse attention in few of its layers: V3.2 is never faster."""
    found = crossover(
        "glm-5.3-flash", "deepseek-v3.2", "h200", context=("64K", "256K"), part="attention", workers=1
    )
    assert found.swaps == ()
    assert {sample.faster for sample in found.samples} == {"A"}
