"""Where the time of a kernel goes, and what a tenth more of each resource would give, by replaying it again.

A trace, a machine and some kernels enter; an `Explained` for each leaves. The time is divided by taking one
resource after another out of the way, in an order that does not change, and booking what each step saves: the
parts and the rest, what is left when all are gone, sum to the time exactly. A part is therefore what shows of
a resource, not hidden behind one whose turn comes later. docs/result.md states the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memsim.bound import Again, segments_again
from memsim.options import ReplayOptions
from memsim.program import Plan
from memsim.progress import Progress
from memsim.resources import FLIGHT, OUT_OF_THE_WAY, RATE, TENTH_MORE, Case, Resource, Scale
from memsim.result import Explained, Part
from memsim.rules import Memory
from memsim.segments import Segment
from memsim.system import System

_STEPS = 1000  # of a kernel's progress
# More in flight than the latency needs makes blocks wait for each other's requests, so the best of these is
# taken for enough.
ENOUGH = tuple(Scale((1, 1), (times, 1)) for times in (1, 2, 4, 8, 16, 32, 64, 128))


def explain(
    segments: Iterable[Segment],
    system: System,
    memory: Memory,
    options: ReplayOptions,
    wanted: Mapping[str, int],
    progress: Progress | None = None,
    plan: Plan | None = None,
) -> tuple[Explained, ...]:
    """The times of some kernels, the longest first.

    segments, plan  see bound.segments_again;  wanted  family -> id of its kernel
    progress  called with (done, all), in steps of no meaning
    """
    done: list[Explained] = []
    for again in segments_again(segments, system, memory, options, wanted, plan):
        for family, place in again.places.items():
            division = _Division(again, place, progress, (len(done), len(wanted)))
            done.append(division.explained(family))
    return tuple(sorted(done, key=lambda each: -each.time_ps))


class _Division:
    """Divides the time of one kernel of a segment; calls `progress` as the replays end."""

    def __init__(self, again: Again, place: int, progress: Progress | None, done: tuple[int, int]):
        self.again, self.place, self.progress, self.done = again, place, progress, done
        self.busy = [each for each in again.every if each.name not in again.unused]
        rates = sum(each.kind == RATE for each in self.busy)
        self.runs, self.ran = 1 + len(ENOUGH) + 2 * len(self.busy) + rates, 0
        self.enough = ENOUGH[0]

    def time_ps(self, case: Case) -> int:
        """Time of the kernel in a case."""
        took_ps = int(self.again.times_ps(case)[self.place])
        self.ran = min(self.ran + 1, self.runs)
        if self.progress is not None:
            kernel, kernels = self.done
            self.progress(_STEPS * kernel + _STEPS * self.ran // self.runs, _STEPS * kernels)
        return took_ps

    def explained(self, family: str) -> Explained:
        """The kernel's time, divided."""
        again, case, place = self.again, self.again.case, self.place
        base_ps = self.time_ps(case)
        saved_ps = {each.name: base_ps - self.time_ps(each.grown(case, TENTH_MORE)) for each in self.busy}
        self.enough = self.least_that_is_enough()
        alone_ps = {each.name: self.time_ps(self.only(each)) for each in self.busy if each.kind == RATE}
        order = in_turn(self.busy, alone_ps)
        shown_ps, rest_ps = self.divide(order, base_ps)
        parts = [
            Part(again.name(each, place), shown_ps[each.name], alone_ps.get(each.name), saved_ps[each.name])
            for each in order
        ]
        parts += [Part(each.name, 0, None, 0) for each in again.every if each.name in again.unused]
        kernel, tiles = again.kernels[place], int(case.program.tiles[place])
        return Explained(
            kernel=kernel.name,
            number=kernel.id,
            family=family,
            initiator=case.system.initiators[int(case.program.initiator[place])].name,
            time_ps=base_ps,
            parts=tuple(parts),
            rest_ps=rest_ps,
            tiles=(tiles, tiles if case.serial[place] else TENTH_MORE.many(tiles)),
        )

    def least_that_is_enough(self) -> Scale:
        """How much more in flight serves the kernel best, the least of equals."""
        case = self.again.case
        (flight,) = (each for each in self.busy if each.kind == FLIGHT)
        return min(ENOUGH, key=lambda scale: self.time_ps(flight.out_of_the_way(case, scale)))

    def without(self, case: Case, resource: Resource) -> Case:
        """The case with a resource out of the way."""
        return resource.out_of_the_way(case, self.enough if resource.kind == FLIGHT else OUT_OF_THE_WAY)

    def only(self, kept: Resource) -> Case:
        """The case with everything but one resource out of the way."""
        case = self.again.case
        for each in self.busy:
            case = case if each is kept else self.without(case, each)
        return case

    def divide(self, order: Sequence[Resource], base_ps: int) -> tuple[dict[str, int], int]:
        """Parts of the time by resource, and what is left [ps].

        A step that would make the kernel slower waits until the others are done, and is left out if it does
        so then.
        """
        case, left_ps = self.again.case, base_ps
        shown_ps = {each.name: 0 for each in order}
        for _ in range(2):
            waiting = []
            for each in order:
                without = self.without(case, each)
                now_ps = self.time_ps(without)
                if now_ps > left_ps:
                    waiting.append(each)
                    continue
                shown_ps[each.name] = left_ps - now_ps
                case, left_ps = without, now_ps
            order = waiting
        return shown_ps, left_ps


def in_turn(busy: Sequence[Resource], alone_ps: Mapping[str, int]) -> list[Resource]:
    """Resources in the order of a division: rates last, and of these the one that takes longest alone.

    So what binds keeps all of its own time, and what hides behind it has no part.
    """
    return sorted(busy, key=lambda each: (each.kind, alone_ps.get(each.name, 0)))
