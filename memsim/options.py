"""What a replay is told besides its trace, its machine and where rows live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_QUANTUM_BYTES = 8192  # half of it moves a kernel by under 1%, a host-bound one too


@dataclass(frozen=True)
class ReplayOptions:
    """Options of an engine.

    quantum_bytes  largest request [bytes]
    run_on         initiators (index into System.initiators) of kernels, by their name or their family
    seed           what the slow requests of tiers with a tail are drawn from
    """

    quantum_bytes: int = DEFAULT_QUANTUM_BYTES
    run_on: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
