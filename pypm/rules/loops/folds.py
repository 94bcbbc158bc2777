"""Folds over the steps of a loop that tracing unrolled: what a list of results has in common.

A fold takes the pattern of one step, `Step(step, read, state, after, t)`: it matches the result of
step t, which reads the state after it; `step` is what every step does to a state, `read` what it
adds to the results. `First(read, state, t)` matches a result that reads the state before all steps.
Each step binds the number of its items, which a guard compares with that of the step before, so no
search is repeated: the time to match grows with the number of steps.
"""

from pypm import Pattern, let, pattern, record, var
from pypm.fx import RESULT, Joins, Lists, Repeats, aten, hiding, observer

# --- lists of results ---------------------------------------------------------------------------


@observer()
def placed(result, spread):
    """Return a result as an element of a list."""
    return result if spread is None else result.unsqueeze(spread)


@pattern(means=hiding(placed, placed))
def Placed(x, spread):  # a result as an element of a list
    let(spread=None)
    return x


@pattern
def Placed(x, spread):
    return aten.unsqueeze(x, spread)


STEP, STATES = ("step", "read", "state", "after", "t"), {"state": "after"}
LIST = Repeats("Step", STEP, STATES, "t", Lists(placed, ("spread",), "last", "count"))
BACKWARDS = Lists(placed, ("spread",), "last", "count", is_reversed=True)
EARLIER = Lists(placed, ("spread",), "before", "t", is_reversed=True)


@pattern(means=LIST)
def Later(Step: Pattern, step, read, state, t, spread, last, count):  # results after the first t
    n, after = var(), var()
    y = Step(step, read, state, after, n)
    assert n == t + 1
    return [Placed(y, spread), *Later(Step, step, read, after, n, spread, last, count)]


@pattern
def Later(Step: Pattern, step, read, state, t, spread, last, count):
    let(last=state)
    let(count=t + 1)
    return []


@pattern(means=LIST)
def Listed(Step: Pattern, step, read, state, spread, last, count):
    n, after = var(), var()
    y = Step(step, read, state, after, n)
    assert n == 0
    return [Placed(y, spread), *Later(Step, step, read, after, n, spread, last, count)]


HEADED = Lists(placed, ("spread",), "last", "count", head=("First", "read", "state", "t"))


@pattern(means=Repeats("Step", STEP, STATES, "t", HEADED))
def ListedBefore(First: Pattern, Step: Pattern, step, read, state, spread, last, count):
    t, n, after = var(), var(), var()  # results of the states before the steps
    x = First(read, state, t)
    y = Step(step, read, state, after, n)
    let(t=0)
    assert n == 1
    return [
        Placed(x, spread),
        Placed(y, spread),
        *Later(Step, step, read, after, n, spread, last, count),
    ]


@pattern(means=Repeats("Step", STEP, STATES, "t", EARLIER))
def Earlier(Step: Pattern, step, read, state, t, before, spread):  # results before t, from the last
    n, older = var(), var()
    y = Step(step, read, older, before, n)
    assert n == t - 1
    return [Placed(y, spread), *Earlier(Step, step, read, state, n, older, spread)]


@pattern
def Earlier(Step: Pattern, step, read, state, t, before, spread):
    assert t == 0
    let(state=before)
    return []


@pattern(means=Repeats("Step", STEP, STATES, "t", BACKWARDS))
def ListedBackwards(Step: Pattern, step, read, state, spread, last, count):  # the last result first
    t, before = var(), var()
    y = Step(step, read, before, last, t)
    let(count=t + 1)
    return [Placed(y, spread), *Earlier(Step, step, read, state, t, before, spread)]


@observer()
def gathered(results, place):
    """Return the results of all steps as the graph joins them.

    Arguments:
        results: [steps, ...].
        place: as `Joined` binds it: `along`, the dimension along which they are joined; `is_stack`,
            False if they are concatenated; `spread`, the dimension by which each result is
            unsqueezed before, or None.
    """
    if place.spread is not None:
        spread = place.spread
        results = results.unsqueeze(spread + 1 if spread >= 0 else spread)
    d = place.along % (results.dim() if place.is_stack else results.dim() - 1)
    results = results.movedim(0, d)
    return results if place.is_stack else results.flatten(d, d + 1)


@pattern(means=hiding(gathered, Joins("List")))
def Joined(List: Pattern, step, read, state, place, last, count):
    spread, d = var(), var()
    y = aten.stack(List(step, read, state, spread, last, count), d)
    let(spread=None)
    let(place=record(is_stack=True, spread=None, along=d))
    return y


@pattern
def Joined(List: Pattern, step, read, state, place, last, count):
    spread, d = var(), var()
    y = aten.cat(List(step, read, state, spread, last, count), d)
    let(place=record(is_stack=False, spread=spread, along=d))
    return y


# --- results that are written into one tensor ---------------------------------------------------


@pattern(means=lambda rest, x, d, t: rest.select_scatter(x, d, t))
def Put(rest, x, d, t):
    return aten.select_scatter(rest, Copied(rest, x, d, t), d, t)


@pattern
def Begun(x, d, t):  # the same for any tensor
    rest = var()
    return aten.select_scatter(rest, Copied(rest, x, d, t), d, t)


@pattern(means=lambda rest, x, d, t: x)
def Copied(rest, x, d, t):
    y = aten.copy(aten.select(rest, d, t), x)
    assert y.dtype == x.dtype and y.shape == x.shape
    return y


@pattern
def Copied(rest, x, d, t):
    return x


def as_it_is(result, d):
    """Return a result as an item along dimension d."""
    return result


INTO = Lists(as_it_is, ("d",), "last", "count", is_written=True)
INTO_AFTER = Lists(
    as_it_is, ("d",), "last", "count", is_written=True, head=("First", "read", "state", "t")
)


@pattern(means=Repeats("Step", STEP, STATES, "t", INTO))
def Written(Step: Pattern, step, read, state, d, last, count):  # the first results
    rest, before, t = var(), var(), var()
    y = Put(rest, Step(step, read, before, last, t), d, t)
    assert t == count - 1
    rest <= Written(Step, step, read, state, d, before, t)
    return y


@pattern
def Written(Step: Pattern, step, read, state, d, last, count):
    t = var()
    y = Begun(Step(step, read, state, last, t), d, t)
    assert t == 0 and count == 1
    return y


@pattern(means=Repeats("Step", STEP, STATES, "t", INTO_AFTER))
def WrittenBefore(First: Pattern, Step: Pattern, step, read, state, d, last, count):
    rest, before, t = var(), var(), var()
    y = Put(rest, Step(step, read, before, last, t), d, t)
    assert t == count - 1
    rest <= WrittenBefore(First, Step, step, read, state, d, before, t)
    return y


@pattern
def WrittenBefore(First: Pattern, Step: Pattern, step, read, state, d, last, count):
    rest, t, n = var(), var(), var()
    y = Put(rest, Step(step, read, state, last, t), d, t)
    assert t == 1 and count == 2
    rest <= Begun(First(read, state, n), d, n)
    assert n == 0
    return y


@pattern(means=hiding(gathered, Joins("Results")))
def AllWritten(Results: Pattern, step, read, state, place, last, count):
    d, t = var(), var()
    y = aten.select_scatter(_, _, d, t)
    assert t == y.shape[d] - 1
    let(count=t + 1)
    let(place=record(is_stack=True, spread=None, along=d))
    y <= Results(step, read, state, d, last, count)
    return y


# --- steps whose state is one tensor ------------------------------------------------------------


@pattern
def Itself(Next: Pattern, step, read, state, after, t):  # the results are the states
    let(read=None)
    after <= Next(step, state, t)
    return after


STATE = Repeats("Next", ("step", "before", "t"), {"before": RESULT}, "t")


@pattern(means=STATE)
def State(Next: Pattern, step, before, t):  # the state after step t, of those from the first
    h, n = var(), var()
    y = Next(step, h, t)
    let(n=t - 1)
    h <= State(Next, step, before, n)
    return y


@pattern
def State(Next: Pattern, step, before, t):
    y = Next(step, before, t)
    assert t == 0
    return y
