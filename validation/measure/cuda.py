"""CUDA C at run time: compile a file of `cuda/`, launch its kernels on torch's current stream.

Enters: the name of a `.cu` file and integers, floats and tensors. Leaves: launches that a CUDA graph can
capture. NVRTC and the driver are called through ctypes: no compiler and no header is needed on the machine,
and nothing private of torch. Every kernel is `extern "C"` and takes `long long` for every integer, `float`
for every float and a pointer for every tensor. If no NVRTC is found, `nvcc` is tried.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SOURCES = Path(__file__).with_name("cuda")
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
PLAIN_SHARED_BYTES = 48 * 1024
Argument = object  # int, float, torch.Tensor or ctypes value


class CudaError(Exception):
    """A call of the driver or the compiler failed; the message names the call."""


@functools.cache
def driver() -> ctypes.CDLL:
    """libcuda of the running driver."""
    return ctypes.CDLL("libcuda.so.1")


def check(code: int, call: str) -> None:
    """CudaError with the driver's own words if `code` is not 0."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(f"{call}: error {code} ({(text.value or b'unknown').decode()})")


def nvrtc_paths() -> list[str]:
    """Where NVRTC may be, best first: what torch brought, what the loader knows, a toolkit."""
    roots = {*site.getsitepackages(), *(p for p in sys.path if p.endswith("site-packages"))}
    found: list[str] = []
    for root in sorted(roots):
        for pattern in ("nvidia/*/lib/libnvrtc.so.*", "torch/lib/libnvrtc*.so*"):
            found += sorted(str(p) for p in Path(root).glob(pattern) if "builtins" not in p.name)
    found += ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    return found + sorted(str(p) for p in Path("/usr/local").glob("cuda*/lib64/libnvrtc.so*"))


@functools.cache
def nvrtc() -> ctypes.CDLL | None:
    """The first NVRTC that loads, or None.

    Its neighbour, the builtins, is loaded first: a wheel's NVRTC does not find it by itself.
    """
    for path in nvrtc_paths():
        try:
            for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
                if "/" in path and ".alt." not in builtins.name:
                    ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def compile_cubin(source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> bytes:
    """Machine code of CUDA C for `arch` ("sm_90"). CudaError carries the compiler's log."""
    library = nvrtc()
    if library is None:
        return _compile_nvcc(source, name, arch, options)
    program = ctypes.c_void_p()
    code = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    if code:
        raise CudaError(f"nvrtcCreateProgram: error {code}")
    flags = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={SOURCES}", *options]
    array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    code = library.nvrtcCompileProgram(program, len(flags), array)
    if code:
        log = _fetch(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        if b"builtins" in log:  # not the source's fault
            return _compile_nvcc(source, name, arch, options)
        raise CudaError(f"{name} does not compile: {log.decode(errors='replace')}")
    cubin = _fetch(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin


def _fetch(size_of: Callable, get: Callable, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw


def _compile_nvcc(source: str, name: str, arch: str, options: tuple[str, ...]) -> bytes:
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    with tempfile.TemporaryDirectory() as folder:
        cu, cubin = Path(folder, name), Path(folder, "out.cubin")
        cu.write_text(source, encoding="utf-8")
        flags = [f"-arch={arch}", "-std=c++17", f"-I{SOURCES}", *options]
        command = [compiler, *flags, "-cubin", "-o", str(cubin), str(cu)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise CudaError("no NVRTC library and no nvcc on this machine") from None
        if done.returncode:
            raise CudaError(f"{name} does not compile: {done.stderr}")
        return cubin.read_bytes()


@functools.cache
def _module(file: str, defines: tuple[str, ...], device: int) -> ctypes.c_void_p:
    """A compiled and loaded file, once per device. The device's context must be current."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    source = (SOURCES / file).read_text(encoding="utf-8")
    options = tuple(f"-D{define}" for define in defines)
    cubin = compile_cubin(source, file, f"sm_{major}{minor}", options)
    module = ctypes.c_void_p()
    check(driver().cuModuleLoadData(ctypes.byref(module), cubin), f"cuModuleLoadData({file})")
    return module


@functools.cache
def _function(file: str, name: str, defines: tuple[str, ...], device: int) -> ctypes.c_void_p:
    import torch

    torch.cuda.init()
    with torch.cuda.device(device):
        torch.empty(1, device=f"cuda:{device}")  # makes the context current on this thread
        function = ctypes.c_void_p()
        module = _module(file, defines, device)
        check(
            driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
            f"cuModuleGetFunction({name})",
        )
    return function


def _boxed(argument: Argument) -> ctypes._SimpleCData:
    """The C value of one kernel argument."""
    if isinstance(argument, bool):
        return ctypes.c_longlong(int(argument))
    if isinstance(argument, int):
        return ctypes.c_longlong(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if hasattr(argument, "data_ptr"):
        return ctypes.c_void_p(argument.data_ptr())
    return argument  # already a ctypes value


def bind(
    file: str,
    name: str,
    grid: int | tuple[int, ...],
    block: int,
    *arguments: Argument,
    shared_bytes: int = 0,
    defines: tuple[str, ...] = (),
) -> Callable[[], None]:
    """A call without arguments that launches kernel `name` of `cuda/<file>` on torch's current stream.

    Tensors are kept alive by the call. The device is the one current now, and must be when it launches.
    """
    import torch

    device = torch.cuda.current_device()
    function = _function(file, name, defines, device)
    if shared_bytes > PLAIN_SHARED_BYTES:
        check(
            driver().cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared_bytes),
            f"cuFuncSetAttribute({name}, {shared_bytes} B)",
        )
    boxed = [_boxed(argument) for argument in arguments]
    pointers = (ctypes.c_void_p * max(1, len(boxed)))(*(ctypes.addressof(value) for value in boxed))
    x, y, z = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]

    def launch() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = driver().cuLaunchKernel(function, x, y, z, block, 1, 1, shared_bytes, stream, pointers, None)
        check(code, f"cuLaunchKernel({name})")

    launch.keep = (arguments, boxed)  # type: ignore[attr-defined]
    return launch


def resident_blocks(
    file: str, name: str, block: int, shared_bytes: int = 0, defines: tuple[str, ...] = ()
) -> int:
    """Blocks of a kernel that one multiprocessor holds at once."""
    import torch

    function = _function(file, name, defines, torch.cuda.current_device())
    if shared_bytes > PLAIN_SHARED_BYTES:
        check(driver().cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared_bytes), "cuFuncSetAttribute")
    blocks = ctypes.c_int()
    check(
        driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function, block, ctypes.c_size_t(shared_bytes)
        ),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    )
    return blocks.value
