"""The matrices of a model close against its parameters, layer by layer, and its bytes against those."""

from __future__ import annotations

import pytest

from workloads.models import get_model, matrices, model_names, parameters
from workloads.shapes import CsaShape, GdnShape, HcaShape, KdaShape

DIM, LATENT, TAPS = 128, 512, 4


def declared_apart(layer):
    """Parameters that the attention's own kernels declare: taps of convolutions, position biases."""
    shape = layer.shape
    if isinstance(shape, KdaShape):
        return TAPS * 3 * shape.heads * DIM
    if isinstance(shape, GdnShape):
        return TAPS * (2 * shape.key_heads + shape.value_heads) * DIM
    if isinstance(shape, HcaShape):
        return shape.ratio * LATENT
    if isinstance(shape, CsaShape) and layer.kv_from is None and shape.window.style == "v4":
        return shape.ratio * 2 * (LATENT + DIM)
    return 0


@pytest.mark.parametrize("name", model_names())
def test_matrices_are_all_the_parameters(name):
    model = get_model(name)
    w = model.weights
    for layer in model.layers:
        ours = sum(matrix.parameters for matrix in matrices.of_attention(layer, w.hidden))
        assert ours + declared_apart(layer) == parameters.of_layer(layer, w.hidden)
    every = [m for number in range(len(model.layers)) for m in matrices.of_layer(model, number)]
    total = sum(matrix.parameters for matrix in (*every, *matrices.of_outer(w)))
    total += sum(declared_apart(layer) for layer in model.layers)
    assert total + w.tables == parameters.of_model(model).total


@pytest.mark.parametrize("name", ["longcat-2.0", "longcat-flash"])
def test_longcat_has_experts_beside_every_other_dense_layer(name):
    model = get_model(name)
    numbers = range(len(model.layers))
    assert all(matrices.has_dense(model, number) for number in numbers)
    assert [number for number in numbers if matrices.has_experts(model, number)] == list(numbers)[::2]


def test_bytes_of_a_matrix_in_blocks():
    matrix = matrices.Matrix("q", 300, 256, count=3, coded=True)
    assert matrix.bytes("bf16") == 3 * 300 * 256 * 2
    assert matrix.bytes("fp8") == 3 * (300 * 256 + 3 * 2 * 4)
    assert matrix.bytes("fp4") == matrix.bytes("fp8")  # of routed experts alone
    assert matrices.Matrix("router", 300, 256).bytes("fp8") == 300 * 256 * 2
    routed = matrices.Matrix("experts-up", 300, 256, count=3, coded=True, routed=True)
    assert [routed.bytes(dtype) for dtype in ("bf16", "fp8")] == [matrix.bytes("bf16"), matrix.bytes("fp8")]
    assert routed.bytes("fp4") == 3 * (300 * 256 // 2 + 300 * 256 // 32)
