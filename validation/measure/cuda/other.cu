// What other kernels of a step do to the caches: reads of more bytes than the L2 holds, and more instructions than a
// multiprocessor keeps (64 functions of 256 instructions of 16 bytes). Last it reads what the next kernel finds in
// the L2.
#include "parts.cuh"

#define FOUR a = fmaf(a, x, N); b = fmaf(b, x, N); c = fmaf(c, x, N); d = fmaf(d, x, N);
#define SIXTEEN FOUR FOUR FOUR FOUR
#define MORE SIXTEEN SIXTEEN SIXTEEN SIXTEEN
#define MANY MORE MORE MORE MORE

// A function of its own for each N, so that none is compiled into another.
template <int N>
__device__ __noinline__ float part(float x, float y) {
    float a = x, b = y, c = x + y, d = x - y;
    MANY
    return a + b + c + d;
}

template <int N>
__device__ __forceinline__ float parts(float x, float y) {
    float mine = part<N>(x, y);
    if constexpr (N > 1) mine += parts<N - 1>(x, mine);
    return mine;
}

__device__ __forceinline__ u64 swept(const uint4* data, long long words) {
    u64 total = 0;
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        total += halves(load16(data + i));
    return total;
}

// words, kept_words: numbers of 16-byte words.
extern "C" __global__ void __launch_bounds__(1024) other(const uint4* data, long long words, const uint4* kept, long long kept_words,
                                 float x, float y, u64* sum) {
    u64 total = swept(data, words);
    if (threadIdx.x < 32) total += (u64)parts<64>(x, y);
    __syncthreads();
    total += swept(kept, kept_words);
    if (total == 0x123456789ABCDEFull) *sum = total;
}
