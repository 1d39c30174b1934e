"""The models' bytes and parameters against figures worked out elsewhere from the same configurations.

`reference.csv` holds these figures as printed, with their digits: a figure is met if ours, rounded to as
many, is the same; parameters may be half a percent off. A row names a model, the options that change it, a
quantity (attributes of `cache.Bytes` and `parameters.Parameters`; `slope`; `floor`: reads and writes at
4.8 TB/s), a context, and the figure.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from workloads.models import cache, get_model, model_names, parameters
from workloads.models.load import Changes, changes_of
from workloads.models.model import Model

REFERENCE = Path(__file__).parent / "reference.csv"
PARAMETERS_WITHIN = Fraction(1, 200)
PARAMETERS = ("total", "active", "non_routed")
H200_BYTES_PER_S = 4_800_000_000_000
CONTEXTS = {"128K": 131_072, "1M": 1_048_576, "10M": 10_485_760, "": 1_048_576}
UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "": 1,
    "ms": Fraction(1, 1000),
    "%": Fraction(1, 100),
}


@dataclass(frozen=True)
class Check:
    """One figure: what it is about, ours and the reference's as text, and whether they agree."""

    about: str
    found: str
    expected: str
    passed: bool


def run() -> Iterator[Check]:
    """All checks: every row of the reference, then the published parameters of every model."""
    models: dict[tuple[str, str], Model] = {}
    with REFERENCE.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            key = row["model"], row["options"]
            if key not in models:
                models[key] = get_model(row["model"], _changes(row["options"]))
            yield _compared(models[key], row)
    for name in model_names():
        yield from _published(get_model(name))


def _compared(model: Model, row: dict[str, str]) -> Check:
    ours = quantity(model, row["quantity"], CONTEXTS[row["context"]])
    figure, unit = row["figure"].partition(" ")[::2]
    scale = Fraction(UNITS[unit])
    decimals = len(figure.partition(".")[2])
    expected = Fraction(figure.replace(",", ""))
    apart = abs(ours / scale - expected)
    passed = apart <= Fraction(1, 2 * 10**decimals)
    if row["quantity"] in PARAMETERS:
        passed = apart <= PARAMETERS_WITHIN * expected
    about = f"{model.name}: {row['quantity']} {row['context']}".rstrip()
    return Check(about, f"{float(ours / scale):,.{decimals + 2}f} {unit}".rstrip(), row["figure"], passed)


def _changes(options: str) -> Changes:
    words = options.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    replace = [given["--replace"]] if "--replace" in given else []
    return changes_of(replace, given.get("--ratio"), given.get("--kv-dtype"), given.get("--index-dtype"))


def quantity(model: Model, name: str, context: int) -> Fraction:
    """What the reference calls by `name`: bytes, bytes a token, seconds, shares or parameters."""
    if name == "slope":
        return cache.slope(model)
    if name in PARAMETERS:
        return Fraction(getattr(parameters.of_model(model), name), 10**9)
    found = cache.of_model(model, context)
    if name == "floor":
        return (found.read + found.written) / H200_BYTES_PER_S
    return Fraction(getattr(found, name))


def _published(model: Model) -> Iterator[Check]:
    """Figures of the makers: ours within 2% of them, or a reason beside them."""
    if model.weights is None:
        return
    ours, published = parameters.of_model(model), model.published
    for what in ("total", "active"):
        stated, reason = getattr(published, what), getattr(published, f"{what}_reason")
        if stated:
            off = parameters.deviation(getattr(ours, what), stated)
            passed = abs(off) <= parameters.CLOSE or bool(reason)
            found = f"{off:+.1%}" + (f" ({reason})" if reason else "")
            yield Check(
                f"{model.name}: {what} parameters, published", found, "within 2%, or a reason", passed
            )
