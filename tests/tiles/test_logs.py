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
from pypm.tiles.emulator import Event
from pypm.tiles.partition import Await, Get, Rings
from tests.properties.oracle import ask, require_oracle
from tests.tiles.cases import GATED, GEMM, agrees, kernel

pytestmark = pytest.mark.usefixtures("oracle")


@pytest.fixture(scope="module")
def oracle() -> None:
    require_oracle()


@dataclass
class Protocol:
    """The events of a log in the words of the judge."""

    made: Emitted
    turns: int
    """Of the loop, in each tile."""
    put: int = 0
    items: dict[tuple[int, int], int] = field(default_factory=dict)
    """The item that was last put into a slot of a ring."""
    landed: Counter[int] = field(default_factory=Counter)
    read: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        source = self.made.source
        self.arefs = source.arefs
        self.ring_of = {load.name: n for n, a in enumerate(self.arefs) for load in a.loads}
        self.copies = [sum(map(source.boxes, aref.loads)) for aref in self.arefs]
        dots = [s for s in source.program.body if hasattr(s, "onto")]
        self.readers = [
            sum(bool({d.left, d.right} & {x.name for x in a.loads}) for d in dots)
            for a in self.arefs
        ]

    def due(self, tiles: int) -> Iterator[int]:
        """The number of items that a consumer has got when it gives back each item."""
        turn, rings = self.made.source.turn, len(self.arefs)
        first = next(n for n, step in enumerate(turn) if isinstance(step, Await))
        got = sum(isinstance(step, Get) for step in turn[:first])
        for tile in range(tiles):
            end = (tile + 1) * self.turns
            for step in range(tile * self.turns, end):
                later = step + self.made.source.rings.in_flight
                yield from [min(later * rings + got, end * rings)] * rings

    def words(self, log: Sequence[Event]) -> Iterator[str]:
        for event in log:
            slot = re.fullmatch(r"slot (\d+) of r(\d+)_(full|empty)", event.place)
            consumer = event.agent.removeprefix("consumer")
            match event.kind:
                case "wait" if slot and slot[3] == "empty":
                    turn, ring = divmod(self.put, len(self.arefs))
                    assert (int(slot[1]), int(slot[2])) == (turn % self.depth, ring)
                    self.items[ring, turn % self.depth] = self.put
                    self.put += 1
                    yield "P"
                case "wait" if slot:
                    yield f"G{consumer}"
                case "arrive":
                    yield f"F{consumer}"
                case "end":
                    yield from self.ended(event)

    @property
    def depth(self) -> int:
        return self.made.source.rings.depth

    def ended(self, event: Event) -> Iterator[str]:
        places = re.findall(r"slot (\d+) of (\w+)_ring", event.place)
        found = {self.item(int(slot), name) for slot, name in places}
        consumer = re.fullmatch(r"products of consumer(\d+)", event.agent)
        for item in sorted(found):
            ring = item % len(self.arefs)
            if consumer:
                self.read[int(consumer[1]), item] += 1
                if self.read[int(consumer[1]), item] == self.readers[ring]:
                    yield f"E{consumer[1]}:{item}"
            else:
                self.landed[item] += 1
                if self.landed[item] == self.copies[ring]:
                    yield f"L{item}"

    def item(self, slot: int, name: str) -> int:
        ring = self.ring_of[name]
        load = next(x for x in self.arefs[ring].loads if x.name == name)
        return self.items[ring, slot // self.made.source.boxes(load)]


def queries(text: str, rings: Rings, sizes: tuple[int, int, int], seed: int) -> list[str]:
    """A query for each program of a run."""
    made, found = kernel(text, rings), agrees(text, rings, sizes, seed, programs=2)
    m, n, k = sizes
    turns, count = -(-k // 64), -(-m // 128) * -(-n // 64)
    asked = []
    for program, log in enumerate(found.log):
        protocol = Protocol(made, turns)
        words = " ".join(protocol.words(log))
        due = [*protocol.due(len(range(program, count, 2)))]
        slots, items = rings.depth * len(protocol.arefs), len(due)
        given = (slots, items, rings.groups, " ".join(map(str, due)), words)
        asked.append("\t".join(["ring", *map(str, given)]))
    return asked


@pytest.mark.parametrize("text", [GEMM, GATED], ids=["gemm", "gated"])
@pytest.mark.parametrize(
    "rings", [Rings(1, 0), Rings(2, 1, 2), Rings(3, 1, 2), Rings(4, 3), Rings(5, 2, 2), Rings(2, 0)]
)  # fmt: skip
def test_logs_are_runs_of_the_protocol(text: str, rings: Rings) -> None:
    for seed, sizes in enumerate([(200, 150, 300), (64, 64, 64), (128, 64, 700), (1, 200, 0)]):
        asked = queries(text, rings, sizes, seed)
        assert ask(asked) == ["accepted"] * len(asked)


@pytest.mark.parametrize("word", ["P", "G0", "G1", "F0", "F1", "L3", "E0:2"])
def test_a_log_without_an_event_is_refused(word: str) -> None:
    asked, *_ = queries(GATED, Rings(2, 1, 2), (128, 64, 300), 0)
    *given, events = asked.split("\t")
    words = events.split(" ")
    words.remove(word)
    (answer,) = ask(["\t".join([*given, " ".join(words)])])
    assert answer.startswith("refused after")
