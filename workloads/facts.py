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
    low, high   what it may be at least and at most, as the value; "": nobody says
    """

    path: str
    value: str
    provenance: str
    source: str
    low: str = ""
    high: str = ""

    def entry(self) -> dict[str, str]:
        """As traces and documents list it: without ends where nobody says any."""
        return {name: text for name, text in self._asdict().items() if text or name not in ("low", "high")}
