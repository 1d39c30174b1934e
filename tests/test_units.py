"""Quantities with units: exact integers in, plain words out, everything doubtful refused."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsim import units
from memsim.errors import UsageError, nearest


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.parse_bytes, "141 GB", 141 * 10**9),
        (units.parse_bytes, "141 GiB", 141 * 2**30),
        (units.parse_bytes, "151397597184 B", 141 * 2**30),
        (units.parse_bytes, " 1.5KiB ", 1536),
        (units.parse_rate, "4.8 TB/s", 4_800_000),
        (units.parse_rate, "55.43 GB/s", 55_430),
        (units.parse_time, "345 ns", 345_000),
        (units.parse_time, "1.3us", 1_300_000),
        (units.parse_flops, "989 TFLOP/s", 989_000_000),
        (units.parse_tokens, "128K", 131_072),
        (units.parse_tokens, "1M", 1_048_576),
        (units.parse_tokens, "1.5K", 1536),
        (units.parse_tokens, "10M", 10_485_760),
        (units.parse_tokens, "131072", 131_072),
        (units.parse_tokens, 131_072, 131_072),
        (units.parse_count, 96, 96),
        (units.parse_share, 0.92, Fraction(92, 100)),
        (units.parse_share, "92%", Fraction(92, 100)),
        (units.parse_share, 0.00001, Fraction(1, 100_000)),
        (units.parse_energy, "6 pJ/bit", 6_000),
        (units.parse_energy, "1.25 pJ/bit", 1_250),
        (units.parse_energy, "7 fJ/bit", 7),
        (units.parse_price, "10 USD/GB", 10_000_000),
        (units.parse_price, "0.10 USD/GB", 100_000),
        (units.parse_price, "100 USD/TB", 100_000),
        (
            units.parse_tail,
            [[0.01, "30 us"], [0.0001, "2 ms"]],
            ((10_000, 30_000_000), (100, 2_000_000_000)),
        ),
        (units.parse_tail, [["1%", "1 ps"]], ((10_000, 1),)),
        (units.parse_loaded, [[0.5, "0 ns"], [0.9, "0 ns"]], ((500_000, 0), (900_000, 0))),
        (
            units.parse_transfers,
            [["64 KiB", 0.24], ["1 MB", 1]],
            ((65_536, 240_000), (1_000_000, 1_000_000)),
        ),
    ],
)
def test_a_quantity_is_read_exactly(parse, text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["12", 12, "", "GB", "-3 GB", "+3 GB", "1e3 GB", "inf GB", "nan", "1_0 GB"])
def test_a_size_without_number_or_unit_is_refused(text):
    with pytest.raises(UsageError, match="is not a size.*expected a number and a unit, such as '141 GB'"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (units.parse_rate, "4.8 Tb/s", "unknown unit 'Tb/s'; did you mean 'TB/s'?"),
        (units.parse_tokens, "128k", "unknown unit 'k'; did you mean 'K'?"),
        (units.parse_tokens, "0.3K", "no whole number of tokens"),
        (units.parse_bytes, "1 gib", "unknown unit 'gib'; did you mean 'GiB'?"),
        (units.parse_time, "5 sec", "unknown unit 'sec'; choose one of: ms, ns"),
        (units.parse_bytes, "0.3 B", "no whole number of bytes"),
        (units.parse_time, "0.5 ps", "no whole number of ps"),
        (units.parse_bytes, "9223372036854775808 B", "above 2^63 bytes"),
        (units.parse_bytes, f"{'9' * 5000} B", "expected a number and a unit"),
        (units.parse_share, 1.1, "above 0 and up to 1"),
        (units.parse_share, 0, "above 0 and up to 1"),
        (units.parse_share, float("nan"), "above 0 and up to 1"),
        (units.parse_share, True, "above 0 and up to 1"),
        (units.parse_share, "1e-3", "above 0 and up to 1"),
        (units.parse_energy, "6 pJ", "unknown unit 'pJ'; choose one of: fJ/bit, pJ/bit"),
        (units.parse_energy, 6, "6 is not an energy: expected a number and a unit, such as '6 pJ/bit'"),
        (units.parse_price, "10 USD", "unknown unit 'USD'; did you mean 'USD/"),
        (units.parse_price, "0.0000001 USD/GB", "no whole number of millionths of a dollar a GB"),
        (
            units.parse_loaded,
            [[0.5, "2 us"], [0.5, "3 us"]],
            "is not a loaded latency: expected shares of the",
        ),
        (
            units.parse_loaded,
            [[0.5, "2 us"], [0.6, "1 us"]],
            "shares of the rate that rise and times that do",
        ),
        (units.parse_loaded, [], "[] is not a loaded latency"),
        (units.parse_loaded, [[0, "2 us"]], "0 is not a share"),
        (units.parse_tail, [], "[] is not a tail: expected shares of requests that fall and times that rise"),
        (units.parse_tail, "1%", "'1%' is not a tail"),
        (units.parse_tail, [[0.01]], "[[0.01]] is not a tail: expected pairs"),
        (units.parse_tail, [[0.01, "1 us"], [0.01, "2 us"]], "is not a tail: expected shares of requests"),
        (units.parse_tail, [[0.01, "2 us"], [0.001, "2 us"]], "is not a tail: expected shares of requests"),
        (units.parse_tail, [[0.0000001, "2 us"]], "1e-07 in a tail: expected at most six digits"),
        (units.parse_tail, [[0.01, 2]], "2 is not a time"),
        (units.parse_tail, [[0.01, "1 us"]] * 65, "is not a tail"),
        (
            units.parse_transfers,
            [["0 B", 0.5]],
            "is not an efficiency of transfers: expected sizes that rise",
        ),
        (units.parse_transfers, [["2 B", 0.5], ["1 B", 0.6]], "expected sizes that rise"),
        (units.parse_transfers, [["2 B", 1.5]], "1.5 is not a share"),
        (units.parse_count, 0, "a whole number from 1 on"),
        (units.parse_count, True, "a whole number from 1 on"),
        (units.parse_count, "9", "a whole number from 1 on"),
    ],
)
def test_a_refusal_says_what_is_wrong(parse, text, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        parse(text)


def test_a_refusal_cuts_what_is_long():
    with pytest.raises(UsageError) as caught:
        units.parse_bytes("9" * 5000)
    assert str(caught.value).startswith(f"'{'9' * 76}... is not a size")
    with pytest.raises(UsageError, match="a value that is too long to show is not a number of tokens"):
        units.parse_tokens(10**5000)


def test_a_long_list_of_names_is_cut_and_case_counts_least():
    names = [f"layer{number:02}.kv" for number in range(20)]
    assert nearest("x", names[:12]) == f"choose one of: {', '.join(names[:12])}"
    assert nearest("x", names) == f"choose one of: {', '.join(names[:12])}, ..."
    assert nearest("LAYER07.KV", names) == "did you mean 'layer07.kv'?"


@pytest.mark.parametrize("text", ["0", 0, "0K", "-5", -5, "1e30", "1.5", "nan", "inf", "", "M", True, 1.0])
def test_a_wrong_number_of_tokens_is_refused(text):
    with pytest.raises(UsageError, match="is not a number of tokens.*expected a whole number from 1 on"):
        units.parse_tokens(text)


@given(st.integers(0, 2**63 - 1))
def test_every_number_of_bytes_comes_back(count):
    assert units.parse_bytes(f"{count} B") == count


@given(st.integers(1, 9999), st.integers(0, 999))
def test_a_decimal_fraction_loses_nothing(whole, thousandths):
    assert units.parse_rate(f"{whole}.{thousandths:03} GB/s") == whole * 1000 + thousandths


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (units.format_time(0), "0 ps"),
        (units.format_time(999), "999 ps"),
        (units.format_time(999_999), "1.00 us"),
        (units.format_time(1_842_000_000), "1.84 ms"),
        (units.format_time(-1_500), "-1.50 ns"),
        (units.format_time(5e15), "5000 s"),
        (units.format_bytes(64), "64 B"),
        (units.format_bytes(141 * 10**9), "141 GB"),
        (units.format_rate(4.416e12), "4.42 TB/s"),
        (units.format_rate(0.25), "0.250 B/s"),
        (units.format_tokens(131_072), "128K"),
        (units.format_tokens(10_485_760), "10M"),
        (units.format_tokens(131_073), "131,073"),
        (units.format_share(0.004), "0.4%"),
        (units.format_share(0.92), "92%"),
    ],
)
def test_a_quantity_is_printed_for_people(printed, expected):
    assert printed == expected


@pytest.mark.parametrize(
    ("text", "mbps"),
    [("400 Gbit/s", 50_000), ("1.6 Tbit/s", 200_000), ("128 GiB/s", 137_439), ("1000.4 MB/s", 1000)],
)
def test_rates_of_networks_and_of_binary_sizes_are_whole_mb_s(text, mbps):
    assert units.parse_rate(text) == mbps


def test_a_slow_rate_must_be_a_whole_number_of_mb_s():
    with pytest.raises(UsageError, match="no whole number of MB/s"):
        units.parse_rate("1.5 MB/s")
