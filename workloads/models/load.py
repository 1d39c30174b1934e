"""A model's file: TOML enters, a model leaves; docs/models.md explains the keys.

Changes that somebody asks for (other layers, other formats) are made to what the file says before the
layers are put together, so that a changed model is a model like any other. Every mistake in a file is a
UsageError of one line that names the file and the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from memsim.errors import UsageError, nearest
from workloads.facts import Fact
from workloads.kinds import KINDS
from workloads.models.build import DTYPES, INDEX_KINDS, KEYS, Unfit, layer_parts, owned
from workloads.models.model import Layer, Model, Published, Weights
from workloads.models.stack import Wrong, in_ratio, layers_of, replaced
from workloads.models.toml_file import File
from workloads.shapes import INDEX_ROW_BYTES

PROVENANCES = ("measured", "calibrated", "stated", "interpolated", "extrapolated", "assumed")
SHARES = {"index": "index_from", "kv": "kv_from", "blocks": "blocks_from"}
TOP = (
    *("title", "max_context", "stack", "source", "sources_of"),
    *("sources", "cache", "layer", "weights", "published"),
)
OF_SOURCES = ("source", "sources_of")
WEIGHT_DTYPES = ("bf16", "fp8", "fp4")
WORDS_OF_WEIGHTS = ", ".join(WEIGHT_DTYPES)


@dataclass(frozen=True)
class Changes:
    """What is changed of a file's model.

    replace   (name, name): every layer called like the first becomes one of the second
    ratio     ((name, count), ...): layers called like these are dealt anew in turns of so many each
    kv_dtype, index_dtype, weights_dtype   formats of cached rows, index keys and weights; None: the file's
    """

    replace: tuple[tuple[str, str], ...] = ()
    ratio: tuple[tuple[str, int], ...] = ()
    kv_dtype: str | None = None
    index_dtype: str | None = None
    weights_dtype: str | None = None

    @property
    def words(self) -> str:
        """The changes as the command line spells them."""
        words = [f" --replace {old}={new}" for old, new in self.replace]
        if self.ratio:
            names, counts = zip(*self.ratio, strict=True)
            words.append(f" --ratio {':'.join(names)}={':'.join(str(count) for count in counts)}")
        words += [f" --kv-dtype {self.kv_dtype}"] if self.kv_dtype else []
        words += [f" --index-dtype {self.index_dtype}"] if self.index_dtype else []
        words += [f" --weights-dtype {self.weights_dtype}"] if self.weights_dtype else []
        return "".join(words)


UNCHANGED = Changes()


def changes_of(
    replace: Iterable[str] = (),
    ratio: str | None = None,
    kv_dtype: str | None = None,
    index_dtype: str | None = None,
    weights_dtype: str | None = None,
) -> Changes:
    """Changes from the words of the command line: `kda=mla` and `kda:mla=7:1`; UsageError for other forms."""
    pairs = []
    for word in replace:
        old, _, new = word.partition("=")
        if not old or not new or "=" in new:
            raise UsageError(f"--replace {word}: expected two names of layers, such as kda=mla")
        pairs.append((old, new))
    return Changes(tuple(pairs), _ratio(ratio) if ratio else (), kv_dtype, index_dtype, weights_dtype)


def _ratio(word: str) -> tuple[tuple[str, int], ...]:
    names, _, counts = word.partition("=")
    parts = list(zip(names.split(":"), counts.split(":"), strict=False))
    form = len(parts) > 1 and names.count(":") == counts.count(":") and all(name for name, _ in parts)
    if not form or not all(re.fullmatch("[1-9][0-9]{0,3}", count) for _, count in parts):
        raise UsageError(f"--ratio {word}: expected names of layers and as many counts, such as kda:mla=7:1")
    if len({name for name, _ in parts}) < len(parts):
        raise UsageError(f"--ratio {word}: a name stands there twice")
    return tuple((name, int(count)) for name, count in parts)


def load(path: Path, name: str, changes: Changes = UNCHANGED) -> Model:
    """The model that `path` describes, changed; UsageError for a mistake in the file or in the changes."""
    file = File(path)
    file.keys("the file", file.table, TOP, ("title", "max_context", "stack", "sources", "source", "layer"))
    title = file.typed("title", file.table["title"], str)
    max_context = file.typed("max_context", file.table["max_context"], int, 1)
    sources = _sources(file)
    tables = {key: _layer_table(file, key) for key in file.table_at("layer")}
    formats = _formats(file, tables, changes)
    layers = _linked(file, tables, _order(file, tables, changes), formats)
    stated = None if changes.replace or changes.ratio else _numbers(file, "published", Published)
    return Model(
        name=name + changes.words,
        title=title,
        max_context=max_context,
        layers=layers,
        kv_dtype=formats["kv"],
        index_dtype=formats["index"],
        weights=_weights(file, changes),
        published=stated or Published(),
        facts=_facts(file, sources, changes, formats),
    )


def _layer_table(file: File, key: str) -> dict[str, Any]:
    """Table [layer.key], with what it takes over from the one that it is `like`."""
    place, tables = f"[layer.{key}]", file.table_at("layer")
    table = dict(file.typed(place, tables[key], dict))
    if "like" in table:
        model = file.typed(f"{place} like", table.pop("like"), str)
        if model not in tables or "like" in tables[model]:
            raise file.wrong(
                place, f"is like '{model}', which is no layer of its own; {nearest(model, tables)}"
            )
        table = {"kind": model, **file.typed(f"[layer.{model}]", tables[model], dict), **table}
    kind = table.setdefault("kind", key)
    if kind not in KINDS:
        raise file.wrong(place, f"has the kind '{kind}'; {nearest(str(kind), KINDS)}")
    known, needed = KEYS[kind]
    file.keys(place, table, (*known, "kind", "shares", *OF_SOURCES), needed)
    for name in known:
        if name in table:
            table[name] = file.typed(f"{place} {name}", table[name], known[name], 1 if name in needed else 0)
    for what in file.typed(f"{place} shares", table.setdefault("shares", []), list):
        if what not in SHARES:
            raise file.wrong(place, f"shares '{what}'; {nearest(str(what), SHARES)}")
    return table


def _sources(file: File) -> dict[str, tuple[str, str]]:
    """(provenance, text) of each entry of [sources]."""
    found = {}
    for key, entry in file.table_at("sources").items():
        place = f"[sources] {key}"
        provenance, _, text = file.typed(place, entry, str).partition(": ")
        if provenance not in PROVENANCES or not text:
            raise file.wrong(place, f"is {entry!r}; expected 'stated: who says so', or another provenance")
        found[key] = provenance, text
    return found


def _order(file: File, tables: Mapping[str, Any], changes: Changes) -> tuple[str, ...]:
    """Names of the layers in order, changed."""
    try:
        names = layers_of(file.typed("stack", file.table["stack"], str))
    except Wrong as wrong:
        raise file.wrong("stack", f"cannot be read: {wrong}") from None
    for name in names:
        if name not in tables:
            raise file.wrong("stack", f"names '{name}' without a [layer.{name}]; {nearest(name, tables)}")
    for old, new in changes.replace:
        for name in (old, new):
            if name not in tables:
                raise UsageError(f"--replace {old}={new}: no layers '{name}'; {nearest(name, tables)}")
        names = replaced(names, old, new)
    for name, _ in changes.ratio:
        if name not in tables:
            raise UsageError(f"--ratio: no layers '{name}'; {nearest(name, tables)}")
    return in_ratio(names, changes.ratio) if changes.ratio else names


def _formats(file: File, tables: Mapping[str, Any], changes: Changes) -> dict[str, str]:
    """Formats of rows (kv) and index keys (index): the file's first, or what was asked for; "" for none."""
    cache = file.table_at("cache")
    kinds = {table["kind"] for table in tables.values()}
    rows = [dtype for kind in KINDS if kind in kinds for dtype in DTYPES.get(kind, ())]
    keys = list(INDEX_ROW_BYTES) if kinds & INDEX_KINDS else []
    needed = [what for what, possible in (("kv", rows), ("index", keys)) if possible]
    file.keys("[cache]", cache, (*needed, *OF_SOURCES), needed)
    kv = file.typed("[cache] kv", cache.get("kv", []), list)
    index = file.typed("[cache] index", cache.get("index", []), list)
    for what, named, possible in (("kv", kv, rows), ("index", index, keys)):
        for dtype in named or ([""] if what in needed else []):
            if dtype not in possible:
                known = ", ".join(dict.fromkeys(possible))
                raise file.wrong(f"[cache] {what}", f"names '{dtype}'; its layers have: {known}")
    return {
        "kv": _chosen(file, "kv", changes.kv_dtype, kv, kv),
        "index": _chosen(file, "index", changes.index_dtype, index, keys),  # of any: a counterfactual
    }


def _chosen(file: File, what: str, given: str | None, named: list[str], possible: list[str]) -> str:
    if given is None:
        return named[0] if named else ""
    if given not in possible:
        known = f"choose one of: {', '.join(possible)}" if possible else "leave it away"
        raise UsageError(f"--{what}-dtype {given} with '{file.path.stem}': it has no such format; {known}")
    return given


def _linked(
    file: File, tables: Mapping[str, Any], names: Iterable[str], formats: Mapping[str, str]
) -> tuple[Layer, ...]:
    """The layers, each joined to the nearest one before it that has what it shares."""
    parts = {}
    for name in dict.fromkeys(names):
        try:
            parts[name] = layer_parts(tables[name], formats["kv"], formats["index"])
        except Unfit as unfit:
            raise file.wrong(f"[layer.{name}]", str(unfit)) from None
    layers: list[Layer] = []
    last: dict[str, int] = {}  # what can be shared: the nearest layer that has it
    for number, name in enumerate(names):
        links = {}
        for what in tables[name]["shares"]:
            if what not in last or parts[layers[last[what]].name][0] != parts[name][0]:
                raise UsageError(
                    f"layer {number} ('{name}') of '{file.path.stem}' shares the {what} of the nearest layer "
                    "before it that has one, and there is none of its shape; begin with such a layer"
                )
            links[SHARES[what]] = last[what]
        layers.append(Layer(name, tables[name]["kind"], *parts[name], **links))
        last |= {what: number for what in owned(tables[name]) if what not in tables[name]["shares"]}
    return tuple(layers)


def _weights(file: File, changes: Changes) -> Weights | None:
    """Sizes of the weights, in the file's format or in the one that was asked for."""
    found: Weights | None = _numbers(file, "weights", Weights)
    asked = changes.weights_dtype
    if asked is not None and (found is None or asked not in WEIGHT_DTYPES):
        what = "it has no weights; leave it away" if found is None else f"choose one of: {WORDS_OF_WEIGHTS}"
        raise UsageError(f"--weights-dtype {asked} with '{file.path.stem}': {what}")
    if found is not None and asked == "fp4" and not found.moe_layers:
        what = "it has no routed experts, which fp4 is for; choose fp8 or bf16"
        raise UsageError(f"--weights-dtype fp4 with '{file.path.stem}': {what}")
    if found is not None and found.dtype not in WEIGHT_DTYPES:
        raise file.wrong("[weights] dtype", f"names '{found.dtype}'; weights have: {WORDS_OF_WEIGHTS}")
    return found if found is None or asked is None else replace(found, dtype=asked)


def _numbers(file: File, key: str, cls: type) -> Any:
    """A table of numbers and texts as the dataclass that lists its keys; None where there is no table."""
    table = file.table_at(key)
    if not table:
        return None
    types = {field.name: str if field.type == "str" else int for field in fields(cls)}
    file.keys(f"[{key}]", table, (*types, *OF_SOURCES), ())
    values = {
        name: file.typed(f"[{key}] {name}", table[name], types[name]) for name in types if name in table
    }
    try:
        return cls(**values)
    except TypeError:
        lacking = next(field.name for field in fields(cls) if field.name not in values)
        raise file.wrong(f"[{key}]", f"lacks '{lacking}'") from None


def _facts(
    file: File, sources: Mapping[str, tuple[str, str]], changes: Changes, formats: Mapping[str, str]
) -> tuple[Fact, ...]:
    """Every number of the file with its source, changes as assumptions."""
    facts = [
        _fact(file, sources, file.table, "", "stack"),
        _fact(file, sources, file.table, "", "max_context"),
    ]
    for key in file.table_at("layer"):
        table = file.table_at("layer")[key]
        facts += [_fact(file, sources, table, f"layer.{key}", name) for name in _worded(table)]
    for key in ("cache", "weights", "published"):
        table = file.table_at(key)
        facts += [_fact(file, sources, table, key, name) for name in _worded(table)]
    for what, dtype in formats.items():
        if dtype and dtype not in file.table_at("cache").get(what, ()):
            facts.append(Fact(f"model.cache.{what}.chosen", dtype, "assumed", "counterfactual: asked for"))
    if changes.weights_dtype not in (None, file.table_at("weights").get("dtype")):
        chosen = str(changes.weights_dtype)
        facts.append(Fact("model.weights.chosen", chosen, "assumed", "counterfactual: asked for"))
    if changes.replace or changes.ratio:
        facts.append(Fact("model.changes", changes.words.strip(), "assumed", "counterfactual: asked for"))
    return tuple(facts)


def _worded(table: Mapping[str, Any]) -> list[str]:
    return [name for name in table if name not in OF_SOURCES and not name.endswith("_reason")]


def _fact(
    file: File, sources: Mapping[str, tuple[str, str]], table: Mapping[str, Any], place: str, name: str
) -> Fact:
    """One key of a table; its source is that of the key, or of the table, or of the file."""
    key = table.get("sources_of", {}).get(name, table.get("source", file.table["source"]))
    if key not in sources:
        raise file.wrong(
            f"[{place}]" if place else "source", f"has the source '{key}'; {nearest(str(key), sources)}"
        )
    value = table[name]
    text = ", ".join(value) if isinstance(value, list) else str(value)
    if type(value) is int and value >= 10_000:
        text = f"{value:,}"
    return Fact(f"model.{place}.{name}" if place else f"model.{name}", text, *sources[key])
