"""DeepSeek V3 (dense MLA in 61 layers) and V3.2 (the same with DSA in every layer)."""

from __future__ import annotations

from workloads.facts import Fact
from workloads.models.model import Model
from workloads.shapes import DsaShape, MlaShape

LAYERS = 61
ATTENTION = MlaShape(heads=128, qk_dim=192)

V3_CONFIG = "configuration of deepseek-ai/DeepSeek-V3"
V32_CONFIG = "configuration of deepseek-ai/DeepSeek-V3.2-Exp"
FORMATS = "FlashMLA README: bf16 rows of 576 values; fp8 rows of 656 bytes"
INDEX_FORMAT = "DeepGEMM paged logits: 64 x 128 B of e4m3, then 64 x 4 B of scales"
MAXIMUM = "the model is configured for 163,840 tokens; longer contexts ask what it would cost"

DEEPSEEK_V3 = Model(
    name="deepseek-v3",
    title="DeepSeek V3: 61 dense MLA layers",
    layers=("mla",) * LAYERS,
    mla=ATTENTION,
    facts=(
        Fact("model.layers", "61 x MLA", "stated", V3_CONFIG),
        Fact("model.mla.heads", "128", "stated", V3_CONFIG),
        Fact("model.mla.latent", "512 + 64", "stated", V3_CONFIG),
        Fact("model.mla.qk_dim", "192 = 128 + 64", "stated", V3_CONFIG),
        Fact("model.mla.row_bytes", "1152 B = 576 x bf16", "stated", FORMATS),
        Fact("model.context", "163,840 tokens at most", "stated", MAXIMUM),
    ),
)

DEEPSEEK_V32 = Model(
    name="deepseek-v3.2",
    title="DeepSeek V3.2: 61 MLA layers with DSA (sparse attention)",
    layers=("dsa",) * LAYERS,
    dsa=DsaShape(attention=ATTENTION, index_heads=64, top_k=2048),
    facts=(
        Fact("model.layers", "61 x MLA with an indexer", "stated", V32_CONFIG),
        Fact("model.dsa.heads", "128", "stated", V32_CONFIG),
        Fact("model.dsa.latent", "512 + 64", "stated", V32_CONFIG),
        Fact("model.dsa.qk_dim", "192 = 128 + 64", "stated", V32_CONFIG),
        Fact("model.dsa.row_bytes", "656 B = 512 e4m3 + 4 fp32 + 64 bf16", "stated", FORMATS),
        Fact("model.dsa.index_heads", "64 of 128 dimensions", "stated", V32_CONFIG),
        Fact("model.dsa.top_k", "2048 rows", "stated", V32_CONFIG),
        Fact("model.dsa.index_row_bytes", "132 B, 64 rows a page", "stated", INDEX_FORMAT),
        Fact("model.context", "163,840 tokens at most", "stated", MAXIMUM),
    ),
)
