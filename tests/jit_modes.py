"""Run by test_jit_modes in a fresh interpreter: the engines compared in the mode that the environment sets.

Prints `agree N` after N cases, then what a planted read outside the ops' row list gives. With `small` the
loop stops every few requests and begins with a table of two, and how it returned is printed, too.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import numpy as np
from engine_cases import ONE_TIER, columns, drawn_case, flat_region, kernel, placed, run_both
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memsim import fast, fast_loop
from memsim.fast import replay_segment
from memsim.fast_pack import pack_hardware
from memsim.options import ReplayOptions
from memsim.program import build_program
from memsim.trace import Access


def planted() -> str:
    """A gather whose list ends too early, past what the reader would let through."""
    region = flat_region(0, 100, 64)
    access = Access(0, 0, 0, 0, False, 0, 3, gather=np.array([1, 2, 3]))
    launches = [(kernel(), columns([access]))]
    program = build_program(launches, [[]], [True], ONE_TIER, np.array([64]), {})
    program = program._replace(ops=program.ops._replace(gather_rows=np.zeros(1, np.int64)))
    try:
        replay_segment(pack_hardware(ONE_TIER, ReplayOptions(4096)), program, placed([region]), ONE_TIER)
    except IndexError:
        return "caught"
    return "missed"


def made_small() -> set[int]:
    """Let the event loop stop often (interpreted, it reads the module's number); how it returned."""
    seen, loop = set(), fast_loop.run
    fast._FIRST_REQUESTS, fast_loop.REQUESTS_A_RUN = 2, 3

    def noted(*tables: Any) -> int:
        status: int = loop(*tables)
        seen.add(status)
        return status

    fast_loop.run = noted
    return seen


def main(cases: int) -> None:
    compared = 0
    returned = made_small() if "small" in sys.argv else set()

    @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def agree(random: Random) -> None:
        nonlocal compared
        run_both(*drawn_case(random))
        compared += 1

    agree()
    assert compared >= cases
    print(f"agree {cases}")
    if "planted" in sys.argv:
        print(f"planted {planted()}")
    if returned:
        print("returned", *sorted(returned))
    assert fast.is_compiled()


if __name__ == "__main__":
    main(int(sys.argv[1]))
