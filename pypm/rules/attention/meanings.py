"""The meanings of patterns of attention: scores after steps, heads in a layout, weights, products.

A number that is filled in so low that it hides a key is minus infinity here; see `hides`.
"""

import torch

from pypm.fx import observer
from pypm.rules.vocabulary.products import product, scaled
from pypm.rules.vocabulary.shapes import batched, rows_if_said

STEPS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "lower": lambda x, _: x - x.amax(-1, True),
    "raise": torch.clamp,
    "fill": lambda x, b, c: x.masked_fill(b, c),
    "keep": lambda x, b, c: torch.where(b, x, c),
}
"""By the kind of a step, what it computes of scores and its operands."""


def stepped(x, steps, shape=None):
    """Return scores [..., T] after steps, their rows in the shape of the result."""
    for kind, own, *operands in steps:
        x = regrouped(x, own) if own else x
        x = STEPS[kind.removeprefix("causal ")](x, *operands)
    return x if shape is None else regrouped(x, shape)


def regrouped(x, shape):
    """Return the same rows in a shape, the last two dimensions as they were."""
    x = x if len(shape) == x.dim() else batched(x, shape)
    return x.expand(shape)


def flat(x, steps, shape=None):
    """Return x, scaled, with other batch dimensions."""
    x = scaled(x, steps)
    return x if shape is None else batched(x, shape)


def repeated(k, dim, shape=None):
    """Return k with each head of the dimension several times, for as many heads as in a shape."""
    if shape is None or k.shape[dim] == shape[dim]:
        return k
    wide = k.unsqueeze(dim + 1)
    times = shape[dim] // k.shape[dim]
    sizes = (*k.shape[: dim + 1], times, *k.shape[dim + 1 :])
    return wide.expand(sizes).flatten(dim, dim + 1)


def expanded(k, shape):
    """Return k in a shape to which it is broadcast."""
    return k.expand(shape)


def heads(k, layout, shape=None):
    """Return keys or values [B, G, T, D] of a layout for as many heads as in a shape."""
    k = k.transpose(1, 2) if layout == "BTGD" else k
    if shape is None or k.dim() == 4:
        return repeated(k, 1, shape)
    return k.expand((*shape[:-2], *k.shape[-2:]))


def keys(k, layout, steps, shape=None):
    """Return keys as columns, [B, H, D, T], of a layout and scaled, for the heads in a shape."""
    k = scaled(k, steps)
    return heads(k, "", shape) if layout == "BGDT" else heads(k, layout, shape).mT


def scores(q, k, layout):
    """Return the products of queries and keys, each as it is."""
    if "," in layout:
        return torch.einsum(layout, q, k)
    return q @ keys(k, layout, (), q.shape)


def scores_of(q, k, sq, sk, layout, steps, shape=None):
    """Return scores of queries and keys that were scaled, after steps."""
    return stepped(scores(scaled(q, sq), scaled(k, sk), layout), steps, shape)


def stepped_scores(q, k, layout, steps, shape=None):
    """Return scores after all steps."""
    return stepped(scores(q, k, layout), steps, shape)


def scored(scores, shape=None):
    """Return the scores of a record after its steps."""
    return stepped_scores(scores.q, scores.k, scores.layout, scores.steps, shape)


def weights(scores, shape=None):
    """Return the weights of scores, whose rows may be grouped otherwise."""
    x = scored(scores, shape)
    is_softmax = not scores.steps or scores.steps[-1][0] != "sigmoid"
    return torch.softmax(x, -1) if is_softmax else x


@observer((4,), (3,), (5,))
def weights_in_place(scores):
    """Return the weights of scores, each row where the product of queries and keys has it."""
    return weights(scores, stepped_scores(scores.q, scores.k, scores.layout, ()).shape)


def regrouped_weights(scores, shape=None):
    """Return the same, whose rows may be grouped otherwise."""
    return rows_if_said(weights_in_place(scores), shape)


def summed(w, v, lv, shape=None):
    """Return the product of weights and values."""
    return torch.einsum(lv, w, v) if "," in lv else product(w, heads(v, lv, w.shape), shape)
