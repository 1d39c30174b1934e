"""The replay model of docs/model.md as simpy processes: written to be read, slow, and the proof.

It replays the whole trace in one run, every kernel of it, and shares with the fast engine only what
does not wait. Use it for traces of up to 10^5 requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np
import simpy

from memsim import lanes, rules
from memsim.limits import check_times
from memsim.options import ReplayOptions
from memsim.program import UNIT_SHARES, Plan, Program, build_program, home_of
from memsim.progress import Progress
from memsim.reference_parts import Block, Machine, Pool, Request, Tile, count_waiting, direction
from memsim.result import Outcome, empty_outcome
from memsim.rules import Memory
from memsim.segments import split
from memsim.system import Hop, System, Walk
from memsim.trace import Trace

RETURN, WORKED, BLOCK_END, START, PLACE, ISSUE = range(6)  # phases of an instant

Steps = Generator[simpy.Event, object, None]


class Replay:
    """One run: processes for launches, blocks and requests on one clock."""

    def __init__(
        self, system: System, program: Program, memory: Memory, options: ReplayOptions, regions: int
    ):
        self.env = simpy.Environment()
        self.system, self.program, self.memory = system, program, memory
        self.options = options
        self.machine = Machine(self.env, system)
        kernels = len(program.launch_ps)
        self.out = empty_outcome(kernels, regions, len(system.tiers), len(system.links))
        self.out.initiator[:] = program.initiator
        self.ended = [self.env.event() for _ in range(kernels)]
        self.blocks_left = np.diff(program.block_at).tolist()
        self.next_block = program.block_at[:-1].tolist()
        self.started = 0
        self.begun_ps = [0] * len(system.initiators)  # their latest blocks
        self.room = [[UNIT_SHARES] * initiator.units for initiator in system.initiators]
        self.placing = False
        self.on_end: Callable[[int], None] = lambda _: None

    def at(self, delay_ps: int, phase: int, major: int = 0, minor: int = 0) -> simpy.Event:
        """The one way to let time pass: an event in `phase` of a later instant, ordered by its key.

        simpy's own events have priorities 0 and 1 and so come at once.
        """
        event = self.env.event()
        event._ok, event._value = True, None
        priority = 2 + (phase << 90) + (int(major) << 45) + int(minor)
        self.env.schedule(event, priority, int(delay_ps))  # type: ignore[arg-type]
        return event

    @property
    def now_ps(self) -> int:
        """The clock."""
        return int(self.env.now)

    # Kernels and blocks

    def launch(self) -> Steps:
        """Launch the kernels in file order."""
        program = self.program
        for kernel in range(len(program.launch_ps)):
            for i in range(program.wait_at[kernel], program.wait_at[kernel + 1]):
                yield self.ended[program.wait_for[i]]
            self.out.ready_ps[kernel] = self.now_ps
            if not any(self.blocks_left[:kernel]):
                self.machine.forget(self.now_ps)
            yield self.at(program.launch_ps[kernel], START, kernel)
            self.out.start_ps[kernel] = self.now_ps
            self.started = kernel + 1
            self.place_soon()

    def place_soon(self) -> None:
        """Place waiting blocks in this instant, after all that makes room in it."""
        if not self.placing:
            self.placing = True
            event = self.at(0, PLACE)
            assert event.callbacks is not None
            event.callbacks.append(lambda _: self.place())

    def place(self) -> None:
        """Give waiting blocks of started kernels to the units of their initiators with the most room."""
        self.placing = False
        for kernel in range(self.started):
            share = int(self.program.unit_shares[kernel])
            initiator = int(self.program.initiator[kernel])
            room = self.room[initiator]
            while self.next_block[kernel] < self.program.block_at[kernel + 1]:
                unit = room.index(max(room))
                if room[unit] < share:
                    break
                room[unit] -= share
                block = Block(kernel, self.next_block[kernel], initiator, unit, self.env.event())
                self.env.process(self.live(block, self.dispatch_ps(block)))
                self.next_block[kernel] += 1

    def dispatch_ps(self, block: Block) -> int:
        """Time until a block begins: those of an initiator begin one after another."""
        free_ps = max(self.now_ps, self.begun_ps[block.initiator])
        self.begun_ps[block.initiator] = free_ps + int(self.program.dispatch_ps[block.kernel])
        return self.begun_ps[block.initiator] - self.now_ps

    def live(self, block: Block, dispatch_ps: int) -> Steps:
        """A block's life: dispatch, start-up, tiles, drain."""
        program, kernel, born_ps = self.program, block.kernel, self.now_ps
        if program.op_at[block.block] == program.op_at[block.block + 1]:
            yield self.at(dispatch_ps + max(1, int(program.idle_ps[kernel])), BLOCK_END, block.block)
            assert self.now_ps > born_ps
        else:
            yield self.at(dispatch_ps + int(program.startup_ps[kernel]), ISSUE, block.block)
            yield from self.ask_for_all(block)
            yield block.emptied
            yield self.at(program.drain_ps[kernel], BLOCK_END, block.block)
        self.end_block(block)

    def end_block(self, block: Block) -> None:
        """Free the block's place; the last one ends its kernel."""
        self.room[block.initiator][block.unit] += int(self.program.unit_shares[block.kernel])
        self.place_soon()
        self.blocks_left[block.kernel] -= 1
        if self.blocks_left[block.kernel] == 0:
            self.out.end_ps[block.kernel] = self.now_ps
            self.ended[block.kernel].succeed()
            self.on_end(block.kernel)

    # Tiles

    def tiles(self, block: Block) -> Iterator[Tile]:
        """The tiles of a block's program, in order."""
        number = 0
        ops = self.program.ops
        for op in range(self.program.op_at[block.block], self.program.op_at[block.block + 1]):
            rows = int(ops.table[op, rules.ROWS])
            tile_rows = int(ops.table[op, rules.TILE_ROWS])
            for begin in range(0, rows, tile_rows):
                end = min(rows, begin + tile_rows)
                yield Tile(number, op, begin, end, begin == 0)
                number += 1

    def ask_for_all(self, block: Block) -> Steps:
        """Issue all requests of a block, waiting for its window and for its unit's bytes."""
        for tile in self.tiles(block):
            block.next_tile = tile
            if not self.may_ask(block):
                block.wake = self.env.event()
                yield block.wake
                yield self.at(0, ISSUE, block.block, block.requests)
            block.outstanding += 1
            block.reading += self.reads(tile)
            block.in_line.append(tile)
            if tile.first_of_op:
                block.of_op = 0
            for request in self.cut(block, tile):
                withheld = int(self.program.withheld[block.kernel])
                yield from self.take(self.unit_pool(block), request.nbytes, request, withheld)
                self.issue(request)
            tile.asked = True
        block.asked = True

    def may_ask(self, block: Block) -> bool:
        """Whether the block may ask for its next tile."""
        tile = block.next_tile
        assert tile is not None
        if tile.first_of_op and self.program.ops.table[tile.op, rules.IS_DEPENDENT]:
            awaited = block.reading if self.program.ops.table[tile.op, rules.IS_WRITE] else block.outstanding
            if awaited:
                return False
        return block.outstanding < int(self.program.tiles[block.kernel])

    def reads(self, tile: Tile) -> int:
        """1 for a tile of what is read, else 0."""
        return int(not self.program.ops.table[tile.op, rules.IS_WRITE])

    def cut(self, block: Block, tile: Tile) -> Iterator[Request]:
        """The requests of a tile."""
        ops = self.program.ops
        write = bool(ops.table[tile.op, rules.IS_WRITE])
        index, second = tile.begin, 0
        while index < tile.end:
            tier, offset, span, index, second = (
                int(x) for x in rules.next_span(ops, self.memory, tile.op, index, tile.end, second)
            )
            if ops.table[tile.op, rules.IS_HIT]:
                tier = self.machine.cache
            transfer, left = self.machine.moved_bytes(tier, offset, span), span
            largest = self.largest_request(block, tier, write)
            while left > 0:
                nbytes = int(rules.request_bytes(offset, left, largest))
                place, pushes = self.draw_place(block, tile, tier, write)
                moved = self.machine.moved_bytes(place, offset, nbytes)
                yield Request(
                    block, tile, block.requests, place, offset, nbytes, moved, transfer, write, pushes,
                    home=tier, walks=self.draw_walks(block, tile, tier),
                )  # fmt: skip
                offset += nbytes
                left -= nbytes

    def draw_place(self, block: Block, tile: Tile, tier: int, write: bool) -> tuple[int, int]:
        """Where a block's next request goes, and the tier that it pushes lines out to, or -1."""
        if not self.machine.is_cached(block.initiator, tier):
            return tier, -1
        shares = self.program.ops.table[tile.op, rules.HIT_PPM : rules.DIRTY_PPM + 1].tolist()
        hit, pushes = rules.draw_cached(*self.place_in_op(block, tile), *shares)
        return self.machine.cache if hit or write else tier, tier if pushes else -1

    def draw_walks(self, block: Block, tile: Tile, tier: int) -> tuple[Walk, ...]:
        """The levels of translation that a block's next request misses."""
        if block.initiator > 0 or tier == self.machine.cache:
            return ()
        shares = self.program.ops.table[tile.op, rules.WALK_PPM : rules.WALK_AGAIN_PPM + 1].tolist()
        walks = int(rules.draw_walks(*self.place_in_op(block, tile), *shares))
        return self.system.tiers[tier].translation[:walks]

    def place_in_op(self, block: Block, tile: Tile) -> tuple[int, int, int]:
        """What the next request is drawn by: its block in the kernel, its op in that, itself in this."""
        return self.number_in_kernel(block), tile.op - int(self.program.op_at[block.block]), block.of_op

    def largest_request(self, block: Block, tier: int, write: bool) -> int:
        """Bytes of the largest request of a block to a tier or the cache."""
        quantum_bytes = self.options.quantum_bytes
        if tier == self.machine.cache:
            return quantum_bytes
        return self.system.largest_request(block.initiator, tier, write, quantum_bytes)

    def arrive(self, block: Block, tile: Tile) -> None:
        """A tile has arrived: work it, in order if the kernel says so."""
        if not self.program.in_order[block.kernel]:
            block.in_line.remove(tile)
            self.work(block, tile)
            return
        while block.in_line and block.in_line[0].asked and block.in_line[0].left == 0:
            self.work(block, block.in_line.popleft())

    def work(self, block: Block, tile: Tile) -> None:
        """A tile's arithmetic begins, if it has any."""
        if self.program.flops[block.kernel] and self.program.ops.table[tile.op, rules.IS_WORKED]:
            self.take_turn(block, tile, int(self.program.turns[block.kernel]) - 1)
        else:
            self.settle(block, tile, self.now_ps)

    def take_turn(self, block: Block, tile: Tile, left: int) -> None:
        """Book a turn of a tile's arithmetic at its unit; left: turns after it."""
        program, kernel = self.program, block.kernel
        flops = rules.turn_flops(int(program.flops[kernel]), int(program.turns[kernel]), left)
        unit = self.machine.arithmetic[block.initiator][block.unit]
        end_ps = unit.book(self.now_ps, int(flops), int(program.mflops[kernel]))
        if left:
            self.env.process(self.finish_work(block, tile, end_ps, left))
        else:
            self.settle(block, tile, end_ps + int(program.work_ps[kernel]))

    def settle(self, block: Block, tile: Tile, end_ps: int) -> None:
        """A tile's arithmetic ends at end_ps; the tile now if that is now and it waits for none before it."""
        program, kernel = self.program, block.kernel
        fixed_ps = int(program.ops.table[tile.op, rules.IS_WORKED]) * int(program.tile_ps[kernel])
        if program.in_order[kernel] or fixed_ps:
            end_ps = block.worked_ps = max(end_ps, block.worked_ps) + fixed_ps
        if end_ps == self.now_ps:
            self.end_tile(block, tile)
        else:
            self.env.process(self.finish_work(block, tile, end_ps))

    def finish_work(self, block: Block, tile: Tile, end_ps: int, left: int = 0) -> Steps:
        """Let a tile's arithmetic end, or a turn of it; left: turns after it."""
        yield self.at(end_ps - self.now_ps, WORKED, block.block, tile.number)
        if left:
            self.take_turn(block, tile, left - 1)
        else:
            self.end_tile(block, tile)

    def end_tile(self, block: Block, tile: Tile) -> None:
        """A tile is no longer outstanding."""
        block.outstanding -= 1
        block.reading -= self.reads(tile)
        if block.wake is not None:
            if self.may_ask(block):
                wake, block.wake = block.wake, None
                wake.succeed()
        elif block.asked and block.outstanding == 0:
            block.emptied.succeed()

    # Requests

    def issue(self, request: Request) -> None:
        """A request is issued: it travels, and its block goes on."""
        request.issue_ps = self.now_ps
        request.block.requests += 1
        request.block.of_op += 1
        request.tile.left += 1
        self.count(request)
        self.env.process(self.travel(request))

    def travel(self, request: Request) -> Steps:
        """Out over the hops of its route, to the tier or the cache, and back."""
        hops = self.machine.route(request)
        if not hops:
            self.pass_port(request)
        if request.walks:
            yield self.at(self.walk(request), ISSUE, *request.key)
        elif not hops and not request.write:
            stored_ps = self.machine.ports[request.block.initiator][request.block.unit][1].free_ps
            if stored_ps > self.now_ps:
                yield self.at(stored_ps - self.now_ps, ISSUE, *request.key)
        for hop in hops:
            pool, credits = self.machine.credits(request, hop)
            if pool is not None:
                yield from self.take(pool, credits, request)
            yield self.at(self.cross(request, hop, outward=True), ISSUE, *request.key)
        if request.tier == self.machine.cache:
            yield self.at(self.hit(request), RETURN, *request.key)
        else:
            yield from self.visit(request)
        for hop in reversed(hops):
            yield self.at(0, ISSUE, *request.key)
            yield self.at(self.cross(request, hop, outward=False), RETURN, *request.key)
            pool, credits = self.machine.credits(request, hop)
            if pool is not None:
                pool.give_back(credits)
        self.complete(request)

    def pass_port(self, request: Request) -> None:
        """Book the port of a request's unit, which it comes back through (a read) or goes out through."""
        block, write = request.block, int(request.write)
        rate = self.system.initiators[block.initiator].port_mbps[write]
        if rate:
            port = self.machine.ports[block.initiator][block.unit][write]
            end_ps = port.book(self.now_ps, request.moved, rate)
            request.passed_ps = end_ps if write else end_ps + self.machine.latency_ps(request)

    def walk(self, request: Request) -> int:
        """Book the walkers that look up a request's page; returns the time until it is found."""
        end_ps = self.now_ps
        for walk, walker in zip(request.walks, self.machine.walkers[request.home], strict=False):
            end_ps = max(end_ps, walker.book(self.now_ps, 0, 1, walk.occupancy_ps))
        return max(1, end_ps - self.now_ps + sum(walk.latency_ps for walk in request.walks))

    def take(self, pool: Pool, credits: int, request: Request, withheld: int = 0) -> Steps:
        """Take credits of a pool for a request, in line where it must."""
        granted = pool.take(credits, withheld)
        if granted is not None:
            yield granted
            yield self.at(0, ISSUE, *request.key)

    def unit_pool(self, block: Block) -> Pool:
        """The bytes that a block's unit may have outstanding."""
        return self.machine.unit_pools[block.initiator][block.unit]

    def cross(self, request: Request, hop: Hop, outward: bool) -> int:
        """Book one direction of a link; returns the time until the request is at its other end."""
        nbytes = self.machine.booked_bytes(request, hop, outward)
        latency_ps = hop.latency_ps
        if not outward:
            latency_ps = self.system.back_ps(request.block.initiator, hop, request.write)
        if nbytes == 0:
            return latency_ps
        way = direction(hop, outward)
        self.out.wire_bytes[hop.link, way] += nbytes
        rate = self.system.links[hop.link].mbps[way]
        end_ps = self.machine.links[hop.link][way].book(self.now_ps, nbytes, rate)
        return end_ps - self.now_ps + latency_ps

    def visit(self, request: Request) -> Steps:
        """A place in the tier's queue for each piece, the pieces' channels, the tier's latency."""
        tier, queue = self.system.tiers[request.tier], self.machine.queues[request.tier]
        places = int(rules.pieces_of(request.offset, request.nbytes, tier.interleave_bytes))
        yield from self.take(queue, places, request)
        end_ps = self.book_pieces(request, request.tier, request.write)
        kernel, block = int(self.program.number[request.block.kernel]), self.number_in_kernel(request.block)
        tail_ps = self.machine.tail_ps(request, self.options.seed, kernel, block)
        load_ps = self.machine.load_ps(request.tier, request.moved, request.write, self.now_ps)
        own_ps = end_ps + self.machine.latency_ps(request) + load_ps + tail_ps
        served_ps = max(request.passed_ps, own_ps, self.pass_cache(request))
        served_ps = max(served_ps, self.push_out(request))
        yield self.at(served_ps - self.now_ps, RETURN, *request.key)
        queue.give_back(places)

    def hit(self, request: Request) -> int:
        """Book the cache; returns the time until the request is complete."""
        cache = self.system.cache
        way = self.machine.cache_ways[request.write]
        end_ps = way.book(self.now_ps, request.nbytes, cache.mbps[request.write])
        away_ps = 0 if request.write else int(lanes.slice_ps(request.offset, cache.spread_ps))
        served_ps = max(request.passed_ps, end_ps + self.machine.latency_ps(request) + away_ps)
        return max(served_ps, self.push_out(request)) - self.now_ps

    def pass_cache(self, request: Request) -> int:
        """Book the cache for a read that misses: its bytes come through; returns when they may be there."""
        if not self.machine.is_cached(request.block.initiator, request.tier):
            return 0
        end_ps = self.machine.cache_ways[0].book(self.now_ps, request.moved, self.system.cache.mbps[0])
        return end_ps + self.machine.latency_ps(request)

    def push_out(self, request: Request) -> int:
        """Write the dirty lines that a request pushes out; returns when their tier has accepted them."""
        if request.pushes < 0:
            return 0
        pushed = self.machine.moved_bytes(request.pushes, request.offset, request.nbytes)
        self.machine.load_ps(request.pushes, pushed, True, self.now_ps)
        return (
            self.book_pieces(request, request.pushes, True) + self.system.tiers[request.pushes].latency_ps[1]
        )

    def book_pieces(self, request: Request, number: int, write: bool) -> int:
        """Book the channels of a request's pieces at a tier; returns when the last one ends."""
        tier = self.system.tiers[number]
        operation = int(rules.operation_bytes(request.transfer, tier.interleave_bytes))
        end_ps = self.now_ps
        for station, nbytes, away_ps in self.machine.pieces(number, request.offset, request.nbytes):
            least_ps = int(rules.least_ps(nbytes, tier.occupancy_ps[write], operation))
            book = station.write if write else station.read
            booked_ps = book(self.now_ps, nbytes, least_ps, tier)
            end_ps = max(end_ps, booked_ps if write else booked_ps + away_ps)
        return end_ps

    def complete(self, request: Request) -> None:
        """A request is complete: count it, return its bytes, see whether its tile has arrived."""
        block, kernel, out = request.block, request.block.kernel, self.out
        out.latency[request.tier, rules.latency_bucket(self.now_ps - request.issue_ps)] += 1
        elapsed_ps = self.now_ps - int(out.start_ps[kernel])
        term = rules.digest_term(self.number_in_kernel(block), request.number, elapsed_ps)
        out.digest[kernel] = (int(out.digest[kernel]) + int(term)) % 2_147_483_647
        held = 2 if request.pushes >= 0 and not request.write else 1
        self.unit_pool(block).give_back(request.nbytes, int(self.program.withheld[kernel]), held)
        request.tile.left -= 1
        if request.tile.asked and request.tile.left == 0:
            self.arrive(block, request.tile)

    def number_in_kernel(self, block: Block) -> int:
        """A block's number among those of its kernel."""
        return block.block - int(self.program.block_at[block.kernel])

    def count(self, request: Request) -> None:
        """Enter a request in the ledger."""
        kernel, tier, write = request.block.kernel, request.tier, int(request.write)
        region = int(self.program.ops.table[request.tile.op, rules.REGION])
        self.out.requests[kernel] += 1
        self.out.issued[region, tier, write] += request.nbytes
        self.out.moved[region, tier, write] += request.moved
        self.out.kernel_moved[kernel, tier, write] += request.moved
        if request.pushes >= 0:
            if not write:  # what it pushes out is outstanding, too
                self.unit_pool(request.block).force(request.nbytes, int(self.program.withheld[kernel]))
            pushed = self.machine.moved_bytes(request.pushes, request.offset, request.nbytes)
            self.out.written_back[request.pushes] += pushed
            self.out.kernel_moved[kernel, request.pushes, 1] += pushed
        for hop in self.machine.route(request):
            place, way = self.machine.cache + 1 + hop.link, direction(hop, outward=request.write)
            self.out.kernel_moved[kernel, place, way] += request.moved


def run(
    trace: Trace,
    system: System,
    memory: Memory,
    options: ReplayOptions,
    progress: Progress | None = None,
    plan: Plan | None = None,
) -> Outcome:
    """Replay a trace. progress(kernels ended, kernels) is called as they end; plan: see build_program."""
    (whole,) = split(trace.kernels(), apart=False, home=lambda kernel: home_of(kernel, options.run_on))
    row_bytes = memory.regions[:, rules.ROW_BYTES]
    program = build_program(
        whole.launches, whole.waits, whole.new_step, system, row_bytes, options.run_on, plan, whole.handed
    )
    check_times(program, memory, system, options.quantum_bytes, 0)
    replay = Replay(system, program, memory, options, len(trace.regions))
    if progress is not None:
        replay.on_end = lambda kernel: progress(kernel + 1, trace.kernel_count)
    replay.env.process(replay.launch())
    replay.env.run()
    count_waiting(replay.machine, replay.out)
    return replay.out
