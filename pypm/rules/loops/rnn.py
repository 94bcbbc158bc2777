"""Plain recurrent layers: cells `tanh(x_t w + h u + b)` in a loop that tracing unrolled, as one
operator again; `relu` for `tanh`, too.

Written by hand, also with one weight for `cat([x_t, h])`, and as Inductor decomposes
`torch.nn.RNN`, whose inputs are multiplied before the loop. The patterns fold over the steps, by
`pypm.rules.loops.folds`; the steps may run backwards. For any stage; `pre_grad` compiles fastest,
and is the one for training.
"""

import math

import torch.nn.functional as F

from pypm import RuleSet, decline, let, pattern, record, rule, var
from pypm.fx import aten, hiding, observer, same_shape, same_size
from pypm.kernels.rnn import rnn
from pypm.kernels.support.devices import off_cpu
from pypm.rules.loops.folds import Joined, Listed, ListedBackwards, State, gathered
from pypm.rules.loops.gru import Affine, Biased
from pypm.rules.loops.recurrences import SO_FEW
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.vocabulary.indexing import Item
from pypm.rules.vocabulary.shapes import Rows, rows
from pypm.rules.vocabulary.types import FLOATS

# --- one step: what it adds to the product of the state before -----------------------------------


@observer((2, None), (2, 1))
def weights_of(layer):
    """Return the weight of a layer, [out, in], and its bias, [out] or None."""
    return layer.weight if layer.by_rows else layer.weight.t(), layer.bias


def layered(x, layer, shape):
    """Return rows of x times a weight, and a bias, in the shape of the result."""
    return rows(F.linear(x, *weights_of(layer)), shape)


@pattern(means=hiding(weights_of, layered))
def Layered(x, layer):  # rows of x times a weight, and a bias
    w, b, by_rows = var(), var(), var()
    let(layer=record(weight=w, bias=b, by_rows=by_rows))
    assert w.rank == 2
    assert b is None or b.rank == 1
    return Rows(Affine(Rows(x), w, b, by_rows))


@observer((2,), (3,))
def inputs(x, at, backwards, steps):
    """Return the items of x that the steps take, [steps, ...]."""
    return lined_up(x.flip(at[0]) if backwards else x, at, steps)


def input_of(x, at, t, backwards, steps):
    """Return the item of x that step t takes."""
    return inputs(x, at, backwards, steps)[t]


@pattern(means=hiding(inputs, input_of))
def Input(x, at, t, backwards):
    let(backwards=False)
    return Item(x, at, t)


@pattern
def Input(x, at, t, backwards):
    n = var()
    y = Item(x, at, n)
    let(backwards=True)
    let(t=x.shape[at[0]] - 1 - n)
    return y


@pattern
def OfInputs(x, at, t, backwards, layer):
    return Layered(Input(x, at, t, backwards), layer)


@pattern
def OfInputs(x, at, t, backwards, layer):  # multiplied before the loop
    let(layer=None)
    return Rows(Input(x, at, t, backwards))


@pattern
def Sums(given, before, t):  # `given`: the inputs of all steps, their place, and the layers
    x, at, backwards, of_inputs, of_states = var(), var(), var(), var(), var()
    y = OfInputs(x, at, t, backwards, of_inputs) + Layered(before, of_states)
    let(
        given=record(
            x=x,
            at=at,
            backwards=backwards,
            of_inputs=of_inputs,
            of_states=of_states,
            joined=None,
        )
    )
    return y


@pattern
def Sums(given, before, t):  # one weight for both
    x, at, backwards, of_both, order = var(), var(), var(), var(), var()
    y = Layered(Both(x, at, t, backwards, before, order), of_both)
    let(
        given=record(
            x=x,
            at=at,
            backwards=backwards,
            of_inputs=None,
            of_states=of_both,
            joined=order,
        )
    )
    return y


INPUTS_FIRST, STATES_FIRST = "inputs first", "states first"
"""Orders of the columns of one weight for both."""


@pattern
def Both(
    x, at, t, backwards, before, order
):  # along columns: else states would have ever more rows
    let(order=INPUTS_FIRST)
    return aten.cat([Input(x, at, t, backwards), before], -1)


@pattern
def Both(x, at, t, backwards, before, order):
    let(order=STATES_FIRST)
    return aten.cat([before, Input(x, at, t, backwards)], -1)


@pattern
def Activated(x, is_relu):
    let(is_relu=False)
    return aten.tanh(x)


@pattern
def Activated(x, is_relu):
    let(is_relu=True)
    return aten.relu(x)


@pattern
def Step(cell, before, t):
    given, e, is_relu = var(), var(), var()
    y = Activated(Biased(Sums(given, before, t), e), is_relu)
    let(cell=record(given=given, bias=e, is_relu=is_relu, shape=y.shape))
    return y


# --- all steps: the list of the results, or the last state alone ---------------------------------


@pattern
def Result(state, read):
    let(read=None)
    return state


@pattern
def Result(state, read):  # a layer of the state
    layer = var()
    y = Layered(state, layer)
    let(read=record(layer=layer, shape=y.shape))
    return y


@pattern
def Read(cell, read, state, after, t):
    y = Result(after, read)
    after <= Step(cell, state, t)
    return y


@pattern
def Gathered(cell, read, before, place, last, steps, last_first):
    let(last_first=False)
    return Joined(Listed(Read), cell, read, before, place, last, steps)


@pattern
def Gathered(cell, read, before, place, last, steps, last_first):
    let(last_first=True)
    return Joined(ListedBackwards(Read), cell, read, before, place, last, steps)


@pattern
def Layer(cell, read, before, place, steps, last_first):
    last = var()
    return Gathered(cell, read, before, place, last, steps, last_first), last


@pattern
def Last(cell, before, steps):
    t = var()
    y = State(Step, cell, before, t)
    assert t == cell.given.x.shape[cell.given.at[0]] - 1
    let(steps=t + 1)
    return y


# --- the rules -----------------------------------------------------------------------------------

FEW = 16
"""Steps below which the operator was not measured to be faster than `torch.compile`."""


@rule(Layer)
def rnn_layer(cell, read, before, place, steps, last_first):
    states = rolled(cell, before, steps)
    if isinstance(states, str):
        return decline(states)
    results, last = states.reshape(steps, *cell.shape), states[-1].reshape(cell.shape)
    if read is not None:
        results = F.linear(states.flatten(0, 1), *weights_of(read.layer))
        results = results.reshape(steps, *read.shape)
    return gathered(results.flip(0) if last_first else results, place), last


@rule(Last)
def last_of_rnn(cell, before, steps):
    states = rolled(cell, before, steps)
    return decline(states) if isinstance(states, str) else states[-1].reshape(cell.shape)


def rolled(cell, before, steps):
    """Return the hidden states, [steps, rows, hidden], or the reason why the loop stays.

    Arguments:
        cell: as `Step` binds it: `bias`, [hidden] or None; `shape` of a state, [..., hidden]; and
            `given`: `x`, the tensor of which each step takes an item, `at`, the place of the items,
            as for `lined_up`, in their order or `backwards`; and what `weights_of_both` takes.
        before: the state before the first step.
        steps: the number of steps.
    """
    given, shape = cell.given, cell.shape
    items = inputs(given.x, given.at, given.backwards, steps)
    layers = [weights_of(x) for x in (given.of_inputs, given.of_states) if x is not None]
    biases = [b for b in (*(b for _, b in layers), cell.bias) if b is not None]
    operands = [before, *(w for w, _ in layers), *biases]
    if (reason := off_cpu(items)) is not None:
        return reason
    if not all(has_shape(b, shape[-1:]) for b in biases):
        return "a bias is not one number for each element of a state"
    if items.dtype not in FLOATS or any(y.dtype != items.dtype for y in operands):
        return "the operands are not of one floating-point type"
    if steps < FEW:
        return SO_FEW
    w, u = weights_of_both(given, items.shape[-1])
    width = items.shape[-1] if w is None else w.shape[0]
    if not (same_rows(items.shape[1:], shape) and same_rows(before.shape, shape)):
        return "the inputs, or the state before the first step, have other rows than the states"
    if not same_size(width, shape[-1]) or not same_shape(u.shape, (shape[-1], shape[-1])):
        return "a weight has not one row for each element of a state"
    bias, rows = sum(biases[1:], biases[0]) if biases else None, math.prod(shape[:-1])
    if w is not None:
        items = F.linear(items.reshape(steps * rows, items.shape[-1]), w, bias)  # no product a step
    elif bias is not None:
        items = items + bias
    items = items.reshape(steps, rows, shape[-1])
    return rnn(items, u, before.reshape(rows, shape[-1]), cell.is_relu)


def same_rows(one, other):
    """Return whether tensors of two shapes are known to have the same rows in the same order."""
    long = [[n for n in shape[:-1] if not same_size(n, 1)] for shape in (one, other)]
    return same_shape(*long)


def weights_of_both(given, width):
    """Return the weights of the inputs, [hidden, width] or None, and of the states.

    Arguments:
        given: the layers `of_inputs`, or None for inputs that are multiplied before the loop, and
            `of_states`; or if they are `joined`, that of both, with the order of its columns.
        width: the number of elements of a row of the inputs.
    """
    u, _ = weights_of(given.of_states)
    if given.joined is None:
        return None if given.of_inputs is None else weights_of(given.of_inputs)[0], u
    if given.joined == INPUTS_FIRST:
        return u[:, :width], u[:, width:]
    size = u.shape[1] - width
    return u[:, size:], u[:, :size]


RULES = RuleSet((rnn_layer, last_of_rnn), "rnn")
