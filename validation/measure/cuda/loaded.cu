// One launch, one block per multiprocessor: block 0 chases pointers, blocks 1 .. streamers stream until it has ended.
//
// A streaming warp takes tiles of U * 512 bytes, one in flight, and waits `pause` cycles after each. It reports tiles,
// begin and end; the chase reports its own nanoseconds. Nobody waits for ever: every loop has a limit.
#include "parts.cuh"

enum Kind { READ, WRITE, UPDATE };
#define STOP 32              // place of the stop flag, a line away from the count of arrivals
#define LIMIT_CYCLES 600000000ull
#define TILES_A_LOOK 8       // tiles between two looks at the flag

template <int KIND, int U>
__device__ __forceinline__ void one_tile(uint4* p, unsigned place, unsigned key, u64& total) {
    uint4 v[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        if (KIND == READ) v[u] = load16(p + 32 * u);
        if (KIND == UPDATE) v[u] = load16_rw(p + 32 * u);
        if (KIND == WRITE) v[u] = scramble(place + 32 * u, key);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        if (KIND == READ) total += halves(v[u]);
        if (KIND == UPDATE) v[u].x ^= key, v[u].y ^= key, v[u].z ^= key, v[u].w ^= key;
        if (KIND != READ) store16(p + 32 * u, v[u]);
    }
}

template <int KIND, int U>
__device__ __forceinline__ void stream(uint4* region, long long tiles, long long warp, long long warps, long long pause,
                                       int* control, u64* report) {
    unsigned lane = threadIdx.x & 31;
    if (threadIdx.x == 0) atomicAdd(control, 1);
    u64 begin = nanoseconds(), c0 = cycles(), total = 0;
    long long done = 0, tile = warp;
    for (;;) {
        int stop = load_flag(control + STOP);  // looked at after the tiles, so nobody waits for it
#pragma unroll 1
        for (int k = 0; k < TILES_A_LOOK; ++k) {
            uint4* p = region + tile * (32 * U) + lane;
            one_tile<KIND, U>(p, (unsigned)(tile * (32 * U)) + lane, 0xA5C3961Eu, total);
            tile += warps;
            if (tile >= tiles) tile -= tiles;
            if (pause) {
                u64 c = cycles();
                while (cycles() - c < (u64)pause) {}
            }
        }
        done += TILES_A_LOOK;
        if (stop || cycles() - c0 > LIMIT_CYCLES) break;
    }
    u64 end = nanoseconds();
    if (lane == 0) report[0] = done, report[1] = begin, report[2] = end;
    if (total == 0x123456789ABCDEFull) report[3] = total;
}

// result: 0 nanoseconds, 1 cycles, 2 one if it ended where it must, 3 streamers that had arrived, 4 begin, 5 end
__device__ void chase(u64 data, u64 nodes, u64 stride, u64 seed, u64 start, long long steps, long long streamers,
                      int* control, u64* result) {
    u64 c = cycles();
    while (load_flag(control) < streamers && cycles() - c < 20000000ull) {}
    int arrived = load_flag(control);
    u64 t = nanoseconds();
    while (nanoseconds() - t < 50000) {}  // the streams find their pace
    int half = half_bits(nodes);
    u64 p = data + permuted(start % nodes, nodes, half, seed) * stride;
    u64 last = data + permuted((start + steps) % nodes, nodes, half, seed) * stride;
    u64 t0 = nanoseconds(), c0 = cycles();
#pragma unroll 8
    for (long long i = 0; i < steps; ++i) p = load8(p);
    if (p == 0) return;  // waits for the last load
    u64 c1 = cycles(), t1 = nanoseconds();
    atomicExch(control + STOP, 1);
    result[0] = t1 - t0, result[1] = c1 - c0, result[2] = p == last, result[3] = arrived;
    result[4] = t0, result[5] = t1;
}

#define LOADED(NAME, KIND, U)                                                                                      \
    extern "C" __global__ void __launch_bounds__(1024, 1)                                                          \
        NAME##_##U(u64 data, long long nodes, long long stride, long long seed, long long start, long long steps,  \
                   uint4* region, long long tiles, long long streamers, long long warps, long long pause,          \
                   int* control, u64* result, u64* reports) {                                                      \
        long long block = (long long)blockIdx.x - 1, warp = threadIdx.x / 32;                                      \
        if (blockIdx.x == 0) {                                                                                     \
            if (threadIdx.x == 0) chase(data, nodes, stride, seed, start, steps, streamers, control, result);      \
        } else if (block < streamers && warp < warps) {                                                            \
            long long mine = block * warps + warp;                                                                 \
            stream<KIND, U>(region, tiles, mine, streamers * warps, pause, control, reports + 4 * mine);           \
        }                                                                                                          \
    }

LOADED(read, READ, 1)
LOADED(read, READ, 2)
LOADED(read, READ, 4)
LOADED(write, WRITE, 1)
LOADED(write, WRITE, 2)
LOADED(write, WRITE, 4)
LOADED(update, UPDATE, 1)
LOADED(update, UPDATE, 2)
LOADED(update, UPDATE, 4)
