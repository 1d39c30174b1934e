// Single-precision multiply-adds in registers: CHAINS independent chains a thread, no memory.
#include "parts.cuh"

#define CHAINS 8

// in: factor and CHAINS + 1 numbers for each thread of a block. With factor -1 a value goes to and fro and stays random.
extern "C" __global__ void __launch_bounds__(256) fma_rate(const float* in, float* out, long long rounds) {
    float a[CHAINS], factor = in[0], c = in[1 + threadIdx.x];
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) a[k] = in[1 + 256 * (k + 1) + threadIdx.x];
#pragma unroll 1
    for (long long r = 0; r < rounds; ++r) {
#pragma unroll
        for (int s = 0; s < 16; ++s) {
#pragma unroll
            for (int k = 0; k < CHAINS; ++k) a[k] = fmaf(a[k], factor, c);
        }
    }
    float total = 0;
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) total += a[k];
    if (total == 1.0e30f) out[threadIdx.x] = total;
}
