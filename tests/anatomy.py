"""Redo the numbers and the pictures of docs/anatomy.md: `python tests/anatomy.py`. Needs torch.

Each section runs the command that stands in it. Its table gets the time, share, time alone and saving of the
parts that its rows name; words are written by people. `faults` says where these no longer fit: a part of 1%
of the time that has no row, or rows out of order.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memsim import cli
from memsim.explain_show import SEEN
from memsim.units import format_share, format_time

PAGE = Path(__file__).parents[1] / "docs" / "anatomy.md"
WORTH = 0.01  # share of a kernel's time from which a part has a row
COMMAND = re.compile(r"^```\nmemsim (kernel .*) -o \S+\n```$", re.M)
PICTURE = re.compile(r"\]\((anatomy/\S+\.svg)\)")
ROW = re.compile(r"^\| `([^`]+)` \| (`[^`]+`|all) \|.*\| ([^|]*)\|$", re.M)


def run(command: str) -> tuple[dict[str, Any], str]:
    """What a command says, its explained kernels by family, and its picture."""
    import json

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        if cli.run([*shlex.split(command), "--json", "-o", f"{folder}/out"]):
            raise SystemExit(f"memsim {command}: failed")
        picture = (Path(folder) / "out" / "explain.svg").read_text(encoding="utf-8")
    return {each["family"]: each for each in json.loads(printed.getvalue())["explained"]}, picture


def sections(page: str) -> Iterator[str]:
    """Those of the page that hold a command."""
    return (part for part in re.split(r"(?m)^(?=## )", page) if COMMAND.search(part))


def redone(page: str) -> tuple[str, dict[str, str], list[str]]:
    """The page with the numbers that its commands give, pictures by their path, and what its words miss."""
    pictures, missed = {}, []
    for section in sections(page):
        (command,), (path,) = COMMAND.findall(section), PICTURE.findall(section)
        kernels, pictures[path] = run(command)
        page = page.replace(section, ROW.sub(lambda row, found=kernels: _row(row, found), section))
        missed += faults(section, kernels)
    return page, pictures, missed


def _row(row: re.Match[str], kernels: dict[str, Any]) -> str:
    family, part, why = row.groups()
    kernel = kernels[family]
    cells = [_time(kernel["time_s"]), "", "", ""]
    if part != "all":
        found = kernel["parts"][part.strip("`")]
        alone = "" if found["alone_s"] is None else _time(found["alone_s"])
        cells = [
            _time(found["time_s"]),
            _share(found["share"]),
            alone,
            _time(found["saved_by_a_tenth_more_s"]),
        ]
    return re.sub(r" +", " ", " | ".join([f"| `{family}`", part, *cells, f"{why.strip()} |"]))


def _time(seconds: float) -> str:
    return format_time(round(seconds * 10**12))


def _share(share: float) -> str:
    return format_share(share) if share >= SEEN else "<0.1%"


def faults(section: str, kernels: dict[str, Any]) -> list[str]:
    """Where the rows of a section are not those that its command calls for."""
    found = []
    rows = [(family, part.strip("`")) for family, part, _ in ROW.findall(section)]
    for family, kernel in kernels.items():
        mine = [part for name, part in rows if name == family and part != "all"]
        order = [part for part in kernel["parts"] if part in mine]
        if mine != order:
            found.append(f"{family}: rows are {mine}, expected the order {order}")
        for part, said in kernel["parts"].items():
            if said["share"] >= WORTH and part not in mine:
                found.append(f"{family}: {part} is {said['share']:.1%} of the time and has no row")
    return found


def main() -> None:
    """Write the page and its pictures."""
    page, pictures, missed = redone(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    for path, picture in pictures.items():
        (PAGE.parent / path).write_text(picture, encoding="utf-8")
    sys.exit("\n".join(missed) or 0)


if __name__ == "__main__":
    main()
