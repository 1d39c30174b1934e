// Rows of a cache in host memory, chosen by slot number, copied into a dense buffer on the GPU ("staging").
//
// A row is `words` words of 16 bytes and starts at slot * words. One warp copies a row: all of its loads are issued
// before the first store, so that the latency of the link is paid once a row; rows beyond the grid come in turns.
//
// `cells` holds one cursor a call: call i takes its slots from cells[i] on and leaves in cells[(i + 1) % calls] where
// the next call begins, so that a replayed graph goes round all `round` slots before it reads a row again. With one
// call and round = count the cursor stays at 0.

typedef long long i64;

extern "C" __global__ void stage_rows(const uint4* rows, const int* slots, uint4* out, i64 count, i64 words, i64* cells,
                                      i64 call, i64 calls, i64 round) {
    const i64 at = cells[call];
    if (blockIdx.x == 0 && threadIdx.x == 0) cells[(call + 1) % calls] = (at + count) % round;
    const i64 lane = threadIdx.x % 32;
    const i64 warps = (i64)gridDim.x * blockDim.x / 32;
    for (i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < count; row += warps) {
        const uint4* from = rows + (i64)slots[at + row] * words;
        uint4* to = out + row * words;
        for (i64 word = lane; word < words; word += 96) {
            uint4 held[3];
#pragma unroll
            for (int k = 0; k < 3; k++)
                if (word + 32 * k < words) held[k] = from[word + 32 * k];
#pragma unroll
            for (int k = 0; k < 3; k++)
                if (word + 32 * k < words) to[word + 32 * k] = held[k];
        }
    }
}
