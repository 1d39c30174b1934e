"""Which kernels a captured CUDA graph holds, read from the graph itself: no profiler, no change of timing.

Enters: the handle of a graph. Leaves: name -> count, copies, fills and child graphs too. Names are demangled.
"""

from __future__ import annotations

import ctypes
import functools

from .cuda import check, driver

KERNEL, MEMCPY, MEMSET, HOST, CHILD, EMPTY = range(6)
WORDS = {MEMCPY: "memcpy", MEMSET: "memset", HOST: "host function", EMPTY: "empty node"}


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


def kernels(graph: int) -> dict[str, int]:
    """name -> count over all nodes of a CUgraph, child graphs included. CudaError if the driver refuses."""
    library = driver()
    handle = ctypes.c_void_p(graph)
    size = ctypes.c_size_t()
    check(library.cuGraphGetNodes(handle, None, ctypes.byref(size)), "cuGraphGetNodes")
    nodes = (ctypes.c_void_p * max(1, size.value))()
    check(library.cuGraphGetNodes(handle, nodes, ctypes.byref(size)), "cuGraphGetNodes")
    counts: dict[str, int] = {}
    for node in nodes[: size.value]:
        for name, count in _node(ctypes.c_void_p(node)).items():
            counts[name] = counts.get(name, 0) + count
    return counts


def _node(node: ctypes.c_void_p) -> dict[str, int]:
    library = driver()
    kind = ctypes.c_int()
    check(library.cuGraphNodeGetType(node, ctypes.byref(kind)), "cuGraphNodeGetType")
    if kind.value == CHILD:
        child = ctypes.c_void_p()
        code = library.cuGraphChildGraphNodeGetGraph(node, ctypes.byref(child))
        check(code, "cuGraphChildGraphNodeGetGraph")
        return kernels(child.value or 0)
    if kind.value != KERNEL:
        return {WORDS.get(kind.value, f"node of type {kind.value}"): 1}
    params = KernelParams()
    check(library.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(params)), "cuGraphKernelNodeGetParams")
    return {_name(params): 1}


def _name(params: KernelParams) -> str:
    """Name of a node's kernel: by its function, else by its library kernel."""
    text = ctypes.c_char_p()
    if params.func and not driver().cuFuncGetName(ctypes.byref(text), ctypes.c_void_p(params.func)):
        return demangled((text.value or b"").decode())
    if params.kernel and not driver().cuKernelGetName(ctypes.byref(text), ctypes.c_void_p(params.kernel)):
        return demangled((text.value or b"").decode())
    return "kernel without a name"


@functools.cache
def demangled(name: str) -> str:
    """A C++ name as it is written in the source; a C name as it is."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
    except (OSError, AttributeError):
        return name
    status = ctypes.c_int()
    found = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value or not found:
        return name
    words = ctypes.cast(found, ctypes.c_char_p).value or b""
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return words.decode()
