"""Scattered rows of the GPU's own memory: `count` distinct rows of `row` bytes, anywhere in `region` bytes.

The index list was written just before (so L2 holds it, as after a top-k), by a kernel outside the timed span,
anew before every replay: no row that a replay reads was read by the one before, as far as the region allows.
"""

from __future__ import annotations

from . import cuda
from .device import Env, slices
from .micro_stream import env_sum
from .points import Point
from .rows import Measured
from .timing import Work, time_work

INDEX_WORDS = 16 << 20  # of all index lists of a replay
REPLAY_NS = 1_200_000
CHECK_BYTES = 64 << 20
THREADS, WORDS_PER_THREAD = 256, 4


def lists_for(count: int, row: int) -> int:
    """Index lists of a replay: enough calls for about 1.2 ms, 16 at least, 512 at most."""
    call_ns = max(2500.0, count * max(row, 64) / 4000)
    wanted = min(512, int(REPLAY_NS / call_ns) + 1, INDEX_WORDS // count)
    return max(16, wanted)


def gather(point: Point, env: Env) -> Measured:
    import torch

    row, count, region = point["row"], point["count"], point["region"]
    words, rows = row // 16, region // row
    if row % 16 or count > rows:
        raise ValueError(f"row {row}, count {count}: expected 16-byte words and at most {rows} rows")
    lists = lists_for(count, row)
    processors = torch.cuda.get_device_properties(env.device).multi_processor_count
    blocks = min(processors * 8, -(-count * words // (THREADS * WORDS_PER_THREAD)))
    defines = (f"WORDS={words}",)

    def build(round_index: int) -> Work:
        data = slices(env, region, 1, round_index, seed=point.seed)[0]
        index = torch.empty(lists * count, dtype=torch.int32, device=env.device)
        total = env_sum(env)
        seed = point.seed + round_index
        turn = [0]

        def launch(list_index: int, verify: int = 0):
            mine = index[list_index * count : (list_index + 1) * count]
            arguments = (data, mine, count, total, verify)
            return cuda.bind("gather.cu", "gather", blocks, THREADS, *arguments, defines=defines)

        def renew() -> None:
            first = turn[0] * lists * count % rows
            turn[0] += 1
            arguments = (index, lists * count, rows, first, seed)
            cuda.bind("gather.cu", "make_index", processors * 8, 256, *arguments, defines=defines)()

        def check() -> None:
            if count * row > CHECK_BYTES:
                return
            total.zero_()
            launch(0, 1)()
            wanted = index[:count].long()
            if wanted.unique().numel() != count:
                raise ValueError("gather: the rows are not distinct")
            found = data[: rows * row].view(rows, row).index_select(0, wanted)
            expected = int(found.view(torch.int64).sum().item())
            if int(total.item()) != expected:
                raise ValueError(f"gather: sum {int(total.item())}, expected {expected}")

        return Work(
            [launch(i) for i in range(lists)],
            bytes_read=count * row + count * 4,
            bytes_written=0,
            footprint_bytes=region,
            check=check,
            renew=renew,
        )

    measured = time_work(build, env, calls_per_graph=lists)
    measured.extra = {"blocks": blocks}
    return measured


FAMILIES = {"gather.rows": gather}
