"""GRUs written by hand: cells in a loop that tracing unrolled, as one operator again.

The cells are torch's: the reset gate scales the product of the hidden state, not the hidden state.
The patterns fold over the steps, by `pypm.rules.loops.folds`. For any stage;
`pre_grad` compiles fastest, and is the one for training.
"""

import torch
import torch.nn.functional as F

from pypm import RuleSet, decline, let, pattern, record, rule, var
from pypm.fx import aten, hiding, observer, refines, same_size
from pypm.kernels.gru import gru
from pypm.kernels.support.devices import off_cpu
from pypm.rules.loops.folds import Itself, Joined, Listed, State, gathered
from pypm.rules.loops.items import Input
from pypm.rules.loops.lstm import Biased, Product, linear_of, same_layer, weights_of
from pypm.rules.loops.recurrences import SO_FEW
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.vocabulary.indexing import Taken
from pypm.rules.vocabulary.products import linear
from pypm.rules.vocabulary.types import FLOATS

# --- one step: a gate is of the inputs, the hidden state, and a bias ------------------------------


@pattern(means=linear)
def Affine(x, w, b, by_rows):
    return Product(x, w, b, by_rows)


@pattern
def Affine(x, w, b, by_rows):
    y = Product(x, w, None, by_rows) + b
    assert b.rank == 1 and b.shape == y.shape[-1:]
    return y


@pattern(means=hiding(weights_of, linear_of))
def Plain(x, layer):
    w, b, by_rows = var(), var(), var()
    let(layer=record(weight=w, bias=b, by_rows=by_rows))
    assert w.rank == 2
    assert b is None or b.rank == 1
    return Affine(x, w, b, by_rows)


@observer((2, 1))
def rows_of(weight):
    """Return a weight, [out, in], and its bias, [out], as `Part` binds them."""
    layer, rows = weight
    w, b = weights_of(layer)
    b = w.new_zeros(w.shape[0]) if b is None else b
    if rows is None:
        return w, b
    return w[rows.start : rows.stop : rows.step], b[rows.start : rows.stop : rows.step]


@pattern(means=hiding(rows_of, lambda x, weight: F.linear(x, *rows_of(weight))))
def Part(x, weight):  # `weight`: a layer, and which rows of it
    layer = var()
    let(weight=(layer, None))
    return Plain(x, layer)


@pattern
def Part(x, weight):
    layer, at = var(), var()
    let(weight=(layer, at))
    return Taken(Plain(x, layer), at)


@observer((2, 1, 2, 1))
def of_gate(gate):
    """Return the weight and the bias of the inputs of a gate, and those of the hidden state."""
    of_inputs, of_states, e = gate
    (w, b), (u, d) = rows_of(of_inputs), rows_of(of_states)
    return w, b if e is None else b + e, u, d


def opened(x, h, gate):
    """Return a gate of the inputs and the hidden state."""
    w, b, u, d = of_gate(gate)
    return torch.sigmoid(F.linear(x, w, b) + F.linear(h, u, d))


def renewed(x, r, h, gate):
    """Return the new state, whose product of the hidden state a gate scales."""
    w, b, u, d = of_gate(gate)
    return torch.tanh(F.linear(x, w, b) + r * F.linear(h, u, d))


@pattern(means=hiding(of_gate, opened))
def Gate(x, h, gate):  # `gate`: the weights of both, and a bias
    w, u, e = var(), var(), var()
    let(gate=(w, u, e))
    return aten.sigmoid(Biased(Part(x, w) + Part(h, u), e))


@pattern(means=hiding(of_gate, renewed))
def New(x, r, h, gate):
    w, u, e = var(), var(), var()
    let(gate=(w, u, e))
    return aten.tanh(Biased(Part(x, w) + r * Part(h, u), e))


@pattern(means=lambda n, z, h: n + z * (h - n))
def Mixed(n, z, h):
    return (1 - z) * n + z * h


@pattern
def Mixed(n, z, h):
    return n + z * (h - n) | aten.lerp(n, h, z)


@pattern
def Step(cell, before, t):  # `cell`: the inputs of all steps, their place, and the three gates
    x, at, reset, update, new = var(), var(), var(), var(), var()
    step = Input(x, at, t)
    y = Mixed(New(step, Gate(step, before, reset), before, new), Gate(step, before, update), before)
    let(cell=record(x=x, at=at, gates=(reset, update, new)))
    return y


# --- all steps: the list of the hidden states, or the last one alone -----------------------------


@pattern
def Layer(cell, h, place, steps):
    last = var()
    return Joined(Listed(Itself(Step)), cell, _, h, place, last, steps), last


@pattern
def Last(cell, h, steps):
    t = var()
    y = State(Step, cell, h, t)
    assert t == cell.x.shape[cell.at[0]] - 1
    let(steps=t + 1)
    return y


# --- the rules -----------------------------------------------------------------------------------

FEW = 16
"""Steps below which the operator was not measured to be faster than `torch.compile`."""


@rule(Layer)
def gru_layer(cell, h, place, steps):
    reason = unfit(cell, h, steps)
    if reason is not None:
        return decline(reason)
    states = rolled(cell, h, steps)
    return gathered(states, place), states[-1]


@rule(Last)
def last_of_gru(cell, h, steps):
    reason = unfit(cell, h, steps)
    if reason is not None:
        return decline(reason)
    return rolled(cell, h, steps)[-1]


def unfit(cell, h, steps):
    """Return the reason for which a loop of cells is not rolled up, or None.

    The arguments are those of `rolled`.
    """
    items = lined_up(cell.x, cell.at, steps)
    if (reason := off_cpu(items)) is not None:
        return reason
    if items.dim() != 3 or h.dim() != 2:
        return "the inputs of a step and the states are not [batch, ...]"
    if not same_size(items.shape[1], h.shape[0]):
        return "the inputs have another batch than the states"
    given = [h]
    for w, b, u, d in map(of_gate, cell.gates):
        if not all(same_size(each.shape[0], h.shape[1]) for each in (w, u)):
            return "a gate has not one row of weights for each element of a state"
        if not all(has_shape(each, h.shape[1:]) for each in (b, d)):
            return "a bias is not one number for each row"
        given += [w, b, u, d]
    if items.dtype not in FLOATS or any(y.dtype != items.dtype for y in given):
        return "the operands are not of one floating-point type"
    return SO_FEW if steps < FEW else None


def rolled(cell, h, steps):
    """Return the hidden states, [steps, batch, hidden].

    Arguments:
        cell: `x`, the tensor of which each step takes an item, [batch, in]; `at`, the place of the
            items, as for `lined_up`; `gates`, for the reset gate, the update gate and the new
            state: the weights of the inputs and of the hidden state, as `Part` binds them, and a
            bias, [hidden], or None.
        h: the state before the first step, [batch, hidden].
        steps: the number of steps.
    """
    w, b, u, d = of_torch(cell.gates)
    return gru(lined_up(cell.x, cell.at, steps), w, u, b, d, h)


def one_by_one(gates):
    """Return the weights and biases as torch has them, [3 hidden, ...], of those of three gates."""
    return tuple(map(torch.cat, zip(*map(of_gate, gates), strict=True)))


@refines(one_by_one)
def of_torch(gates):
    """Return what `one_by_one` returns, without a copy where the rows lie as torch has them."""
    of_inputs, of_states, biases = zip(*gates, strict=True)
    whole = whole_of(of_inputs), whole_of(of_states)
    if None in whole:
        return one_by_one(gates)
    (w, b), (u, d) = whole
    if any(e is not None for e in biases):
        size = w.shape[0] // 3
        b = b + torch.cat([w.new_zeros(size) if e is None else e for e in biases])
    return w, b, u, d


def whole_of(weights):
    """Return a weight and its bias of which three gates take a third each, in order; or None."""
    layer, _ = weights[0]
    height = weights_of(layer)[0].shape[0]
    n = height // 3
    thirds = [range(i * n, (i + 1) * n) for i in range(3)]
    if not same_size(height, 3 * n) or [at for _, at in weights] != thirds:
        return None
    return rows_of((layer, None)) if all(same_layer(each, layer) for each, _ in weights) else None


RULES = RuleSet((gru_layer, last_of_gru), "gru")
