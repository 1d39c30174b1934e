"""From rows to what a figure shows: panels of lines, with the words on them. Draws nothing.

Enters: the rows of a family. Leaves: its `Figure`s. A family describes itself: x is the axis that the rows
sweep, each combination of the others is a line, an axis that makes too many lines becomes panels, and rows
that make no line are bars. A `View` says what is special.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from validation.figures_rows import FamilyRows, Row, Value, number
from validation.figures_words import said, unit, words
from validation.measure.points import CALIBRATE

MOST_LINES = 8  # in one panel
MOST_PANELS = 4  # beside each other
VOID = (None, 0.0, "none", "-")  # values that a bar's name leaves out
SHORTEST = 3  # points of what is drawn as a line
LOG_FROM = 16  # largest / smallest value from which an axis is logarithmic


@dataclass(frozen=True)
class Line:
    """One curve. low, high: 10th and 90th percentile; odd: noisy, or listed as an outlier."""

    label: str
    x: tuple[Value, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    calibrates: tuple[bool, ...] = ()
    odd: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes. x_unit: bytes or tokens (binary ticks); y_unit: ns (ticks from ns to s)."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_unit: str = ""
    y_unit: str = ""
    x_log: bool = False
    y_log: bool = False
    ordered: bool = False  # lines differ in one number: colours run with it
    joined: bool = True

    @property
    def barred(self) -> bool:
        """Whether x holds words: a bar for each."""
        return any(isinstance(x, str) for line in self.lines for x in line.x)


@dataclass(frozen=True)
class Figure:
    """Panels in rows of equal length; words for the head and the foot."""

    name: str
    title: str
    subtitle: str
    grid: tuple[tuple[Panel, ...], ...]
    odd_words: str = "noisy: spread above 3 %"


@dataclass(frozen=True)
class Quantity:
    """What a y axis shows: words, how a row and its time [ns] give it (None: not), "ns" if it is a time."""

    label: str
    of: Callable[[Row, float], float | None]
    unit: str = ""


def _bandwidth(row: Row, time_ns: float) -> float | None:
    moved = number(row, "bytes_read") + number(row, "bytes_written")
    return moved / time_ns if moved and time_ns > 0 else None


def _time(row: Row, time_ns: float) -> float | None:
    return time_ns if time_ns > 0 else None


def column(name: str, factor: float = 1.0) -> Callable[[Row, float], float | None]:
    """A quantity that stands in a column of its own."""
    return lambda row, _: float(row[name]) * factor if isinstance(row.get(name), float) else None


BANDWIDTH = Quantity("Bandwidth [GB/s], read and written", _bandwidth)
TIME = Quantity("Time of one call", _time, "ns")


@dataclass(frozen=True)
class View:
    """How a family is shown where its rows do not say it.

    quantities  what the rows of panels show; empty: bandwidth where bytes are counted, and time
    x, x_label  an axis or another column, times `x_factor`, and its words
    lines       axes that make lines; None: all that vary
    facet       the axis that makes panels
    joined      whether points of a line are joined; linear: no logarithmic x axis
    bars        one for each row, whatever the axes
    part, bar   of a family of bars: the figure that a row goes into, and the name of its bar
    """

    quantities: tuple[Quantity, ...] = ()
    x: str = ""
    x_label: str = ""
    x_factor: float = 1.0
    lines: tuple[str, ...] | None = None
    facet: str = ""
    joined: bool = True
    linear: bool = False
    bars: bool = False
    part: Callable[[Row], str] | None = None
    bar: Callable[[Row], str] | None = None


def figures(family: FamilyRows, machine: str, view: View | None = None) -> list[Figure]:
    """The figures of a family, together with every row of it; none if nothing was measured."""
    view = view or View()
    if view.part:
        drawn: dict[str, list[Row]] = {}
        for row in family.rows:
            drawn.setdefault(view.part(row), []).append(row)
        return [_figure(family, machine, view, "", tuple(rows), part) for part, rows in drawn.items()]
    whole = family.rows and (view.x or view.bars)
    parts = [(view.x, family.rows)] if whole else _parts(family)
    suffixes = [f"by-{x or 'point'}" if len(parts) > 1 else "" for x, _ in parts]
    return [
        _figure(family, machine, view, x, rows, suffix)
        for (x, rows), suffix in zip(parts, suffixes, strict=True)
    ]


def _parts(family: FamilyRows) -> list[tuple[str, tuple[Row, ...]]]:
    """Rows that make lines along one axis, then the rest along another; at last what makes no line at all.

    Campaigns unite grids: one of sizes, one of counts. Each shall be drawn along the axis that it sweeps.
    """
    parts, left = [], list(family.rows)
    axes = [axis for axis in family.axes if is_numeric(family.rows, axis)]
    while left and axes:
        swept = {axis: _in_lines(left, axis, family.axes) for axis in axes}
        most = max(map(len, swept.values()))
        if not most:
            break
        near = [axis for axis in axes if 10 * len(swept[axis]) >= 9 * most]
        x = max(near, key=lambda axis: len(distinct(swept[axis], axis)))
        parts.append((x, tuple(swept[x])))
        left = [row for row in left if row not in swept[x]]
    if left:
        parts.append(("", tuple(left)))
    return parts


def _in_lines(rows: Sequence[Row], x: str, axes: Sequence[str]) -> list[Row]:
    """Rows that stand in a line of at least SHORTEST points along x, all other axes equal."""
    lines: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault(tuple(row.get(axis, "") for axis in axes if axis != x), []).append(row)
    return [row for line in lines.values() if len(line) >= SHORTEST for row in line]


def _figure(
    family: FamilyRows, machine: str, view: View, x: str, rows: tuple[Row, ...], suffix: str
) -> Figure:
    varying = [axis for axis in family.axes if len(distinct(rows, axis)) > 1]
    fixed = [axis for axis in family.axes if axis not in varying and rows[0].get(axis) not in VOID]
    others = [axis for axis in varying if axis != x]
    facet = view.facet or (_facet(rows, others) if view.lines is None else "")
    lines = [axis for axis in others if axis != facet] if view.lines is None else view.lines
    quantities = view.quantities or _quantities(rows)
    if x:
        grid = tuple(
            alike(_panels(rows, x, lines, facet, each, view, family.what), view.linear) for each in quantities
        )
    else:
        names = [_name(row, varying or family.axes[:1], view, family.what) for row in rows]
        grid = (tuple(_bars(rows, names, each, family.what) for each in quantities),)
    parts = [machine, *(said(axis, rows[0][axis], family.what) for axis in fixed)]
    if family.failed:
        parts.append(f"{family.failed} point{'s' if family.failed > 1 else ''} failed")
    name = f"{family.name}-{suffix}" if suffix else family.name
    title = f"{family.name}: {family.what}".replace("`", "'") if family.what else family.name
    return Figure(name, title, ", ".join(parts), grid)


def _name(row: Row, axes: Sequence[str], view: View, what: str) -> str:
    """The name of a row's bar: by its axes, if the view has no other."""
    if view.bar:
        return view.bar(row)
    return ", ".join(said(axis, row[axis], what) for axis in axes if row.get(axis) not in VOID)


def _bars(rows: Sequence[Row], names: Sequence[str], quantity: Quantity, what: str) -> Panel:
    """A named bar for each row."""
    named = [{**row, "": name} for row, name in zip(rows, names, strict=True)]
    return Panel("", "", quantity.label, (_line(named, "", (), (), quantity, what),), y_unit=quantity.unit)


def distinct(rows: Sequence[Row], axis: str) -> list[Value]:
    """The values of an axis, in order: numbers by size, words as they came."""
    values = list(dict.fromkeys(row[axis] for row in rows if axis in row))
    return sorted(values, key=lambda value: value if isinstance(value, float) else 0.0)


def is_numeric(rows: Sequence[Row], axis: str) -> bool:
    """Whether an axis holds numbers alone."""
    return all(isinstance(row.get(axis, 0.0), float) for row in rows)


def _facet(rows: Sequence[Row], others: Sequence[str]) -> str:
    """The axis that becomes panels, if one panel would hold too many lines: the one that thins them best."""
    if len(_combinations(rows, others)) <= MOST_LINES:
        return ""
    fit = [axis for axis in others if len(distinct(rows, axis)) <= MOST_PANELS]
    return max(fit, key=lambda axis: len(distinct(rows, axis)), default="")


def _combinations(rows: Sequence[Row], axes: Sequence[str]) -> list[tuple[Value, ...]]:
    found = dict.fromkeys(tuple(row.get(axis, "") for axis in axes) for row in rows)
    return sorted(found, key=lambda key: [(isinstance(value, str), value) for value in key])


def _quantities(rows: Sequence[Row]) -> tuple[Quantity, ...]:
    """Bandwidth and time where bytes are counted, else time alone."""
    counted = any(number(row, "bytes_read") + number(row, "bytes_written") for row in rows)
    return (BANDWIDTH, TIME) if counted else (TIME,)


def _panels(
    rows: Sequence[Row],
    x: str,
    others: Sequence[str],
    facet: str,
    quantity: Quantity,
    view: View,
    what: str,
) -> Iterator[Panel]:
    for value in distinct(rows, facet) if facet else [""]:
        part = [row for row in rows if not facet or row.get(facet) == value]
        lines = [_line(part, x, others, key, quantity, what) for key in _combinations(part, others)]
        if view.x_factor != 1:
            lines = [
                replace(each, x=tuple(float(value) * view.x_factor for value in each.x)) for each in lines
            ]
        label = view.x_label or words(x, what)
        yield panel(
            said(facet, value, what) if facet else "",
            label,
            quantity,
            tuple(line for line in lines if line.x),
            x_unit=unit(x, what),
            ordered=len(others) == 1 and is_numeric(part, others[0]),
            joined=view.joined,
        )


def alike(panels: Iterable[Panel], linear: bool = False) -> tuple[Panel, ...]:
    """Panels that stand beside each other: if one is logarithmic, all are (but for x where `linear`)."""
    found = tuple(panels)
    x_log, y_log = any(each.x_log for each in found), any(each.y_log for each in found)
    return tuple(replace(each, x_log=x_log and not linear, y_log=y_log) for each in found)


def panel(
    title: str,
    x_label: str,
    quantity: Quantity,
    lines: tuple[Line, ...],
    *,
    x_unit: str = "",
    ordered: bool = False,
    joined: bool = True,
) -> Panel:
    """A panel whose axes are logarithmic where the values span decades."""
    xs = [value for line in lines for value in line.x if isinstance(value, float)]
    ys = [value for line in lines for value in line.y]
    units = (x_unit, quantity.unit)
    return Panel(title, x_label, quantity.label, lines, *units, spans(xs), spans(ys), ordered, joined)


def _line(
    rows: Sequence[Row],
    x: str,
    axes: Sequence[str],
    key: tuple[Value, ...],
    quantity: Quantity,
    what: str,
) -> Line:
    """The rows of one combination, in the order of x."""
    kept = [
        row
        for row in rows
        if tuple(row.get(axis, "") for axis in axes) == key
        and x in row
        and quantity.of(row, number(row, "median_ns")) is not None
    ]
    if is_numeric(kept, x):
        kept.sort(key=lambda row: number(row, x))
    middle = [quantity.of(row, number(row, "median_ns")) or 0.0 for row in kept]
    ends = [_ends(row, quantity, value) for row, value in zip(kept, middle, strict=True)]
    return Line(
        label=", ".join(said(axis, value, what) for axis, value in zip(axes, key, strict=True)),
        x=tuple(row[x] for row in kept),
        y=tuple(middle),
        low=tuple(low for low, _ in ends),
        high=tuple(high for _, high in ends),
        calibrates=tuple(row.get("split") == CALIBRATE for row in kept),
        odd=tuple(number(row, "noisy") > 0 for row in kept),
    )


def _ends(row: Row, quantity: Quantity, middle: float) -> tuple[float, float]:
    """The quantity at the 10th and 90th percentile of the time, the smaller first."""
    found = [quantity.of(row, number(row, name)) for name in ("p10_ns", "p90_ns") if name in row]
    known = [value for value in found if value is not None] or [middle]
    return min(*known, middle), max(*known, middle)


def spans(values: Sequence[float]) -> bool:
    """Whether the positive values span enough to be shown on a logarithmic axis."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) >= LOG_FROM * min(positive)
