"""Loops over any number of steps, proved by induction."""

from __future__ import annotations

import pytest
import torch

from pypm import Pattern, decline, let, pattern, record, rule, var
from pypm.fx import Joins, aten, hiding
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.rnn import rnn
from pypm.kernels.support.steps import over_steps
from pypm.lang.pattern_function import PatternFunction
from pypm.laws.verdicts import Open, Proved, Refuted
from pypm.rules.loops.folds import (
    AllWritten,
    Itself,
    Joined,
    Listed,
    ListedBackwards,
    ListedBefore,
    State,
    Written,
    WrittenBefore,
    gathered,
)
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


@pattern
def Into(cell, h, place, steps):
    last = var()
    return AllWritten(Written(Itself(Step)), cell, _, h, place, last, steps), last


@rule(Into)
def written(cell, h, place, steps):
    found = states(cell, h, steps)
    return decline("other dimensions") if found is None else (gathered(found, place), found[-1])


@rule(Into)
def written_backwards(cell, h, place, steps):
    found = states(cell, h, steps)
    if found is None:
        return decline("other dimensions")
    return gathered(found.flip(0), place), found[-1]


@pattern
def Start(read, state, t):
    let(read=None)
    let(t=0)
    return aten.relu(state)


@pattern
def Delayed(cell, read, state, after, t):
    n = var()
    y = aten.relu(after)
    after <= Step(cell, state, n)
    let(read=None)
    let(t=n + 1)
    return y


@pattern
def After(cell, h, place, count):
    last = var()
    return Joined(ListedBefore(Start, Delayed), cell, _, h, place, last, count), last


@pattern
def WrittenAfter(cell, h, place, count):
    last = var()
    return AllWritten(WrittenBefore(Start, Delayed), cell, _, h, place, last, count), last


def with_the_first(cell, h, place, count):
    found = states(cell, h, count - 1)
    if found is None or found.shape[1:] != h.shape:
        return decline("other dimensions")
    return gathered(torch.relu(torch.cat((h.unsqueeze(0), found))), place), found[-1]


def with_the_last(cell, h, place, count):
    found = states(cell, h, count - 1)
    if found is None or found.shape[1:] != h.shape:
        return decline("other dimensions")
    return gathered(torch.relu(torch.cat((found[-1:], found))), place), found[-1]


def test_results_that_are_written_into_one_tensor() -> None:
    """They are those of all steps, in order; the tensor may have held anything before."""
    of_all, of_order = prove([written, written_backwards]).verdicts
    assert isinstance(of_all, Proved), of_all
    assert not isinstance(of_order, Proved)


@pytest.mark.parametrize("listed", [After, WrittenAfter], ids=["list", "written"])
def test_lists_after_a_first_tensor(listed: PatternFunction) -> None:
    of_all, of_last = (prove(rule(listed)(f)).verdicts[0] for f in (with_the_first, with_the_last))
    assert isinstance(of_all, Proved), of_all
    assert not isinstance(of_last, Proved)


@pattern
def Shifted(cell, before, t):
    x, at = var(), var()
    let(cell=record(x=x, at=at))
    assert x.rank == 2
    return Row(x, at, t) + (before + _)


@pattern
def LastShifted(cell, h, steps):
    t = var()
    y = State(Shifted, cell, h, t)
    let(steps=t + 1)
    return y


@rule(LastShifted)
def of_shifted(cell, h, steps):
    items = lined_up(cell.x, cell.at, steps)
    return linear_recurrence(torch.ones_like(items), items, h, False)[-1]


def test_a_step_that_reads_what_it_does_not_bind() -> None:
    """Each step may read another tensor: such steps are no loop."""
    law = prove(of_shifted).verdicts[0]
    assert isinstance(law, Open), law
    assert "does not bind" in law.reason


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


@pattern
def Scaled(factor, before, t):
    x, at = var(), var()
    y = Row(x, at, t)
    let(factor=record(x=x, of=(at, y.shape, y.dtype)))
    return y * before


@pattern
def LastScaled(factor, h, steps):
    t = var()
    y = State(Scaled, factor, h, t)
    let(steps=t + 1)
    return y


def scaled(factor, h, steps, scale=1.0):
    """Return the last state, by a kernel of its transpose; None for other types and dimensions."""
    at, shape, dtype = factor.of
    if len(shape) != 2 or dtype != h.dtype:
        return None
    factors = scale * lined_up(factor.x, at, steps).mT
    return linear_recurrence(factors, torch.zeros_like(factors), h.mT, False)[-1].mT


@rule(LastScaled)
def by_transposes(factor, h, steps):
    found = scaled(factor, h, steps)
    return decline("other dimensions") if found is None else found


@rule(LastScaled)
def by_other_transposes(factor, h, steps):
    found = scaled(factor, h, steps, 2.0)
    return decline("other dimensions") if found is None else found


def test_transposed_states() -> None:
    """A loop has the states of another one where a step makes the transpose of theirs."""
    of_same, of_other = prove([by_transposes, by_other_transposes]).verdicts
    assert isinstance(of_same, Proved), of_same
    assert not isinstance(of_other, Proved)


# --- results that read states before their steps, and steps that read fields of records -----------


@pattern
def Seen(x, at, t, h):
    return Row(x, at, t) * h


@pattern
def Next(x, at, t, h):
    return aten.maximum(h, Row(x, at, t))


@pattern
def SeenFirst(read, state, t):
    x, at, h = var(), var(), var()
    let(read=record(x=x, at=at))
    let(state=record(h=h))
    return Seen(x, at, t, h)


@pattern
def SeenNext(scale, read, state, after, t):
    x, at, n, h, new = var(), var(), var(), var(), var()
    y = Seen(x, at, t, new)
    new <= Next(x, at, n, h)
    assert n == t - 1
    let(scale=None)
    let(read=record(x=x, at=at))
    let(state=record(h=h))
    let(after=record(h=new))
    return y


@pattern
def SeenAndLast(read, state, place, steps):
    last, x, at, h, n = var(), var(), var(), var(), var()
    y = Joined(ListedBefore(SeenFirst, SeenNext), _, read, state, place, last, steps)
    let(x=read.x, at=read.at, h=last.h)
    let(n=steps - 1)
    return y, Next(x, at, n, h)


def largest(read, state, place, steps, seen=0, last=-1):
    """Return items times states, from the one `seen` by the first step on, and a `last` state."""
    items = lined_up(read.x, read.at, steps)
    if items.shape[1:] != state.h.shape:
        return decline("other dimensions")

    def step(states, item):
        new = torch.maximum(states[0], item)
        return new, (new,)

    after, _ = over_steps(step, (state.h,), items)
    states = torch.cat((state.h.unsqueeze(0), after))
    return gathered(items * states[seen : steps + seen], place), states[last]


@rule(SeenAndLast)
def seen(read, state, place, steps):
    return largest(read, state, place, steps)


@rule(SeenAndLast)
def seen_after(read, state, place, steps):
    return largest(read, state, place, steps, seen=1)


@rule(SeenAndLast)
def without_the_last(read, state, place, steps):
    return largest(read, state, place, steps, last=-2)


def test_results_of_states_before_their_steps() -> None:
    right, *wrong = prove([seen, seen_after, without_the_last]).verdicts
    assert isinstance(right, Proved), right
    assert not any(isinstance(law, Proved) for law in wrong)
