"""Kimi Linear 48B-A3B, a hybrid of 20 KDA and 7 MLA layers, and the same with MLA in all 27."""

from __future__ import annotations

from dataclasses import replace

from workloads.facts import Fact
from workloads.models.model import Model
from workloads.shapes import KdaShape, MlaShape

FULL_ATTENTION = (4, 8, 12, 16, 20, 24, 27)  # counted from 1, as in the configuration
LAYERS = 27

CONFIG = "configuration of moonshotai/Kimi-Linear-48B-A3B, as public test fixtures repeat it"
ENGINES = "engines allocate 576 bf16 values a row although the layers use no rotary part (ROCm/aiter #4541)"
DTYPES = "vLLM mamba_utils: recurrent state fp32; conv state in the model's type"

KIMI_LINEAR = Model(
    name="kimi-linear",
    title="Kimi Linear 48B-A3B: 20 KDA + 7 MLA layers",
    layers=tuple("mla" if layer in FULL_ATTENTION else "kda" for layer in range(1, LAYERS + 1)),
    kda=KdaShape(heads=32),
    mla=MlaShape(heads=32, qk_dim=192),
    facts=(
        Fact("model.layers", "27: MLA at 4, 8, 12, 16, 20, 24, 27 (from 1), KDA elsewhere", "stated", CONFIG),
        Fact("model.mla.heads", "32", "stated", CONFIG),
        Fact("model.mla.latent", "512 + 64", "stated", CONFIG),
        Fact("model.mla.qk_dim", "192 = 128 + 64", "stated", CONFIG),
        Fact("model.mla.row_bytes", "1152 B = 576 x bf16", "stated", ENGINES),
        Fact("model.kda.heads", "32", "stated", CONFIG),
        Fact("model.kda.state", "128 x 128 fp32 a head", "stated", DTYPES),
        Fact(
            "model.kda.conv", "3 taps x 12,288 channels bf16", "stated", f"{CONFIG} (kernel of 4); {DTYPES}"
        ),
    ),
)

KIMI_LINEAR_ALL_MLA = replace(
    KIMI_LINEAR,
    name="kimi-linear-all-mla",
    title="Kimi Linear 48B-A3B with MLA in all 27 layers (counterfactual)",
    layers=("mla",) * LAYERS,
    kda=None,
    facts=(
        Fact(
            "model.layers", "27 x MLA", "assumed", "counterfactual: each KDA layer replaced by an MLA layer"
        ),
        *(fact for fact in KIMI_LINEAR.facts if fact.path.startswith("model.mla")),
    ),
)
