"""Loops that tracing unrolled, rolled up again: linear recurrences h = a_t * h + b_t.

Tracing leaves the operators of every step in the graph, so that the graph, and the time to compile
it, grow with the number of steps. The rules find the whole loop by one recursive pattern and
replace it by one operator for any number of steps: `pypm::linear_recurrence`, or where the states
are matrices that vectors read, `pypm::linear_attention`, also for the delta rule. The pattern
recurses over the list of results, or from the last state to the first one. Each step binds the
number of its items, which a guard compares with that of the step before, so no search is repeated:
the time to match grows with the number of steps.

For any stage. `pre_grad` compiles fastest, and is the one for training. `torch.compile` computes a
short loop in one kernel that is faster than the operator, so the rules decline for few steps.
"""

import math
import operator

from pypm import decline, let, pattern, rule, var
from pypm.fx import aten, is_scalar, known_to_hold
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.support.triton import under_torch_compile
from pypm.rules.elements import broadcast, parts
from pypm.rules.recurrences.matrix_states import attended, factors_of, operands
from pypm.rules.recurrences.reads import Output
from pypm.rules.recurrences.steps import DELTA, Step
from pypm.rules.spellings import FLOATS

# --- all steps ----------------------------------------------------------------------------------


@pattern
def Placed(x, spread):  # a result as an element of a list
    let(spread=None)
    return x


@pattern
def Placed(x, spread):
    return aten.unsqueeze(x, spread)


@pattern
def Later(step, before, t, out, spread, last, steps):  # steps after step t
    n = var()
    h = Step(step, before, n)
    x = Placed(Output(h, out, n), spread)
    assert n == t + 1
    return [x, *Later(step, h, n, out, spread, last, steps)]


@pattern
def Later(step, before, t, out, spread, last, steps):
    let(last=before)
    let(steps=t + 1)
    return []


@pattern
def Loop(step, before, out, spread, last, steps):  # the list of all results
    n = var()
    h = Step(step, before, n)
    x = Placed(Output(h, out, n), spread)
    assert n == 0
    return [x, *Later(step, h, n, out, spread, last, steps)]


@pattern
def Gathered(step, before, out, spread, is_stack, d, last, steps):
    let(is_stack=True)
    let(spread=None)
    return aten.stack(Loop(step, before, out, spread, last, steps), d)


@pattern
def Gathered(step, before, out, spread, is_stack, d, last, steps):
    let(is_stack=False)
    return aten.cat(Loop(step, before, out, spread, last, steps), d)


@pattern
def Gathered(step, before, out, spread, is_stack, d, last, steps):
    t = var()
    let(is_stack=True)
    let(spread=None)
    y = aten.select_scatter(_, _, d, t)
    assert t == y.shape[d] - 1
    y <= Written(step, before, out, d, t, last)
    let(steps=t + 1)
    return y


@pattern
def Written(step, before, out, d, t, h):  # results up to step t, each written into one tensor
    rest, older, n = var(), var(), var()
    y = aten.select_scatter(rest, Copied(rest, Output(h, out, t), d, t), d, t)
    h <= Step(step, older, t)
    let(n=t - 1)
    rest <= Written(step, before, out, d, n, older)
    return y


@pattern
def Written(step, before, out, d, t, h):
    rest = var()
    y = aten.select_scatter(rest, Copied(rest, Output(h, out, t), d, t), d, t)
    h <= Step(step, before, t)
    assert t == 0
    return y


@pattern
def Copied(rest, x, d, t):
    y = aten.copy(aten.select(rest, d, t), x)
    assert y.dtype == x.dtype and y.shape == x.shape
    return y


@pattern
def Copied(rest, x, d, t):
    return x


@pattern
def WholeLoop(step, before, out, spread, is_stack, d, steps, shape):
    last = var()
    y = Gathered(step, before, out, spread, is_stack, d, last, steps)
    let(shape=last.shape)
    return y, last


# --- the last state alone ------------------------------------------------------------------------


@pattern
def State(step, before, t):  # the state after step t, of those from the first
    h, n = var(), var()
    y = Step(step, h, t)
    let(n=t - 1)
    h <= State(step, before, n)
    return y


@pattern
def State(step, before, t):
    y = Step(step, before, t)
    assert t == 0
    return y


@pattern
def Final(step, before, steps, shape):
    h, t = var(), var()
    y = Step(step, h, t)
    assert t == step[2][4] - 1
    y <= State(step, before, t)
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


@rule(WholeLoop)
def loop(step, before, out, spread, is_stack, d, steps, shape):
    found = computed(step, before, out, steps, shape)
    if isinstance(found, str):
        return decline(found)
    results, last = found
    return gathered(results, spread, is_stack, d), last


@rule(Final)
def last_state(step, before, steps, shape):
    found = computed(step, before, None, steps, shape)
    return decline(found) if isinstance(found, str) else found[1]


def computed(step, before, out, steps, shape):
    """Return the results of all steps and the last state, or the reason why they stay a loop.

    Arguments:
        step, before, steps, shape: those of `rolled`, or for `step`, the delta rule.
        out: what a step adds to the results, as `Output` binds it; None for no results.
    """
    first, *others = operands(step, before)
    if first.dtype not in FLOATS or any(x.dtype != first.dtype for x in others):
        return "the operands are not of one floating-point type"
    if steps < (FEW_COMPILED if under_torch_compile() else FEW):
        return "so few steps are faster as they are"
    found = attended(step, before, out, steps, shape)
    if found is not None:
        return found
    kind, _, (_, _, v, *_) = step
    if kind == DELTA:
        return (
            "the delta rule needs float32 or float64 on a CPU, and results that are products along"
            " the keys"
        )
    if v is not None and not known_to_hold(operator.le, steps * math.prod(shape), LARGEST):
        return "the outer products of all steps may take too much memory at once"
    states = rolled(step, before, steps, shape)
    return None if out is None else read(states, out, steps), states[-1]


def rolled(step, before, steps, shape):
    """Return the states of all steps, [steps, *shape].

    Arguments:
        step: what a step does, as `Step` binds it: no delta rule.
        before: the state before the first step: a tensor that broadcasts to `shape`, or a number.
        steps: the number of steps.
        shape: the shape of a state.
    """
    _, factor, (b, of_b, v, of_v, _) = step
    summands = broadcast(parts(b, of_b, steps), shape)
    if v is not None:
        summands = summands * broadcast(parts(v, of_v, steps), shape)
    factors = broadcast(factors_of(factor, b, steps), shape)
    before = b.new_full((), before) if is_scalar(before) else before
    return linear_recurrence(factors, summands, before.expand(shape), False)


def read(states, out, steps):
    """Return the results of all steps, [steps, ...]: states, or products of these with vectors.

    Arguments:
        states: [steps, ..., rows, columns].
        out: the vectors, as `Output` binds them: of a place and shape, columns [..., n, 1] if the
            state is multiplied by them, rows [..., 1, n] if they are by the state; and whether the
            state is transposed before.
        steps: the number of steps.
    """
    c, of_c, form = out
    if form is None:
        return states
    is_column, turned = form
    items = parts(c, of_c, steps)
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
