"""Machine files drawn at random, as dicts like those that TOML gives.

Any graph of nodes, numbers from all their ranges, now and then one that is none, a key too few or too many.
Used by hypothesis, so that what fails is made small.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NODES = ("gpu", "cpu", "switch", "box", "far")
TIERS = ("hbm", "host", "cxl", "nvme")


NONSENSE = [
    "0", "-5 GB", "nan", "inf", "", 0, -1, None, True, 1e400, "5 parsecs", [], {}, "9" * 400,
    [[0.1, "2 us"], [0.2, "3 us"]], [["2 KB", 0.5], ["1 KB", 1.0]],
]  # fmt: skip


def number(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A number with its source."""
    provenance = st.sampled_from(["stated", "assumed"])
    return st.fixed_dictionaries({"value": values, "provenance": provenance, "source": st.just("drawn")})


def log_int(least: int, most: int) -> st.SearchStrategy[int]:
    """Whole numbers of every order of magnitude, both ends often."""
    powers = st.builds(
        lambda e, m: min(most, max(least, (1 << e) * m)), st.integers(0, 60), st.integers(1, 9)
    )
    return st.one_of(powers, st.sampled_from([least, most]))


def sizes(least: int, most: int) -> st.SearchStrategy[str]:
    return log_int(least, most).map(lambda n: f"{n} B")


def lines(most: int) -> st.SearchStrategy[str]:
    """Powers of two."""
    return st.integers(0, most.bit_length() - 1).map(lambda e: f"{1 << e} B")


def times(most_ps: int = 10**9) -> st.SearchStrategy[str]:
    return log_int(1, most_ps).map(lambda n: f"{n} ps")


def rates(least_mbps: int = 1000) -> st.SearchStrategy[str]:
    return log_int(least_mbps, 10**9).map(lambda n: f"{n} MB/s")


def shares() -> st.SearchStrategy[float]:
    return st.sampled_from([1.0, 0.92, 0.5, 0.1])


FLOPS = st.sampled_from(["65536 GFLOP/s", "989 TFLOP/s", "1000000000 TFLOP/s"])
TAILS = st.sampled_from([[[0.5, "1 ns"]], [[0.1, "1 us"], [0.01, "1 ms"]]])
LOADED = st.sampled_from([[[0.5, "0 ns"]], [[0.1, "1 us"], [0.9, "1 ms"]]])
TRANSFERS = st.sampled_from([[["64 KB", 0.24], ["1 MB", 1.0]], [["1 B", 0.01]]])


def table(needed: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A table of numbers."""
    return st.fixed_dictionaries(
        {key: number(values) for key, values in needed.items()},
        optional={key: number(values) for key, values in optional.items()},
    )


INITIATOR = table(
    {
        "units": log_int(1, 512),
        "unit_outstanding": sizes(1, 10**16),
        "launch_gap": times(),
        "graph_launch": times(),
    },
    {
        "request": sizes(16, 2**30), "outstanding": sizes(1, 10**16),
        "dispatch": times(), "setup": times(), "wake": times(), "work_latency": times(),
        "turn": times(),
        "tags": log_int(1, 10**9), "credits": log_int(1, 10**9),
        "bf16": FLOPS, "fp8": FLOPS, "fp32": FLOPS,
        "port": rates(), "port_write": rates(), "power_bandwidth": rates(),
    },
)  # fmt: skip
CACHE = table(
    {"capacity": sizes(1, 10**16), "bandwidth": rates(), "latency": times()},
    {"write_bandwidth": rates(), "copies": log_int(1, 4096), "ways": log_int(1, 256)},
)
ROOM = st.one_of(sizes(1, 10**14), *[st.just("100 GB")] * 3)  # mostly enough
TIER = table(
    {
        "capacity": ROOM, "bandwidth": rates(10_000),
        "efficiency": shares(), "channels": log_int(1, 512), "interleave": lines(2**20), "unit": lines(2**12),
        "latency": times(),
    },
    {
        "devices": log_int(1, 16), "write_bandwidth": rates(10_000), "write_efficiency": shares(),
        "write_latency": times(), "read_iops": log_int(10**4, 10**9), "write_iops": log_int(10**4, 10**9),
        "queue_depth": log_int(1, 10**9), "tail": TAILS, "energy": st.just("6 pJ/bit"),
        "turnaround": times(), "write_buffer": sizes(0, 2**30),
    },
)  # fmt: skip


def level(least: int, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A level of address translation with a reach in a range; now and then its pages are larger."""
    values = {"reach": sizes(least, most), "page": lines(2**16), "latency": times()}
    return table({**values, "rate": log_int(10**5, 10**12)}, {})


LEVEL = {"near": level(2**15, 2**30), "far": level(2**31, 10**16), "third": level(1, 10**16)}
NAMES = [[]] * 12 + [["near"]] * 10 + [["near", "far"]] * 10 + [["near", "far", "third"]]
LEVELS = st.sampled_from(NAMES).flatmap(lambda names: st.fixed_dictionaries({n: LEVEL[n] for n in names}))
LINK = table(
    {
        "bandwidth": rates(), "efficiency": shares(), "latency": times(), "tags": log_int(1, 10**9),
        "credits": log_int(1, 10**9), "payload": sizes(16, 2**20), "header": sizes(0, 64),
    },
    {
        "bandwidth_out": rates(), "efficiency_out": shares(), "transfer_efficiency": TRANSFERS,
        "energy": st.just("5 pJ/bit"),
    },
)  # fmt: skip
SWITCH = table({"latency": times()}, {})


@st.composite
def machine_files(draw: st.DrawFn) -> dict[str, Any]:
    """A machine file: nodes in a tree (now and then with a ring, or in two pieces), parts at any of them."""
    nodes = NODES[: draw(st.integers(1, len(NODES)))]
    joints = [(draw(st.sampled_from(nodes[:i])), node) for i, node in enumerate(nodes) if i]
    if draw(st.integers(0, 20)) == 0 and joints:
        joints.pop()
    if draw(st.integers(0, 20)) == 0:
        joints.append((draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))))
    everywhere = st.sampled_from(nodes)
    links = {}
    for place, ends in enumerate(joints):
        words = {
            "between": list(draw(st.permutations(ends))),
            "duplex": draw(st.sampled_from(["full", "shared"])),
        }
        links[f"link{place}"] = {**draw(LINK), **words}
    initiators = {"gpu": draw(INITIATOR)}
    for place in range(draw(st.integers(0, 2))):
        initiators[f"unit{place}"] = {**draw(INITIATOR), "attach": draw(everywhere)}
    tiers = {name: {**draw(TIER), "attach": draw(everywhere)} for name in TIERS[: draw(st.integers(1, 4))]}
    for tier in tiers.values():  # the larger of the two is the interleave
        smaller, larger = sorted((tier["unit"], tier["interleave"]), key=lambda n: int(n["value"].split()[0]))
        tier.update(unit=smaller, interleave=larger)
        tier["translation"] = draw(LEVELS)
        if draw(st.booleans()):  # up to as far as channels may be apart; now and then refused
            latency_ps = int(tier["latency"]["value"].split()[0])
            far_ps = latency_ps * draw(st.sampled_from([1] * 16 + [4])) // draw(st.sampled_from([2, 2, 9]))
            for key in ("spread", "far", "late"):
                tier[key] = {**tier["latency"], "value": f"{far_ps} ps"}
        if draw(st.integers(0, 9)) == 0:  # of one server; now and then refused
            tier.pop("devices", None)
            one = {**tier["channels"], "value": draw(st.sampled_from([1] * 9 + [2]))}
            tier.update(channels=one, loaded_latency=draw(number(LOADED)))
    caches = draw(st.sampled_from([["l2"]] * 20 + [[], ["l2", "l3"]]))
    price = number(st.just("5 USD/GB"))
    machine = {
        "name": "drawn",
        "title": "A machine drawn at random",
        "initiator": initiators,
        "cache": {name: {**draw(CACHE), "attach": "gpu"} for name in caches},
        "tier": tiers,
        "link": links,
        "switch": {name: draw(SWITCH) for name in nodes[2:] if draw(st.booleans())},
        "cost": {"2026": {name: draw(price) for name in tiers if draw(st.booleans())}},
    }
    if draw(st.integers(0, 4)) == 0:
        _spoil(draw, machine)
    return machine


def _spoil(draw: st.DrawFn, machine: dict[str, Any]) -> None:
    """A number that is none, a key too few or a key too many."""
    tables = [
        t for group in ("initiator", "cache", "tier", "link", "switch") for t in machine[group].values()
    ]
    chosen = draw(st.sampled_from(tables))
    key = draw(st.sampled_from([key for key, value in chosen.items() if isinstance(value, dict)]))
    match draw(st.integers(0, 2)):
        case 0:
            chosen[key] = {**chosen[key], "value": draw(st.sampled_from(NONSENSE))}
        case 1:
            del chosen[key]
        case _:
            chosen["speed"] = {**chosen[key]}
