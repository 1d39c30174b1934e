"""Figures of measurements: what they show is right, every row is in one, and drawing gives readable files."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from memsim.errors import MissingExtra, OutputError, UsageError
from validation import figures, figures_plot, figures_public, figures_rows, figures_views, figures_words
from validation.figures_model import Figure, View
from validation.figures_model import figures as figures_of
from validation.measure.rows import COMMON


def measured(
    time_ns: float, *, read: int = 0, written: int = 0, spread: float = 0.01, **axes: object
) -> dict:
    """A row as the harness writes it."""
    return {
        **dict.fromkeys(COMMON, ""),
        **axes,
        "split": "held_out",
        "bytes_read": read,
        "bytes_written": written,
        "median_ns": f"{time_ns:.2f}",
        "p10_ns": f"{time_ns * (1 - spread / 2):.2f}",
        "p90_ns": f"{time_ns * (1 + spread / 2):.2f}",
        "spread": spread,
        "noisy": int(spread > 0.03),
        "run": "r1",
    }


def write(folder: Path, family: str, rows: Iterable[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(rows)
    with (folder / f"{family}.csv").open("w", newline="", encoding="utf-8") as file:
        axes = [name for name in rows[0] if name not in COMMON]
        writer = csv.DictWriter(file, [*axes, *COMMON], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with three families that no campaign file knows."""
    folder = tmp_path / "measured" / "toy"
    sizes = [2**20, 2**24, 2**28, 2**32]
    ops = (("read", 1.0), ("copy", 0.5))
    write(
        folder,
        "toy.stream",
        (
            measured(1000 + size / (4000 * part), read=size, op=op, bytes=size)
            | {"split": "calibrate" if size == 2**24 else "held_out"}
            for op, part in ops
            for size in sizes
        ),
    )
    write(
        folder,
        "toy.rate",
        (measured(time, dtype=dtype, spread=0.05) for dtype, time in (("bf16", 100), ("fp8", 50))),
    )
    write(
        folder,
        "toy.sweeps",
        [
            *(measured(10 * blocks, blocks=blocks, depth=8) for blocks in (1, 2, 4)),
            *(measured(7 * depth, blocks=32, depth=depth) for depth in (1, 16, 64)),
            measured(5, blocks=99, depth=99),
        ],
    )
    run = {"r1": {"device": "Toy GPU"}}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


def family(machine: Path, name: str) -> figures_rows.FamilyRows:
    return next(each for each in figures_rows.read_machine(machine) if each.name == name)


def shown(machine: Path, name: str, view: View | None = None) -> list[Figure]:
    return figures_of(family(machine, name), "Toy GPU", view)


def test_the_swept_axis_is_x_and_the_other_makes_lines(machine):
    (figure,) = shown(machine, "toy.stream")
    (bandwidth,), (time,) = figure.grid
    assert (bandwidth.x_label, bandwidth.x_unit, bandwidth.x_log) == ("Size [bytes]", "bytes", True)
    assert [line.label for line in bandwidth.lines] == ["copy", "read"]
    read = time.lines[1]
    assert read.x == (2**20, 2**24, 2**28, 2**32)
    assert read.y[0] == pytest.approx(1000 + 2**20 / 4000, rel=1e-4)
    assert bandwidth.lines[1].y[3] == pytest.approx(2**32 / (1000 + 2**32 / 4000), rel=1e-4)
    assert figure.subtitle == "Toy GPU"


def test_calibration_points_noise_and_percentiles_are_kept_apart(machine):
    (figure,) = shown(machine, "toy.stream")
    line = figure.grid[0][0].lines[0]
    assert line.calibrates == (False, True, False, False)
    assert line.odd == (False,) * 4
    assert all(low < middle < high for low, middle, high in zip(line.low, line.y, line.high, strict=True))
    (noisy,) = shown(machine, "toy.rate")
    assert noisy.grid[0][0].lines[0].odd == (True, True)


def test_words_alone_become_bars(machine):
    (figure,) = shown(machine, "toy.rate")
    (panel,) = figure.grid[0]
    assert panel.barred
    assert panel.lines[0].x == ("bf16", "fp8")
    assert panel.lines[0].y == (100, 50)


def test_united_grids_are_drawn_along_the_axis_that_each_sweeps_and_no_row_is_lost(machine):
    found = shown(machine, "toy.sweeps")
    assert [figure.name for figure in found] == [f"toy.sweeps-by-{x}" for x in ("blocks", "depth", "point")]
    points = [y for figure in found for panel in figure.grid[0] for line in panel.lines for y in line.y]
    assert sorted(points) == [5, 7, 10, 20, 40, 112, 448]
    assert found[0].subtitle == "Toy GPU, depth 8"
    assert found[1].grid[0][0].lines[0].x == (1, 16, 64)


def test_the_axis_that_most_rows_sweep_comes_first_however_few_its_values(tmp_path):
    rows = [measured(blocks, op=op, blocks=blocks, depth=8) for op in "abcdef" for blocks in (1, 2, 4)]
    rows += [measured(depth, op="a", blocks=9, depth=depth) for depth in (1, 2, 3, 4, 5)]
    write(tmp_path, "toy", rows)
    assert [figure.name for figure in shown(tmp_path, "toy")] == ["toy-by-blocks", "toy-by-depth"]


def test_many_lines_become_panels_over_the_same_kind_of_axes(tmp_path):
    rows = [
        measured(batch * context * heads / 100, context=context, batch=batch, heads=heads)
        for context in (1024, 16384, 131072, 262144, 1048576)
        for batch in (1, 8, 64, 256)
        for heads in (8, 64, 128)
    ]
    write(tmp_path, "mla", rows)
    (figure,) = shown(tmp_path, "mla")
    assert [panel.title for panel in figure.grid[0]] == ["batch 1", "batch 8", "batch 64", "batch 256"]
    assert [line.label for line in figure.grid[0][0].lines] == ["heads 8", "heads 64", "heads 128"]
    assert all(panel.y_log and panel.x_log and panel.ordered for panel in figure.grid[0])


def test_a_row_with_an_error_is_left_out_and_counted_and_a_later_one_replaces_it(tmp_path):
    failed = measured(0, size=3) | {"error": "out of memory", "median_ns": ""}
    first = [measured(10, size=1), measured(20, size=2), failed, measured(40, size=4)]
    write(tmp_path, "toy", first)
    (figure,) = shown(tmp_path, "toy")
    assert figure.subtitle == "Toy GPU, 1 point failed"
    write(tmp_path, "toy", [*first, measured(30, size=3), measured(11, size=1)])
    (figure,) = shown(tmp_path, "toy")
    assert figure.subtitle == "Toy GPU"
    assert figure.grid[0][0].lines[0].y == (11, 20, 30, 40)


def test_a_family_of_failures_has_no_figure(tmp_path):
    write(tmp_path, "toy", [measured(0, size=3) | {"error": "no", "median_ns": ""}])
    assert shown(tmp_path, "toy") == []


def test_families_of_a_campaign_file_know_axes_from_other_columns(tmp_path):
    campaign = tmp_path / "campaign"
    campaign.mkdir()
    (campaign / "toy.toml").write_text(
        'suite = "micro"\nmodule = "toy"\n[family."toy"]\nwhat = "a toy"\naxes = ["blocks"]\n'
        'extra = ["load_mbps"]\ncalibrate = [{ blocks = 1 }]\npoints = [[1], [2], [4]]\n',
        encoding="utf-8",
    )
    write(tmp_path, "toy", [measured(9, blocks=blocks, load_mbps=3000 * blocks) for blocks in (1, 2, 4)])
    (found,) = figures_rows.read_machine(tmp_path, campaign)
    assert found.axes == ("blocks",)
    view = View(x="load_mbps", x_label="Load [GB/s]", x_factor=1e-3, lines=(), linear=True)
    (figure,) = figures_of(found, "Toy GPU", view)
    assert figure.title == "toy: a toy"
    assert figure.grid[0][0].lines[0].x == (3, 6, 12)
    assert not figure.grid[0][0].x_log


def test_a_view_may_show_another_column_over_all_axes_on_a_linear_scale(tmp_path):
    rows = [
        measured(500 + blocks, kind=kind, blocks=blocks, flight=32768, pause=pause, stream_mbps=100 * blocks)
        for kind in ("read", "write")
        for blocks in (1, 8, 131)
        for pause in (0, 500, 1000, 2000, 4000)
    ]
    write(tmp_path, "loaded.latency", rows)
    (figure,) = shown(tmp_path, "loaded.latency", figures_views.view("loaded.latency"))
    ((panel,),) = figure.grid
    assert [line.label for line in panel.lines] == ["read", "write"]
    assert (len(panel.lines[0].x), max(panel.lines[0].x)) == (15, pytest.approx(13.1))
    assert not panel.x_log
    assert not panel.joined


def test_a_view_holds_for_a_family_or_for_its_kind():
    assert figures_views.view("loaded.latency").x == "stream_mbps"
    assert (
        figures_views.view("host.chase")
        == figures_views.view("chase.latency")
        != figures_views.view("chase.sm")
    )
    assert figures_views.view("stream.read") is None


def test_stacks_are_also_drawn_together(tmp_path):
    for name, slope in (("stack.kimi", 1), ("stack.kimi_mla", 4), ("other", 9)):
        rows = [
            measured(slope * context * batch, context=context, batch=batch)
            for context in (131072, 262144, 1048576)
            for batch in (1, 4)
        ]
        write(tmp_path, name, rows)
    (group,) = figures_views.combined(figures_rows.read_machine(tmp_path))
    (figure,) = figures_of(group, "Toy GPU")
    assert figure.name == "stack.all"
    assert [line.label for line in figure.grid[0][0].lines] == ["kimi", "kimi mla"]
    assert figure.grid[0][0].lines[1].y == (4 * 131072, 4 * 262144, 4 * 1048576)


@pytest.mark.parametrize(
    ("value", "of", "text"),
    [
        (131072, "tokens", "128K"),
        (131071, "tokens", "131,071"),
        (10 * 2**20, "tokens", "10M"),
        (656, "bytes", "656 B"),
        (1152, "bytes", "1,152 B"),
        (2_162_688, "bytes", "2.06 MiB"),
        (2**31, "bytes", "2 GiB"),
        (0, "bytes", "0 B"),
        (1500, "ns", "1.5 us"),
        (250, "ns", "250 ns"),
        (2e9, "ns", "2 s"),
        (0, "ns", "0"),
        (1048576, "", "1,048,576"),
        (0.25, "", "0.25"),
    ],
)
def test_amounts_are_written_as_people_write_them(value, of, text):
    assert figures_words.amount(value, of) == text


@pytest.mark.parametrize(
    ("axis", "unit", "label"),
    [
        ("bytes", "bytes", "Size [bytes]"),
        ("row_bytes", "bytes", "Row [bytes]"),
        ("context_tokens", "tokens", "Context [tokens]"),
        ("span", "bytes", "Span [bytes]"),
        ("other_blocks", "", "Other blocks"),
    ],
)
def test_axes_say_their_unit(axis, unit, label):
    assert figures_words.unit(axis) == unit
    assert figures_words.words(axis) == label


def test_a_description_says_the_unit_of_an_axis_that_its_name_leaves_open():
    what = "rows of 656 bytes drawn from `span` tokens"
    assert figures_words.unit("span") == "bytes"
    assert figures_words.unit("span", what) == "tokens"
    assert figures_words.words("span", what) == "Span [tokens]"
    assert figures_words.said("span", 16 * 2**20, what) == "span 16M"
    assert figures_words.said("span", 16 * 2**20) == "span 16 MiB"
    assert figures_words.said("tokens", 16, what) == "tokens 16"


def test_names_at_line_ends_are_moved_apart_in_order():
    class Place:
        def get_ylim(self):
            return 1.0, 10_000.0

        def get_yscale(self):
            return "log"

    heights = figures_plot.apart(Place(), [100, 100, 9000, 1.1, 10_000])
    ordered = sorted(heights)
    assert all(high - low > 0.069 for low, high in zip(ordered, ordered[1:], strict=False))
    assert all(height == pytest.approx(0.5, abs=0.036) for height in heights[:2])
    assert heights[3] == ordered[0] >= 0
    assert heights[4] == ordered[-1] <= 1


def test_drawing_writes_svg_and_png_that_name_everything(machine, tmp_path):
    (stream,), (rate,) = shown(machine, "toy.stream"), shown(machine, "toy.rate")
    for figure in (stream, rate):
        svg, png = figures_plot.draw(figure, tmp_path)
        assert png.read_bytes().startswith(b"\x89PNG")
        assert (svg.name, png.name) == (f"{figure.name}.svg", f"{figure.name}.png")
    text = (tmp_path / "toy.stream.svg").read_text(encoding="utf-8")
    for words in (
        "toy.stream",
        "Size [bytes]",
        "Bandwidth [GB/s]",
        "read",
        "copy",
        "64 MiB",
        "100 us",
        "Toy GPU",
    ):
        assert re.search(f">[^<]*{re.escape(words)}", text), words
    assert "open diamonds" in text
    assert "red crosses" not in text
    assert "red crosses" in (tmp_path / "toy.rate.svg").read_text(encoding="utf-8")
    assert not list(tmp_path.glob(".*part"))


def test_equal_input_gives_equal_files(machine, tmp_path):
    (figure,) = shown(machine, "toy.rate")
    first = [path.read_bytes() for path in figures_plot.draw(figure, tmp_path)]
    assert [path.read_bytes() for path in figures_plot.draw(figure, tmp_path)] == first


def test_all_machines_are_drawn_beside_the_public_tables(machine, tmp_path, monkeypatch):
    public = figures_public._curve(figures_public.public.table("mess-h100-hbm2e"))
    monkeypatch.setattr(figures_public, "figures", lambda: [public])
    monkeypatch.setattr(figures_plot, "draw", lambda figure, folder: [folder / f"{figure.name}.svg"])
    steps = []
    out = tmp_path / "out"
    written = figures.draw_all(out, machine.parent, progress=lambda done, total: steps.append((done, total)))
    names = [str(path.relative_to(out)) for path in written]
    families = ["toy.rate", "toy.stream", *(f"toy.sweeps-by-{x}" for x in ("blocks", "depth", "point"))]
    assert names == [*(f"toy/{name}.svg" for name in families), "public/public-mess-h100-hbm2e.svg"]
    assert steps == [(done, 6) for done in range(6)]
    assert figures.machines(machine) == [machine]


def test_a_repeated_run_is_drawn_only_by_its_own_name(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(figures_public, "figures", lambda: [])
    monkeypatch.setattr(figures_plot, "draw", lambda figure, folder: [folder / f"{figure.name}.svg"])
    again = machine.with_name("toy-again")
    shutil.copytree(machine, again)
    assert {path.parent.name for path in figures.draw_all(tmp_path / "out", machine.parent)} == {"toy"}
    assert {path.parent.name for path in figures.draw_all(tmp_path / "out", again)} == {"toy-again"}


def test_every_public_table_but_one_has_a_figure():
    drawn = {shown.table for shown in figures_public.SHOWN}
    curves = {table.name for table in figures_public.public.tables() if table.kind == "curve"}
    assert {table.name for table in figures_public.public.tables()} - drawn - curves == {"allreduce-vllm"}


def test_a_public_figure_says_its_source_and_marks_outliers():
    figure = figures_public._shown(next(each for each in figures_public.SHOWN if each.name == "topk-csa"))
    assert "github.com/ai-dynamo/aiconfigurator, Apache-2.0; L2 not flushed" in figure.subtitle
    assert figure.odd_words == "listed in validation/tables/outliers.toml"
    flat = next(panel for panel in figure.grid[0] if panel.title == "v2 flat")
    one = next(line for line in flat.lines if line.label == "batch 1")
    marked = {x for x, odd in zip(one.x, one.odd, strict=True) if odd}
    assert marked == {131072, 262144, 524288, 1048575}


def test_curves_run_from_idle_to_saturated():
    (panel,) = figures_public._curve(figures_public.public.table("mess-spr-ddr5")).grid[0]
    assert [line.label for line in panel.lines][-1] == "100 % reads"
    assert not panel.x_log
    assert panel.lines[-1].x == tuple(sorted(panel.lines[-1].x))
    assert 105 < panel.lines[-1].y[0] < 120


def test_missing_folders_and_packages_are_said_in_a_line(machine, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="none: no such folder; name one that"):
        figures.draw_all(tmp_path / "out", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty: holds no CSV files"):
        figures.draw_all(tmp_path / "out", tmp_path / "empty")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(OutputError, match="file: is a file"):
        figures.draw_all(tmp_path / "file", machine)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'memsim\[figures\]'"):
        figures.draw_all(tmp_path / "out", machine)
