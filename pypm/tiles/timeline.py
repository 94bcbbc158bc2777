"""A kernel's pipeline over time: the emulator run in the order of assumed times, as a picture.

The emulator executes the text; `TimedMachine` gives every operation a time, and performs the
earliest one next. Rates are those of a multiprocessor of an H100: 4,096 floating-point operations
of products and 64 bytes from the second-level cache in a cycle, and 600 cycles until a copy begins
to arrive. The picture shows the order and what waits for what; it is no measurement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

import torch

from pypm.diagnostics import Diagnostic
from pypm.emulation.requests import Body, Running, deadlock
from pypm.tiles.emit import Emitted
from pypm.tiles.emulator import emulate
from pypm.tiles.emulator.machine import Machine
from pypm.tiles.emulator.memory import Agent, Job, SharedTile
from pypm.tiles.partition import Aref
from pypm.tiles.program import DTYPES, DotTiles, TileError, statement_text

__all__ = [
    "BYTES",
    "LATENCY",
    "OPERATIONS",
    "WRITES",
    "PipelineSpan",
    "TimedMachine",
    "spans_of",
    "timeline",
]

OPERATIONS: Final = 4096.0
"""Floating-point operations of products in a cycle."""
BYTES: Final = 64.0
"""Bytes of copies in a cycle."""
LATENCY: Final = 600.0
"""Cycles until the first byte of a copy arrives."""
ISSUE: Final = 12.0
"""Cycles that a partition needs for an operation."""
WRITES: Final = 160.0
"""Cycles in which a group computes a piece of the results and writes it to shared memory."""


@dataclass(frozen=True, slots=True)
class PipelineSpan:
    """A time in which something is under way, in cycles."""

    lane: str
    """A partition, or the slot of a ring: "slot 0 of a_ring"."""
    kind: str
    """`wait`, `copy`, `product`, `write` or `store`."""
    begin: float
    end: float
    label: str
    number: int = 0
    """Of the copies into this slot, or of the products of this consumer, from 1 on."""


@dataclass
class TimedMachine(Machine):
    """Performs the earliest operation next, and records spans; seed and lateness have no effect."""

    now: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    """The time at which each partition is done with its last operation."""
    ends: dict[int, float] = field(default_factory=dict)
    """The time at which each job ends, by its identity."""
    spans: list[PipelineSpan] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """The rows of a partition's products, also of those whose first operand is in registers."""
    memory: float = 0.0
    """The time at which the copies that were started have arrived."""
    products: float = 0.0
    """The time at which the products that were started have ended."""

    def run(self, body: Body[Agent]) -> None:
        """Run a kernel to its end. Raises what `Machine.run` does."""
        self.spawn("kernel", body, Agent("kernel"))
        while self.running:
            jobs = [job for job in self.jobs if job.after is None or job.after.done]
            able = [each for each in self.running if each.request.ready(each.agent)]
            if not jobs and not able:
                raise deadlock(self.running)
            job = min(jobs, key=lambda job: self.ends[id(job)], default=None)
            each = min(able, key=lambda each: self.time(each.agent), default=None)
            if each is None or (
                job is not None and self.ends[id(job)] <= max(self.now, self.time(each.agent))
            ):
                assert job is not None
                self.now = max(self.now, self.ends[id(job)])
                self.complete(job)
            else:
                self.now = max(self.now, self.time(each.agent))
                self.timed(each)
        self.check_end()

    def time(self, agent: Agent) -> float:
        """Return when a partition is done with its last operation."""
        return self.times.setdefault(agent.name, self.now)

    def timed(self, each: Running[Agent]) -> None:
        """Perform the request of a partition, which has waited for it until now."""
        name, request, since = each.agent.name, each.request, self.time(each.agent)
        if self.now > since:
            self.spans.append(PipelineSpan(name, "wait", since, self.now, request.label))
        self.times[name] = self.now + ISSUE
        if request.label == "a write":
            self.times[name] = self.now + WRITES
            self.spans.append(PipelineSpan(name, "write", self.now, self.times[name], "results"))
        self.perform(each)

    def start(
        self, name: str, agent: Agent, act: Callable[[Job], None], after: Job | None = None,
        reads: Sequence[SharedTile] = (), writes: Sequence[SharedTile] = (),
    ) -> Job:  # fmt: skip
        """Start a job as `Machine.start` does, which ends after the time that is assumed."""
        job = super().start(name, agent, act, after, reads, writes)
        size = sum(x.data.numel() * x.data.element_size() for x in (*reads, *writes))
        begin = self.now
        if name.startswith("products"):
            inner, columns = reads[-1].data.shape
            if len(reads) > 1:
                self.rows[agent.name] = reads[0].data.shape[0]
            rows = self.rows[agent.name]
            begin = max(self.now, self.products)
            end = self.products = begin + 2 * rows * inner * columns / OPERATIONS
            kind, lane = "product", agent.name
        elif writes:
            end = self.memory = max(self.now + LATENCY, self.memory) + size / BYTES
            kind, lane = "copy", writes[0].label
        else:
            end = self.now + size / BYTES
            kind, lane = "store", agent.name
        self.ends[id(job)] = end
        self.spans.append(PipelineSpan(lane, kind, begin, end, name, job.time))
        return job


def spans_of(kernel: Emitted, tiles: int, turns: int) -> list[PipelineSpan]:
    """Return the spans of one program that computes some tiles, with so many turns of the loop."""
    program = kernel.source.program
    first, *others = program.grid
    sizes = {"1": 1, first.of: first.block * tiles}
    if program.loop is not None:
        sizes[program.loop.of] = program.loop.block * turns
    sizes |= {axis.of: axis.block for axis in others}
    operands = {
        o.name: torch.zeros([sizes[name] for name in o.sizes], dtype=DTYPES[o.dtype])
        for o in program.operands
    }
    machine = TimedMachine(0, 0.0)
    emulate(kernel, operands, machines=lambda seed, lateness: machine)
    return sorted(machine.spans, key=lambda span: (span.begin, span.end, span.lane))


# --- the picture ---------------------------------------------------------------------------------

WIDTH: Final = 1120
LEFT: Final = 118
TOP: Final = 74
ROW: Final = 22
STYLE: Final = """<style>
  text { font: 12px sans-serif; fill: #222 }
  .head { font-size: 15px; font-weight: bold } .small { font-size: 11px; fill: #555 }
  .inside { font-size: 10px; text-anchor: middle; fill: #fff }
  .paper { fill: #fff } .lane { fill: #f4f6f7 } .tick { stroke: #d5dbdf }
  .copy { fill: #1e6fd0 } .held { fill: #b9d6f7 } .product { fill: #2e8b45 }
  .wait { fill: #f6c26b } .write { fill: #8e5bb5 } .store { fill: #c9a8e2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #eee } .small { fill: #aab } .inside { fill: #fff }
    .paper { fill: #14181c } .lane { fill: #1e252b } .tick { stroke: #38434c }
    .held { fill: #264a73 } .wait { fill: #9a6a15 } .store { fill: #5d3f78 }
  }
</style>"""
LEGEND: Final = {
    "copy": "a copy is under way",
    "held": "it has landed; products read it",
    "product": "product",
    "wait": "waits",
    "write": "results computed",
    "store": "results stored",
}


@dataclass(frozen=True, slots=True)
class _Bar:
    lane: str
    kind: str
    begin: float
    end: float
    title: str
    text: str = ""


def timeline(kernel: Emitted, *, tiles: int = 2, turns: int = 6) -> str:
    """Return an SVG of one program that computes some tiles, one after another.

    Arguments:
        kernel: the kernel.
        tiles: the tiles of the result.
        turns: the turns of the loop in each tile.

    There is a lane for the producer, for each slot of a ring, for each consumer, and for its
    products. Times are assumed, as the module says. Raises TileError for a kernel that copies
    nothing ahead, and Fault as `emulate` does.
    """
    if not kernel.source.arefs:
        raise TileError(Diagnostic("the kernel has no pipeline: it copies nothing ahead"))
    bars = [*_bars(kernel, spans_of(kernel, tiles, turns))]
    lanes = [*_lanes(kernel)]
    end = max(bar.end for bar in bars)
    width, height = WIDTH - LEFT - 20, TOP + ROW * len(lanes) + 30
    scale = width / end
    rings = kernel.source.rings
    drawn_turns = {bar.text for bar in bars if bar.kind == "product"}
    at_most = "" if len(drawn_turns) == tiles * turns else "at most "
    title = (
        f"{tiles} tiles of {at_most}{turns} turns: {rings.depth} slots, {rings.in_flight} in"
        f" flight, {rings.groups} {'consumers' if rings.groups > 1 else 'consumer'}"
    )
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{title}">',
        STYLE,
        '<rect width="100%" height="100%" class="paper"/>',
        f'<text x="16" y="26" class="head">{title}</text>',
        *_legend(),
    ]
    for n, lane in enumerate(lanes):
        y = TOP + ROW * n
        drawn.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="18" class="lane"/>')
        name = "its products" if lane.startswith("its") else lane
        drawn.append(f'<text x="16" y="{y + 13}">{name}</text>')
    drawn += _ticks(end, scale, TOP + ROW * len(lanes))
    for bar in bars:
        drawn += _drawn(bar, LEFT + bar.begin * scale, TOP + ROW * lanes.index(bar.lane), scale)
    return "\n".join([*drawn, "</svg>\n"])


def _lanes(kernel: Emitted) -> Iterator[str]:
    yield "producer"
    for aref in kernel.source.arefs:
        yield from (_slot(aref, n) for n in range(aref.depth))
    for group in range(kernel.source.rings.groups):
        yield f"consumer {group}"
        yield f"its products {group}"


def _slot(aref: Aref, n: int) -> str:
    return f"{' + '.join(load.name for load in aref.loads)}, slot {n}"


def _bars(kernel: Emitted, spans: Sequence[PipelineSpan]) -> Iterator[_Bar]:
    source = kernel.source
    dots = [s for s in source.program.body if isinstance(s, DotTiles)]
    ends: dict[tuple[int, int], float] = {}
    """The time at which all consumers are done with a product of a turn."""
    for span in spans:
        who = re.fullmatch(r"(producer|consumer)(\d+)", span.lane)
        if span.kind == "product" and who:
            turn, dot = divmod(span.number - 1, len(dots))
            ends[turn, dot] = max(span.end, ends.get((turn, dot), 0))
            lane, title = f"its products {who[2]}", f"turn {turn}: {statement_text(dots[dot])}"
            yield _Bar(lane, "product", span.begin, span.end, title, str(turn))
        elif who:
            lane = "producer" if who[1] == "producer" else f"consumer {who[2]}"
            title = f"waits for {span.label}" if span.kind == "wait" else span.label
            yield _Bar(lane, span.kind, span.begin, span.end, title)
    for aref in source.arefs:
        names = {load.name for load in aref.loads}
        readers = [n for n, dot in enumerate(dots) if {dot.left, dot.right} & names]
        copies = _copies(kernel, aref, spans)
        is_kept = not {*aref.loads}.isdisjoint(source.program.before)
        for (turn, slot), (begin, end) in copies.items():
            what = "tile" if is_kept else "turn"
            lane, title = _slot(aref, slot), f"{what} {turn}: {', '.join(sorted(names))}"
            yield _Bar(lane, "copy", begin, end, title, str(turn))
            if is_kept:  # until the next copy into the slot
                after = copies.get((turn + aref.depth, slot), (math.inf, 0))[0]
                read = max(done for done in ends.values() if done <= after)
            else:
                read = max(ends[turn, dot] for dot in readers)
            yield _Bar(lane, "held", end, read, f"{title}, landed", str(turn))


def _copies(
    kernel: Emitted, aref: Aref, spans: Sequence[PipelineSpan]
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return when the copies of each turn into a slot began, and when the last one landed."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for load in aref.loads:
        boxes, lane = kernel.source.boxes(load), re.compile(rf"slot (\d+) of {load.name}_ring")
        for span in spans:
            if span.kind == "copy" and (place := lane.fullmatch(span.lane)):
                slot = int(place[1]) // boxes
                key = (span.number - 1) * aref.depth + slot, slot
                begin, end = found.get(key, (span.begin, span.end))
                found[key] = min(begin, span.begin), max(end, span.end)
    return found


def _drawn(bar: _Bar, x: float, y: int, scale: float) -> Iterator[str]:
    width = (bar.end - bar.begin) * scale
    yield (
        f"<g><title>{escape(bar.title)}, {bar.begin:.0f} to {bar.end:.0f}</title>"
        f'<rect x="{x:.1f}" y="{y + 1}" width="{max(width, 0.7):.1f}" height="16" rx="2"'
        f' class="{bar.kind}"/>'
    )
    if bar.text and bar.kind != "held" and width > 6 * len(bar.text):
        yield f'<text x="{x + width / 2:.1f}" y="{y + 13}" class="inside">{bar.text}</text>'
    yield "</g>"


def _legend() -> Iterator[str]:
    x = 16
    for kind, words in LEGEND.items():
        yield f'<rect x="{x}" y="42" width="14" height="14" rx="2" class="{kind}"/>'
        yield f'<text x="{x + 20}" y="53" class="small">{words}</text>'
        x += 40 + round(6.2 * len(words))


def _ticks(end: float, scale: float, bottom: int) -> Iterator[str]:
    step = next(n for n in (250, 500, 1000, 2000, 5000, 10**4, 10**5, 10**6) if end / n <= 14)
    for at in range(0, int(end) + 1, step):
        x = LEFT + at * scale
        yield f'<path d="M{x:.1f} {TOP - 4}V{bottom + 2}" class="tick"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" class="small">{at:,}</text>'
    yield f'<text x="16" y="{bottom + 16}" class="small">assumed cycles</text>'
