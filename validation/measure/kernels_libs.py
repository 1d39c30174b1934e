"""Where the production kernels come from: compiled libraries, DeepGEMM, and Triton kernels lifted from wheel
sources.

Nothing is changed on the way: libraries are loaded as they are and reached through `torch.ops`; a Triton
kernel is the text of the function in the installed wheel, put into a module of its own so that the rest of
its package (and what that needs) is not imported. Leaves: plain functions with the argument order of the
wheels' own interfaces. Versions that this was written for: vllm 0.22.0 (FlashMLA, DeepGEMM 2.5.0, top-k,
experts), fla-core 0.6.0.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from .device import Skipped

if TYPE_CHECKING:
    import torch

PAGE_TOKENS = 64  # of every cache: FlashMLA and DeepGEMM on Hopper take no other
LATENT = 512  # value dims of an MLA row; the row has 64 more
ROW_DIMS = 576
FP8_ROW_BYTES = 656
INDEX_ROW_BYTES = 132
INDEX_DIMS = 128
TOPK_WORKSPACE_BYTES = 1 << 20
SLOT_TILE = 128  # columns of a block of `slots_of`, as vLLM launches it


def wheel_folder() -> Path:
    """Folder of the vllm package, which is not imported. Skipped if there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise Skipped("python module vllm is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def load(library: str) -> None:
    """Register the operators of `vllm/<library>.abi3.so` ("_C", "_moe_C", "_flashmla_C", ...)."""
    import torch

    path = wheel_folder() / f"{library}.abi3.so"
    if not path.exists():
        raise Skipped(f"{path} is missing")
    torch.ops.load_library(str(path))


@functools.cache
def deep_gemm() -> ModuleType:
    """The DeepGEMM package of the wheel. It compiles a kernel with nvcc when it first meets its shape."""
    if "CUDA_HOME" not in os.environ and Path("/usr/local/cuda/bin/nvcc").exists():
        os.environ["CUDA_HOME"] = "/usr/local/cuda"
    os.environ.setdefault("DG_JIT_CACHE_DIR", str(Path(tempfile.gettempdir(), "deep_gemm_cache")))
    return importlib.import_module("vllm.third_party.deep_gemm")


@functools.cache
def lifted(file: str, names: tuple[str, ...], prelude: str = "") -> ModuleType:
    """A module that holds functions `names` of the wheel's `vllm/<file>` as they stand there, decorators
    included.

    `prelude` is Python text that stands in for what the functions name and their package would import.
    """
    path = wheel_folder() / file
    if not path.exists():
        raise Skipped(f"{path} is missing")
    source = path.read_text(encoding="utf-8")
    found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in names if name not in found]
    if missing:
        raise Skipped(f"{path} has no function {missing[0]}")
    lines = source.splitlines()
    parts = [
        "import torch",
        "import triton",
        "import triton.language as tl",
        "from typing import Any",
        prelude,
    ]
    for name in names:
        node = found[name]
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        parts.append("\n".join(lines[first - 1 : node.end_lineno]))
    folder = Path(tempfile.mkdtemp(prefix="lifted_"))
    target = folder / f"lifted_{path.stem}.py"
    target.write_text("\n\n\n".join(parts) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(target.stem, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dense_attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    plan: tuple[torch.Tensor, torch.Tensor] | None,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """FlashMLA dense decode. q [B, 1, H, 576] bf16, cache [pages, 64, 1, 576] bf16, lengths [B], table [B, n]
    int32.

    `plan` None: the scheduling kernel runs first; its answer is returned and holds for all calls of these
    shapes.
    """
    import torch

    meta, splits = plan or (None, None)
    out, _, meta, splits = torch.ops._flashmla_C.dense_decode_fwd(
        q, cache, LATENT, lengths, table, ROW_DIMS**-0.5, True, meta, splits, out
    )
    return out, (meta, splits)


def sparse_attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    plan: tuple[torch.Tensor, torch.Tensor] | None,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """FlashMLA sparse decode. q [B, 1, H, 576] bf16, cache [pages, 64, 1, 656] uint8, slots [B, 1, k]."""
    import torch

    meta, splits = plan or (None, None)
    out, _, meta, splits = torch.ops._flashmla_C.sparse_decode_fwd(
        q, cache, slots, None, None, meta, splits, None, None, None, LATENT, ROW_DIMS**-0.5, out
    )
    return out, (meta, splits)


def index_plan(lengths: torch.Tensor) -> torch.Tensor:
    """DeepGEMM's schedule for `index_logits`; lengths [B, 1] int32. Production makes it once a step, for all
    layers.
    """
    import torch

    units = torch.cuda.get_device_properties(lengths.device).multi_processor_count
    return deep_gemm().get_paged_mqa_logits_metadata(lengths, PAGE_TOKENS, units)


def index_logits(
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    plan: torch.Tensor,
    context: int,
) -> torch.Tensor:
    """DeepGEMM paged index scores. q [B, 1, H, 128] fp8, cache [pages, 64, 1, 132] uint8, weights [B, H] f32
    -> [B, n].
    """
    return deep_gemm().fp8_fp4_paged_mqa_logits(
        (q, None), cache, weights, lengths, table, plan, context, clean_logits=False
    )


def top_k(
    logits: torch.Tensor, lengths: torch.Tensor, chosen: torch.Tensor, workspace: torch.Tensor, context: int
) -> None:
    """vLLM's `persistent_topk` (k = 512, 1024 or 2048): positions of the k largest of each row, unsorted."""
    import torch

    torch.ops._C.persistent_topk(logits, lengths, chosen, workspace, chosen.shape[1], context)


def top_k_per_row(logits: torch.Tensor, lengths: torch.Tensor, chosen: torch.Tensor) -> None:
    """vLLM's `top_k_per_row_decode`, which serves other k."""
    import torch

    rows, k = chosen.shape
    torch.ops._C.top_k_per_row_decode(logits, 1, lengths, chosen, rows, logits.stride(0), logits.stride(1), k)


def slots_of(owner: torch.Tensor, table: torch.Tensor, chosen: torch.Tensor, slots: torch.Tensor) -> None:
    """vLLM's Triton kernel from positions in a sequence to slots of the cache (page * 64 + offset).

    owner [B] int32: the table's row of each row of `chosen` [B, k] int32; `slots` [B, k] is written. Its own
    wrapper does the same into a new tensor.
    """
    name = "_convert_req_index_to_global_index_kernel"
    kernel = getattr(lifted("v1/attention/backends/mla/sparse_utils.py", (name,)), name)
    rows, k = chosen.shape
    flags = (table.shape[1], PAGE_TOKENS, SLOT_TILE, False, False)
    strides = (*table.stride(), *chosen.stride(), *slots.stride())
    kernel[(rows, k // SLOT_TILE)](owner, table, chosen, slots, None, None, None, *flags, *strides)


def experts_module() -> ModuleType:
    """vLLM's fused MoE kernel, its launcher and its choice of tiles (these shapes have no tuned file)."""
    prelude = (
        "class envs:\n    VLLM_BATCH_INVARIANT = False\n\n\n"
        "class current_platform:\n    @staticmethod\n    def is_rocm():\n        return False"
    )
    names = (
        "write_zeros_to_output",
        "fused_moe_kernel",
        "invoke_fused_moe_triton_kernel",
        "get_default_config",
    )
    return lifted("model_executor/layers/fused_moe/fused_moe.py", names, prelude)
