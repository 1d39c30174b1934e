"""A machine as a datasheet, two machines side by side, and the commands that print them."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from machine_samples import LEVELS, SMALL, changed, profile, toml
from rich.console import Console

from hwprofiles import machine_names
from memsim import cli
from memsim.machine_show import differences, document, sheet, table_of_differences
from memsim.profile import load_machine


def printed(renderable, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(renderable)
    return out.getvalue()


def test_a_sheet_says_what_a_colleague_would_check(tmp_path):
    text = printed(sheet(profile(tmp_path, SMALL)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "small: A machine for tests"
    assert "host pcie 52.6 GB/s pcie 52.6 GB/s pcie 1.10 us" in lines
    assert "hbm local 3.60 TB/s hbm 3.60 TB/s hbm 300 ns" in lines
    assert "host 1 1.00 TB 200 GB/s 20 4" in lines
    assert "link.pcie gpu to cpu, both directions at once" in lines
    assert "header 20 B assumed a test" in lines
    assert "41 numbers: 41 assumed" in lines


@pytest.mark.parametrize("name", machine_names())
@pytest.mark.parametrize("width", [80, 120])
def test_a_sheet_fits_its_width_and_loses_nothing(name, width):
    """Every name, value and provenance stands whole; sources may wrap, their words may not be lost.

    GiB are shown in GB, to the byte.
    """
    machine = load_machine(name)
    text = printed(sheet(machine), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    squeezed = "".join(text.split())
    for path, quantity in machine.quantities():
        assert path.rpartition(".")[2] in text
        assert quantity.provenance in text
        shown = "".join(quantity.text.split())
        if shown.endswith(("GiB", "TiB")):
            shown = f"{quantity.number / 10**9:.9f}".rstrip("0").rstrip(".") + "GB"
        assert shown in squeezed or "[" in str(quantity.value)


def test_words_of_a_file_are_no_markup(tmp_path):
    text = toml(changed(SMALL, ("A machine for tests", "[bold]A[/bold] [link=x]")))
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('source = "a test"', 'source = "[red]a[/] test [/bold]"'))
    out = printed(sheet(load_machine(path)), 120)
    assert "small: [bold]A[/bold] [link=x]" in out
    assert "[red]a[/] test [/bold]" in out


def test_gb_and_gib_never_stand_in_one_table(tmp_path):
    """141 GiB is printed in GB, exactly; small sizes keep their KiB."""
    text = printed(sheet(profile(tmp_path, changed(SMALL, ("1000 GB", "141 GiB")))))
    assert "GiB" not in text
    assert "151.397597184 GB" in text
    assert "151 GB" in text
    assert "64 KiB" in text


def test_a_document_has_units_in_its_keys_and_effects(tmp_path):
    found = document(profile(tmp_path, SMALL))
    (path,) = [p for p in found["paths"] if (p["initiator"], p["tier"]) == ("copy", "host")]
    assert path == {
        "initiator": "copy",
        "tier": "host",
        "links": ["pcie"],
        "read_bytes_per_s": 60_800 * 256 // 276 * 10**6,
        "read_bound": "pcie",
        "write_bytes_per_s": 60_800 * 256 // 276 * 10**6,
        "write_bound": "pcie",
        "path_read_bytes_per_s": 60_800 * 256 // 276 * 10**6,
        "path_write_bytes_per_s": 60_800 * 256 // 276 * 10**6,
        "idle_read_s": 1.1e-6,
        "idle_write_s": 1.1e-6,
        "energy_pj_per_bit": 20.0,
    }
    assert found["tiers"]["host"] == {
        "devices": 1,
        "capacity_bytes": 10**12,
        "peak_bytes_per_s": 200 * 10**9,
        "usd_per_gb": {"2024": 4.0},
        "usd": {"2024": 4000.0},
    }
    assert found["routes"]["gpu"] == {"hbm": [], "host": ["pcie"]}
    effects = {number["path"]: number["effect"] for number in found["numbers"]}
    assert effects["link.pcie.tags"] == "faster"
    assert len(effects) == 41


def test_an_energy_that_is_not_known_is_not_guessed(tmp_path):
    bare = profile(tmp_path, changed(SMALL, ('energy = "5 pJ/bit"\n', "")))
    assert [path["energy_pj_per_bit"] for path in document(bare)["paths"]] == [6.0, None, 6.0, None]
    assert "host 1 1.00 TB 200 GB/s - 4" in " ".join(printed(sheet(bare)).split())


def test_differences_name_both_sides(tmp_path):
    first = profile(tmp_path, SMALL)
    second = profile(
        tmp_path, changed(SMALL, ("64 GB/s", "128 GB/s"), ("4 TB/s", "4000 GB/s"), ("gpu cpu", "cpu gpu"))
    )
    both = {"provenance": "assumed", "source": "a test"}
    assert differences(first, second) == [
        {
            "path": "link.pcie.between",
            "first": {"value": "gpu, cpu", "provenance": "", "source": ""},
            "second": {"value": "cpu, gpu", "provenance": "", "source": ""},
        },
        {
            "path": "link.pcie.bandwidth",
            "first": {"value": "64 GB/s", **both},
            "second": {"value": "128 GB/s", **both},
        },
    ]
    assert differences(first, first) == []
    assert "link.pcie.bandwidth 64 GB/s 128 GB/s 2" in " ".join(
        printed(table_of_differences(first, second)).split()
    )
    assert printed(table_of_differences(first, first)) == "no difference\n"


def test_what_only_one_machine_has_is_a_difference():
    found = differences(load_machine("h200"), load_machine("h200-host"))
    entry = {each["path"]: each for each in found}["link.pcie.tags"]
    assert (entry["first"], entry["second"]["value"]) == (None, "576")


@pytest.mark.parametrize(
    ("name", "override", "row", "default"),
    [
        ("h200-nvme", "tier.nvme.devices=4", "tier.nvme.devices 1 (default) 4 4", "1"),
        ("h200-host", "tier.host.devices=2", "tier.host.devices 1 (default) 2 2", "1"),
        ("h200", "tier.hbm.write_bandwidth=2.4 TB/s", "4.8 TB/s (default) 2.4 TB/s 0.5", "4.8 TB/s"),
        ("h200", "initiator.copy.port=5 GB/s", "initiator.copy.port no limit (default) 5 GB/s", "no limit"),
        ("h200", "initiator.copy.port_write=5 GB/s", "no limit (default) 5 GB/s", "no limit"),
        ("cxl3-pool", "tier.pool.turnaround=5 ns", "tier.pool.turnaround 0 s (default) 5 ns", "0 s"),
        ("cxl3-pool", "tier.pool.write_buffer=5 KiB", "write_buffer 0 B (default) 5 KiB", "0 B"),
        ("gh200", "initiator.gpu.setup=1 us", "initiator.gpu.setup 0 s (default) 1 us", "0 s"),
        ("rdma-pool", "link.rdma.tags=5", "link.rdma.tags no limit (default) 5", "no limit"),
        ("rdma-pool", "link.rdma.header=8 B", "link.rdma.header 0 B (default) 8 B", "0 B"),
        ("h200", 'tier.hbm.tail=[[0.01, "1 us"]]', "tier.hbm.tail none (default) 0.01 1 us", "none"),
    ],
)
def test_a_key_that_was_left_out_shows_its_default(name, override, row, default):
    pair = load_machine(name), load_machine(name, [override])
    (difference,) = differences(*pair)
    assert difference["first"] == {"value": default, "provenance": "", "source": "default"}
    lines = [" ".join(line.split()) for line in printed(table_of_differences(*pair), 120).splitlines()]
    assert lines[-1].endswith(row)


def test_keys_of_a_cache_and_levels_of_translation_are_compared(tmp_path):
    def rows(first, second):
        lines = printed(table_of_differences(first, second), 120).splitlines()[2:]
        return [" ".join(line.split()) for line in lines]

    plain = profile(tmp_path, SMALL)
    keys = '"200 ns"\nwrite_bandwidth = "5 TB/s"\ncopies = 2\nways = 16\n'
    cache = profile(tmp_path, changed(SMALL, ('"200 ns"\n', keys)))
    assert rows(plain, cache) == [
        "cache.l2.write_bandwidth 10 TB/s (default) 5 TB/s 0.5",
        "cache.l2.copies 1 (default) 2 2",
        "cache.l2.ways none (default) 16",
    ]
    levels = profile(tmp_path, SMALL + LEVELS)
    assert rows(plain, levels)[0] == "tier.host.translation.far.reach - 4.294967296 GB"
    longer = profile(tmp_path, SMALL + changed(LEVELS, ("4 GiB", "8 GiB")))
    assert rows(levels, longer) == ["tier.host.translation.far.reach 4.294967296 GB 8.589934592 GB 2"]


def test_a_sheet_has_a_heading_for_each_level_of_translation(tmp_path):
    text = printed(sheet(profile(tmp_path, SMALL + LEVELS)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    at = lines.index("tier.host.translation.far")
    assert lines[at + 1 : at + 5] == [
        "reach 4.294967296 GB assumed a test",
        "page 2 MiB assumed a test",
        "latency 400 ns assumed a test",
        "rate 40000000 assumed a test",
    ]


@pytest.mark.parametrize(
    "override", ["tier.nvme.devices=1", "initiator.gpu.attach=gpu", "tier.host.write_latency=0.111 us"]
)
def test_a_default_that_is_written_out_is_no_difference(override):
    assert differences(load_machine("h200-nvme"), load_machine("h200-nvme", [override])) == []


@pytest.mark.parametrize(
    ("name", "override", "row"),
    [
        ("hbf", [], "hbf local 431 GB/s gpu bytes in flight 43.3 GB/s gpu bytes in flight 10.0 us"),
        (
            "h200-host",
            ["link.pcie.bandwidth=128 GB/s"],
            "host pcie 55.8 GB/s pcie tags 105 GB/s pcie 1.20 us",
        ),
        (
            "h200-nvme",
            ["tier.nvme.interleave=4 KiB"],
            "nvme pcie 13.5 GB/s nvme 1.64 GB/s nvme operations 61.1 us",
        ),
    ],
)
def test_a_sheet_says_what_a_stream_reaches_and_what_binds_it(name, override, row):
    machine = load_machine(name, override)
    lines = [" ".join(line.split()) for line in printed(sheet(machine), 120).splitlines()]
    assert row in lines
    (path,) = [
        p for p in document(machine)["paths"] if [p["initiator"], p["tier"]] == ["gpu", row.split()[0]]
    ]
    assert path["read_bound"] in row
    assert path["read_bytes_per_s"] <= path["path_read_bytes_per_s"]


def test_the_commands_print_and_end_as_they_should(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(toml(changed(SMALL, ("tags = 800", "tags = 5"))))
    assert cli.run(["machines", "lint", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("warning: link.pcie.tags: 5; 452 are needed")
    assert out.endswith("0 errors, 1 warning\n")
    assert cli.run(["machines", "lint", str(path), "--set", "link.pcie.tags=0", "--json"]) == 2
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["level"], finding["where"]) == ("error", "link.pcie.tags")
    assert cli.run(["machines", "diff", str(path), "--set", "link.pcie.tags=800", "--json"]) == 0
    (difference,) = json.loads(capsys.readouterr().out)
    assert difference["second"]["value"] == "800"
    assert cli.run(["machines", "show", str(path), "--set", "tier.host.devices=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tiers"]["host"]["devices"] == 2


def test_the_picture_goes_where_it_is_asked_to(tmp_path, capsys):
    path = tmp_path / "m.svg"
    assert cli.run(["machines", "graph", "h200-cxl", "-o", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("<svg")
    assert capsys.readouterr().out == f"{path}\n"


def test_a_picture_of_another_kind_and_a_comparison_with_nothing_are_refused(tmp_path, capsys):
    path = tmp_path / "m.png"
    assert cli.run(["machines", "graph", "h200", "-o", str(path)]) == 2
    assert not path.exists()
    assert capsys.readouterr().err == f"Error: {path}: a picture is an SVG; give a name that ends in .svg\n"
    assert cli.run(["machines", "diff", "h200"]) == 2
    words = "nothing to compare it with; name a second machine or change a number with --set"
    assert capsys.readouterr().err == f"Error: machines diff h200: {words}\n"
