// The event loop as one in C++, for kernels that scan: a block on each unit reads rows one after another, tile
// by tile, beside the initiator through its cache, or from a tier behind a link with headers and tags. Same
// rules, same order inside an instant, same structures (a wheel of buckets for requests, a heap for blocks), same
// integers: it prints its time, then the end and the digest of each kernel, which the benchmark compares. Every
// parameter is read at run time. Pieces of a request are booked one by one. Left out: writes, arithmetic, hits,
// look-ups, queues of tiers, distances of channels, bytes of a unit that run short.
//
// usage: events REPEATS SHIFT CACHE_MBPS, of the link MBPS LATENCY_PS PACKET HEADER TAGS; of each of two tiers
//        CHANNELS MBPS INTERLEAVE UNIT LATENCY_PS LARGEST LINKED; the number of kernels; of each BLOCKS
//        ROWS_OF_BLOCK ROW_BYTES TILE_ROWS TILES TIER START_PS BEGIN_PS
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <queue>
#include <tuple>
#include <vector>

using i64 = std::int64_t;
using u64 = std::uint64_t;
constexpr i64 PRIME = 2147483647, MILLION = 1000000, BUCKETS = 1 << 14, NEVER_PS = i64(1) << 62;
constexpr int NONE = -1, SETTLED = -1;

struct Server {
    i64 whole_ps = 0, rest = 0;
    i64 free_ps() const { return whole_ps + (rest > 0); }
    i64 book(i64 now_ps, i64 nbytes, i64 mbps) {
        i64 total = nbytes * MILLION, whole = total / mbps;
        return book(now_ps, whole, total - whole * mbps, mbps);
    }
    i64 book(i64 now_ps, i64 service_ps, i64 service_rest, i64 mbps) {
        bool idle = now_ps >= free_ps();
        i64 begin_ps = idle ? now_ps : whole_ps, left = (idle ? 0 : rest) + service_rest;
        i64 carry = left >= mbps;
        rest = left - carry * mbps;
        whole_ps = begin_ps + service_ps + carry;
        return free_ps();
    }
};

struct Tier {
    i64 channels, mbps, interleave, unit, latency_ps, largest, linked;
    i64 piece_ps, piece_rest;
    std::vector<Server> servers;
};

struct Link {
    i64 mbps, latency_ps, packet, header, tags;
    Server out, in;
    i64 free;
    int head = NONE, tail = NONE;
};

struct Kernel {
    i64 blocks, rows, row_bytes, tile_rows, tiles, tier, start_ps, begin_ps;
    i64 first_block, digest = 0, end_ps = 0;
};

struct Slot {  // a block
    int kernel;
    i64 row = 0, row_end = 0, offset = 0, left = 0, number = 0, opened = 0, worked = 0, outstanding = 0;
    bool open = false, waits = false;
    std::vector<i64> tile_left;
};

struct Request {
    i64 due, block, number, offset, nbytes, moved, issue_ps;
    int slot, tile, step, earlier, later;
    bool paid, holds;
};

struct Counts {
    std::vector<i64> histogram = std::vector<i64>(3 * 496), waiting_ps = std::vector<i64>(4);
    std::vector<i64> moved = std::vector<i64>(16);
    i64 wire_out = 0, wire_in = 0, requests = 0;
};

static int bucket(i64 ps) {
    if (ps < 16) return int(ps);
    int octave = 63 - __builtin_clzll(u64(ps));
    return 16 + (octave - 4) * 8 + int((ps >> (octave - 3)) & 7);
}

static i64 first_channel(i64 turn, i64 channels) {
    u64 x = u64(turn ^ turn >> 32) & 0xFFFFFFFF;
    x = (x ^ x >> 16) * 0x21F0AAAD & 0xFFFFFFFF;
    x = (x ^ x >> 15) * 0x735A2D97 & 0xFFFFFFFF;
    return i64((x ^ x >> 15) * u64(channels) >> 32);
}

static i64 rounded(i64 offset, i64 nbytes, i64 unit) {
    return ((offset + nbytes + unit - 1) & -unit) - (offset & -unit);
}

using Turn = std::tuple<i64, i64, i64, int>;  // of a block: when, its number, that of its next request, its slot

struct Machine {
    Server cache;
    i64 cache_mbps, shift;
    Link link;
    std::array<Tier, 2> tiers;
    std::vector<Kernel> kernels;
    std::vector<Slot> slots;
    std::vector<Request> requests;
    std::vector<int> unused;
    std::array<std::array<int, 2>, BUCKETS> wheel;
    i64 on_wheel = 0, first_bucket = 0, last_bucket = 0;
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> blocks;
    Counts counts;

    bool is_earlier(const Request& a, const Request& b) const {
        if (a.due != b.due) return a.due < b.due;
        return a.block != b.block ? a.block < b.block : a.number < b.number;
    }

    void schedule(int request, i64 due) {
        requests[request].due = due;
        i64 at = due >> (shift + 1);
        if (on_wheel++ == 0) first_bucket = last_bucket = at;
        first_bucket = std::min(first_bucket, at);
        last_bucket = std::max(last_bucket, at);
        if (last_bucket - first_bucket >= BUCKETS) std::exit(3);
        auto& list = wheel[at & (BUCKETS - 1)];
        int earlier = list[1], later = NONE;
        while (earlier != NONE && is_earlier(requests[request], requests[earlier])) {
            later = earlier;
            earlier = requests[earlier].earlier;
        }
        requests[request].earlier = earlier;
        requests[request].later = later;
        (earlier == NONE ? list[0] : requests[earlier].later) = request;
        (later == NONE ? list[1] : requests[later].earlier) = request;
    }

    int first_on_wheel() {
        while (wheel[first_bucket & (BUCKETS - 1)][0] == NONE) first_bucket++;
        return wheel[first_bucket & (BUCKETS - 1)][0];
    }

    void take_off(int request) {
        auto& list = wheel[first_bucket & (BUCKETS - 1)];
        list[0] = requests[request].later;
        (list[0] == NONE ? list[1] : requests[list[0]].earlier) = NONE;
        on_wheel--;
    }

    Tier& tier_of(const Request& r) { return tiers[kernels[slots[r.slot].kernel].tier]; }

    bool pay(int request, i64 now_ps) {
        Request& r = requests[request];
        if (r.paid) {
            r.paid = false;
            return true;
        }
        if (link.head == NONE && link.free >= tags(r)) {
            link.free -= tags(r);
            return true;
        }
        r.due = now_ps;
        r.later = NONE;
        (link.head == NONE ? link.head : requests[link.tail].later) = request;
        link.tail = request;
        return false;
    }

    i64 packets(const Request& r) const { return (r.moved + link.packet - 1) / link.packet; }

    i64 tags(const Request& r) const { return std::min(packets(r), link.tags); }

    void give_tags_back(const Request& r, i64 now_ps) {
        link.free += tags(r);
        while (link.head != NONE && tags(requests[link.head]) <= link.free) {
            int waiting = link.head;
            link.free -= tags(requests[waiting]);
            link.head = requests[waiting].later;
            requests[waiting].paid = true;
            counts.waiting_ps[3] += now_ps - requests[waiting].due;
            schedule(waiting, 2 * now_ps + 1);
        }
    }

    i64 cross(Server& way, i64 nbytes, i64 now_ps) {
        counts.waiting_ps[2] += std::max<i64>(0, way.free_ps() - now_ps);
        return way.book(now_ps, nbytes, link.mbps) + link.latency_ps;
    }

    i64 book_pieces(Tier& tier, const Request& r, i64 now_ps) {
        i64 offset = r.offset, left = r.nbytes, lane = offset / tier.interleave, end_ps = now_ps, waited_ps = 0;
        i64 place = lane % tier.channels, channel = place + first_channel(lane / tier.channels, tier.channels);
        if (channel >= tier.channels) channel -= tier.channels;
        while (left > 0) {
            i64 nbytes = std::min(left, tier.interleave - (offset & (tier.interleave - 1)));
            i64 service_ps = tier.piece_ps, rest = tier.piece_rest;
            if (nbytes < tier.interleave) {
                i64 total = rounded(offset, nbytes, tier.unit) * MILLION;
                service_ps = total / tier.mbps;
                rest = total - service_ps * tier.mbps;
            }
            Server& server = tier.servers[channel];
            waited_ps += std::max<i64>(0, server.free_ps() - now_ps);
            end_ps = std::max(end_ps, server.book(now_ps, service_ps, rest, tier.mbps));
            if (++place == tier.channels) {
                place = 0;
                channel = first_channel((lane + 1) / tier.channels, tier.channels);
            } else if (++channel == tier.channels) {
                channel = 0;
            }
            lane++;
            offset += nbytes;
            left -= nbytes;
        }
        counts.waiting_ps[&tier - tiers.data()] += waited_ps;
        return end_ps;
    }

    void travel(int request, i64 now_ps) {
        Request& r = requests[request];
        Tier& tier = tier_of(r);
        i64 parts = packets(r), due;
        if (tier.linked && r.step == 0) {
            if (!pay(request, now_ps)) return;
            counts.wire_out += parts * link.header;
            i64 there_ps = now_ps + link.latency_ps;
            if (link.header) there_ps = cross(link.out, parts * link.header, now_ps);
            due = 2 * there_ps + 1;
        } else if (r.step == tier.linked) {
            i64 served_ps = book_pieces(tier, r, now_ps) + tier.latency_ps;
            if (!tier.linked) {
                served_ps = std::max(served_ps, cache.book(now_ps, r.moved, cache_mbps) + tier.latency_ps);
            }
            due = 2 * served_ps + tier.linked;
        } else {
            r.holds = true;
            counts.wire_in += parts * link.header + r.moved;
            due = 2 * cross(link.in, parts * link.header + r.moved, now_ps);
        }
        r.step = r.step == 2 * tier.linked ? SETTLED : r.step + 1;
        if (r.step == SETTLED) settle(r, due >> 1);
        schedule(request, due);
    }

    void settle(const Request& r, i64 done_ps) {
        Kernel& kernel = kernels[slots[r.slot].kernel];
        counts.histogram[kernel.tier * 496 + bucket(done_ps - r.issue_ps)]++;
        i64 block = r.block - kernel.first_block;
        i64 elapsed_ps = (done_ps - kernel.start_ps) % PRIME;
        i64 x = (elapsed_ps * 1000003 + block % PRIME * 8191 + r.number % PRIME * 524287) % PRIME;
        kernel.digest = (kernel.digest + x * x % PRIME) % PRIME;
    }

    void give_back(int request, i64 now_ps) {
        Request& r = requests[request];
        if (r.holds) give_tags_back(r, now_ps);
        Slot& slot = slots[r.slot];
        Kernel& kernel = kernels[slot.kernel];
        unused.push_back(request);
        if (--slot.tile_left[r.tile]) return;
        while (slot.worked < slot.opened && slot.tile_left[slot.worked % kernel.tiles] == 0) {
            slot.worked++;
            slot.outstanding--;
            kernel.end_ps = now_ps;
            if (slot.waits) {
                slot.waits = false;
                blocks.push({now_ps, r.block, slot.number, r.slot});
            }
        }
    }

    void issue(int number, i64 now_ps) {  // all that a block may ask for now
        Slot& slot = slots[number];
        const Kernel& kernel = kernels[slot.kernel];
        while (true) {
            if (!slot.open) {
                if (slot.row == kernel.rows) return;
                if (slot.outstanding == kernel.tiles) {
                    slot.waits = true;
                    return;
                }
                slot.row_end = std::min(kernel.rows, slot.row + kernel.tile_rows);
                slot.offset = ((number - kernel.first_block) * kernel.rows + slot.row) * kernel.row_bytes;
                slot.left = (slot.row_end - slot.row) * kernel.row_bytes;
                slot.tile_left[slot.opened++ % kernel.tiles] = 1;
                slot.outstanding++;
                slot.open = true;
            } else if (slot.left > 0) {
                depart(number, now_ps);
            } else {
                slot.tile_left[(slot.opened - 1) % kernel.tiles]--;
                slot.row = slot.row_end;
                slot.open = false;
            }
        }
    }

    void depart(int number, i64 now_ps) {
        Slot& slot = slots[number];
        const Kernel& kernel = kernels[slot.kernel];
        const Tier& tier = tiers[kernel.tier];
        i64 nbytes = slot.left <= tier.largest ? slot.left : tier.largest - slot.offset % tier.largest;
        int request = unused.empty() ? int(requests.size()) : unused.back();
        if (unused.empty()) requests.emplace_back();
        else unused.pop_back();
        int tile = int((slot.opened - 1) % kernel.tiles);
        i64 moved = rounded(slot.offset, nbytes, tier.unit);
        i64 mine = slot.number++;
        requests[request] = {0, number, mine, slot.offset, nbytes, moved, now_ps, number, tile, 0, NONE, NONE, false, false};
        slot.tile_left[tile]++;
        slot.offset += nbytes;
        slot.left -= nbytes;
        counts.requests++;
        counts.moved[kernel.tier] += moved;
        counts.moved[4 + slot.kernel] += nbytes;
        travel(request, now_ps);
    }

    void run() {
        for (auto& list : wheel) list = {NONE, NONE};
        while (on_wheel || !blocks.empty()) {
            i64 now_ps = on_wheel ? requests[first_on_wheel()].due >> 1 : NEVER_PS;
            if (!blocks.empty()) now_ps = std::min(now_ps, std::get<0>(blocks.top()));
            for (int request; on_wheel && requests[request = first_on_wheel()].due == 2 * now_ps;) {
                take_off(request);
                give_back(request, now_ps);
            }
            while (true) {  // by block and number: those of requests and of blocks
                int request = on_wheel ? first_on_wheel() : NONE;
                if (request != NONE && requests[request].due != 2 * now_ps + 1) request = NONE;
                bool block = !blocks.empty() && std::get<0>(blocks.top()) == now_ps;
                if (block && request != NONE) {
                    auto [when, major, minor, slot] = blocks.top();
                    const Request& r = requests[request];
                    block = major != r.block ? major < r.block : minor < r.number;
                }
                if (block) {
                    int slot = std::get<3>(blocks.top());
                    blocks.pop();
                    issue(slot, now_ps);
                } else if (request != NONE) {
                    take_off(request);
                    travel(request, now_ps);
                } else {
                    break;
                }
            }
        }
    }
};

static double cpu_s() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static Machine read(char** argv) {
    auto next = [&argv] { return i64(std::atoll(*argv++)); };
    Machine m;
    m.shift = next();
    m.cache_mbps = next();
    m.link = {next(), next(), next(), next(), next()};
    m.link.free = m.link.tags;
    for (Tier& tier : m.tiers) {
        tier = {next(), next(), next(), next(), next(), next(), next()};
        i64 total = tier.interleave * MILLION;
        tier.piece_ps = total / tier.mbps;
        tier.piece_rest = total % tier.mbps;
        tier.servers.resize(tier.channels);
    }
    m.kernels.resize(next());
    for (Kernel& kernel : m.kernels) {
        kernel = {next(), next(), next(), next(), next(), next(), next(), next(), i64(m.slots.size())};
        for (i64 block = 0; block < kernel.blocks; block++) {
            Slot slot{int(&kernel - m.kernels.data())};
            slot.tile_left.resize(kernel.tiles);
            m.blocks.push({kernel.begin_ps, i64(m.slots.size()), 0, int(m.slots.size())});
            m.slots.push_back(slot);
        }
    }
    return m;
}

int main(int argc, char** argv) {
    if (argc < 24) return 2;
    double best_s = 1e9;
    static Machine machine;
    for (i64 repeat = 0; repeat < std::atoll(argv[1]); repeat++) {
        machine = read(argv + 2);
        double begin_s = cpu_s();
        machine.run();
        best_s = std::min(best_s, cpu_s() - begin_s);
    }
    std::printf("%.9f", best_s);
    for (const Kernel& kernel : machine.kernels) {
        std::printf(" %lld %lld", (long long)kernel.end_ps, (long long)kernel.digest);
    }
    std::printf("\n");
}
