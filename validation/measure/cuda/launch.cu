// Kernels that do next to nothing: what a launch costs.
#include "parts.cuh"

extern "C" __global__ void empty() {}

// Kernels that are alike and yet others: each has code of its own.
#define EMPTY(n) extern "C" __global__ void empty##n() { asm volatile("nanosleep.u32 0; // " #n); }
EMPTY(0) EMPTY(1) EMPTY(2) EMPTY(3) EMPTY(4) EMPTY(5) EMPTY(6) EMPTY(7)
EMPTY(8) EMPTY(9) EMPTY(10) EMPTY(11) EMPTY(12) EMPTY(13) EMPTY(14) EMPTY(15)

// One word per thread, read and written: the smallest kernel that depends on the one before it.
extern "C" __global__ void tiny(unsigned* data) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = data[i] * 0x9E3779B1u + 1u;
}
