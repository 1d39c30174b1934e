// Streams over global memory: read, write, copy and update in place, with a stated number of bytes in flight.
//
// A block takes tiles of blockDim.x * U words of 16 bytes in turn with the other blocks. Its threads ask for all U
// words before they use one, and take the next tile only then: a block has at most one tile in flight.
#include "parts.cuh"

#define EACH_TILE(t) _Pragma("unroll 1") for (long long t = blockIdx.x; t < tiles; t += gridDim.x)

template <int U>
__device__ __forceinline__ void read_tiles(const uint4* data, long long tiles, u64* sum, long long verify) {
    u64 total = 0;
    EACH_TILE(t) {
        const uint4* p = data + t * ((long long)blockDim.x * U) + threadIdx.x;
        uint4 v[U];
#pragma unroll
        for (int u = 0; u < U; ++u) v[u] = load16(p + u * blockDim.x);
#pragma unroll
        for (int u = 0; u < U; ++u) total += halves(v[u]);
    }
    if (verify) atomicAdd(sum, total);  // the timed calls pass 0; the compiler cannot know
}

template <int U>
__device__ __forceinline__ void write_tiles(uint4* data, long long tiles, unsigned key) {
    EACH_TILE(t) {
        long long first = t * ((long long)blockDim.x * U) + threadIdx.x;
#pragma unroll
        for (int u = 0; u < U; ++u) {
            long long i = first + u * blockDim.x;
            store16(data + i, scramble((unsigned)i, key));
        }
    }
}

template <int U>
__device__ __forceinline__ void copy_tiles(uint4* to, const uint4* from, long long tiles) {
    EACH_TILE(t) {
        long long first = t * ((long long)blockDim.x * U) + threadIdx.x;
        uint4 v[U];
#pragma unroll
        for (int u = 0; u < U; ++u) v[u] = load16(from + first + u * blockDim.x);
#pragma unroll
        for (int u = 0; u < U; ++u) store16(to + first + u * blockDim.x, v[u]);
    }
}

template <int U>
__device__ __forceinline__ void update_tiles(uint4* data, long long tiles, unsigned key) {
    EACH_TILE(t) {
        uint4* p = data + t * ((long long)blockDim.x * U) + threadIdx.x;
        uint4 v[U];
#pragma unroll
        for (int u = 0; u < U; ++u) v[u] = load16_rw(p + u * blockDim.x);
#pragma unroll
        for (int u = 0; u < U; ++u) {
            v[u].x ^= key, v[u].y ^= key, v[u].z ^= key, v[u].w ^= key;
            store16(p + u * blockDim.x, v[u]);
        }
    }
}

// The second bound is how many blocks a multiprocessor shall hold: it keeps the compiler from splitting a tile's loads
// into smaller batches to save registers.
#define STREAMS(U, BLOCKS)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                   \
        read_##U(const uint4* data, long long tiles, u64* sum, long long verify) {                              \
        read_tiles<U>(data, tiles, sum, verify);                                                                \
    }                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                   \
        write_##U(uint4* data, long long tiles, long long key) {                                                \
        write_tiles<U>(data, tiles, (unsigned)key);                                                             \
    }                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                   \
        copy_##U(uint4* to, const uint4* from, long long tiles) {                                               \
        copy_tiles<U>(to, from, tiles);                                                                         \
    }                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                   \
        update_##U(uint4* data, long long tiles, long long key) {                                               \
        update_tiles<U>(data, tiles, (unsigned)key);                                                            \
    }

STREAMS(1, 8)
STREAMS(2, 8)
STREAMS(4, 8)
STREAMS(8, 4)
STREAMS(16, 2)
