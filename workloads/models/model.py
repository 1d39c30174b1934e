"""A model as data: its attention layers with their shapes, its weights, and where each number comes from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from workloads.facts import Fact
from workloads.shapes import CsaShape, DsaShape, Shape


@dataclass(frozen=True)
class Projections:
    """What the weights of a layer's projections need beside its shape; 0 where there is no such thing.

    q_lora    rank of the queries' low-rank projection
    nope      dimensions of a query head without position, value: of a value head (MLA and DSA)
    gate      the output is gated: by a full-rank projection
    o_groups, o_lora   groups and rank of the output projection of DeepSeek V4
    turned    queries and rows have a rotary part that is turned by position (MLA)
    """

    q_lora: int = 0
    nope: int = 0
    value: int = 0
    gate: bool = False
    o_groups: int = 0
    o_lora: int = 0
    turned: bool = True


@dataclass(frozen=True)
class Layer:
    """One attention layer.

    name         the table of the model's file that describes it
    index_from   the layer whose selection it uses, where it does not select for itself
    kv_from      the layer whose compressed rows and index keys it reads, where it has none
    blocks_from  the layer whose candidate blocks bound its selection
    """

    name: str
    kind: str
    shape: Shape
    projections: Projections
    index_from: int | None = None
    kv_from: int | None = None
    blocks_from: int | None = None

    @property
    def selects(self) -> int:
        """Rows that its attention picks out of all; 0 where it reads every row."""
        return self.shape.top_k if isinstance(self.shape, DsaShape | CsaShape) else 0

    @property
    def sources(self) -> frozenset[int]:
        """Layers whose regions it uses."""
        return frozenset(
            layer for layer in (self.index_from, self.kv_from, self.blocks_from) if layer is not None
        )


@dataclass(frozen=True)
class Weights:
    """Sizes of the weights outside attention.

    hidden, vocab   width of the residual stream, tokens of the vocabulary; input and output tables are apart
    dense_layers, dense_width   feed-forward layers that every token passes
    moe_layers, experts, active, shared, expert_width   layers of experts: all, a token's, every token's
    latent          width that tokens are projected to before the routed experts, 0: none
    zero_experts    experts that cost a row of the router alone
    streams         residual streams mixed by hyper-connections, 0: a plain residual
    tables          parameters of look-up tables beside the vocabulary's, in the total alone
    held            routed experts that one GPU holds, 0: all
    shared_width    width of a shared expert, 0: as a routed one
    dtype           format of the matrices: bf16, or fp8 with an fp32 scale for each block of 128 x 128, or
                    fp4: as fp8, the routed experts in MXFP4, a scale of a byte for 32 inputs
    """

    hidden: int
    vocab: int
    dense_layers: int = 0
    dense_width: int = 0
    moe_layers: int = 0
    experts: int = 0
    active: int = 0
    shared: int = 0
    expert_width: int = 0
    latent: int = 0
    zero_experts: int = 0
    streams: int = 0
    tables: int = 0
    held: int = 0
    shared_width: int = 0
    dtype: str = "bf16"


@dataclass(frozen=True)
class Published:
    """Parameters as the model's makers state them; 0 where they do not.

    total_reason, active_reason   why ours are more than 2% from them
    """

    total: int = 0
    active: int = 0
    total_reason: str = ""
    active_reason: str = ""


@dataclass(frozen=True)
class Model:
    """A model's attention layers in order, its weights, and every number of its file with its source.

    kv_dtype, index_dtype   formats of cached rows and of index keys ("" where there are none)
    weights                 None where the file does not say them
    """

    name: str
    title: str
    max_context: int
    layers: tuple[Layer, ...]
    kv_dtype: str
    index_dtype: str
    weights: Weights | None
    published: Published
    facts: tuple[Fact, ...]

    @property
    def layer_counts(self) -> dict[str, int]:
        """Layers of each kind that occurs, in the order of their first."""
        return dict(Counter(layer.kind for layer in self.layers))

    @property
    def name_counts(self) -> dict[str, int]:
        """Layers of each table of the file, in the order of their first."""
        return dict(Counter(layer.name for layer in self.layers))

    @property
    def selects(self) -> int:
        """Rows that the layers with sparse attention pick; 0 where no layer does."""
        return max(layer.selects for layer in self.layers)
