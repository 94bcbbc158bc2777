"""Loops over any number of steps, proved by induction."""

from __future__ import annotations

import torch

from pypm import Pattern, decline, let, pattern, record, rule, var
from pypm.fx import Joins, aten, hiding
from pypm.kernels.rnn import rnn
from pypm.laws.verdicts import Open, Proved, Refuted
from pypm.rules.loops.folds import Itself, Joined, Listed, ListedBackwards, State, gathered
from pypm.rules.replacement.items import lined_up
from pypm.rules.vocabulary.indexing import axis, step
from pypm.tools import prove


@pattern(means=hiding(lined_up, lambda x, at, t, steps: lined_up(x, at, steps)[t]))
def Row(x, at, t):
    d, i = var(), var()
    let(at=axis(x.shape, d, False))
    let(t=step(x.shape, d, i))
    return aten.select(x, d, i)


@pattern
def Step(cell, before, t):
    x, at, u = var(), var(), var()
    let(cell=record(x=x, at=at, u=u))
    assert u.rank == 2
    return aten.tanh(Row(x, at, t) + aten.mm(before, u))


@pattern
def Last(cell, h, steps):
    t = var()
    y = State(Step, cell, h, t)
    let(steps=t + 1)
    return y


def states(cell, h, steps, is_relu=False):
    """Return all states, or None."""
    items = lined_up(cell.x, cell.at, steps)
    return rnn(items, cell.u.t(), h, is_relu) if items.dim() == 3 else None


@rule(Last)
def last(cell, h, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else found[-1]


@rule(Last)
def of_another_activation(cell, h, steps):
    found = states(cell, h, steps, True)
    return decline("other dimensions") if found is None else found[-1]


@rule(Last)
def one_step_before(cell, h, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else found[steps - 2]


@rule(Last)
def that_looks_inside(cell, h, steps):
    return torch.zeros(cell.at[0])


@pattern
def All(cell, h, place, steps):
    last = var()
    return Joined(Listed(Itself(Step)), cell, _, h, place, last, steps), last


@pattern
def Backwards(cell, h, place, steps):
    last = var()
    return Joined(ListedBackwards(Itself(Step)), cell, _, h, place, last, steps), last


@rule(All)
def in_order(cell, h, place, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else (gathered(found, place), found[-1])


@rule(All)
def in_order_but_the_first(cell, h, place, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else (gathered(found, place), found[0])


@rule(Backwards)
def in_order_too(cell, h, place, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else (gathered(found, place), found[-1])


@rule(Backwards)
def backwards(cell, h, place, steps):
    found = states(cell, h, steps)
    if found is None:
        return decline("other dimensions")
    return gathered(found.flip(0), place), found[-1]


@rule(All)
def in_order_but_not_joined(cell, h, place, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else (found, found[-1])


@pattern(means=hiding(gathered, Joins("List")))
def JoinedOtherwise(List: Pattern, step, read, state, place, last, count):
    spread, d = var(), var()
    y = aten.cat(List(step, read, state, spread, last, count), d)
    let(place=record(is_stack=True, spread=spread, along=d))
    return y


@pattern
def Otherwise(cell, h, place, steps):
    last = var()
    return JoinedOtherwise(Listed(Itself(Step)), cell, _, h, place, last, steps), last


@rule(Otherwise)
def joined_otherwise(cell, h, place, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else (gathered(found, place), found[-1])


def test_how_results_are_joined_is_what_the_pattern_says() -> None:
    """Results that are not joined, or joined in another way than the pattern says, are others."""
    laws = prove([in_order_but_not_joined, joined_otherwise]).verdicts
    assert not any(isinstance(law, Proved) for law in laws), laws


def test_lists_of_all_results() -> None:
    """A list of any number of results is what the kernel returns, in the order of the list."""
    of_all, of_first, of_order, of_reversed = prove(
        [in_order, in_order_but_the_first, in_order_too, backwards]
    ).verdicts
    assert isinstance(of_all, Proved), of_all
    assert isinstance(of_reversed, Proved), of_reversed
    assert not isinstance(of_first, Proved) and not isinstance(of_order, Proved)


def test_loops() -> None:
    """A loop of any number of steps is its kernel; other loops are none."""
    of_loop, of_relu, of_before, inside = prove(
        [last, of_another_activation, one_step_before, that_looks_inside]
    ).verdicts
    assert isinstance(of_loop, Proved)
    assert of_loop.scope.assumed == ("pypm.rnn",)
    assert isinstance(of_relu, Refuted)
    assert not isinstance(of_before, Proved)
    assert isinstance(inside, Open)
