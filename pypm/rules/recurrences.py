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

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx import aten, is_scalar
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.support.triton import under_torch_compile
from pypm.rules.elements import Item
from pypm.rules.spellings import FLOATS, MM, Cast, NoOp, Reshape

# --- one step, and all of them -------------------------------------------------------------------


@pattern
def Same(x):  # torch.export keeps casts that change nothing, and goes on with their results
    return NoOp(x)


@pattern
def Same(x):
    y = aten.to(x, ...)
    assert y.dtype == x.dtype
    return y


@pattern(through=Same)
def Step(a, of_a, b, of_b, before, t):  # the state after step t
    return Item(a, of_a, t) * before + Item(b, of_b, t)


@pattern(through=Same)
def Step(a, of_a, b, of_b, before, t):  # one factor for all steps
    let(of_a=())
    return a * before + Item(b, of_b, t)


@pattern(through=Same)
def Step(a, of_a, b, of_b, before, t):  # a sum, as in linear attention
    let(a=1.0)
    let(of_a=())
    return before + Item(b, of_b, t)


@pattern
def Output(h, c, of_c, t, form):  # what step t adds to the results
    let(form="state")
    let(c=None)
    let(of_c=())
    return h


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):
    let(form="product")
    z = Item(c, of_c, t)
    y = MM(Cast(h), aten.unsqueeze(z, -1))
    assert z.rank == h.rank - 1
    return Flat(y)


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):  # a row times a state
    let(form="row")
    z = Item(c, of_c, t)
    y = MM(aten.unsqueeze(z, -2), Cast(h))
    assert z.rank == h.rank - 1
    return FlatRow(y)


@pattern(through=NoOp)
def FlatRow(x):  # x [..., 1, n] without that dimension
    return aten.squeeze(x, -2) | aten.select(x, -2, 0)


@pattern(through=NoOp)
def Flat(x):  # x [..., 1] without its last dimension
    return aten.squeeze(x, -1) | Reshape(x)


@pattern
def Flat(x):
    at, t = var(), var()
    y = Item(x, at, t)
    assert at == (x.rank - 1, False)
    return y


@pattern
def Placed(x, spread):  # a result as an element of a list
    let(spread=None)
    return x


@pattern
def Placed(x, spread):
    return aten.unsqueeze(x, spread)


@pattern
def Later(a, of_a, b, of_b, before, t, c, of_c, form, spread, last, steps):  # steps after step t
    n = var()
    h = Step(a, of_a, b, of_b, before, n)
    x = Placed(Output(h, c, of_c, n, form), spread)
    assert n == t + 1
    return [x, *Later(a, of_a, b, of_b, h, n, c, of_c, form, spread, last, steps)]


@pattern
def Later(a, of_a, b, of_b, before, t, c, of_c, form, spread, last, steps):
    let(last=before)
    let(steps=t + 1)
    return []


@pattern
def Loop(a, of_a, b, of_b, before, c, of_c, form, spread, last, steps):  # the list of all results
    n = var()
    h = Step(a, of_a, b, of_b, before, n)
    x = Placed(Output(h, c, of_c, n, form), spread)
    assert n == 0
    return [x, *Later(a, of_a, b, of_b, h, n, c, of_c, form, spread, last, steps)]


@pattern
def Gathered(a, of_a, b, of_b, before, c, of_c, form, spread, is_stack, d, last, steps):
    let(is_stack=True)
    let(spread=None)
    return aten.stack(Loop(a, of_a, b, of_b, before, c, of_c, form, spread, last, steps), d)


@pattern
def Gathered(a, of_a, b, of_b, before, c, of_c, form, spread, is_stack, d, last, steps):
    let(is_stack=False)
    return aten.cat(Loop(a, of_a, b, of_b, before, c, of_c, form, spread, last, steps), d)


@pattern
def WholeLoop(a, of_a, b, of_b, before, c, of_c, form, spread, is_stack, d, steps, shape):
    last = var()
    y = Gathered(a, of_a, b, of_b, before, c, of_c, form, spread, is_stack, d, last, steps)
    let(shape=last.shape)
    return y, last


# --- the last state alone ------------------------------------------------------------------------


@pattern
def State(a, of_a, b, of_b, before, t):  # the state after step t, of those from the first
    h, n = var(), var()
    y = Step(a, of_a, b, of_b, h, t)
    let(n=t - 1)
    h <= State(a, of_a, b, of_b, before, n)
    return y


@pattern
def State(a, of_a, b, of_b, before, t):
    y = Step(a, of_a, b, of_b, before, t)
    assert t == 0
    return y


@pattern
def Final(a, of_a, b, of_b, before, steps, shape):
    t = var()
    y = State(a, of_a, b, of_b, before, t)
    assert t == b.shape[of_b[0]] - 1
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


def unfit(a, b, before, steps):
    """Return the reason for which a loop is not rolled up, or None.

    The arguments are those of `rolled`.
    """
    if b.dtype not in FLOATS or any(not is_scalar(x) and x.dtype != b.dtype for x in (a, before)):
        return "the operands are not of one floating-point type"
    if steps < (FEW_COMPILED if under_torch_compile() else FEW):
        return "so few steps are faster as they are"
    return None


@rule(WholeLoop)
def loop(a, of_a, b, of_b, before, c, of_c, form, spread, is_stack, d, steps, shape):
    reason = unfit(a, b, before, steps)
    if reason is not None:
        return decline(reason)
    states = rolled(a, of_a, b, of_b, before, steps, shape)
    results = states
    if form == "product":
        items = lined_up(c, of_c, steps)
        results = (items.unsqueeze(-2) @ states.to(items.dtype).mT).squeeze(-2)
    elif form == "row":
        items = lined_up(c, of_c, steps)
        results = (items.unsqueeze(-2) @ states.to(items.dtype)).squeeze(-2)
    return gathered(results, spread, is_stack, d), states[-1]


@rule(Final)
def last_state(a, of_a, b, of_b, before, steps, shape):
    reason = unfit(a, b, before, steps)
    if reason is not None:
        return decline(reason)
    return rolled(a, of_a, b, of_b, before, steps, shape)[-1]


def rolled(a, of_a, b, of_b, before, steps, shape):
    """Return the states of all steps, [steps, *shape].

    Arguments:
        a, b: the tensors of which each step takes an item; a may be a number.
        of_a, of_b: the places of the items; empty if a is one factor for all steps.
        before: the state before the first step: a tensor that broadcasts to `shape`, or a number.
        steps: the number of steps.
        shape: the shape of a state.
    """
    a, before = (b.new_full((), x) if is_scalar(x) else x for x in (a, before))
    factors, summands = (
        broadcast(lined_up(x, at, steps), shape) for x, at in ((a, of_a), (b, of_b))
    )
    return linear_recurrence(factors, summands, before.expand(shape), False)


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
