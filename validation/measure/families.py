"""From a family's name to the function that measures it. The campaign file says which module holds it.

A module `validation/measure/<module>.py` has `FAMILIES: dict[str, Callable[[Point, Env], Measured]]`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

from .device import Env, Skipped, need_gpus
from .points import Family, Point
from .rows import Measured

Function = Callable[[Point, Env], Measured]


def function_of(family: Family, env: Env) -> Function:
    """The family's function. Skipped if this machine lacks a GPU, a python module or the function itself."""
    for name in family.requires:
        if not importable(name):
            raise Skipped(f"python module {name} is not installed")
    if family.gpus:
        if not env.cuda:
            raise Skipped(f"needs a GPU, --device is {env.device}")
        need_gpus(family.gpus)
    try:
        module = importlib.import_module(f"{__package__}.{family.module}")
    except ImportError as error:
        raise Skipped(f"module {family.module} cannot be imported: {error}") from None
    if family.name not in module.FAMILIES:
        raise Skipped(f"module {family.module} has no function for {family.name}")
    return module.FAMILIES[family.name]


def importable(name: str) -> bool:
    """True if a module is there; a dotted name imports its parents."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
