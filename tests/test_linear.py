"""Products of few tokens compute what float64 says, whichever way their blocks are cut, and experts too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workloads import experts, linear
from workloads.activations import Rows, declare
from workloads.codes import from_e2m1, from_ue8m0
from workloads.kit import Shared
from workloads.linear_cut import cut_of
from workloads.models.matrices import GROUP, SCALED, Matrix
from workloads.record import ListSink, Recorder
from workloads.tensors import generator_for, normal

UNITS = 8


def close(found, expected):
    return (found.double() - expected).norm() / expected.norm()


def weights_of(made, parts):
    """The matrix [n, k] in float64; it lies as [parts, n, k / parts]."""
    n, k = made.matrix.n, made.matrix.k
    matrix = made.weights.data.double().reshape(parts, n, k // parts).transpose(0, 1).reshape(n, k)
    if made.scales is None:
        return matrix
    spread = made.scales.data.double().repeat_interleave(SCALED, 0)[:n]
    return matrix * spread.repeat_interleave(SCALED, 1)


@pytest.mark.parametrize(
    ("n", "k", "tokens", "dtype", "parts"),
    [
        (192, 256, 1, "bf16", 1),
        (192, 256, 3, "bf16", 1),
        (32, 512, 20, "bf16", 4),  # inputs and weights in 4 turns
        (128, 4096, 1, "bf16", 4),  # inputs in 4 splits
        (128, 4096, 20, "bf16", 16),
        (320, 384, 2, "fp8", 1),
        (320, 512, 24, "fp8", 4),
    ],
)
def test_a_product_is_that_of_float64(n, k, tokens, dtype, parts):
    sink = ListSink()
    recorder = Recorder(sink, "cpu")
    made = linear.declare(recorder, 0, Matrix("x", n, k, coded=True), dtype, UNITS, tokens)
    shared = Shared(recorder, tokens)
    shared.need(made)
    x, out = declare(recorder, "in", tokens, k), declare(recorder, "out", tokens, n)
    shared.close()
    generator = generator_for(recorder.device, 0)
    linear.fill(made, generator)
    x.handle.fill(normal(x.handle.shape, torch.bfloat16, generator))
    for handle in (out.handle, shared.coded, shared.partial):
        if handle is not None:
            handle.zero()
    given = x
    if dtype == "fp8":
        given = linear.quantised(recorder, 0, "x", x, Rows(shared.coded, 1), tokens)
    linear.product(recorder, 0, made, given, [out], tokens, shared.partial)
    expected = x.handle.data.double().reshape(tokens, k) @ weights_of(made, parts).T
    assert close(out.handle.data.reshape(tokens, n), expected) < (0.01 if dtype == "bf16" else 0.05)
    read = sum(a.rows for a in sink.accesses if a.region == made.weights.region.id)
    assert read == made.weights.region.rows
    names = [kernel.family for kernel in sink.kernels]
    assert ("split-reduce" in names) == (k >= 4096)


def test_fp8_weights_are_numbers_of_the_format_before_they_are_rounded(monkeypatch):
    """Not every torch takes what is larger to the largest: some make it NaN."""
    matrix = Matrix("x", 2048, 2048, coded=True)
    made = linear.declare(Recorder(ListSink(), "cpu"), 0, matrix, "fp8", UNITS, 1)
    given = {}
    monkeypatch.setattr(type(made.weights), "fill", lambda handle, values: given.update({id(handle): values}))
    linear.fill(made, generator_for(torch.device("cpu"), 0))
    assert given[id(made.weights)].abs().max() == 448


@pytest.mark.parametrize(
    ("tokens", "dtype"), [(1, "bf16"), (3, "bf16"), (40, "bf16"), (3, "fp8"), (3, "fp4")]
)
def test_chosen_experts_multiply_the_rows_of_their_tokens(tokens, dtype):
    sink = ListSink()
    recorder, count, active, n, k = Recorder(sink, "cpu"), 6, 2, 192, 256
    made = linear.declare(
        recorder, 0, Matrix("x", n, k, count, coded=True, routed=True), dtype, UNITS, tokens
    )
    shared = Shared(recorder, tokens)
    shared.need(made)
    x = declare(recorder, "in", tokens, k)
    ids, out = shared.cells("ids", active, "int32"), declare(recorder, "out", tokens * active, n)
    shared.close()
    generator = generator_for(recorder.device, 0)
    linear.fill(made, generator)
    x.handle.fill(normal(x.handle.shape, torch.bfloat16, generator))
    for handle in (out.handle, shared.coded):
        if handle is not None:
            handle.zero()
    drawn = np.sort(
        np.random.default_rng(0).permuted(np.tile(np.arange(count), (tokens, 1)), axis=1)[:, :active]
    )
    ids.fill(torch.from_numpy(drawn))
    given = x
    if dtype == "fp8":
        given = linear.quantised(recorder, 0, "x", x, Rows(shared.coded, 1), tokens)
    chosen = experts.chosen_of(drawn, count)
    experts.grouped(recorder, 0, made, given, ids, out.handle, chosen, first=True, aligned=False)
    if dtype == "fp4":
        widened = from_e2m1(made.weights.data).double().reshape(count, n, -1, GROUP)
        matrices = widened * from_ue8m0(made.scales.data).double().reshape(count, n, -1, 1)
        matrices = matrices.reshape(count, n, k)
    else:
        matrices = made.weights.data.double().reshape(count, n, k)
    if dtype == "fp8":
        spread = made.scales.data.double().reshape(count, -1, k // SCALED).repeat_interleave(SCALED, 1)[:, :n]
        matrices = matrices * spread.repeat_interleave(SCALED, 2)
    rows = x.handle.data.double().reshape(tokens, k)
    expected = torch.stack([matrices[e] @ rows[t] for t in range(tokens) for e in drawn[t]])
    found = out.handle.data.reshape(tokens * active, n)
    assert close(found, expected) < (0.05 if dtype == "fp8" else 0.01)
    assert 0.3 < found.double().std() < 3
    if dtype == "fp4":  # a block reads the scales of its own outputs alone
        scales = [access for access in sink.accesses if access.region == made.scales.region.id]
        assert {access.spread for access in scales} == {"even"}
        assert sum(access.rows for access in scales) == tokens * active * n


def test_deepgemm_cuts_as_was_captured():
    captured = {2112: 16, 24_576: 96, 7168: 64, 36_864: 144, 4096: 32, 8192: 64}
    assert {n: cut_of(n, 2048, 1, "fp8", 132, 1).tile for n in captured} == captured


def test_cublas_cuts_as_was_captured():
    captured = {
        (4096, 2304): 64,
        (32, 2304): 32,
        (6144, 2304): 64,
        (576, 2304): 64,
        (2048, 2304): 64,
        (18_432, 2304): 192,
        (2304, 9216): 128,
        (163_840, 2304): 128,
        (24_576, 1536): 256,
        (7168, 16_384): 256,
        (8192, 1536): 64,
        (129_280, 7168): 128,
    }
    assert {key: cut_of(*key, 1, "bf16", 132, 1).tile for key in captured} == captured
    split = {(2304, 4096), (2304, 9216), (2112, 7168), (7168, 16_384), (128, 7168), (256, 7168)}
    whole = {key for key in captured if key not in split}
    assert all(cut_of(*key, 1, "bf16", 132, 1).split > 1 for key in split)
    assert all(cut_of(*key, 1, "bf16", 132, 1).split == 1 for key in whole - {(129_280, 7168)})
