"""What a step adds to the caches: latent rows, keys and values, index keys, rows of a window.

Taken from vLLM's cache kernels: a block a token reads the new row, packs it as the cache keeps it, and
writes it to its place: the sequence's last row, or the place of its position in a ring. A pooled index
key is written when its pool is full. Left out: the list of places (8 B a token), and how the keys of a
pool become one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from workloads.activations import Rows, dealt, kernel_name, row_launch
from workloads.arithmetic import arithmetic
from workloads.facts import Fact
from workloads.formats import Format, Parts
from workloads.grid import even, one
from workloads.pointwise import norm, turn
from workloads.record import Recorder, RegionHandle

FACTS = (
    Fact(
        "kernel.append.block",
        "a block a token",
        "stated",
        "vLLM cache_kernels.cu: concat_and_cache_mla, reshape_and_cache_flash, indexer_k_quant_and_cache",
    ),
)


def latent_rows(
    recorder: Recorder,
    layer: int,
    parts: Sequence[Rows],
    cache: tuple[RegionHandle, Format],
    lengths: Sequence[int],
    draft: int = 1,
) -> None:
    """The latent row of each token, from its `parts` side by side; `draft` tokens a sequence."""
    handle, kept = cache
    batch, sequences = len(lengths), len(lengths) // draft
    name = kernel_name(layer, "kv-append")
    with recorder.kernel(name, "append", layer, batch, row_launch("append: a block per token")):
        rows = [part.load(batch, dealt(part, batch, batch)) for part in parts]
        packed = pack(kept, *rows)
        for number, tokens in enumerate(lengths):
            row = tuple(part[number : number + 1] for part in packed)
            kept.store(handle, handle.first(number // draft, sequences) + tokens - 1, row, one(number))


def keys_values(
    recorder: Recorder,
    layer: int,
    rows: tuple[Rows, Rows],
    caches: tuple[RegionHandle, RegionHandle],
    kv_heads: int,
    places: Sequence[int],
    draft: int = 1,
) -> None:
    """Key and value of every head of each token: row `places` of its sequence, which has `draft` tokens."""
    batch, sequences = len(places), len(places) // draft
    name = kernel_name(layer, "kv-append")
    with recorder.kernel(name, "append", layer, batch, row_launch("append: a block per token")):
        for new, cache in zip(rows, caches, strict=True):
            values = new.load(batch, dealt(new, batch, batch)).reshape(1, batch * kv_heads, -1)
            firsts = [cache.first(head, sequences * kv_heads) for head in range(sequences * kv_heads)]
            apart = sorted(set(np.diff(firsts).tolist())) or [1]
            if len(set(places)) == 1 and len(apart) == 1:
                cache.store_each(places[0], values, even(0, batch - 1, kv_heads), 0, stride=apart[0])
                continue
            for number, place in enumerate(places):
                first = number // draft * kv_heads
                stride = 1 if kv_heads == 1 else firsts[first + 1] - firsts[first]
                heads = values[:, number * kv_heads : (number + 1) * kv_heads]
                cache.store_each(firsts[first] + place, heads, one(number), 0, stride=stride)


def index_keys(
    recorder: Recorder,
    layer: int,
    new: Rows,
    weight: RegionHandle,
    cache: tuple[RegionHandle, Format],
    lengths: Sequence[int],
    pool: int,
) -> None:
    """The normed and turned index key of each sequence's last token, where it completes a pool."""
    handle, kept = cache
    batch = len(lengths)
    name = kernel_name(layer, "index-append")
    with recorder.kernel(name, "append", layer, batch, row_launch("append: a block per token")):
        for sequence, tokens in enumerate(lengths):
            if tokens % pool == 0:
                mine = one(sequence)
                key = new.handle.load(sequence * new.pieces, new.pieces, mine)
                key = key.reshape(1, new.width)
                normed = turn(norm(key, weight.load(0, 1, mine)), (tokens - 1,), new.width)
                kept.store(
                    handle, handle.first(sequence, batch) + tokens // pool - 1, pack(kept, normed), mine
                )


@arithmetic
def pack(kept: Format, *parts: torch.Tensor) -> Parts:
    """Rows [n, width] of parts side by side, as the cache keeps them."""
    return kept.pack(torch.cat([part.float() for part in parts], dim=1))
