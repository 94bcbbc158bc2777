"""LSTMs written by hand: cells in a loop that tracing unrolled, as one operator again.

The patterns recurse over the steps, as those of `pypm.rules.recurrences` do; each step binds the
hidden state and the cell state that the next one reads. `pypm::lstm` is oneDNN's layer in float32
on CPUs. For any stage; `pre_grad` compiles fastest, and is the one for training.
"""

import torch

from pypm import RuleSet, decline, let, pattern, predicate, rule, var
from pypm.fx import aten, is_scalar, same_shape, same_size
from pypm.kernels.lstm import lstm
from pypm.kernels.support.devices import off_cpu
from pypm.rules.recurrences.loops import SO_FEW, Placed, gathered
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.replacement.types import holds_number
from pypm.rules.vocabulary.indexing import Item, Taken
from pypm.rules.vocabulary.products import Linear
from pypm.rules.vocabulary.types import FLOATS

# --- one step: x of step t, the weights w and u, the biases b, d and e ----------------------------


@pattern
def Product(x, w, b, by_rows):
    return Linear(x, w, b, by_rows)


@pattern
def Product(x, w, b, by_rows):
    let(b=None)
    let(by_rows=False)
    assert x.rank == 2 and w.rank == 2
    return aten.matmul(x, w)


@pattern
def Sums(x, at, t, w, b, by_rows, h, u, d, u_by_rows, e):  # of all gates
    let(e=None)
    return Product(Item(x, at, t), w, b, by_rows) + Product(h, u, d, u_by_rows)


@pattern
def Sums(x, at, t, w, b, by_rows, h, u, d, u_by_rows, e):
    y = Product(Item(x, at, t), w, b, by_rows) + Product(h, u, d, u_by_rows)
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
def Step(x, at, t, layer, h, c, cell):  # `layer`: weights, biases, the quarters of the gates
    w, b, by_rows, u, d, u_by_rows, e = var(), var(), var(), var(), var(), var(), var()
    i, f, g, o = var(), var(), var(), var()
    sums = Sums(x, at, t, w, b, by_rows, h, u, d, u_by_rows, e)
    y = Gate(sums, o) * aten.tanh(cell)
    cell <= Gate(sums, f) * c + Gate(sums, i) * aten.tanh(Quarter(sums, g))
    let(layer=(w, b, by_rows, u, d, u_by_rows, e, i, f, g, o))
    return y


# --- all steps: the list of the hidden states, or the last one alone -----------------------------


@pattern
def Later(x, at, t, layer, h, c, spread, last, cell, steps):  # after step t
    n, next_c = var(), var()
    y = Step(x, at, n, layer, h, c, next_c)
    assert n == t + 1
    return [Placed(y, spread), *Later(x, at, n, layer, y, next_c, spread, last, cell, steps)]


@pattern
def Later(x, at, t, layer, h, c, spread, last, cell, steps):
    let(last=h)
    let(cell=c)
    let(steps=t + 1)
    return []


@pattern
def Loop(x, at, layer, h, c, spread, last, cell, steps):
    n, next_c = var(), var()
    y = Step(x, at, n, layer, h, c, next_c)
    assert n == 0
    return [Placed(y, spread), *Later(x, at, n, layer, y, next_c, spread, last, cell, steps)]


@pattern
def Joined(x, at, layer, h, c, is_stack, along, spread, last, cell, steps):
    let(is_stack=True)
    let(spread=None)
    return aten.stack(Loop(x, at, layer, h, c, spread, last, cell, steps), along)


@pattern
def Joined(x, at, layer, h, c, is_stack, along, spread, last, cell, steps):
    let(is_stack=False)
    return aten.cat(Loop(x, at, layer, h, c, spread, last, cell, steps), along)


@pattern
def Layer(x, at, layer, h, c, is_stack, along, spread, steps):
    last, cell = var(), var()
    return Joined(x, at, layer, h, c, is_stack, along, spread, last, cell, steps), last, cell


@pattern
def Hidden(x, at, t, layer, h, c, cell):  # after step t
    before, c_before, n = var(), var(), var()
    y = Step(x, at, t, layer, before, c_before, cell)
    let(n=t - 1)
    before <= Hidden(x, at, n, layer, h, c, c_before)
    return y


@pattern
def Hidden(x, at, t, layer, h, c, cell):
    y = Step(x, at, t, layer, h, c, cell)
    assert t == 0
    return y


@pattern
def Last(x, at, layer, h, c, steps):
    t, cell = var(), var()
    y = Hidden(x, at, t, layer, h, c, cell)
    assert t == x.shape[at[0]] - 1
    let(steps=t + 1)
    return y, cell


# --- the rules -----------------------------------------------------------------------------------

FEW = 16
"""Steps below which the operator is no faster than the steps as `torch.compile` computes them."""


@rule(Layer)
def lstm_layer(x, at, layer, h, c, is_stack, along, spread, steps):
    weights, c = of_torch(*layer), filled(c, h)
    reason = unfit(x, at, h, c, weights, steps)
    if reason is not None:
        return decline(reason)
    states, cell = rolled(x, at, h, c, weights, steps)
    return gathered(states, spread, is_stack, along), states[-1], cell


@rule(Last)
def last_of_lstm(x, at, layer, h, c, steps):
    weights, c = of_torch(*layer), filled(c, h)
    reason = unfit(x, at, h, c, weights, steps)
    if reason is not None:
        return decline(reason)
    states, cell = rolled(x, at, h, c, weights, steps)
    return states[-1], cell


def filled(c, h):
    """Return a cell state as it is; a number that its type holds, as a tensor like the state h."""
    return torch.full_like(h, c) if is_scalar(c) and holds_number(h.dtype, c) else c


def of_torch(w, b, by_rows, u, d, u_by_rows, e, *order):
    """Return the weights and the bias as torch has them: [4 hidden, ...], input gate first.

    Arguments:
        w, u: the weights of the inputs and of the hidden state; transposed if not `by_rows` and not
            `u_by_rows`.
        b, d, e: biases, each [4 hidden], or None.
        order: the quarters of the input gate, the forget gate, the cell and the output gate.

    The bias is None if a bias has another shape.
    """
    w, u = w if by_rows else w.t(), u if u_by_rows else u.t()
    given = [bias for bias in (b, d, e) if bias is not None]
    if not all(has_shape(bias, w.shape[:1]) for bias in given):
        return w, u, None
    bias = sum(given[1:], given[0]) if given else w.new_zeros(w.shape[0])
    if order == (0, 1, 2, 3):
        return w, u, bias
    return tuple(torch.cat([x.chunk(4)[n] for n in order]) for x in (w, u, bias))


def unfit(x, at, h, c, weights, steps):
    """Return the reason for which a loop of cells is not rolled up, or None.

    The arguments are those of `rolled`.
    """
    w, u, bias = weights
    if (reason := off_cpu(x)) is not None:
        return reason
    if bias is None or at[1] or x.dim() != 3:
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
    if not same_size(x.shape[0 if at[0] else 1], h.shape[0]):  # oneDNN has the inputs' batch
        return "the inputs have another batch than the states"
    return SO_FEW if steps < FEW else None


def rolled(x, at, h, c, weights, steps):
    """Return the hidden states, [steps, batch, hidden], and the last cell state.

    Arguments:
        x: the tensor of which each step takes an item, [batch, in].
        at: the place of the items, as for `lined_up`.
        h, c: the states before the first step, [batch, hidden].
        weights: of `of_torch`.
        steps: the number of steps.
    """
    return lstm(lined_up(x, at, steps), *weights, h, c)


RULES = RuleSet((lstm_layer, last_of_lstm), "lstm")
