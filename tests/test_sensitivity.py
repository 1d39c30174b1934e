"""Every number of every shipped machine changes an output the way that its key declares.

Each is multiplied and divided by ten, one at a time, and small traces that exercise it are replayed: what is
`faster` must never lengthen one and must shorten one, and so on. A number that changes nothing fails, unless
its key says that it only informs. Where ten times more makes no machine (more channels than there may be, a
share above 1), the other side alone must show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from engine_cases import MemoryTrace, columns, flat_region, kernel

from hwprofiles import machine_names
from memsim import fast, load_machine, replay
from memsim.cache_plan import CachePlan
from memsim.errors import DoesNotFit, ProfileError
from memsim.options import ReplayOptions
from memsim.placement import Piece, Placement, build_memory, place_regions
from memsim.profile_schema import Profile
from memsim.route import build_system
from memsim.system import System
from memsim.trace import Access
from memsim.trace_read import open_trace
from workloads import patterns
from workloads.kernel_options import complete

NOISE = 0.02  # a change the wrong way that does not count, as a share: requests meet in another order
CLEAR = 10  # a change the right way that counts, in the largest the wrong way
INFORMATIVE: set[str] = set()  # keys whose number no output depends on


@cache
def pattern(name: str, **given: int) -> tuple[MemoryTrace, frozenset[int]]:
    """A plain pattern in memory, and the regions of it that lie in the tier at hand."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "t.parquet"
        far = patterns.write(name, complete(name, given), 132, 0, out)
        trace = open_trace(out)
        launches = list(trace.kernels())
    return MemoryTrace(trace.regions, launches), frozenset(r.id for r in trace.regions if r.name in far)


def reads() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=4 << 20, programs=256)


def writes() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=4 << 20, programs=256, write=True)


def scattered() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("gather", count=8192, row_bytes=64, span=1 << 24, programs=256, block_bytes=2048)


def large() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=16 << 20, programs=4, block_bytes=4 << 20, blocks_per_unit=1)


def large_writes() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=16 << 20, programs=4, block_bytes=4 << 20, blocks_per_unit=1, write=True)


def scraps() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("gather", count=8192, row_bytes=8, span=1 << 22, programs=256, block_bytes=256)


def one_block() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("gather", count=16_384, row_bytes=64, span=1 << 24, programs=1, tiles_in_flight=65_536)


def loads() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("chase", count=64)


def many_loads() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("chase", count=3000)


def stores() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=64 * 64, programs=1, block_bytes=64, tiles_in_flight=1, write=True)


def copies() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=1 << 20, block_bytes=1 << 16, dma=True)


def large_copies(write: bool) -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=32 << 20, block_bytes=4 << 20, dma=True, write=write)


def again(system: System) -> tuple[MemoryTrace, frozenset[int]]:
    """Read twice: nearly as much as the cache holds with all its copies."""
    held = system.cache.capacity_bytes // system.cache.copies * 9 // 10
    return pattern("stream", bytes=held // 65_536 * 65_536, programs=1024, calls_per_launch=2)


def overflowing(system: System) -> tuple[MemoryTrace, frozenset[int]]:
    """Written: four times what the cache holds."""
    nbytes = system.cache.capacity_bytes * 4 // 65_536 * 65_536
    return pattern("stream", bytes=nbytes, programs=1024, write=True)


def far_loads() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("chase", count=1000, span=8 << 30)


def far_rows() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("gather", count=8192, row_bytes=64, span=8 << 30, programs=256, block_bytes=2048)


@cache
def far_run() -> tuple[MemoryTrace, frozenset[int]]:
    """64 MiB in a row, out of 8 GiB: a tile waits for the one before it, and for its page."""
    access = Access(0, 0, 0, 0, False, 0, 8192)
    launch = kernel(tile_bytes=8192, tiles_in_flight=1)
    return MemoryTrace((flat_region(0, 1 << 20, 8192),), [(launch, columns([access]))]), frozenset({0})


def moved_inside() -> tuple[MemoryTrace, frozenset[int]]:
    return pattern("stream", bytes=8 << 20, block_bytes=1 << 19, dma=True)


@cache
def shared(rows: int, tiles: int) -> tuple[MemoryTrace, frozenset[int]]:
    """1,024 blocks read the same rows of 4 KiB: all but the first hit the cache."""
    access = Access(0, 0, 1023, 0, False, 0, rows, spread="each")
    launch = kernel(blocks=1024, blocks_per_unit=16, tile_bytes=4096, tiles_in_flight=tiles)
    return MemoryTrace((flat_region(0, rows, 4096),), [(launch, columns([access]))]), frozenset({0})


@cache
def worked() -> tuple[MemoryTrace, frozenset[int]]:
    """A tile that computes for a moment after another."""
    access = Access(0, 0, 0, 0, False, 0, 64, worked=True)
    launch = kernel(flops_per_tile=1000, flops_unit="bf16")
    return MemoryTrace((flat_region(0, 64, 64),), [(launch, columns([access]))]), frozenset({0})


@cache
def in_turns() -> tuple[MemoryTrace, frozenset[int]]:
    """Many blocks of a unit that each compute for long, then let another in."""
    access = Access(0, 0, 2047, 0, False, 0, 2048, spread="even", worked=True)
    launch = kernel(blocks=2048, blocks_per_unit=2, flops_per_tile=10**6, flops_unit="fp32")
    return MemoryTrace((flat_region(0, 2048, 64),), [(launch, columns([access]))]), frozenset({0})


@cache
def handed() -> tuple[MemoryTrace, frozenset[int]]:
    """A kernel that waits for one of the first initiator."""
    launches = [(kernel(0, family="first"), columns([])), (kernel(1, waits_for=(0,)), columns([]))]
    return MemoryTrace((flat_region(0, 64, 64),), launches), frozenset({0})


@cache
def arithmetic(unit: str) -> tuple[MemoryTrace, frozenset[int]]:
    """Four tiles that compute for long."""
    access = Access(0, 0, 3, 0, False, 0, 4, spread="even", worked=True)
    launch = kernel(blocks=4, flops_per_tile=10**10, flops_unit=unit)
    return MemoryTrace((flat_region(0, 4, 64),), [(launch, columns([access]))]), frozenset({0})


def outputs(
    system: System, probe: tuple[MemoryTrace, frozenset[int]], initiator: int, tier: int
) -> tuple[int, int]:
    """Time of a probe that `initiator` runs on data in `tier`, and the bytes that the tier moves for it."""
    trace, far = probe
    pieces = tuple((Piece(r.rows, ((tier if r.id in far else 0, 1),)),) for r in trace.regions)
    memory = build_memory(trace.regions, Placement(pieces, ()))
    family = trace.launches[-1][0].family
    options = ReplayOptions(run_on={family: initiator}, seed=1)
    plan = CachePlan(system, memory, options.quantum_bytes)
    outcome = fast.run(trace, system, memory, options, plan=plan)
    return int(outcome.end_ps.max()), int(outcome.moved[:, tier].sum())


def exercises(path: str, system: System) -> Iterator[tuple[tuple[MemoryTrace, frozenset[int]], int, int]]:
    """Probes that exercise the number at `path`, each with who runs it and where its data lie."""
    group, name, *level, key = path.split(".")
    tiers = range(len(system.tiers))
    if group == "initiator":
        number = [runner.name for runner in system.initiators].index(name)
        home = min(tiers, key=lambda tier: len(system.routes[number][tier]))
        away = max(tiers, key=lambda tier: len(system.routes[number][tier]))
        chosen = {
            "units": [(reads(), home), (copies(), home)],
            "unit_outstanding": [(one_block(), home), (one_block(), away)],
            "outstanding": [(reads(), home), (reads(), away)],
            "port": [(reads(), home), (moved_inside(), home)],
            "port_write": [(writes(), home), (moved_inside(), home)],
            "request": [(probe, tier) for probe in (reads(), one_block()) for tier in tiers],
            "work_latency": [(worked(), home)],
            "turn": [(in_turns(), home)],
            "wake": [(handed(), home)],
            "tags": [(large_copies(write=False), tier) for tier in tiers],
            "credits": [(large_copies(write=True), tier) for tier in tiers],
            "bf16": [(arithmetic("bf16"), home)],
            "fp8": [(arithmetic("fp8"), home)],
            "fp4": [(arithmetic("fp4"), home)],
            "fp32": [(arithmetic("fp32"), home)],
            "power_bandwidth": [(arithmetic("bf16"), home), (arithmetic("fp8"), home)],
        }.get(key, [(copies(), home)])
        yield from ((probe, number, tier) for probe, tier in chosen)
    elif group == "cache":
        for probe in (shared(16, 16), shared(1, 1), writes(), again(system)):
            yield probe, 0, 0
    elif level:
        number = [tier.name for tier in system.tiers].index(name)
        yield from ((probe, 0, number) for probe in (far_loads(), far_rows(), reads(), far_run()))
    elif group == "tier":
        number = [tier.name for tier in system.tiers].index(name)
        chosen = {
            "latency": [loads()],
            "write_latency": [stores()],
            "tail": [many_loads()],
            "write_bandwidth": [writes()],
            "write_efficiency": [writes(), overflowing(system)],
            "write_iops": [writes(), stores()],
            "unit": [scraps()],
            "turnaround": [moved_inside()],
            "interleave": [scattered(), reads(), one_block(), writes()],
            "write_buffer": [overflowing(system)],
        }.get(key, [scattered(), reads(), one_block()])
        near = [i for i, routes in enumerate(system.routes) if not i or not routes[number]]
        yield from ((probe, initiator, number) for probe in chosen for initiator in near)
    else:
        chosen = [loads()] if key == "latency" else [reads(), writes(), scattered(), large(), large_writes()]
        for number, tier in product(range(len(system.initiators)), tiers):
            crossed = {system.links[hop.link].name for hop in system.routes[number][tier]}
            if name in crossed or group == "switch":
                yield from ((probe, number, tier) for probe in chosen)


def scaled(profile: Profile, path: str, factor: Fraction) -> System | None:
    """The machine with one number changed; None where that is no machine, or no change."""
    (quantity,) = [quantity for known, quantity in profile.quantities() if known == path]
    text = quantity.scaled(factor)
    try:
        changed = load_machine(profile.name, [f"{path}={text}"])
        system = build_system(changed)
    except ProfileError:
        return None
    number = dict(changed.quantities())[path]
    return None if number.text == quantity.text else system


def changes(path: str, base: System, more: System | None, less: System | None) -> list[float]:
    """By what share times grow when the number does, upward and downward, in every probe.

    Of a tier's unit also the bytes moved: behind a link that charges for transfers alone nothing else does.
    """
    found = []
    watched = (0, 1) if path.endswith(".unit") else (0,)
    for probe, initiator, tier in exercises(path, base):
        before = outputs(base, probe, initiator, tier)
        if more is not None:
            after = outputs(more, probe, initiator, tier)
            found += [after[i] / before[i] - 1 for i in watched]
        if less is not None:
            after = outputs(less, probe, initiator, tier)
            found += [1 - after[i] / before[i] for i in watched]
    return found


def faults_of_times(path: str, effect: str, found: list[float]) -> str:
    """What is wrong with the changes of a number's probes; "" if nothing is."""
    if effect == "informative":
        return f"{path} changes times" if any(found) else ""
    if effect == "any":
        return "" if any(found) else f"{path} changes nothing"
    ahead = [change if effect == "slower" else -change for change in found]
    if max(ahead) <= 0 == min(ahead):
        return f"{path} changes nothing"
    wrong = max(0.0, -min(ahead))
    return "" if wrong < NOISE and max(ahead) > CLEAR * wrong else f"{path} is not {effect}: {found}"


def holds(system: System, tier: int, nbytes: int) -> bool:
    """Whether a region of so many bytes fits into a tier."""
    region = flat_region(0, nbytes // 64, 64)
    rule = type("Rule", (), {"matches": lambda self, region: True, "shares": ((tier, 1),)})()
    try:
        place_regions([region], [rule], "refuse", system)
    except DoesNotFit:
        return False
    return True


@cache
def written(folder: Path) -> Path:
    out = folder / "copy.parquet"
    patterns.write("copy", complete("copy", {"bytes": 1 << 16}), 4, 0, out)
    return out


def spent(system: System, path: str, trace: Path) -> float:
    """Energy or cost that the number at `path` belongs to, of a copy between its tier and the first."""
    group, name, *_, key = path.split(".")
    far = name if group == "tier" else key if group == "cost" else ""
    for tier, each in enumerate(system.tiers):
        if far in ("", each.name):
            crossed = [system.links[hop.link].name for hop in system.routes[0][tier]]
            if far or name in crossed:
                far = each.name
    result = replay(trace, system, place=[f"source0={far}"], bound=False)
    places = {place.name: place for place in (*result.tiers, *result.links)}
    if group == "cost":
        return dict(places[key].cost_usd)[name]
    return float(places[name].energy_pj)


@pytest.mark.parametrize("name", machine_names())
def test_every_number_changes_an_output_the_way_that_its_key_declares(name, tmp_path):
    profile = load_machine(name)
    base = build_system(profile)
    wrong = []
    for path, effect in profile.effects().items():
        more, less = scaled(profile, path, Fraction(10)), scaled(profile, path, Fraction(1, 10))
        if more is None and less is None:
            wrong.append(f"{path}: neither ten times more nor ten times less makes a machine")
        elif effect == "room":
            tier = [tier.name for tier in base.tiers].index(path.split(".")[1])
            room = base.tiers[tier].capacity_bytes
            fits = [[holds(s, tier, size) for s in (base, more, less)] for size in (room * 3 // 5, room * 2)]
            if fits != [[True, True, False], [False, True, False]]:
                wrong.append(f"{path}: {fits}")
        elif effect in ("energy", "cost"):
            before, *after = (spent(s, path, written(tmp_path)) for s in (base, more, less))
            if after != [pytest.approx(10 * before, rel=0.01), pytest.approx(before / 10, rel=0.01)]:
                wrong.append(f"{path}: {before} becomes {after}")
        else:
            fault = faults_of_times(path, effect, changes(path, base, more, less))
            wrong += [fault] if fault else []
    assert not wrong, "\n".join(wrong)


def test_the_keys_that_only_inform_are_those_that_are_known():
    found = {
        f"{path.split('.')[0]}.*.{path.split('.')[-1]}"
        for name in machine_names()
        for path, effect in load_machine(name).effects().items()
        if effect == "informative"
    }
    assert found == INFORMATIVE


@pytest.mark.parametrize(
    ("effect", "found", "words"),
    [
        ("faster", [-0.5, 0.0], ""),
        ("faster", [0.0, 0.0], "changes nothing"),
        ("faster", [-0.5, 0.1], "is not faster"),
        ("slower", [0.3], ""),
        ("slower", [-0.3], "is not slower"),
        ("any", [0.0, 1e-6], ""),
        ("any", [0.0], "changes nothing"),
        ("informative", [0.1], "changes times"),
    ],
)
def test_what_counts_as_a_change(effect, found, words):
    assert words in faults_of_times("tier.hbm.x", effect, found)
    assert bool(words) == bool(faults_of_times("tier.hbm.x", effect, found))
