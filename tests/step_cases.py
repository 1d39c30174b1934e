"""Small models to record whole steps of in tests, on real tensors or on meta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workload_cases import WatchingRecorder

from memsim.trace import Access
from workloads import step as whole_step
from workloads.kinds import kernels_of
from workloads.models import get_model
from workloads.models.model import Model
from workloads.record import ListSink, RegionHandle
from workloads.routing import Routing
from workloads.run import Run
from workloads.selection import make_selection
from workloads.tensors import generator_for

HEAD = """title = "small"
max_context = 1024
source = "here"
stack = "{stack}"

[sources]
here = "assumed: a test"

[cache]
{cache}
"""
EXPERTS = "moe_layers = {layers}\nexperts = 6\nactive = 2\nshared = 1\nexpert_width = 128\n"
MLA = "heads = 2\nnope = 64\nvalue = 128\n"
V4 = "heads = 2\nwindow = 128\nq_lora = 128\no_groups = 2\no_lora = 64\n"
INDEXER = "index_heads = 2\ntop_k = 64\n"

# stack, caches, tables of layers, weights beside hidden and vocab, format of weights
MODELS: dict[str, tuple[str, str, str, str]] = {
    "kda and mla": (
        "kda, mla",
        'kv = ["bf16"]',
        "[layer.kda]\nheads = 2\n[layer.mla]\nturned = false\n" + MLA,
        "dense_layers = 1\ndense_width = 128\n" + EXPERTS.format(layers=1),
    ),
    "gated, latent experts": (
        "kda, mla",
        'kv = ["bf16"]',
        "[layer.kda]\nheads = 2\ngate = true\n[layer.mla]\nq_lora = 128\ngate = true\n" + MLA,
        EXPERTS.format(layers=2) + "latent = 128\n",
    ),
    "gdn and gqa": (
        "gdn, gqa",
        'kv = ["bf16"]',
        "[layer.gdn]\nkey_heads = 2\nvalue_heads = 4\n"
        "[layer.gqa]\nheads = 4\nkv_heads = 2\nkey_dim = 128\nvalue_dim = 128\ngate = true\n",
        "dense_layers = 2\ndense_width = 128\n",
    ),
    "swa beside": (
        "swa, gqa",
        'kv = ["bf16"]',
        "[layer.swa]\nheads = 4\nkv_heads = 2\nkey_dim = 192\nvalue_dim = 128\nwindow = 128\nsink = true\n"
        "[layer.gqa]\nheads = 4\nkv_heads = 1\nkey_dim = 128\nvalue_dim = 128\n",
        "dense_layers = 2\ndense_width = 128\nmoe_layers = 1\nexperts = 6\nactive = 2\nexpert_width = 128\n",
    ),
    "dsa, fp8": (
        "dsa, shared",
        'kv = ["fp8"]\nindex = ["fp8"]',
        "[layer.dsa]\nq_lora = 128\n" + MLA + INDEXER + '[layer.shared]\nlike = "dsa"\nshares = ["index"]\n',
        "dense_layers = 1\ndense_width = 128\n" + EXPERTS.format(layers=1) + 'dtype = "fp8"\n',
    ),
    "mla, fp4": (
        "mla",
        'kv = ["bf16"]',
        "[layer.mla]\n" + MLA,
        EXPERTS.format(layers=1).replace("128", "256") + 'latent = 256\ndtype = "fp4"\n',
    ),
    "v4": (
        "window, csa, hca",
        'kv = ["fp8"]\nindex = ["fp8"]',
        f"[layer.window]\n{V4}[layer.csa]\n{V4}{INDEXER}ratio = 4\n[layer.hca]\n{V4}ratio = 128\n",
        "dense_layers = 3\ndense_width = 128\nstreams = 2\n",
    ),
    "v4.1": (
        "csa, shared",
        'kv = ["fp4"]\nindex = ["fp4"]',
        f'[layer.csa]\n{V4}{INDEXER}style = "v4.1"\nratio = 2\n'
        '[layer.shared]\nlike = "csa"\nshares = ["index", "kv"]\n',
        "dense_layers = 2\ndense_width = 128\n",
    ),
}


@dataclass
class Recorded:
    """A small step, ready to run: `run()` does all its kernels on what `fill()` drew."""

    model: Model
    recorder: WatchingRecorder
    sink: ListSink
    whole: whole_step.Step
    fill: Callable[[], None]
    run: Callable[[], None]

    @property
    def handles(self) -> list[RegionHandle]:
        """All regions, index = id."""
        return self.recorder._regions

    def kernel_names(self) -> list[str]:
        """Names of the kernels of a step."""
        return [kernel.name for kernel in self.sink.kernels]

    def accesses(self, name: str) -> list[Access]:
        """Accesses of the kernel called `name`."""
        number = self.kernel_names().index(name)
        return [access for access in self.sink.accesses if access.kernel == number]


def file_of(name: str, folder: Path) -> Path:
    """The file of a small model."""
    stack, cache, layers, weights = MODELS[name]
    text = HEAD.format(stack=stack, cache=cache) + layers + "[weights]\nhidden = 256\nvocab = 512\n" + weights
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.toml"
    path.write_text(text)
    return path


def step_of(
    name: str,
    folder: Path,
    lengths: list[int],
    device: str = "cpu",
    *,
    units: int = 6,
    by_score: bool = False,
) -> Recorded:
    """One whole step of a small model for sequences of `lengths` tokens, experts drawn or by score."""
    model = get_model(str(file_of(name, folder)))
    sink = ListSink()
    recorder = WatchingRecorder(sink, device)
    run = Run(len(lengths), max(lengths), units, lengths=lengths)
    layers = model.layers
    regions: list[Any] = []
    runs: list[Run] = []
    for number, layer in enumerate(layers):
        shared = {
            what: regions[source]
            for what in ("index", "kv", "blocks")
            if (source := getattr(layer, f"{what}_from")) is not None
        }
        runs.append(replace(run, **shared))
        regions.append(kernels_of(layer.kind).declare(recorder, number, layer.shape, runs[number]))
    w = model.weights
    routing = Routing(w.experts, w.active) if w.moe_layers and not by_score else None
    whole = whole_step.declare(recorder, model, len(lengths), units, w.dtype, routing, 0)
    drawn = make_selection("uniform", 64, 0)

    def fill() -> None:
        if device == "meta":
            return
        generator = generator_for(recorder.device, 0)
        whole_step.fill_outer(whole, generator)
        for number, layer in enumerate(layers):
            kernels_of(layer.kind).fill(regions[number], generator)
            whole_step.fill(whole, number, generator)

    def chosen(number: int) -> Any:
        shape = layers[number].shape
        if not layers[number].selects:
            return None
        ratio = getattr(shape, "ratio", 1)
        return [drawn.rows(0, at, 0, tokens // ratio) for at, tokens in enumerate(lengths)]

    def every() -> None:
        whole_step.begin(whole, 0)
        for number, layer in enumerate(layers):
            whole_step.before(whole, number, regions[number], lengths)
            told = replace(runs[number], project=whole_step.between(whole, number, regions[number]))
            kernels_of(layer.kind).step(
                recorder, number, layer.shape, regions[number], lengths, told, chosen(number)
            )
            whole_step.after(whole, number, 0, regions[number], lengths)
        whole_step.end(whole)

    fill()
    return Recorded(model, recorder, sink, whole, fill, every)
