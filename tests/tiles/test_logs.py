"""Logs of the emulator, judged by the step relation of `coq/theories/Arefs.v`, extracted.

Several rings that are filled in one order are one ring of all their slots (`T12_rings`): item
`turn * rings + ring` of it is what a ring has in a turn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from pypm.tiles.emit import Emitted
from pypm.tiles.emulator import Emulation, Event
from pypm.tiles.partition import Aref, Consumed, Get, Rings
from tests.properties.oracle import ask, require_oracle
from tests.tiles.cases import GATED, GEMM, agrees, kernel
from tests.tiles.test_attention import AHEAD, attended, attends
from tests.tiles.test_experts import grouped, kernel_for

pytestmark = pytest.mark.usefixtures("oracle")


@pytest.fixture(scope="module")
def oracle() -> None:
    require_oracle()


@dataclass
class Protocol:
    """The events of a log in the words of the judge, for rings that are filled in one order.

    That is all rings of the loop, or one that is kept: it is filled once a tile.
    """

    made: Emitted
    arefs: Sequence[Aref]
    turns: Sequence[int]
    """Of the loop, in each tile."""
    put: int = 0
    items: dict[tuple[int, int], int] = field(default_factory=dict)
    """The item that was last put into a slot of a ring."""
    landed: Counter[int] = field(default_factory=Counter)
    read: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        source = self.made.source
        self.names = {aref.name: n for n, aref in enumerate(self.arefs)}
        self.ring_of = {load.name: n for n, a in enumerate(self.arefs) for load in a.loads}
        self.copies = [sum(map(source.boxes, aref.loads)) for aref in self.arefs]
        dots = [s for s in source.program.body if hasattr(s, "onto")]
        self.readers = [
            sum(bool({d.left, d.right} & {x.name for x in a.loads}) for d in dots)
            for a in self.arefs
        ]

    @property
    def depth(self) -> int:
        return self.arefs[0].depth

    def due(self) -> list[int]:
        """The number of items that a consumer has got when it gives back each item."""
        source, found, got = self.made.source, list[int](), 0
        for turns in self.turns:
            steps = [(step, 0) for step in source.first if turns]
            for n in range(turns):
                is_last = source.last and n == turns - 1
                steps += [(step, n) for step in (source.last if is_last else source.turn)]
            for step, turn in [
                *((step, 0) for step in source.before), *steps,
                *((step, turns) for step in source.after),
            ]:  # fmt: skip
                match step:
                    case Get(aref) if aref in self.arefs:
                        got += 1
                    case Consumed(aref, behind) if aref in self.arefs and turn >= behind:
                        found.append(got)
        return found

    def words(self, log: Sequence[Event]) -> Iterator[str]:
        for event in log:
            slot = re.fullmatch(r"slot (\d+) of (r\d+)_(full|empty)", event.place)
            consumer = event.agent.removeprefix("consumer")
            if slot and slot[2] not in self.names:
                continue
            match event.kind:
                case "wait" if slot and slot[3] == "empty":
                    turn, ring = divmod(self.put, len(self.arefs))
                    assert (int(slot[1]), self.names[slot[2]]) == (turn % self.depth, ring)
                    self.items[ring, turn % self.depth] = self.put
                    self.put += 1
                    yield "P"
                case "wait" if slot:
                    yield f"G{consumer}"
                case "arrive":
                    yield f"F{consumer}"
                case "end":
                    yield from self.ended(event)

    def ended(self, event: Event) -> Iterator[str]:
        places = re.findall(r"slot (\d+) of (\w+)_ring", event.place)
        found = {self.item(int(slot), name) for slot, name in places if name in self.ring_of}
        consumer = re.fullmatch(r"products of consumer(\d+)", event.agent)
        for item in sorted(found):
            ring = item % len(self.arefs)
            if consumer:
                self.read[int(consumer[1]), item] += 1
                if self.read[int(consumer[1]), item] == self.readers[ring] * self.reads(item):
                    yield f"E{consumer[1]}:{item}"
            else:
                self.landed[item] += 1
                if self.landed[item] == self.copies[ring]:
                    yield f"L{item}"

    def reads(self, item: int) -> int:
        """The turns in which an item is read."""
        return self.turns[item] if self.arefs[0].is_kept else 1

    def item(self, slot: int, name: str) -> int:
        ring = self.ring_of[name]
        load = next(x for x in self.arefs[ring].loads if x.name == name)
        return self.items[ring, slot // self.made.source.boxes(load)]


def judged(made: Emitted, found: Emulation, turns: Sequence[int]) -> list[str]:
    """Queries for all programs of a run; `turns` are those of all tiles, in order."""
    arefs, asked = made.source.arefs, []
    joint = [] if made.source.first else [aref for aref in arefs if not aref.is_kept]
    alone = [[aref] for aref in arefs if aref not in joint]
    for program, log in enumerate(found.log):
        for some in ([joint] if joint else []) + alone:
            protocol = Protocol(made, some, turns[program :: len(found.log)])
            words, due = " ".join(protocol.words(log)), protocol.due()
            slots, groups = protocol.depth * len(some), made.source.rings.groups
            given = (slots, len(due), groups, " ".join(map(str, due)), words)
            asked.append("\t".join(["ring", *map(str, given)]))
    return asked


def queries(text: str, rings: Rings, sizes: tuple[int, int, int], seed: int) -> list[str]:
    m, n, k = sizes
    tiles = -(-m // 128) * -(-n // 64)
    made, found = kernel(text, rings), agrees(text, rings, sizes, seed, programs=2)
    return judged(made, found, [-(-k // 64)] * tiles)


@pytest.mark.parametrize("text", [GEMM, GATED], ids=["gemm", "gated"])
@pytest.mark.parametrize(
    "rings", [Rings(1, 0), Rings(2, 1, 2), Rings(3, 1, 2), Rings(4, 3), Rings(5, 2, 2), Rings(2, 0)]
)  # fmt: skip
def test_logs_are_runs_of_the_protocol(text: str, rings: Rings) -> None:
    for seed, sizes in enumerate([(200, 150, 300), (64, 64, 64), (128, 64, 700), (1, 200, 0)]):
        asked = queries(text, rings, sizes, seed)
        assert ask(asked) == ["accepted"] * len(asked)


@pytest.mark.parametrize("name", ["causal", "window", "mean"])
@pytest.mark.parametrize("rings", [Rings(1, 0, 2), Rings(2, 1), Rings(3, 1, 2), AHEAD])
def test_logs_of_attention_are_runs_of_the_protocol(name: str, rings: Rings) -> None:
    """Also where tiles have different numbers of turns; queries are judged by themselves."""
    sizes = (1, 1, 2, 200, 170)
    program, made = attended(name, sizes, rings)
    rows, visits = program.grid[0].block, program.visits
    starts = range(0, 200, rows)
    turns = [len(visits.turns(start, 64, 170)) if visits else 3 for start in starts]
    asked = judged(made, attends(name, sizes, 0, rings, programs=2), turns * 2)
    assert len(asked) == (6 if rings.ahead else 4)  # a ring is judged by itself if read ahead
    assert ask(asked) == ["accepted"] * len(asked)


def test_logs_of_experts_are_runs_of_the_protocol() -> None:
    """Tiles beyond the last expert have no turns."""
    counts = (0, 130, 1, 200)
    for rings in (Rings(1, 0, 2), Rings(3, 1, 2)):
        found, made = grouped(counts, 140, 150, 1, rings), kernel_for(True, rings)
        full = sum(-(-count // 128) for count in counts)
        most = -(-sum(counts) // 128) + len(counts)
        asked = judged(made, found, ([3] * full + [0] * (most - full)) * 2)
        assert ask(asked) == ["accepted"] * 2


@pytest.mark.parametrize("word", ["P", "G0", "G1", "F0", "F1", "L3", "E0:2"])
def test_a_log_without_an_event_is_refused(word: str) -> None:
    asked, *_ = queries(GATED, Rings(2, 1, 2), (128, 64, 300), 0)
    *given, events = asked.split("\t")
    words = events.split(" ")
    words.remove(word)
    (answer,) = ask(["\t".join([*given, " ".join(words)])])
    assert answer.startswith("refused after")
