"""Packs the libraries of the kernels suite into one archive, for a GPU machine that cannot reach a package
index.

`python -m validation.measure.kernels_pack WHEELS ARCHIVE.tar.gz` where WHEELS holds the wheels of vllm 0.22.0
and fla-core 0.6.0. Taken: FLA whole; of vllm the compiled libraries, DeepGEMM with its headers, and the two
sources that Triton kernels are lifted from; an empty package stands for the rest. In the libraries, machine
code for other GPUs than the wanted one is overwritten with zeros so that it compresses away; code for the
wanted one and everything else stays byte for byte what it was. On the machine: unpack into a folder and put
that on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import io
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

FAT_MAGIC = b"\x50\xed\x55\xba"
FAT_HEADER = struct.Struct("<4sHHQ")  # magic, version, header bytes, bytes after the header
ENTRY = struct.Struct("<HHIQIIHHI")  # kind, version, header bytes, payload bytes, ..., architecture
MACHINE_CODE = 2
LIBRARIES = ("_C", "_C_stable_libtorch", "_moe_C", "_flashmla_C")
SOURCES = (
    "vllm/model_executor/layers/fused_moe/fused_moe.py",
    "vllm/v1/attention/backends/mla/sparse_utils.py",
    "vllm/third_party/__init__.py",
)
FOLDERS = ("vllm/third_party/deep_gemm/", "vllm/third_party/flashmla/", "vllm-0.22.0.dist-info/")
PLACEHOLDER = b'"""Stands for the vllm package: only the parts that validation.measure uses are here."""\n'


def entries(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Kind, architecture, begin and bytes of every payload of every fat binary in a library."""
    at = data.find(FAT_MAGIC)
    while at >= 0:
        _, version, header, size = FAT_HEADER.unpack_from(data, at)
        if version != 1 or header != FAT_HEADER.size:
            at = data.find(FAT_MAGIC, at + 4)
            continue
        place, end = at + header, at + header + size
        while place < end:
            kind, _, entry_header, payload, *_, architecture = ENTRY.unpack_from(data, place)
            yield kind, architecture, place + entry_header, payload
            place += entry_header + payload
        at = data.find(FAT_MAGIC, end)


def for_one_gpu(data: bytes, architecture: int) -> bytes:
    """The library with the code of all other GPUs zeroed. ValueError if it has none for this one."""
    kept, out = 0, bytearray(data)
    for kind, found, begin, size in entries(data):
        if kind == MACHINE_CODE and found == architecture:
            kept += 1
        else:
            out[begin : begin + size] = bytes(size)
    if not kept:
        raise ValueError(f"no machine code for architecture {architecture} in this library")
    return bytes(out)


def wanted(name: str, python: str) -> bool:
    """True for the files of the vllm wheel that are packed as they are."""
    if name in SOURCES:
        return True
    other = name.endswith("-x86_64-linux-gnu.so") and f"cpython-{python}-" not in name
    return name.startswith(FOLDERS) and not other and not name.endswith("RECORD")


def pack(wheels: Path, archive: Path, architecture: int = 90, python: str = "312") -> int:
    """Write the archive; its bytes. FileNotFoundError names the wheel that is missing."""
    found = [next(iter(sorted(wheels.glob(f"{name}-*.whl"))), None) for name in ("vllm", "fla_core")]
    for name, wheel in zip(("vllm", "fla_core"), found, strict=True):
        if wheel is None:
            raise FileNotFoundError(f"no wheel of {name} in {wheels}")
    with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
        _add(tar, "vllm/__init__.py", PLACEHOLDER)
        with zipfile.ZipFile(found[0]) as vllm:  # type: ignore[arg-type]
            for library in LIBRARIES:
                name = f"vllm/{library}.abi3.so"
                _add(tar, name, for_one_gpu(vllm.read(name), architecture))
            for name in filter(lambda each: wanted(each, python), vllm.namelist()):
                _add(tar, name, vllm.read(name))
        with zipfile.ZipFile(found[1]) as fla:  # type: ignore[arg-type]
            for name in fla.namelist():
                _add(tar, name, fla.read(name))
    return archive.stat().st_size


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("wheels", type=Path)
    options.add_argument("archive", type=Path)
    chosen = options.parse_args(arguments)
    print(f"{pack(chosen.wheels, chosen.archive)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
