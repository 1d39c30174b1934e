"""The figure of a projection: solid where measured, dashed where not, crosses where nothing fits."""

from __future__ import annotations

import pytest

from memsim import projection_plot
from memsim.projection_plot import APART, _apart, draw, lines_of
from memsim.projection_point import Point

pytest.importorskip("matplotlib")


def point(model, machine, context, tpot_ps, trust="validated", asked=1):
    refused = "" if tpot_ps else "hbm: 1 GB too many"
    return Point(
        model, machine, context, 1, "attention", asked, refused,
        tpot_ps=tpot_ps, low_ps=tpot_ps // 2, high_ps=2 * tpot_ps, trust=trust,
    )  # fmt: skip


POINTS = [
    point("a", "h200", 1024, 10**9),
    point("a", "h200", 4096, 2 * 10**9),
    point("a", "h200", 16384, 4 * 10**9, "extrapolated"),
    point("b", "h200", 1024, 10**9, "unvalidated"),
    point("b", "h200", 4096, 0),
    point("a", "gh200", 1024, 0),
]


def test_both_files_are_written_and_equal_input_gives_equal_files(tmp_path):
    first = [path.read_bytes() for path in draw(POINTS, tmp_path)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["projection.png", "projection.svg"]
    assert [path.read_bytes() for path in draw(POINTS, tmp_path)] == first


def test_what_no_measurement_backs_is_dashed_and_open():
    from matplotlib.figure import Figure

    place = Figure().subplots()
    projection_plot._fill(place, lines_of(POINTS[:5]))
    projection_plot._crosses(place, lines_of(POINTS[:5]))
    drawn = place.get_lines()
    pieces = [line for line in drawn if len(line.get_xdata()) == 2]
    assert [line.get_linestyle() for line in pieces] == ["-", "--"]
    circles = [line for line in drawn if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() == "white" for line in circles] == [False, False, True, True]
    (cross,) = (line for line in drawn if line.get_marker() == "x")
    assert list(cross.get_xdata()) == [4096]


def test_one_context_has_a_panel_of_some_width():
    from matplotlib.figure import Figure

    place = Figure().subplots()
    projection_plot._fill(place, lines_of(POINTS[:1]))
    assert place.get_xlim() == (512, 2048)


def test_lines_say_their_batch_where_several_are_drawn():
    several = [point("a", "h200", 1024, 1, asked=asked) for asked in (1, "max")]
    assert [name for name, _ in lines_of(several)] == ["a, batch 1", "a, batch max"]
    assert [name for name, _ in lines_of(several[:1])] == ["a"]


def test_names_stay_apart_and_in_order_and_inside():
    placed = _apart([0.5, 0.5, 0.51, 0.99, 1.0])
    gaps = [after - before for before, after in zip(placed, placed[1:], strict=False)]
    assert min(gaps) >= APART - 1e-9
    assert max(placed) <= 1
    assert placed[0] == 0.5


def test_crosses_stand_above_all_lines_and_bands():
    from matplotlib.figure import Figure

    place, lines = Figure().subplots(), lines_of(POINTS[:5])
    projection_plot._fill(place, lines)
    _, before = place.get_ylim()
    projection_plot._make_room(place, 1)
    projection_plot._crosses(place, lines)
    (cross,) = (line for line in place.get_lines() if line.get_marker() == "x")
    to_panel = place.transData + place.transAxes.inverted()
    assert to_panel.transform((1024, before))[1] == pytest.approx(1 - projection_plot.CROSS)
    assert cross.get_ydata()[0] > 1 - projection_plot.CROSS
    (grey,) = place.patches
    assert (grey.get_y(), grey.get_height()) == (1 - projection_plot.CROSS, projection_plot.CROSS)


def test_what_fits_nowhere_is_named_and_has_no_crosses():
    from matplotlib.figure import Figure

    place, lines = Figure().subplots(), lines_of([*POINTS[:3], point("c", "h200", 1024, 0)])
    projection_plot._fill(place, lines)
    projection_plot._crosses(place, lines)
    projection_plot._names(place, lines)
    assert "c: does not fit" in [text.get_text() for text in place.texts]
    assert not [line for line in place.get_lines() if line.get_marker() == "x"]
