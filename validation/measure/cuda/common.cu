// Shared by every family: random bits at memory speed, a wait, and a pass that leaves other bytes in the caches.
#include "parts.cuh"

// words: number of 16-byte words.
extern "C" __global__ void fill_random(ulonglong2* data, long long words, long long seed) {
    u64 key = mix((u64)seed);
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) {
        u64 a = mix((u64)i ^ key);
        data[i] = make_ulonglong2(a, a * 0xD1342543DE82EF95ull + key);
    }
}

// One thread waits, so that the host can queue work behind it.
extern "C" __global__ void spin(long long wait_ns) {
    u64 start = nanoseconds();
    while (nanoseconds() - start < (u64)wait_ns) {}
}

// Reads `words` 16-byte words; afterwards the L2 holds little else.
extern "C" __global__ void sweep(const uint4* data, long long words, u64* sum) {
    u64 total = 0;
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        total += halves(load16(data + i));
    if (total == 0x123456789ABCDEFull) *sum = total;
}
