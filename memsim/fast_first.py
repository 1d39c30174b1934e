"""Compile the loops before there is anything to replay: by the types of their tables, which never differ."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from memsim import fast_loop, fast_lot, fast_ring
from memsim.fast_pack import pack_hardware
from memsim.fast_state import Counts, Work, fresh_state
from memsim.options import ReplayOptions
from memsim.profile import load_machine
from memsim.route import build_system
from memsim.rules import Memory, Ops

_LIST, _TABLE, _BLOCK = (np.zeros((1,) * dimensions, np.int64) for dimensions in (1, 2, 3))
_WORK = Work(np.zeros((2, 19), np.int64), _LIST, _LIST, Ops(_TABLE, _LIST))
_MEMORY = Memory(_TABLE, _TABLE, _TABLE)
_COUNTS = Counts(_TABLE, _BLOCK, _BLOCK, _LIST, _TABLE, _LIST, _TABLE)


def compile_loop() -> None:
    """Compile the event loop into the cache."""
    hardware = pack_hardware(build_system(load_machine("h200")), ReplayOptions())
    _compile(fast_loop.run, hardware, _WORK, _MEMORY, fresh_state(hardware, _WORK, 1, 1, 1, 0), _COUNTS)


def compile_ring() -> None:
    """Compile the loop of lone blocks into the cache."""
    hardware = pack_hardware(build_system(load_machine("h200")), ReplayOptions())
    _compile(fast_ring.run, hardware, _WORK, _MEMORY, fast_lot.fresh_ring(0, 1, 1, 1, 1), _COUNTS)


def _compile(loop: Any, *tables: Any) -> None:
    typeof: Any = numba.typeof
    loop.compile(tuple(typeof(each) for each in tables))
