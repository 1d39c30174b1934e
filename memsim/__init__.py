"""memsim: what one decoded token costs when its bytes live somewhere else.

`record` runs the attention kernels of a model and writes a trace, `replay` times it on a machine, `project`
does both for a grid of models, machines, contexts and batches and says how far each time may be off,
`crossover` finds where two of them swap, `load_machine` reads a machine file, `open_trace` streams a trace.
They are fetched when first used, so that `import memsim` loads nothing heavy and recording needs no engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memsim.crossing import crossover as crossover
    from memsim.profile import load_machine as load_machine
    from memsim.projection import project as project
    from memsim.recording import record as record
    from memsim.simulate import replay as replay
    from memsim.trace_read import open_trace as open_trace

__version__ = "0.1.0"

_HOMES = {
    "crossover": "memsim.crossing",
    "load_machine": "memsim.profile",
    "open_trace": "memsim.trace_read",
    "project": "memsim.projection",
    "record": "memsim.recording",
    "replay": "memsim.simulate",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memsim' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
