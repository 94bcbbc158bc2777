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

from pypm import decline, keep, let, pattern, predicate, record, rule, var
from pypm.fx import hiding, is_scalar, known_to_hold, observer
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
from pypm.rules.loops.matrix_states import attended, scanned
from pypm.rules.loops.reads import COLUMNS, Result, along, vectors_of_output
from pypm.rules.loops.steps import Step, Summand, added, exact_in, operands
from pypm.rules.replacement.items import COLUMN, ROW, WHOLE, broadcast, pieces, typed
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


@observer(
    (None, None, None),
    (WHOLE, WHOLE, None),
    (COLUMN, COLUMN, ROW),
    (ROW, ROW, COLUMN),
)
def boosted(older, steps):
    """Return the factors, and the keys and the values of what is added to the states that are read,
    [steps, ...], as `added` does; three None if nothing is.

    Arguments:
        older: as `Older` binds it: a factor, `boost`, and a `summand`; or two None.
        steps: the number of steps.
    """
    if older.summand is None:
        return None, None, None
    keys, values = added(older.summand, steps)
    boost = keys.new_full((), older.boost) if is_scalar(older.boost) else older.boost
    return pieces(boost, (), steps), keys, values


def boosted_state(h, older, t, steps):
    """Return the state that is read."""
    boosts, keys, values = boosted(older, steps)
    if keys is None:
        return h
    return h + boosts[t] * (keys[t] if values is None else keys[t] * values[t])


@pattern(means=hiding(boosted, boosted_state))
def Older(h, older, t):  # the state before step t, and what that adds to it, times a number
    boost, summand = var(), var()
    let(older=record(boost=boost, summand=summand))
    y = Kept(h) + boost * keep(Summand(summand, t))
    assert y.shape == h.shape and exact_in(y.dtype, boost.value)
    return y


@pattern
def Older(h, older, t):  # or a tensor
    boost, summand = var(), var()
    let(older=record(boost=boost, summand=summand))
    y = Kept(h) + boost * keep(Summand(summand, t))
    assert y.shape == h.shape and boost.dtype in FLOATS
    return y


@pattern
def Older(h, older, t):
    let(older=record(boost=None, summand=None))
    return h


@predicate
def is_none_or(one, other):
    """Return whether what a state that is read has of its step, if anything, is what that adds."""
    return one is None or one == other


@pattern
def Gathered(step, read, before, place, last, count):
    return Joined(Listed(Read), step, read, before, place, last, count)


@pattern
def Gathered(step, read, before, place, last, count):
    y = Joined(ListedBefore(ReadOf, ReadBefore), step, read, before, place, last, count)
    assert before.shape == last.shape and is_none_or(read.older.summand, step.summand)
    return y


@pattern
def Gathered(step, read, before, place, last, count):
    return AllWritten(Written(Read), step, read, before, place, last, count)


@pattern
def Gathered(step, read, before, place, last, count):
    y = AllWritten(WrittenBefore(ReadOf, ReadBefore), step, read, before, place, last, count)
    assert before.shape == last.shape and is_none_or(read.older.summand, step.summand)
    return y


@pattern
def WholeLoop(step, read, before, place, count, shape):
    last = var()
    y = Gathered(step, read, before, place, last, count)
    let(shape=last.shape)
    return y, last


@pattern
def StepOf(step, before, t):  # a step, by its ways: one of a state that is not known yet
    return Step(step, before, t)


@pattern
def Final(step, before, steps, shape):  # the last state alone
    h, t = var(), var()
    y = StepOf(step, h, t)  # which refuses before all steps are searched for
    assert t == step.summand.key.shape[step.summand.of_key[0][0][0]] - 1
    y <= State(StepOf, step, before, t)
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
    found = computed(step, before, [vectors_of_output(read_by, count)], read.older, steps, shape)
    if isinstance(found, str):
        return decline(found)
    results, last = found
    return gathered(typed(results, dtype), place), last


@rule(Final)
def last_state(step, before, steps, shape):
    found = computed(step, before, [], None, steps, shape)
    return decline(found) if isinstance(found, str) else found[1]


def computed(step, before, reads, older, steps, shape):
    """Return the results of all steps and the last state, or the reason why they stay a loop.

    Arguments:
        step: what a step does, as `Step` binds it.
        before: the state before the first step: a tensor that broadcasts to `shape`, or a number.
        reads: the vectors that read states for the results, as `vectors_of_output` returns them, or
            None if these are the states; in a list, which is empty for no results.
        older: for results of the states before the steps, one more than there are steps, what
            `Older` binds, as for `boosted`; None for those after the steps.
        steps: the number of steps.
        shape: the shape of a state.
    """
    if isinstance(before, complex):
        return "a number is complex"
    given = operands(step, steps)
    keys, is_delta = given[1], given[3] is not None
    results = steps if older is None else steps + 1
    boosts = None if older is None else boosted(older, results)
    every = (*given, *(boosts or ()), before)
    dtype, tensors = keys.dtype, [x for x in every if hasattr(x, "dtype")]
    if dtype not in FLOATS or any(x.dtype != dtype for x in tensors):
        return "the operands are not of one floating-point type"
    if is_scalar(before) and not holds_number(dtype, before):
        return "a number would be rounded to the type of the states"
    before = keys.new_full((), before) if is_scalar(before) else before
    is_compiled = under_torch_compile()
    if results < (FEW_MATRICES if is_compiled else FEW):
        return SO_FEW
    reason = without_kernel(keys, dtype)
    if reason is not None:
        return reason
    found = attended(given, before, reads, boosts, shape)
    if found is not None:
        return found
    if is_compiled and results < FEW_COMPILED:
        return SO_FEW
    if is_delta:
        on_gpus = f"keys of up to {LARGEST_KEY} elements"
        fits = "float32 or float64 on a CPU" if on_cpu(keys) else on_gpus
        return f"the delta rule needs {fits}, and results that are products along the keys"
    is_outer = given[2] is not None
    if is_outer and not known_to_hold(operator.le, steps * math.prod(shape), LARGEST):
        return "the outer products of all steps may take too much memory at once"
    factors, summands = broadcast(given[0], shape), summed(given[1:3], shape)
    before = before.expand(shape)
    if older is None and reads:
        found = scanned(factors, summands, before, reads[0], shape)
        if found is not None:
            return found
    states = linear_recurrence(factors, summands, before, False)
    last = states[-1]
    if results > steps:
        states = torch.cat((before.unsqueeze(0), states))
    if boosts is not None and boosts[0] is not None:
        states = states + broadcast(boosts[0], shape) * summed(boosts[1:], shape)
    return (products(states, *reads) if reads else None), last


def without_kernel(x, dtype):
    """Return why no kernel of a GPU computes states of a type, where x is on one; or None."""
    return None if on_cpu(x) else missing(x, dtype=dtype)


def summed(products, shape):
    """Return what each step adds to the state, [steps, *shape]: keys times values, if any."""
    keys, values = (None if x is None else broadcast(x, shape) for x in products)
    return keys if values is None else keys * values


def products(states, reads):
    """Return the results of all steps, [steps, ...]: states, or products of these with vectors.

    Arguments:
        states: [steps, ..., rows, columns].
        reads: as `vectors_of_output` returns them.
    """
    if reads is None:
        return states
    states, is_row = states.to(reads.dtype), along(reads.shape, states.shape) == COLUMNS
    rows = reads if is_row else reads.mT
    return (rows @ (states.mT if is_row else states)).squeeze(-2)
