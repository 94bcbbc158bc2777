"""Loops that tracing unrolled, rolled up again: linear recurrences h = a_t * h + b_t.

Tracing leaves the operators of every step in the graph, so that the graph, and the time to compile
it, grow with the number of steps. The rules find the whole loop by one recursive pattern and
replace it by `pypm::linear_recurrence`, one operator for any number of steps. The pattern recurses
over the list of results, or from the last state to the first one. Each step binds the number of
its items, which a guard compares with that of the step before, so no search is repeated: the time
to match grows with the number of steps.

For any stage. `pre_grad` compiles fastest, and is the one for training. `torch.compile` computes a
short loop in one kernel that is faster than the operator, so the rules decline for few steps.
"""

import math
import operator

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx import aten, is_scalar, known_to_hold
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.support.triton import under_torch_compile
from pypm.rules.spellings import FLOATS
from pypm.rules.steps import DELTA, Output, Step

# --- all steps ----------------------------------------------------------------------------------


@pattern
def Placed(x, spread):  # a result as an element of a list
    let(spread=None)
    return x


@pattern
def Placed(x, spread):
    return aten.unsqueeze(x, spread)


@pattern
def Later(
    a, of_a, b, of_b, v, of_v, before, t, c, of_c, form, spread, last, steps
):  # steps after step t
    n = var()
    h = Step(a, of_a, b, of_b, v, of_v, before, n)
    x = Placed(Output(h, c, of_c, n, form), spread)
    assert n == t + 1
    return [x, *Later(a, of_a, b, of_b, v, of_v, h, n, c, of_c, form, spread, last, steps)]


@pattern
def Later(a, of_a, b, of_b, v, of_v, before, t, c, of_c, form, spread, last, steps):
    let(last=before)
    let(steps=t + 1)
    return []


@pattern
def Loop(
    a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, last, steps
):  # the list of all results
    n = var()
    h = Step(a, of_a, b, of_b, v, of_v, before, n)
    x = Placed(Output(h, c, of_c, n, form), spread)
    assert n == 0
    return [x, *Later(a, of_a, b, of_b, v, of_v, h, n, c, of_c, form, spread, last, steps)]


@pattern
def Gathered(a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, is_stack, d, last, steps):
    let(is_stack=True)
    let(spread=None)
    return aten.stack(
        Loop(a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, last, steps), d
    )


@pattern
def Gathered(a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, is_stack, d, last, steps):
    let(is_stack=False)
    return aten.cat(Loop(a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, last, steps), d)


@pattern
def WholeLoop(a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, is_stack, d, steps, shape):
    last = var()
    y = Gathered(a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, is_stack, d, last, steps)
    let(shape=last.shape)
    return y, last


# --- the last state alone ------------------------------------------------------------------------


@pattern
def State(a, of_a, b, of_b, v, of_v, before, t):  # the state after step t, of those from the first
    h, n = var(), var()
    y = Step(a, of_a, b, of_b, v, of_v, h, t)
    let(n=t - 1)
    h <= State(a, of_a, b, of_b, v, of_v, before, n)
    return y


@pattern
def State(a, of_a, b, of_b, v, of_v, before, t):
    y = Step(a, of_a, b, of_b, v, of_v, before, t)
    assert t == 0
    return y


@pattern
def Final(a, of_a, b, of_b, v, of_v, before, steps, shape):
    t = var()
    y = State(a, of_a, b, of_b, v, of_v, before, t)
    assert t == b.shape[of_b[0][0]] - 1
    let(steps=t + 1)
    let(shape=y.shape)
    return y


# --- the rules -----------------------------------------------------------------------------------

FEW = 12
"""Steps below which the operator is slower than the steps, in graphs that run as they are.

Measured on a CPU: 0.9 times as fast with 8 steps, 1.1 times with 12.
"""
FEW_COMPILED = 128
"""The same under `torch.compile`, which computes so few steps by one kernel."""


LARGEST = 2**25
"""Elements of all states together, up to which outer products of all steps are computed at once."""


def unfit(a, of_a, b, v, before, steps, shape):
    """Return the reason for which a loop is not rolled up, or None.

    The arguments are those of `rolled`.
    """
    if of_a == DELTA:
        return "the summand of each step reads the state: the delta rule"
    others = [x for x in (a, v, before) if x is not None and not is_scalar(x)]
    if b.dtype not in FLOATS or any(x.dtype != b.dtype for x in others):
        return "the operands are not of one floating-point type"
    if steps < (FEW_COMPILED if under_torch_compile() else FEW):
        return "so few steps are faster as they are"
    if v is not None and not known_to_hold(operator.le, steps * math.prod(shape), LARGEST):
        return "the outer products of all steps may take too much memory at once"
    return None


@rule(WholeLoop)
def loop(a, of_a, b, of_b, v, of_v, before, c, of_c, form, spread, is_stack, d, steps, shape):
    reason = unfit(a, of_a, b, v, before, steps, shape)
    if reason is not None:
        return decline(reason)
    states = rolled(a, of_a, b, of_b, v, of_v, before, steps, shape)
    results = states if form is None else read(states, parts(c, of_c, steps), *form)
    return gathered(results, spread, is_stack, d), states[-1]


@rule(Final)
def last_state(a, of_a, b, of_b, v, of_v, before, steps, shape):
    reason = unfit(a, of_a, b, v, before, steps, shape)
    if reason is not None:
        return decline(reason)
    return rolled(a, of_a, b, of_b, v, of_v, before, steps, shape)[-1]


def rolled(a, of_a, b, of_b, v, of_v, before, steps, shape):
    """Return the states of all steps, [steps, *shape].

    Arguments:
        a, b, v: the tensors of which each step takes an item; a may be a number. The summand is the
            item of b, or if v is not None, the product of those of b and v.
        of_a, of_b, of_v: places and shapes of the items; empty if a is one factor for all steps.
        before: the state before the first step: a tensor that broadcasts to `shape`, or a number.
        steps: the number of steps.
        shape: the shape of a state.
    """
    a, before = (b.new_full((), x) if is_scalar(x) else x for x in (a, before))
    summands = parts(b, of_b, steps)
    if v is not None:
        summands = summands * parts(v, of_v, steps)
    factors, summands = (broadcast(x, shape) for x in (parts(a, of_a, steps), summands))
    return linear_recurrence(factors, summands, before.expand(shape), False)


def read(states, items, is_column, turned):
    """Return the products of the states with vectors, [steps, ..., n].

    Arguments:
        states: [steps, ..., rows, columns].
        items: the vectors as columns [steps, ..., n, 1], or as rows [steps, ..., 1, n].
        is_column: True if the state is multiplied by columns, False if rows are by the state.
        turned: True if the state is transposed before.
    """
    states, rows = states.to(items.dtype), items.mT if is_column else items
    return (rows @ (states.mT if is_column != turned else states)).squeeze(-2)


def gathered(results, spread, is_stack, d):
    """Return the results of all steps as the graph joins them.

    Arguments:
        results: [steps, ...].
        spread: the dimension by which each result is unsqueezed before, or None.
        is_stack: True if they are stacked, False if they are concatenated.
        d: the dimension along which they are joined.
    """
    if spread is not None:
        results = results.unsqueeze(spread + 1 if spread >= 0 else spread)
    d = d % (results.dim() if is_stack else results.dim() - 1)
    results = results.movedim(0, d)
    return results if is_stack else results.flatten(d, d + 1)


def parts(x, of, steps):
    """Return the items of x in the shape in which the steps take them, [steps, *shape].

    Arguments:
        x: the tensor.
        of: the place of the items, as in `lined_up`, and their shape; empty for x itself.
        steps: the number of steps.
    """
    at, shape = of if of else ((), x.shape)
    return lined_up(x, at, steps).reshape(steps, *shape)


def lined_up(x, at, steps):
    """Return the items of x that the steps take, [steps, ...].

    Arguments:
        x: the tensor.
        at: the place of the items: a dimension, and whether items keep it; empty for x itself.
        steps: the number of steps.
    """
    if not at:
        return x.expand((steps, *x.shape))
    dim, kept = at
    x = x.movedim(dim, 0)[:steps]
    return x.unsqueeze(dim + 1) if kept else x


def broadcast(items, shape):
    """Return items [steps, ...] expanded to [steps, *shape]."""
    steps, *sizes = items.shape
    missing = len(shape) - len(sizes)
    return items.reshape(steps, *missing * (1,), *sizes).expand(steps, *shape)


RULES = RuleSet((loop, last_state), "recurrences")
