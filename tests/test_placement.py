"""Placement: rules by kind, name and layer, shares, capacity, overflow, and their errors."""

from __future__ import annotations

import dataclasses

import pytest
from engine_cases import HBM, HOST, TWO_TIERS, flat_region, paged_region

from memsim.errors import DoesNotFit, UsageError
from memsim.placement import Piece, check_gpus, dealt_rows, parse_rules, place_regions
from memsim.system import System
from memsim.trace import Region

KV = dataclasses.replace(flat_region(0, 1000, 1000), name="layer0.kv", layer=0)
STATE = dataclasses.replace(flat_region(1, 10, 512, "state"), name="layer1.state", layer=1)
INDEX = dataclasses.replace(paged_region(2, 4), name="layer2.index", layer=2)
REGIONS = (KV, STATE, INDEX)


def sized(hbm_bytes: int, host_bytes: int) -> System:
    tiers = (
        dataclasses.replace(HBM, capacity_bytes=hbm_bytes),
        dataclasses.replace(HOST, capacity_bytes=host_bytes),
    )
    return dataclasses.replace(TWO_TIERS, tiers=tiers)


def pieces(*texts: str, regions: tuple[Region, ...] = REGIONS) -> list[tuple[Piece, ...]]:
    rules = parse_rules(texts, regions, TWO_TIERS)
    return list(place_regions(regions, rules, "refuse", TWO_TIERS).pieces)


def tiers_of(*texts: str) -> list[int]:
    return [ps[0].shares[0][0] for ps in pieces(*texts)]


def test_regions_that_no_rule_names_go_to_the_first_tier() -> None:
    assert tiers_of() == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kv=host", [1, 0, 0]),
        ("layer1.state=host", [0, 1, 0]),
        ("layer:1-2=host", [0, 1, 1]),
        ("layer:2=host", [0, 0, 1]),
    ],
)
def test_a_rule_names_a_kind_a_region_or_layers(text: str, expected: list[int]) -> None:
    assert tiers_of(text) == expected


def test_the_last_rule_that_matches_wins() -> None:
    assert tiers_of("layer:0-2=host", "kv=hbm") == [0, 1, 1]
    assert tiers_of("kv=hbm", "layer:0-2=host") == [1, 1, 1]


def test_shares_become_whole_weights() -> None:
    assert pieces("kv=hbm:0.75,host:0.25")[0] == (Piece(1000, ((0, 3), (1, 1))),)


def test_chunks_are_dealt_in_proportion() -> None:
    assert dealt_rows(KV, ((0, 3), (1, 1)), 1000) == [12 * 64 - 24, 4 * 64]
    assert dealt_rows(INDEX, ((0, 1), (1, 1)), 256) == [128, 128]


def test_used_bytes_count_every_region() -> None:
    placement = place_regions(REGIONS, parse_rules(["kv=host"], REGIONS, TWO_TIERS), "refuse", TWO_TIERS)
    assert placement.used_bytes == (STATE.bytes + INDEX.bytes, KV.bytes)


def test_what_does_not_fit_is_refused_with_the_shortfall() -> None:
    system = sized(900_000_000, 10**12)
    big = dataclasses.replace(flat_region(0, 1_000_000, 1000), name="layer0.kv")
    with pytest.raises(
        DoesNotFit, match=r"tier 'hbm' holds 0.9 GB but 1.0 GB are placed in it: 0.1 GB too many"
    ):
        place_regions([big], [], "refuse", system)


def test_a_region_that_just_fits_is_taken() -> None:
    assert place_regions([KV], [], "refuse", sized(KV.bytes, 1)).used_bytes == (KV.bytes, 0)


def test_overflow_takes_the_rows_from_the_first_that_does_not_fit() -> None:
    placement = place_regions([KV], [], "host", sized(400_500, 10**9))
    assert placement.pieces[0] == (Piece(400, ((0, 1),)), Piece(1000, ((1, 1),)))
    assert placement.used_bytes == (400_000, 600_000)


def test_paged_regions_spill_whole_pages() -> None:
    placement = place_regions(
        [dataclasses.replace(INDEX, id=0)], [], "host", sized(64 * 132 * 2 + 5000, 10**9)
    )
    assert placement.pieces[0][0] == Piece(128, ((0, 1),))


def test_the_kv_cache_spills_before_what_stands_later_in_the_file() -> None:
    placement = place_regions(REGIONS, [], "host", sized(STATE.bytes + INDEX.bytes + 10_000, 10**9))
    assert placement.pieces[1] == (Piece(10, ((0, 1),)),)
    assert placement.pieces[0] == (Piece(10, ((0, 1),)), Piece(1000, ((1, 1),)))


@pytest.mark.parametrize("room", range(1, 6))
def test_kinds_spill_in_the_order_of_what_grows_with_the_context(room: int) -> None:
    """Six regions of one size, as they may stand in a file; `room` of them fit."""
    kinds = ("kv", "index", "weights", "state", "output", "activation")
    regions = [flat_region(i, 10, 100, kind) for i, kind in enumerate(kinds)]
    found = place_regions(regions, [], "host", sized(room * 1000, 10**9)).pieces
    assert [piece.shares[0][0] for (piece,) in found] == [1] * (6 - room) + [0] * room


def test_pages_of_any_size_are_dealt_whole_and_take_their_padding() -> None:
    """Four pages of 16 rows; one byte is missing for the third."""
    page_bytes = 16 * 132 + 60
    paged = paged_region(0, 4)
    region = dataclasses.replace(paged, page_rows=16, page_bytes=page_bytes, bytes=4 * page_bytes)
    assert dealt_rows(region, ((0, 1), (1, 1)), 64) == [32, 32]
    placement = place_regions([region], [], "host", sized(3 * page_bytes - 1, 10**9))
    assert placement.pieces[0][0] == Piece(32, ((0, 1),))
    assert placement.used_bytes == (2 * page_bytes, 2 * page_bytes)


def test_a_full_overflow_tier_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="room for 599,999 B of the 600,000 B of .*: 1 B too many"):
        place_regions([KV], [], "host", sized(400_500, 599_999))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv", "expected KIND=TIER"),
        ("=host", "expected KIND=TIER"),
        ("kv=", "expected KIND=TIER"),
        ("kvv=host", "did you mean 'kv'"),
        ("layer0.kw=host", "did you mean 'layer0.kv'"),
        ("kv=hsot", "no tier 'hsot'; did you mean 'host'"),
        ("layer:2-1=host", "layers from 0 to 2"),
        ("layer:x=host", "layers from 0 to 2"),
        ("layer:7=host", "layers from 0 to 2"),
        ("layer:0-7=host", "layers from 0 to 2"),
        ("weights=host", "no 'weights' region; its kinds: index, kv, state"),
        ("kv=hbm,host", "need a share each"),
        ("kv=hbm:1,hbm:2", "named twice"),
        ("kv=hbm:0,host:1", "not a positive number"),
        ("kv=hbm:-1,host:1", "not a positive number"),
        ("kv=hbm:nan,host:1", "not a positive number"),
        ("kv=hbm:1e9,host:1", "not a positive number"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_rules([text], REGIONS, TWO_TIERS)


def test_an_unknown_overflow_tier_is_refused() -> None:
    with pytest.raises(UsageError, match="--overflow 'hots'.*did you mean 'host'"):
        place_regions(REGIONS, [], "hots", TWO_TIERS)


def with_peer(devices: int) -> System:
    peer = dataclasses.replace(HOST, name="peer", devices=devices)
    return dataclasses.replace(TWO_TIERS, tiers=(HBM, peer))


def test_what_other_gpus_hold_lies_in_their_memory_unless_a_rule_says_otherwise() -> None:
    exchange = dataclasses.replace(flat_region(0, 10, 512, "exchange"), layer=-1)
    regions, system = (exchange, dataclasses.replace(KV, id=1)), with_peer(7)
    assert [piece.shares for (piece,) in place_regions(regions, [], "refuse", system).pieces] == [
        ((1, 1),),
        ((0, 1),),
    ]
    rules = parse_rules(["exchange=hbm"], regions, system)
    assert place_regions(regions, rules, "refuse", system).pieces[0] == (Piece(10, ((0, 1),)),)
    with pytest.raises(UsageError, match="region 'r0', which other GPUs hold: machine .* has no tier 'peer'"):
        place_regions(regions, [], "refuse", TWO_TIERS)


def test_a_trace_of_more_gpus_than_a_machine_has_is_refused() -> None:
    check_gpus(1, TWO_TIERS)
    check_gpus(8, with_peer(7))
    with pytest.raises(UsageError, match=r"is of one of 8 GPUs .* has 2 \(one, and those of a tier 'peer'\)"):
        check_gpus(8, with_peer(1))
    with pytest.raises(UsageError, match="has 1 .* take 8xh200"):
        check_gpus(2, TWO_TIERS)
