"""The steps of consumers in a loop: when products are issued and awaited, and slots given back.

Products of a group end in the order in which they were issued. A product is awaited where a
statement needs its result, where `in_flight` turns have passed, or at the end of the loop. Then all
products before it have ended too, and the slots that only they read are given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pypm.diagnostics import InternalError
from pypm.tiles.program import DotTiles, LoadTile, Statement, StoreTile, reads
from pypm.tiles.steps import Aref, Await, Consumed, Get, Issue, Perform, Step

__all__ = ["LoopSteps", "is_early", "loop_steps", "steps_ahead"]


@dataclass(frozen=True, slots=True)
class LoopSteps:
    """The steps of a turn, those after the last turn, and the tiles in flight between turns."""

    turn: tuple[Step, ...]
    end: tuple[Step, ...]
    flying: tuple[str, ...] = ()
    first: tuple[Step, ...] = ()
    last: tuple[Step, ...] = ()
    """The last turn, if it is another one."""


def loop_steps(body: Sequence[Statement], arefs: Sequence[Aref], in_flight: int) -> LoopSteps:
    """Return the steps of a loop.

    Arguments:
        body: its statements.
        arefs: the rings that are filled in each turn, in their order.
        in_flight: the turns that a product may take, if nothing needs its result before.
    """
    flying: tuple[tuple[DotTiles, int], ...] = ()
    for _ in range(in_flight + 2):
        walk = _Walk(body, arefs, in_flight, [*flying])
        turn = tuple(walk.turn())
        left = tuple((dot, age + 1) for dot, age in walk.queue)
        if left == flying:
            names = tuple(dict.fromkeys(dot.name for dot, _ in flying))
            return LoopSteps(turn, tuple(_Walk(body, arefs, 0, [*flying]).drained()), names)
        flying = left
    raise InternalError("the products in flight are other ones in each turn")


def steps_ahead(body: Sequence[Statement], arefs: Sequence[Aref]) -> LoopSteps | None:
    """Return the steps of a loop whose turns issue the first products of the next turn.

    These are products of copies alone. They run beside what is computed from those of this turn,
    and are awaited at the end of it, in the order of their issue. None if there is no such product,
    or a turn needs the result of another one.
    """
    early = [s for s in body if isinstance(s, DotTiles) and is_early(s, body)]
    rest = [s for s in body if s not in early]
    others = {s.name for s in rest if isinstance(s, DotTiles)}
    needed = [s for s in rest if not isinstance(s, DotTiles) and _is_late(s, rest, others)]
    if not early or needed:
        return None
    first = _Walk(early, arefs, 0, [])
    start = (*first.turn(),)
    walk = _Walk(rest, arefs, 0, [])
    last = (*walk.turn(),)
    ahead: list[Step] = []
    for step in start:
        match step:
            case Get(aref):
                ahead.append(Get(aref, 1))
            case Issue(dot):
                ahead.append(Issue(dot, 1))
    performed = [step for step in last if not isinstance(step, Await | Consumed)]
    given = [step for step in start if isinstance(step, Consumed)]
    end = [step for step in last if isinstance(step, Await | Consumed)]
    names = tuple(dict.fromkeys(dot.name for dot in early))
    left = sum(isinstance(step, Issue) for step in last)
    turn = (
        *ahead,
        *performed,
        Await(left, names),
        *(Consumed(step.aref, -1) for step in given),
        *end,
    )
    return LoopSteps(turn, (), (), start, last)


def is_early(dot: DotTiles, body: Sequence[Statement]) -> bool:
    """Return whether a product reads nothing that a turn computes."""
    computed = {s.name for s in body if not isinstance(s, LoadTile | StoreTile)}
    return dot.onto is None and not {dot.left, dot.right} & computed


def _is_late(statement: Statement, rest: Sequence[Statement], others: set[str]) -> bool:
    """Return whether a statement reads or changes a product that its own turn has issued."""
    before = rest[: rest.index(statement)]
    issued = {s.name for s in before if isinstance(s, DotTiles)} & others
    return bool(issued & {*reads(statement), getattr(statement, "name", "")})


@dataclass
class _Walk:
    """A walk over the statements of a turn, from the products that are in flight at its begin."""

    body: Sequence[Statement]
    arefs: Sequence[Aref]
    in_flight: int
    queue: list[tuple[DotTiles, int]]
    """Products in flight, in order, with the turns since they were issued."""
    held: list[tuple[Aref, int]] = field(default_factory=list)
    """Slots that were got and not given back, with the turns since."""
    got: set[str] = field(default_factory=set)
    issued: int = 0

    def __post_init__(self) -> None:
        ages = sorted({age for _, age in self.queue}, reverse=True)
        self.held = [
            (aref, age)
            for age in ages
            for aref in self.arefs
            if any(of == age and _reads(dot, aref) for dot, of in self.queue)
        ]

    def turn(self) -> Iterator[Step]:
        for statement in self.body:
            match statement:
                case DotTiles():
                    yield from self.issue(statement)
                case StoreTile():
                    raise InternalError("a store in a loop")
                case _ if all(statement not in aref.loads for aref in self.arefs):
                    yield from self.finished({*reads(statement), statement.name})
                    yield Perform(statement)
        if not self.in_flight:
            yield from self.awaited(len(self.queue))

    def issue(self, dot: DotTiles) -> Iterator[Step]:
        for aref in self.arefs:
            if aref.name not in self.got and _reads(dot, aref):
                self.got.add(aref.name)
                self.held.append((aref, 0))
                yield Get(aref)
        old = [n for n, (_, age) in enumerate(self.queue) if age >= self.in_flight]
        if old and any(other.name == dot.name for other, age in self.queue if age):
            yield from self.awaited(old[-1] + 1)
        yield Issue(dot)
        self.queue.append((dot, 0))
        self.issued += 1

    def finished(self, names: set[str]) -> Iterator[Step]:
        """Await the products whose results have these names."""
        needed = [n for n, (dot, _) in enumerate(self.queue) if dot.name in names]
        if needed:
            yield from self.awaited(needed[-1] + 1)

    def awaited(self, count: int) -> Iterator[Step]:
        """Await the first products in the queue, and give back what nothing reads any more."""
        if not count:
            return
        ended, self.queue = self.queue[:count], self.queue[count:]
        names = {dot.name for dot, _ in ended}
        order = dict.fromkeys(s.name for s in self.body if isinstance(s, DotTiles))
        yield Await(len(self.queue), tuple(name for name in order if name in names))
        for aref, age in [*self.held]:
            if not self.is_read(aref, age):
                self.held.remove((aref, age))
                yield Consumed(aref, age)

    def is_read(self, aref: Aref, age: int) -> bool:
        """Return whether a product reads a slot that is in flight, or not issued yet."""
        dots = [s for s in self.body if isinstance(s, DotTiles)]
        later = dots[self.issued :] if age == 0 else []
        return any(_reads(dot, aref) for dot in later) or any(
            of == age and _reads(dot, aref) for dot, of in self.queue
        )

    def drained(self) -> Iterator[Step]:
        """Yield the steps after the last turn; ages count from it."""
        yield from self.awaited(len(self.queue))


def _reads(dot: DotTiles, aref: Aref) -> bool:
    return bool({dot.left, dot.right} & {load.name for load in aref.loads})
