"""Projections: a point for every cell, with a number and its interval or with what is lacking."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from memsim import (
    cli,
    projection_batch,
    projection_plot,
    projection_run,
    projection_show,
    trace_cache,
)
from memsim.errors import MissingExtra, UsageError
from memsim.projection import project
from memsim.projection_batch import largest, shortfall, within
from memsim.projection_point import MAX, Ask, Cell, from_document
from memsim.projection_run import shared_out
from memsim.simulate import replay

ATTENTION = Ask(part="attention")
SMALL = "tier.hbm.capacity=1 GB"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Traces of these tests alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_cache, "cache_root", lambda: folder)
        yield folder


def asked(*models, **options):
    told = {"context": "4K", "part": "attention", "workers": 1, **options}
    return project(list(models), "h200", **told)


def test_a_point_has_the_time_of_a_replay_and_an_interval(tmp_path):
    from memsim.recording import record

    (point,) = asked("kimi-linear")
    record("kimi-linear", "4K", tmp_path / "a.parquet")
    result = replay(tmp_path / "a.parquet", "h200")
    assert point.tpot_ps == result.tpot_ps
    assert 0 < point.low_ps < point.high_ps
    assert point.trust in ("validated", "extrapolated", "unvalidated")
    slowest = max(result.families, key=lambda family: family.time_ps)
    assert point.binds == f"{slowest.name} ({slowest.bound})"
    assert sum(family.time_ps for family in point.families) == sum(f.time_ps for f in result.families)
    assert point.tokens_per_s_per_user == pytest.approx(1e12 / result.tpot_ps)
    assert point.used_bytes == {"hbm": result.tiers[0].used_bytes}


def test_energy_and_cost_are_those_of_a_million_tokens():
    one, two = asked("kimi-linear", batch=[1, 2])
    result_energy_j = one.energy_j
    assert result_energy_j is not None
    # 6 pJ for each bit that HBM moves: what a token moves at batch 1, a million times
    assert result_energy_j == pytest.approx(6e-12 * 8 * moved_bytes(one) * 1e6, rel=1e-6)
    years = 4 * 365.25 * 86400
    dollars = one.used_bytes["hbm"] / 1e9 * 10  # 10 USD/GB
    assert one.cost_usd["2024"] == pytest.approx(dollars * one.tpot_ps / 1e12 / years * 1e6)
    assert two.tokens_per_s_per_gpu == pytest.approx(2 * two.tokens_per_s_per_user)


def moved_bytes(point):
    """Bytes that HBM moves in the step of a point."""
    from memsim.projection_cell import machine_of, units_of

    cell = Cell(point.model, point.machine, point.context_tokens, point.batch)
    options = ATTENTION.recording(cell.model, point.batch, units_of(cell, ATTENTION))
    with trace_cache.kept(cell.model, cell.context_tokens, options) as path:
        (hbm,) = replay(path, machine_of("h200", ())[0], bound=False).tiers
    return hbm.moved_read_bytes + hbm.moved_write_bytes


def test_what_does_not_fit_is_a_point_that_says_by_how_much():
    fits, refused = asked("kimi-linear-all-mla", context=["4K", "128K"], overrides=SMALL)
    assert fits.refused == ""
    assert refused.tpot_ps == 0
    assert "GB too many" in refused.refused
    assert refused.tokens_per_s_per_user == 0


@pytest.mark.parametrize(
    ("part", "model", "place"),
    [
        ("attention", "kimi-linear-all-mla", ()),
        ("attention", "deepseek-v3.2", ("kv=host",)),
        ("step", "kimi-linear", ()),
        ("step", "qwen3-next", ("weights=host",)),
    ],
)
def test_what_does_not_fit_is_told_as_a_replay_tells_it_and_is_not_recorded(part, model, place, monkeypatch):
    cell = Cell(model, "h200-host", 32768, 1)
    ask = Ask(part=part, place=place, overrides=("tier.hbm.capacity=20 MB",))
    with monkeypatch.context() as patch:
        patch.setattr(projection_run, "trace_of", lambda *_: pytest.fail("it is recorded"))
        at_once = projection_run.point_of(cell, ask)
    monkeypatch.setattr(projection_run, "known_shortfall", lambda *_: "")
    assert at_once.refused
    assert projection_run.point_of(cell, ask) == at_once


def test_rules_for_regions_are_left_to_the_replay():
    (point,) = asked("kimi-linear-all-mla", context="128K", overrides=SMALL, place="layer:0-3=hbm")
    assert "GB too many" in point.refused


def test_cells_come_in_the_order_of_the_grid():
    points = asked("kimi-linear", "qwen3-next", context=["1K", "4K"])
    assert [(point.model, point.context_tokens) for point in points] == [
        ("kimi-linear", 1024), ("kimi-linear", 4096), ("qwen3-next", 1024), ("qwen3-next", 4096),
    ]  # fmt: skip


def test_machines_of_equal_units_share_a_recording():
    cells = [Cell("kimi-linear", machine, 4096, 1) for machine in ("h200", "h200-host", "gh200", "b200")]
    tasks = shared_out(cells, ATTENTION)
    assert [[cell.machine for cell in task] for task in tasks] == [["h200", "h200-host", "gh200"], ["b200"]]


def test_the_largest_batch_fits_and_one_more_does_not():
    room = "tier.hbm.capacity=0.7 GB"
    ask = replace(ATTENTION, overrides=(room,))
    cell = Cell("kimi-linear", "h200", 16384, MAX)
    batch, words = largest(cell, ask)
    assert words == f"the largest batch that fits is {batch}"
    (point,) = asked("kimi-linear", context="16K", batch=MAX, overrides=room)
    (more,) = asked("kimi-linear", context="16K", batch=batch + 1, overrides=room)
    assert (point.batch, point.refused) == (batch, "")
    assert more.refused
    # a sequence: 16K rows of 1,152 B in 7 layers, states of 20 layers; scratch comes on top
    assert batch == 0.7e9 // (16384 * 1152 * 7 + 20 * 2.2e6)


@pytest.mark.parametrize(
    ("machine", "parallel", "most"), [("h200", None, 512), ("8xh200", "tp=4,ep=8,dp=2", 1024)]
)
def test_short_contexts_end_where_a_step_is_one_graph(machine, parallel, most):
    cell, ask = Cell("kimi-linear", machine, 256, MAX), Ask(part="attention", parallel=parallel)
    assert shortfall(cell, ask, 2 * most) == ""
    batch, words = largest(cell, ask)
    assert batch == most
    assert words.startswith(f"a batch of {most:,} fits, where max ends")


def test_new_tokens_make_a_kept_token_cheaper_and_take_room():
    one, three = (
        asked("deepseek-v3.2", context="4K", draft=draft, accepted=accepted)[0]
        for draft, accepted in ((1, None), (3, 2))
    )
    assert (one.tokens_per_step, three.tokens_per_step) == (1, 2)
    assert one.tpot_ps / 2 < three.tpot_ps < one.tpot_ps
    assert three.used_bytes["hbm"] > one.used_bytes["hbm"]
    cell, room = Cell("kimi-linear", "h200", 4096, MAX), ("tier.hbm.capacity=0.7 GB",)
    alone, drafted = (
        largest(cell, replace(ATTENTION, overrides=room, draft=draft))[0] for draft in (1, 8)
    )  # 20 layers keep a state of 2.1 MB after each new token
    assert 7 <= alone <= 0.7e9 / (4096 * 1152 * 7 + 20 * 2.2e6)  # scratch comes on top
    assert 1 <= drafted <= 0.7e9 / (4096 * 1152 * 7 + 8 * 20 * 2.1e6) < 2
    with pytest.raises(UsageError, match="--accepted 3: expected a whole number from 1 to 2"):
        asked("kimi-linear", draft=2, accepted=3)


def test_a_largest_batch_is_asked_of_kinds_alone():
    cell = Cell("kimi-linear", "h200-host", 4096, MAX)
    assert "hbm" in shortfall(cell, replace(ATTENTION, place=("kv=hbm",)), 4096)
    assert "hbm" not in shortfall(cell, replace(ATTENTION, place=("kv=host",)), 1024)
    with pytest.raises(
        UsageError, match=r"--batch max with --place 'layer:0-3=host': expected rules by kind"
    ):
        shortfall(cell, replace(ATTENTION, place=("layer:0-3=host",)), 1)


@pytest.mark.parametrize(
    ("slo_ps", "batch"), [(10_000, 100), (9_999, 99), (5_050, 50), (200, 2), (199, 1), (150, 1), (149, 0)]
)
def test_a_bound_on_the_time_is_met_as_closely_as_a_batch_can(monkeypatch, slo_ps, batch):
    """Times of 100 ps a sequence, of one alone 150: the largest that takes the bound at most."""
    calls = []

    def took(cell, ask, n):
        calls.append(n)
        return max(150, 100 * n)

    monkeypatch.setattr(projection_batch, "time_ps", took)
    assert within(Cell("m", "h200", 4096, MAX), ATTENTION, 100, slo_ps) == batch
    assert len(calls) <= 12


def test_a_bound_on_the_time_is_asked_of_as_many_sequences_as_groups(monkeypatch):
    calls = []
    monkeypatch.setattr(projection_batch, "time_ps", lambda cell, ask, n: calls.append(n) or 100 * n)
    cell = Cell("kimi-linear", "8xh200", 4096, MAX)
    assert within(cell, replace(ATTENTION, parallel="tp=2,dp=4"), 64, 1000) == 10
    assert min(calls) == 4


def test_a_point_survives_a_way_through_json():
    (point,) = asked("kimi-linear")
    assert from_document(json.loads(json.dumps(point.document()))) == point


def test_finished_points_are_not_made_again(monkeypatch, tmp_path):
    first = asked("kimi-linear", context=["1K", "4K"], out=tmp_path)
    made = []

    def point_of(cell, ask):
        made.append(cell)
        raise KeyboardInterrupt

    monkeypatch.setattr(projection_run, "point_of", point_of)
    assert asked("kimi-linear", context=["1K", "4K"], out=tmp_path) == first
    assert made == []
    with pytest.raises(KeyboardInterrupt):
        asked("kimi-linear", context=["1K", "2K"], out=tmp_path)
    assert [cell.context_tokens for cell in made] == [2048]
    with pytest.raises(KeyboardInterrupt):  # another machine is another point
        asked("kimi-linear", overrides="tier.hbm.latency=400 ns", out=tmp_path)


def test_a_line_that_was_cut_off_costs_its_point_alone(tmp_path):
    asked("kimi-linear", context=["1K", "4K"], out=tmp_path)
    lines = (tmp_path / "points.jsonl").read_text()
    (tmp_path / "points.jsonl").write_text(lines[:-20])
    assert len(list(projection_run._lines(tmp_path / "points.jsonl"))) == 1
    asked("kimi-linear", context=["1K", "4K"], out=tmp_path)  # its successor is a line of its own
    assert len(list(projection_run._lines(tmp_path / "points.jsonl"))) == 2


@pytest.mark.parametrize("change", [("tpot_ps", '"x"'), ("tpot_ps", "1"), ("families", "[[1]]")])
def test_a_line_that_was_changed_is_no_point(tmp_path, change):
    first = asked("kimi-linear", out=tmp_path)
    entry = json.loads((tmp_path / "points.jsonl").read_text())
    entry["point"][change[0]] = json.loads(change[1])
    strange = ["[]", "null", '"x"', '{"key": 1, "point": []}', '{"key": 1, "digest": 2, "point": null}']
    (tmp_path / "points.jsonl").write_text("\n".join([json.dumps(entry), *strange]))
    assert asked("kimi-linear", out=tmp_path) == first


def test_processes_give_what_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(projection_run, "FEW", 0)
    contexts = ["1K", "4K"]
    assert asked("kimi-linear", context=contexts, workers=2) == asked("kimi-linear", context=contexts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kimi"], "unknown model 'kimi'"),
        (["kimi-linear", "--machine", "h201"], "unknown machine 'h201'"),
        (["kimi-linear", "--batch", "0"], "--batch 0: expected a whole number from 1 on"),
        (["kimi-linear", "--batch", "all"], "--batch 'all': expected a whole number"),
        (["kimi-linear", "--batch", "٣"], "--batch '٣': expected a whole number"),
        (["kimi-linear", "--part", "attention", "--routing", "x"], "--routing x with --part attention"),
        (["kimi-linear", "--selection", "x"], "--selection x: no model here selects rows"),
        (["kimi-linear", "--stage", "kv"], "--stage kv: no model here selects rows"),
        (["kimi-linear", "--overlap", "0.5"], "--overlap 0.5: no model here selects rows"),
        (["kimi-linear", "--batch", "4097"], "--batch 4097: expected a whole number from 1 to 4,096"),
        (["kimi-linear", "--batch", f"1,{10**20}"], f"--batch {10**20}: expected a whole number from 1 to"),
        (["kimi-linear", "--context", "4K,8G"], "--context 8589934592: expected a whole number from 1 to"),
        (["kimi-linear", "--slo", "tpot=20ms"], "--slo: expected a batch that it can bound; add --batch max"),
        (["kimi-linear", "--context", "1M,"], "'1M,': an empty word"),
        (["kimi-linear", "--slo", "20ms"], "--slo '20ms': expected tpot=TIME"),
    ],
)
def test_wrong_words_are_told_before_anything_runs(capsys, words, message):
    assert cli.run(["project", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_memory_in_use_is_told_beside_its_size():
    sizes = [projection_show._of(used, 141 * 10**9) for used in (8_560 * 10**6, 142 * 10**6)]
    assert sizes == ["8.56 of 141 GB", "142 MB of 141 GB"]


def test_all_but_the_figure_is_there_without_matplotlib(capsys, tmp_path, monkeypatch):
    def lacks():
        raise MissingExtra("figures are drawn by matplotlib, which is missing: pip install 'memsim[figures]'")

    monkeypatch.setattr(projection_plot, "require", lacks)
    words = ["project", "kimi-linear", "--machine", "h200", "--part", "attention", "--workers", "1"]
    out = tmp_path / "out"
    assert cli.run([*words, "--context", "4K", "-o", str(out)]) == 0
    assert "out has no figure: figures are drawn by matplotlib" in capsys.readouterr().err
    names = ["points.jsonl", "projection.json", "projection.txt"]
    assert sorted(path.name for path in out.iterdir()) == names


def test_the_command_prints_and_writes_and_says_when_nothing_fits(capsys, tmp_path):
    words = ["project", "kimi-linear-all-mla", "--machine", "h200", "--part", "attention", "--workers", "1"]
    out = tmp_path / "out"
    assert cli.run([*words, "--context", "4K,128K", "--set", SMALL, "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"hbm [0-9.]+ MB of", printed)
    assert re.search(r"128K +1 +- +does not fit +- +- +[0-9.]+ GB\s+too many", printed)
    assert "--parallel" in printed
    assert "* extrapolated: changed: tier.hbm.capacity" not in printed  # room moves no time
    names = ["points.jsonl", "projection.json", "projection.png", "projection.svg", "projection.txt"]
    assert sorted(path.name for path in out.iterdir()) == names
    document = json.loads((out / "projection.json").read_text())
    fits, refused = document["points"]
    assert fits["interval_s"][0] < fits["interval_s"][1]
    assert (refused["tpot_s"], refused["interval_s"], refused["fits"]) == (None, None, False)
    assert cli.run([*words, "--context", "128K,256K", "--set", SMALL]) == 5
    told = capsys.readouterr()
    assert "none of 2 points fits" in told.err
    assert told.out.count("Does not fit: ") == 1  # the row of each has its own shortfall
