"""What one decoded token reads and writes of a model's caches, and what they hold: closed forms.

A model and a context enter, integers of bytes leave, for one sequence. `context` counts the tokens in the
cache, the new one included. Weights, page padding, scores and the top-k's scratch are left out, and so are
the compressors' reads of DeepSeek V4 (about as many bytes as they write).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction

from workloads.models.model import Layer, Model
from workloads.shapes import (
    DIM,
    LATENT,
    CsaShape,
    DsaShape,
    GdnShape,
    GqaShape,
    HcaShape,
    KdaShape,
    MlaShape,
    SwaShape,
    WindowShape,
)

TAPS = 3  # earlier tokens that the convolution before a recurrence keeps, bf16
STATE_BYTES = DIM * DIM * 4  # of a head, fp32


@dataclass(frozen=True)
class Bytes:
    """Bytes of a decode step of one sequence.

    scanned   reads of full attention, of index keys, and of compressed rows that are read whole
    constant  reads that do not grow with the context: windows, recurrent and convolution states
    gathered  reads of selected rows
    written   appended and updated, on average over steps (a compressed row is written every few)
    resident  what the caches hold
    touched   bytes of `resident` that every step reads, wherever the selection falls
    """

    scanned: Fraction = Fraction()
    constant: Fraction = Fraction()
    gathered: Fraction = Fraction()
    written: Fraction = Fraction()
    resident: Fraction = Fraction()
    touched: Fraction = Fraction()

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Bytes)))

    @property
    def read(self) -> int:
        """All reads."""
        return int(self.scanned + self.constant + self.gathered)

    @property
    def gathered_only(self) -> Fraction:
        """Share of the resident bytes that a step reads by selection alone: what a lower tier could hold."""
        return 1 - self.touched / self.resident


def of_model(model: Model, context: int) -> Bytes:
    """Bytes of all layers."""
    return sum((of_layer(layer, context) for layer in model.layers), Bytes())


def slope(model: Model) -> Fraction:
    """Bytes that one token more in the context adds to every step's reads."""
    far = 1 << 40  # where every window and selection is full, and every ratio divides
    return (of_model(model, 2 * far).scanned - of_model(model, far).scanned) / far


def of_layer(layer: Layer, context: int) -> Bytes:
    """Bytes of one layer."""
    shape = layer.shape
    if isinstance(shape, KdaShape):
        return _state(shape.heads, 3 * shape.heads)
    if isinstance(shape, GdnShape):
        return _state(shape.value_heads, 2 * shape.key_heads + shape.value_heads)
    if isinstance(shape, MlaShape | GqaShape):
        return _all(context, shape.row_bytes, shape.row_bytes)
    if isinstance(shape, SwaShape):
        return _window(context, shape.window, shape.attention.row_bytes)
    if isinstance(shape, DsaShape):
        return _dsa(layer, shape, context)
    if isinstance(shape, WindowShape):
        return _window(context, shape.window, shape.row_bytes)
    window = _window(context, shape.window.window, shape.window.row_bytes)
    compressor = _compressor(shape) if layer.kv_from is None else Bytes()
    if isinstance(shape, HcaShape):
        entries = context // shape.ratio
        return window + compressor + _all(entries, shape.row_bytes, Fraction(shape.row_bytes, shape.ratio))
    return window + compressor + _csa(layer, shape, context)


def _state(heads: int, conv_heads: int) -> Bytes:
    """A state of `heads` heads and the taps of the convolution before it: read, and written back."""
    size = Fraction(heads * STATE_BYTES + TAPS * conv_heads * DIM * 2)
    return Bytes(constant=size, written=size, resident=size, touched=size)


def _all(rows: int, row_bytes: int, written: int | Fraction) -> Bytes:
    size = Fraction(rows * row_bytes)
    return Bytes(scanned=size, written=Fraction(written), resident=size, touched=size)


def _window(context: int, window: int, row_bytes: int) -> Bytes:
    size = Fraction(min(context, window) * row_bytes)
    return Bytes(constant=size, written=Fraction(row_bytes), resident=size, touched=size)


def _selected(rows: int, top_k: int, row_bytes: int, written: int | Fraction, own: bool) -> Bytes:
    """`rows` cached rows of which `top_k` are read; they are another layer's where `own` is false."""
    held = Fraction(rows * row_bytes) if own else Fraction()
    return Bytes(
        gathered=Fraction(min(top_k, rows) * row_bytes),
        written=Fraction(written) if own else Fraction(),
        resident=held,
    )


def _dsa(layer: Layer, shape: DsaShape, context: int) -> Bytes:
    open_pool = context % shape.pool  # the newest tokens, whose pool has no key yet, are read in any case
    rows = _selected(context, shape.top_k + open_pool, shape.row_bytes, shape.row_bytes, own=True)
    if layer.index_from is not None:
        return rows
    return rows + _all(
        context // shape.pool, shape.index_row_bytes, Fraction(shape.index_row_bytes, shape.pool)
    )


def _csa(layer: Layer, shape: CsaShape, context: int) -> Bytes:
    entries, own = context // shape.ratio, layer.kv_from is None
    rows = _selected(entries, shape.top_k, shape.row_bytes, Fraction(shape.row_bytes, shape.ratio), own)
    if layer.index_from is not None:
        return rows
    if layer.blocks_from is not None:
        candidates = min(shape.blocks * shape.block_rows, entries)
        return rows + Bytes(scanned=Fraction(candidates * shape.index_row_bytes))
    keys = _all(entries, shape.index_row_bytes, Fraction(shape.index_row_bytes, shape.ratio))
    assert own, "a layer that scores all entries has them"
    return rows + keys


def _compressor(shape: CsaShape | HcaShape) -> Bytes:
    """fp32 state that V4's compressors take in with every token; that of V4.1 has not been seen."""
    if shape.window.style != "v4":
        return Bytes()
    if isinstance(shape, HcaShape):
        return Bytes(written=Fraction(2 * LATENT * 4))
    return Bytes(written=Fraction(2 * 2 * (LATENT + DIM) * 4))
