// Scattered rows: `count` rows of WORDS * 16 bytes at the places that an index lists, in any order, distinct.
// One thread takes one 16-byte word; U words of a thread are asked for together. WORDS is given when compiling.
#include "parts.cuh"

#define U 4

// index[i] = a row of a random order of `rows`, from position `first` on: distinct as long as count <= rows.
extern "C" __global__ void make_index(unsigned* index, long long count, long long rows, long long first,
                                      long long seed) {
    int half = half_bits(rows);
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        index[i] = (unsigned)permuted((u64)(first + i) % (u64)rows, rows, half, seed);
}

// count * WORDS < 2^31.
extern "C" __global__ void __launch_bounds__(256) gather(const uint4* data, const unsigned* index, long long count,
                                                         u64* sum, long long verify) {
    unsigned words = (unsigned)count * WORDS, step = gridDim.x * blockDim.x;
    u64 total = 0;
#pragma unroll 1
    for (unsigned base = blockIdx.x * blockDim.x + threadIdx.x; base < words; base += step * U) {
        unsigned row[U];
        uint4 v[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            unsigned w = base + u * step;
            row[u] = w < words ? __ldg(index + w / WORDS) : 0;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            unsigned w = base + u * step;
            v[u] = w < words ? load16(data + (u64)row[u] * WORDS + w % WORDS) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) total += halves(v[u]);
    }
    if (verify) atomicAdd(sum, total);
}
