// The engine's plainest case as one loop in C++: one block, rows of one region in one tier, a window of
// outstanding tiles of rows that retire in any order (a heap of requests) or in order (a ring). Same rules, same
// integers: it prints the end of the kernel and the digest of all completions, which the benchmark compares.
// Every parameter is read at run time.
//
// usage: engine ROWS ROW_BYTES TILES TILE_ROWS CHANNELS MBPS INTERLEAVE UNIT LATENCY_PS STRIDE START_PS REPEATS
//        IN_ORDER (0, 1, or 2 for the bare bookings)
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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

    i64 channel_of(i64 offset) const {  // lanes are dealt in turns that begin at any channel
        i64 lane = offset / interleave, turn = lane / channels;
        std::uint64_t x = (turn ^ turn >> 32) & 0xFFFFFFFF;
        x = (x ^ x >> 16) * 0x21F0AAAD & 0xFFFFFFFF;
        x = (x ^ x >> 15) * 0x735A2D97 & 0xFFFFFFFF;
        i64 channel = lane - turn * channels + i64((x ^ x >> 15) * std::uint64_t(channels) >> 32);
        return channel - (channel >= channels ? channels : 0);
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

static double cpu_s() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

struct Work {
    i64 rows, row_bytes, tiles, tile_rows, stride, start_ps;
};

struct Counts {
    std::vector<i64> histogram = std::vector<i64>(496);
    i64 digest = 0, end_ps = 0;

    void add(const Work& work, i64 number, i64 issue_ps, i64 done_ps) {
        histogram[bucket(done_ps - issue_ps)]++;
        i64 x = ((done_ps - work.start_ps) % PRIME * 1000003 + number % PRIME * 524287) % PRIME;
        digest = (digest + x * x % PRIME) % PRIME;
    }
};

static void in_order(Machine& machine, const Work& work, Counts& counts) {
    std::vector<i64> ends(work.tiles);  // of the tiles that are out
    i64 now_ps = work.start_ps, row = 0;
    for (i64 next = 0, place = 0; next < work.rows; place = place + 1 == work.tiles ? 0 : place + 1) {
        now_ps = std::max(now_ps, ends[place]);
        for (i64 last = std::min(work.rows, next + work.tile_rows); next < last; next++) {
            i64 done_ps = machine.serve(row * work.row_bytes, work.row_bytes, now_ps);
            counts.add(work, next, now_ps, done_ps);
            counts.end_ps = std::max(counts.end_ps, done_ps);
            row += work.stride;
            if (row >= work.rows) row -= work.rows;
        }
        ends[place] = counts.end_ps;
    }
}

static void in_any_order(Machine& machine, const Work& work, Counts& counts) {
    std::vector<i64> left(work.rows / work.tile_rows + 1);  // of each tile, rows that are out
    i64 out = 0;                                            // tiles that are out
    std::priority_queue<Done> done;
    i64 next = 0, now_ps = work.start_ps;
    while (next < work.rows || !done.empty()) {
        for (; next < work.rows && out < work.tiles; out++) {
            i64 tile = next / work.tile_rows, last = std::min(work.rows, next + work.tile_rows);
            left[tile] = last - next;
            for (; next < last; next++) {
                i64 row = next * work.stride % work.rows;
                done.push({machine.serve(row * work.row_bytes, work.row_bytes, now_ps), next, now_ps});
            }
        }
        now_ps = done.top().time_ps;
        while (!done.empty() && done.top().time_ps == now_ps) {
            Done request = done.top();
            done.pop();
            counts.add(work, request.number, request.issue_ps, now_ps);
            if (--left[request.number / work.tile_rows] == 0) out--;
        }
    }
    counts.end_ps = now_ps;
}

// The least that there is to do in order: whole pieces, their channels known before, booked there and at one more
// station (the cache), and the places of tiles. No digest, no counts, no waiting times.
static void bare(Machine& machine, const Work& work, Counts& counts) {
    std::vector<i64> ends(work.tiles), channels(4096);
    for (i64 i = 0; i < i64(channels.size()); i++) channels[i] = machine.channel_of(i * machine.interleave);
    i64 now_ps = work.start_ps, place = 0;
    i64 service_ps = machine.interleave * 1000000 / machine.mbps, rest = machine.interleave * 1000000 % machine.mbps;
    auto book = [&](Channel& station, i64 ps) {
        if (now_ps >= station.free_ps()) station = {now_ps, 0};
        i64 left = station.rest + rest, carry = left >= machine.mbps;
        station = {station.whole_ps + ps + carry, left - carry * machine.mbps};
        return station.free_ps();
    };
    Channel cache;
    for (i64 i = 0; i < work.rows; i++) {
        now_ps = std::max(now_ps, ends[place]);
        i64 end_ps = book(machine.servers[channels[i & 4095]], service_ps);
        end_ps = std::max(end_ps, book(cache, service_ps / 1024));
        counts.end_ps = std::max(counts.end_ps, end_ps + machine.latency_ps);
        ends[place] = counts.end_ps;
        place = place + 1 == work.tiles ? 0 : place + 1;
    }
}

int main(int argc, char** argv) {
    if (argc != 14) return 2;
    i64 p[13];
    for (int i = 0; i < 13; i++) p[i] = std::atoll(argv[i + 1]);
    Work work{p[0], p[1], p[2], p[3], p[9], p[10]};
    double best_s = 1e9;
    Counts counts;
    for (i64 repeat = 0; repeat < p[11]; repeat++) {
        double begin_s = cpu_s();
        Machine machine{p[4], p[5], p[6], p[7], p[8], std::vector<Channel>(p[4])};
        counts = Counts();
        (p[12] == 2 ? bare : p[12] ? in_order : in_any_order)(machine, work, counts);
        best_s = std::min(best_s, cpu_s() - begin_s);
    }
    std::printf("%lld %lld %.9f\n", (long long)counts.end_ps, (long long)counts.digest, best_s);
}
