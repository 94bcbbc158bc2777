"""LSTMs written by hand: cells in a loop that tracing unrolled, as one operator again.

The patterns fold over the steps, by `pypm.rules.loops.folds`; each step binds the hidden
state and the cell state that the next one reads. `pypm::lstm` is oneDNN's layer in float32
on CPUs. For any stage; `pre_grad` compiles fastest, and is the one for training.
"""

import torch
import torch.nn.functional as F

from pypm import Pattern, RuleSet, decline, let, pattern, record, rule, var
from pypm.fx import (
    RESULT,
    Repeats,
    aten,
    hiding,
    is_scalar,
    observer,
    refines,
    same_shape,
    same_size,
)
from pypm.kernels.lstm import lstm
from pypm.kernels.support.devices import off_cpu
from pypm.rules.loops.folds import Joined, Listed, gathered
from pypm.rules.loops.items import Input
from pypm.rules.loops.recurrences import SO_FEW
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.replacement.types import holds_number
from pypm.rules.vocabulary.indexing import Taken
from pypm.rules.vocabulary.products import Linear, linear
from pypm.rules.vocabulary.types import FLOATS

# --- one step: a gate is some rows of a layer of the inputs, one of the state, and a bias --------


@pattern(means=linear)
def Product(x, w, b, by_rows):
    return Linear(x, w, b, by_rows)


@pattern
def Product(x, w, b, by_rows):
    let(b=None)
    let(by_rows=False)
    assert x.rank == 2 and w.rank == 2
    return aten.matmul(x, w)


@observer((2, None), (2, 1))
def weights_of(layer):
    """Return the weight of a layer, [out, in], and its bias, [out] or None."""
    return layer.weight if layer.by_rows else layer.weight.t(), layer.bias


def linear_of(x, layer):
    """Return x times a weight, and a bias."""
    return F.linear(x, *weights_of(layer))


@pattern(means=hiding(weights_of, linear_of))
def Projected(x, layer):
    w, b, by_rows = var(), var(), var()
    let(layer=record(weight=w, bias=b, by_rows=by_rows))
    assert w.rank == 2
    assert b is None or b.rank == 1
    return Product(x, w, b, by_rows)


@pattern
def Biased(x, e):
    let(e=None)
    return x


@pattern
def Biased(x, e):
    assert e.rank == 1 and e.shape == x.shape[-1:]
    return x + e


@observer((2, 2, 1))
def weights_of_both(layers):
    """Return the weights of the inputs and of the states, [out, ...], and their bias."""
    of_inputs, of_states, e = layers
    (w, b), (u, d) = weights_of(of_inputs), weights_of(of_states)
    given = [x for x in (b, d, e) if x is not None]
    return w, u, sum(given[1:], given[0]) if given else w.new_zeros(w.shape[0])


@observer((2, 2, 1))
def weights_of_gate(gate):
    """Return the rows of these that a gate takes."""
    layers, at = gate
    return tuple(y[at.start : at.stop : at.step] for y in weights_of_both(layers))


def summed(x, h, w, u, b):
    """Return both products and the bias."""
    return F.linear(x, w, b) + F.linear(h, u)


@pattern(means=hiding(weights_of_both, lambda x, h, layers: summed(x, h, *weights_of_both(layers))))
def Sums(x, h, layers):  # of all gates
    of_inputs, of_states, e = var(), var(), var()
    let(layers=(of_inputs, of_states, e))
    return Biased(Projected(x, of_inputs) + Projected(h, of_states), e)


@pattern(means=hiding(weights_of_gate, lambda x, h, gate: summed(x, h, *weights_of_gate(gate))))
def Gate(x, h, gate):
    layers, at = var(), var()
    let(gate=(layers, at))
    return Taken(Sums(x, h, layers), at)


@pattern
def Step(cell, t, h, c, after):  # `cell`: the inputs of all steps, their place, and the four gates
    x, at, i, f, g, o = var(), var(), var(), var(), var(), var()
    step = Input(x, at, t)
    y = aten.sigmoid(Gate(step, h, o)) * aten.tanh(after)
    after <= aten.sigmoid(Gate(step, h, f)) * c + aten.sigmoid(Gate(step, h, i)) * aten.tanh(
        Gate(step, h, g)
    )
    let(cell=record(x=x, at=at, gates=(i, f, g, o)))
    return y


# --- all steps: the list of the hidden states, or the last one alone -----------------------------


@pattern
def Hidden(cell, read, state, after, t):  # a result is the hidden state
    h, c, next_c = var(), var(), var()
    y = Step(cell, t, h, c, next_c)
    let(read=None)
    let(state=record(h=h, c=c))
    let(after=record(h=y, c=next_c))
    return y


@pattern
def Layer(cell, state, place, steps):
    last, h, c = var(), var(), var()
    y = Joined(Listed(Hidden), cell, _, state, place, last, steps)
    let(h=last.h, c=last.c)
    return y, h, c


STATES = Repeats("Next", ("cell", "t", "h", "c", "after"), {"c": "after", "h": RESULT}, "t")


@pattern(means=STATES)
def LastHidden(Next: Pattern, cell, t, h, c, after):  # after step t
    before, c_before, n = var(), var(), var()
    y = Next(cell, t, before, c_before, after)
    let(n=t - 1)
    before <= LastHidden(Next, cell, n, h, c, c_before)
    return y


@pattern
def LastHidden(Next: Pattern, cell, t, h, c, after):
    y = Next(cell, t, h, c, after)
    assert t == 0
    return y


@pattern
def Last(cell, state, steps):
    t, h, c, after = var(), var(), var(), var()
    y = LastHidden(Step, cell, t, h, c, after)
    assert t == cell.x.shape[cell.at[0]] - 1
    let(steps=t + 1)
    let(state=record(h=h, c=c))
    return y, after


# --- the rules -----------------------------------------------------------------------------------

FEW = 16
"""Steps below which the operator is no faster than the steps as `torch.compile` computes them."""


@rule(Layer)
def lstm_layer(cell, state, place, steps):
    found = rolled(cell, state, steps)
    if isinstance(found, str):
        return decline(found)
    states, last = found
    return gathered(states, place), states[-1], last


@rule(Last)
def last_of_lstm(cell, state, steps):
    found = rolled(cell, state, steps)
    if isinstance(found, str):
        return decline(found)
    states, last = found
    return states[-1], last


def rolled(cell, state, steps):
    """Return the hidden states, [steps, batch, hidden], and the last cell state.

    Or the reason for which the loop is not rolled up.

    Arguments:
        cell: as `Step` binds it: `x`, the tensor of which each step takes an item, [batch, in];
            `at`, the place of the items, as for `lined_up`; and the `gates`, for the input gate,
            the forget gate, the cell and the output gate: layers of the inputs and of the states, a
            bias, [4 hidden] or None, and the range of the rows of both.
        state: `h` and `c` before the first step, [batch, hidden].
        steps: the number of steps.
    """
    h, c, items = state.h, state.c, lined_up(cell.x, cell.at, steps)
    if is_scalar(c) and holds_number(h.dtype, c):
        c = torch.full_like(h, c)
    reason = unfit(items, h, c, cell.gates)
    if reason is not None or steps < FEW:
        return reason or SO_FEW
    return lstm(items, *of_torch(cell.gates), h, c)


def one_by_one(gates):
    """Return the weights and the bias of four gates as torch has them, [4 hidden, ...]."""
    return tuple(map(torch.cat, zip(*map(weights_of_gate, gates), strict=True)))


@refines(one_by_one)
def of_torch(gates):
    """Return what `one_by_one` returns, without a copy where the rows lie as torch has them."""
    layers, _ = gates[0]
    whole = weights_of_both(layers)
    size = whole[0].shape[0] // 4
    quarters = [range(n * size, (n + 1) * size) for n in range(4)]
    if [at for _, at in gates] == quarters and all(same(each, layers) for each, _ in gates):
        return whole
    return one_by_one(gates)


def same(one, two):
    """Return whether layers of both, and a bias, are the same."""
    return one[2] is two[2] and all(map(same_layer, one[:2], two[:2]))


def same_layer(one, two):
    """Return whether two layers have the same weight and bias."""
    is_same = one.weight is two.weight and one.bias is two.bias
    return is_same and one.by_rows == two.by_rows


def unfit(items, h, c, gates):
    """Return the reason for which a loop of cells is not rolled up, or None.

    Arguments:
        items: the inputs of all steps.
        h, c: the states before the first step.
        gates: as for `of_torch`.
    """
    if (reason := off_cpu(items)) is not None:
        return reason
    if items.dim() != 3:
        return "the inputs of a step are not [batch, in]"
    if is_scalar(c):
        return "the first cell state would be rounded to the type of the states"
    if not (h.dim() == 2 and same_shape(h.shape, c.shape)):
        return "the states are not [batch, hidden]"
    given = [h, c]
    for w, u, b in map(weights_of_gate, gates):
        if not same_size(w.shape[0], u.shape[0]):  # a product of one row would be broadcast
            return "the inputs do not have as many rows of weights as the states"
        if not same_size(u.shape[0], h.shape[1]):
            return "a gate has not one row of weights for each element of a state"
        if not has_shape(b, h.shape[1:]):
            return "a bias is not one number for each row"
        given += [w, u, b]
    if items.dtype not in FLOATS or any(y.dtype != items.dtype for y in given):
        return "the operands are not of one floating-point type"
    if same_size(h.shape[1], 0):
        return "the states have no elements"  # oneDNN has no such layer
    if not same_size(items.shape[1], h.shape[0]):  # oneDNN has the inputs' batch
        return "the inputs have another batch than the states"
    return None


RULES = RuleSet((lstm_layer, last_of_lstm), "lstm")
