// When something begins and ends between other kernels: two kernels of one thread around it read the GPU's clock.
#include "parts.cuh"

__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
    return now;
}

extern "C" __global__ void begins(u64* at) { *at = nanoseconds(); }

// total: nanoseconds, and how often.
extern "C" __global__ void ends(const u64* at, u64* total) {
    total[0] += nanoseconds() - *at;
    total[1] += 1;
}
