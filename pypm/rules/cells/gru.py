"""GRUs written by hand: cells in a loop that tracing unrolled, as one operator again.

The cells are torch's: the reset gate scales the product of the hidden state, not the hidden state.
The patterns recurse over the steps, as those of `pypm.rules.cells.lstm` do. For any stage;
`pre_grad` compiles fastest, and is the one for training.
"""

import torch

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx import aten, same_size
from pypm.kernels.gru import gru
from pypm.kernels.support.devices import off_cpu
from pypm.rules.cells.lstm import Product
from pypm.rules.recurrences.loops import SO_FEW, Placed, gathered
from pypm.rules.replacement.items import has_shape, lined_up
from pypm.rules.vocabulary.indexing import Item, Taken
from pypm.rules.vocabulary.types import FLOATS

# --- one step: a gate is of the inputs, the hidden state, and a bias ------------------------------


@pattern
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
def Step(x, at, t, layer, h):
    reset, update, new = var(), var(), var()
    step = Item(x, at, t)
    y = Mixed(New(step, Gate(step, h, reset), h, new), Gate(step, h, update), h)
    let(layer=(reset, update, new))
    return y


# --- all steps: the list of the hidden states, or the last one alone -----------------------------


@pattern
def Later(x, at, t, layer, h, spread, last, steps):  # after step t
    n = var()
    y = Step(x, at, n, layer, h)
    assert n == t + 1
    return [Placed(y, spread), *Later(x, at, n, layer, y, spread, last, steps)]


@pattern
def Later(x, at, t, layer, h, spread, last, steps):
    let(last=h)
    let(steps=t + 1)
    return []


@pattern
def Loop(x, at, layer, h, spread, last, steps):
    n = var()
    y = Step(x, at, n, layer, h)
    assert n == 0
    return [Placed(y, spread), *Later(x, at, n, layer, y, spread, last, steps)]


@pattern
def Joined(x, at, layer, h, is_stack, along, spread, last, steps):
    let(is_stack=True)
    let(spread=None)
    return aten.stack(Loop(x, at, layer, h, spread, last, steps), along)


@pattern
def Joined(x, at, layer, h, is_stack, along, spread, last, steps):
    let(is_stack=False)
    return aten.cat(Loop(x, at, layer, h, spread, last, steps), along)


@pattern
def Layer(x, at, layer, h, is_stack, along, spread, steps):
    last = var()
    return Joined(x, at, layer, h, is_stack, along, spread, last, steps), last


@pattern
def Hidden(x, at, t, layer, h):  # after step t
    before, n = var(), var()
    y = Step(x, at, t, layer, before)
    let(n=t - 1)
    before <= Hidden(x, at, n, layer, h)
    return y


@pattern
def Hidden(x, at, t, layer, h):
    y = Step(x, at, t, layer, h)
    assert t == 0
    return y


@pattern
def Last(x, at, layer, h, steps):
    t = var()
    y = Hidden(x, at, t, layer, h)
    assert t == x.shape[at[0]] - 1
    let(steps=t + 1)
    return y


# --- the rules -----------------------------------------------------------------------------------

FEW = 16
"""Steps below which the operator was not measured to be faster than `torch.compile`."""


@rule(Layer)
def gru_layer(x, at, layer, h, is_stack, along, spread, steps):
    reason = unfit(x, at, h, layer, steps)
    if reason is not None:
        return decline(reason)
    states = rolled(x, at, h, layer, steps)
    return gathered(states, spread, is_stack, along), states[-1]


@rule(Last)
def last_of_gru(x, at, layer, h, steps):
    reason = unfit(x, at, h, layer, steps)
    if reason is not None:
        return decline(reason)
    return rolled(x, at, h, layer, steps)[-1]


def unfit(x, at, h, layer, steps):
    """Return the reason for which a loop of cells is not rolled up, or None.

    The arguments are those of `rolled`.
    """
    if (reason := off_cpu(x)) is not None:
        return reason
    if at[1] or x.dim() != 3 or h.dim() != 2:
        return "the inputs of a step and the states are not [batch, ...]"
    if not same_size(x.shape[0 if at[0] else 1], h.shape[0]):
        return "the inputs have another batch than the states"
    given = [h]
    for *weights, e in layer:
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


def rolled(x, at, h, layer, steps):
    """Return the hidden states, [steps, batch, hidden].

    Arguments:
        x: the tensor of which each step takes an item, [batch, in].
        at: the place of the items, as for `lined_up`.
        h: the state before the first step, [batch, hidden].
        layer: for the reset gate, the update gate and the new state: the weights of the inputs and
            of the hidden state, as `Part` binds them, and a bias, [hidden], or None.
        steps: the number of steps.
    """
    of_inputs, of_states, biases = zip(*layer, strict=True)
    (w, b), (u, d) = of_torch(of_inputs), of_torch(of_states)
    if any(e is not None for e in biases):
        b = b + torch.cat([h.new_zeros(h.shape[1]) if e is None else e for e in biases])
    return gru(lined_up(x, at, steps), w, u, b, d, h)


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
