"""Loops that tracing unrolled, rolled up again: linear recurrences h = a_t * h + b_t.

Tracing leaves the operators of every step in the graph, so that the graph, and the time to compile
it, grow with the number of steps. The rules find the whole loop by one recursive pattern and
replace it by one operator for any number of steps: `pypm::linear_recurrence`, or where the states
are matrices that vectors read, `pypm::linear_attention`, also for the delta rule, or `pypm::scan`,
where factors and summands are matrices, as in Mamba. The patterns fold over the steps, by
`pypm.rules.loops.folds`.

For any stage. `pre_grad` compiles fastest, and is the one for training. `torch.compile` computes a
short loop in one kernel that is faster than the operator, so the rules decline for few steps.
"""

import math
import operator

import torch

from pypm import decline, keep, let, pattern, record, rule, var
from pypm.fx import is_scalar, known_to_hold
from pypm.kernels.linear_attention_gpu import LARGEST_KEY
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.support.devices import on_cpu, under_torch_compile
from pypm.kernels.support.triton import missing
from pypm.rules.loops.folds import (
    AllWritten,
    Joined,
    Listed,
    ListedBefore,
    State,
    Written,
    WrittenBefore,
    gathered,
)
from pypm.rules.loops.items import Kept
from pypm.rules.loops.matrix_states import attended, factors_of, scanned, types
from pypm.rules.loops.reads import Result
from pypm.rules.loops.steps import DELTA, Step, Summand
from pypm.rules.replacement.items import broadcast, parts, typed
from pypm.rules.replacement.types import holds_number
from pypm.rules.vocabulary.types import FLOATS

# --- all steps ----------------------------------------------------------------------------------


@pattern
def Read(step, read, state, after, t):  # a result of the state after the step
    out = var()
    y = Result(after, out, t)
    after <= Step(step, state, t)
    let(read=record(out=out, older=None))
    return y


@pattern
def ReadBefore(step, read, state, after, t):  # of the state before step t
    n = var()
    y = ReadOf(read, after, t)
    after <= Step(step, state, n)
    let(t=n + 1)
    return y


@pattern
def ReadOf(read, state, t):
    out, older = var(), var()
    y = Result(Older(state, older, t), out, t)
    let(read=record(out=out, older=older))
    return y


@pattern
def Older(h, older, t):  # the state before step t, and what that adds to it, times a tensor
    boost, summand = var(), var()
    let(older=record(boost=boost, summand=summand))
    y = Kept(h) + boost * keep(Summand(summand, t))
    assert y.shape == h.shape
    return y


@pattern
def Older(h, older, t):
    let(older=record(boost=None, summand=None))
    return h


@pattern
def Gathered(step, read, before, place, last, count):
    return Joined(Listed(Read), step, read, before, place, last, count)


@pattern
def Gathered(step, read, before, place, last, count):
    return Joined(ListedBefore(ReadOf, ReadBefore), step, read, before, place, last, count)


@pattern
def Gathered(step, read, before, place, last, count):
    return AllWritten(Written(Read), step, read, before, place, last, count)


@pattern
def Gathered(step, read, before, place, last, count):
    return AllWritten(WrittenBefore(ReadOf, ReadBefore), step, read, before, place, last, count)


@pattern
def WholeLoop(step, read, before, place, count, shape):
    last = var()
    y = Gathered(step, read, before, place, last, count)
    let(shape=last.shape)
    assert read.older is None or before.shape == shape
    assert read.older is None or read.older.summand is None or read.older.summand == step.summand
    return y, last


@pattern
def Final(step, before, steps, shape):  # the last state alone
    h, t = var(), var()
    y = Step(step, h, t)
    assert t == step.summand.count - 1  # before all steps are searched for
    y <= State(Step, step, before, t)
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
FEW_MATRICES = 64
"""The same for linear attention and the delta rule, whose states are matrices.

Measured on a CPU, 8 states of 64 x 64: as fast with 32 steps, 4.3 times with 64.
"""
SO_FEW = "so few steps are faster as they are"
LARGEST = 2**25
"""Elements of all states together, up to which outer products of all steps are computed at once."""


@rule(WholeLoop)
def loop(step, read, before, place, count, shape):
    read_by, dtype = read.out
    steps = count if read.older is None else count - 1
    found = computed(step, before, read_by, read.older, steps, shape)
    if isinstance(found, str):
        return decline(found)
    results, last = found
    return gathered(typed(results, dtype), place), last


@rule(Final)
def last_state(step, before, steps, shape):
    found = computed(step, before, None, None, steps, shape)
    return decline(found) if isinstance(found, str) else found[1]


def computed(step, before, out, older, steps, shape):
    """Return the results of all steps and the last state, or the reason why they stay a loop.

    Arguments:
        step, before, steps, shape: those of `recurring`, or for `step`, the delta rule.
        out: what a step adds to the results, as `Output` binds it; None for no results.
        older: for results of the states before the steps, one more than there are steps, what
            `Older` binds: a factor (`boost`) and a summand, or two None; None for those after the
            steps.
    """
    boost = older.boost if older is not None else None
    numbers = [x for x in (step.factor.x, before, boost) if isinstance(x, (int, float, complex))]
    if any(isinstance(x, complex) for x in numbers):
        return "a number is complex"
    dtype, *others = types(step, before, boost)
    if dtype not in FLOATS or any(other != dtype for other in others):
        return "the operands are not of one floating-point type"
    if not all(holds_number(dtype, x) for x in numbers):
        return "a number would be rounded to the type of the states"
    first = step.summand.key
    boost = first.new_full((), boost, dtype=dtype) if is_scalar(boost) else boost
    results = steps if older is None else steps + 1
    is_compiled = under_torch_compile()
    if results < (FEW_MATRICES if is_compiled else FEW):
        return SO_FEW
    reason = without_kernel(first, dtype)
    if reason is not None:
        return reason
    found = attended(step, before, out, boost, steps, results, shape)
    if found is not None:
        return found
    if is_compiled and results < FEW_COMPILED:
        return SO_FEW
    if step.kind == DELTA:
        on_gpus = f"keys of up to {LARGEST_KEY} elements"
        fits = "float32 or float64 on a CPU" if on_cpu(first) else on_gpus
        return f"the delta rule needs {fits}, and results that are products along the keys"
    is_outer = step.summand.value is not None
    if is_outer and not known_to_hold(operator.le, steps * math.prod(shape), LARGEST):
        return "the outer products of all steps may take too much memory at once"
    factors, summands, before = recurring(step, before, steps, shape)
    if out is not None and older is None:
        found = scanned(factors, summands, before, out, steps, shape)
        if found is not None:
            return found
    states = linear_recurrence(factors, summands, before, False)
    last = states[-1]
    if results > steps:
        states = torch.cat((before.unsqueeze(0), states))
    if boost is not None:
        states = states + boost * summands_of(step, results, shape)
    return None if out is None else products(states, out, results), last


def without_kernel(x, dtype):
    """Return why no kernel of a GPU computes states of a type, where x is on one; or None."""
    return None if on_cpu(x) else missing(x, dtype=dtype)


def recurring(step, before, steps, shape):
    """Return the factors and the summands, [steps, *shape], and the state before, of this shape.

    Arguments:
        step: what a step does, as `Step` binds it: no delta rule.
        before: the state before the first step: a tensor that broadcasts to `shape`, or a number.
        steps: the number of steps.
        shape: the shape of a state.
    """
    summands = summands_of(step, steps, shape)
    factors = broadcast(factors_of(step.factor, summands, steps), shape)
    before = summands.new_full((), before) if is_scalar(before) else before
    return factors, summands, before.expand(shape)


def summands_of(step, steps, shape):
    """Return what each step adds to the state, [steps, *shape]; `step` is no delta rule."""
    added = step.summand
    summands, v = broadcast(parts(added.key, added.of_key, steps), shape), added.value
    return summands if v is None else summands * broadcast(parts(v, added.of_value, steps), shape)


def products(states, out, steps):
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
