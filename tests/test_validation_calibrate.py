"""Calibration: known constants are found again, held-out rows never count, machine files change by lines."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from pathlib import Path

import pytest

from hwprofiles import machine_path
from memsim import cli
from memsim.errors import OutputError, UsageError
from memsim.profile import load_machine
from memsim.quantity import Count, Rate, Share, Size, Time
from memsim.route import build_system
from validation import (
    calibrate,
    calibrate_constants,
    calibrate_direct,
    calibrate_fit,
    calibrate_values,
    calibrate_write,
    predict,
)
from validation.calibrate import Found, calibrated
from validation.calibrate_constants import Constant
from validation.figures import MEASURED
from validation.measure import points
from workloads import costs

SHIPPED = MEASURED / "nvidia-h200"

LATENCY = """
[[constant]]
path = "tier.hbm.latency"
file = "h200"
family = "chase.latency"
points = [{ footprint = 1_073_741_824, stride = 128 }]
method = "direct"
formula = "idle"
tier = "hbm"
range = ["150 ns", "800 ns"]
order = 1
"""
BANDWIDTH = """
[[constant]]
path = "cache.l2.bandwidth"
file = "h200"
family = "stream.read"
points = [{ bytes = 8_388_608, cache = "warm" }]
method = "fit"
range = ["2 TB/s", "12 TB/s"]
order = 2
"""
COPIES = """
[[constant]]
path = "cache.l2.copies"
file = "h200"
family = "stream.read"
points = [{ bytes = 25_165_824, cache = "warm" }]
method = "fit"
range = [1, 4]
order = 3
"""
START = """
[[constant]]
path = "kernel.gdn.startup"
file = "costs"
family = "gdn"
points = [{ state = "cold", batch = 1, heads = 32 }]
method = "fit"
range = ["100 ns", "5 us"]
order = 4
"""
KNOWN = {"tier.hbm.latency": "412 ns", "cache.l2.bandwidth": "8.2 TB/s", "cache.l2.copies": 1}


def constants(folder: Path, text: str) -> Path:
    path = folder / "constants.toml"
    path.write_text(text, encoding="utf-8")
    return path


def changed(folder: Path, family: str, change) -> None:
    """Rewrite the rows of a family: `change` gets each and returns what stands in its place."""
    path = folder / f"{family}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerows(change(row))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The two families as if measured on a machine that has the known constants; other rows as they are."""
    made = tmp_path / "measured" / "nvidia-h200"
    made.mkdir(parents=True)
    for family in ("chase.latency", "stream.read"):
        shutil.copy(SHIPPED / f"{family}.csv", made)
    system = build_system(load_machine("h200", [f"{path}={value}" for path, value in KNOWN.items()]))
    for constant in calibrate_constants.read(constants(tmp_path, LATENCY + BANDWIDTH + COPIES)):
        rows = calibrate.calibrate_rows(made, constant)
        times = predict.predicted(constant.family, rows, system)
        want = {tuple(row[axis] for axis in constant.axes): ns for row, ns in zip(rows, times, strict=True)}

        def as_known(row, want=want, axes=constant.axes):
            key = tuple(calibrate._number(row[axis]) for axis in axes)
            return [row | {"median_ns": f"{want[key]:.3f}"} if key in want else row]

        changed(made, constant.family, as_known)
    return made


def test_known_constants_are_found_again(folder: Path, tmp_path: Path) -> None:
    seen = []
    path = constants(tmp_path, LATENCY + BANDWIDTH + COPIES)
    found = calibrated(str(folder), (), lambda done, total: seen.append((done, total)), path)
    assert [each.constant.path for each in found] == list(KNOWN)
    for each in found:
        kind = calibrate_values.kind_of(each.constant.path)
        want = calibrate_values.number(kind, KNOWN[each.constant.path])
        assert each.note == ""
        assert calibrate_values.number(kind, each.value) == pytest.approx(want, rel=0.02)
        assert each.after < 0.01
        assert each.before is None or each.before > 0.05
    assert [each.provenance for each in found] == ["measured", "calibrated", "calibrated"]
    assert seen[-1][0] == seen[-1][1] == 2 * 2 * calibrate_fit.MOST_TRIES
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_machines_that_extend_one_another_have_constants_of_their_own(folder: Path, tmp_path: Path) -> None:
    """A path in two files: each is found by itself, and a machine takes the one of its nearest file."""
    machines = tmp_path / "machines"
    machines.mkdir()
    for name, base, ns in (("near", "h200", 300), ("far", "near.toml", 900)):
        number = f'value = "{ns} ns", provenance = "assumed", source = "a test"'
        text = (
            f'extends = "{base}"\nname = "{name}"\ntitle = "{name}"\n[tier.hbm]\nlatency = {{ {number} }}\n'
        )
        (machines / f"{name}.toml").write_text(text, encoding="utf-8")
    texts = [LATENCY.replace('"h200"', f'"{machines}/{name}.toml"') for name in ("near", "far")]
    texts[1] = texts[1].replace("1_073_741_824", "34_359_738_368")
    made = calibrate_constants.read(constants(tmp_path, "".join(texts)))
    work = calibrate._Work(folder, made, None)
    work.values = {made[0].place: "310 ns", made[1].place: "910 ns"}
    assert work._overrides("h200") == []
    assert work._overrides(f"{machines}/near.toml") == ["tier.hbm.latency=310 ns"]
    assert work._overrides(f"{machines}/far.toml") == ["tier.hbm.latency=910 ns"]
    del work.values[made[1].place]
    assert work._overrides(f"{machines}/far.toml") == []  # its own number rules, not the one below


def test_a_rate_is_a_column_by_time(tmp_path: Path) -> None:
    text = """
[[constant]]
path = "initiator.gpu.bf16"
file = "h200"
family = "matrix.rate"
points = [{ dtype = "bf16", m = [512, 2048], n = 8192, k = 8192 }]
method = "direct"
formula = "rate"
over = "flops"
range = ["1 TFLOP/s", "1000 TFLOP/s"]
order = 1
"""
    (rate,) = calibrate_constants.read(constants(tmp_path, text))
    rows = [{"flops": 1e12, "median_ns": 2e6}, {"flops": 1e12, "median_ns": 4e6}]
    found = calibrate_direct.readings(rate, rows, "h200", [])
    assert found == [5e8, 2.5e8]
    assert calibrate_direct.value(rate, found) == "375 TFLOP/s"
    assert rate.how == "flops by time"


def test_a_known_cost_of_a_kernel_is_found_again_and_written(
    folder: Path, tmp_path: Path, monkeypatch
) -> None:
    """Traces carry costs, so each try records anew; a family's first cost gets a table."""
    shutil.copy(SHIPPED / "gdn.csv", folder)
    mine = tmp_path / "costs.toml"
    mine.write_text("# none yet\n", encoding="utf-8")
    monkeypatch.setattr(costs, "FILE", mine)
    monkeypatch.setattr(costs, "known", lambda: costs.read(mine))
    path = constants(tmp_path, START)
    (constant,) = calibrate_constants.read(path)
    (row,) = calibrate.calibrate_rows(folder, constant)
    with costs.tried({"kernel.gdn.startup": "1.3 us"}):
        (ns,) = predict.predicted("gdn", [row], build_system(load_machine("h200")))

    def as_known(each):
        its = (each["state"], each["batch"], each["heads"]) == ("cold", "1", "32")
        return [each | {"median_ns": f"{ns:.3f}"} if its else each]

    changed(folder, "gdn", as_known)
    (told,) = calibrated(str(folder), (), None, path)
    assert (told.now, told.note) == (None, "")
    assert Time.parse(told.value) == pytest.approx(1_300_000, rel=0.02)
    assert told.before > 0.2 > 0.01 > told.after
    assert calibrate_write.write([told]) == [mine]
    assert mine.read_text(encoding="utf-8").startswith("# none yet\n\n[kernel.gdn]\nstartup = { value = ")
    fact = costs.known()["kernel.gdn.startup"]
    assert (fact.value, fact.provenance) == (told.value, "calibrated")


def test_held_out_rows_are_never_looked_at(folder: Path, tmp_path: Path) -> None:
    path = constants(tmp_path, LATENCY + BANDWIDTH)
    clean = calibrated(str(folder), (), None, path)

    def poisoned(row):
        poison = row | {"split": "held_out", "median_ns": "not a number", "bytes_read": "-1", "run": "9"}
        return [row, poison] if row["split"] == "calibrate" else [poison]

    for family in ("chase.latency", "stream.read"):
        changed(folder, family, poisoned)
    assert calibrated(str(folder), (), None, path) == clean


def test_a_failed_row_does_not_count_and_the_newest_good_one_does(folder: Path, tmp_path: Path) -> None:
    def again(row):
        if row["split"] != "calibrate":
            return [row]
        return [row, row | {"median_ns": "500"}, row | {"error": "out of memory", "median_ns": "9"}]

    changed(folder, "chase.latency", again)
    (found,) = calibrated(str(folder), (), None, constants(tmp_path, LATENCY))
    machine = load_machine("h200")
    hbm, gpu = machine.tier["hbm"], machine.initiator["gpu"]
    operation_ns = hbm.channels.number / hbm.read_iops.number * 1e9  # longer than a line's bytes take
    port_ns = 128 / gpu.port.number * 1e3
    assert found.value == f"{500 - operation_ns - port_ns:.0f} ns"


def test_what_was_not_measured_or_has_no_key_yet_is_skipped_with_a_note(folder: Path, tmp_path: Path) -> None:
    for row in folder.glob("chase*"):
        row.unlink()
    later = LATENCY.replace("hbm.latency", "hbm.no_such_key").replace("order = 1", "order = 4")
    (first, last) = calibrated(str(folder), (), None, constants(tmp_path, LATENCY + later))
    assert (first.note, first.value) == ("not measured here", None)
    assert last.note == "no file has such a key yet"
    hosts = BANDWIDTH.replace("stream.read", "host.copy").split("points")[0] + (
        'points = [{ direction = "in", bytes = 16_384 }]\nmethod = "fit"\n'
        'range = ["2 TB/s", "12 TB/s"]\norder = 1\n'
    )
    if "host.copy" not in predict.recipes():
        (found,) = calibrated(str(folder), (), None, constants(tmp_path, hosts))
        assert found.note == "no recipe predicts host.copy yet"


# The search ----------------------------------------------------------------------------------------------


def search(error, least=1e3, most=1e6, now="9 ns", kind=Time) -> calibrate_fit.Search:
    return calibrate_fit.Search(kind, least, most, now, now, error)


def test_the_search_finds_the_least_error_in_a_dozen_tries() -> None:
    from math import log

    wanted = 123_000
    one = search(lambda value: log(Time.parse(value) / wanted) ** 2)
    best = one.run()
    assert Time.parse(best) == pytest.approx(wanted, rel=0.05)
    assert len(one.tried) <= calibrate_fit.MOST_TRIES
    assert one.note(best) == ""
    two = search(lambda value: log(Time.parse(value) / wanted) ** 2, now=best)
    assert Time.parse(two.run(around=Time.parse(best))) == pytest.approx(wanted, rel=0.01)


def test_points_that_do_not_tell_leave_the_value_and_ends_are_no_answer() -> None:
    flat = search(lambda value: 0.04)
    assert (flat.run(), flat.note("9 ns")) == ("9 ns", "the points do not tell")
    steps = search(lambda value: 0.0 if Time.parse(value) < 30_000 else 0.04)
    assert steps.note(steps.run()).startswith("the points allow ")
    falling = search(lambda value: 1 / Time.parse(value))
    best = falling.run()
    assert falling.note(best) == "at an end of its range"


def test_whole_numbers_that_do_equally_well_are_not_told_apart() -> None:
    one = search(lambda value: 0.0 if value < 3 else 0.04, 1, 4, 2, Count)
    assert one.run() == 2
    assert one.note(2) == "the points allow 1 to 2"


def test_whole_numbers_of_a_short_range_are_all_tried() -> None:
    one = search(lambda value: (value - 1) ** 2, 1, 4, 2, Count)
    assert one.run() == 1
    assert sorted(one.tried) == [1, 2, 3, 4]
    assert one.note(1) == ""


@pytest.mark.parametrize(
    ("kind", "number", "like", "value"),
    [
        (Time, 337_400, "1 us", "337 ns"),
        (Rate, 6_934_567, "7 TB/s", "6.93 TB/s"),
        (Size, 44_712_345, "45 MB", "44.7 MB"),
        (Size, 32_153, "32 KiB", "31.375 KiB"),
        (Size, 5774.6, "32 KiB", "5770 B"),
        (Share, 0.941_26, 0.9, 0.9413),
        (Share, 1.2, 0.9, 1.0),
        (Count, 1.6, 1, 2),
        (Count, 83_123_456, 1, 83_100_000),
    ],
)
def test_values_are_written_as_machine_files_read_them(kind, number, like, value) -> None:
    assert calibrate_values.written(kind, number, like) == value
    kind.parse(value)


# constants.toml ------------------------------------------------------------------------------------------


def test_every_shipped_constant_names_points_that_may_calibrate_and_no_family_gives_too_many() -> None:
    found = calibrate_constants.read()
    assert len(found) > 20
    families = {family.name: family for family in points.read_campaign()}
    given: dict[str, int] = {}
    for constant in found:
        family = families[constant.family]
        given[constant.family] = given.get(constant.family, 0) + 1
        passed = [p for p in family.points if points.matches(p.axes, [dict(f) for f in constant.filters])]
        assert passed
        assert {point.split for point in passed} == {points.CALIBRATE}
        assert 10 * given[constant.family] <= family.count(points.HELD_OUT)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LATENCY.replace("stride = 128", "stride = 4096"), "stride=4096' is held out; name points that may"),
        (LATENCY.replace("1_073_741_824", "5"), "is no point of chase.latency; see its campaign file"),
        (LATENCY.replace("stride = 128", "strid = 128"), "has no axis 'strid'; did you mean 'stride'?"),
        (LATENCY.replace("chase.latency", "chase.latncy"), "did you mean 'chase.latency'?"),
        (LATENCY.replace('"idle"', '"idel"'), "is 'idel'; choose one of: slope, rest, share, rate, idle"),
        (LATENCY.replace('"direct"', '"guess"'), "method is 'guess'; choose one of: direct, fit"),
        (LATENCY.replace('tier = "hbm"\n', ""), "formula 'idle' needs the key 'tier'; add it"),
        (LATENCY.replace("order = 1", ""), "order is missing; every constant needs path, file"),
        (LATENCY.replace('"150 ns"', '"150"'), "range: '150' is not a time: it has no unit"),
        (LATENCY.replace('"150 ns"', '"900 ns"'), "range is 900 ns to 800 ns; expected two rising values"),
        (LATENCY + LATENCY, "tier.hbm.latency of h200 stands there 2 times; expected once"),
        (START.replace('"costs"', '"h200"'), "file is 'h200'; expected 'costs', which holds it; name it"),
        (LATENCY.replace('"h200"', '"costs"'), "file is 'costs'; expected a machine file, which holds it"),
        ("[[constant", "not valid TOML"),
        ("constant = 3", "found a table 'constant'; expected one or more [[constant]]"),
        (
            "".join(COPIES.replace("copies", f"key{at}") for at in range(5)),
            "stream.read gives 5 constants and has 48 held-out points; expected one constant per 10, 4 at",
        ),
    ],
)
def test_a_wrong_file_of_constants_ends_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        calibrate_constants.read(constants(tmp_path, text))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


# Machine files -------------------------------------------------------------------------------------------


@pytest.fixture
def h200(tmp_path: Path) -> Path:
    path = tmp_path / "machines" / "h200.toml"
    path.parent.mkdir()
    shutil.copy(machine_path("h200"), path)
    return path


def found(file: Path, path: str, value: object, note: str = "") -> Found:
    constant = Constant(path, str(file), "toy", (), "fit", 1, 2, 1, 10)
    return Found(constant, 1, None, value, 0.2, 0.1, note, "H200: toy, 1 GiB; where replays err least")


def differing(old: str, new: str) -> tuple[list[str], list[str]]:
    """Lines that only one of the texts has."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    return [line for line in before if line not in after], [line for line in after if line not in before]


def test_writing_changes_the_line_of_a_constant_and_no_other(h200: Path) -> None:
    old = h200.read_text(encoding="utf-8")
    told = found(h200, "tier.hbm.turnaround", "5.1 ns")
    untold = found(h200, "tier.hbm.latency", "1 ns", note="the points do not tell")
    assert calibrate_write.write([told, untold]) == [h200]
    gone, new = differing(old, h200.read_text(encoding="utf-8"))
    assert [line.partition(" =")[0] for line in gone] == ["turnaround"]
    assert new == [
        'turnaround = { value = "5.1 ns", provenance = "calibrated", '
        'source = "H200: toy, 1 GiB; where replays err least" }\n'
    ]
    assert load_machine(h200).tier["hbm"].turnaround.number == 5100
    assert calibrate_write.write([told]) == []  # it says so already
    assert list(h200.parent.iterdir()) == [h200]


def test_a_new_key_goes_behind_the_one_before_it_in_its_own_table(h200: Path) -> None:
    lines = h200.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.remove(next(line for line in lines if line.startswith("setup = ")))  # the GPU's; a copy has its own
    old = "".join(lines)
    h200.write_text(old, encoding="utf-8")
    kept = load_machine(h200).initiator["copy"].setup.number
    calibrate_write.write([found(h200, "initiator.gpu.setup", "100 ns")])
    text = h200.read_text(encoding="utf-8")
    gone, new = differing(old, text)
    assert (gone, len(new)) == ([], 1)
    assert text.index("\ngraph_launch") < text.index("\nsetup") < text.index("\nbf16")
    machine = load_machine(h200)
    assert (machine.initiator["gpu"].setup.number, machine.initiator["copy"].setup.number) == (10**5, kept)


def test_comments_line_ends_and_indents_stay(h200: Path) -> None:
    text = h200.read_text(encoding="utf-8").replace("\n", "\r\n")
    line = next(line for line in text.splitlines() if line.startswith("turnaround"))
    text = text.replace(line, f"  {line} # see {{note}}")
    h200.write_bytes(text.encode())
    calibrate_write.write([found(h200, "tier.hbm.turnaround", "5.1 ns")])
    _, (new,) = differing(text, h200.read_bytes().decode())
    assert new.startswith('  turnaround = { value = "5.1 ns"')
    assert new.endswith(" } # see {note}\r\n")


def test_a_file_without_such_a_line_is_refused_whole(h200: Path) -> None:
    text = "tier.hbm.turnaround.value = 3\n" + h200.read_text(encoding="utf-8").replace(
        "[tier.hbm]", "[tier.x]"
    )
    h200.write_text(text, encoding="utf-8")
    good = found(h200, "initiator.gpu.launch_gap", "1 us")
    with pytest.raises(
        OutputError, match="tier.hbm.turnaround has no line of its own; expected turnaround ="
    ):
        calibrate_write.write([good, found(h200, "tier.hbm.turnaround", "5.1 ns")])
    assert h200.read_text(encoding="utf-8") == text


# The command ---------------------------------------------------------------------------------------------


def ran(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.run(["validate", "calibrate", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def mine(monkeypatch, h200: Path, tmp_path: Path) -> Path:
    """The command reads a file of two constants, and the machine file is a copy."""
    text = (LATENCY + BANDWIDTH).replace('file = "h200"', f"file = '{h200}'")
    path = constants(tmp_path, text)
    read = calibrate_constants.read
    monkeypatch.setattr(calibrate_constants, "read", lambda *_: read(path))
    monkeypatch.setattr(predict, "MACHINES", {"nvidia-h200": {"": str(h200)}})
    return h200


def test_the_command_prints_a_table_and_writes_when_told(capsys, folder: Path, mine: Path) -> None:
    old = mine.read_text(encoding="utf-8")
    words = ("--machine", str(folder), "--only", "tier.hbm.latency")
    code, out, _ = ran(capsys, *words)
    assert code == 0
    row = out.splitlines()[1].split()
    held_ns = load_machine(mine).tier["hbm"].latency.number / 1000
    found_ns = row[4]
    assert abs(int(found_ns) - 412) <= 2  # a chase's loads are not as far as all channels are on average
    assert row[:6] == ["tier.hbm.latency", str(mine), f"{held_ns:.0f}", "ns", found_ns, "ns"]
    assert float(row[6].rstrip("%")) == pytest.approx(100 * (1 - held_ns / 412), abs=0.6)
    assert float(row[7].rstrip("%")) <= 0.1
    assert row[8:10] == ["37", "direct"]
    assert mine.read_text(encoding="utf-8") == old
    code, out, _ = ran(capsys, *words, "--write", "--json")
    document = json.loads(out)
    assert document["written"] == [str(mine)]
    (entry,) = document["constants"]
    assert (entry["found"], entry["provenance"], entry["held_out"]) == (f"{found_ns} ns", "measured", 37)
    held = tomllib.loads(mine.read_text(encoding="utf-8"))["tier"]["hbm"]["latency"]
    assert held == {"value": f"{found_ns} ns", "provenance": "measured", "source": entry["source"]}
    assert "chase.latency, footprint 1 GiB, stride 128 B" in entry["source"]


def test_ctrl_c_leaves_the_machine_file_whole(capsys, monkeypatch, folder: Path, mine: Path) -> None:
    old = mine.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(predict, "predicted", interrupted)
    assert ran(capsys, "--machine", str(folder), "--write")[0] == cli.INTERRUPTED
    assert mine.read_bytes() == old
    monkeypatch.setattr("os.replace", interrupted)
    words = ("--machine", str(folder), "--only", "tier.hbm.latency", "--write")
    assert ran(capsys, *words)[0] == cli.INTERRUPTED
    assert mine.read_bytes() == old
    assert list(mine.parent.iterdir()) == [mine]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "--only tier.hbm.latncy",
            "no measurement gives 'tier.hbm.latncy'; did you mean 'tier.hbm.latency'?",
        ),
        ("--machine nvidia-h20", "unknown machine 'nvidia-h20'; did you mean 'nvidia-h200'?"),
        ("--machine nvidia-h200-earlier", "no machine file stands for it; calibrated is: nvidia-h200"),
    ],
)
def test_wrong_words_end_in_one_line(capsys, words: str, line: str) -> None:
    code, out, err = ran(capsys, *words.split())
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1
