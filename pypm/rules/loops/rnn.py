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
from pypm.rules.loops.gru import Plain
from pypm.rules.loops.lstm import Biased, linear_of, weights_of
from pypm.rules.loops.recurrences import SO_FEW
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.vocabulary.indexing import Item
from pypm.rules.vocabulary.shapes import Rows, rows_if_said
from pypm.rules.vocabulary.types import FLOATS

# --- one step: what it adds to the product of the state before -----------------------------------


def layered(x, layer, shape=None):
    """Return the same, with other batch dimensions if a shape says so."""
    return rows_if_said(linear_of(x, layer), shape)


@pattern(means=hiding(weights_of, layered))
def Layered(x, layer):  # rows of x times a weight, and a bias
    return Rows(Plain(Rows(x), layer))


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
def OfInputs(x, layer):
    return Layered(x, layer)


@pattern
def OfInputs(x, layer):  # multiplied before the loop
    let(layer=None)
    return Rows(x)


@observer((2, 2, 1), (None, 2, 1), (None, 2, None))
def weights_of_both(layers):
    """Return the weights of the inputs, [hidden, in], and of the states, and a bias.

    The first one is None for inputs that are multiplied before the loop; then a bias may be None.

    Arguments:
        layers: `of_inputs` or None, and `of_states`; or if they are `joined`, the layer of both,
            with the order of its columns, of which `width` are those of the inputs.
    """
    u, bias = weights_of(layers.of_states)
    if layers.joined is None:
        if layers.of_inputs is None:
            return None, u, bias
        w, b = weights_of(layers.of_inputs)
        bias = b if bias is None else bias if b is None else b + bias
    elif layers.joined == INPUTS_FIRST:
        w, u = u[:, : layers.width], u[:, layers.width :]
    else:
        size = u.shape[1] - layers.width
        w, u = u[:, size:], u[:, :size]
    return w, u, u.new_zeros(u.shape[0]) if bias is None else bias


@observer((2, 2, 1), (None, 2, 1), (None, 2, None))
def weights_of_all(layers):
    """Return the same with a third bias, or None, added."""
    both, e = layers
    w, u, bias = weights_of_both(both)
    return w, u, e if bias is None else bias if e is None else bias + e


def summed(x, before, weights, shape):
    """Return the sum of both products and a bias, in other batch dimensions if a shape says so."""
    w, u, bias = weights
    y = (x if w is None else F.linear(x, w)) + F.linear(before, u, bias)
    return rows_if_said(y, shape)


def multiplied(x, before, layers, shape=None):
    """Return both products with their biases."""
    return summed(x, before, weights_of_both(layers), shape)


def biased(x, before, layers, shape=None):
    """Return the same and the third bias."""
    return summed(x, before, weights_of_all(layers), shape)


@pattern(means=hiding(weights_of_both, multiplied))
def Products(x, before, layers):
    of_inputs, of_states = var(), var()
    let(layers=record(of_inputs=of_inputs, of_states=of_states, joined=None, width=None))
    return OfInputs(x, of_inputs) + Layered(before, of_states)


@pattern
def Products(x, before, layers):  # one weight for both
    of_both, order = var(), var()
    let(layers=record(of_inputs=None, of_states=of_both, joined=order, width=x.shape[-1]))
    return Layered(Both(x, before, order), of_both)


@pattern(means=hiding(weights_of_all, biased))
def Sums(x, before, layers):
    both, e = var(), var()
    let(layers=(both, e))
    return Biased(Products(x, before, both), e)


INPUTS_FIRST, STATES_FIRST = "inputs first", "states first"
"""Orders of the columns of one weight for both."""


@pattern
def Both(x, before, order):  # along columns: else states would have ever more rows
    let(order=INPUTS_FIRST)
    return aten.cat([x, before], -1)


@pattern
def Both(x, before, order):
    let(order=STATES_FIRST)
    return aten.cat([before, x], -1)


@pattern
def Activated(x, is_relu):
    let(is_relu=False)
    return aten.tanh(x)


@pattern
def Activated(x, is_relu):
    let(is_relu=True)
    return aten.relu(x)


@pattern
def Step(cell, before, t):  # `cell`: the inputs of all steps, their place, and the layers
    x, at, backwards, layers, is_relu = var(), var(), var(), var(), var()
    y = Activated(Sums(Input(x, at, t, backwards), before, layers), is_relu)
    let(cell=record(x=x, at=at, backwards=backwards, layers=layers, is_relu=is_relu, shape=y.shape))
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
    assert t == cell.x.shape[cell.at[0]] - 1
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
        cell: as `Step` binds it: `x`, the tensor of which each step takes an item, `at`, the place
            of the items, as for `lined_up`, in their order or `backwards`; `layers`, as for
            `weights_of_all`; and the `shape` of a state, [..., hidden].
        before: the state before the first step.
        steps: the number of steps.
    """
    shape = cell.shape
    items = inputs(cell.x, cell.at, cell.backwards, steps)
    w, u, bias = weights_of_all(cell.layers)
    if (reason := off_cpu(items)) is not None:
        return reason
    operands = [before, *(x for x in (w, u, bias) if x is not None)]
    if items.dtype not in FLOATS or any(y.dtype != items.dtype for y in operands):
        return "the operands are not of one floating-point type"
    if steps < FEW:
        return SO_FEW
    width = items.shape[-1] if w is None else w.shape[0]
    if not (same_rows(items.shape[1:], shape) and same_rows(before.shape, shape)):
        return "the inputs, or the state before the first step, have other rows than the states"
    if not same_size(width, shape[-1]) or not same_shape(u.shape, (shape[-1], shape[-1])):
        return "a weight has not one row for each element of a state"
    if bias is not None and not has_shape(bias, shape[-1:]):
        return "a bias is not one number for each element of a state"
    rows = math.prod(shape[:-1])
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


RULES = RuleSet((rnn_layer, last_of_rnn), "rnn")
