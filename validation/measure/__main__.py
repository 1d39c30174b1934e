"""`python -m validation.measure --suite micro|kernels|stacks|all -o DIR` measures what is not yet in DIR.

--only FAMILY   may be given again; "stream" takes all "stream.*"
--budget S      seconds of wall time
--list          points, split and estimated seconds; measures nothing, needs no GPU
--smoke         the first point of every family, short, into DIR/smoke
--every N       each N-th point, for a repeat
--since RUN     measure again what was measured before this time (20261201 or 20261201T093000Z)
--profile       first | all | none: kernel lists by a profiler pass after all timing
--device        cuda | cuda:N | cpu

Exit code: 0 done, 1 some points failed, 2 wrong options, 3 the budget ended first (call again to go on),
6 a family asked for by name was skipped.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

from . import points, rows, runner, supervise
from .device import Env, busy, machine_facts
from .points import CALIBRATE, HELD_OUT, TABLE, CampaignError, Family


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m validation.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--suite", default="all", help="micro, kernels, stacks or all")
    options.add_argument("--device", default="cuda")
    options.add_argument("-o", "--output", type=Path, help="what is there is not measured again")
    options.add_argument("--only", action="append", default=[], metavar="FAMILY")
    options.add_argument("--budget", type=float, default=900.0, metavar="SECONDS")
    options.add_argument("--every", type=int, default=1, metavar="N")
    options.add_argument("--since", default="", metavar="RUN")
    options.add_argument("--profile", choices=["first", "all", "none"], default="first")
    options.add_argument("--list", action="store_true")
    options.add_argument("--smoke", action="store_true")
    options.add_argument("--worker", default="", metavar="RUN", help=argparse.SUPPRESS)
    return options


def listing(families: list[Family]) -> str:
    """Every point with its split, then one line per family and the totals."""
    lines = [f"{point.split:10} {point.key}" for family in families for point in family.points]
    lines.append("")
    words = f"{'points':>6} {'calib.':>6} {'held':>6} {'table':>6} {'est. s':>7}"
    lines.append(f"{'family':28} {'suite':8} {words}")
    for f in families:
        lines.append(f"{f.name:28} {f.suite:8} {_counted([f])}")
    lines.append(f"{'total':37} {_counted(families)}")
    return "\n".join(lines)


def _counted(families: list[Family]) -> str:
    """Points of some families, by split, and their seconds."""
    counts = [sum(len(f.points) for f in families)]
    counts += [sum(f.count(split) for f in families) for split in (CALIBRATE, HELD_OUT, TABLE)]
    return " ".join(f"{count:6}" for count in counts) + f" {sum(f.seconds for f in families):7.1f}"


def families_for(options: argparse.Namespace) -> list[Family]:
    """The chosen families with the points that are wanted. CampaignError if a file or a name is wrong."""
    families = points.chosen(points.read_campaign(), options.suite, options.only)
    if not families:
        raise CampaignError(f"--suite {options.suite}: no such suite; expected micro, kernels, stacks or all")
    if options.smoke:
        return [replace(family, points=family.points[:1]) for family in families]
    return [replace(family, points=family.points[:: max(1, options.every)]) for family in families]


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    end = time.monotonic() + options.budget
    try:
        families = families_for(options)
    except CampaignError as error:
        return wrong(str(error))
    if options.list:
        print(listing(families))
        return 0
    if options.output is None:
        return wrong("-o DIR is missing: the folder that the CSV files go to")
    if options.since and not re.fullmatch(r"\d{8}(T\d{6}Z)?", options.since):
        return wrong(f"--since {options.since}: expected a time such as 20261201 or 20261201T093000Z")
    folder = options.output / "smoke" if options.smoke else options.output
    folder.mkdir(parents=True, exist_ok=True)
    if options.worker or options.device == "cpu":
        return measure(families, options, folder, end)
    run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return supervise.supervise(arguments, folder, run, end)


def measure(families: list[Family], options: argparse.Namespace, folder: Path, end: float) -> int:
    """Run, write run.json, print what happened; the exit code."""
    started = time.monotonic()
    device = "cuda:0" if options.device == "cuda" else options.device
    run = options.worker or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    env = Env(device=device, run=run, smoke=options.smoke, since=options.since)
    if options.smoke:
        env.rounds, env.budget_s = 1, 0.03
    try:
        prepare(env, folder, options)
    except Exception as error:  # no usable GPU: say so in one line
        return wrong(f"{device} cannot be used: {type(error).__name__}: {error}")
    summary = runner.run(families, env, folder, end=end, say=say)
    if summary.lost:
        say("the GPU context is lost")
        return supervise.LOST
    if options.profile != "none" and not summary.out_of_time:
        if options.profile == "all":
            families = [replace(family, profile="all") for family in families]
        runner.list_kernels(families, env, folder, end=end, say=say)
    facts = {"wall_s": round(time.monotonic() - started, 1), "skipped": summary.skipped}
    rows.note_run(folder, run, facts | {"family_s": summary.seconds, "clocks_after": env.clocks()})
    return report(summary, options.only)


def prepare(env: Env, folder: Path, options: argparse.Namespace) -> None:
    """Write what the machine is, raise the clocks."""
    if env.cuda:
        import torch

        torch.cuda.set_device(env.device)
    words = {key: str(value) for key, value in vars(options).items() if key != "worker"}
    rows.note_run(folder, env.run, machine_facts(env.device) | {"options": words})
    busy(env, 0.3 if env.smoke else 1.0)


def wrong(text: str) -> int:
    print(f"Error: {text}", file=sys.stderr)
    return 2


def say(line: str) -> None:
    print(line, flush=True)


def report(summary: runner.Summary, only: list[str]) -> int:
    """Print the counts; the exit code."""
    say(
        f"{summary.measured} measured ({summary.noisy} noisy), {summary.failed} failed, "
        f"{summary.there} there before, {len(summary.skipped)} families skipped"
        f"{', out of time' if summary.out_of_time else ''}"
    )
    if only and summary.skipped:
        return 6
    if summary.out_of_time:
        return 3
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
