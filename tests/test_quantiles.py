"""Which measurements stand for a family of kernels, and what is said where none does."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from validation import quantiles
from validation.quantiles import EXTRAPOLATED, UNVALIDATED, VALIDATED, Book, book_of, unmeasured

TABLE = {
    "families": {"mla": ["mla.dense"], "kda": ["kda"], "pair": ["kda", "mla.dense"], "lost": ["gone"]},
    "tiers": {"hbm": [], "host": ["host.gather"]},
    "axes": {"kda": {"context": "length"}},
}
RATIOS = {"mla.dense": (0.9, 1.2), "kda": (0.95, 1.5), "host.gather": (0.5, 1.1)}
BOOK = Book("folder", RATIOS, TABLE)


@pytest.fixture(autouse=True)
def axes(monkeypatch):
    table = {"mla.dense": {"context": 1000, "batch": 8}, "kda": {"length": 50}}
    monkeypatch.setattr(quantiles, "largest", lambda folder, name: table[name])


@pytest.mark.parametrize(
    ("family", "tiers", "context", "batch", "low", "high", "trust"),
    [
        ("mla", ["hbm"], 1000, 8, 0.9, 1.2, VALIDATED),
        ("mla", ["hbm", "host"], 1000, 8, 0.5, 1.2, VALIDATED),
        ("pair", ["hbm"], 50, 1, 0.9, 1.5, VALIDATED),
        ("mla", ["hbm"], 1001, 8, 0.9, 1.2, EXTRAPOLATED),
        ("mla", ["hbm"], 1000, 9, 0.9, 1.2, EXTRAPOLATED),
        ("kda", ["hbm"], 51, 1, 0.95, 1.5, EXTRAPOLATED),
        ("mla", ["hbm", "cxl"], 1000, 8, 0.9**2, 1.2**2, UNVALIDATED),
        ("gqa", ["hbm"], 1000, 8, 0.9**2, 1.5**2, UNVALIDATED),
        ("lost", ["hbm"], 1000, 8, 0.9**2, 1.5**2, UNVALIDATED),
    ],
)
def test_evidence_is_the_widest_of_what_a_family_is_like(family, tiers, context, batch, low, high, trust):
    found = BOOK.evidence(family, tiers, context, batch)
    assert (found.low, found.high, found.trust) == (pytest.approx(low), pytest.approx(high), trust)
    assert bool(found.why) == (trust != VALIDATED)


def test_errors_become_ratios_of_measured_times(monkeypatch, tmp_path):
    path = tmp_path / "quantiles.toml"
    path.write_text('[nvidia-h200."mla.dense"]\npoints = 9\nlow = -0.2\nhigh = 0.25\n')
    monkeypatch.setattr(quantiles, "QUANTILES", path)
    book = book_of("h200")
    assert book is not None
    assert book.ratios == {"mla.dense": (0.8, 1.25)}
    assert book_of("gh200") is None
    found = unmeasured("gh200", "mla")
    assert (found.low, found.high) == (pytest.approx(0.64), pytest.approx(1.5625))
    assert found.why == "gh200 was never measured"


def test_what_is_named_was_measured():
    """Every measured family of the map has a file of rows, or a published table; every machine a folder."""
    folder = Path(quantiles.__file__).parent
    table = tomllib.loads((folder / "trace_families.toml").read_text())
    for machine in set(table["machines"].values()):
        files = {path.stem for path in (folder / "measured" / machine).glob("*.csv")}
        named = [name for names in (*table["families"].values(), *table["tiers"].values()) for name in names]
        published = {name for name in named if name.startswith("public.")}
        assert set(named) - published <= files
        assert published <= set(tomllib.loads((folder / "quantiles.toml").read_text())[machine])
        assert set(table["axes"]) <= files


def test_the_largest_of_each_axis_is_read_from_the_rows(monkeypatch):
    monkeypatch.undo()
    found = quantiles.largest("nvidia-h200", "mla.dense")
    assert found["context"] >= 1_000_000
    assert "split" not in found
    assert quantiles.largest("nvidia-h200", "no such family") == {}
