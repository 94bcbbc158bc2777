"""What is measured: a row for each job, in it a cell for each tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from benchmarks.peers import Peer, Tool
from benchmarks.terms import CannotExpress, NotTried, Rule, Subject
from benchmarks.timing import Times, interleave, timed

__all__ = ["Cell", "Job", "Record", "Row", "WrongCount", "run", "run_all"]

Record: TypeAlias = dict[str, Any]
"""What is kept of a row, as JSON."""


_Known: TypeAlias = dict[tuple[str, str, int, int], float]
"""Seconds of a run, by tool, series, nodes and rules."""


class WrongCount(Exception):
    """A tool made other rewrites than were expected of it."""


@dataclass(frozen=True)
class Job:
    """Rules to apply to a graph, and what should come of it.

    Jobs of one `series` differ in size alone. `rewrites` is the number of rewrites, `remaining`
    that of the operators left at the end; None is not checked. Where `may_miss`, a tool may make
    fewer rewrites; what it misses is then its result.
    """

    part: str
    series: str
    label: str
    rules: tuple[Rule, ...]
    subject: Subject
    rewrites: int | None
    facts: Mapping[str, int]
    fixpoint: bool = False
    remaining: int | None = None
    may_miss: bool = False

    @property
    def nodes(self) -> int:
        return len(self.subject.calls)


@dataclass(frozen=True)
class Cell:
    """What one tool took for one job, or why there is no time."""

    times: Times | None
    note: str = ""
    ready: float = 0.0
    """Seconds to make the rules."""


@dataclass(frozen=True)
class Row:
    job: Job
    cells: Mapping[str, Cell]

    def record(self) -> Record:
        """The row as JSON: microseconds a node, milliseconds of the first use beyond that."""
        job = self.job
        facts = {"part": job.part, "label": job.label, **job.facts, "rewrites": job.rewrites}
        return {**facts, "tools": {name: self._tool(cell) for name, cell in self.cells.items()}}

    def _tool(self, cell: Cell) -> Record:
        if cell.times is None:
            return {"note": cell.note}
        first = cell.ready + cell.times.first - cell.times.median
        return {
            "us_per_node": cell.times.median / self.job.nodes * 1e6,
            "first_use_ms": max(0.0, first) * 1e3,
            "rounds": len(cell.times.rounds),
            "note": cell.note,
        }


def run_all(
    jobs: Sequence[Job], peers: Mapping[str, Peer], *, seconds: float, rounds: int
) -> Iterator[Row]:
    """One row for each job, in order.

    A tool is left out where one run would take over `seconds`, to judge by jobs before it: by the
    last with as many rules and fewer nodes, and by the last two with as many nodes and fewer rules.
    """
    known: _Known = {}
    for job in jobs:
        able: dict[str, Peer] = {}
        cells: dict[str, Cell] = {}
        for name, peer in peers.items():
            if (guess := _guess(known, name, job)) > seconds:
                cells[name] = Cell(None, f"over {seconds:.0f} s")
                known[name, job.series, job.nodes, len(job.rules)] = guess
            else:
                able[name] = peer
        row = run(job, able, seconds=seconds, rounds=rounds)
        for name, cell in row.cells.items():
            if cell.times is not None:
                known[name, job.series, job.nodes, len(job.rules)] = cell.times.median
        yield Row(job, {name: (row.cells | cells)[name] for name in peers})


def _guess(known: _Known, name: str, job: Job) -> float:
    nodes, rules = job.nodes, len(job.rules)
    alike = [(n, r, t) for (p, s, n, r), t in known.items() if (p, s) == (name, job.series)]
    smaller = [(n, t) for n, r, t in alike if r == rules and n < nodes]
    fewer = [(r, t) for n, r, t in alike if n == nodes and r < rules]
    found = 0.0
    if smaller:
        size, took = max(smaller)
        found = took * nodes / size
    if len(fewer) > 1:
        (_, before), (_, last) = sorted(fewer)[-2:]
        found = max(found, last * last / before)
    return found


def run(job: Job, peers: Mapping[str, Peer], *, seconds: float, rounds: int) -> Row:
    """Time all tools on one job, in turn. Raises WrongCount."""
    cells: dict[str, Cell] = {}
    notes = dict.fromkeys(peers, "")
    tools: dict[str, Tool] = {}
    ready: dict[str, float] = {}
    for name, peer in peers.items():
        try:
            ready[name], tools[name] = timed(
                partial(peer.compile, job.rules, fixpoint=job.fixpoint)
            )
        except CannotExpress as reason:
            tried = "not tried" if isinstance(reason, NotTried) else "cannot express"
            cells[name] = Cell(None, f"{tried}: {reason}")

    def check(name: str, result: tuple[int | None, object]) -> None:
        count, graph = result
        expected = job.rewrites
        if count is None:
            return
        if expected is not None and count < expected and job.may_miss:
            notes[name] = f"misses {expected - count} of {expected}"
        elif expected is not None and count != expected:
            raise WrongCount(f"{job.label}: {name} made {count} rewrites, not {expected}")
        if job.remaining is not None:
            left = tools[name].operators(graph)
            if left != job.remaining:
                raise WrongCount(f"{job.label}: {name} left {left} operators, not {job.remaining}")

    contenders = {name: partial(_prepare, tool, job.subject) for name, tool in tools.items()}
    times = interleave(contenders, seconds=seconds, rounds=rounds, check=check)
    cells |= {name: Cell(taken, notes[name], ready[name]) for name, taken in times.items()}
    return Row(job, cells)


def _prepare(tool: Tool, subject: Subject) -> Callable[[], tuple[int | None, object]]:
    graph = tool.subject(subject)
    return lambda: (tool.run(graph), graph)
