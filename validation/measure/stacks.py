"""Attention of every layer of one decode step, one after another in one CUDA graph; no projections, no
experts.

kimi: 20 KDA and 7 MLA layers of Kimi Linear; kimi_mla: the same model with MLA in all 27; v3: 61 MLA layers
of DeepSeek V3; v32: 61 layers of index scores, top-k, slots and sparse attention of DeepSeek V3.2, all in
HBM; v32_staged: the same with the KV rows in pinned host memory, gathered by zero-copy into a staging buffer
in HBM and attended there.

A call is a whole step. Layers have caches of their own as long as those fit; beyond that they take turns on
`own_layers` of them, each of which is larger than any cache of the chip. All layers of a step see one block
table, as in serving. Scheduling kernels of FlashMLA and DeepGEMM run outside the graph (production: once a
step); the filling of the index buffer with -1, the translation of positions to slots and the combination of
partial results are inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from . import host_memory
from . import kernels_libs as libs
from .device import Env, drop_pools
from .kernels_data import UNIT_BYTES, drawn, hold, repeat, shuffled_pages
from .kernels_dsa import index_queries
from .kernels_fla import DIMS, STATE_BYTES, kda_inputs, kda_step
from .kernels_mla import answers, queries, small_bytes
from .kernels_stage import region, stage_calls
from .points import Point
from .rows import Measured
from .timing import Call, Work, time_work

if TYPE_CHECKING:
    import torch

KIMI_MLA = frozenset({4, 8, 12, 16, 20, 24, 27})  # counted from 1, of 27 layers
KIMI_LAYERS, KIMI_HEADS = 27, 32
DEEPSEEK_LAYERS, DEEPSEEK_HEADS = 61, 128
INDEX_HEADS, TOP_K = 64, 2048
SPARE_BYTES = 6 << 30  # of the GPU: what is not caches


def own_layers(env: Env, layers: int, layer_bytes: int, beside_bytes: int = 0) -> int:
    """How many layers can have a cache of their own on this GPU, next to `beside_bytes` of something else."""
    import torch

    if not env.cuda:
        return layers
    room = torch.cuda.get_device_properties(env.device).total_memory - SPARE_BYTES - beside_bytes
    own = min(layers, room // layer_bytes)
    if own < 1:
        raise ValueError(f"one layer needs {layer_bytes} B, the GPU has room for {room}")
    return int(own)


def timed_step(env: Env, build: Callable[[int], Work], own: int) -> Measured:
    measured = time_work(build, env)
    measured.extra["own_layers"] = own
    return measured


def in_turn(calls: list[Call]) -> Call:
    """One call that makes all of them."""

    def step() -> None:
        for call in calls:
            call()

    return step


def lengths_of(env: Env, batch: int, context: int) -> torch.Tensor:
    import torch

    return torch.full((batch,), context, dtype=torch.int32, device=env.device)


def mla_layers(
    env: Env, layers: int, own: int, batch: int, context: int, heads: int, seed: int
) -> list[Call]:
    """One call per layer of dense MLA; layer i reads cache i % own."""
    import torch

    pages = -(-context // libs.PAGE_TOKENS)
    layer_bytes = batch * pages * libs.PAGE_TOKENS * libs.ROW_DIMS * 2
    pool = hold(env, "bf16", own * layer_bytes).view(torch.bfloat16)
    caches = pool.view(own, batch * pages, libs.PAGE_TOKENS, 1, libs.ROW_DIMS)
    table = shuffled_pages(batch * pages, seed, env.device).view(batch, pages)
    lengths, out = lengths_of(env, batch, context), answers(env, batch, heads)
    q = [queries(env, batch, heads, seed + i) for i in range(layers)]
    _, plan = libs.dense_attend(q[0], caches[0], lengths, table, None, out)
    return [
        functools.partial(libs.dense_attend, q[i], caches[i % own], lengths, table, plan, out)
        for i in range(layers)
    ]


def dense_bytes(batch: int, context: int, heads: int) -> tuple[int, int]:
    """Bytes that one dense MLA layer reads and writes."""
    read, written = small_bytes(batch, heads)
    return batch * context * libs.ROW_DIMS * 2 + read, written


def dense_stack(point: Point, env: Env, layers: int, heads: int) -> Measured:
    context, batch = point["context"], point["batch"]
    layer_bytes = batch * -(-context // libs.PAGE_TOKENS) * libs.PAGE_TOKENS * libs.ROW_DIMS * 2
    own = own_layers(env, layers, layer_bytes)
    libs.load("_flashmla_C")

    def build(round_index: int) -> Work:
        calls = mla_layers(env, layers, own, batch, context, heads, point.seed + round_index)
        read, written = dense_bytes(batch, context, heads)
        return Work([in_turn(calls)], layers * read, layers * written, own * layer_bytes)

    return timed_step(env, build, own)


def kimi(point: Point, env: Env) -> Measured:
    """KDA states are fp32 tensors of their own, beside the pool of the MLA caches."""
    context, batch = point["context"], point["batch"]
    layer_bytes = batch * -(-context // libs.PAGE_TOKENS) * libs.PAGE_TOKENS * libs.ROW_DIMS * 2
    recurrent = KIMI_LAYERS - len(KIMI_MLA)
    state_bytes = batch * KIMI_HEADS * STATE_BYTES
    own = own_layers(env, len(KIMI_MLA), layer_bytes, recurrent * state_bytes)
    libs.load("_flashmla_C")

    def build(round_index: int) -> Work:
        import torch

        seed = point.seed + round_index
        dense = iter(mla_layers(env, len(KIMI_MLA), own, batch, context, KIMI_HEADS, seed))
        generator = torch.Generator(device=env.device).manual_seed(seed)
        shape = (recurrent, batch, KIMI_HEADS, DIMS, DIMS)
        states = iter(torch.randn(shape, generator=generator, device=env.device))
        slots = shuffled_pages(batch, seed, env.device)
        inputs = kda_inputs(env, batch, KIMI_HEADS, seed)
        calls = [
            next(dense) if layer in KIMI_MLA else kda_step(env, next(states), slots, inputs)
            for layer in range(1, KIMI_LAYERS + 1)
        ]
        read, written = dense_bytes(batch, context, KIMI_HEADS)
        extra = sum(t.numel() * t.element_size() for t in inputs.values())
        read = len(KIMI_MLA) * read + recurrent * (state_bytes + extra)
        written = len(KIMI_MLA) * written + recurrent * (state_bytes + batch * KIMI_HEADS * DIMS * 2)
        footprint = own * layer_bytes + recurrent * state_bytes
        return Work([in_turn(calls)], read, written, footprint)

    return timed_step(env, build, own)


def kimi_mla(point: Point, env: Env) -> Measured:
    return dense_stack(point, env, KIMI_LAYERS, KIMI_HEADS)


def v3(point: Point, env: Env) -> Measured:
    return dense_stack(point, env, DEEPSEEK_LAYERS, DEEPSEEK_HEADS)


def selection(
    env: Env, caches: torch.Tensor, batch: int, context: int, seed: int
) -> tuple[Callable[[int], None], torch.Tensor]:
    """A call that selects for layer i (index scores, top-k, slots), and the slots [batch, 2048] that it
    writes.
    """
    import torch

    pages = -(-context // libs.PAGE_TOKENS)
    table = shuffled_pages(batch * pages, seed, env.device).view(batch, pages)
    lengths = lengths_of(env, batch, context).view(batch, 1)
    asked = [index_queries(env, batch, INDEX_HEADS, seed + i) for i in range(DEEPSEEK_LAYERS)]
    plan = libs.index_plan(lengths)
    chosen = torch.empty(batch, TOP_K, dtype=torch.int32, device=env.device)
    slots = torch.empty_like(chosen)
    workspace = torch.zeros(libs.TOPK_WORKSPACE_BYTES, dtype=torch.uint8, device=env.device)
    owner = torch.arange(batch, dtype=torch.int32, device=env.device)

    def select(layer: int) -> None:
        chosen.fill_(-1)
        q, weights = asked[layer]
        logits = libs.index_logits(q, caches[layer % len(caches)], weights, lengths, table, plan, context)
        libs.top_k(logits, lengths, chosen, workspace, context)
        libs.slots_of(owner, table, chosen, slots)

    return select, slots


def layer_sizes(batch: int, context: int) -> tuple[int, int]:
    """Bytes of one layer's index pages and of its KV pages."""
    tokens = batch * -(-context // libs.PAGE_TOKENS) * libs.PAGE_TOKENS
    return tokens * libs.INDEX_ROW_BYTES, tokens * libs.FP8_ROW_BYTES


def index_caches(env: Env, own: int, batch: int, context: int) -> torch.Tensor:
    """[own, pages, 64, 1, 132] uint8 of its own, filled; the held pool is for the KV rows."""
    import torch

    index_bytes, _ = layer_sizes(batch, context)
    drop_pools(env)
    data = torch.empty(own * index_bytes, dtype=torch.uint8, device=env.device)
    unit = UNIT_BYTES["index"]
    block = drawn("index", min(data.numel(), (256 << 20) // unit * unit), env.device)
    repeat(data, block)
    return data.view(own, -1, libs.PAGE_TOKENS, 1, libs.INDEX_ROW_BYTES)


def selection_bytes(batch: int, context: int) -> tuple[int, int]:
    """Bytes that selection and attention of one layer read and write, scores written once and read once."""
    read, written = small_bytes(batch, DEEPSEEK_HEADS)
    rows = batch * TOP_K * libs.FP8_ROW_BYTES
    return batch * context * (libs.INDEX_ROW_BYTES + 4) + rows + read, batch * context * 4 + written


def load_sparse() -> None:
    for library in ("_C", "_flashmla_C"):
        libs.load(library)


def v32(point: Point, env: Env) -> Measured:
    context, batch = point["context"], point["batch"]
    index_bytes, row_bytes = layer_sizes(batch, context)
    own = own_layers(env, DEEPSEEK_LAYERS, index_bytes + row_bytes)
    load_sparse()
    release(env)
    caches = index_caches(env, own, batch, context)
    rows = hold(env, "rows", own * row_bytes).view(own, -1, libs.PAGE_TOKENS, 1, libs.FP8_ROW_BYTES)

    def build(round_index: int) -> Work:
        seed = point.seed + round_index
        select, slots = selection(env, caches, batch, context, seed)
        places = slots.view(batch, 1, TOP_K)
        q = [queries(env, batch, DEEPSEEK_HEADS, seed + i) for i in range(DEEPSEEK_LAYERS)]
        out = answers(env, batch, DEEPSEEK_HEADS)
        select(0)
        _, plan = libs.sparse_attend(q[0], rows[0], places, None, out)

        def layer(index: int) -> None:
            select(index)
            libs.sparse_attend(q[index], rows[index % own], places, plan, out)

        calls = [functools.partial(layer, index) for index in range(DEEPSEEK_LAYERS)]
        read, written = selection_bytes(batch, context)
        return Work([in_turn(calls)], *_whole(read, written), own * (index_bytes + row_bytes))

    return timed_step(env, build, own)


def _whole(read: int, written: int) -> tuple[int, int]:
    return DEEPSEEK_LAYERS * read, DEEPSEEK_LAYERS * written


def release(env: Env) -> None:
    """Give the held pool back."""
    import torch

    env.facts.pop("held", None)
    if env.cuda:
        torch.cuda.empty_cache()


def pieces(nbytes: int, block_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Begin, offset in the block and bytes of copies that repeat a block and never cross a chunk's end."""
    begin = 0
    while begin < nbytes:
        offset = begin % block_bytes
        size = min(block_bytes - offset, chunk_bytes - begin % chunk_bytes, nbytes - begin)
        yield begin, offset, size
        begin += size


def host_rows(env: Env) -> host_memory.Far:
    """The pinned region, filled with valid 656-byte rows (once)."""
    release(env)
    far = region(env)
    drop_pools(env)
    if "host rows" not in env.facts:
        import torch

        block = drawn("rows", UNIT_BYTES["rows"] * 8192, env.device)
        for begin, offset, nbytes in pieces(far.nbytes, block.numel(), far.chunk_bytes):
            host_memory.copy_async(far.base + begin, block.data_ptr() + offset, nbytes)
        torch.cuda.synchronize(env.device)
        env.facts["host rows"] = True
    return far


def v32_staged(point: Point, env: Env) -> Measured:
    """KV rows of layer i are in the host region at (i % own) x the layer's bytes; staged rows are attended in
    order.
    """
    context, batch = point["context"], point["batch"]
    index_bytes, row_bytes = layer_sizes(batch, context)
    own = own_layers(env, DEEPSEEK_LAYERS, index_bytes)
    load_sparse()
    far = host_rows(env)
    own_rows = min(DEEPSEEK_LAYERS, far.nbytes // row_bytes)
    if not own_rows:
        raise ValueError(f"a layer's rows take {row_bytes} B, {far.nbytes} B of host memory are pinned")
    caches = index_caches(env, own, batch, context)

    def build(round_index: int) -> Work:
        import torch

        seed = point.seed + round_index
        select, slots = selection(env, caches, batch, context, seed)
        q = [queries(env, batch, DEEPSEEK_HEADS, seed + i) for i in range(DEEPSEEK_LAYERS)]
        out = answers(env, batch, DEEPSEEK_HEADS)
        count = batch * TOP_K
        staged = torch.empty(count * libs.FP8_ROW_BYTES, dtype=torch.uint8, device=env.device)
        cache = staged.view(-1, libs.PAGE_TOKENS, 1, libs.FP8_ROW_BYTES)
        places = torch.arange(count, dtype=torch.int32, device=env.device).view(batch, 1, TOP_K)
        bases = [far.base + index % own_rows * row_bytes for index in range(DEEPSEEK_LAYERS)]
        gathers = [stage_calls(base, slots.view(-1), staged, libs.FP8_ROW_BYTES, 1)[0] for base in bases]
        select(0)
        gathers[0]()
        _, plan = libs.sparse_attend(q[0], cache, places, None, out)

        def layer(index: int) -> None:
            select(index)
            gathers[index]()
            libs.sparse_attend(q[index], cache, places, plan, out)

        calls = [functools.partial(layer, index) for index in range(DEEPSEEK_LAYERS)]
        read, written = selection_bytes(batch, context)
        read, written = _whole(read, written)
        footprint = own * index_bytes + own_rows * row_bytes
        return Work(
            [in_turn(calls)], read, written + DEEPSEEK_LAYERS * staged.numel(), footprint, keep=staged
        )

    measured = timed_step(env, build, own)
    measured.extra |= {
        "own_row_layers": own_rows,
        "link_bytes": DEEPSEEK_LAYERS * batch * TOP_K * libs.FP8_ROW_BYTES,
    }
    return measured


FAMILIES = {"stack.kimi": kimi, "stack.kimi_mla": kimi_mla, "stack.v3": v3}
FAMILIES |= {"stack.v32": v32, "stack.v32_staged": v32_staged}
