"""The mark of a kernel's arithmetic: pure functions of tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import torch

Result = TypeVar("Result")


def arithmetic(function: Callable[..., Result]) -> Callable[..., Result]:
    """Mark a pure function of tensors and numbers as a kernel's arithmetic.

    On meta its result depends on shapes alone, so it runs once for each set of shapes: the shape
    inference of torch costs more than all else that recording does.
    """
    known: dict[object, Result] = {}

    @wraps(function)
    def call(*arguments: object) -> Result:
        if not any(isinstance(value, torch.Tensor) and value.is_meta for value in arguments):
            return function(*arguments)
        key = tuple(
            (value.shape, value.dtype) if isinstance(value, torch.Tensor) else value for value in arguments
        )
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return call
