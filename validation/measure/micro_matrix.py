"""Sustained arithmetic: matrix products by dtype through torch, multiply-adds in registers by warps.

Operands are normal random numbers (constants run faster). `flops` counts a multiply-add as two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import cuda
from .device import Env
from .points import Point
from .rows import Measured
from .timing import Call, Work, time_work

if TYPE_CHECKING:
    import torch

SETS = 3  # operand sets in turn
FMA_ROUNDS, FMA_CHAINS, FMA_UNROLL, FMA_THREADS = 2048, 8, 16, 256


def product(
    dtype: str, m: int, n: int, k: int, seed: int, env: Env
) -> tuple[list[Call], int, int, list[torch.Tensor]]:
    """Calls that multiply m x k by k x n, bytes read and written by one, and the tensors."""
    import torch

    generator = torch.Generator(env.device).manual_seed(seed)

    def random(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=env.device, dtype=torch.bfloat16, generator=generator)

    held: list[torch.Tensor] = []
    calls: list[Call] = []
    one = torch.ones((), device=env.device, dtype=torch.float32)
    for _ in range(SETS):
        a, b, out = random(m, k), random(n, k), torch.empty(m, n, device=env.device, dtype=torch.bfloat16)
        if dtype == "bf16":
            calls.append(lambda a=a, b=b, out=out: torch.matmul(a, b.t(), out=out))
        else:
            a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
            fast = dtype == "fp8_fast"

            def scaled(a=a, b=b, fast=fast, out=out) -> None:
                torch._scaled_mm(
                    a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast, out=out
                )

            calls.append(scaled)
        held += [a, b, out]
    size = held[0].element_size()
    return calls, (m * k + n * k) * size, m * n * 2, held


def matrix(point: Point, env: Env) -> Measured:
    m, n, k = (point[axis] for axis in "mnk")

    def build(round_index: int) -> Work:
        calls, read, written, held = product(point["dtype"], m, n, k, point.seed + round_index, env)

        def check() -> None:
            a, b, out = held[:3]
            expected = a[:64].float() @ b[:64].float().t()
            error = (out[:64, :64].float() - expected).norm() / expected.norm()
            if not float(error) < 2e-2:
                raise ValueError(f"product: relative error {float(error):.3g}")

        footprint = sum(tensor.numel() * tensor.element_size() for tensor in held)
        return Work(calls, read, written, footprint, check=check, keep=held)

    measured = time_work(build, env)
    measured.extra = {"flops": 2 * m * n * k}
    return measured


def fma(point: Point, env: Env) -> Measured:
    """Single precision, `warps` warps on each multiprocessor, 8 chains a thread."""
    import torch

    processors = torch.cuda.get_device_properties(env.device).multi_processor_count
    threads = min(FMA_THREADS, point["warps"] * 32)
    blocks = processors * (point["warps"] * 32 // threads)

    def build(round_index: int) -> Work:
        generator = torch.Generator(env.device).manual_seed(point.seed + round_index)
        size = 1 + FMA_THREADS * (FMA_CHAINS + 1)
        numbers = torch.randn(size, device=env.device, generator=generator)
        numbers[0] = -1.0
        out = torch.empty(FMA_THREADS, device=env.device)
        return Work([cuda.bind("fma.cu", "fma_rate", blocks, threads, numbers, out, FMA_ROUNDS)], 0, 0, 0)

    measured = time_work(build, env)
    measured.extra = {"flops": 2 * blocks * threads * FMA_ROUNDS * FMA_CHAINS * FMA_UNROLL}
    return measured


FAMILIES = {"matrix.rate": matrix, "fma.rate": fma}
