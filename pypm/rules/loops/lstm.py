"""LSTMs written by hand: cells in a loop that tracing unrolled, as one operator again.

The patterns fold over the steps, by `pypm.rules.loops.folds`; each step binds the hidden
state and the cell state that the next one reads. `pypm::lstm` is oneDNN's layer in float32
on CPUs. For any stage; `pre_grad` compiles fastest, and is the one for training.
"""

import torch

from pypm import RuleSet, decline, let, pattern, predicate, record, rule, var
from pypm.fx import aten, is_scalar, same_shape, same_size
from pypm.kernels.lstm import lstm
from pypm.kernels.support.devices import off_cpu
from pypm.rules.loops.folds import Joined, Listed, gathered
from pypm.rules.loops.recurrences import SO_FEW
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.replacement.types import holds_number
from pypm.rules.vocabulary.indexing import Item, Taken
from pypm.rules.vocabulary.products import Linear, linear
from pypm.rules.vocabulary.types import FLOATS

# --- one step: x of step t, the layers of it and of the state before, and a bias of both ----------


@pattern(means=linear)
def Product(x, w, b, by_rows):
    return Linear(x, w, b, by_rows)


@pattern
def Product(x, w, b, by_rows):
    let(b=None)
    let(by_rows=False)
    assert x.rank == 2 and w.rank == 2
    return aten.matmul(x, w)


@pattern
def Projected(x, layer):
    w, b, by_rows = var(), var(), var()
    let(layer=record(weight=w, bias=b, by_rows=by_rows))
    return Product(x, w, b, by_rows)


@pattern
def Sums(x, at, t, of_inputs, h, of_states, e):  # of all gates
    let(e=None)
    return Projected(Item(x, at, t), of_inputs) + Projected(h, of_states)


@pattern
def Sums(x, at, t, of_inputs, h, of_states, e):
    y = Projected(Item(x, at, t), of_inputs) + Projected(h, of_states)
    assert e.rank == 1 and e.shape == y.shape[-1:]
    return y + e


@predicate
def quarter(shape, at):
    """Return the number of the quarter of the last dimension that a range is.

    Raises ValueError, which means "no match", if it is none.
    """
    size = shape[-1] // 4
    return [range(n * size, (n + 1) * size) for n in range(4)].index(at)


@pattern
def Quarter(sums, n):
    at = var()
    y = Taken(sums, at)
    let(n=quarter(sums.shape, at))
    return y


@pattern
def Gate(sums, n):
    return aten.sigmoid(Quarter(sums, n))


@pattern
def Step(cell, t, h, c, after):  # `cell`: inputs, weights, biases, the quarters of the gates
    x, at, of_inputs, of_states, e = var(), var(), var(), var(), var()
    i, f, g, o = var(), var(), var(), var()
    sums = Sums(x, at, t, of_inputs, h, of_states, e)
    y = Gate(sums, o) * aten.tanh(after)
    after <= Gate(sums, f) * c + Gate(sums, i) * aten.tanh(Quarter(sums, g))
    let(
        cell=record(
            x=x,
            at=at,
            of_inputs=of_inputs,
            of_states=of_states,
            bias=e,
            order=(i, f, g, o),
        )
    )
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


@pattern
def LastHidden(cell, t, h, c, after):  # after step t
    before, c_before, n = var(), var(), var()
    y = Step(cell, t, before, c_before, after)
    let(n=t - 1)
    before <= LastHidden(cell, n, h, c, c_before)
    return y


@pattern
def LastHidden(cell, t, h, c, after):
    y = Step(cell, t, h, c, after)
    assert t == 0
    return y


@pattern
def Last(cell, state, steps):
    t, h, c, after = var(), var(), var(), var()
    y = LastHidden(cell, t, h, c, after)
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
            `at`, the place of the items, as for `lined_up`; and what `of_torch` takes.
        state: `h` and `c` before the first step, [batch, hidden].
        steps: the number of steps.
    """
    weights, h, c = of_torch(cell), state.h, state.c
    if is_scalar(c) and holds_number(h.dtype, c):
        c = torch.full_like(h, c)
    reason = unfit(cell, h, c, weights, steps)
    return reason or lstm(lined_up(cell.x, cell.at, steps), *weights, h, c)


def of_torch(cell):
    """Return the weights and the bias as torch has them: [4 hidden, ...], input gate first.

    Arguments:
        cell: `of_inputs` and `of_states`: a weight, transposed if not `by_rows`, and a bias;
            `bias`, a third one; biases are [4 hidden] or None. `order`: the quarters of the input
            gate, the forget gate, the cell and the output gate.

    The bias is None if a bias has another shape.
    """
    both = cell.of_inputs, cell.of_states
    w, u = (each.weight if each.by_rows else each.weight.t() for each in both)
    biases = *(each.bias for each in both), cell.bias
    given = [bias for bias in biases if bias is not None]
    if not all(has_shape(bias, w.shape[:1]) for bias in given):
        return w, u, None
    bias = sum(given[1:], given[0]) if given else w.new_zeros(w.shape[0])
    if cell.order == (0, 1, 2, 3):
        return w, u, bias
    return tuple(torch.cat([x.chunk(4)[n] for n in cell.order]) for x in (w, u, bias))


def unfit(cell, h, c, weights, steps):
    """Return the reason for which a loop of cells is not rolled up, or None.

    Arguments:
        cell, steps: those of `rolled`.
        h, c: the states before the first step.
        weights: of `of_torch`.
    """
    (w, u, bias), x = weights, cell.x
    if (reason := off_cpu(x)) is not None:
        return reason
    if bias is None or cell.at[1] or x.dim() != 3:
        return "the inputs of a step are not [batch, in], or a bias is not one number for each row"
    if is_scalar(c):
        return "the first cell state would be rounded to the type of the states"
    if x.dtype not in FLOATS or any(y.dtype != x.dtype for y in (h, c, w, u, bias)):
        return "the operands are not of one floating-point type"
    if not (
        h.dim() == 2 and same_shape(h.shape, c.shape) and same_size(h.shape[1] * 4, u.shape[0])
    ):
        return "the states are not [batch, hidden]"
    if same_size(h.shape[1], 0):
        return "the states have no elements"  # oneDNN has no such layer
    if not same_size(w.shape[0], u.shape[0]):  # a product of one row would be broadcast
        return "the inputs do not have as many rows of weights as the states"
    if not same_size(x.shape[0 if cell.at[0] else 1], h.shape[0]):  # oneDNN has the inputs' batch
        return "the inputs have another batch than the states"
    return SO_FEW if steps < FEW else None


RULES = RuleSet((lstm_layer, last_of_lstm), "lstm")
