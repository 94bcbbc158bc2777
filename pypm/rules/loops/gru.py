"""GRUs written by hand: cells in a loop that tracing unrolled, as one operator again.

The cells are torch's: the reset gate scales the product of the hidden state, not the hidden state.
The patterns fold over the steps, by `pypm.rules.loops.folds`. For any stage;
`pre_grad` compiles fastest, and is the one for training.
"""

import torch

from pypm import RuleSet, decline, let, pattern, record, rule, var
from pypm.fx import aten, same_size
from pypm.kernels.gru import gru
from pypm.kernels.support.devices import off_cpu
from pypm.rules.loops.folds import Itself, Joined, Listed, State, gathered
from pypm.rules.loops.lstm import Product
from pypm.rules.loops.recurrences import SO_FEW
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.vocabulary.indexing import Item, Taken
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


@pattern
def Part(x, weight):  # `weight`: a matrix, a bias, and which rows of both
    w, b, by_rows = var(), var(), var()
    let(weight=(w, b, by_rows, None))
    return Affine(x, w, b, by_rows)


@pattern
def Part(x, weight):
    w, b, by_rows, at = var(), var(), var(), var()
    let(weight=(w, b, by_rows, at))
    return Taken(Affine(x, w, b, by_rows), at)


@pattern
def Biased(x, e):
    let(e=None)
    return x


@pattern
def Biased(x, e):
    assert e.rank == 1 and e.shape == x.shape[-1:]
    return x + e


@pattern
def Gate(x, h, gate):  # `gate`: the weights of both, and a bias
    w, u, e = var(), var(), var()
    let(gate=(w, u, e))
    return aten.sigmoid(Biased(Part(x, w) + Part(h, u), e))


@pattern
def New(x, r, h, gate):
    w, u, e = var(), var(), var()
    let(gate=(w, u, e))
    return aten.tanh(Biased(Part(x, w) + r * Part(h, u), e))


@pattern
def Mixed(n, z, h):
    return (1 - z) * n + z * h


@pattern
def Mixed(n, z, h):
    return n + z * (h - n) | aten.lerp(n, h, z)


@pattern
def Step(cell, before, t):  # `cell`: the inputs of all steps, their place, and the three gates
    x, at, reset, update, new = var(), var(), var(), var(), var()
    step = Item(x, at, t)
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
    x, at = cell.x, cell.at
    if (reason := off_cpu(x)) is not None:
        return reason
    if at[1] or x.dim() != 3 or h.dim() != 2:
        return "the inputs of a step and the states are not [batch, ...]"
    if not same_size(x.shape[0 if at[0] else 1], h.shape[0]):
        return "the inputs have another batch than the states"
    given = [h]
    for *weights, e in cell.gates:
        for w, b, by_rows, rows in weights:
            height = w.shape[0 if by_rows else 1]
            if not same_size(height if rows is None else len(rows), h.shape[1]):
                return "a gate has not one row of weights for each element of a state"
            if b is not None and not has_shape(b, (height,)):
                return "a bias is not one number for each row"
            given += [w] if b is None else [w, b]
        given += [] if e is None else [e]
    if x.dtype not in FLOATS or any(y.dtype != x.dtype for y in given):
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
    of_inputs, of_states, biases = zip(*cell.gates, strict=True)
    (w, b), (u, d) = of_torch(of_inputs), of_torch(of_states)
    if any(e is not None for e in biases):
        b = b + torch.cat([h.new_zeros(h.shape[1]) if e is None else e for e in biases])
    return gru(lined_up(cell.x, cell.at, steps), w, u, b, d, h)


def of_torch(weights):
    """Return a weight and a bias as torch has them, [3 hidden, ...], of those of three gates."""
    w, b, by_rows, rows = weights[0]
    whole = w if by_rows else w.t()
    n = whole.shape[0] // 3
    thirds = [range(i * n, (i + 1) * n) for i in range(3)]
    is_whole = same_size(whole.shape[0], 3 * n) and [each[3] for each in weights] == thirds
    if is_whole and all(each[0] is w and each[1] is b and each[2] == by_rows for each in weights):
        return whole, w.new_zeros(3 * n) if b is None else b
    parts = []
    for w, b, by_rows, rows in weights:
        w = w if by_rows else w.t()
        b = w.new_zeros(w.shape[0]) if b is None else b
        taken = slice(None) if rows is None else slice(rows.start, rows.stop, rows.step)
        parts.append((w[taken], b[taken]))
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


RULES = RuleSet((gru_layer, last_of_gru), "gru")
