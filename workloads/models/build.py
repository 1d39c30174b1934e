"""What a layer's table in a model's file says, kind by kind: its keys, and the shape that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workloads.models.model import Projections
from workloads.shapes import (
    COMPRESSED_ROW_BYTES,
    WINDOW_ROW_BYTES,
    CsaShape,
    DsaShape,
    GdnShape,
    GqaShape,
    HcaShape,
    KdaShape,
    MlaShape,
    Shape,
    SwaShape,
    WindowShape,
)

Table = Mapping[str, Any]


class Unfit(Exception):
    """Why the numbers of a table make no layer."""


Keys = tuple[dict[str, type], tuple[str, ...]]  # the type of each key, and those that cannot be left away

DTYPES = {  # formats of the rows that a kind keeps, but for windows of V4, which have one of their own
    "mla": ("bf16", "fp8"),
    "dsa": ("fp8",),
    "gqa": ("bf16",),
    "swa": ("bf16",),
    "csa": ("fp8", "fp4"),
    "hca": ("fp8", "fp4"),
}
INDEX_KINDS = {"dsa", "csa"}


def _keys(needed: str, optional: str = "") -> Keys:
    """Keys by name; `:b` after a name is true or false, `:s` a text, all others are whole numbers."""
    types = {"b": bool, "s": str, "": int}
    split = [word.partition(":")[::2] for word in f"{needed} {optional}".split()]
    return {name: types[kind] for name, kind in split}, tuple(needed.split())


_MLA, _MLA_MORE = "heads nope value", "rope q_lora gate:b turned:b"
_GQA, _GQA_MORE = "heads kv_heads key_dim value_dim", "gate:b"
_V4, _V4_MORE = "heads window q_lora o_groups o_lora", "style:s"
_INDEXER = "index_heads top_k"

KEYS: dict[str, Keys] = {
    "kda": _keys("heads", "gate:b"),
    "gdn": _keys("key_heads value_heads"),
    "mla": _keys(_MLA, _MLA_MORE),
    "dsa": _keys(f"{_MLA} {_INDEXER}", f"{_MLA_MORE} pool sink local"),
    "gqa": _keys(_GQA, _GQA_MORE),
    "swa": _keys(f"{_GQA} window", f"{_GQA_MORE} sink:b"),
    "window": _keys(_V4, _V4_MORE),
    "csa": _keys(f"{_V4} {_INDEXER} ratio", f"{_V4_MORE} blocks block_rows"),
    "hca": _keys(f"{_V4} ratio", _V4_MORE),
}


def layer_parts(table: Table, kv_dtype: str, index_dtype: str) -> tuple[Shape, Projections]:
    """Shape and projections of a layer from its checked table."""
    kind = table["kind"]
    dtypes = DTYPES.get(kind, ())
    if dtypes and kv_dtype not in dtypes:
        kv_dtype = dtypes[0]  # of a model whose other layers have that format
    why = _unfit(table, kv_dtype)
    if why:
        raise Unfit(why)
    names = ("q_lora", "nope", "value", "gate", "o_groups", "o_lora", "turned")
    projections = Projections(**{name: table[name] for name in names if name in table})
    return _SHAPES[kind](table, kv_dtype, index_dtype), projections


def owned(table: Table) -> tuple[str, ...]:
    """What layers after one of this table can share with it."""
    if table["kind"] == "dsa":
        return ("index",)
    if table["kind"] == "csa":
        return ("index", "kv", "blocks") if table.get("blocks") else ("index", "kv")
    return ()


def _unfit(table: Table, kv_dtype: str) -> str:
    """What is wrong with the numbers of a table, "" for nothing."""
    kind = table["kind"]
    style = table.get("style", "v4")
    shares = set(table["shares"])
    if not shares <= set(owned(table)):
        return f"shares what layers of kind '{kind}' do not have: {', '.join(sorted(shares))}"
    if shares and kind == "csa" and ("kv" not in shares or shares == {"kv"}):
        return "shares kv alone, or without kv; expected kv with index, or with blocks"
    if kind == "kda" and table["heads"] % 2:
        return f"has {table['heads']} heads; expected an even number"
    if kind == "gdn" and (table["value_heads"] % table["key_heads"] or table["value_heads"] % 2):
        return "has value_heads that are not an even multiple of key_heads"
    if kind in ("gqa", "swa") and table["heads"] % table["kv_heads"]:
        return "has heads that are not a multiple of kv_heads"
    if kind == "dsa" and table.get("sink", 0) + table.get("local", 0) > table["top_k"]:
        return "forces more rows (sink, local) than top_k"
    if kind == "dsa" and table["top_k"] % max(1, table.get("pool", 1)):
        return "has a top_k that is not a multiple of pool"
    if kind == "csa" and table.get("blocks") and table["top_k"] % table.get("block_rows", 8):
        return "has a top_k that is not a multiple of block_rows"
    if kind == "dsa" and table.get("pool", 1) > 1 and (table.get("sink") or table.get("local")):
        return "has pooled index keys beside forced rows (sink, local); expected one of the two"
    if kind in ("window", "csa", "hca") and style not in WINDOW_ROW_BYTES:
        return f"has the style '{style}'; choose one of: {', '.join(WINDOW_ROW_BYTES)}"
    if kind in ("csa", "hca") and (style, kv_dtype) not in COMPRESSED_ROW_BYTES:
        return f"has no compressed rows of {kv_dtype} in the style {style}"
    return ""


def _given(table: Table, *names: str) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}


def _mla(table: Table, kv_dtype: str) -> MlaShape:
    rope = table.get("rope", 64)
    return MlaShape(table["heads"], table["nope"] + rope, rope, kv_dtype)


def _gqa(table: Table) -> GqaShape:
    return GqaShape(**_given(table, "heads", "kv_heads", "key_dim", "value_dim"))


def _window(table: Table) -> WindowShape:
    return WindowShape(**_given(table, "heads", "window", "style"))


def _dsa(table: Table, kv_dtype: str, index_dtype: str) -> DsaShape:
    given = _given(table, "index_heads", "top_k", "pool", "sink", "local")
    return DsaShape(_mla(table, "bf16"), dtype=kv_dtype, index_dtype=index_dtype, **given)


def _csa(table: Table, kv_dtype: str, index_dtype: str) -> CsaShape:
    given = _given(table, "index_heads", "top_k", "ratio", "blocks", "block_rows")
    return CsaShape(_window(table), dtype=kv_dtype, index_dtype=index_dtype, **given)


_SHAPES: dict[str, Callable[[Table, str, str], Shape]] = {
    "kda": lambda table, kv, index: KdaShape(table["heads"]),
    "gdn": lambda table, kv, index: GdnShape(table["key_heads"], table["value_heads"]),
    "mla": lambda table, kv, index: _mla(table, kv),
    "dsa": _dsa,
    "gqa": lambda table, kv, index: _gqa(table),
    "swa": lambda table, kv, index: SwaShape(_gqa(table), table["window"], table.get("sink", False)),
    "window": lambda table, kv, index: _window(table),
    "csa": _csa,
    "hca": lambda table, kv, index: HcaShape(_window(table), table["ratio"], kv),
}
