// Small parts that the kernels share: loads and stores of a stated kind, clocks, mixing, a random permutation.
// No header is needed, so NVRTC compiles it alone. Every integer argument of a kernel is a long long.
#pragma once

typedef unsigned long long u64;

// 16 bytes that will not be used again: not kept in L1.
__device__ __forceinline__ uint4 load16(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// The same from memory that this kernel also writes: served by L2.
__device__ __forceinline__ uint4 load16_rw(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store16(uint4* p, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// 8 bytes from L2 or beyond, never from L1: the step of a chase.
__device__ __forceinline__ u64 load8(u64 address) {
    u64 v;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
    return v;
}

__device__ __forceinline__ int load_flag(const int* p) {
    int v;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) :: "memory");
    return t;
}

__device__ __forceinline__ u64 cycles() {
    u64 t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t) :: "memory");
    return t;
}

__device__ __forceinline__ long long multiprocessor() {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

// splitmix64's finaliser: 64 well mixed bits from any 64.
__device__ __forceinline__ u64 mix(u64 x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// Random bits from a word's place, cheap enough for a kernel that writes at full speed.
__device__ __forceinline__ uint4 scramble(unsigned place, unsigned key) {
    unsigned a = (place ^ key) * 0x9E3779B1u;
    a ^= a >> 15;
    unsigned b = a * 0x85EBCA77u;
    return make_uint4(a, b ^ (b >> 13), a * 0xC2B2AE3Du, b * 0x27D4EB2Fu);
}

// The sum of the two 64-bit halves: what a read adds up, so that every byte counts.
__device__ __forceinline__ u64 halves(uint4 v) {
    return (((u64)v.y << 32) | v.x) + (((u64)v.w << 32) | v.z);
}

// Place of number i in a random order of 0 .. n-1: a bijection, made of four Feistel rounds over 2 * half bits
// (the least even number that holds n) and taken again until the result is below n.
__device__ __forceinline__ u64 permuted(u64 i, u64 n, int half, u64 seed) {
    unsigned mask = (1u << half) - 1u;
    do {
        unsigned left = (unsigned)(i >> half) & mask, right = (unsigned)i & mask;
        for (int round = 0; round < 4; ++round) {
            unsigned x = (right ^ (unsigned)(seed >> (8 * round))) * 0x9E3779B1u + (unsigned)round * 0x7F4A7C15u;
            x = (x ^ (x >> 15)) * 0x85EBCA77u;
            x = (x ^ (x >> 13)) * 0xC2B2AE3Du;
            x ^= x >> 16;
            unsigned swapped = left ^ (x & mask);
            left = right;
            right = swapped;
        }
        i = ((u64)left << half) | right;
    } while (i >= n);
    return i;
}

// Half the bits that `permuted` works on.
__device__ __forceinline__ int half_bits(u64 n) {
    int half = 1;
    while (half < 31 && (1ull << (2 * half)) < n) ++half;
    return half;
}
