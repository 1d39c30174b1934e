"""Bytes of the regions that an attention layer declares: those of the layer, and those a sequence adds.

The same sums as the `declare` of each kind of layer makes with a recorder, in closed form and without torch;
tests hold them against recordings of every model. `of_layer` is what does not depend on the batch,
`of_sequence` what each sequence adds; both are dicts of kind -> bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from workloads.models.model import Layer
from workloads.shapes import (
    CHANNELS,
    DIM,
    INDEX_ROW_BYTES,
    LATENT,
    PAGE_UNITS,
    CsaShape,
    DsaShape,
    GdnShape,
    GqaShape,
    HcaShape,
    KdaShape,
    MlaShape,
    Shape,
    SwaShape,
    WindowShape,
)
from workloads.splits import (
    CANDIDATE_BYTES,
    COMBINE_HEADS,
    PARTIAL_ROW_BYTES,
    candidate_rows,
    flash_mla_parts,
)

PAGE_ROWS, GQA_PAGE_ROWS, HCA_PAGE_TOKENS = 64, 16, 256
TAPS, LATENT_SLOTS = 3, 8
QUERY_BYTES: dict[str, int] = {"bf16": 2 * DIM, "fp8": DIM, "fp4": INDEX_ROW_BYTES["fp4"]}

Kinds = Counter[str]


@dataclass(frozen=True)
class LayerRun:
    """How a layer is run: rows of the longest sequence, units, whether selected rows are staged, new tokens
    of a sequence (the heads of shapes whose queries all read the same rows are multiplied by them already).
    """

    most_rows: int
    units: int
    staged: bool
    draft: int = 1


def of_layer(layer: Layer, run: LayerRun) -> Kinds:
    """What a layer holds whatever its batch: weights, and partial results of as many splits as units."""
    shape = layer.shape
    if isinstance(shape, KdaShape | GdnShape):
        return Counter(weights=(TAPS + 1) * _channels(shape) * 2)
    if isinstance(shape, MlaShape):
        return Counter(activation=_partials(shape.heads, run))
    if isinstance(shape, DsaShape):
        return Counter(activation=_partials(shape.attention.heads, run))
    if isinstance(shape, SwaShape):
        sinks = Counter(weights=shape.attention.heads // run.draft * 4 if shape.sink else 0)
        return sinks + _gqa_splits(shape.attention, run.units // shape.attention.kv_heads + 1)
    if isinstance(shape, GqaShape):
        return _gqa_splits(shape, run.units // shape.kv_heads + 1)
    window = shape if isinstance(shape, WindowShape) else shape.window
    found: Kinds = Counter(weights=window.heads * 4, activation=_partials(window.heads, run))
    if isinstance(shape, HcaShape):
        found["weights"] += _compressor_weights(LATENT, shape.ratio, halves=1)
    elif isinstance(shape, CsaShape) and layer.kv_from is None and window.style == "v4":
        found["weights"] += sum(_compressor_weights(dim, shape.ratio, halves=2) for dim in (LATENT, DIM))
    elif isinstance(shape, CsaShape) and layer.kv_from is None:
        found["weights"] += (LATENT + DIM) * 2
    return found


def of_sequence(layer: Layer, run: LayerRun, rows: int) -> Kinds:
    """What a sequence of `rows` rows adds."""
    found, shape = _of_token(layer, run, rows), layer.shape
    if not isinstance(shape, MlaShape | GqaShape | SwaShape):
        found["activation"] *= run.draft
        found["output"] *= run.draft
    if isinstance(shape, KdaShape | GdnShape):
        found["state"] += (run.draft - 1) * _heads(shape) * DIM * DIM * 4
    return found


def _heads(shape: KdaShape | GdnShape) -> int:
    """Heads that have a state."""
    heads: int = shape.heads if isinstance(shape, KdaShape) else shape.value_heads
    return heads


def _of_token(layer: Layer, run: LayerRun, rows: int) -> Kinds:
    """What a sequence of `rows` rows and one new token adds."""
    shape = layer.shape
    if isinstance(shape, KdaShape):
        return _delta(shape, shape.heads, DIM)
    if isinstance(shape, GdnShape):
        return _delta(shape, shape.value_heads, 1)
    if isinstance(shape, MlaShape):
        return _mla(shape, _padded(rows, PAGE_ROWS) * shape.row_bytes)
    if isinstance(shape, DsaShape):
        return _dsa(layer, shape, run, rows)
    if isinstance(shape, SwaShape):
        return _gqa(shape.attention, shape.window)
    if isinstance(shape, GqaShape):
        return _gqa(shape, _padded(rows, GQA_PAGE_ROWS))
    window = shape if isinstance(shape, WindowShape) else shape.window
    found = _window(window)
    if isinstance(shape, HcaShape):
        page = HCA_PAGE_TOKENS // shape.ratio
        found["kv"] += _pages(rows // shape.ratio, shape.row_bytes, page, PAGE_UNITS[window.style])
        found["activation"] += LATENT * 4  # sums of columns, before the norm
        return found + _compressor(LATENT, shape.ratio, halves=1)
    return found + _csa(layer, shape, run, rows) if isinstance(shape, CsaShape) else found


def of_positions(shape: Shape, gpus: int) -> Kinds:
    """What a sequence adds once for all layers of a shape (this GPU's heads) whose positions `gpus` share.

    Log-sum-exps and candidates of all GPUs; and what the others hold of them, of queries and of results.
    """
    attention = shape.attention if isinstance(shape, DsaShape) else shape
    if not isinstance(attention, MlaShape | GqaShape):
        return Counter()
    candidates = 0
    if isinstance(shape, DsaShape):
        candidates = (shape.top_k + shape.pool - 1) * CANDIDATE_BYTES
    width = attention.key_dim + attention.value_dim if isinstance(attention, GqaShape) else 0
    if isinstance(attention, MlaShape):
        width = LATENT + attention.rope + LATENT
    lse = gpus * attention.heads * 4
    parts = lse + candidates + attention.heads * width * 2
    return Counter(activation=gpus * (lse + candidates), exchange=(gpus - 1) * parts)


def norms_of(layer: Layer, hidden: int) -> int:
    """Weights of a layer's norms, bf16: before attention, after it, and those of its projections."""
    shape, p = layer.shape, layer.projections
    widths = 2 * hidden
    if isinstance(shape, KdaShape | GdnShape):
        widths += DIM
    elif isinstance(shape, MlaShape):
        widths += LATENT + p.q_lora
    elif isinstance(shape, DsaShape):
        widths += LATENT + p.q_lora + (DIM if layer.index_from is None else 0)
    elif isinstance(shape, WindowShape | CsaShape | HcaShape):
        widths += LATENT + p.q_lora
    return 2 * widths


def _padded(rows: int, page: int) -> int:
    """Rows of the whole pages, at least one, that `rows` rows take."""
    return max(1, -(-rows // page)) * page


def _pages(rows: int, row_bytes: int, page_rows: int = PAGE_ROWS, unit: int = 1) -> int:
    """Bytes of the pages that `rows` rows take, each a whole number of units."""
    return _padded(rows, page_rows) // page_rows * -(-page_rows * row_bytes // unit) * unit


def _channels(shape: KdaShape | GdnShape) -> int:
    channels: int = shape.segments * CHANNELS
    return channels


def _delta(shape: KdaShape | GdnShape, heads: int, decays: int) -> Kinds:
    """Inputs, convolved channels and gates; taps and states; outputs."""
    channels = _channels(shape)
    return Counter(
        activation=2 * channels * 2 + heads * (decays + 1) * 4,
        state=TAPS * channels * 2 + heads * DIM * DIM * 4,
        output=heads * DIM * 2,
    )


def _partials(heads: int, run: LayerRun) -> int:
    parts: int = flash_mla_parts(run.units, heads)
    return parts * _split(heads)


def _split(heads: int) -> int:
    """Partial results of one split."""
    rows: int = -(-heads // COMBINE_HEADS)
    return rows * PARTIAL_ROW_BYTES


def _mla(shape: MlaShape, kv_bytes: int) -> Kinds:
    queries = shape.heads * (LATENT + shape.rope) * 2
    return Counter(activation=queries + _split(shape.heads), kv=kv_bytes, output=shape.heads * LATENT * 2)


def _dsa(layer: Layer, shape: DsaShape, run: LayerRun, rows: int) -> Kinds:
    found = _mla(shape.attention, _padded(rows, PAGE_ROWS) * shape.row_bytes)
    selected = shape.top_k + shape.pool - 1
    if run.staged:
        found["activation"] += selected * shape.row_bytes
    if layer.index_from is None:
        keys = rows // shape.pool
        found["index"] += _pages(keys, shape.index_row_bytes)
        most = run.most_rows // shape.pool
        found += _indexer(shape, keys, most, picks=shape.scored // shape.pool, selected=selected)
    return found


def _indexer(shape: DsaShape | CsaShape, keys: int, most: int, picks: int, selected: int) -> Kinds:
    """Queries and weights of the heads, scores, candidates of the top-k, indices; the keys apart."""
    heads = shape.index_heads * (QUERY_BYTES[shape.index_dtype] + 4)
    candidates = candidate_rows(1, picks, most) * CANDIDATE_BYTES
    return Counter(activation=heads + _padded(keys, PAGE_ROWS) * 4 + candidates + selected * 4)


def _gqa(shape: GqaShape, rows: int) -> Kinds:
    found: Kinds = Counter(
        activation=shape.heads * shape.key_dim * 2,
        kv=rows * shape.row_bytes,
        output=shape.heads * shape.value_dim * 2,
    )
    return found + _gqa_splits(shape, 1)


def _gqa_splits(shape: GqaShape, splits: int) -> Kinds:
    return Counter(activation=splits * shape.heads * (shape.value_dim + 1) * 4)


def _window(shape: WindowShape) -> Kinds:
    ring = _pages(shape.window, shape.row_bytes, unit=PAGE_UNITS[shape.style])
    queries = shape.heads * LATENT * 2
    return Counter(activation=queries + _split(shape.heads), kv=ring, output=queries)


def _csa(layer: Layer, shape: CsaShape, run: LayerRun, rows: int) -> Kinds:
    style, found = shape.window.style, Counter[str]()
    entries, unit = rows // shape.ratio, PAGE_UNITS[style]
    if run.staged:
        found["activation"] += _pages(shape.top_k, shape.row_bytes, unit=unit)
    if layer.kv_from is None:
        found["kv"] += _pages(entries, shape.row_bytes, unit=unit)
        found["index"] += _pages(entries, shape.index_row_bytes, unit=unit)
        found += _makers(shape)
    if layer.index_from is not None:
        return found
    listed, most, within = shape.blocks * shape.block_rows, run.most_rows // shape.ratio, layer.blocks_from
    scored = entries if within is None else min(entries, listed)
    found += _indexer(shape, scored, most if within is None else min(most, listed), shape.top_k, shape.top_k)
    if shape.blocks and within is None:
        blocks, most = -(-entries // shape.block_rows), -(-most // shape.block_rows)
        proposals = candidate_rows(1, shape.blocks - 1, most - 1) * CANDIDATE_BYTES
        found["activation"] += max(1, blocks) * 4 + proposals + (shape.blocks + listed) * 4
    return found


def _makers(shape: CsaShape) -> Kinds:
    """Compressors of rows and of index keys; in V4.1 one of latents."""
    if shape.window.style == "v4":
        return _compressor(LATENT, shape.ratio, halves=2) + _compressor(DIM, shape.ratio, halves=2)
    values = shape.ratio * LATENT * 4
    state = LATENT_SLOTS * values if shape.ratio == 2 else 0
    return Counter(activation=values + (LATENT + DIM) * 2, state=state)


def _compressor(dim: int, ratio: int, halves: int) -> Kinds:
    """Values and scores of the new token, and those of all tokens that a row is made of."""
    token = 2 * halves * dim * 4
    return Counter(activation=token, state=halves * ratio * token)


def _compressor_weights(dim: int, ratio: int, halves: int) -> int:
    return ratio * halves * dim * 4 + dim * 2
