// The engine's plainest case as one loop in C++: one block, rows of one region in one tier, a window of
// outstanding tiles of rows that retire in any order. Same rules, same integers: it prints the end of the kernel and
// the digest of all completions, which the benchmark compares. Every parameter is read at run time.
//
// usage: engine ROWS ROW_BYTES TILES TILE_ROWS CHANNELS MBPS INTERLEAVE UNIT LATENCY_PS STRIDE START_PS REPEATS
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <queue>
#include <vector>

using i64 = std::int64_t;
constexpr i64 PRIME = 2147483647;

struct Done {
    i64 time_ps, number, issue_ps;
    bool operator<(const Done& other) const {  // priority_queue gives the largest first
        return time_ps != other.time_ps ? time_ps > other.time_ps : number > other.number;
    }
};

struct Channel {
    i64 whole_ps = 0, rest = 0;
    i64 free_ps() const { return whole_ps + (rest > 0); }
};

struct Machine {
    i64 channels, mbps, interleave, unit, latency_ps;
    std::vector<Channel> servers;
    i64 waiting_ps = 0, moved = 0;

    i64 channel_of(i64 offset) const {
        std::uint64_t lane = offset / interleave, x = (lane ^ lane >> 32) & 0xFFFFFFFF;
        x = (x ^ x >> 16) * 0x21F0AAAD & 0xFFFFFFFF;
        x = (x ^ x >> 15) * 0x735A2D97 & 0xFFFFFFFF;
        x ^= x >> 15;
        return i64(x * channels >> 32);
    }

    i64 serve(i64 offset, i64 left, i64 now_ps) {
        i64 end_ps = now_ps;
        while (left > 0) {
            i64 nbytes = std::min(left, interleave - offset % interleave);
            i64 work = ((offset + nbytes + unit - 1) / unit - offset / unit) * unit;
            Channel& channel = servers[channel_of(offset)];
            waiting_ps += std::max<i64>(0, channel.free_ps() - now_ps);
            if (now_ps >= channel.free_ps()) channel = {now_ps, 0};
            i64 total = work * 1000000 + channel.rest;
            channel.whole_ps += total / mbps;
            channel.rest = total % mbps;
            end_ps = std::max(end_ps, channel.free_ps());
            moved += work;
            offset += nbytes;
            left -= nbytes;
        }
        return end_ps + latency_ps;
    }
};

static int bucket(i64 ps) {
    if (ps < 16) return int(ps);
    int octave = 63 - __builtin_clzll(std::uint64_t(ps));
    return 16 + (octave - 4) * 8 + int((ps >> (octave - 3)) & 7);
}

int main(int argc, char** argv) {
    if (argc != 13) return 2;
    i64 p[12];
    for (int i = 0; i < 12; i++) p[i] = std::atoll(argv[i + 1]);
    i64 rows = p[0], row_bytes = p[1], tiles = p[2], tile_rows = p[3];
    i64 stride = p[9], start_ps = p[10], repeats = p[11];
    double best_s = 1e9;
    i64 digest = 0, end_ps = 0;
    for (i64 repeat = 0; repeat < repeats; repeat++) {
        auto begin = std::chrono::steady_clock::now();
        Machine machine{p[4], p[5], p[6], p[7], p[8], std::vector<Channel>(p[4])};
        std::vector<i64> left(rows / tile_rows + 1);  // of each tile, rows that are out
        i64 out = 0;                                  // tiles that are out
        std::vector<i64> histogram(496);
        std::priority_queue<Done> done;
        i64 next = 0, now_ps = start_ps;
        digest = 0;
        while (next < rows || !done.empty()) {
            for (; next < rows && out < tiles; out++) {
                i64 tile = next / tile_rows, last = std::min(rows, next + tile_rows);
                left[tile] = last - next;
                for (; next < last; next++) {
                    i64 row = next * stride % rows;
                    done.push({machine.serve(row * row_bytes, row_bytes, now_ps), next, now_ps});
                }
            }
            now_ps = done.top().time_ps;
            while (!done.empty() && done.top().time_ps == now_ps) {
                Done request = done.top();
                done.pop();
                histogram[bucket(now_ps - request.issue_ps)]++;
                i64 x = ((now_ps - start_ps) % PRIME * 1000003 + request.number % PRIME * 524287) % PRIME;
                digest = (digest + x * x % PRIME) % PRIME;
                if (--left[request.number / tile_rows] == 0) out--;
            }
        }
        end_ps = now_ps;
        best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::printf("%lld %lld %.9f\n", (long long)end_ps, (long long)digest, best_s);
}
