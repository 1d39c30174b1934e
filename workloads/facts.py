"""Numbers from outside, each with where it comes from and how far it can be trusted."""

from __future__ import annotations

from typing import NamedTuple

PROVENANCES = ("measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed")


class Fact(NamedTuple):
    """One number that a trace rests on.

    path        its name in the trace's `inputs`
    value       as text, with its unit
    provenance  a word of PROVENANCES
    source      who says so
    """

    path: str
    value: str
    provenance: str
    source: str
