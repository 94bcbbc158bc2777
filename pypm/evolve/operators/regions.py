"""Marked regions of sources: lines changed at random, or taken from another candidate."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.candidate import digest_of, read_files, write_files
from pypm.evolve.operators.marks import MarkedRegion, regions, with_regions
from pypm.evolve.operators.operator import Evaluate, Exhausted, History, Turn

__all__ = ["Regions"]

_TRIES: Final = 200
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?![\w.])")

Lines = tuple[str, ...]


class Regions:
    """Mutates a marked region of the incumbent, or crosses it with that of another candidate."""

    name = "regions"

    def vary(
        self,
        workdir: Path,
        lineage: History,
        knowledge: Path,
        evaluate: Evaluate,
        budget: Turn,
    ) -> str:
        files = read_files(workdir)
        found = {name: each for name, each in regions(files).items() if each.lines}
        if not found:
            help = "put `// evolve: begin NAME` and `// evolve: end` around lines"
            raise PyPMError(Diagnostic("the candidate has no marked regions", help=help))
        random = budget.random()
        others = _others(found, lineage)
        tried = lineage.judged()
        for _ in range(_TRIES):
            region = found[random.choice([*found])]
            known = others[region.name]
            is_crossed = bool(known) and random.random() < 0.5
            lines = random.choice(known) if is_crossed else mutated(region.lines, random)
            made = with_regions(files, {region.name: lines})
            if digest_of(made) not in tried:
                write_files(made, workdir)
                return f"{region.name}: {'crossed' if is_crossed else 'mutated'}"
        raise Exhausted("all changes that were made up were tried before")


def _others(found: dict[str, MarkedRegion], lineage: History) -> dict[str, list[Lines]]:
    """Return for each region the other texts that it has in candidates that were right."""
    known: dict[str, list[Lines]] = {name: [] for name in found}
    for digest, attempt in lineage.judged().items():
        if attempt.verdict.is_right:
            there = regions(lineage.snapshots.files(digest))
            for name, region in found.items():
                lines = there[name].lines if name in there else region.lines
                if lines != region.lines and lines not in known[name]:
                    known[name].append(lines)
    return known


def mutated(lines: Lines, random: Random) -> Lines:
    """Return lines of which one is deleted, repeated, exchanged with the next, or has another
    number in it.
    """
    at = random.randrange(len(lines))
    before, line, after = lines[:at], lines[at], lines[at + 1 :]
    match random.choice(("delete", "repeat", "exchange", "number", "number")):
        case "delete":
            return *before, *after
        case "repeat":
            return *before, line, line, *after
        case "exchange" if after:
            return *before, after[0], line, *after[1:]
    places = [*_NUMBER.finditer(line)]
    if not places:
        return lines
    place = random.choice(places)
    value = int(place[0])
    other = random.choice((value * 2, value // 2, value + 1, max(value - 1, 0)))
    return *before, f"{line[: place.start()]}{other}{line[place.end() :]}", *after
