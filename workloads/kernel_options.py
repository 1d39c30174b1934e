"""Kernels that can be run alone, and the options that each takes. Nothing here needs torch.

The words and numbers that somebody gave enter, all options of the kernel leave, defaults filled in and
every value checked. `patterns` writes the plain patterns, `single` the attention kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsim.errors import UsageError, nearest
from memsim.units import parse_bytes, parse_tokens

MIB, GIB = 1 << 20, 1 << 30
TRANSFER_BYTES = MIB  # of a copy engine
LINE_BYTES = 64  # row of a region that is read from end to end; sizes are whole lines

_COMMON = {"buffers": 1, "calls_per_launch": 1}
_GRID = {"programs": None, "blocks_per_unit": 8, "block_bytes": 16_384, "tiles_in_flight": 2}
_TRANSFERS = {"dma": False}
_SCATTERED = {"row_bytes": 656, "span": 4 * GIB}
_ATTENTION = {"context": 131_072, "batch": 1}
_SELECTED = {"topk": 2048, "kv_dtype": "fp8", "selection": "dsa_mid"}

# What each kernel takes, with its defaults. programs: None is as many as the units hold at once.
PLAIN: dict[str, dict[str, Any]] = {
    "stream": {"bytes": GIB, "write": False, **_GRID, **_TRANSFERS, **_COMMON},
    "copy": {"bytes": GIB, "write": False, **_GRID, **_TRANSFERS, **_COMMON},
    "update": {"bytes": GIB, **_GRID, **_COMMON},
    "gather": {"count": 262_144, **_SCATTERED, **_GRID, **_TRANSFERS, **_COMMON},
    "chase": {"count": 4096, **_SCATTERED, "row_bytes": LINE_BYTES, "span": GIB, **_COMMON},
    "gemv": {"bytes": GIB, "row_bytes": 8192, **_GRID, **_COMMON},
}
ATTENTION: dict[str, dict[str, Any]] = {
    "kda": {"batch": 1, "heads": 32, **_COMMON},
    "gdn": {"batch": 1, "heads": 32, "key_heads": 16, **_COMMON},
    "mla": {**_ATTENTION, "heads": 128, "kv_dtype": "bf16", **_COMMON},
    "dsa-index": {**_ATTENTION, "heads": 64, **_COMMON},
    "dsa-topk": {**_ATTENTION, "topk": 2048, **_COMMON},
    "dsa-attend": {**_ATTENTION, "heads": 128, **_SELECTED, **_COMMON},
}
KERNELS = {**PLAIN, **ATTENTION}

_MOST = {  # and 1 at least
    "bytes": 10**15, "span": 10**15, "count": 2**24, "row_bytes": GIB, "block_bytes": GIB,
    "programs": 2**24, "blocks_per_unit": 720_720, "tiles_in_flight": 65_536, "buffers": 4096,
    "calls_per_launch": 65_536, "context": 2**27, "batch": 4096, "heads": 1024,
    "key_heads": 1024, "topk": 2**20,
}  # fmt: skip
MOST_ROWS = 2**26  # rows and tiles of all calls: about a gigabyte while they are recorded
_KV_DTYPES = {"mla": "bf16", "dsa-attend": "fp8"}  # the kernels that production runs have one each


def complete(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the kernel `name`, those in `given` as they are and defaults for the rest.

    UsageError: an unknown kernel, an option that it does not take, a value out of range.
    """
    if name not in KERNELS:
        raise UsageError(f"unknown kernel '{name}'; {nearest(name, KERNELS)}")
    known = KERNELS[name]
    for option in given:
        if option not in known:
            takes = ", ".join(spelt(o) for o in known)
            raise UsageError(f"{spelt(option)} with '{name}': it has no such option; it takes {takes}")
    options = {**known, **given}
    if options.get("dma") and "block_bytes" not in given:
        options["block_bytes"] = TRANSFER_BYTES
    for option, value in options.items():
        _check_range(option, value)
    _check_words(name, options)
    if options.get("dma"):
        _check_transfers(name, given)
    if name in PLAIN:
        _check_sizes(name, options)
    return options


def spelt(option: str) -> str:
    """The option as the command line spells it."""
    return f"--{option.replace('_', '-')}"


def _check_range(option: str, value: object) -> None:
    if option not in _MOST or value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST[option]:
        raise UsageError(f"{spelt(option)} {value}: expected a whole number from 1 to {_MOST[option]:,}")


def _check_words(name: str, options: Mapping[str, Any]) -> None:
    only = _KV_DTYPES.get(name)
    if only is not None and options["kv_dtype"] != only:
        raise UsageError(
            f"--kv-dtype {options['kv_dtype']} with '{name}': this kernel reads {only} rows alone; "
            "mla reads bf16, dsa-attend fp8"
        )
    _check_work(name, options)
    if options.get("topk", 0) > options.get("context", 0) and name in ("dsa-topk", "dsa-attend"):
        raise UsageError(
            f"--topk {options['topk']} with '{name}': the context holds {options['context']:,} tokens; "
            "lower it or raise --context"
        )
    if name in ("kda", "gdn") and options["heads"] % 2:
        raise UsageError(f"--heads {options['heads']} with '{name}': expected an even number of heads")
    if name == "gdn" and options["heads"] % options["key_heads"]:
        raise UsageError(
            f"--heads {options['heads']} with 'gdn': expected a multiple of its {options['key_heads']} key "
            "heads, which as many value heads share each; change it or --key-heads"
        )


def _check_work(name: str, options: Mapping[str, Any]) -> None:
    """What is recorded is held in memory: refuse what would take gigabytes and hours."""
    calls = options.get("calls_per_launch", 1)
    per_call = {
        "gather": options.get("count", 0),
        "chase": options.get("count", 0),
        "dsa-attend": options.get("batch", 1) * options.get("topk", 0),
    }.get(name, 0)
    if "bytes" in options and calls > 1:
        per_call = options["bytes"] // max(1, options.get("block_bytes", 8192))
    elif name in ATTENTION:
        per_call = max(per_call, options["batch"] * options.get("heads", 128))
    if calls * per_call > MOST_ROWS:
        raise UsageError(
            f"'{name}' with these options has {per_call:,} rows or tiles a call, {calls * per_call:,} in "
            f"all; expected at most {MOST_ROWS:,}; ask for less, or for fewer --calls-per-launch"
        )


def _check_transfers(name: str, given: Mapping[str, Any]) -> None:
    """A copy engine takes transfers one after another: nothing of a grid is left to choose."""
    for option in ("programs", "blocks_per_unit", "tiles_in_flight"):
        if option in given:
            raise UsageError(
                f"{spelt(option)} with --dma: a copy engine takes one transfer after another; leave it away"
            )
    if name == "gather" and "block_bytes" in given:
        raise UsageError("--block-bytes with gather --dma: a row is a transfer; give --row-bytes")


def _check_sizes(name: str, options: Mapping[str, Any]) -> None:
    line = options.get("row_bytes", LINE_BYTES)
    if "bytes" in options:
        for option in ("bytes", "block_bytes") if name != "gemv" else ("bytes",):
            if options[option] % line:
                below = max(1, options[option] // line) * line
                raise UsageError(
                    f"{spelt(option)} '{options[option]} B' with '{name}': expected a multiple of {line} B, "
                    f"such as '{below} B'"
                )
    if name == "gemv" and line % 2:
        raise UsageError(f"--row-bytes '{line} B' with 'gemv': expected whole bf16 weights of 2 bytes")
    rows = options.get("span", 0) // line
    if rows < options.get("count", 0):
        raise UsageError(
            f"--span '{options['span']} B' with '{name}': it holds {rows:,} rows of {line} bytes and "
            f"{options['count']:,} different ones are asked for; raise it or lower --count"
        )


SIZES = ("bytes", "row_bytes", "span", "block_bytes")  # given as "64 KiB"


def parsed(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` without what is None; sizes as bytes, contexts as tokens; UsageError for what is neither.

    An option whose name says bytes may do without the unit.
    """
    options = {option: value for option, value in given.items() if value is not None}
    for option, value in options.items():
        parse = parse_tokens if option == "context" else parse_bytes
        if isinstance(value, str) and option.endswith("bytes") and value.isdecimal():
            value = f"{value} B"
        if isinstance(value, str) and option in (*SIZES, "context"):
            try:
                options[option] = parse(value)
            except UsageError as error:
                raise UsageError(f"{spelt(option)}: {error}") from None
    return options
