"""What whole steps and commands take, the bars beside: `python tests/benchmark_steps.py [ROWS]`.

Traces are recorded into a folder that goes away. Times are of the processor, but for the first replay, which
two cores share. The trace of many rows has 100 million, or ROWS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memsim import fast, replay
from memsim.trace import Access, Kernel, Region
from memsim.trace_schema import ENCODINGS, KEY, RECORDS, STRINGS, encode_meta
from memsim.trace_write import TraceWriter

STEPS = (("deepseek-v3.2", ("kv=host",), 0.5), ("kimi-linear", (), 0.7))
ACCESSES = 100_000  # of each kernel of the trace of many rows


def command(*arguments: str, cache: str = "") -> tuple[float, int, str]:
    """Run memsim; returns (time of the processor [s], peak memory [bytes], what it wrote to stderr)."""
    environment = os.environ | ({"MEMSIM_CACHE_DIR": cache} if cache else {})
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "memsim", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=environment,
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    if child.returncode:
        sys.exit(f"memsim {' '.join(arguments)}: {text}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text


def say(name: str, found: str, bar: str = "") -> None:
    print(f"{name:60} {found:>22}  {bar}", flush=True)


def warm_s(trace: Path, place: Sequence[str], bound: bool = False) -> float:
    """Time of the second of two replays."""
    for _ in range(2):
        begin_s = time.process_time()
        replay(trace, "h200-host", place=place, bound=bound)
        took_s = time.process_time() - begin_s
    return took_s


def every_layer_s(trace: Path, place: Sequence[str]) -> float:
    """Time of a replay in which no layer is taken for equal to another."""
    kept, fast._MEMO_SEGMENTS = fast._MEMO_SEGMENTS, 0
    took_s = warm_s(trace, place)
    fast._MEMO_SEGMENTS = kept
    return took_s


def steps(folder: Path) -> None:
    """Replays of whole decode steps, recorded here."""
    for model, place, bar_s in STEPS:
        short, long = folder / f"{model}_1m.parquet", folder / f"{model}_10m.parquet"
        command("trace", "record", model, "--context", "1M", "-o", str(short))
        record_s, _, _ = command("trace", "record", model, "--context", "10M", "-o", str(long))
        say(f"{model} at 10M: recording on meta", f"{record_s:.2f} s", "5 s")
        short_s, long_s = warm_s(short, place), warm_s(long, place)
        say(f"{model} at 10M: replay, warm", f"{long_s:.2f} s", f"{bar_s} s")
        say(f"{model}: growth from 1M to 10M", f"{long_s / short_s:.1f}", "10")
        say(f"{model} at 10M: no layer equal to another", f"{every_layer_s(long, place):.2f} s", "5 s")
        say(f"{model} at 10M: with what binds each kernel", f"{warm_s(long, place, True):.2f} s")


def starts(folder: Path, trace: Path) -> None:
    """The first replay after an install, a later one, and the help."""
    cache, to = str(folder / "cache"), ("replay", str(trace), "--machine", "h200-host")
    begin_s = time.monotonic()
    cpu_s, _, text = command(*to, cache=cache)
    say("first replay after an install, from start to end", f"{time.monotonic() - begin_s:.1f} s", "20 s")
    say("  of both its processes", f"{cpu_s:.1f} s")
    say("  says that it compiles", "yes" if "compiling" in text else "no", "yes")
    say("a later one, from start to end", f"{command(*to, cache=cache)[0]:.2f} s", "1.5 s")
    say("--help", f"{command('--help')[0]:.2f} s", "0.3 s")


def write_rows(path: Path, rows: int) -> None:
    """A trace of so many rows: kernels of ACCESSES rows that 132 blocks read, a row group each."""
    with TraceWriter(path, {}) as trace:
        trace.region(Region(0, "kv", "kv", 0, "uint8", 1 << 30, 1024))
        trace.kernel(
            Kernel(
                id=0,
                name="k",
                family="f",
                layer=0,
                step=0,
                stream=0,
                waits_for=(),
                blocks=132,
                blocks_per_unit=1,
                tile_rows=1,
                tile_bytes=1024,
                tiles_in_flight=64,
                retire="any",
            )  # fmt: skip
        )
        for i in range(ACCESSES):
            trace.access(Access(0, i % 132, i % 132, 0, False, i, 1))
    table = pq.read_table(path)
    head, body = table.slice(0, 1), table.slice(1)
    kernels = max(1, rows // ACCESSES)
    counts = dict(zip(RECORDS, (1, kernels, kernels * ACCESSES), strict=True))
    with pq.ParquetWriter(
        path, table.schema, compression="zstd", use_dictionary=list(STRINGS), column_encoding=ENCODINGS,
        write_page_checksum=True,
    ) as file:  # fmt: skip
        file.write_table(head)
        for number in range(kernels):
            file.write_table(numbered(body, number))
        file.add_key_value_metadata({KEY: encode_meta({}, counts)})


def numbered(body: pa.Table, number: int) -> pa.Table:
    """A kernel and its accesses with another number."""
    for name in ("id", "kernel"):
        place = body.schema.get_field_index(name)
        given = body.column(place).is_valid().to_numpy()
        numbers = pa.array(np.full(len(body), number), body.schema.field(place).type, mask=~given)
        body = body.set_column(place, body.schema.field(place), numbers)
    return body


def many_rows(folder: Path, rows: int) -> None:
    """A trace of many rows: time, memory, and progress."""
    path = folder / "rows.parquet"
    write_rows(path, rows)
    seconds, peak, text = command("replay", str(path), "--machine", "h200")
    say(f"trace of {rows:,} rows: replay", f"{seconds:.1f} s", f"{60 * rows / 1e8:g} s")
    say("  peak memory", f"{peak / 1e9:.2f} GB", "1 GB")
    say("  shows progress", "yes" if "replaying" in text else "no", "yes")


def main() -> None:
    print(f"{'whole steps and commands':60} {'found':>22}  bar")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps(folder)
        starts(folder, Path(__file__).parent / "golden" / "v32_128k.parquet")
        many_rows(folder, int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000)


if __name__ == "__main__":
    main()
