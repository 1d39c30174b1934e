// Kernels that reach memory outside the GPU: pinned host memory or a peer GPU, through ordinary pointers.
//
// A "word" is 16 bytes. `base` is the start of a region, `cells` holds one cursor a call: call i starts at cells[i]
// and leaves the start of the next call in cells[(i + 1) % calls], so that a replayed graph never reads a place
// twice until it has gone round the whole region. Only blocks of call i read cells[i], and none of them writes
// it, so there is no race. Loads are inline PTX: the compiler may neither drop nor widen them.

typedef unsigned long long u64;
typedef long long i64;
struct Word { unsigned x, y, z, w; };

// Cached in L2 as any load of a kernel is.
__device__ __forceinline__ Word load_plain(const Word* p) {
    Word v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// Fetched again from where it lives: L2 lines of system memory are dropped (PTX: ld.cv).
__device__ __forceinline__ Word load_fresh(const Word* p) {
    Word v;
    asm volatile("ld.global.cv.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ void store_word(Word* p, Word v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// 16 bytes that differ from word to word and do not compress.
__device__ __forceinline__ Word hashed(u64 i) {
    u64 a = i * 0x9E3779B97F4A7C15ull, b = (i ^ 0xD1B54A32D192ED03ull) * 0xBF58476D1CE4E5B9ull;
    a ^= a >> 29;
    b ^= b >> 31;
    return Word{(unsigned)a, (unsigned)(a >> 32), (unsigned)b, (unsigned)(b >> 32)};
}

__device__ __forceinline__ unsigned folded(Word v) { return v.x ^ v.y ^ v.z ^ v.w; }

// Keeps what was read alive; the condition is false but for one value in 2^32.
__device__ __forceinline__ void keep(unsigned seen, unsigned* sink) {
    if (seen == 0x9E3779B9u) *sink = seen;
}

// Where this call starts. at < round and step <= round, so that no division is needed: it would cost 0.1 us and more.
__device__ __forceinline__ u64 started(u64* cells, i64 call, i64 calls, u64 step, u64 round) {
    const u64 at = cells[call], next = at + step;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        cells[call + 1 < calls ? call + 1 : 0] = next < round ? next : next - round;
    return at;
}

// Every thread has DEPTH loads of 16 bytes outstanding: blockDim * DEPTH * 16 bytes a block. The call covers
// gridDim * blockDim * DEPTH * turns words from its cursor on; the region holds a multiple of that.
template <int DEPTH>
__device__ __forceinline__ void read_stream(const Word* base, i64 turns, u64* cells, i64 call, i64 calls, i64 round,
                                            unsigned* sink) {
    const u64 lane = (u64)blockIdx.x * blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    const Word* p = base + started(cells, call, calls, stride * DEPTH * turns, round) + lane;
    unsigned seen = 0;
#pragma unroll 1
    for (i64 turn = 0; turn < turns; turn++, p += stride * DEPTH) {
        Word v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) v[d] = load_plain(p + stride * d);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) seen ^= folded(v[d]);
    }
    keep(seen, sink);
}

template <int DEPTH>
__device__ __forceinline__ void write_stream(Word* base, i64 turns, u64* cells, i64 call, i64 calls, i64 round) {
    const u64 lane = (u64)blockIdx.x * blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    u64 at = started(cells, call, calls, stride * DEPTH * turns, round) + lane;
#pragma unroll 1
    for (i64 turn = 0; turn < turns; turn++, at += stride * DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) store_word(base + at + stride * d, hashed(at + stride * d));
    }
}

// The bounds give the compiler registers for all DEPTH loads; without them it stops at 32 and holds back half of 8.
#define STREAMS(DEPTH)                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                            \
        read_##DEPTH(const Word* base, i64 turns, u64* cells, i64 call, i64 calls, i64 round, \
                                            unsigned* sink) {                                                       \
        read_stream<DEPTH>(base, turns, cells, call, calls, round, sink);                                           \
    }                                                                                                               \
    extern "C" __global__ void write_##DEPTH(Word* base, i64 turns, u64* cells, i64 call, i64 calls, i64 round,      \
                                             unsigned* sink) {                                                      \
        write_stream<DEPTH>(base, turns, cells, call, calls, round);                                                \
    }
STREAMS(1)
STREAMS(2)
STREAMS(4)
STREAMS(8)

// Rows of `row_words` words at starts[at .. at + rows) (in words from base). 2^lane_bits neighbouring threads
// read one row together, 16 bytes each. A row of up to 32 words: four rows a thread in flight. A longer one: four
// pieces of 512 bytes of it.
template <bool FRESH>
__device__ __forceinline__ void gather_rows(const Word* base, const i64* starts, i64 rows, i64 row_words, i64 lane_bits,
                                            u64* cells, i64 call, i64 calls, i64 round, unsigned* sink) {
    const i64 lanes = 1 << (int)lane_bits, lane = threadIdx.x & ((int)lanes - 1);
    const i64 groups = (i64)gridDim.x * blockDim.x >> lane_bits;
    const i64 group = ((i64)blockIdx.x * blockDim.x + threadIdx.x) >> lane_bits;
    starts += started(cells, call, calls, rows, round);
    unsigned seen = 0;
    if (row_words <= 32) {
#pragma unroll 1
        for (i64 row = group; row < rows; row += 4 * groups) {
            Word v[4];
            i64 at[4];
#pragma unroll
            for (int k = 0; k < 4; k++) at[k] = row + k * groups < rows ? starts[row + k * groups] : -1;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                v[k] = Word{0, 0, 0, 0};
                if (at[k] >= 0 && lane < row_words)
                    v[k] = FRESH ? load_fresh(base + at[k] + lane) : load_plain(base + at[k] + lane);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) seen ^= folded(v[k]);
        }
    } else {
#pragma unroll 1
        for (i64 row = group; row < rows; row += groups) {
            const Word* p = base + starts[row];
#pragma unroll 1
            for (i64 word = lane; word < row_words; word += 4 * lanes) {
                Word v[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    v[k] = Word{0, 0, 0, 0};
                    if (word + k * lanes < row_words)
                        v[k] = FRESH ? load_fresh(p + word + k * lanes) : load_plain(p + word + k * lanes);
                }
#pragma unroll
                for (int k = 0; k < 4; k++) seen ^= folded(v[k]);
            }
        }
    }
    keep(seen, sink);
}

// 64 registers: with 32 the compiler puts uses between the loads, and fewer of these are under way.
extern "C" __global__ void __launch_bounds__(256, 4)
    gather_plain(const Word* base, const i64* starts, i64 rows, i64 row_words, i64 lane_bits, u64* cells, i64 call,
               i64 calls, i64 round, unsigned* sink) {
    gather_rows<false>(base, starts, rows, row_words, lane_bits, cells, call, calls, round, sink);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    gather_fresh(const Word* base, const i64* starts, i64 rows, i64 row_words, i64 lane_bits, u64* cells, i64 call,
               i64 calls, i64 round, unsigned* sink) {
    gather_rows<true>(base, starts, rows, row_words, lane_bits, cells, call, calls, round, sink);
}

// One thread, one load at a time: the eight bytes at `at` say where the next load goes (bytes from base).
extern "C" __global__ void chase_plain(const char* base, i64 hops, u64* cursor) {
    u64 at = *cursor;
#pragma unroll 1
    for (i64 hop = 0; hop < hops; hop++) asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(at) : "l"(base + at));
    *cursor = at;
}

extern "C" __global__ void chase_fresh(const char* base, i64 hops, u64* cursor) {
    u64 at = *cursor;
#pragma unroll 1
    for (i64 hop = 0; hop < hops; hop++) asm volatile("ld.global.cv.u64 %0, [%1];" : "=l"(at) : "l"(base + at));
    *cursor = at;
}

// Writes the links of a cycle: the eight bytes at slots[i] get slots[i + 1], the last one the first.
extern "C" __global__ void link_slots(char* base, const i64* slots, i64 count) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x)
        *(i64*)(base + slots[i]) = slots[i + 1 < count ? i + 1 : 0];
}

__device__ __forceinline__ u64 nanoseconds() {
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// Reads or writes chunks of 2 KB (one warp, four words a thread) of one region until `cycles` have passed.
// Returns chunks per cycle of this warp, over its own time: nothing is lost at the end of the window.
__device__ __forceinline__ double until(Word* base, u64 chunks, int writes, u64 warp, u64 warps, u64 first,
                                        i64 begin, i64 cycles, unsigned* sink) {
    const unsigned lane = threadIdx.x % 32;
    unsigned seen = 0;
    u64 done = 0, chunk = (first + warp) % chunks;
    i64 now = begin;
    while (now - begin < cycles) {
        Word* p = base + chunk * 128 + lane;
        if (writes) {
#pragma unroll
            for (int d = 0; d < 4; d++) store_word(p + 32 * d, hashed(chunk * 128 + lane + 32 * d + done));
        } else {
            Word v[4];
#pragma unroll
            for (int d = 0; d < 4; d++) v[d] = load_plain(p + 32 * d);
#pragma unroll
            for (int d = 0; d < 4; d++) seen ^= folded(v[d]);
        }
        done++;
        chunk += warps;
        if (chunk >= chunks) chunk -= chunks;
        now = clock64();
    }
    keep(seen, sink);
    return (double)done / (double)(now - begin);
}

// Two roles at once for a window of time: the first `a_blocks` blocks work on region a, the others on region b.
// All blocks must be resident together; they start as one. out[0], out[1]: chunks per cycle of each role;
// out[2]: cycles per nanosecond, as block 0 saw it. `arrived` and `out` are zero before the launch.
extern "C" __global__ void __launch_bounds__(1024, 1)
    beside(Word* a, i64 a_chunks, i64 a_writes, i64 a_blocks, Word* b, i64 b_chunks, i64 b_writes, i64 first,
           i64 cycles, unsigned* arrived, double* out, unsigned* sink) {
    const bool is_a = (i64)blockIdx.x < a_blocks;
    const u64 block = is_a ? blockIdx.x : blockIdx.x - a_blocks;
    const u64 warps_in_block = blockDim.x / 32;
    const u64 warps = (is_a ? (u64)a_blocks : gridDim.x - (u64)a_blocks) * warps_in_block;
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (*(volatile unsigned*)arrived < gridDim.x) {}
    }
    __syncthreads();
    const u64 begin_ns = nanoseconds();
    const i64 begin = clock64();
    const double rate = until(is_a ? a : b, is_a ? a_chunks : b_chunks, (int)(is_a ? a_writes : b_writes),
                              block * warps_in_block + threadIdx.x / 32, warps, (u64)first, begin, cycles, sink);
    if (threadIdx.x % 32 == 0) atomicAdd(&out[is_a ? 0 : 1], rate);
    if (blockIdx.x == 0 && threadIdx.x == 0) out[2] = (double)(clock64() - begin) / (double)(nanoseconds() - begin_ns);
}
