// Dependent loads: each one's value is the address of the next, in a random cyclic order of `nodes` places that lie
// `stride` bytes apart. The k-th place visited is permuted(k); it holds the address of permuted(k + 1).
#include "parts.cuh"

__device__ __forceinline__ u64 place(u64 data, u64 k, u64 nodes, u64 stride, int half, u64 seed) {
    return data + permuted(k % nodes, nodes, half, seed) * stride;
}

// Writes the addresses of visits first .. first + count - 1.
extern "C" __global__ void chase_build(u64 data, long long nodes, long long stride, long long seed, long long first,
                                       long long count) {
    int half = half_bits(nodes);
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x; k < count; k += step)
        *(u64*)place(data, first + k, nodes, stride, half, seed) =
            place(data, first + k + 1, nodes, stride, half, seed);
}

// Only one block goes on: any (sm < 0, one block launched) or the first that runs on multiprocessor `sm`.
__device__ bool chosen(long long sm, u64* out) {
    __shared__ int mine;
    if (sm >= 0 && multiprocessor() != sm) return false;
    if (threadIdx.x == 0) mine = atomicExch((unsigned long long*)out + 4, 1ull) == 0;
    __syncthreads();
    return mine;
}

// With `touch`, all threads of the block first read every place once: what fits in the caches is then there.
__device__ void touch_all(u64 data, long long nodes, long long stride, u64* out) {
    u64 total = 0;
    for (long long i = threadIdx.x; i < nodes; i += blockDim.x) total += load8(data + i * stride);
    if (total == 0x123456789ABCDEFull) out[5] = total;
}

// out: 0 nanoseconds, 1 cycles, 2 one if the chase ended where it must, 3 multiprocessor, 4 taken (zero it before)
extern "C" __global__ void chase_run(u64 data, long long nodes, long long stride, long long seed, long long start,
                                     long long steps, long long touch, long long sm, u64* out) {
    if (!chosen(sm, out)) return;
    if (touch) touch_all(data, nodes, stride, out);
    __syncthreads();
    if (threadIdx.x) return;
    int half = half_bits(nodes);
    u64 p = place(data, start, nodes, stride, half, seed);
    u64 last = place(data, start + steps, nodes, stride, half, seed);
    u64 t0 = nanoseconds(), c0 = cycles();
#pragma unroll 8
    for (long long i = 0; i < steps; ++i) p = load8(p);
    if (p == 0) return;  // waits for the last load
    u64 c1 = cycles(), t1 = nanoseconds();
    out[0] = t1 - t0, out[1] = c1 - c0, out[2] = p == last, out[3] = multiprocessor();
}

// Each load by itself: its cycles go to single[i]; steps <= 4096.
extern "C" __global__ void chase_single(u64 data, long long nodes, long long stride, long long seed, long long start,
                                        long long steps, long long touch, long long sm, u64* out, int* single) {
    __shared__ int took[4096];
    if (!chosen(sm, out)) return;
    if (touch) touch_all(data, nodes, stride, out);
    __syncthreads();
    if (threadIdx.x) return;
    int half = half_bits(nodes);
    u64 p = place(data, start, nodes, stride, half, seed);
    u64 last = place(data, start + steps, nodes, stride, half, seed);
    u64 t0 = nanoseconds(), c0 = cycles();
#pragma unroll 1
    for (int i = 0; i < (int)steps; ++i) {
        u64 before = cycles();
        p = load8(p);
        if (p == 0) return;  // the clock is read after the load has come
        took[i] = (int)(cycles() - before);
    }
    u64 c1 = cycles(), t1 = nanoseconds();
    out[0] = t1 - t0, out[1] = c1 - c0, out[2] = p == last, out[3] = multiprocessor();
    for (int i = 0; i < (int)steps; ++i) single[i] = took[i];
}
